"""Dropout on several ranks needs two sources of random numbers.

Where all ranks hold the same activations they must drop the same elements, or their copies part. Where each holds its
own (its heads, its positions), equal masks would tie together what should be independent. So each rank has two
streams: one that is the same on all of them, and one of its own. Source: arXiv:1909.08053, appendix B.2.
"""

import contextlib

import torch

from scalebook.borders import guard
from scalebook.checks import whole

from .communication import checked
from .kinds import KINDS, generator_states
from .shapes import probability


class RandomStreams:
    """The random numbers of one rank: `shared` are the same on every rank, `own` this rank's alone.

    Raises ValueError unless `seed` and `rank` are whole numbers from 0, below 2^40 and 2^20 - 1.

    >>> one, two = RandomStreams(0, rank=0), RandomStreams(0, rank=1)
    >>> [torch.equal(torch.rand(9, generator=a), torch.rand(9, generator=b))
    ...  for a, b in ((one.shared, two.shared), (one.own, two.own))]
    [True, False]
    """

    def __init__(self, seed, rank, device="cpu"):
        """Seed both streams."""
        whole("seed", seed, 0)
        whole("rank", rank, 0)
        for name, value, most in (("seed", seed, 2**40), ("rank", rank, 2**20 - 1)):
            if value >= most:
                raise ValueError(f"{name} = {value} is not allowed; {name} must be below {most}")
        # Seeds lie far apart, so that no rank of one shares a stream with a rank of the next.
        self.shared = torch.Generator(device).manual_seed(seed * 2**20)
        self.own = torch.Generator(device).manual_seed(seed * 2**20 + 1 + rank)

    def states(self):
        """Where both streams stand."""
        return self.shared.get_state(), self.own.get_state()

    def set_states(self, states):
        """Put both streams where they stood."""
        self.shared.set_state(states[0])
        self.own.set_state(states[1])

    @contextlib.contextmanager
    def replayed_from(self, states):
        """Inside the block the streams repeat what they gave after `states`; then they go on as if nothing had been."""
        now = self.states()
        self.set_states(states)
        try:
            yield
        finally:
            self.set_states(now)


def check_streams(streams):
    """Return the streams; raise ValueError unless they are a rank's."""
    if not isinstance(streams, RandomStreams):
        raise ValueError(f"streams = {streams!r} is not allowed; it must be a RandomStreams")
    return streams


def dropout(x, rate, stream):
    """x with a share of `rate` of its elements zeroed, and the others divided by 1 - rate; `stream` draws the mask.

    The mask has one byte for each element, and is drawn where the stream is: one on the CPU gives every device the
    same. Raises ValueError unless x is a floating-point tensor, 0 <= rate < 1, and `stream` a generator: the random
    numbers of no one in particular would not be the same, or not different, on ranks.

    >>> dropout(torch.ones(6), 0.5, torch.Generator().manual_seed(0)).unique()
    tensor([0., 2.])
    """
    probability("rate", rate)
    if rate == 0:
        return checked(x)
    if not isinstance(stream, torch.Generator):
        raise ValueError(f"stream = {stream!r} is not allowed; it must be a torch.Generator")
    kept = torch.empty(checked(x).shape, dtype=torch.bool, device=stream.device).bernoulli_(1 - rate, generator=stream)
    return x * kept.to(x.device) / (1 - rate)


guard(globals(), KINDS | {"states": generator_states}, "RandomStreams", "RandomStreams.set_states")
