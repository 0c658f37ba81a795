"""A small causal transformer that can be cut into pieces, one for each place in a pipeline.

Suffixes of tensors: B samples, S positions, D width, H heads, K width of a head, V vocabulary. Blocks are pre-norm, as
in GPT-2. A piece keeps the parameter names of the whole model, so gradients can be compared by name.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from scalebook import ranks
from scalebook.checks import whole


@dataclass(frozen=True)
class Shape:
    """The sizes of a tiny transformer: counts of tokens, features, heads, blocks and positions."""

    vocabulary: int = 64
    width: int = 32
    heads: int = 4
    layers: int = 8
    context: int = 16

    def __post_init__(self):
        """Raise ValueError for a size that is not allowed."""
        for name, value in vars(self).items():
            whole(name, value)
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} is not allowed; it must be a multiple of heads = {self.heads}")


class SplitLinear(torch.autograd.Function):
    """x W^T + b whose backward computes the gradient of x alone, and puts the rest of the work off.

    The zero-bubble schedules need this (Qi et al., arXiv:2401.10241, section 2): the previous stage waits for the
    gradient of x and for nothing else.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, defer):
        """Compute the output; keep what both halves of the backward need."""
        ctx.save_for_backward(x)
        ctx.parameters, ctx.defer = (weight, bias), defer  # themselves: what autograd saves may be a copy
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient of x; hand what the gradients of W and b need to `defer`."""
        (x,), (weight, bias) = ctx.saved_tensors, ctx.parameters
        ctx.defer(x, gradient, weight, bias)
        return gradient @ weight, None, None, None


def add_weight_gradient(x, gradient, weight, bias):
    """The half that `SplitLinear` puts off: add to the gradients of W and b."""
    x, gradient = x.flatten(0, -2), gradient.flatten(0, -2)
    for parameter, value in ((weight, gradient.T @ x), (bias, gradient.sum(0))):
        parameter.grad = value if parameter.grad is None else parameter.grad + value


class Linear(nn.Linear):
    """A linear layer; where `defer` is set, its backward is split."""

    defer = None

    def forward(self, x):
        """Apply the layer to the last dimension of x."""
        if self.defer is None:
            return F.linear(x, self.weight, self.bias)
        return SplitLinear.apply(x, self.weight, self.bias, self.defer)


class Embedding(nn.Module):
    """Token and position embedding."""

    def __init__(self, shape):
        """Make both tables."""
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Parameter(0.02 * torch.randn(shape.context, shape.width))

    def forward(self, tokens_BS):
        """(B, S) token numbers to (B, S, D) activations."""
        return self.token(tokens_BS) + self.position[: tokens_BS.shape[1]]


class Block(nn.Module):
    """Causal attention and a feed-forward network, each added to its input."""

    def __init__(self, shape):
        """Make the layers of one block."""
        super().__init__()
        self.heads = shape.heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv, self.out = Linear(shape.width, 3 * shape.width), Linear(shape.width, shape.width)
        self.up, self.down = Linear(shape.width, 4 * shape.width), Linear(4 * shape.width, shape.width)

    def forward(self, x_BSD):
        """(B, S, D) to (B, S, D)."""
        x_BSD = x_BSD + self.out(self.attend(self.qkv(self.attention_norm(x_BSD))))
        return x_BSD + self.down(F.gelu(self.up(self.feed_norm(x_BSD))))

    def attend(self, qkv_BS3D):
        """Scaled dot-product attention; position s sees positions up to s."""
        samples, positions, _ = qkv_BS3D.shape
        q_BHSK, k_BHSK, v_BHSK = (
            part.view(samples, positions, self.heads, -1).transpose(1, 2) for part in qkv_BS3D.chunk(3, dim=-1)
        )
        scores_BHSS = q_BHSK @ k_BHSK.transpose(-1, -2) / math.sqrt(q_BHSK.shape[-1])
        future = torch.ones(positions, positions, dtype=torch.bool, device=scores_BHSS.device).triu(1)
        weights_BHSS = scores_BHSS.masked_fill(future, -math.inf).softmax(-1)
        return (weights_BHSS @ v_BHSK).transpose(1, 2).flatten(2)


class Head(nn.Module):
    """The last norm and the projection to the vocabulary."""

    def __init__(self, shape):
        """Make both layers."""
        super().__init__()
        self.norm, self.project = nn.LayerNorm(shape.width), Linear(shape.width, shape.vocabulary)

    def forward(self, x_BSD):
        """(B, S, D) to (B, S, V) logits."""
        return self.project(self.norm(x_BSD))


class Transformer(nn.Module):
    """The model, or a piece of it: an embedding or None, some of the blocks, a head or None."""

    def __init__(self, embedding, blocks, head):
        """Take the parts; `blocks` maps each block's number in the whole model to the block."""
        super().__init__()
        self.embedding, self.blocks, self.head = embedding, nn.ModuleDict(blocks), head

    def forward(self, x):
        """Tokens (first piece) or activations to activations or logits (last piece)."""
        x = x if self.embedding is None else self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)


def build(shape, seed=0, dtype=torch.float64):
    """The whole model, on this rank's device and the same for the same seed on every rank: it is drawn on the CPU.

    Leaves the global random state as it was.

    >>> sum(p.numel() for p in build(Shape(layers=2)).parameters())
    30144
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding = Embedding(shape)
        blocks = {str(layer): Block(shape) for layer in range(shape.layers)}
        return Transformer(embedding, blocks, Head(shape)).to(ranks.device(), dtype)


def cut(model, pieces):
    """Cut a model into `pieces` with equally many blocks; the pieces share its parameters.

    Raises ValueError when the blocks don't divide evenly.

    >>> [list(piece.blocks) for piece in cut(build(Shape(layers=4)), 2)]
    [['0', '1'], ['2', '3']]
    """
    layers = len(model.blocks)
    if layers % pieces:
        raise ValueError(f"pieces = {pieces} is not allowed; it must divide the {layers} blocks of the model")
    each = layers // pieces
    return [
        Transformer(
            model.embedding if piece == 0 else None,
            {str(layer): model.blocks[str(layer)] for layer in range(piece * each, (piece + 1) * each)},
            model.head if piece == pieces - 1 else None,
        )
        for piece in range(pieces)
    ]


def make_batch(shape, samples, seed=0):
    """Random tokens and, as targets, the tokens that follow them: two (samples, context) tensors, as `build`."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(shape.vocabulary, (samples, shape.context + 1), generator=generator).to(ranks.device())
    return text[:, :-1].clone(), text[:, 1:].clone()


def encode(text):
    """The characters of an ASCII text as whole numbers below 128.

    >>> encode("Ay")
    tensor([ 65, 121])
    """
    return torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8).long()


def token_loss(logits_BSV, targets_BS):
    """The mean cross entropy per token."""
    return F.cross_entropy(logits_BSV.flatten(0, -2), targets_BS.flatten())
