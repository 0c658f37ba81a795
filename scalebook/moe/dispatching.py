"""Capacity and dispatch: from each token's choice of experts to each expert's list of tokens.

Shapes, as suffixes of names: T tokens, K experts chosen for a token, E experts, N rows that experts compute (T K, less
what capacity drops and padding).
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch

from scalebook.checks import INT64, whole

PRIORITIES = ("choice", "token")


def capacity(tokens, experts, k=1, factor=1.0):
    """The most tokens that one expert takes: factor x k x tokens / experts, rounded up.

    With k = 1 it is Switch's expert capacity (arXiv:2101.03961, equation 3); times k it is the form of MegaBlocks and
    Megatron, which round it down and up. A decimal factor counts as written: 1.1 is eleven tenths.

    Raises ValueError for a negative number of tokens, no expert, a k outside 1..E, or a factor that is not above 0.

    >>> capacity(4096, 8, k=2, factor=1.25)
    1280
    >>> capacity(10, 1, factor=1.1)
    11
    """
    for name, value, least in (("tokens", tokens, 0), ("experts", experts, 1), ("k", k, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} = {value!r} is not allowed; {name} must be a whole number, at least {least}")
    if k > experts:
        raise ValueError(f"k = {k} is not allowed; k must be at most the {experts} experts")
    if isinstance(factor, bool) or not math.isfinite(factor) or factor <= 0:
        raise ValueError(f"factor = {factor!r} is not allowed; factor must be a finite number above 0")
    return math.ceil(Fraction(str(factor)) * k * tokens / experts)


@dataclass(frozen=True)
class Dispatch:
    """The rows that experts compute, sorted by expert.

    `tokens_N`: the token of each row. `weights_N`: the gate's weight of each row. `counts`: rows of each expert, as a
    list, so expert e has the `counts[e]` rows after those of the experts before it. `dropped_TK`: True where capacity
    dropped a choice; never at padding.
    """

    tokens_N: torch.Tensor
    weights_N: torch.Tensor
    counts: list
    dropped_TK: torch.Tensor

    @property
    def offsets(self):
        """Where each expert's rows begin, and, last, the number of rows."""
        offsets = [0]
        for count in self.counts:
            offsets.append(offsets[-1] + count)
        return offsets

    @property
    def dropped_share(self):
        """The share of the choices that capacity dropped, from 0 to 1; 0 when there was no choice."""
        dropped = int(self.dropped_TK.sum())
        return dropped / max(dropped + len(self.tokens_N), 1)

    @property
    def lost_share(self):
        """The share of the tokens that lost every choice they had, from 0 to 1; padding is no token."""
        dropped_T = self.dropped_TK.any(dim=-1)
        kept_T = torch.zeros_like(dropped_T).index_fill(0, self.tokens_N, True)
        return int((dropped_T & ~kept_T).sum()) / max(int((dropped_T | kept_T).sum()), 1)


def dispatch(experts_TK, weights_TK, experts, capacity=None, *, priority="choice"):
    """Sort the choices by expert, and drop what is over `capacity` (None: nothing is dropped).

    When an expert has more tokens than it takes, `priority` says which come first: "choice" serves all first choices in
    the order of tokens, then all second choices, and so on, as GShard does (arXiv:2006.16668, algorithm 1); "token"
    serves all choices of the first token, then those of the next. Weights are left as they are: a dropped choice
    is missing from its token's sum, and a token that loses all of them is carried by the residual connection alone.
    Expert -1 means padding; it goes nowhere and takes no capacity.

    Raises ValueError when the shapes differ, an index is outside -1..E-1, capacity is negative, or the priority is
    another word.

    >>> plan = dispatch(torch.tensor([[1], [0], [1]]), torch.ones(3, 1), experts=2, capacity=1)
    >>> plan.tokens_N.tolist(), plan.counts, plan.dropped_TK.flatten().tolist()
    ([1, 0], [1, 1], [False, False, True])
    """
    check_choices(experts_TK, weights_TK, experts, capacity, priority)
    tokens, k = experts_TK.shape
    by_choice = priority == "choice"
    queue_TK = torch.arange(tokens * k, device=experts_TK.device).view(tokens, k)  # in the order of the tokens
    queue_Q = (queue_TK.T if by_choice else queue_TK).reshape(-1)
    chosen_Q = experts_TK.reshape(-1)[queue_Q]
    chosen_Q = chosen_Q.masked_fill(chosen_Q < 0, experts)  # padding sorts behind the last expert
    order_Q = torch.argsort(chosen_Q, stable=True)  # stable: within an expert the queue's order stays
    wanted_E = torch.bincount(chosen_Q, minlength=experts + 1)[:experts]
    rows_Q = queue_Q[order_Q][: int(wanted_E.sum())]
    counts_E, kept_N = wanted_E, rows_Q
    if capacity is not None:
        counts_E = wanted_E.clamp(max=capacity)
        place_Q = torch.arange(len(rows_Q), device=rows_Q.device) - starts(wanted_E).repeat_interleave(wanted_E)
        kept_N = rows_Q[place_Q < capacity]
    dropped = (experts_TK >= 0).reshape(-1).index_fill(0, kept_N, False)
    weights_N = weights_TK.reshape(-1).index_select(0, kept_N)
    return Dispatch(kept_N // k, weights_N, counts_E.tolist(), dropped.view(tokens, k))


def starts(counts_E):
    """Where each expert's rows begin.

    >>> starts(torch.tensor([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    return counts_E.cumsum(0) - counts_E


def check_choices(experts_TK, weights_TK, experts, capacity, priority):
    """ValueError for what `dispatch` cannot take."""
    if experts_TK.dim() != 2 or experts_TK.shape[1] < 1 or experts_TK.shape != weights_TK.shape:
        raise ValueError(f"experts_TK has shape {tuple(experts_TK.shape)} and weights_TK {tuple(weights_TK.shape)}; "
                         f"both must be (tokens, k), k at least 1")
    whole("experts", experts, most=INT64)
    if ((experts_TK < -1) | (experts_TK >= experts)).any():
        raise ValueError(f"experts_TK holds {int(experts_TK.min())} to {int(experts_TK.max())}; an index must be from "
                         f"0 to {experts - 1}, or -1 for padding")
    whole_number = isinstance(capacity, int) and not isinstance(capacity, bool)
    if capacity is not None and not (whole_number and 0 <= capacity <= INT64):
        raise ValueError(f"capacity = {capacity!r} is not allowed; capacity must be None or a whole number, at least 0")
    if priority not in PRIORITIES:
        raise ValueError(f"priority = {priority!r} is not allowed; priority must be one of {PRIORITIES}")
