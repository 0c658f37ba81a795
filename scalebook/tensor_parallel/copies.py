"""Parameters of which several ranks hold a copy, and what it takes for the copies to stay equal.

A copy learns from what its rank computes. Where every rank computes the same (norms without sequence parallelism), the
gradients are equal, and complete. In two places each rank's gradient is a part of the whole, and the parts must be
added up once in a training step: under sequence parallelism a rank's norm, and the bias after a reduce-scatter, see
that rank's positions only (Megatron-LM adds them up in megatron/core/distributed/finalize_model_grads.py); and with
fewer key and value heads than ranks, a copy of such a head sees that rank's query heads only.

A module that has such parameters says so with a method `partial_gradients`: a list of (gradient, place, places).
Ranks with the same place hold copies of the same thing, and there are `places` things.
"""

import torch
from torch import nn

from scalebook.borders import guard
from scalebook.checks import whole

from .communication import all_reduce, check_region, ranks_in
from .kinds import KINDS, TOGETHER


class ParallelLayerNorm(nn.LayerNorm):
    """LayerNorm between the regions: of all positions, or, under sequence parallelism, of this rank's.

    Raises ValueError unless `hidden` is a whole number and `region` a `Region`.

    >>> from scalebook.tensor_parallel import Region
    >>> ParallelLayerNorm(4, Region(sequence_parallel=True)).partial_gradients()  # before a backward pass
    []
    """

    def __init__(self, hidden, region):
        """Make the norm; `region` says whether the rank has all positions."""
        check_region(region)
        whole("hidden", hidden)
        super().__init__(hidden)
        self.region = region

    def partial_gradients(self):
        """Under sequence parallelism both gradients are sums over this rank's positions."""
        return [(p.grad, 0, 1) for p in self.parameters() if self.region.sequence_parallel and p.grad is not None]


def sum_copies(model, group=None):
    """Add up, in place, the gradients of which each rank has a part; return how many numbers were sent.

    One all-reduce for all of them, after the backward pass and before the update. Every rank puts its gradient at the
    place of its copy in a table of all places, so that ranks with copies of different things can take part in the same
    sum. Without such parameters nothing is sent.

    Raises ValueError unless `model` is a module.

    >>> sum_copies(nn.LayerNorm(4))
    0
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model = {model!r} is not allowed; it must be a torch.nn.Module")
    parts = [part for module in model.modules() if hasattr(module, "partial_gradients")
             for part in module.partial_gradients()]
    if ranks_in(group) == 1 or not parts:
        return 0
    tables = [gradient.new_zeros(places, *gradient.shape) for gradient, _, places in parts]
    for table, (gradient, place, _) in zip(tables, parts, strict=True):
        table[place] = gradient
    total = all_reduce(torch.cat([table.flatten() for table in tables]), group)
    sums = total.split([table.numel() for table in tables])
    for table, summed, (gradient, place, _) in zip(tables, sums, parts, strict=True):
        gradient.copy_(summed.view_as(table)[place])
    return total.numel()


guard(globals(), KINDS, "ParallelLayerNorm", together=TOGETHER)
