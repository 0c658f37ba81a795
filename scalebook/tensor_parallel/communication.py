"""Where a tensor-parallel layer communicates: f and g, and the pair that replaces them in sequence parallelism.

A *region* is the part of a layer between its two communications, in which each rank computes its own part of the
matrices. Where activations enter it, each rank gets all of them: f. Where they leave it, the ranks' results are added
up: g. Each is an operation of its own with a backward pass of its own: the gradient of a copy is a sum, and the
gradient of a sum is a copy. Sources: arXiv:1909.08053, section 3, figure 3 (f, g); arXiv:2205.05198, section 4.2.2
(the pair of sequence parallelism; what is f and g here is the paper's f and f-bar, and the pair its g and g-bar).

The sequence is the first dimension of activations, so that a rank's positions lie together. Shapes, as suffixes of
names: S positions, B samples, D hidden width. A small letter is one rank's part: s of the S positions.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from .shapes import multiple


def ranks_in(group=None):
    """The number of ranks that share a layer: 1 where no process group was initialised.

    `group` None means all ranks. Raises ValueError when this process is not in `group`.

    >>> ranks_in()
    1
    """
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"group = {group!r} is not allowed; it must be None or a process group of this process")
    return dist.get_world_size(group) if dist.is_initialized() else 1


def own_rank(group=None):
    """This process's place among the ranks of `group`, counted from 0. Raises as `ranks_in`.

    >>> own_rank()
    0
    """
    return dist.get_rank(group) if ranks_in(group) > 1 else 0


def all_reduce(x, group=None, op=dist.ReduceOp.SUM):
    """The sum over the ranks of their x (or the largest), on every rank; one rank sends nothing."""
    if ranks_in(group) == 1:
        return x
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op, group)
    return total


def all_gather(x_sBD, group=None):
    """The ranks' x one after the other, along the first dimension, on every rank."""
    ranks = ranks_in(group)
    if ranks == 1:
        return x_sBD
    x_SBD = x_sBD.new_empty(ranks * x_sBD.shape[0], *x_sBD.shape[1:])
    dist.all_gather(list(x_SBD.chunk(ranks)), x_sBD.contiguous(), group)
    return x_SBD


