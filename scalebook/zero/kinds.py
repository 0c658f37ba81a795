"""What the arguments of this package must be, by their names. Needs no PyTorch until a check is made."""

from collections.abc import Iterable
from functools import partial

from scalebook import checks

share = partial(checks.scalar, least=0)


def tensors(name, value):
    """ValueError unless it is a list of tensors of floats."""
    if not isinstance(value, list | tuple | dict) or not value:
        found = list(value) if isinstance(value, dict) else value
        raise ValueError(f"{name} = {checks.shown(found)} is not allowed; {name} must be a list of tensors")
    for one in value:
        checks.tensor(name, one)


def parameters(name, value):
    """ValueError unless it can be iterated over and holds tensors."""
    if isinstance(value, list | tuple | dict | str | bytes | set) or hasattr(value, "dtype") or not isinstance(
            value, Iterable):
        tensors(name, value)


def buffer(name, value):
    """ValueError unless it is a tensor of one dimension."""
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() != 1:
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a tensor of one dimension")


def modules(name, value):
    """ValueError unless it is a list of modules of PyTorch."""
    from torch import nn

    listed = isinstance(value, Iterable) and not isinstance(value, str | bytes) and not hasattr(value, "dtype")
    if not listed or not all(isinstance(one, nn.Module) for one in value):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must hold modules of PyTorch")


def buckets(name, value):
    """ValueError unless it is a list of `Bucket`s."""
    from scalebook.zero.buckets import Bucket

    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, Bucket) for one in value):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a list of Buckets")


def dtype(name, value):
    """ValueError unless the optimizer knows master weights for it."""
    from scalebook.zero.adam import MASTER

    checks.one_of(name, value, tuple(MASTER))


def betas(name, value):
    """ValueError unless it is a pair of numbers from 0 to below 1."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a pair of numbers")
    for one in value:
        checks.number(name, one, least=0)
        if one >= 1:
            raise ValueError(f"{name} = {value} is not allowed; each must be below 1")


KINDS = {
    "stage": partial(checks.whole, least=0, most=3), "microbatches": checks.size,
    "release_after_forward": checks.flag, "parameters": parameters, "tensors": tensors, "masters": tensors,
    "flat_P": buffer, "model": checks.module, "layers": modules, "buckets": buckets,
    "units": buckets, "dtype": dtype, "group": checks.group, "max_norm": partial(checks.scalar, above=0),
    "learning_rate": share, "epsilon": partial(checks.scalar, above=0), "decay": share, "betas": betas,
    "elements": checks.size,
}
# `parameters` is a number in the functions that count, and a list of tensors in a `Bucket`.
OF_FUNCTIONS = {name: check for name, check in KINDS.items() if name != "parameters"}


def one_a_parameter(self, tensors):
    """ValueError unless there is a tensor for each parameter, of its shape."""
    shapes, due = [tuple(one.shape) for one in tensors], [tuple(one.shape) for one in self.parameters]
    if shapes != due:
        raise ValueError(f"tensors have the shapes {shapes}; they must be those of the parameters, {due}")


def whole_buffer(self, flat_P):
    """ValueError unless the buffer is as long as the bucket."""
    if len(flat_P) not in (self.elements, self.padded):
        raise ValueError(f"flat_P has {len(flat_P)} elements; the bucket has {self.elements}, {self.padded} with "
                         "padding")


def released(stage, release_after_forward, **_):
    """ValueError unless the weights can be kept, or released, at this stage."""
    if not release_after_forward and stage != 3:
        raise ValueError(f"release_after_forward = False is not allowed at stage {stage}; only stage 3 releases")


TOGETHER = {"passes": released, "Bucket.flatten": one_a_parameter, "Bucket.views": whole_buffer}
