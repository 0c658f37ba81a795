"""A transformer on several ranks: a block of attention and MLP, and the model from tokens to loss.

A block enters and leaves two regions. Outside them, in the norms, dropout and the residual sum, every rank does the
same work on the same activations; under sequence parallelism each does its positions. Sources: arXiv:1909.08053,
section 3, figure 4; arXiv:2205.05198, section 4.2.2, figure 5.

Shapes, as suffixes: S positions, B samples, D hidden width, v this rank's part of the vocabulary.
"""

import contextlib

from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from scalebook.borders import guard

from .attention import ParallelAttention
from .communication import check_region
from .copies import ParallelLayerNorm
from .kinds import KINDS, TOGETHER
from .linear import ColumnParallelLinear
from .mlp import ParallelMLP
from .random_streams import RandomStreams, check_streams, dropout
from .reference import Block, Transformer
from .shapes import check_shape
from .sharding import shard_state
from .vocabulary import VocabularyParallelEmbedding, vocabulary_parallel_cross_entropy


class ParallelBlock(nn.Module):
    """One pre-norm block: attention and MLP, each normed before and added to its input after.

    Its parameters bear the names of `reference.Block`: load them with `of` from one. Raises ValueError when the ranks
    cannot share `shape`.

    >>> import torch
    >>> from scalebook.tensor_parallel import Block, Region, Shape
    >>> whole, x_SBD = Block(Shape(hidden=8, heads=2)), torch.ones(3, 1, 8)
    >>> torch.allclose(ParallelBlock.of(whole, Region())(x_SBD), whole(x_SBD), atol=1e-6)
    True
    """

    def __init__(self, shape, region, streams=None):
        """Make this rank's part; the parameters are drawn at random, to be loaded."""
        super().__init__()
        check_region(region)
        check_shape(shape, region.ranks)
        self.streams = RandomStreams(0, region.rank) if streams is None else check_streams(streams)
        self.region, self.rate = region, shape.dropout
        self.attention_norm = ParallelLayerNorm(shape.hidden, region)
        self.attention = ParallelAttention(shape, region, self.streams)
        self.mlp_norm = ParallelLayerNorm(shape.hidden, region)
        self.mlp = ParallelMLP(shape, region)

    def forward(self, x):
        """(S, B, D), or under sequence parallelism this rank's positions (s, B, D), to the same shape."""
        x = x + self.drop(self.attention(self.attention_norm(x)))
        return x + self.drop(self.mlp(self.mlp_norm(x)))

    def drop(self, x):
        """Dropout outside the regions: ranks with the same activations draw the same mask."""
        return dropout(x, self.rate, self.streams.own if self.region.sequence_parallel else self.streams.shared)

    @classmethod
    def of(cls, whole, region, streams=None):
        """This rank's part of a `reference.Block`, with its parameters."""
        check_whole(whole, Block)
        return load(cls(whole.shape, region, streams), whole)


class ParallelTransformer(nn.Module):
    """The model on several ranks: embedding, blocks, a last norm, and the head, with the loss of each token.

    It has no table of positions: the causal mask alone tells it the order. `recomputed`: keep the input of each block
    only, and compute the rest again in the backward pass. Raises ValueError when the ranks cannot share `shape`.

    >>> import torch
    >>> from scalebook.tensor_parallel import Region, Shape, Transformer
    >>> whole = Transformer(Shape(hidden=8, heads=2, vocabulary=4))
    >>> tokens, targets = torch.tensor([[0], [1]]), torch.tensor([[1], [2]])
    >>> loss = ParallelTransformer.of(whole, Region())(tokens, targets)
    >>> torch.allclose(loss, whole(tokens, targets))
    True
    """

    def __init__(self, shape, region, streams=None, recomputed=False):
        """Make this rank's part; the parameters are drawn at random, to be loaded."""
        super().__init__()
        check_region(region)
        check_shape(shape, region.ranks)
        streams = RandomStreams(0, region.rank) if streams is None else check_streams(streams)
        if not isinstance(recomputed, bool):
            raise ValueError(f"recomputed = {recomputed!r} is not allowed; it must be True or False")
        self.region, self.recomputed = region, recomputed
        self.embedding = VocabularyParallelEmbedding(shape.vocabulary, shape.hidden, region)
        self.blocks = nn.ModuleList(ParallelBlock(shape, region, streams) for _ in range(shape.layers))
        self.norm = ParallelLayerNorm(shape.hidden, region)
        self.head = ColumnParallelLinear(shape.hidden, shape.vocabulary, region, bias=False)

    def forward(self, tokens_SB, targets_SB):
        """Tokens and the tokens to predict, (S, B) each on every rank, to the mean loss."""
        x = self.embedding(tokens_SB)
        for block in self.blocks:
            x = recompute(block, x) if self.recomputed else block(x)
        logits_SBv = self.head(self.norm(x))
        return vocabulary_parallel_cross_entropy(logits_SBv, targets_SB, self.region.group).mean()

    @classmethod
    def of(cls, whole, region, streams=None, recomputed=False):
        """This rank's part of a `reference.Transformer`, with its parameters."""
        check_whole(whole, Transformer)
        return load(cls(whole.shape, region, streams, recomputed), whole)


def check_whole(whole, kind):
    """Raise ValueError unless it is a module of this kind."""
    if not isinstance(whole, kind):
        raise ValueError(f"whole = {whole!r} is not allowed; it must be a reference.{kind.__name__}")


def load(part, whole):
    """Give a rank's part the parameters of the whole, in their type and where they lie; return the part."""
    state = shard_state(whole.state_dict(), whole.shape, part.region.rank, part.region.ranks)
    part.to(next(whole.parameters())).load_state_dict(state)
    return part


def recompute(block, x, early_stop=False):
    """Run the block, keep only x, and run the block again in the backward pass, with the same masks of dropout.

    The second run repeats the block's messages. With `early_stop` PyTorch leaves it as soon as it has all that was
    saved: without dropout that is before the last message. Raises ValueError unless `block` is a `ParallelBlock`.
    Source: arXiv:1604.06174.

    >>> import torch
    >>> from scalebook.tensor_parallel import Region, Shape
    >>> block, x_SBD = ParallelBlock(Shape(hidden=8, heads=2), Region()), torch.ones(3, 1, 8)
    >>> torch.equal(recompute(block, x_SBD), block(x_SBD))
    True
    """
    if not isinstance(block, ParallelBlock):
        raise ValueError(f"block = {block!r} is not allowed; it must be a ParallelBlock")
    states = block.streams.states()
    with set_checkpoint_early_stop(early_stop):
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False,
                          context_fn=lambda: (contextlib.nullcontext(), block.streams.replayed_from(states)))


guard(globals(), KINDS, "ParallelBlock", "ParallelTransformer", together=TOGETHER)
