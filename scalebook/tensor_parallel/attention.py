"""Causal self-attention whose heads are spread over the ranks.

Heads do not meet before the output projection. So the projection to queries, keys and values is cut by columns, head by
head, and the output projection by rows. Source: arXiv:1909.08053, section 3, figure 3b. With grouped-query attention
(arXiv:2305.13245) and fewer key and value heads than ranks, ranks hold copies of a head.

Shapes, as suffixes: S positions, B samples, D hidden width, H query heads, G key and value heads, K width of a head;
a small letter is one rank's part: h of the H heads, d of the D = H K columns.
"""

import math

import torch
from torch import nn

from scalebook.borders import guard

from .communication import check_region
from .kinds import KINDS, TOGETHER
from .linear import ColumnParallelLinear, RowParallelLinear
from .random_streams import check_streams, dropout
from .shapes import check_shape
from .sharding import held_kv_heads


class ParallelAttention(nn.Module):
    """This rank's heads, and the sum over the ranks of what they contribute.

    `streams` draw the masks of dropout. Raises ValueError when the ranks cannot share the heads.

    >>> from scalebook.tensor_parallel import RandomStreams, Region, Shape
    >>> attention = ParallelAttention(Shape(hidden=8, heads=4, kv_heads=2), Region(), RandomStreams(0, rank=0))
    >>> attention.qkv.weight.shape, attention(torch.ones(3, 1, 8)).shape
    (torch.Size([16, 8]), torch.Size([3, 1, 8]))
    """

    def __init__(self, shape, region, streams):
        """Make this rank's part; the parameters are drawn at random, to be loaded."""
        super().__init__()
        check_region(region)
        check_shape(shape, region.ranks)
        self.shape, self.region, self.streams = shape, region, check_streams(streams)
        self.heads = shape.heads // region.ranks
        self.kv = held_kv_heads(region.rank, region.ranks, shape.kv_heads)
        columns = (self.heads + 2 * len(self.kv)) * shape.head_width * region.ranks
        self.qkv = ColumnParallelLinear(shape.hidden, columns, region)
        self.out = RowParallelLinear(shape.hidden, shape.hidden, region)

    def forward(self, x):
        """(S, B, D), or this rank's positions (s, B, D), to the same shape."""
        qkv_SBCK = self.qkv(x).unflatten(-1, (-1, self.shape.head_width))  # C = h + 2 g heads
        q_SBhK, k_SBgK, v_SBgK = qkv_SBCK.split([self.heads, len(self.kv), len(self.kv)], dim=2)
        # A rank's heads are its own, so it draws their masks from its own stream.
        context_SBd = causal_attention(q_SBhK, k_SBgK, v_SBgK, self.shape.dropout, self.streams.own)
        return self.out(context_SBd)

    def partial_gradients(self):
        """A key and value head that several ranks hold learns on each from that rank's query heads only."""
        heads, width, held = self.shape.kv_heads, self.shape.head_width, self.kv[0]
        if heads >= self.region.ranks:
            return []
        gradients = [p.grad[self.heads * width:] for p in self.qkv.parameters() if p.grad is not None]
        return [(gradient, held, heads) for gradient in gradients]


def causal_attention(q_SBHK, k_SBGK, v_SBGK, rate=0.0, stream=None):
    """Scaled dot-product attention in which position s sees positions up to s: (S, B, H K).

    H is a multiple of G; query head i attends with key head i G / H (rounded down). `rate` and `stream` are dropout's,
    on the attention weights. Raises ValueError for shapes that do not go together.

    >>> q = k = v = torch.ones(2, 1, 1, 3)
    >>> causal_attention(q, k, v).shape
    torch.Size([2, 1, 3])
    """
    shapes = q_SBHK.shape, k_SBGK.shape, v_SBGK.shape
    alike = all(len(one) == 4 and (*one[:2], one[3]) == (*shapes[1][:2], shapes[1][3]) for one in shapes)
    if not alike or shapes[1] != shapes[2] or shapes[0][2] % max(shapes[1][2], 1):
        raise ValueError(f"q, k, v = {[tuple(one) for one in shapes]} is not allowed; they must be (S, B, H, K), "
                         "(S, B, G, K) and (S, B, G, K), with H a multiple of G")
    q_BHSK, k_BGSK, v_BGSK = (part.permute(1, 2, 0, 3) for part in (q_SBHK, k_SBGK, v_SBGK))
    each = shapes[0][2] // shapes[1][2]  # query heads that share a key head
    k_BHSK, v_BHSK = k_BGSK.repeat_interleave(each, dim=1), v_BGSK.repeat_interleave(each, dim=1)
    scores_BHSS = q_BHSK @ k_BHSK.transpose(-1, -2) / math.sqrt(q_BHSK.shape[-1])
    future_SS = torch.ones_like(scores_BHSS[0, 0], dtype=torch.bool).triu(1)
    weights_BHSS = scores_BHSS.masked_fill(future_SS, -math.inf).softmax(dim=-1)
    context_BHSK = dropout(weights_BHSS, rate, stream) @ v_BHSK
    return context_BHSK.permute(2, 0, 1, 3).flatten(2)


guard(globals(), KINDS, "ParallelAttention", together=TOGETHER)
