"""Cutting matrices for the ranks, and putting them together again.

The text writes y = x A with A of shape (in, out). PyTorch stores A transposed, (out, in), so a *column* of A is the
first dimension of a stored weight, and a *row* of A its second. A bias has one number for each column.

Every function is pure: no rank talks to another. What is true of weights is true of their gradients. Shapes, as
suffixes: S positions, D hidden width, H query heads, G key and value heads, K width of a head, F inner width,
V vocabulary; a small letter is one rank's part.
"""

import torch

from scalebook.checks import whole

from .communication import described
from .shapes import check_shape, multiple


def shard_columns(weight_FD, rank, ranks):
    """This rank's columns of A: part `rank` of `ranks` along the first dimension of a stored weight or a bias.

    An embedding table (V, D) is cut the same way: each rank has some of the rows of the vocabulary. Raises ValueError
    when the columns are not a multiple of the ranks.

    >>> shard_columns(torch.arange(4), 1, 2)
    tensor([2, 3])
    """
    check_place(rank, ranks)
    multiple("columns", dimension("weight", weight_FD, 0), ranks)
    return weight_FD.chunk(ranks, dim=0)[rank]


def unshard_columns(shards):
    """The whole weight from the ranks' `shard_columns`, in the order of the ranks. Raises ValueError without any.

    >>> unshard_columns([torch.tensor([0, 1]), torch.tensor([2, 3])])
    tensor([0, 1, 2, 3])
    """
    return torch.cat(check_shards(shards), dim=0)


def shard_rows(weight_DF, rank, ranks):
    """This rank's rows of A: part `rank` of `ranks` along the second dimension of a stored weight.

    Raises ValueError when the rows are not a multiple of the ranks.

    >>> shard_rows(torch.tensor([[1, 2], [3, 4]]), 0, 2)
    tensor([[1],
            [3]])
    """
    check_place(rank, ranks)
    multiple("rows", dimension("weight", weight_DF, 1), ranks)
    return weight_DF.chunk(ranks, dim=1)[rank]


def unshard_rows(shards):
    """The whole weight from the ranks' `shard_rows`, in the order of the ranks. Raises ValueError without any.

    >>> unshard_rows([torch.tensor([[1], [3]]), torch.tensor([[2], [4]])])
    tensor([[1, 2],
            [3, 4]])
    """
    return torch.cat(check_shards(shards), dim=1)


def shard_gate_up(gate_up, rank, ranks):
    """This rank's columns of SwiGLU's gate and the same columns of its up projection.

    `gate_up` is the gate's weight (F, D), or bias (F,), and then that of the up projection. Each is cut by itself:
    column i of one multiplies column i of the other, so one rank must have both.

    >>> shard_gate_up(torch.tensor([1, 2, 10, 20]), 0, 2)
    tensor([ 1, 10])
    """
    check_place(rank, ranks)
    multiple("gate and up columns", dimension("gate_up", gate_up, 0), 2 * ranks, "twice the ranks")
    return torch.cat([shard_columns(part, rank, ranks) for part in gate_up.chunk(2)])


def unshard_gate_up(shards):
    """The whole gate and up projection from the ranks' `shard_gate_up`. Raises ValueError without any.

    >>> unshard_gate_up([torch.tensor([1, 10]), torch.tensor([2, 20])])
    tensor([ 1,  2, 10, 20])
    """
    gates, ups = zip(*(shard.chunk(2) for shard in check_shards(shards)), strict=True)
    return torch.cat([*gates, *ups])


