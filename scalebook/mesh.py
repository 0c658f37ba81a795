"""The grid of ranks: which GPU holds which part of the model and of the batch.

Every rank has one coordinate on each axis: tp (tensor parallel), cp (context parallel), dp (data parallel) and pp
(pipeline stage). Ranks that differ in one coordinate only form a group and talk to each other along that axis, so each
axis cuts the world into groups, and every rank is in exactly one of them. The order says which axis changes fastest
from one rank to the next, and with that which groups stay inside a node.

Expert parallelism has no axis of its own. It is carved out of the ranks of cp and dp: `ep` of them share the experts of
a layer, and what is left, edp = cp dp / ep, holds copies of the same experts. So `ep` does not enter the world size.

Sources: Megatron-Core, megatron/core/parallel_state.py (orders, expert grid); arXiv:2407.21783, figure 5 (Llama 3).
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scalebook.checks import shown

MEGATRON = "tp-cp-ep-dp-pp"
LLAMA_3 = "tp-cp-pp-dp"
MOST_GPUS = 2**24
AXES = ("tp", "cp", "ep", "dp", "pp")
DENSE = ("tp", "cp", "dp", "pp")
EXPERT = ("tp", "ep", "edp", "pp")


@dataclass(frozen=True)
class RankGrid:
    """The ranks of one training run, numbered from 0 in the given order of axes, the first of which changes fastest.

    `tp`, `cp`, `dp` and `pp` are degrees: the ranks in one group of that axis. `ep` ranks out of every cp dp share the
    experts of a layer. An axis of degree 1 may be left out of `order`.

    Raises ValueError that names the argument, its value and what is allowed.
    Source: Megatron-Core, megatron/core/parallel_state.py.

    >>> grid = RankGrid(tp=8, dp=8, pp=8)
    >>> grid.world_size, grid.coordinates(77)
    (512, {'tp': 5, 'cp': 0, 'ep': 0, 'dp': 1, 'pp': 1})
    >>> grid.groups("dp")[0], RankGrid(order=LLAMA_3).groups("dp")[0]
    ([0, 8, 16, 24, 32, 40, 48, 56], [0, 64, 128, 192, 256, 320, 384, 448])
    """

    tp: int = 8
    cp: int = 1
    ep: int = 1
    dp: int = 8
    pp: int = 8
    order: str = MEGATRON

    def __post_init__(self):
        """Refuse degrees that are no counts, an order that does not fit them, and experts that cannot be carved out."""
        for axis in AXES:
            _check_count(axis, getattr(self, axis))
        _check_order(self)
        if (self.cp * self.dp) % self.ep:
            raise ValueError(f"ep = {self.ep} is not allowed; it must divide cp dp = {self.cp * self.dp}, "
                             "the ranks that it is carved out of")

    @property
    def world_size(self) -> int:
        """All ranks: tp cp dp pp. Experts add none."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Ranks that hold copies of the same experts: cp dp / ep."""
        return self.cp * self.dp // self.ep

    def degree(self, axes: str) -> int:
        """The ranks in one group of an axis, or of axes joined by hyphens such as "tp-pp" (one replica of the model).

        >>> RankGrid().degree("dp"), RankGrid().degree("tp-pp")
        (8, 64)
        """
        array, axes, names = self._array_of(axes)
        return int(np.prod([array.shape[names.index(axis)] for axis in axes]))

    def groups(self, axes: str) -> list[list[int]]:
        """The groups of an axis, each a list of ranks from low to high, sorted by their first rank.

        `axes` is one of "tp", "cp", "dp", "pp", "ep" and "edp", or several joined by hyphens: the ranks that differ in
        any of them. "dp-cp" are the ranks that add up one gradient. The experts' axes join with "tp" and "pp" only.
        There are world_size / degree groups, and every rank is in one of them.

        >>> RankGrid(tp=2, dp=2, pp=2).groups("tp-pp")
        [[0, 1, 4, 5], [2, 3, 6, 7]]
        >>> RankGrid(tp=1, ep=2, dp=4, pp=1).groups("ep")
        [[0, 1], [2, 3]]
        """
        array, axes, names = self._array_of(axes)
        last = [names.index(axis) for axis in axes]
        moved = np.moveaxis(array, last, range(-len(last), 0)).reshape(-1, self.degree("-".join(axes)))
        return sorted(np.sort(moved, axis=1).tolist())

    def group_of(self, rank: int, axes: str) -> list[int]:
        """The group of one rank along an axis, or along axes joined by hyphens.

        >>> RankGrid().group_of(77, "pp")
        [13, 77, 141, 205, 269, 333, 397, 461]
        """
        self._check_rank(rank)
        return next(group for group in self.groups(axes) if rank in group)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands: a dict with tp, cp, dp, pp, and its place ep among the ranks that share the experts."""
        self._check_rank(rank)
        place = dict(zip(DENSE, np.argwhere(self._dense == rank)[0].tolist(), strict=True))
        return {axis: place[axis] if axis in place else self.expert_coordinates(rank)["ep"] for axis in AXES}

    def expert_coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands in the grid of the experts: a dict with tp, ep, edp and pp.

        >>> RankGrid(tp=2, ep=4, dp=8, pp=1).expert_coordinates(11)
        {'tp': 1, 'ep': 1, 'edp': 1, 'pp': 0}
        """
        self._check_rank(rank)
        return dict(zip(EXPERT, np.argwhere(self._expert == rank)[0].tolist(), strict=True))

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank at a place: the inverse of `coordinates`. An axis of degree 1 may be left out, and so may ep.

        >>> RankGrid().rank({"tp": 5, "dp": 1, "pp": 1})
        77
        """
        if not isinstance(coordinates, Mapping):
            raise ValueError(f"coordinates = {coordinates!r} is not allowed; it must map axes to places")
        for axis, place in coordinates.items():
            if axis not in AXES:
                raise ValueError(f"coordinates has {axis!r}, which is not an axis; the axes are {', '.join(AXES)}")
            _check_place(axis, place, getattr(self, axis))
        for axis in DENSE:
            if axis not in coordinates and getattr(self, axis) > 1:
                raise ValueError(f"coordinates = {dict(coordinates)} is not allowed; {axis} is missing")
        found = int(self._dense[tuple(coordinates.get(axis, 0) for axis in DENSE)])
        given, ep = coordinates.get("ep"), self.expert_coordinates(found)["ep"]
        if given is not None and given != ep:
            raise ValueError(f"coordinates: ep = {given} is not allowed; at the other coordinates ep is {ep}")
        return found

    def nodes_of_a_group(self, axes, gpus_per_node):
        """The most nodes that one group of an axis touches, when node n holds ranks n g to n g + g - 1 for g GPUs.

        >>> RankGrid().nodes_of_a_group("tp", 8), RankGrid().nodes_of_a_group("dp", 8)
        (1, 8)
        """
        _check_count("gpus_per_node", gpus_per_node)
        return max(len({rank // gpus_per_node for rank in group}) for group in self.groups(axes))

    @cached_property
    def _dense(self):
        """The ranks, indexed by tp, cp, dp and pp."""
        listed = [axis for axis in self.order.split("-") if axis != "ep"]
        slowest_first = [axis for axis in DENSE if axis not in listed] + listed[::-1]
        ranks = np.arange(self.world_size).reshape([getattr(self, axis) for axis in slowest_first])
        return ranks.transpose([slowest_first.index(axis) for axis in DENSE])

    @cached_property
    def _expert(self):
        """The ranks, indexed by tp, ep, edp and pp: the cp dp ranks of each tp and pp, from low to high, cut anew."""
        shared = np.sort(self._dense.transpose(0, 3, 1, 2).reshape(self.tp, self.pp, -1), axis=2)
        listed = self.order.split("-")
        if "ep" not in listed or "dp" not in listed or listed.index("ep") < listed.index("dp"):
            return shared.reshape(self.tp, self.pp, self.edp, self.ep).transpose(0, 3, 2, 1)
        return shared.reshape(self.tp, self.pp, self.ep, self.edp).transpose(0, 2, 3, 1)

    def _array_of(self, axes):
        """The grid that has all of the axes, the axes as a list, and the names of the grid's axes."""
        listed = axes.split("-") if isinstance(axes, str) else []
        for array, names in ((self._dense, DENSE), (self._expert, EXPERT)):
            if listed and set(listed) <= set(names) and len(set(listed)) == len(listed):
                return array, listed, names
        raise ValueError(f"axes = {axes!r} is not allowed; it must be one of {', '.join(DENSE)}, or several of them "
                         f"joined by hyphens; or of {', '.join(EXPERT)}")

    def _check_rank(self, rank):
        if not _is_whole(rank) or not 0 <= rank < self.world_size:
            raise ValueError(f"rank = {rank!r} is not allowed; it must be a whole number from 0 to "
                             f"{self.world_size - 1}")


