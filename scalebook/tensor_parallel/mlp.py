"""The feed-forward network on several ranks: up by columns, the activation, down by rows.

GELU works on each column by itself, so it needs nothing from other ranks. SwiGLU (arXiv:2002.05202) multiplies a column
of the gate with the same column of the up projection: both must lie on one rank, so each is cut by itself. Source:
arXiv:1909.08053, section 3, figure 3a. Shapes, as suffixes: S positions, B samples, F inner width; f is a rank's part.
"""

import torch.nn.functional as F
from torch import nn

from scalebook.borders import guard

from .communication import check_region
from .kinds import KINDS, TOGETHER
from .linear import ColumnParallelLinear, RowParallelLinear
from .shapes import check_shape


class ParallelMLP(nn.Module):
    """This rank's columns of the inner layer, and the sum over the ranks of what they contribute.

    With SwiGLU `up` holds the rank's gate columns, then its up columns. Raises ValueError when the ranks cannot share
    `shape`.

    >>> import torch
    >>> from scalebook.tensor_parallel import Region, Shape
    >>> mlp = ParallelMLP(Shape(hidden=8, heads=2, inner=6, activation="swiglu"), Region())
    >>> mlp.up.weight.shape, mlp(torch.ones(3, 1, 8)).shape
    (torch.Size([12, 8]), torch.Size([3, 1, 8]))
    """

    def __init__(self, shape, region):
        """Make this rank's part; the parameters are drawn at random, to be loaded."""
        super().__init__()
        check_region(region)
        check_shape(shape, region.ranks)
        self.activation = shape.activation
        matrices = 2 if shape.activation == "swiglu" else 1
        self.up = ColumnParallelLinear(shape.hidden, matrices * shape.inner, region)
        self.down = RowParallelLinear(shape.inner, shape.hidden, region)

    def forward(self, x):
        """(S, B, D), or this rank's positions (s, B, D), to the same shape."""
        return self.down(activate(self.up(x), self.activation))


def activate(x_SBf, activation):
    """GELU of x, or SwiGLU: the SiLU of the first half of x's columns times the second half.

    >>> import torch
    >>> activate(torch.tensor([100.0, 3.0]), "swiglu")
    tensor([300.])
    """
    if activation == "gelu":
        return F.gelu(x_SBf)
    gate_SBf, up_SBf = x_SBf.chunk(2, dim=-1)
    return F.silu(gate_SBf) * up_SBf


guard(globals(), KINDS, "ParallelMLP", together=TOGETHER)
