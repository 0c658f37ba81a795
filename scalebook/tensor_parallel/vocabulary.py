"""The two ends of a language model, with the vocabulary spread over the ranks.

The embedding: each rank looks up the tokens whose rows it has, and zeros stand for the others; the sum over the ranks
is the embedding. The loss: each rank has the logits of its tokens, and they are never gathered. The cross entropy of
a position is the logarithm of a sum over the vocabulary less one logit, so two numbers a position are added up over
the ranks, after the largest logit has been found. Source: arXiv:1909.08053, section 3.

Shapes, as suffixes: S positions, B samples, D hidden width, V vocabulary; v is one rank's part.
"""

import torch
import torch.distributed as dist
from torch import nn

from scalebook.borders import guard

from .communication import all_reduce, checked, described, own_rank, ranks_in, reduce_from_ranks
from .kinds import KINDS, TOGETHER
from .linear import check_widths
from .shapes import multiple


class VocabularyParallelEmbedding(nn.Embedding):
    """The rows of this rank's tokens, (v, D), to be loaded (`shard_columns`), and the sum over the ranks.

    Raises ValueError when the vocabulary is not a multiple of the ranks: pad it, and the loss has the padding too.

    >>> from scalebook.tensor_parallel import Region
    >>> VocabularyParallelEmbedding(6, 4, Region())(torch.tensor([[5], [0]])).shape
    torch.Size([2, 1, 4])
    """

    def __init__(self, vocabulary, hidden, region):
        """Make this rank's rows."""
        check_widths(vocabulary, hidden, region)
        multiple("vocabulary", vocabulary, region.ranks)
        super().__init__(vocabulary // region.ranks, hidden)
        self.region = region

    def forward(self, tokens_SB):
        """Token numbers (S, B) to (S, B, D), or under sequence parallelism to this rank's positions, (s, B, D)."""
        row_SB, here_SB = place(tokens_SB, self.num_embeddings, self.region.group)
        x_SBD = super().forward(row_SB).masked_fill(~here_SB.unsqueeze(-1), 0)
        return self.region.leave(x_SBD)


def vocabulary_parallel_cross_entropy(logits_SBv, targets_SB, group=None):
    """The cross entropy (S, B) of each position, on every rank, from each rank's logits (S, B, v).

    Two all-reduces: the largest logit, then the sum of exponentials together with the target's logit. The second is g,
    so each rank's logits get their gradient, softmax less one-hot, without another message.

    Raises ValueError unless the logits are floating-point numbers and the targets token numbers of the same shape.

    >>> vocabulary_parallel_cross_entropy(torch.zeros(1, 1, 4), torch.tensor([[3]])).exp()
    tensor([[4.]])
    """
    if checked(logits_SBv, dimensions=1).shape[:-1] != torch.as_tensor(targets_SB).shape:
        raise ValueError(f"targets = {described(targets_SB)} is not allowed; its shape must be that of the logits "
                         f"without the last dimension, {tuple(logits_SBv.shape[:-1])}")
    row_SB, here_SB = place(targets_SB, logits_SBv.shape[-1], group)
    largest_SB = all_reduce(logits_SBv.detach().amax(dim=-1), group, dist.ReduceOp.MAX)
    shifted_SBv = logits_SBv - largest_SB.unsqueeze(-1)  # so that no exponential overflows
    target_SB = shifted_SBv.gather(-1, row_SB.unsqueeze(-1)).squeeze(-1).masked_fill(~here_SB, 0)
    total_SB, target_SB = reduce_from_ranks(torch.stack([shifted_SBv.exp().sum(dim=-1), target_SB]), group)
    return total_SB.log() - target_SB


def place(tokens_SB, rows, group=None):
    """Where tokens lie in this rank's rows, and whether they do: a row for each (0 if it is elsewhere) and a mask.

    Raises ValueError for a token that no rank has.

    >>> place(torch.tensor([2, 0]), rows=3)
    (tensor([2, 0]), tensor([True, True]))
    """
    vocabulary = rows * ranks_in(group)
    if not isinstance(tokens_SB, torch.Tensor) or tokens_SB.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens = {described(tokens_SB)} is not allowed; it must be a tensor of whole numbers")
    if tokens_SB.numel() and not 0 <= tokens_SB.min() <= tokens_SB.max() < vocabulary:
        raise ValueError(f"tokens from {tokens_SB.min()} to {tokens_SB.max()} are not allowed; they must be from 0 to "
                         f"below {vocabulary}, the vocabulary of all ranks")
    row_SB = tokens_SB - own_rank(group) * rows
    here_SB = (row_SB >= 0) & (row_SB < rows)
    return row_SB.masked_fill(~here_SB, 0), here_SB


guard(globals(), KINDS, "VocabularyParallelEmbedding", together=TOGETHER)
