"""What the arguments of this package must be, by their names. Needs no PyTorch until a check is made."""

from collections.abc import Mapping
from functools import partial

from scalebook import checks

activations = partial(checks.tensor, dimensions=3)
heads = partial(checks.tensor, dimensions=4)


def tokens(name, value):
    """ValueError unless it is a tensor of token numbers.

    >>> tokens("tokens_SB", [1, 2])
    Traceback (most recent call last):
    ...
    ValueError: tokens = [1, 2] is not allowed; it must be a tensor of whole numbers
    """
    import torch

    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name.removesuffix('_SB')} = {checks.shown(value)} is not allowed; it must be a tensor of "
                         "whole numbers")


def floats(name, value):
    """ValueError unless it is a tensor of floats."""
    from scalebook.tensor_parallel.communication import checked

    checked(value)


def device(name, value):
    """ValueError unless PyTorch knows the device."""
    import torch

    checks.accepted(name, value, torch.device, "a device such as 'cpu'")


def region(name, value):
    """ValueError unless it is a `Region`."""
    from scalebook.tensor_parallel.communication import check_region

    check_region(value)


def states(name, value):
    """ValueError unless it is a list with a mapping for each rank."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a list with a mapping from "
                         "names to tensors for each rank")
    for number, one in enumerate(value):
        state(f"{name}[{number}]", one)


def state(name, value):
    """ValueError unless it maps names to tensors."""
    import torch

    checks.instance(name, value, Mapping, "a mapping from names to tensors")
    for key, one in value.items():
        if not isinstance(key, str) or not isinstance(one, torch.Tensor):
            raise ValueError(f"{name}[{key!r}] = {checks.shown(one)} is not allowed; {name} maps names to tensors")


def shards(name, value):
    """ValueError unless it is a list of tensors, or of tuples of them, one for each rank."""
    import torch

    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, torch.Tensor) for one in value):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; it must be a list with a tensor for each "
                         "rank")
    shapes = [tuple(one.shape) for one in value]
    if len(set(shapes)) > 1 or not shapes[0]:
        raise ValueError(f"{name} has the shapes {shapes}; all must be the same, with at least one dimension")


def generator_states(name, value):
    """ValueError unless it is a pair of states, as `RandomStreams.states` gives."""
    import torch

    pair = isinstance(value, tuple | list) and len(value) == 2
    if not pair or not all(isinstance(one, torch.Tensor) and one.dtype == torch.uint8 for one in value):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be what `states` gave")


KINDS = {
    "x": floats, "x_SBD": floats, "x_sBD": floats, "x_SBf": floats,
    "q_SBHK": heads, "k_SBGK": heads, "v_SBGK": heads, "logits_SBv": activations,
    "tokens_SB": tokens, "targets_SB": tokens, "group": checks.group, "device": device,
    "state": state, "states": states, "shards": shards, "model": checks.module,
    "hidden": checks.size, "vocabulary": checks.size, "width_in": checks.size, "width_out": checks.size,
    "bias": checks.flag, "recomputed": checks.flag, "early_stop": checks.flag, "region": region, "block": checks.module,
}


def of_its_type(layer, name, value):
    """ValueError unless the input has the dtype of the layer's parameters."""
    dtype = next(layer.parameters()).dtype
    if value.dtype != dtype:
        raise ValueError(f"{name} is {value.dtype}; the layer's parameters are {dtype}")


def last(width):
    """A check that the last dimension of a layer's only input is `width(layer)`."""
    def check(self, **inputs):
        ((name, value),) = inputs.items()
        if not value.dim() or value.shape[-1] != width(self):
            raise ValueError(f"{name} has the shape {tuple(value.shape)}; its last dimension must be {width(self)}")
        of_its_type(self, name, value)
    return check


def positions(self, **inputs):
    """ValueError unless the input of an attention or a block is (S, B, D)."""
    ((name, value),) = inputs.items()
    hidden = self.shape.hidden if hasattr(self, "shape") else self.mlp_norm.weight.shape[0]
    if value.dim() != 3 or value.shape[-1] != hidden or not value.numel():
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; it must be (S, B, {hidden}), no side 0")
    of_its_type(self, name, value)


def known_tokens(self, tokens_SB, targets_SB):
    """ValueError for a token that the vocabulary does not have."""
    for name, value in (("tokens_SB", tokens_SB), ("targets_SB", targets_SB)):
        vocabulary = self.embedding.num_embeddings * getattr(getattr(self, "region", None), "ranks", 1)
        if value.dim() != 2 or not value.numel():
            raise ValueError(f"{name} has the shape {tuple(value.shape)}; it must be (S, B), neither of them 0")
        if value.min() < 0 or value.max() >= vocabulary:
            raise ValueError(f"tokens from {int(value.min())} to {int(value.max())} are not allowed; they must be from "
                             f"0 to below {vocabulary}, the vocabulary of all ranks")


def grouped(q_SBHK, k_SBGK, v_SBGK, **_):
    """ValueError unless all have one dtype, and the query heads are a multiple of the key heads."""
    if not q_SBHK.dtype == k_SBGK.dtype == v_SBGK.dtype:
        raise ValueError(f"q_SBHK, k_SBGK and v_SBGK are {q_SBHK.dtype}, {k_SBGK.dtype} and {v_SBGK.dtype}; they must "
                         "have one dtype")
    if not k_SBGK.shape[2] or q_SBHK.shape[2] % k_SBGK.shape[2]:
        raise ValueError(f"q_SBHK has {q_SBHK.shape[2]} heads and k_SBGK {k_SBGK.shape[2]}; there must be H a multiple "
                         "of G")


def recomputable(block, x, early_stop):
    """ValueError unless x is the input of the block."""
    from scalebook.tensor_parallel.block import ParallelBlock

    if isinstance(block, ParallelBlock):
        positions(block, x=x)


TOGETHER = {
    "causal_attention": grouped, "recompute": recomputable,
    "ColumnParallelLinear.forward": last(lambda layer: layer.weight.shape[1]),
    "RowParallelLinear.forward": last(lambda layer: layer.weight.shape[1]),
    "ParallelMLP.forward": last(lambda layer: layer.up.weight.shape[1]),
    "ParallelLayerNorm.forward": last(lambda layer: layer.weight.shape[0]),
    "ParallelAttention.forward": positions, "ParallelBlock.forward": positions, "Block.forward": positions,
    "ParallelTransformer.forward": known_tokens, "Transformer.forward": known_tokens,
}