def grids(gpus, *, order=MEGATRON):
    """Every grid of tp, dp and pp on a number of GPUs: all ways to write it as a product of three degrees.

    >>> [(grid.tp, grid.dp, grid.pp) for grid in grids(3)]
    [(1, 1, 3), (1, 3, 1), (3, 1, 1)]
    """
    _check_count("gpus", gpus)
    if gpus > MOST_GPUS:
        raise ValueError(f"gpus = {shown(gpus)} is not allowed; it must be at most {MOST_GPUS}: all its divisors "
                         "are tried")
    divisors = [n for n in range(1, gpus + 1) if gpus % n == 0]
    return [RankGrid(tp=tp, dp=dp, pp=gpus // (tp * dp), order=order)
            for tp, dp in itertools.product(divisors, divisors) if gpus % (tp * dp) == 0]


def _is_whole(value):
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_count(name, value):
    if not _is_whole(value) or value < 1:
        raise ValueError(f"{name} = {value!r} is not allowed; it must be a whole number, at least 1")


def _check_place(axis, place, degree):
    if not _is_whole(place) or not 0 <= place < degree:
        raise ValueError(f"coordinates: {axis} = {place!r} is not allowed; it must be a whole number from 0 to "
                         f"{degree - 1}")


def _check_order(grid):
    listed = grid.order.split("-") if isinstance(grid.order, str) else []
    for axis in listed:
        if axis not in AXES or listed.count(axis) > 1:
            raise ValueError(f"order = {grid.order!r} is not allowed; it must name axes out of {', '.join(AXES)}, each "
                             "once, joined by hyphens")
    missing = [axis for axis in AXES if axis not in listed and getattr(grid, axis) > 1]
    if missing or not listed:
        raise ValueError(f"order = {grid.order!r} is not allowed; it must name every axis of more than one rank, "
                         f"and {missing[0] if missing else 'any axis'} is missing")
