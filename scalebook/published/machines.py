"""Machines: what one GPU computes, holds and sends, as published. What no source here states is None."""

from dataclasses import dataclass
from functools import cache

from scalebook.checks import is_number
from scalebook.published import files

LEAST, MOST = 1, 1e30  # beyond these no product of them is a number that a float holds


@dataclass(frozen=True)
class Machine:
    """One GPU and the links around it.

    `peak_flops` is dense FLOP/s in bf16, or fp16 where `peak_dtype` says so; `memory_bytes` the GPU's memory;
    `memory_bandwidth` bytes/s to it. `nvlink_one_way` is what one GPU sends, bytes/s; `nvlink_two_way` counts both
    directions and is the number that vendors print. `internode_node` is bytes/s, one way, out of a node of
    `gpus_per_node` GPUs. GB means 1e9 bytes. A field is None when no source here states it.

    Raises ValueError that names the field, its value and what is allowed.

    >>> machine("H100").nvlink_one_way
    450000000000.0
    """

    name: str
    source: str
    gpu: str
    peak_flops: float | None = None
    peak_dtype: str = "bf16"
    memory_bytes: float | None = None
    memory_bandwidth: float | None = None
    nvlink_one_way: float | None = None
    nvlink_two_way: float | None = None
    internode_node: float | None = None
    gpus_per_node: int | None = None
    note: str = ""

    def __post_init__(self):
        """Refuse missing sources, numbers that are not positive, and a two-way link that is not twice one way."""
        for field in ("name", "source", "gpu", "peak_dtype"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field).strip():
                _refuse(self, field, "text that is not empty")
        for field in ("peak_flops", "memory_bytes", "memory_bandwidth", "nvlink_one_way", "nvlink_two_way",
                      "internode_node", "gpus_per_node"):
            value = getattr(self, field)
            if value is not None and not (is_number(value) and value > 0):
                _refuse(self, field, "a finite number above 0, or absent")
            if value is not None and not LEAST <= value <= MOST:
                _refuse(self, field, f"a number from {LEAST} to {MOST:g}, or absent")
        if self.gpus_per_node is not None and not isinstance(self.gpus_per_node, int):
            _refuse(self, "gpus_per_node", "a whole number, or absent")
        if self.nvlink_two_way != (None if self.nvlink_one_way is None else 2 * self.nvlink_one_way):
            _refuse(self, "nvlink_two_way", f"twice nvlink_one_way ({self.nvlink_one_way!r})")

    @property
    def internode_gpu(self):
        """Bytes/s, one way, between nodes for each GPU: the node's links shared evenly (None when not known).

        >>> machine("A100-80GB").internode_gpu
        25000000000.0
        """
        if self.internode_node is None or self.gpus_per_node is None:
            return None
        return self.internode_node / self.gpus_per_node


def _refuse(found, field, allowed):
    raise ValueError(f"machine {found.name!r}: {field} = {getattr(found, field)!r} is not allowed; "
                     f"it must be {allowed}")


@cache
def _all_machines():
    return {name: files.build(Machine, "machine", name, entry) for name, entry in files.read("machines").items()}


def machine(name: str) -> Machine:
    """Return one machine; raise ValueError that lists the nearest names when there is none.

    >>> machine("A100-80GB").peak_flops
    312000000000000.0
    """
    return files.find("machine", name, _all_machines())


def machines() -> list[str]:
    """Return the names of all machines, in the order of the file.

    >>> "V100" in machines()
    True
    """
    return list(_all_machines())
