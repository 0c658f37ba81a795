"""Why a plan cannot be run: rules, each with the words that say so."""

from dataclasses import dataclass

import numpy as np

from scalebook.planner.costs import split_layers


@dataclass(frozen=True)
class Rule:
    """One rule: its name, which plans break it (`broken(sizes, cluster, columns, sequence)`), and its words."""

    name: str
    broken: object
    words: object


def _heads(sizes, cluster, p, s):
    return sizes.a % p["t"] != 0


def _kv_heads(sizes, cluster, p, s):
    return (sizes.G % p["t"] != 0) & (p["t"] % sizes.G != 0)


def _width(sizes, cluster, p, s):
    return np.any([width % p["t"] != 0 for width in sizes.widths], axis=0)


def _node(sizes, cluster, p, s):
    per_node = cluster.machine.gpus_per_node
    return (per_node % p["t"] != 0) & ((p["t"] > 1) & (cluster.gpus > per_node) | (p["t"] > per_node))


def _layers(sizes, cluster, p, s):
    return ~split_layers(sizes.L, p["P"], p["v"])[3]


def _batch(sizes, cluster, p, s):
    return p["B"] % (p["N"] * p["b"]) != 0


def _sequence(sizes, cluster, p, s):
    halves = np.where(p["n_c"] > 1, 2 * p["n_c"], 1)
    return (s % halves != 0) | (p["sp"] & (s % (p["n_c"] * p["t"]) != 0))


def _experts(sizes, cluster, p, s):
    return (p["n_e"] > 1) & (np.full(len(p["n_e"]), sizes.experts == 0) | (sizes.experts % p["n_e"] != 0))


def _zero(sizes, cluster, p, s):
    return (p["Z"] >= 2) & (p["P"] > 1)


def _interleaving(sizes, cluster, p, s):
    micro_batches = p["B"] / (p["N"] * p["b"])
    return (p["v"] > 1) & (micro_batches % p["P"] != 0)


def _gpus(sizes, cluster, p, s):
    return p["t"] * p["n_c"] * p["N"] * p["P"] != cluster.gpus


RULES = (
    Rule("gpus", _gpus, lambda m, c, p: f"it takes {p.gpus} GPUs, and the cluster has {c.gpus}"),
    Rule("heads", _heads, lambda m, c, p: f"{m.a} heads cannot be divided among TP = {p.tp}"),
    Rule("kv heads", _kv_heads,
         lambda m, c, p: f"{m.G} key and value heads can neither be divided among TP = {p.tp} nor copied evenly"),
    Rule("width", _width, lambda m, c, p: f"a feed-forward width of {m.widths} cannot be divided among TP = {p.tp}"),
    Rule("node", _node, lambda m, c, p: f"TP = {p.tp} crosses the node of {c.machine.gpus_per_node} GPUs"),
    Rule("layers", _layers, lambda m, c, p: f"{m.L} layers cannot be divided among PP = {p.pp} stages of {p.chunks} "
                                            "chunks, with or without embedding and head"),
    Rule("batch", _batch, lambda m, c, p: f"a batch of {p.batch} cannot be divided among DP = {p.dp} ranks in "
                                          f"micro-batches of {p.micro_batch}"),
    Rule("sequence", _sequence, lambda m, c, p: f"{p.sequence} positions cannot be divided among CP = {p.cp} (in two "
                                                f"halves each) and TP = {p.tp}"),
    Rule("experts", _experts, lambda m, c, p: f"{m.experts} experts cannot be divided among EP = {p.ep}"),
    Rule("zero", _zero, lambda m, c, p: f"ZeRO-{p.zero} with a pipeline: every micro-batch would reduce "
                                        f"{'its gradients' if p.zero == 2 else 'its gradients and gather the weights'} "
                                        "again"),
    Rule("interleaving", _interleaving, lambda m, c, p: f"interleaving needs micro-batches in multiples of PP = "
                                                        f"{p.pp}, and there are {p.micro_batches:g}"),
)
MEMORY = "memory"


def broken_rules(sizes, cluster, columns, sequence):
    """One bit for each rule that a plan breaks: an array of whole numbers over the plans, 0 where none is."""
    bits = np.zeros(len(columns["t"]), dtype=np.int64)
    for place, rule in enumerate(RULES):
        bits |= np.asarray(rule.broken(sizes, cluster, columns, sequence), dtype=np.int64) << place
    return bits


def in_words(bits, sizes, cluster, plan):
    """The rules that a plan breaks, in words that have its numbers."""
    return tuple(rule.words(sizes, cluster, plan) for place, rule in enumerate(RULES) if int(bits) >> place & 1)


def of_memory(memory_bytes, cluster):
    """The words for a plan that does not fit, or none."""
    if memory_bytes <= cluster.machine.memory_bytes:
        return ()
    return (f"it needs {memory_bytes / 1e9:.1f} GB on a GPU of {cluster.machine.memory_bytes / 1e9:g} GB",)