def reduce_scatter(x_SBD, group=None):
    """The sum over the ranks of their x, of which each rank gets its part along the first dimension."""
    ranks = ranks_in(group)
    if ranks == 1:
        return x_SBD
    x_sBD = x_SBD.new_empty(x_SBD.shape[0] // ranks, *x_SBD.shape[1:])
    dist.reduce_scatter(x_sBD, list(x_SBD.contiguous().chunk(ranks)), group=group)
    return x_sBD


class Copy(torch.autograd.Function):
    """f: forward, each rank keeps its copy of x; backward, the gradients of the copies are added up."""

    @staticmethod
    def forward(ctx, x, group):
        """Return x."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        """Return the sum of the ranks' gradients."""
        return all_reduce(gradient, ctx.group), None


class Reduce(torch.autograd.Function):
    """g: forward, the ranks' x are added up; backward, each summand gets the gradient of the sum."""

    @staticmethod
    def forward(ctx, x, group):
        """Return the sum of the ranks' x."""
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient, which every rank has."""
        return gradient, None


class Gather(torch.autograd.Function):
    """Forward, the ranks' positions are put together; backward, the gradients are added up and each gets its own."""

    @staticmethod
    def forward(ctx, x_sBD, group):
        """Return all positions."""
        ctx.group = group
        return all_gather(x_sBD, group)

    @staticmethod
    def backward(ctx, gradient_SBD):
        """Return the sum of the ranks' gradients at this rank's positions."""
        return reduce_scatter(gradient_SBD, ctx.group), None


class Scatter(torch.autograd.Function):
    """Forward, the ranks' x are added up and each gets its positions; backward, the gradients are put together."""

    @staticmethod
    def forward(ctx, x_SBD, group):
        """Return the sum of the ranks' x at this rank's positions."""
        ctx.group = group
        return reduce_scatter(x_SBD, group)

    @staticmethod
    def backward(ctx, gradient_sBD):
        """Return the gradient at all positions."""
        return all_gather(gradient_sBD, ctx.group), None


def copy_to_ranks(x, group=None):
    """f: x itself; in the backward pass one all-reduce adds up the gradients of all ranks.

    x is any floating-point tensor that is the same on all ranks. Raises ValueError for another x.

    >>> copy_to_ranks(torch.ones(2))
    tensor([1., 1.])
    """
    return Copy.apply(checked(x), group)


def reduce_from_ranks(x, group=None):
    """g: one all-reduce adds up the x of all ranks; in the backward pass nothing is sent.

    Right where all ranks go on to compute the same from the sum. Raises ValueError unless x is a floating-point tensor.

    >>> reduce_from_ranks(torch.ones(2))
    tensor([1., 1.])
    """
    return Reduce.apply(checked(x), group)


def gather_sequence(x_sBD, group=None):
    """All positions from each rank's own: an all-gather, and in the backward pass a reduce-scatter.

    Raises ValueError unless x is a floating-point tensor with a first dimension.

    >>> gather_sequence(torch.ones(2))
    tensor([1., 1.])
    """
    return Gather.apply(checked(x_sBD, dimensions=1), group)


def scatter_sequence(x_SBD, group=None):
    """The sum of the ranks' x at this rank's positions: a reduce-scatter, and in the backward pass an all-gather.

    Raises ValueError unless x is a floating-point tensor whose first dimension is a multiple of the ranks.

    >>> scatter_sequence(torch.ones(2))
    tensor([1., 1.])
    """
    multiple("the sequence length", checked(x_SBD, dimensions=1).shape[0], ranks_in(group))
    return Scatter.apply(x_SBD, group)


@dataclass(frozen=True)
class Region:
    """How activations enter and leave the tensor-parallel parts of a layer.

    `sequence_parallel`: outside the regions each rank holds its positions only. `regather`, a part of sequence
    parallelism: keep a rank's own positions for the backward pass, and gather the others again there.

    Raises ValueError for a group without this process, and for `regather` without `sequence_parallel`.

    >>> Region().ranks, Region().rank
    (1, 0)
    """

    group: dist.ProcessGroup | None = None
    sequence_parallel: bool = False
    regather: bool = False

    def __post_init__(self):
        """Check the fields."""
        ranks_in(self.group)
        for name in ("sequence_parallel", "regather"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} = {getattr(self, name)!r} is not allowed; it must be True or False")
        if self.regather and not self.sequence_parallel:
            raise ValueError("regather = True is not allowed; it needs sequence_parallel = True")

    @property
    def ranks(self):
        """The number of ranks."""
        return ranks_in(self.group)

    @property
    def rank(self):
        """This process's place among them."""
        return own_rank(self.group)

    def enter(self, x):
        """Give every rank all of x: f, or the all-gather of the positions."""
        return (gather_sequence if self.sequence_parallel else copy_to_ranks)(x, self.group)

    def leave(self, x):
        """Add up the ranks' x: g, or the reduce-scatter over the positions."""
        return (scatter_sequence if self.sequence_parallel else reduce_from_ranks)(x, self.group)


def check_region(region):
    """Raise ValueError unless it is a region."""
    if not isinstance(region, Region):
        raise ValueError(f"region = {region!r} is not allowed; it must be a Region")


def described(value):
    """A value in an error: a tensor by its type and shape, anything else as it is.

    >>> described(torch.ones(2)), described(7)
    ('torch.float32 of shape (2,)', '7')
    """
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def checked(x, dimensions=0):
    """Return x; raise ValueError unless it is a floating-point tensor with so many dimensions, or more."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dim() < dimensions:
        raise ValueError(f"x = {described(x)} is not allowed; it must be a floating-point tensor"
                         + (f" with {dimensions} or more dimensions" if dimensions else ""))
    return x
