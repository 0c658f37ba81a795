"""What one plan costs: memory of a GPU by part, time of a step by part, and how well the GPUs are used."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scalebook.formulas import planner as formulas
from scalebook.planner import costs, reasons
from scalebook.planner.clusters import Cluster
from scalebook.planner.plans import RECOMPUTE, Plan
from scalebook.planner.sizes import sizes_of
from scalebook.published import ModelShape

SYMBOL_OF = {"tp": "t", "cp": "n_c", "ep": "n_e", "dp": "N", "pp": "P", "chunks": "v", "micro_batch": "b", "zero": "Z",
             "batch": "B"}


@dataclass(frozen=True)
class Estimate:
    """A plan's costs. `memory` maps parts to bytes of the fullest GPU, `time` parts to seconds of a step.

    `problems` says why the plan cannot be run (empty: it can). `formulas["memory"]` and `formulas["time"]` map each
    part to the `Formula` it came from; those of what every micro-batch does are multiplied by the micro-batches, and
    that of kept activations by `formulas.planner.in_flight` and the stage's layers.
    """

    model: ModelShape
    cluster: Cluster
    plan: Plan
    memory: Mapping[str, float]
    time: Mapping[str, float]
    problems: tuple[str, ...]

    @property
    def memory_bytes(self) -> float:
        """Bytes that the fullest GPU needs."""
        return sum(self.memory.values())

    @property
    def step_seconds(self) -> float:
        """Seconds of one step."""
        return sum(self.time.values())

    @property
    def feasible(self) -> bool:
        """Whether the plan can be run."""
        return not self.problems

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all GPUs in a second."""
        return self.plan.batch * self.plan.sequence / self.step_seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs over what the GPUs are sold for; the attention of all pairs counts, masked or not."""
        return self._utilization(formulas.model_flops, self.plan.sequence)

    @property
    def mfu_causal(self) -> float:
        """The same, where only the pairs that the causal mask leaves count."""
        return self._utilization(formulas.model_flops, costs.keys_met(self.plan.sequence, "fused"))

    @property
    def hfu(self) -> float:
        """Hardware FLOPs over the same: what is computed, recomputation included."""
        return self._utilization(formulas.hardware_flops, costs.keys_met(self.plan.sequence, self.plan.attention))

    @property
    def formulas(self):
        """The formula of each part, of memory and of time: two dicts, without the parts that the plan does not have."""
        schedule = "1f1b" if self.plan.chunks == 1 else "interleaved" if self.plan.overlap else "waiting"

        def picked(parts, technique):
            found = {part: formula.get(technique) if isinstance(formula, dict) else formula
                     for part, formula in parts.items()}
            return {part: formula for part, formula in found.items() if formula is not None}

        return {"memory": picked(costs.MEMORY, self.plan.recompute), "time": picked(costs.TIME, schedule)}

    def flops(self, formula, keys):
        """FLOPs of a step by one of the planner's formulas, each query meeting `keys` keys."""
        again = costs.computed_again(np.array([RECOMPUTE.index(self.plan.recompute)]), self.plan.attention)
        values = {**sizes_of(self.model).layer, "s": self.plan.sequence, "B_s": self.plan.batch, "kappa": keys,
                  "x_m": float(again[0][0]), "x_s": float(again[1][0])}
        return float(costs.ask(formula, values))

    def _utilization(self, formula, keys):
        return float(formulas.utilization(C_s=self.flops(formula, keys), T_s=self.step_seconds, g_p=self.plan.gpus,
                                          rho_p=self.cluster.machine.peak_flops))

    def __str__(self):
        """The estimate in one line."""
        return (f"{self.plan}: {self.step_seconds:.3g} s a step, MFU {100 * self.mfu:.1f}%, "
                f"{self.memory_bytes / 1e9:.1f} GB")


def estimate(model: ModelShape, cluster: Cluster, plan: Plan) -> Estimate:
    """What a plan costs: an `Estimate`, also of a plan that cannot be run, which then says why in `problems`.

    `model` is a `published.ModelShape`, `cluster` a `Cluster`, `plan` a `Plan`. Raises ValueError for anything else.

    >>> from scalebook import published
    >>> found = estimate(published.model("Llama-3-8B"), Cluster(published.machine("H100"), 8),
    ...                  Plan(tp=1, pp=1, dp=8, batch=64, sequence=4096, zero=3))
    >>> found.feasible, round(found.memory["optimizer"] / 1e9, 2)
    (True, 12.05)
    """
    for name, value, kind in (("model", model, ModelShape), ("cluster", cluster, Cluster), ("plan", plan, Plan)):
        if not isinstance(value, kind):
            raise ValueError(f"{name} = {value!r} is not allowed; it must be a {kind.__name__}")
    sizes, columns = sizes_of(model), columns_of(plan)
    memory, time = costs.costs(sizes, cluster, columns, plan.sequence, plan.attention, plan.recipe, plan.overlap)
    memory, time = ({part: float(values[0]) for part, values in parts.items()} for parts in (memory, time))
    broken = reasons.broken_rules(sizes, cluster, columns, plan.sequence)[0]
    problems = (*reasons.in_words(broken, sizes, cluster, plan), *reasons.of_memory(sum(memory.values()), cluster))
    return Estimate(model, cluster, plan, memory, time, problems)


def columns_of(plan):
    """One plan as arrays of length 1."""
    columns = {symbol: np.array([getattr(plan, name)]) for name, symbol in SYMBOL_OF.items()}
    recompute = np.array([RECOMPUTE.index(plan.recompute)])
    return {**columns, "recompute": recompute, "n": costs.all_reduces(recompute),
            "sp": np.array([plan.sequence_parallel])}
