"""Memory and time of many plans at once: the formulas of `formulas.planner`, each evaluated over arrays of plans.

Every number comes out of a formula. What stands here is which formula is meant for which plan, and where its arguments
come from: the model's sizes, the plan's columns, and the cluster's links, of which `places` says which a group uses.
"""

import numpy as np

from scalebook.formulas import planner as formulas
from scalebook.formulas import tensor_parallel
from scalebook.planner.plans import RECOMPUTE, all_recipes

EPSILON = 2  # bytes of an activation, and of a gradient that crosses from stage to stage

MEMORY = {"weights": formulas.weight_bytes, "gradients": formulas.gradient_bytes, "optimizer": formulas.optimizer_bytes,
          "gathered weights": formulas.gathered_bytes, "activations": formulas.KEPT,
          "recomputed activations": {"selective": formulas.working_selective, "full": formulas.working_full},
          "head activations": formulas.head_activations}
MICRO_BATCH = {"compute": formulas.compute_time, "recomputation": formulas.recompute_time,
               "elementwise": formulas.elementwise_time, "tensor parallel": formulas.tensor_time,
               "context parallel": formulas.context_time, "expert parallel": formulas.expert_time}
PIPELINE = {"1f1b": formulas.pipeline_time_1f1b, "interleaved": formulas.pipeline_time_interleaved,
            "waiting": formulas.pipeline_time_waiting}
STEP = {"head": formulas.imbalance_time, "bubble": formulas.bubble_time, "pipeline parallel": PIPELINE,
        "data parallel": formulas.exposed_time, "optimizer": formulas.optimizer_time}
TIME = {**MICRO_BATCH, **STEP}


def costs(sizes, cluster, columns, sequence, attention="fused", recipe="mixed precision", overlap=True):
    """Memory and time of every plan: `(memory, time)`, each a dict from a part's name to an array over the plans.

    `columns` maps the symbols t, n_c, n_e, N, P, v, b, Z and B, and "recompute" and "sp", to arrays of equal length.
    Memory is in bytes of one rank: the first or the last stage, whichever needs more. Time is in seconds of a step.
    """
    values = {**sizes.layer, **columns, **all_recipes()[recipe].sizes, **rates(cluster), "s": sequence,
              "epsilon": EPSILON, "A_o": sizes.A_o[attention], "A_s": sizes.A_s[attention]}
    values["M"] = np.ceil(columns["B"] / (columns["N"] * columns["b"]))
    values["n_s"] = np.where(columns["sp"], columns["t"], 1)
    values["kappa"] = keys_met(sequence, attention)
    values["x_m"], values["x_s"] = computed_again(columns["recompute"], attention)
    ell, first, last = split_layers(sizes.L, columns["P"], columns["v"])[:3]
    stages = stages_of(sizes, columns["P"], first, last)
    memories = [memory_of_stage({**values, **stage}) for stage in stages.values()]
    most = np.stack([sum(memory.values()) for memory in memories]).argmax(axis=0)
    memory = {part: np.where(most == 0, memories[0][part], memories[1][part]) for part in memories[0]}
    return memory, times({**values, **stages["first"], "ell": ell, "ell_P": last}, cluster, overlap)


def memory_of_stage(values):
    """Bytes of one rank of one stage, part by part."""
    parts = {part: ask(MEMORY[part], values) for part in ("weights", "gradients", "optimizer", "gathered weights")}
    kept = choose(values["recompute"], {name: ask(formula, values) for name, formula in formulas.KEPT.items()})
    parts["activations"] = ask(formulas.in_flight, values) * values["ell"] * kept
    working = {name: ask(formula, values) for name, formula in MEMORY["recomputed activations"].items()}
    parts["recomputed activations"] = choose(values["recompute"], {"none": 0 * kept, **working})
    parts["head activations"] = np.where(values["has_head"], ask(formulas.head_activations, values), 0)
    return parts


