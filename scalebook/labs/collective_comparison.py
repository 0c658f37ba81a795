"""Our collectives beside PyTorch's on real processes: results, messages, bytes.

PyTorch's own collectives are the oracle for the results, and the formula of the ring for what is sent. Nothing here
depends on the machine.
"""

import itertools
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalebook import collectives, ranks
from scalebook.borders import guard
from scalebook.labs.collectives import check_size
from scalebook.labs.kinds import KINDS

DTYPES = (torch.int64, torch.float64, torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Comparison:
    """One of our collectives beside PyTorch's. What has one entry for each rank is a tuple.

    `gap` is the largest difference of any entry on any rank, over the largest entry; `messages` and `bytes` are what
    each rank sent, counted; `ring_bytes` is what a rank sends by the formula (`ranks.Traffic.ring_bytes` of PyTorch's
    call), None for a broadcast, where the ranks send different amounts; `alike` says whether all ranks got the same
    bits, as they must except where each gets a part of its own.
    """

    gap: float
    messages: tuple
    bytes: tuple
    ring_bytes: tuple
    alike: bool


def ours_and_theirs(size):
    """Each of our collectives and PyTorch's, as functions of a tensor of N M elements."""
    return {
        "reduce-scatter": (lambda x: collectives.ring_reduce_scatter(x.chunk(size)), torch_reduce_scatter),
        "all-gather": (lambda x: torch.cat(collectives.ring_all_gather(own_part(x))), torch_all_gather),
        "all-reduce": (collectives.ring_all_reduce, lambda x: in_place(dist.all_reduce, x)),
        "broadcast": (collectives.ring_broadcast, lambda x: in_place(dist.broadcast, x, 0)),
        "all-to-all": (lambda x: torch.cat(collectives.all_to_all(x.chunk(size))), torch_all_to_all),
    }


def own_part(x):
    """This rank's part of a tensor."""
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def torch_reduce_scatter(x):
    """This rank's part of the sum."""
    part = torch.empty_like(own_part(x))
    dist.reduce_scatter(part, list(x.chunk(dist.get_world_size())))
    return part


def torch_all_gather(x):
    """All ranks' own parts of x, together."""
    parts = list(torch.empty_like(x).chunk(dist.get_world_size()))
    dist.all_gather(parts, own_part(x))
    return torch.cat(parts)


def torch_all_to_all(x):
    """What the ranks have for this one, together."""
    arrived = torch.empty_like(x)
    dist.all_to_all_single(arrived, x)
    return arrived


def in_place(collective, x, *arguments):
    """A copy of x after a collective that changes it."""
    x = x.clone()
    collective(x, *arguments)
    return x


def compare_rank(rank, world_size, elements):
    """One rank of `compare`: for each collective and dtype both results, and what ours and PyTorch's calls handed over.
    """
    drawn = torch.Generator().manual_seed(rank)
    whole = torch.randint(-1000, 1000, (elements,), generator=drawn).to(ranks.device())
    found = {}
    for (name, pair), dtype in itertools.product(ours_and_theirs(world_size).items(), DTYPES):
        x = (whole if dtype == torch.int64 else whole / 7).to(dtype)  # sevenths: every float is rounded
        with ranks.count() as sent:
            ours = pair[0](x)
        with ranks.count() as called:
            theirs = pair[1](x)
        found[name, dtype] = ours.cpu(), theirs.cpu(), sent, called
    return found


def compare(size=4, elements=1024, *, timeout=60, backend=None):
    """Run each of our collectives and PyTorch's on `size` processes; a dict of `Comparison`s by (name, dtype).

    `elements`, the length of the whole tensor, must be a multiple of `size`: PyTorch's reduce-scatter and all-gather
    ask for it. Returns and raises as `move_data`.

    >>> found = compare(2, elements=8)["all-reduce", torch.int64]
    >>> found.gap, found.messages, found.bytes, found.ring_bytes  # 2 steps; 64 bytes, times 2 (N-1)/N
    (0.0, (2, 2), (64, 64), (64, 64))
    """
    check_size(size)
    if isinstance(elements, bool) or not isinstance(elements, int) or elements < 1 or elements % size:
        raise ValueError(f"elements = {elements!r} is not allowed; it must be a multiple of size = {size}, above 0")
    results = ranks.launch(compare_rank, size, elements, timeout=timeout, backend=backend)
    return None if results is None else {key: beside(key[0], [result[key] for result in results]) for key in results[0]}


def beside(name, results):
    """The `Comparison` of what each rank found."""
    ours, theirs, sent, called = zip(*results, strict=True)
    gaps = [(one.double() - two.double()).abs().max() / two.double().abs().max()
            for one, two in zip(ours, theirs, strict=True)]
    kind = name.replace("-", "_")
    ring = None if name == "broadcast" else tuple(traffic.ring_bytes(len(results))[kind] for traffic in called)
    return Comparison(max(gaps).item(), tuple(traffic.calls["send"] for traffic in sent),
                      tuple(traffic.bytes["send"] for traffic in sent), ring,
                      all(torch.equal(one, ours[0]) for one in ours))


guard(globals(), KINDS, "compare")
