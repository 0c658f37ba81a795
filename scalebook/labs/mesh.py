"""The grid's groups beside those that PyTorch's DeviceMesh makes, on real processes.

`scalebook.mesh.RankGrid` computes groups from degrees and an order. PyTorch has its own way: an array of ranks with
named dimensions, whose slices become process groups. Here every rank builds the mesh, says which ranks its groups have,
and adds up the ranks' numbers over each, so that a group is also shown to work.

Run it with `python -m scalebook.labs.mesh`, or let PyTorch start the processes:
`torchrun --nproc-per-node 8 -m scalebook.labs.mesh`.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scalebook import ranks
from scalebook.labs import command
from scalebook.mesh import DENSE, EXPERT, MEGATRON, RankGrid


@dataclass(frozen=True)
class Compared:
    """One grid, and on each rank the members of its group along each axis and the sum of them, as PyTorch has it."""

    grid: RankGrid
    axes: tuple
    members: tuple
    sums: tuple

    def group_of(self, rank, axis):
        """The ranks in a rank's group, as PyTorch has it."""
        return self.members[rank][axis]

    def groups(self, axis):
        """All groups of an axis, as PyTorch has them, sorted by their first rank."""
        return sorted({tuple(found[axis]) for found in self.members})

    def equal(self, grid=None):
        """Whether a grid's groups (None: those of the one that was run) are PyTorch's, on every rank and axis.

        The sums must be those of the members as well.
        """
        grid = self.grid if grid is None else grid
        return all(grid.group_of(rank, axis) == found[axis] and sum(found[axis]) == sums[axis]
                   for rank, (found, sums) in enumerate(zip(self.members, self.sums, strict=True)) for axis in found)


def compare(*grids, timeout=120, backend=None):
    """Make the mesh of every grid on real processes; return a `Compared` for each.

    All grids must have equally many ranks. A grid whose `ep` is above 1 is compared by its experts' axes, tp, ep, edp
    and pp, in Megatron-Core's order; any other by tp, cp, dp and pp in its own. `backend` is that of `ranks.run`. Under
    `torchrun` rank 0 gets the answer and the others None. Raises ValueError for grids that cannot be compared.

    >>> [one] = compare(RankGrid(tp=2, dp=1, pp=1))
    >>> one.groups("tp"), one.equal()
    ([(0, 1)], True)
    """
    _check(grids)
    plans = [dimensions(grid) for grid in grids]
    found = ranks.launch(measure_rank, grids[0].world_size, plans, timeout=timeout, backend=backend)
    if found is None:
        return None
    return [Compared(grid, tuple(name for name, _ in plan), *zip(*(each[place] for each in found), strict=True))
            for place, (grid, plan) in enumerate(zip(grids, plans, strict=True))]


def dimensions(grid):
    """The names and degrees of the mesh's dimensions, from the slowest to the fastest: an order, read backwards."""
    if grid.ep > 1:
        return [(axis, grid.degree(axis)) for axis in EXPERT[::-1]]
    listed = [axis for axis in grid.order.split("-") if axis != "ep"]
    return [(axis, getattr(grid, axis)) for axis in (*(axis for axis in DENSE if axis not in listed), *listed[::-1])]


def measure_rank(rank, size, plans):
    """This rank's groups in the mesh of every plan, and the sum of the ranks over each."""
    return [_groups(rank, size, plan) for plan in plans]


def _groups(rank, size, plan):
    names, degrees = zip(*plan, strict=True)
    mesh = DeviceMesh(ranks.device().type, torch.arange(size).view(degrees), mesh_dim_names=names)
    members, sums = {}, {}
    for name in names:
        group, total = mesh.get_group(name), torch.tensor(rank, device=ranks.device())
        dist.all_reduce(total, group=group)
        members[name], sums[name] = dist.get_process_group_ranks(group), total.item()
    return members, sums


def _check(grids):
    for grid in grids:
        if not isinstance(grid, RankGrid):
            raise ValueError(f"grids: {grid!r} is not allowed; it must be a RankGrid")
        if grid.ep > 1 and grid.order != MEGATRON:
            raise ValueError(f"order = {grid.order!r} is not allowed where ep is above 1; it must be {MEGATRON!r}")
    if not grids or len({grid.world_size for grid in grids}) > 1:
        raise ValueError(f"grids = {grids!r} is not allowed; it must have a grid, and all of equally many ranks")


def main():
    """Compare one grid from the command line; print its groups along each axis and whether PyTorch has the same."""
    parser = command.parser_of(__doc__)
    for axis, default in (("tp", 2), ("cp", 1), ("ep", 1), ("dp", 2), ("pp", 2)):
        parser.add_argument(f"--{axis}", type=int, default=default, help=f"ranks of {axis} (default: {default})")
    parser.add_argument("--order", default=MEGATRON, help=f"the order of the axes (default: {MEGATRON})")
    command.add_backend(parser)
    given = vars(parser.parse_args())
    backend = given.pop("backend")
    with command.errors_in_words(parser):
        found = compare(RankGrid(**given), backend=backend)
    if found is not None:
        print("\n".join(table(found[0])))


def table(one):
    """The lab's report, as lines of text."""
    yield f"{one.grid.world_size} ranks in the order {one.grid.order}; groups as PyTorch's DeviceMesh has them"
    for axis in one.axes[::-1]:
        yield f"{axis:>4}: " + " ".join(str(list(group)) for group in one.groups(axis))
    yield f"equal to RankGrid's on every rank: {one.equal()}"


if __name__ == "__main__":
    from scalebook.labs.mesh import main

    main()
