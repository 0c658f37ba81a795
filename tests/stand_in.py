"""A device that is not the CPU, on a machine that has no other: values are real, and devices do not mix.

A tensor on the stand-in keeps its values in a tensor on the CPU, `host`, and computes with it. To PyTorch it says that
it lies on the device "meta", which has no kernels of its own to get in the way. As on a GPU, an operation fails whose
tensors lie on two devices, unless it copies or one of them is a single number; so does one that draws on this device
from a generator of the CPU. A collective wants tensors of this device, as NCCL does; messages between two ranks may be
of the CPU's, since gloo is beside it.
"""

import contextlib
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from scalebook import ranks

DEVICE = torch.device("meta")
COPIES = ("_to_copy", "copy_")
ALSO_OVER_GLOO = ("send", "recv_", "barrier")


class OnStandIn(torch.Tensor):
    """A tensor on the stand-in: its metadata, and `host`, which has the values."""

    @staticmethod
    def __new__(cls, host):
        return torch.Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=DEVICE)

    def __init__(self, host):
        self.host = host

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_meta = False

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})

    def untyped_storage(self):
        """The memory that holds the values: what is measured is its bytes."""
        return self.host.untyped_storage()

    def tolist(self):
        """The values as Python's numbers."""
        return self.host.tolist()

    def __getitem__(self, index):
        """A list of places becomes a tensor here, as PyTorch does for a device with kernels."""
        if isinstance(index, list | range):
            index = torch.tensor(list(index)).to(DEVICE)
        return super().__getitem__(index)

    @property
    def data(self):
        """The values without their history; setting them replaces the memory too."""
        return self.detach()

    @data.setter
    def data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.host = other.host

    def __tensor_flatten__(self):
        """So that `Module.to` swaps a parameter in place, as it does with what can't share the CPU's memory."""
        return ["host"], None

    @staticmethod
    def __tensor_unflatten__(parts, _, *sizes):
        return OnStandIn(parts["host"])

    def __repr__(self):
        return f"OnStandIn({self.host})"


class StandIn(TorchDispatchMode):
    """While it is entered, tensors can be made on the stand-in and moved there; `computed` counts operations there."""

    def __init__(self):
        super().__init__()
        self.computed = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.computed += any(isinstance(value, OnStandIn) for value in tree_iter(args))
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    """Run one operation on the values, where its tensors may be used together."""
    name = func.name().split("::")[1].split(".")[0]
    tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
    here = [tensor for tensor in tensors if isinstance(tensor, OnStandIn)]
    lost = [tensor for tensor in tensors if not isinstance(tensor, OnStandIn) and tensor.device == DEVICE]
    assert not lost, f"{func} was given a tensor without values"
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnStandIn) and tensor.dim()]
    if func.namespace == "c10d":
        if elsewhere and name not in ALSO_OVER_GLOO:
            raise RuntimeError(f"no backend for tensors of the CPU in {func}")
    elif here and elsewhere and name not in COPIES:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device")
    asked = kwargs.get("device")
    there = (bool(here) if asked is None else torch.device(asked) == DEVICE)
    if there and any(isinstance(value, torch.Generator) for value in tree_iter((args, kwargs))):
        raise RuntimeError(f"{func}: expected a generator of the stand-in, and found one of the CPU")
    if asked is not None:
        kwargs = {**kwargs, "device": "cpu"}
    if name == "_to_copy" and asked is not None:
        kwargs = {**kwargs, "memory_format": kwargs.get("memory_format") or torch.preserve_format}
    result = func(*tree_map(host_of, args), **tree_map(host_of, kwargs))
    own = {id(tensor.host): tensor for tensor in here} | {id(tensor): tensor for tensor in tensors}

    def out(value):
        if not isinstance(value, torch.Tensor) or id(value) in own:
            return own.get(id(value), value)
        return OnStandIn(value) if there else value

    return tree_map(out, result)


def host_of(value):
    """A tensor's values; anything else as it is."""
    return value.host if isinstance(value, OnStandIn) else value


@contextlib.contextmanager
def tensors_from_data():
    """`torch.tensor` for the stand-in as well: PyTorch would make a tensor without values of it."""
    real = torch.tensor

    def tensor(*args, device=None, **kwargs):
        made = real(*args, **kwargs)
        return made if device is None else made.to(device)

    with mock.patch("torch.tensor", tensor):
        yield


def one_by_one(messages):
    """`batch_isend_irecv` without the question whether the device's backend can start all messages at once."""
    return [message.op(message.tensor, message.peer, message.group, message.tag) for message in messages]


def on_stand_in(rank, world_size, fn, *args):
    """A rank whose device is the stand-in: what `fn` returns, and how many operations it ran there."""
    own_device = mock.patch.object(ranks, "device", return_value=DEVICE)
    messages = mock.patch.object(dist, "batch_isend_irecv", one_by_one)
    with own_device, messages, tensors_from_data(), StandIn() as mode:
        return fn(rank, world_size, *args), mode.computed


def mix(rank, world_size):
    """What a rank does that has left a tensor on the CPU."""
    return torch.ones(2, device=ranks.device()) + torch.ones(2)


def sum_on_the_cpu(rank, world_size):
    """What a rank does that sends a tensor of the CPU."""
    dist.all_reduce(torch.ones(2))


def draw_there(rank, world_size):
    """What a rank does that draws on its device from a generator of the CPU."""
    return torch.rand(2, generator=torch.Generator().manual_seed(0), device=ranks.device())


def nested(rank, world_size):
    """Tensors of the device, and of the CPU, in places where a result can have them."""
    own = torch.arange(3.0).to(ranks.device())
    return {"parameter": torch.nn.Parameter(own), "deep": [(own[1:], rank)], "here": torch.ones(1)}


def launch(fn, world_size, *args, timeout=60, backend=None):
    """`ranks.launch`, with every rank on the stand-in."""
    results = ranks.run(on_stand_in, world_size, fn, *args, timeout=timeout, backend="gloo")
    assert all(computed for _, computed in results)
    return [result for result, _ in results]
