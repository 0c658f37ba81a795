"""Measured on this machine: how long an all-reduce takes, by the size of the array, and the alpha and omega behind it.

All that this module returns depends on the machine and on what else it does. PyTorch's all-reduce and our ring are
timed in turns on the same processes. A time is that of the slowest rank, from a barrier to the end; of the repeats the
shortest counts, since other programs can only lengthen one. The fit is that of `formulas.collectives.time_all_reduce`:
alpha for each step and the bytes that a rank sends over omega, by least squares on relative errors.

Run it with `python -m scalebook.labs.collective_times --ranks 4`, or let PyTorch start the processes:
`torchrun --nproc-per-node 4 -m scalebook.labs.collective_times --ranks 4`.
"""

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from scalebook import collectives, ranks
from scalebook.borders import guard
from scalebook.formulas.collectives import sent_all_reduce, steps_all_reduce, time_all_reduce
from scalebook.labs import command
from scalebook.labs.collectives import check_size
from scalebook.labs.kinds import KINDS

SIZES = tuple(4**k for k in range(5, 13))  # bytes: 1 KiB to 16 MiB
WAYS = {"PyTorch": dist.all_reduce, "our ring": collectives.ring_all_reduce}


@dataclass(frozen=True)
class Fit:
    """`alpha` seconds a step and `omega` bytes a second, and how far the fitted times lie from the measured ones.

    `residuals` has, for each size, fitted over measured less 1: 0.1 is a fitted time 10 percent too long.
    """

    ranks: int
    alpha: float
    omega: float
    residuals: tuple

    def seconds(self, nbytes):
        """The fitted time of an all-reduce of an array of `nbytes` bytes."""
        return float(time_all_reduce(R=self.ranks, S=nbytes, alpha=self.alpha, omega=self.omega))


@dataclass(frozen=True)
class Times:
    """All-reduces as measured: for each array size in bytes, the seconds of every repeat, on its slowest rank."""

    ranks: int
    sizes: tuple
    repeats: tuple

    @property
    def seconds(self):
        """The shortest time at each size."""
        return tuple(map(min, self.repeats))

    @property
    def medians(self):
        """The median time at each size: how busy the machine was shows in its distance from the shortest."""
        return tuple(map(statistics.median, self.repeats))

    def fit(self):
        """Fit alpha and omega to the shortest times."""
        return fit_times(self.ranks, self.sizes, self.seconds)


def fit_times(size, sizes, seconds):
    """Alpha and omega of all-reduces on `size` ranks, of arrays of `sizes` bytes that took `seconds`: a `Fit`.

    T = alpha steps + sent / omega is linear in alpha and 1 / omega. Each equation is divided by its measured time, so
    that an error of 10 percent weighs the same at a kilobyte as at 16 megabytes.

    Raises ValueError for fewer than 2 ranks or 2 different sizes, times that are not above 0, or times that no alpha
    and omega above 0 come near.

    >>> fit = fit_times(2, (1000, 2000), (3.0, 4.0))  # 2 steps, 1000 and 2000 bytes sent: 2 alpha = 2 s
    >>> round(fit.alpha, 9), round(fit.omega, 6), round(fit.seconds(4000), 6)
    (1.0, 1000.0, 6.0)
    """
    check_size(size)
    if size < 2:
        raise ValueError(f"size = {size} is not allowed; size must be at least 2: one rank sends nothing")
    if len(set(sizes)) < 2 or len(sizes) != len(seconds):
        raise ValueError(f"sizes = {sizes} is not allowed; it needs two different sizes, and one for each time")
    measured = np.array(seconds, dtype=float)
    if not (measured > 0).all():
        raise ValueError(f"seconds = {seconds} is not allowed; every time must be above 0")
    sent = np.array([float(sent_all_reduce(R=size, S=nbytes)) for nbytes in sizes])
    terms = np.stack([np.full_like(sent, steps_all_reduce(R=size)), sent], axis=1)
    scale = np.abs(terms / measured[:, None]).max(axis=0)  # columns of like size: bytes dwarf steps
    alpha, per_byte = np.linalg.lstsq(terms / measured[:, None] / scale, np.ones_like(measured))[0] / scale
    if alpha <= 0 or per_byte <= 0:
        raise ValueError(f"seconds = {seconds} is not allowed; the best fit has alpha = {alpha:.3g} s and "
                         f"{per_byte:.3g} s a byte, and both must be above 0")
    fitted = terms @ (alpha, per_byte)
    return Fit(size, float(alpha), float(1 / per_byte), tuple((fitted / measured - 1).tolist()))