def held_kv_heads(rank, ranks, kv_heads):
    """The key and value heads that a rank holds, as a range: its share, or the one that its query heads need.

    Raises ValueError unless `kv_heads` is a multiple or a divisor of `ranks`.

    >>> held_kv_heads(1, 2, 8), held_kv_heads(3, 4, 2)
    (range(4, 8), range(1, 2))
    """
    check_place(rank, ranks)
    whole("kv_heads", kv_heads)
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(f"kv_heads = {kv_heads} is not allowed; it must be a multiple or a divisor of the {ranks} "
                         "ranks")
    first = rank * kv_heads // ranks
    return range(first, first + max(kv_heads // ranks, 1))


def shard_qkv(qkv, heads, kv_heads, rank, ranks):
    """This rank's heads of a fused projection to queries, keys and values.

    `qkv` has H + 2 G blocks of K columns: the query heads, the key heads, the value heads; the shard is laid out alike.
    Query head i attends with key head i G / H (rounded down). With fewer key heads than ranks, the ranks whose query
    heads share a key head hold copies of it.

    Raises ValueError when the heads are not a multiple of the ranks, or the columns not one of the blocks.

    >>> shard_qkv(torch.arange(8), 4, 2, 1, 4)  # query heads 0-3, keys 4-5, values 6-7
    tensor([1, 4, 6])
    """
    check_heads(heads, kv_heads, ranks)
    multiple("columns", dimension("qkv", qkv, 0), heads + 2 * kv_heads, "heads + 2 kv_heads")
    held = list(held_kv_heads(rank, ranks, kv_heads))
    q, k, v = qkv.unflatten(0, (heads + 2 * kv_heads, -1)).split([heads, kv_heads, kv_heads])
    return torch.cat([shard_columns(q, rank, ranks), k[held], v[held]]).flatten(0, 1)


def unshard_qkv(shards, heads, kv_heads):
    """The whole fused projection from the ranks' `shard_qkv`. Of copies, the first one counts.

    Raises ValueError as `shard_qkv`.

    >>> unshard_qkv([torch.tensor([0, 4, 6]), torch.tensor([1, 4, 6])], 2, 1)
    tensor([0, 1, 4, 6])
    """
    ranks = len(check_shards(shards))
    check_heads(heads, kv_heads, ranks)
    own, held = heads // ranks, max(kv_heads // ranks, 1)
    multiple("columns", dimension("shards", shards[0], 0), own + 2 * held, "the heads of a rank")
    parts = [shard.unflatten(0, (own + 2 * held, -1)).split([own, held, held]) for shard in shards]
    q, k, v = zip(*parts, strict=True)
    every = max(ranks // kv_heads, 1)  # ranks that hold the same key heads
    return torch.cat([*q, *k[::every], *v[::every]]).flatten(0, 1)


def shard_sequence(x_SBD, rank, ranks):
    """This rank's positions. Raises ValueError when the positions are not a multiple of the ranks.

    >>> shard_sequence(torch.arange(6), 2, 3)
    tensor([4, 5])
    """
    check_place(rank, ranks)
    multiple("the sequence length", dimension("x", x_SBD, 0), ranks)
    return x_SBD.chunk(ranks)[rank]


def unshard_sequence(shards):
    """All positions from the ranks' `shard_sequence`. Raises ValueError without any.

    >>> unshard_sequence([torch.tensor([0, 1]), torch.tensor([2, 3])])
    tensor([0, 1, 2, 3])
    """
    return torch.cat(check_shards(shards))


def cut_of(name, shape):
    """How the parameter of this name is cut: a pair of functions, or None where every rank has all of it.

    >>> cut_of("blocks.0.mlp.down.weight", None) == (shard_rows, unshard_rows)
    True
    """
    *_, layer, kind = name.split(".")
    if layer == "qkv":
        sizes = shape.heads, shape.kv_heads
        return (lambda qkv, rank, ranks: shard_qkv(qkv, *sizes, rank, ranks),
                lambda shards: unshard_qkv(shards, *sizes))
    if layer == "up" and shape.activation == "swiglu":
        return shard_gate_up, unshard_gate_up
    if layer in ("up", "embedding", "head"):
        return shard_columns, unshard_columns
    if layer in ("out", "down") and kind == "weight":
        return shard_rows, unshard_rows
    return None


def shard_state(state, shape, rank, ranks):
    """A rank's part of the parameters of a transformer or a block: a dict like `state`, name to tensor.

    Norms, and the biases of what is cut by rows, are copied. Raises ValueError when the ranks cannot share `shape`.

    >>> from scalebook.tensor_parallel import Shape
    >>> state = {"mlp.up.bias": torch.arange(4), "mlp.down.bias": torch.arange(2)}
    >>> shard_state(state, Shape(hidden=2, heads=2, inner=4), rank=1, ranks=2)
    {'mlp.up.bias': tensor([2, 3]), 'mlp.down.bias': tensor([0, 1])}
    """
    check_shape(shape, ranks)
    check_place(rank, ranks)
    cuts = {name: cut_of(name, shape) for name in state}
    return {name: value.clone() if cuts[name] is None else cuts[name][0](value, rank, ranks).clone()
            for name, value in state.items()}


def unshard_state(states, shape):
    """The parameters, or gradients, of the whole from those of each rank: the inverse of `shard_state`.

    Raises ValueError when the ranks' names differ.

    >>> from scalebook.tensor_parallel import Shape
    >>> unshard_state([{"mlp.up.bias": torch.tensor([0])}, {"mlp.up.bias": torch.tensor([1])}], Shape())
    {'mlp.up.bias': tensor([0, 1])}
    """
    check_shape(shape, len(check_shards(states)))
    for state in states:
        if state.keys() != states[0].keys():
            raise ValueError(f"states = {sorted(state.keys() ^ states[0].keys())} on some ranks only is not allowed; "
                             "all ranks must have the same names")
    cuts = {name: cut_of(name, shape) for name in states[0]}
    return {name: value if cuts[name] is None else cuts[name][1]([state[name] for state in states])
            for name, value in states[0].items()}


def check_place(rank, ranks):
    """Raise ValueError unless `rank` is one of `ranks` ranks."""
    whole("ranks", ranks)
    whole("rank", rank, 0)
    if rank >= ranks:
        raise ValueError(f"rank = {rank} is not allowed; it must be below ranks = {ranks}")


def check_heads(heads, kv_heads, ranks):
    """Raise ValueError unless the heads go with each other and with the ranks."""
    for name, value in (("heads", heads), ("kv_heads", kv_heads), ("ranks", ranks)):
        whole(name, value)
    multiple("heads", heads, kv_heads, "kv_heads")
    multiple("heads", heads, ranks)
    held_kv_heads(0, ranks, kv_heads)


def check_shards(shards):
    """Return the shards; raise ValueError unless they are a list with something in it."""
    if not isinstance(shards, list | tuple) or not shards:
        raise ValueError(f"shards = {described(shards)} is not allowed; it must be a list with one entry for each rank")
    return shards


def dimension(name, tensor, number):
    """The size of a dimension; raise ValueError unless it is that of a tensor."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() <= number:
        raise ValueError(f"{name} = {described(tensor)} is not allowed; it must be a tensor with {number + 1} or more "
                         "dimensions")
    return tensor.shape[number]
