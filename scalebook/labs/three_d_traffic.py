"""What one rank of a grid sends along each axis: every collective counted by the process group that it went over."""

import contextlib

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from scalebook import ranks

PEER = {"send": 2, "recv_": 2}  # where a message's other end stands among the arguments


@contextlib.contextmanager
def count_by_axis(groups, grid, rank):
    """Count what this rank calls inside the block: gives a dict from axis to `ranks.Traffic`.

    `groups` maps axes to this rank's process groups. A message between two ranks counts on the axis whose group has
    both. Raises ValueError for a collective over any other group, and for a message to a rank that is in none.
    """
    traffic = {axis: ranks.Traffic() for axis in groups}
    names = {group.group_name: axis for axis, group in groups.items()}
    with _ByAxis(traffic, names, {axis: grid.group_of(rank, axis) for axis in groups}):
        yield traffic


class _ByAxis(TorchDispatchMode):
    """The dispatch mode behind `count_by_axis`: `ranks.count` counts each call, and its group says on which axis."""

    def __init__(self, traffic, names, peers):
        super().__init__()
        self.traffic, self.names, self.peers = traffic, names, peers

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace != "c10d":
            return func(*args, **kwargs)
        with ranks.count() as counted:
            result = func(*args, **kwargs)
        if counted.log:
            axis = self.axis_of(func.name().split("::")[1].split(".")[0], args)
            for call in counted.log:
                self.traffic[axis].add(*call)
        return result

    def axis_of(self, name, args):
        if name in PEER:
            both = [axis for axis, members in self.peers.items() if args[PEER[name]] in members]
            if len(both) != 1:
                raise ValueError(f"a message to rank {args[PEER[name]]} is along no single axis")
            return both[0]
        group = next(dist.ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject)
                     and "ProcessGroup" in str(arg._type()))
        if group.group_name not in self.names:
            raise ValueError(f"{name} went over the group {group.group_name!r}, which is along no axis")
        return self.names[group.group_name]
