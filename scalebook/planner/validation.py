"""Published runs beside the planner: predicted and published throughput, with one constant for each machine kind.

The constant (`Cluster.efficiency`) is fitted on every other run of a machine kind, by the median of the logarithms of
predicted over published time, and tested on those in between. What a paper does not say of a run (chunks, micro-batch)
is what the planner finds fastest among what fits. Run it: `python -m scalebook.planner.validation`.
"""

import argparse
import math
from dataclasses import dataclass
from functools import cache

from scalebook import published
from scalebook.formulas import tensor_parallel
from scalebook.planner.clusters import Cluster
from scalebook.planner.efficiency import UNKNOWN
from scalebook.planner.estimating import estimate
from scalebook.planner.plans import Plan
from scalebook.planner.searching import search
from scalebook.planner.sizes import gpt
from scalebook.published import Machine, ModelShape

# Megatron-LM of 2021 and 2022: no fused attention; nothing runs while the GPU computes; optimizer states whole.
MEGATRON = {"attention": "unfused", "overlap": False, "zero": 0, "sequence_parallel": False}


@dataclass(frozen=True)
class Run:
    """One published run: what it trained, how, and the seconds of its step, as published or as its FLOP/s say.

    `plan` holds fields of `Plan`; `unknown` names those that the source does not say. `machine` is the name of a
    published one, or a `published.Machine`. Any run can be put beside the planner's answer, not the book's alone:

    >>> from scalebook.planner import EFFICIENCY
    >>> own = Run("my run", "A100-80GB", gpt(6144, 64, 48), {"tp": 8, "pp": 1, "dp": 1, "batch": 4, "sequence": 2048,
    ...           "micro_batch": 4, "recompute": "full", **MEGATRON}, 1.42, "arXiv:2205.05198, Table 5")
    >>> [one] = compare([own], EFFICIENCY)
    >>> round(100 * one.error)
    -6
    """

    name: str
    machine: str | Machine
    model: ModelShape
    plan: dict
    seconds: float
    source: str
    unknown: tuple[str, ...] = ()

    @property
    def gpus(self):
        """The GPUs of the run."""
        return math.prod(self.plan.get(axis, 1) for axis in ("tp", "cp", "dp", "pp"))

    def predict(self, efficiency):
        """The planner's `Estimate` of the run at an efficiency."""
        return estimate(self.model, self.cluster(efficiency), settled(self))

    def cluster(self, efficiency):
        """The run's GPUs at an efficiency."""
        kind = self.machine if isinstance(self.machine, Machine) else published.machine(self.machine)
        return Cluster(kind, self.gpus, efficiency)

    @property
    def kind(self):
        """The name of the machine kind."""
        return self.machine.name if isinstance(self.machine, Machine) else self.machine


@dataclass(frozen=True)
class Comparison:
    """A run, the predicted seconds of its step, and whether the constant was fitted on it."""

    run: Run
    efficiency: float
    predicted: float
    fitted: bool

    @property
    def error(self):
        """Predicted over published throughput, less 1."""
        return self.run.seconds / self.predicted - 1


@cache  # the efficiency divides every time, so it does not change which is fastest
def _fastest(model, cluster, fixed, plan):
    given = dict(plan)
    answer = search(model, cluster, **dict(fixed), zero=given.pop("zero"), recompute=(given.pop("recompute"),),
                    sequence_parallel=(given.pop("sequence_parallel"),),
                    micro_batches=given.pop("micro_batch", (1, 2, 4, 8)), **given)
    return (answer.plans or answer.rejected)[0].plan


def settled(run):
    """The run's plan; what its source does not say is what is fastest."""
    if not run.unknown:
        return Plan(**run.plan)
    degrees = {axis: run.plan.get(axis, 1) for axis in ("tp", "cp", "dp", "pp", "ep")}
    rest = {name: value for name, value in run.plan.items() if name not in degrees}
    rest |= {"recompute": rest.get("recompute", "none"), "zero": rest.get("zero", 1),
             "sequence_parallel": rest.get("sequence_parallel", True)}
    return _fastest(run.model, run.cluster(1), tuple(degrees.items()), tuple(rest.items()))


