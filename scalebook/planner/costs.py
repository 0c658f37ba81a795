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
    Memory is in bytes of one rank of the fullest stage: the first, the second, which may have a layer more, or the
    last. Time is in seconds of a step.
    """
    values = {**sizes.layer, **columns, **all_recipes()[recipe].sizes, **rates(cluster), "s": sequence,
              "epsilon": EPSILON, "A_o": sizes.A_o[attention], "A_s": sizes.A_s[attention]}
    values["M"] = np.ceil(columns["B"] / (columns["N"] * columns["b"]))
    values["n_s"] = np.where(columns["sp"], columns["t"], 1)
    values["kappa"] = keys_met(sequence, attention)
    values["x_m"], values["x_s"] = computed_again(columns["recompute"], attention)
    ell, first, last = split_layers(sizes.L, columns["P"], columns["v"])[:3]
    stages = stages_of(sizes, columns["P"], ell, first, last)
    memories = [memory_of_stage({**values, **stage}) for stage in stages.values()]
    fullest = np.stack([sum(memory.values()) for memory in memories]).argmax(axis=0)
    memory = {part: np.choose(fullest, [one[part] for one in memories]) for part in memories[0]}
    return memory, times({**values, "ell": ell, "ell_P": last}, stages, cluster, overlap)


def memory_of_stage(values):
    """Bytes of one rank of one stage, part by part."""
    parts = {part: ask(MEMORY[part], values) for part in ("weights", "gradients", "optimizer", "gathered weights")}
    kept = choose(values["recompute"], {name: ask(formula, values) for name, formula in formulas.KEPT.items()})
    parts["activations"] = ask(formulas.in_flight, values) * values["ell"] * kept
    working = {name: ask(formula, values) for name, formula in MEMORY["recomputed activations"].items()}
    parts["recomputed activations"] = choose(values["recompute"], {"none": 0 * kept, **working})
    parts["head activations"] = np.where(values["has_head"], ask(formulas.head_activations, values), 0)
    return parts


def times(values, stages, cluster, overlap):
    """Seconds of a step, part by part. What takes place in every micro-batch is multiplied by their number.

    The first stage has the embedding, the second may have more layers: all wait for the one that has more parameters
    to send and to update. The last is as large as the first but for its norm, which is left out.
    """
    def longest(formula, known):
        return np.maximum(*(ask(formula, {**known, **stages[name]}) for name in ("first", "second")))

    links = {axis: cluster.efficiency * link for axis, link in places(cluster, values).items()}
    link_of = {"tensor parallel": "tp", "context parallel": "cp", "expert parallel": "ep"}
    micro = {part: ask(formula, {**values, "omega": links.get(link_of.get(part), 1)})
             for part, formula in MICRO_BATCH.items()}
    whole = {**values, "t_m": sum(micro.values()), "t_h": ask(formulas.head_time, values)}
    whole["t_l"] = whole["t_m"] / values["ell"]
    whole["t_s"] = ask(formulas.send_time, {**values, "omega": links["pp"]})
    whole["t_x"] = longest(formulas.data_time, {**values, "omega": links["dp"], "omega_x": links["edp"]})
    whole["t_d"] = ask(formulas.hiding_time, whole) if overlap else 0 * whole["t_m"]
    parts = {part: ask(formulas.ideal_time, {"M": values["M"], "t_m": seconds}) for part, seconds in micro.items()}
    parts |= {part: ask(STEP[part], whole) for part in ("head", "bubble", "data parallel")}
    parts["optimizer"] = longest(formulas.optimizer_time, whole)
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
    """Bytes/s that each axis has for its messages, in Megatron-Core's order: a dict of arrays.

    A group whose ranks fill a block that a node holds a whole number of times stays inside nodes; any other crosses.
    Rings that cross use the ports of all ranks that the group has in a node. A message to one rank (pp), or a
    different one to each (ep), goes by the sender's own port.
    """
    t, n_c, n_e, N = (columns[name] for name in ("t", "n_c", "n_e", "N"))
    shared = t * n_c * N
    blocks = {"tp": (t, 1), "cp": (t * n_c, t), "ep": (t * n_e, None), "dp": (shared, t), "edp": (shared, t * n_e),
              "pp": (shared * columns["P"], None)}
    per_node, inside, port = cluster.machine.gpus_per_node, cluster.link(1), cluster.link(2)

    def between(block, stride):
        if stride is None:
            return port
        together = np.maximum(1, np.minimum(block, per_node) // stride)
        return formulas.ring_bandwidth(k_n=together, omega_n=inside, omega_p=port)

    return {axis: np.where((cluster.gpus <= per_node) | (per_node % block == 0), inside, between(block, stride))
            for axis, (block, stride) in blocks.items()}


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


def stages_of(sizes, stages, most, first, last):
    """What the first, the second and the last stage hold: `most`, `first` and `last` are the layers that they have.

    The second has layers alone. With one stage or two there is none between; the others are then as full or fuller.
    """
    table, alone = sizes.V * sizes.h, stages == 1
    tables = np.where(alone, (1 if sizes.tied else 2) * table, table)
    return {
        "first": {"ell": first, "r": 0 * stages, "Psi_V": tables, "has_head": alone,
                  "Psi_o": sizes.positions + np.where(alone, sizes.norm, 0)},
        "second": {"ell": most, "r": np.minimum(1, stages - 1), "Psi_V": 0 * tables, "has_head": stages < 1,
                   "Psi_o": 0 * tables},
        "last": {"ell": last, "r": stages - 1, "Psi_V": tables, "has_head": alone | True,
                 "Psi_o": sizes.norm + np.where(alone, sizes.positions, 0)},
    }
