"""Save the sharded optimizer on some ranks and resume on more or fewer, with `torch.distributed.checkpoint`.

Each state of a bucket is told to PyTorch as one tensor of the bucket's `elements`, cut along its only dimension: a
`DTensor`. Padding is left out, because another number of ranks pads differently. PyTorch then writes each rank's part
beside its place in the whole, and reads the parts that another cut needs.
"""

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def save(optimizer, folder):
    """Write the states of a `Zero1`, `Zero2` or `Zero3` into a folder that every rank can reach."""
    dcp.save(states(optimizer), checkpoint_id=folder)


def load(optimizer, folder):
    """Read the states into an optimizer of the same model on any number of ranks; its weights follow.

    The weights are the master weights, rounded to the dtype in which the model computes.
    """
    state = states(optimizer)
    dcp.load(state, checkpoint_id=folder)
    optimizer.adam.steps = state["steps"]
    optimizer.publish()


def states(optimizer):
    """The optimizer's states as PyTorch's checkpoints want them: by name, each a `DTensor` over all ranks."""
    mesh = init_device_mesh(optimizer.adam.masters[0].device.type, (optimizer.ranks,))
    named = {"master": optimizer.adam.masters, "first": optimizer.adam.first, "second": optimizer.adam.second}
    return {"steps": optimizer.adam.steps} | {
        f"{name}.{number}": _as_whole(bucket, shard_S, mesh)
        for name, shards in named.items()
        for number, (bucket, shard_S) in enumerate(zip(optimizer.buckets, shards, strict=True))
    }


def _as_whole(bucket, shard_S, mesh):
    """One rank's shard, without its padding, as its part of the whole; it shares the shard's memory."""
    start = dist.get_rank() * len(shard_S)
    real = max(0, min(len(shard_S), bucket.elements - start))
    shape = (bucket.elements,)
    return DTensor.from_local(shard_S[:real], mesh, [Shard(0)], run_check=False, shape=shape, stride=(1,))
