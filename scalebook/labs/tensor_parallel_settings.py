"""What the labs of tensor parallelism run: a part of a transformer, sharded on the ranks and whole on one process."""

from dataclasses import dataclass

import torch
from torch import nn

from scalebook import checks, ranks
from scalebook import tensor_parallel as tp
from scalebook.borders import guard
from scalebook.checks import whole
from scalebook.labs.kinds import KINDS
from scalebook.tensor_parallel.reference import Attention

PARTS = ("attention", "mlp", "block", "model")


@dataclass(frozen=True)
class Setting:
    """What is run: a part of a transformer on `samples` samples of `positions` positions.

    `recomputed` runs each block again in the backward pass; `early_stop` lets PyTorch leave that second run as soon
    as it has what it needs. `input_gradient`: whether the input needs a gradient. `frozen_norms`: norms don't learn.
    """

    shape: tp.Shape
    part: str = "block"
    sequence_parallel: bool = False
    regather: bool = False
    recomputed: bool = False
    early_stop: bool = False
    input_gradient: bool = True
    frozen_norms: bool = False
    positions: int = 8
    samples: int = 2
    seed: int = 0

    def __post_init__(self):
        """Raise ValueError for what cannot be run on any number of ranks."""
        checks.one_of("part", self.part, PARTS)
        for name in ("recomputed", "early_stop", "input_gradient", "frozen_norms"):
            checks.flag(name, getattr(self, name))
        tp.Region(None, self.sequence_parallel, self.regather)  # raises for what no region can be
        if not isinstance(self.shape, tp.Shape):
            raise ValueError(f"shape = {self.shape!r} is not allowed; it must be a Shape")
        for name, least in (("positions", 1), ("samples", 1), ("seed", 0)):
            whole(name, getattr(self, name), least)
        if self.recomputed and self.part not in ("block", "model"):
            raise ValueError(f"recomputed = True is not allowed; part = {self.part!r} has no block")

    def check(self, size):
        """Raise ValueError unless `size` ranks can run it."""
        whole("size", size)
        self.shape.check(size)
        if self.sequence_parallel and self.positions % size:
            raise ValueError(f"positions = {self.positions} is not allowed; under sequence parallelism it must be a "
                             f"multiple of the {size} ranks")

    def whole(self):
        """The part of the transformer on one process, with the same parameters in every process and on every device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = tp.Transformer(self.shape).double()
            for name, parameter in model.named_parameters():
                if "norm" in name:  # they begin as ones and zeros, which would hide mistakes
                    nn.init.normal_(parameter, mean=1.0)
        block = model.to(ranks.device()).blocks[0]
        chosen = {"model": model, "block": block, "mlp": block.mlp, "attention": block.attention}[self.part]
        for name, parameter in chosen.named_parameters():
            parameter.requires_grad_(not (self.frozen_norms and "norm" in name))
        return chosen

    def data(self):
        """The input, and what the output is multiplied with for a loss; for a model, tokens and those to predict.

        They are drawn on the CPU, so that they are the same on every device.
        """
        drawn = torch.Generator().manual_seed(self.seed)
        if self.part == "model":
            pair = torch.randint(self.shape.vocabulary, (2, self.positions, self.samples), generator=drawn)
        else:
            size = 2, self.positions, self.samples, self.shape.hidden
            pair = torch.randn(*size, generator=drawn, dtype=torch.float64)
        return pair.to(ranks.device()).unbind()


@dataclass(frozen=True)
class Pass:
    """What one process, or all ranks together, computed: detached tensors, the gradients by the parameters' names."""

    output: torch.Tensor
    input_gradient: torch.Tensor | None
    gradients: dict

    def gaps(self, other):
        """The largest difference from another pass, of any element, by what it is the difference of."""
        pairs = {"output": (self.output, other.output)}
        if self.input_gradient is not None:
            pairs["input"] = self.input_gradient, other.input_gradient
        if self.gradients.keys() != other.gradients.keys():
            missing = sorted(self.gradients.keys() ^ other.gradients.keys())
            raise ValueError(f"gradients of {missing} are on one side only")
        pairs |= {name: (gradient, other.gradients[name]) for name, gradient in self.gradients.items()}
        return {name: (one - two).abs().max().item() for name, (one, two) in pairs.items()}


def build_part(setting, region):
    """A rank's part with its parameters, and what runs it."""
    shape, streams = setting.shape, tp.RandomStreams(setting.seed, region.rank)
    part = {
        "model": lambda: tp.ParallelTransformer(shape, region, streams, setting.recomputed),
        "block": lambda: tp.ParallelBlock(shape, region, streams),
        "attention": lambda: tp.ParallelAttention(shape, region, streams),
        "mlp": lambda: tp.ParallelMLP(shape, region),
    }[setting.part]()
    state = tp.shard_state(setting.whole().state_dict(), shape, region.rank, region.ranks)
    part.to(ranks.device(), torch.float64).load_state_dict(state)
    for name, parameter in part.named_parameters():
        parameter.requires_grad_(not (setting.frozen_norms and "norm" in name))
    if setting.part == "block" and setting.recomputed:
        return part, lambda x: tp.recompute(part, x, setting.early_stop)
    return part, part


class RankMasks(nn.Module):
    """Dropout on one process with the masks that the ranks draw: those of their parts, put together along `dim`."""

    def __init__(self, rate, streams, dim):
        """Take the streams, one for each part."""
        super().__init__()
        self.rate, self.streams, self.dim = rate, streams, dim

    def forward(self, x):
        """Drop elements of x."""
        parts = zip(x.chunk(len(self.streams), self.dim), self.streams, strict=True)
        return torch.cat([tp.dropout(part, self.rate, stream) for part, stream in parts], self.dim)


def single_process(setting, size):
    """The same in this process, unsharded, with the masks of dropout that `size` ranks draw: the oracle.

    Raises ValueError when `size` ranks cannot run the setting.

    >>> found = single_process(Setting(tp.Shape(hidden=8, heads=2)), size=2)
    >>> found.output.shape, found.gradients["mlp.up.weight"].shape
    (torch.Size([8, 2, 8]), torch.Size([32, 8]))
    """
    setting.check(size)
    part, (x, other) = setting.whole(), setting.data()
    rate, streams = setting.shape.dropout, [tp.RandomStreams(setting.seed, rank) for rank in range(size)]
    own, shared = [stream.own for stream in streams], [streams[0].shared]
    heads = RankMasks(rate, own, dim=1)
    outside = RankMasks(rate, own if setting.sequence_parallel else shared, dim=0)
    for module in list(part.modules()):
        if isinstance(module, Attention):
            module.dropout = heads
        elif isinstance(module, tp.Block):
            module.attention_dropout = module.mlp_dropout = outside
    if setting.part == "model":
        y = loss = part(x, other)
    else:
        x = x.clone().requires_grad_(setting.input_gradient)
        y = part(x)
        loss = (y * other).sum()
    loss.backward()
    gradients = {name: p.grad for name, p in part.named_parameters() if p.grad is not None}
    return Pass(y.detach(), x.grad, gradients)


guard(globals(), KINDS, "single_process")