def time_rank(rank, world_size, sizes, repeats):
    """One rank of `measure`: the seconds of each all-reduce, by way and size."""
    arrays = [torch.ones(nbytes // 4, device=ranks.device()) for nbytes in sizes]
    found = {way: [[] for _ in sizes] for way in WAYS}
    for repeat in range(repeats + 1):  # sizes and ways in turns: a busy moment does not fall on one of them alone
        for place, array in enumerate(arrays):
            for way, all_reduce in WAYS.items():
                x = array.clone()
                dist.barrier()
                start = time.perf_counter()
                all_reduce(x)
                if x.is_cuda:
                    torch.cuda.synchronize()
                if repeat > 0:  # the first opens connections and touches memory
                    found[way][place].append(time.perf_counter() - start)
    return found


def measure(size=4, *, sizes=SIZES, repeats=12, timeout=60, backend=None):
    """Time all-reduces of float32 arrays on `size` processes; return `Times` for PyTorch's and for our ring, in a dict.

    `backend` is "gloo" for arrays on the processor, "nccl" for a GPU of each rank, or None: the second where there are
    GPUs enough (`backends`). `sizes` are in bytes, multiples of 4. Under `torchrun` rank 0 gets the dict and the others
    None. Raises ValueError for bad input, and `ranks.RankError` when a rank fails.

    >>> list(measure(2, sizes=(1024, 4096), repeats=1))
    ['PyTorch', 'our ring']
    """
    check_size(size)
    for nbytes in sizes:
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 4 or nbytes % 4:
            raise ValueError(f"sizes = {sizes} is not allowed; every size must be a multiple of 4 bytes, above 0")
    results = ranks.launch(time_rank, size, tuple(sizes), repeats, timeout=timeout, backend=backend)
    return None if results is None else {way: slowest(size, sizes, [each[way] for each in results]) for way in WAYS}


def backends(size):
    """What `size` ranks can be timed on here: the processor, and after it the GPUs if there are as many.

    >>> backends(10_000)
    ('gloo',)
    """
    return ("gloo", "nccl") if torch.cuda.device_count() >= size else ("gloo",)


def slowest(size, sizes, times):
    """The `Times` of what each rank measured: an all-reduce is done when the last rank has the sum."""
    by_size = zip(*times, strict=True)
    return Times(size, tuple(sizes), tuple(tuple(map(max, zip(*each, strict=True))) for each in by_size))


def main():
    """Measure from the command line; print each time beside the fitted one."""
    parser = command.parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="processes, at least 2 (default: 4)")
    parser.add_argument("--repeats", type=int, default=12, help="times at each size (default: 12)")
    command.add_backend(parser)
    given = parser.parse_args()
    with command.errors_in_words(parser):
        if given.ranks == 1:
            raise ValueError("size = 1 is not allowed; size must be at least 2: one rank sends nothing")
        found = measure(given.ranks, repeats=given.repeats, backend=given.backend)
    for way, times in (found or {}).items():
        fit = times.fit()
        print(f"{way}, {given.ranks} ranks: alpha {fit.alpha * 1e6:.0f} us a step, omega {fit.omega / 1e9:.2f} GB/s")
        for nbytes, shortest, median, residual in zip(
                times.sizes, times.seconds, times.medians, fit.residuals, strict=True):
            print(f"  {nbytes:>9} B: {shortest * 1e3:8.3f} ms (median {median * 1e3:8.3f}), "
                  f"fitted {fit.seconds(nbytes) * 1e3:8.3f} ms ({residual:+.0%})")


guard(globals(), KINDS, "measure")


if __name__ == "__main__":
    from scalebook.labs.collective_times import main

    main()
