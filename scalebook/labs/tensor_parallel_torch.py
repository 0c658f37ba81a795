"""The same block under PyTorch's own tensor parallelism, and what it sends by its own count and by ours.

`torch.distributed.tensor.parallel` does not cut a layer by hand: a plan names how each module's weight is laid out
(`ColwiseParallel`, `RowwiseParallel`, `SequenceParallel`), tensors carry their layout with them (`DTensor`), and
messages follow from it. `CommDebugMode` is PyTorch's counter. Shapes, as suffixes: S positions, B samples, D hidden
width, h heads of this rank, K width of a head.

Run it with `python -m scalebook.labs.tensor_parallel_torch --ranks 4`.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from scalebook import ranks
from scalebook import tensor_parallel as tp
from scalebook.checks import whole
from scalebook.labs import command
from scalebook.labs.gaps import largest
from scalebook.labs.tensor_parallel_settings import Setting, single_process

TOLERANCE = 1e-10
PLANS = ("each product by itself", "one entry for q, k, v", "sequence parallelism")


class Attention(nn.Module):
    """Attention with a product each for queries, keys and values: a plan cuts each of them by columns.

    Fused they would be cut as one matrix, across the border of queries and keys.
    """

    def __init__(self, attention):
        """Take the parameters of a `reference.Attention` with as many key heads as query heads."""
        super().__init__()
        self.head_width = attention.shape.head_width
        parts = zip("qkv", attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3), strict=True)
        for name, weight, bias in parts:
            linear = nn.Linear(weight.shape[1], weight.shape[0]).to(weight)
            linear.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
            setattr(self, name, linear)
        self.out = attention.out

    def forward(self, x_SBD):
        """Causal attention by PyTorch's function, on the heads that the products give on this rank."""
        q, k, v = (product(x_SBD).unflatten(-1, (-1, self.head_width)).permute(1, 2, 0, 3)
                   for product in (self.q, self.k, self.v))
        context_BhSK = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(context_BhSK.permute(2, 0, 1, 3).flatten(2))


def plan_of(name):
    """The plan of this name: how each module of a block is laid out, and how its input and output are."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    columns = ("attention.q", "attention.k", "attention.v", "mlp.up")
    outside = Shard(0) if name == "sequence parallelism" else Replicate()  # of the sequence, the first dimension
    plan = {product: ColwiseParallel() for product in columns}
    plan |= {product: RowwiseParallel(output_layouts=outside) for product in ("attention.out", "mlp.down")}
    if name != "each product by itself":
        # The input becomes one DTensor, so that the gradients of its three users are added up before they are sent.
        entry = {"input_layouts": (outside,), "desired_input_layouts": (Replicate(),)}
        plan |= {module: PrepareModuleInput(**entry) for module in ("attention", "mlp")}
    if name == "sequence parallelism":
        plan |= {norm: SequenceParallel(sequence_dim=0) for norm in ("attention_norm", "mlp_norm")}
    return plan


@dataclass(frozen=True)
class Theirs:
    """A block under a plan, on `size` ranks: differences from one process, and rank 0's messages by both counters.

    `forward` and `backward` are pairs: a dict of PyTorch's counter and our `Traffic`. `update` is our count of what
    adds up the gradients that the backward pass leaves in parts, one for each rank (`Partial`).
    """

    gaps: dict
    forward: tuple
    backward: tuple
    update: ranks.Traffic


def setting_for(size, sequence_parallel):
    """A block that `size` ranks can share."""
    whole("size", size)
    heads = 2 * max(size, 2)
    return Setting(tp.Shape(8 * heads, heads), sequence_parallel=sequence_parallel, positions=heads)


def run_plans(size=4, *, timeout=120, backend=None):
    """Run the block under each plan on `size` processes; return a dict of `Theirs`.

    `backend` is that of `ranks.run`. Under `torchrun` rank 0 gets the dict and the others None. Raises ValueError
    unless `size` is a number of ranks, and `ranks.RankError` when a rank fails.
    """
    whole("size", size)
    results = ranks.launch(measure_rank, size, timeout=timeout, backend=backend)
    if results is None:
        return None
    found = {}
    for name in PLANS:
        gaps = {part: max(one[name][0][part] for one in results) for part in results[0][name][0]}
        found[name] = Theirs(gaps, *results[0][name][1:])
    return found


def measure_rank(rank, world_size):
    """One rank: every plan."""
    mesh = dist.device_mesh.init_device_mesh(ranks.device().type, (world_size,))
    return {name: measure_plan(name, mesh, rank, world_size) for name in PLANS}


def measure_plan(name, mesh, rank, size):
    """One rank under one plan: its differences from one process, and its messages."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import parallelize_module

    setting = setting_for(size, name == "sequence parallelism")
    block = setting.whole()
    block.attention = Attention(block.attention)
    parallelize_module(block, mesh, plan_of(name))
    cut = (lambda x: tp.shard_sequence(x, rank, size)) if setting.sequence_parallel else (lambda x: x)
    x, other = (cut(one).clone() for one in setting.data())
    x.requires_grad_()
    y, forward = counted(lambda: block(x))
    _, backward = counted((y * other).sum().backward)
    with ranks.count() as update:
        added_up = {parameter: add_up(one.grad) for parameter, one in block.named_parameters()}
    gradients = {parameter: one.full_tensor() if isinstance(one, DTensor) else one for parameter, one in
                 added_up.items()}
    return gaps_from_one_process(setting, size, cut, y, x, gradients), forward, backward, update


