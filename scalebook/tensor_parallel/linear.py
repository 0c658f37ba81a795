"""The two ways to cut a matrix product between ranks.

By columns, A = [A_1, A_2]: X A = [X A_1, X A_2]. Every rank needs all of X and has some columns of the result.
By rows, A = [A_1; A_2] stacked: X A = X_1 A_1 + X_2 A_2. Every rank needs some columns of X and has a summand of all.
A product by columns leaves what a product by rows needs, so between the two nothing is sent, provided that what
stands between them works on each column by itself. Source: arXiv:1909.08053, section 3.

Shapes, as suffixes: S positions, B samples, D width in, F width out; a small letter is one rank's part. Weights are
stored (out, in), as PyTorch does.
"""

import torch
import torch.nn.functional as F
from torch import nn

from scalebook.borders import guard
from scalebook.checks import whole

from .communication import all_gather, check_region, reduce_scatter
from .kinds import KINDS, TOGETHER
from .shapes import multiple


class ColumnParallelLinear(nn.Linear):
    """y_SBf = enter(x) A_f + b_f: this rank's columns of a product. Nothing is sent forward, but for the gathering.

    `weight` (f, D) and `bias` (f,) are this rank's part, drawn at random: load a shard (`shard_columns`). Raises
    ValueError when the width out is not a multiple of the ranks.

    >>> from scalebook.tensor_parallel import Region
    >>> ColumnParallelLinear(8, 32, Region()).weight.shape
    torch.Size([32, 8])
    """

    def __init__(self, width_in, width_out, region, bias=True):
        """Make this rank's part of a layer from `width_in` to `width_out`."""
        check_widths(width_in, width_out, region)
        multiple("width_out", width_out, region.ranks)
        super().__init__(width_in, width_out // region.ranks, bias)
        self.region = region

    def forward(self, x):
        """All of x (S, B, D), or under sequence parallelism the rank's positions (s, B, D), to (S, B, f)."""
        if self.region.regather:
            return GatherLinear.apply(x, self.weight, self.bias, self.region.group)
        return F.linear(self.region.enter(x), self.weight, self.bias)


class RowParallelLinear(nn.Linear):
    """y = leave(x_f A_f) + b: the ranks' products added up, and the bias added once, to the sum.

    `weight` (D, f) is this rank's part, to be loaded (`shard_rows`); `bias` (D,) is a copy. Raises ValueError when the
    width in is not a multiple of the ranks.

    >>> from scalebook.tensor_parallel import Region
    >>> RowParallelLinear(32, 8, Region()).weight.shape
    torch.Size([8, 32])
    """

    def __init__(self, width_in, width_out, region, bias=True):
        """Make this rank's part of a layer from `width_in` to `width_out`."""
        check_widths(width_in, width_out, region)
        multiple("width_in", width_in, region.ranks)
        super().__init__(width_in // region.ranks, width_out, bias)
        self.region = region

    def forward(self, x_SBf):
        """This rank's columns (S, B, f) to (S, B, D), or under sequence parallelism to its positions (s, B, D)."""
        y = self.region.leave(F.linear(x_SBf, self.weight))
        return y if self.bias is None else y + self.bias

    def partial_gradients(self):
        """Under sequence parallelism the bias is added to this rank's positions only."""
        if self.bias is None or self.bias.grad is None or not self.region.sequence_parallel:
            return []
        return [(self.bias.grad, 0, 1)]


class GatherLinear(torch.autograd.Function):
    """The all-gather and the product by columns in one, which keeps only this rank's positions for the backward pass.

    The gradient of the weight needs all positions, so they are gathered once more: communication for memory.
    Source: arXiv:2205.05198, section 4.2.2.
    """

    @staticmethod
    def forward(ctx, x_sBD, weight_fD, bias_f, group):
        """Return this rank's columns, at all positions."""
        ctx.save_for_backward(x_sBD, weight_fD)
        ctx.group = group
        return F.linear(all_gather(x_sBD, group), weight_fD, bias_f)

    @staticmethod
    def backward(ctx, gradient_SBf):
        """Return the gradients of x at this rank's positions, of the weight and of the bias."""
        x_sBD, weight_fD = ctx.saved_tensors
        x_SBD = all_gather(x_sBD, ctx.group)
        needs_bias = ctx.needs_input_grad[2]
        return (reduce_scatter(gradient_SBf @ weight_fD, ctx.group),
                torch.einsum("sbf,sbd->fd", gradient_SBf, x_SBD),
                gradient_SBf.sum(dim=(0, 1)) if needs_bias else None, None)


def check_widths(width_in, width_out, region):
    """Raise ValueError unless the sizes are whole numbers and the region is one."""
    whole("width_in", width_in)
    whole("width_out", width_out)
    check_region(region)


guard(globals(), KINDS, "ColumnParallelLinear", "RowParallelLinear", together=TOGETHER)
