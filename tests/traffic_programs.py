"""Programs whose traffic is known by arithmetic, for the tests of `scalebook.ranks.count`."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from scalebook.ranks import count


def as_dict(traffic):
    return {kind: (traffic.calls[kind], traffic.bytes[kind]) for kind in traffic.calls}


def count_all(rank, world_size):
    """Run every program; return what was counted in each, by name."""
    return {name: as_dict(program(rank, world_size)) for name, program in PROGRAMS.items()}


def log_all_to_alls(rank, world_size):
    """Every all-to-all of the programs that have one: what was counted, in order, and the bytes sent to others."""
    programs = (plain, single_tensor, functional_collectives, uneven_all_to_all, pair_all_to_all)
    found = {program.__name__: program(rank, world_size) for program in programs}
    return {name: ([call for call in traffic.log if call[0] == "all_to_all"],
                   traffic.ring_bytes(world_size)["all_to_all"]) for name, traffic in found.items()}


def plain(rank, n):
    t = torch.ones(6)  # 24 bytes
    with count() as traffic:
        dist.all_reduce(t)
        dist.broadcast(t, 0)
        dist.reduce(t, 0)
        dist.all_gather([torch.empty(6) for _ in range(n)], t)
        dist.reduce_scatter(torch.empty(6), [t] * n)
        dist.all_to_all([torch.empty(2) for _ in range(n)], [torch.ones(2)] * n)
        dist.gather(t, [torch.empty(6) for _ in range(n)] if rank == 0 else None)
        dist.scatter(torch.empty(6), [t] * n if rank == 0 else None)
        dist.barrier()
    dist.all_reduce(t)  # outside: not counted
    return traffic


def single_tensor(rank, n):
    with count() as traffic:
        dist.all_gather_into_tensor(torch.empty(6 * n), torch.ones(6))
        dist.reduce_scatter_tensor(torch.empty(6), torch.ones(6 * n))
        dist.all_to_all_single(torch.empty(2 * n), torch.ones(2 * n))
    return traffic


def uneven_all_to_all(rank, n):
    """Rank s sends s + d rows of 12 bytes to rank d, twice. (As a list of tensors, gloo takes equal parts only.)"""
    send, receive = [rank + d for d in range(n)], [s + rank for s in range(n)]
    rows = torch.ones(sum(send), 3)
    with count() as traffic:
        dist.all_to_all_single(torch.empty(sum(receive), 3), rows, receive, send)
        functional.all_to_all_single(rows, receive, send, dist.group.WORLD).sum()
    return traffic


def pair_all_to_all(rank, n):
    """In groups of two ranks, where a rank's place in the group is not its number."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, n, 2)]
    with count() as traffic:
        # Its own part is three rows of 4 bytes, its peer's one.
        splits = [3, 1] if rank % 2 == 0 else [1, 3]
        dist.all_to_all_single(torch.empty(4), torch.ones(4), splits, splits, group=groups[rank // 2])
    return traffic


def asynchronous(rank, n):
    with count() as traffic:
        works = [dist.all_reduce(torch.ones(10, dtype=torch.float64), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
    return traffic


def point_to_point(rank, n):
    after, before = (rank + 1) % n, (rank - 1) % n
    t, buffer = torch.ones(5, dtype=torch.bfloat16), torch.empty(5, dtype=torch.bfloat16)
    with count() as traffic:
        work = dist.isend(t, after)
        dist.recv(buffer, before)
        work.wait()
        work = dist.isend(t, after)
        dist.recv(buffer)  # from any rank
        work.wait()
        batch = [dist.P2POp(dist.isend, t, after), dist.P2POp(dist.irecv, buffer, before)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    return traffic


def functional_collectives(rank, n):
    group = dist.group.WORLD
    with count() as traffic:
        functional.all_reduce(torch.ones(6), "sum", group).sum()
        functional.all_gather_tensor(torch.ones(6), 0, group).sum()
        functional.reduce_scatter_tensor(torch.ones(6 * n), "sum", 0, group).sum()
        functional.all_to_all_single(torch.ones(2 * n), None, None, group).sum()
        functional.all_gather_tensor_autograd(torch.ones(6, requires_grad=True), 0, group).sum().backward()
    return traffic


def coalesced(rank, n):
    with count() as traffic, dist._coalescing_manager():
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(4))
    return traffic


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def tensor_parallel(rank, n):
    """Column then row parallel: one all-reduce forward, of the output; one backward, of the input's gradient."""
    mesh = dist.init_device_mesh("cpu", (n,))
    model = parallelize_module(TwoLayers(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.ones(4, 8, requires_grad=True)
    with count() as traffic:
        model(x).sum().backward()
        torch.testing.assert_close(x.grad, reference_gradient())
    return traffic


def reference_gradient():
    x = torch.ones(4, 8, requires_grad=True)
    TwoLayers()(x).sum().backward()
    return x.grad


def redistribute(rank, n):
    mesh = dist.init_device_mesh("cpu", (n,))
    x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    with count() as traffic:
        x.redistribute(placements=[Replicate()]).to_local()
    return traffic


def fully_sharded(rank, n):
    """FSDP2: each layer's weights are gathered forward and again backward; its gradient is reduce-scattered once."""
    mesh = dist.init_device_mesh("cpu", (n,))
    model = TwoLayers()
    fully_shard(model.up, mesh=mesh)
    fully_shard(model.down, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with count() as traffic:
        model(torch.ones(4, 8)).sum().backward()
    return traffic


def data_parallel(rank, n):
    """DDP from the third iteration on: one bucket that holds every gradient."""
    model = DistributedDataParallel(TwoLayers())
    model(torch.ones(4, 8)).sum().backward()
    model(torch.ones(4, 8)).sum().backward()  # begins by broadcasting the new buckets
    with count() as traffic:
        model(torch.ones(4, 8)).sum().backward()
    return traffic


PROGRAMS = {
    program.__name__: program
    for program in (plain, single_tensor, uneven_all_to_all, pair_all_to_all, asynchronous, point_to_point,
                    functional_collectives, coalesced, tensor_parallel, redistribute, fully_sharded, data_parallel)
}
