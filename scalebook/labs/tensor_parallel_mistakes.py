"""Nine small changes to tensor-parallel layers, each a mistake that people make; what comes out is seen on real ranks.

Each function takes a rank and the number of ranks, runs there, and returns a tensor. What it will be is predicted in
`scalebook.labs.tensor_parallel_wrong`. Shapes, as suffixes: S positions, B samples, D hidden width, F inner width; a
small letter is one rank's part.
"""

import torch
import torch.nn.functional as F

from scalebook import ranks
from scalebook import tensor_parallel as tp
from scalebook.checks import whole
from scalebook.labs.tensor_parallel_settings import Setting, build_part
from scalebook.tensor_parallel.communication import all_gather, all_reduce

DROPPED = 0.5  # the rate of dropout


def setting_for(size, part="mlp", activation="gelu", sequence_parallel=False):
    """A part of a transformer that `size` ranks can share, in which all of them share one key head."""
    whole("size", size)
    heads = max(size, 2)
    shape = tp.Shape(4 * heads, heads, kv_heads=1, activation=activation)
    return Setting(shape, part, sequence_parallel, positions=2 * heads)


def inputs(setting, rank=0, size=1):
    """The input of a rank, ready for gradients, and what the output is multiplied with."""
    x, other = setting.data()
    if setting.sequence_parallel:
        x, other = (tp.shard_sequence(one, rank, size) for one in (x, other))
    return x.clone().requires_grad_(), other


def bias_on_every_rank(rank, size):
    """The bias of the second product inside the sum: each rank adds it, and the all-reduce adds them all up."""
    mlp, _ = build_part(setting_for(size), tp.Region())
    x_SBD, _ = inputs(setting_for(size))
    partial_SBD = F.linear(F.gelu(mlp.up(x_SBD)), mlp.down.weight, mlp.down.bias)
    return tp.reduce_from_ranks(partial_SBD).detach()


def without_f(rank, size):
    """The MLP without f: forward nothing is amiss, and the gradient of x is what flows through the rank's columns."""
    mlp, _ = build_part(setting_for(size), tp.Region())
    x_SBD, other_SBD = inputs(setting_for(size))
    y_SBD = mlp.down(F.gelu(F.linear(x_SBD, mlp.up.weight, mlp.up.bias)))
    (y_SBD * other_SBD).sum().backward()
    return x_SBD.grad


def row_first(rank, size):
    """Rows, then columns, with nothing sent before GELU: GELU of a summand is not a summand of GELU."""
    y_SBd = rows_then_columns(rank, size, before_activation=False)
    return y_SBd.detach()


def row_first_with_its_messages(rank, size):
    """Rows, then columns, with what it takes: an all-reduce as wide as the inner layer, an all-gather at the end."""
    return rows_then_columns(rank, size, before_activation=True).detach()


def rows_then_columns(rank, size, before_activation):
    """The MLP with its matrices cut the other way round; the all-reduce before GELU, or only at the end."""
    setting = setting_for(size)
    state, (x_SBD, _) = setting.whole().state_dict(), setting.data()
    x_SBd = x_SBD.chunk(size, dim=-1)[rank]
    summand_SBF = F.linear(x_SBd, tp.shard_rows(state["up.weight"], rank, size))
    if before_activation:
        inner_SBF = F.gelu(all_reduce(summand_SBF) + state["up.bias"])
    else:
        inner_SBF = all_reduce(F.gelu(summand_SBF + state["up.bias"] / size))
    y_SBd = F.linear(inner_SBF, *(tp.shard_columns(state[f"down.{kind}"], rank, size) for kind in ("weight", "bias")))
    y_dBS = all_gather(y_SBd.transpose(0, 2))  # along the first dimension
    return y_dBS.transpose(0, 2)


def gate_and_up_as_one(rank, size):
    """SwiGLU with gate and up cut as one matrix: the first ranks get gates only, the last ones only ups."""
    setting = setting_for(size, activation="swiglu")
    mlp, _ = build_part(setting, tp.Region())
    state = setting.whole().state_dict()
    for kind in ("weight", "bias"):
        mlp.up.get_parameter(kind).data.copy_(tp.shard_columns(state[f"up.{kind}"], rank, size))
    return mlp(inputs(setting)[0]).detach()


def one_stream_for_heads(rank, size):
    """The mask of dropout on a rank's attention weights, drawn from the stream that all ranks share."""
    return mask_of_heads(tp.RandomStreams(0, rank).shared, size)


def mask_of_heads(stream, size):
    """The mask that a rank draws for its attention weights, one head, as ones and zeros."""
    positions = setting_for(size).positions
    return (tp.dropout(torch.ones(1, 1, positions, positions, device=ranks.device()), DROPPED, stream) > 0).double()


def own_stream_outside(rank, size):
    """A block without sequence parallelism whose dropout outside the regions draws from the rank's own stream."""
    setting = setting_for(size, "block")
    streams = tp.RandomStreams(setting.seed, rank)
    block = tp.ParallelBlock.of(setting.whole(), tp.Region(), streams)
    block.rate, streams.shared = DROPPED, streams.own  # the heads keep the rate of the shape: none
    return block(inputs(setting)[0]).detach()


def norms_not_added_up(rank, size):
    """Sequence parallelism without `sum_copies`: a norm's gradient is that of the rank's own positions."""
    setting = setting_for(size, part="block", sequence_parallel=True)
    block, _ = build_part(setting, tp.Region(sequence_parallel=True))
    x_sBD, other_sBD = inputs(setting, rank, size)
    (block(x_sBD) * other_sBD).sum().backward()
    return block.mlp_norm.weight.grad


def key_heads_not_added_up(rank, size):
    """A key and value head that all ranks hold, without `sum_copies`: it learns from the rank's query heads only."""
    setting = setting_for(size, "attention")
    attention, _ = build_part(setting, tp.Region())
    x_SBD, other_SBD = inputs(setting)
    (attention(x_SBD) * other_SBD).sum().backward()
    return attention.qkv.weight.grad[-2 * setting.shape.head_width:]