def times(values, cluster, overlap):
    """Seconds of a step, part by part. What takes place in every micro-batch is multiplied by their number."""
    links = {axis: cluster.efficiency * link for axis, link in places(cluster, values).items()}
    link_of = {"tensor parallel": "tp", "context parallel": "cp", "expert parallel": "ep"}
    micro = {part: ask(formula, {**values, "omega": links.get(link_of.get(part), 1)})
             for part, formula in MICRO_BATCH.items()}
    whole = {**values, "t_m": sum(micro.values()), "t_h": ask(formulas.head_time, values)}
    whole["t_l"] = whole["t_m"] / values["ell"]
    whole["t_s"] = ask(formulas.send_time, {**values, "omega": links["pp"]})
    whole["t_x"] = ask(formulas.data_time, {**values, "omega": links["dp"]})
    whole["t_d"] = ask(formulas.hiding_time, whole) if overlap else 0 * whole["t_m"]
    parts = {part: ask(formulas.ideal_time, {"M": values["M"], "t_m": seconds}) for part, seconds in micro.items()}
    parts |= {part: ask(formula, whole) for part, formula in STEP.items() if part != "pipeline parallel"}
    sends = {name: ask(formula, whole) for name, formula in PIPELINE.items()}
    chunked = sends["interleaved" if overlap else "waiting"]
    parts["pipeline parallel"] = np.where(values["P"] == 1, 0, np.where(values["v"] == 1, sends["1f1b"], chunked))
    return parts


def ask(formula, values):
    """A formula's value, its arguments picked by name."""
    return formula(**{variable.name: values[variable.name] for variable in formula.symbols})


def choose(codes, by_name):
    """For each plan the array of its technique; `codes` are places in `RECOMPUTE`."""
    return np.choose(codes, [by_name[name] for name in RECOMPUTE])


def rates(cluster):
    """What a GPU reaches: FLOP/s and bytes/s of its memory."""
    return {"rho": cluster.efficiency * cluster.machine.peak_flops,
            "beta": cluster.efficiency * cluster.machine.memory_bandwidth}


def places(cluster, columns):
    """Bytes/s of the link that each axis uses, in Megatron-Core's order: a dict of arrays.

    A group whose ranks fill a block that a node holds a whole number of times stays inside nodes; any other crosses.
    """
    t, n_c, n_e, N = (columns[name] for name in ("t", "n_c", "n_e", "N"))
    blocks = {"tp": t, "cp": t * n_c, "ep": t * n_e, "dp": t * n_c * N, "pp": t * n_c * N * columns["P"]}
    one, per_node = cluster.gpus <= cluster.machine.gpus_per_node, cluster.machine.gpus_per_node
    return {axis: np.where(one | (per_node % block == 0), cluster.link(1), cluster.link(2))
            for axis, block in blocks.items()}


def keys_met(sequence, attention):
    """Keys that a query meets: all of the sequence, or, when the kernel skips what is masked, half of it."""
    return (sequence + 1) / 2 if attention == "fused" else sequence


def computed_again(recompute, attention):
    """Forwards of the matrices and of the scores that each plan computes again.

    Fused attention stores no scores, so its backward computes the first of their two products again.
    """
    full, selective = (recompute == RECOMPUTE.index(name) for name in ("full", "selective"))
    scores = full + 0.5 if attention == "fused" else full | selective
    return full.astype(float), scores.astype(float)


def all_reduces(recompute):
    """All-reduces of a layer and micro-batch, or what sequence parallelism makes of them, for each plan."""
    counts = tensor_parallel.ALL_REDUCES
    return choose(recompute, {name: np.full(len(recompute), count) for name, count in counts.items()})


def split_layers(layers, stages, chunks):
    """Layers on the fullest stage, on the first and on the last, and whether the layers can be divided so.

    Where the chunks do not divide the layers, embedding and head may count as a layer each (Llama 3: 126 layers on 16
    stages); where that does not help either, the stages have as many as needed, and the division is refused.
    """
    parts = stages * chunks
    even, ends = layers % parts == 0, (stages > 1) & ((layers + 2) % parts == 0)
    ends &= ~even
    most = np.where(even, layers // stages, np.where(ends, (layers + 2) // stages, chunks * -(-layers // parts)))
    first = np.where(ends, most - 1, most)
    return np.where(stages == 2, first, most), first, first, even | ends


def stages_of(sizes, stages, first, last):
    """What the first and the last stage hold outside their layers; with one stage both are the same."""
    table, alone = sizes.V * sizes.h, stages == 1
    tables = np.where(alone, (1 if sizes.tied else 2) * table, table)
    return {
        "first": {"ell": first, "r": 0 * stages, "Psi_V": tables, "has_head": alone,
                  "Psi_o": sizes.positions + np.where(alone, sizes.norm, 0)},
        "last": {"ell": last, "r": stages - 1, "Psi_V": tables, "has_head": alone | True,
                 "Psi_o": sizes.norm + np.where(alone, sizes.positions, 0)},
    }