def counted(call):
    """What a call returns, and its messages by both counters."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as theirs, ranks.count() as ours:
        result = call()
    counts = {str(operation).rpartition(".")[2]: calls for operation, calls in theirs.get_comm_counts().items()}
    return result, (counts, ours)


def add_up(gradient):
    """A gradient as it is, but for one of which each rank has a summand: that is added up over the ranks."""
    partial = any(placement.is_partial() for placement in getattr(gradient, "placements", ()))
    return gradient.full_tensor() if partial else gradient


def gaps_from_one_process(setting, size, cut, y, x, gradients):
    """The largest differences of the output, the input's gradient, and all parameters' gradients."""
    single = single_process(setting, size)
    fused = {kind: torch.cat([gradients.pop(f"attention.{part}.{kind}") for part in "qkv"])
             for kind in ("weight", "bias")}
    gradients |= {f"attention.qkv.{kind}": gradient for kind, gradient in fused.items()}
    pairs = {"output": (y, cut(single.output)), "input": (x.grad, cut(single.input_gradient))}
    pairs |= {name: (gradient, single.gradients[name]) for name, gradient in gradients.items()}
    return {name: (one.detach() - two).abs().max().item() for name, (one, two) in pairs.items()}


def table(found):
    """The lines of the table. Raises ValueError unless `found` is a dict of `Theirs`, with one or more."""
    if not isinstance(found, dict) or not found:
        raise ValueError(f"found = {found!r} is not allowed; it must be a dict of Theirs, with one or more")
    lines = []
    for name, one in found.items():
        gap = largest(one.gaps.values())
        lines.append(f"{name}: " + ("equal to one process" if gap <= TOLERANCE else f"off by {gap:.2g}"))
        for phase, (theirs, ours) in (("forward", one.forward), ("backward", one.backward)):
            lines.append(f"  {phase}: CommDebugMode {spelled(theirs)}; scalebook.ranks.count {spelled(ours.calls)}")
        lines.append(f"  to add up gradients: {spelled(one.update.calls)}")
    return lines


def spelled(counts):
    """Counts in words.

    >>> spelled({"all_reduce": 2, "all_gather": 0})
    '2 all_reduce'
    """
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count) or "nothing"


def main():
    """Print what PyTorch's tensor parallelism computes and sends."""
    parser = command.parser_of_ranks(__doc__)
    given = parser.parse_args()
    with command.errors_in_words(parser):
        found = run_plans(given.ranks, backend=given.backend)
    if found is not None:
        print("\n".join(table(found)))


if __name__ == "__main__":
    from scalebook.labs.tensor_parallel_torch import main

    main()