def runs():
    """Every published run of the book's tables with a configuration and a speed, in the order of the tables."""
    return (*narayanan_table1(), *narayanan_table2(), *mt_nlg(), *korthikanti(), *llama_3())


def narayanan_table1():
    """Weak scaling from 1.7 billion to a trillion parameters; FLOP/s by the paper's equation 3."""
    yield from weak_scaling(published.table("narayanan2021_table1"))


def weak_scaling(table):
    """The rows of a table that has the columns of arXiv:2104.04473, Table 1."""
    for row in table:
        model = gpt(row["hidden"], row["heads"], row["layers"])
        plan = {**MEGATRON, "tp": row["TP"], "pp": row["PP"], "dp": row["GPUs"] // (row["TP"] * row["PP"]),
                "batch": row["batch"], "sequence": 2048, "recompute": "full"}
        seconds = seconds_by_equation_3(model, row["batch"], row["GPUs"], row["TFLOPs_per_GPU"])
        yield Run(f"{row['params_B']:g}B on {row['GPUs']}", "A100-80GB", model, plan, seconds, table.source,
                  ("micro_batch", "chunks"))


def narayanan_table2():
    """GPT-3 by ZeRO-3 alone and by pipeline and tensor parallelism."""
    table, model = published.table("narayanan2021_table2"), gpt(12288, 96, 96)
    for row in table:
        common = {**MEGATRON, "batch": row["batch"], "sequence": 2048, "micro_batch": row["microbatch"],
                  "recompute": "full"}
        alone = {"tp": 1, "pp": 1, "dp": row["GPUs"], "zero": 3, "overlap": True}
        degrees = {"tp": 8, "pp": 12, "dp": row["GPUs"] // row["MP"]}
        zero = row["scheme"] == "ZeRO-3"
        seconds = seconds_by_equation_3(model, row["batch"], row["GPUs"], row["TFLOPs_per_GPU"])
        yield Run(f"175B by {row['scheme']} on {row['GPUs']}", "A100-80GB", model,
                  {**common, **(alone if zero else degrees)}, seconds, table.source, () if zero else ("chunks",))


def mt_nlg():
    """The 530B model of Microsoft and NVIDIA: DeepSpeed's pipeline, which has no chunks."""
    model = published.model("MT-NLG-530B")
    for row in published.table("runs_3d").where(run="MT-NLG 530B"):
        plan = {**MEGATRON, "tp": row["TP"], "pp": row["PP"], "dp": row["DP"], "batch": row["sequences"],
                "sequence": 2048, "recompute": "full", "micro_batch": 1, "chunks": 1}
        yield Run(f"MT-NLG 530B on {row['GPUs']}", "A100-80GB", model, plan, float(row["note"].split()[0]),
                  row["source"])


def korthikanti():
    """Full recomputation against sequence parallelism with selective recomputation; and the latter with DP = 8."""
    table = published.table("korthikanti2022_table5")
    measured = list(recomputation(table))
    yield from measured
    last, seconds = measured[-1], float(table.note.split("model takes ")[1].split()[0])
    yield Run("530B, SP + selective, on 2240", "A100-80GB", last.model, {**last.plan, "dp": 8, "batch": 8 * 280},
              seconds, table.source, ("chunks",))


def recomputation(table):
    """The rows of a table that has the columns of arXiv:2205.05198, Tables 3 and 5: two runs each."""
    ways = {"full": ("t_full_s", {"recompute": "full"}),
            "SP + selective": ("t_present_s", {"recompute": "selective", "sequence_parallel": True})}
    for row in table:
        model = gpt(row["hidden"], row["heads"], row["layers"])
        for way, (column, settings) in ways.items():
            plan = {**MEGATRON, "tp": row["TP"], "pp": row["PP"], "dp": 1, "batch": row["global_batch"],
                    "sequence": 2048, "micro_batch": row["micro_batch"], **settings}
            yield Run(f"{row['model']}, {way}, on {row['GPUs']}", "A100-80GB", model, plan, row[column], table.source,
                      ("chunks",) if row["PP"] > 1 else ())


def llama_3():
    """Llama 3 405B. The paper does not say how it counts attention: here the pairs that the causal mask leaves.

    It does say that with a layer less at either end the first chunk has the embedding alone (section 3.3.2). So a chunk
    has one layer, and a stage eight.
    """
    model = published.model("Llama-3-405B")
    for row in published.table("runs_3d"):
        if not row["run"].startswith("Llama 3"):
            continue
        sequence = 131072 if "long" in row["run"] else 8192
        plan = {"tp": row["TP"], "cp": row["CP"], "pp": row["PP"], "dp": row["DP"], "batch": row["sequences"],
                "sequence": sequence, "zero": 1, "micro_batch": 1, "chunks": 8}
        cluster = Cluster(published.machine("H100"), row["GPUs"], 1)
        one = estimate(model, cluster, Plan(**plan))
        seconds = one.mfu_causal * one.step_seconds * cluster.machine.peak_flops / (1e12 * row["TFLOPs_per_GPU"])
        yield Run(f"{row['run']} on {row['GPUs']}", "H100", model, plan, seconds, row["source"])


def seconds_by_equation_3(model, batch, gpus, teraflops):
    """Seconds of a step of sequences of 2048 tokens at a published FLOP/s: the paper counts FLOPs by its equation 3."""
    flops = tensor_parallel.flops_model_recomputed(b=batch, s=2048, L=model.layers, h=model.d_model, V=model.vocabulary)
    return float(flops / (gpus * teraflops * 10**12))


def fit(measured):
    """The efficiency at which the median of log(predicted / published) over the runs is zero.

    Every time of the planner is divided by the efficiency, so that of efficiency 1 says all of them.
    """
    return math.exp(_median([math.log(run.predict(1).step_seconds / run.seconds) for run in measured]))


def compare(measured=None, constants=None):
    """Predict every run. `constants` maps machine kinds to efficiencies fitted elsewhere, such as `EFFICIENCY`.

    Where it is None, each kind is fitted on every other of its runs, the first, third and so on. Returns a list of
    `Comparison`s in the order of the runs.
    """
    measured = tuple(runs() if measured is None else measured)
    halves = {kind: [run for run in measured if run.kind == kind] for kind in {run.kind for run in measured}}
    fitted = constants is None
    constants = {kind: fit(of_kind[::2]) if fitted else constants.get(kind, UNKNOWN)
                 for kind, of_kind in halves.items()}
    return [Comparison(run, constants[run.kind], run.predict(constants[run.kind]).step_seconds,
                       fitted and halves[run.kind].index(run) % 2 == 0) for run in measured]


def median_error(comparisons):
    """The median of the absolute errors; ValueError where there is none."""
    if not comparisons:
        raise ValueError("comparisons = [] is not allowed; it must have a comparison")
    return _median([abs(one.error) for one in comparisons])


def _median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def main():
    """Print the constants, every run beside its prediction, and the median error of those not fitted."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = compare()
    print("\n".join(rows(found)))
    for kind in sorted({one.run.kind for one in found}):
        of_kind = [one for one in found if one.run.kind == kind]
        tested = [one for one in of_kind if not one.fitted]
        print(f"{kind}: efficiency {of_kind[0].efficiency:.3f}; median error of the {len(tested)} runs not fitted "
              f"{100 * median_error(tested):.1f}%")
    print(f"median error of all runs not fitted: {100 * median_error([one for one in found if not one.fitted]):.1f}%")


def rows(comparisons):
    """A table of comparisons, as lines of text."""
    yield f"{'run':42}{'published':>10} s{'predicted':>10} s{'throughput':>12}"
    for one in comparisons:
        yield (f"{one.run.name:42}{one.run.seconds:10.4g}  {one.predicted:10.4g}  {100 * one.error:+10.1f}%"
               f"{'  fitted' if one.fitted else ''}")


if __name__ == "__main__":
    from scalebook.planner.validation import main

    main()
