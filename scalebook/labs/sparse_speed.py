"""Measured on this machine: how long a sparse layer takes, beside a dense one of its active size.

The sparse layer is a `MoELayer` of 8 experts, of which a token uses 2; the dense one is a SwiGLU as wide as two of
them. The processor gets layers of a quarter of Mixtral's width, at 32 bits. A GPU gets Mixtral's own width, at 16 bits:
an expert has 352 MB then, so that there is something to read beside the calls that must be started.
"""

import contextlib
import math
import time
from dataclasses import dataclass

import torch

from scalebook import checks
from scalebook.borders import guard
from scalebook.labs.devices import devices, finish
from scalebook.labs.kinds import KINDS
from scalebook.moe import MoELayer, swiglu

EXPERTS, CHOSEN = 8, 2
WIDTHS = {"cpu": 1024, "cuda": 4096}
DTYPES = {"cpu": torch.float32, "cuda": torch.float16}
BATCHES = (1, 2, 4, 8, 16, 32)
OTHER_DATA = 50_000_000  # numbers of 4 bytes, more than any cache holds


@dataclass(frozen=True)
class Row:
    """One batch: its tokens, how many rows each expert had, and seconds.

    `sparse` is the time of the sparse layer; `dense` maps numbers of rows to the time of the dense layer with so many.
    """

    batch: int
    counts: tuple
    sparse: float
    dense: dict

    @property
    def touched(self):
        """How many experts had a row."""
        return sum(n > 0 for n in self.counts)


def compare(device="cpu", batches=BATCHES, width=None, repeats=12):
    """Time both layers on a device, one of `devices()`, with batches of so many tokens; return a `Row` for each.

    `width` is that of the model; an expert is 3.5 times as wide (`WIDTHS`). The dense layer is timed with the whole
    batch and with each number of rows that an expert got. Raises ValueError for a device that is not there, and for
    sizes that are not whole numbers of at least 1 (the width: an even one).

    >>> [row.dense.keys() >= {row.batch} for row in compare(batches=(1, 4), width=8, repeats=1)]
    [True, True]
    """
    checks.one_of("device", device, devices())
    width = WIDTHS[device] if width is None else width
    if width % 2:
        raise ValueError(f"width = {width} is not allowed; width must be even, since an expert has 3.5 times of it")
    wide = width * 7 // 2
    torch.manual_seed(0)
    with layer_defaults(device):
        inputs = [torch.randn(batch, width) for batch in batches]
        layer = MoELayer(d_model=width, d_ff_expert=wide, n_experts=EXPERTS, top_k=CHOSEN)
        gate_up = torch.randn(2 * CHOSEN * wide, width) * width**-0.5
        down = torch.randn(width, CHOSEN * wide) * (CHOSEN * wide) ** -0.5
    with torch.no_grad():
        return [time_batch(layer, (gate_up, down), x, device, repeats) for x in inputs]


@contextlib.contextmanager
def layer_defaults(device):
    """What is made here lies on the device and is as exact as layers are there (`DTYPES`)."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[device])
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(usual)


def time_batch(layer, dense, x, device, repeats):
    """The `Row` of one batch x, of shape (tokens, width); `dense` are the two matrices of the dense layer."""
    counts = tuple(layer.plan(layer.route(x)).counts)
    sizes = sorted({n for n in counts if n} | {len(x)})
    inputs = [torch.randn(n, x.shape[1], dtype=x.dtype, device=x.device) for n in sizes]
    sparse, *seconds = quickest([lambda: layer(x), *(lambda y=y: swiglu(y, *dense) for y in inputs)], device, repeats)
    return Row(len(x), counts, sparse, dict(zip(sizes, seconds, strict=True)))


def quickest(functions, device, repeats):
    """The least seconds of each function on a device, taken in turns.

    Other data are read before each, so that no weight is left in a cache. On the processor its own time counts, on one
    thread, so that other programs disturb it little; on a GPU the time until it is done.
    """
    clock = time.process_time if device == "cpu" else time.perf_counter
    threads, best = torch.get_num_threads(), [math.inf] * len(functions)
    other_data = torch.ones(OTHER_DATA, dtype=torch.float32, device=device)
    torch.set_num_threads(1)
    try:
        for _ in range(repeats):
            for place, function in enumerate(functions):
                other_data.sum()
                finish(device)
                start = clock()
                function()
                finish(device)
                best[place] = min(best[place], clock() - start)
    finally:
        torch.set_num_threads(threads)
    return best


guard(globals(), KINDS, "compare")
