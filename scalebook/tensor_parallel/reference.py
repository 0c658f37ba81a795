"""The same transformer on one process, of plain PyTorch modules: what the ranks' results are compared with.

It shares no code with the parallel layers, and its parameters bear the same names. Shapes, as suffixes: S positions,
B samples, D hidden width, H query heads, G key and value heads, R query heads that share one, K width of a head,
V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import nn

from scalebook.borders import guard

from .kinds import KINDS, TOGETHER
from .shapes import check_shape


class Attention(nn.Module):
    """Causal grouped-query attention. `dropout` is on the attention weights, (B, H, S, S)."""

    def __init__(self, shape):
        """Make both projections."""
        super().__init__()
        self.shape = shape
        self.qkv = nn.Linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_width)
        self.out = nn.Linear(shape.hidden, shape.hidden)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_SBD):
        """(S, B, D) to (S, B, D)."""
        shape, positions = self.shape, x_SBD.shape[0]
        widths = [heads * shape.head_width for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        q, k, v = self.qkv(x_SBD).split(widths, dim=-1)
        q_SBGRK = q.unflatten(-1, (shape.kv_heads, -1, shape.head_width))
        k_SBGK, v_SBGK = (part.unflatten(-1, (shape.kv_heads, -1)) for part in (k, v))
        scores_BGRST = torch.einsum("sbgrk,tbgk->bgrst", q_SBGRK, k_SBGK) * shape.head_width**-0.5
        place_S = torch.arange(positions, device=x_SBD.device)
        seen_ST = place_S[:, None] >= place_S
        weights_BGRST = torch.softmax(torch.where(seen_ST, scores_BGRST, -torch.inf), dim=-1)
        weights_BGRST = self.dropout(weights_BGRST.flatten(1, 2)).view_as(weights_BGRST)
        return self.out(torch.einsum("bgrst,tbgk->sbgrk", weights_BGRST, v_SBGK).flatten(2))


class MLP(nn.Module):
    """Two linear layers with GELU between them, or SwiGLU's three, of which `up` holds gate and up."""

    def __init__(self, shape):
        """Make the layers."""
        super().__init__()
        self.gated = shape.activation == "swiglu"
        self.up = nn.Linear(shape.hidden, shape.inner * (2 if self.gated else 1))
        self.down = nn.Linear(shape.inner, shape.hidden)

    def forward(self, x_SBD):
        """(S, B, D) to (S, B, D)."""
        inner = self.up(x_SBD)
        if not self.gated:
            return self.down(F.gelu(inner))
        half = inner.shape[-1] // 2
        return self.down(F.silu(inner[..., :half]) * inner[..., half:])


class Block(nn.Module):
    """One pre-norm block: attention and MLP, each normed before and added to its input after.

    Raises ValueError unless `shape` is a `Shape`.

    >>> from scalebook.tensor_parallel import Shape
    >>> Block(Shape(hidden=8, heads=2))(torch.zeros(3, 1, 8)).shape
    torch.Size([3, 1, 8])
    """

    def __init__(self, shape):
        """Make the layers."""
        super().__init__()
        check_shape(shape, 1)
        self.shape = shape
        self.attention_norm, self.attention = nn.LayerNorm(shape.hidden), Attention(shape)
        self.mlp_norm, self.mlp = nn.LayerNorm(shape.hidden), MLP(shape)
        self.attention_dropout, self.mlp_dropout = nn.Dropout(shape.dropout), nn.Dropout(shape.dropout)

    def forward(self, x_SBD):
        """(S, B, D) to (S, B, D)."""
        x_SBD = x_SBD + self.attention_dropout(self.attention(self.attention_norm(x_SBD)))
        return x_SBD + self.mlp_dropout(self.mlp(self.mlp_norm(x_SBD)))


class Transformer(nn.Module):
    """Embedding, blocks, a last norm and the head, with the mean loss of the tokens.

    Raises ValueError unless `shape` is a `Shape`.

    >>> from scalebook.tensor_parallel import Shape
    >>> model = Transformer(Shape(hidden=8, heads=2, vocabulary=4))
    >>> model(torch.tensor([[0], [1]]), torch.tensor([[1], [2]])).shape
    torch.Size([])
    """

    def __init__(self, shape):
        """Make the layers."""
        super().__init__()
        check_shape(shape, 1)
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, tokens_SB, targets_SB):
        """Tokens and the tokens to predict, (S, B) each, to the mean loss."""
        x_SBD = self.embedding(tokens_SB)
        for block in self.blocks:
            x_SBD = block(x_SBD)
        logits_SBV = self.head(self.norm(x_SBD))
        return F.cross_entropy(logits_SBV.flatten(0, 1), targets_SB.flatten())


guard(globals(), KINDS, "Block", "Transformer", together=TOGETHER)
