"""A cluster: GPUs of one kind, in nodes, with a fast link inside a node and a slow one between nodes."""

import difflib
from dataclasses import dataclass, field, fields

from scalebook import checks, published
from scalebook.planner.efficiency import EFFICIENCY, UNKNOWN

MOST_GPUS = 2**24  # sixteen million: a search tries all divisors
NEEDED = ("peak_flops", "memory_bytes", "memory_bandwidth", "nvlink_one_way", "internode_node", "gpus_per_node")


@dataclass(frozen=True)
class Cluster:
    """`gpus` GPUs of a `published.Machine`, in nodes of `machine.gpus_per_node`.

    `efficiency` is the share of what the machine is sold for that programs reach: of its FLOP/s, of the bytes/s to its
    memory and of the bytes/s of its links. One number for all of them; None takes the one fitted to published runs of
    this machine (`scalebook.planner.EFFICIENCY`).

    Raises ValueError that names the argument, its value and what is allowed.

    >>> cluster = Cluster(published.machine("H100"), 512)
    >>> cluster.nodes, cluster.link(1), cluster.link(2)
    (64, 450000000000.0, 50000000000.0)
    """

    machine: published.Machine
    gpus: int
    efficiency: float | None = None
    name: str = field(default="", compare=False)

    def __post_init__(self):
        """Refuse a machine with a figure missing, GPUs that fill no nodes, and an efficiency that is no share."""
        if not isinstance(self.machine, published.Machine):
            raise ValueError(f"machine = {self.machine!r} is not allowed; it must be a published.Machine")
        for name in NEEDED:
            if getattr(self.machine, name) is None:
                raise ValueError(f"machine {self.machine.name!r}: {name} is not known; the planner needs it")
        object.__setattr__(self, "gpus", checks.count("gpus", self.gpus, 1, MOST_GPUS))
        checks.instance("name", self.name, str, "a text")
        per_node = self.machine.gpus_per_node
        if self.gpus > per_node and self.gpus % per_node:
            raise ValueError(f"gpus = {self.gpus} is not allowed; it must be at most {per_node}, or a multiple of it: "
                             "whole nodes")
        if self.efficiency is None:
            object.__setattr__(self, "efficiency", EFFICIENCY.get(self.machine.name, UNKNOWN))
        share = self.efficiency
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"efficiency = {share!r} is not allowed; it must be a number above 0, at most 1")

    @property
    def nodes(self):
        """How many nodes the GPUs fill."""
        return -(-self.gpus // self.machine.gpus_per_node)

    def link(self, nodes):
        """Bytes/s, one way, that a GPU is sold to send to a group that touches this many nodes.

        Between nodes a GPU has its share of the node's links.
        """
        checks.whole("nodes", nodes)
        return self.machine.nvlink_one_way if nodes == 1 else self.machine.internode_gpu


def named(kind, name, known):
    """The name in `known` that is meant: whatever the case, or the only one that begins so. ValueError otherwise.

    >>> named("GPU", "a100", ["V100", "A100-80GB"])
    'A100-80GB'
    """
    text = str(name).lower()
    same = [one for one in known if one.lower() == text]
    begun = [one for one in known if one.lower().startswith(text)]
    for found in (same, begun):
        if len(found) == 1 and text:
            return found[0]
    lower = {one.lower(): one for one in known}
    near = [lower[one] for one in difflib.get_close_matches(text, lower, n=5, cutoff=0.3)] or list(known)[:5]
    raise ValueError(f"no {kind} is named {name!r}; the nearest are {', '.join(map(repr, near))}")


def machine_fields():
    """The names of the fields of a `published.Machine`."""
    return tuple(one.name for one in fields(published.Machine))
