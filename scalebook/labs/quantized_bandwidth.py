"""Why fewer bits make a model write faster: a matrix times a vector takes as long as reading the matrix takes.

A model that writes one token after the other multiplies every weight by one number of one vector: two operations a
weight. A processor does these in far less time than it takes to fetch the weight from memory. So tokens per second are
bounded by bandwidth over bytes, whatever the arithmetic can do.
"""

import time
from dataclasses import dataclass

import torch

from scalebook import checks
from scalebook.borders import guard
from scalebook.labs.devices import devices, finish
from scalebook.labs.kinds import KINDS

DTYPES = {32: torch.float32, 16: torch.float16, 8: torch.int8}
BITS = {"cpu": (32, 16, 8), "cuda": (32, 16)}  # PyTorch multiplies no matrix of integers by a vector on a GPU


@dataclass(frozen=True)
class Reading:
    """A matrix-vector product as it was timed: bits of a weight, weights, and the seconds of a product."""

    bits: int
    weights: int
    seconds: float

    @property
    def bytes_per_second(self):
        """Bytes of weights over seconds."""
        return self.weights * self.bits / 8 / self.seconds


def time_products(bits=None, rows=8192, columns=8192, rounds=9, device="cpu"):
    """Time `torch.mv` of a (rows, columns) matrix of 32-, 16- and 8-bit numbers; return a `Reading` for each.

    `device` is one of `devices()`; on a GPU, `bits` are 32 and 16.

    The sizes take turns, and the least of `rounds` times counts: what else the machine does can only add to it. The
    matrix must not fit in the processor's caches: the default has 268 MB at 32 bits, and 67 MB at 8. A product of 8-bit
    integers wraps around when it is large; here the vector is 1 in its first entry and 0 elsewhere, so the product is
    the matrix's first column, which is checked.

    Raises ValueError for a device that is not there, bits that it does not multiply, and sizes that are not whole
    numbers of at least 1.

    >>> [reading.bits for reading in time_products(rows=8, columns=8, rounds=1)]
    [32, 16, 8]
    """
    checks.one_of("device", device, devices())
    bits = BITS[device] if bits is None else bits
    for size in bits:
        if size not in BITS[device]:
            raise ValueError(f"bits = {size!r} is not allowed; on {device} it must be one of {BITS[device]}")
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-100, 100, (rows, columns), dtype=torch.int8, generator=generator)
    operands = {size: (drawn.to(device, DTYPES[size]), torch.eye(columns, 1).flatten().to(device, DTYPES[size]))
                for size in bits}
    seconds = {size: [] for size in bits}
    for turn in range(rounds + 1):  # the first warms up
        for size, (matrix, vector) in operands.items():
            start = time.perf_counter()
            product = torch.mv(matrix, vector)
            finish(device)
            seconds[size] += [time.perf_counter() - start] if turn else []
            if not torch.equal(product.to("cpu", torch.int8), drawn[:, 0]):
                raise ArithmeticError(f"torch.mv at {size} bits gave a wrong product")
    return [Reading(size, rows * columns, min(seconds[size])) for size in bits]


def tokens_per_second(bytes_per_second, weights, bits_per_weight):
    """The bound on tokens per second when each token reads all weights once: bandwidth over bytes.

    >>> tokens_per_second(1000e9, 70e9, 4)
    28.571428571428573
    """
    return bytes_per_second / (weights * bits_per_weight / 8)


guard(globals(), KINDS, "time_products")
