"""Data parallelism and the three stages of ZeRO by hand, on `torch.distributed`.

The N ranks hold the same model and see different data. Each class below is one optimizer: you run the forward and the
backward of your model, on every rank as many micro-batches as you like, and then call `step`. They differ in what a
rank keeps. `DataParallel` (stage 0) keeps everything; `Zero1` a shard of the optimizer's states, `Zero2` also of the
gradients, `Zero3` also of the parameters. All take the same steps, up to rounding.

Every collective here waits until it is done. Real systems start it and go on computing; what is sent is the same.

Suffixes of tensors: P elements of a bucket with its padding, S of a shard (P = N S).
Source: Rajbhandari et al., arXiv:1910.02054, sections 5 and 7.
"""

import torch
import torch.distributed as dist

from scalebook.borders import guard
from scalebook.zero.adam import MASTER, MixedAdam
from scalebook.zero.kinds import KINDS, TOGETHER


class DataParallel:
    """Stage 0: every rank keeps all weights, gradients and optimizer states. Buckets are for one rank: no padding.

    `buckets` hold the model's parameters, whose memory moves into one flat buffer for each bucket, in `dtype`, with a
    second one for the gradients. `max_norm` clips the gradient of the whole model; what is left goes to `MixedAdam`.
    `group` holds the data-parallel ranks (None: all); where it is a part of the ranks, its model is a part of the
    model, and so is what `max_norm` clips.
    """

    def __init__(self, buckets, dtype=torch.bfloat16, max_norm=None, group=None, **adam):
        """Move the parameters of the buckets; make the optimizer's states from their values before rounding."""
        self.group, self.rank, self.ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self.buckets, self.max_norm, masters = buckets, max_norm, []
        for bucket in buckets:
            whole_P = bucket.flatten([p.detach() for p in bucket.parameters])
            masters.append(self.own(whole_P).to(MASTER[dtype], copy=True))
            self.prepare(bucket, whole_P.to(dtype, copy=True))
        self.adam = MixedAdam(masters, **adam)

    def own(self, whole_P):
        """The part whose optimizer states this rank keeps: here everything."""
        return whole_P

    def prepare(self, bucket, weight_P):
        """Give the bucket its buffers, and make the parameters and their gradients views of them."""
        bucket.weight_P, bucket.gradient_P = weight_P, torch.zeros_like(weight_P)
        views = zip(bucket.parameters, bucket.views(weight_P), bucket.views(bucket.gradient_P), strict=True)
        for parameter, weight, gradient in views:
            parameter.data, parameter.grad = weight, gradient

    def step(self, microbatches=1):
        """Average the gradients over the ranks and their micro-batches, and update: one all-reduce a bucket."""
        for bucket in self.buckets:
            dist.all_reduce(bucket.gradient_P, group=self.group)
        gradients = [bucket.gradient_P for bucket in self.buckets]
        self.adam.step(gradients, self.scale(gradients, microbatches))
        self.publish()
        for gradient_P in gradients:
            gradient_P.zero_()

    def publish(self):
        """Round the master weights to the working weights: every rank has them all."""
        for bucket, master_P in zip(self.buckets, self.adam.masters, strict=True):
            bucket.weight_P.copy_(master_P)

    def scale(self, gradients, microbatches):
        """What turns summed gradients into their mean, and clips that to `max_norm` where one is given."""
        mean = 1 / (self.ranks * microbatches)
        if self.max_norm is None:
            return mean
        norm = mean * self.total(sum(g.to(MASTER[g.dtype]).square().sum() for g in gradients)).sqrt().item()
        return mean * min(1.0, self.max_norm / (norm + 1e-6))  # 1e-6 as in torch.nn.utils.clip_grad_norm_

    def total(self, squares):
        """The sum of squares of all gradients, from those of this rank: here they are the same."""
        return squares


class Zero1(DataParallel):
    """Stage 1, P_os: each rank keeps the optimizer's states of its shard, and all weights and gradients."""

    def own(self, whole_P):
        """This rank's shard of a buffer, as a view."""
        if len(whole_P) % self.ranks:
            raise ValueError(f"a bucket of {len(whole_P)} elements is not allowed; {self.ranks} ranks must divide it")
        return whole_P.view(self.ranks, -1)[self.rank]

    def step(self, microbatches=1):
        """A reduce-scatter of the gradients, the update of the shard, an all-gather of the weights: once a step."""
        gradients = [reduce_scatter(bucket.gradient_P, self.group) for bucket in self.buckets]
        self.adam.step(gradients, self.scale(gradients, microbatches))
        self.publish()
        for bucket in self.buckets:
            bucket.gradient_P.zero_()

    def publish(self):
        """Every rank rounds its shard of the master weights; an all-gather a bucket."""
        for bucket, master_S in zip(self.buckets, self.adam.masters, strict=True):
            dist.all_gather_into_tensor(bucket.weight_P, master_S.to(bucket.weight_P.dtype), self.group)

    def total(self, squares):
        """Each rank knows the squares of its shard, and padding is zero: an all-reduce of one number."""
        dist.all_reduce(squares, group=self.group)
        return squares


class Zero2(Zero1):
    """Stage 2, P_os+g: of the gradients, too, each rank keeps its shard; the rest goes as the backward makes it."""

    def prepare(self, bucket, weight_P):
        """Make the parameters views of one buffer; of the gradient keep a shard."""
        bucket.weight_P, bucket.gradient_S = weight_P, torch.zeros_like(self.own(weight_P))
        for parameter, weight in zip(bucket.parameters, bucket.views(weight_P), strict=True):
            parameter.data = weight
        bucket.when_ready(self.reduce)

    def reduce(self, bucket):
        """In every backward, also of a micro-batch: add up the bucket's gradients over the ranks, keep the shard."""
        gradient_P = bucket.flatten([p.grad for p in bucket.parameters])
        for parameter in bucket.parameters:
            parameter.grad = None  # frees the full gradients; the buffer goes when this function returns
        bucket.gradient_S += reduce_scatter(gradient_P, self.group)

    def step(self, microbatches=1):
        """The update of the shard, then `publish`: the gradients are there already."""
        for bucket in self.buckets:
            bucket.check_complete()
        gradients = [bucket.gradient_S for bucket in self.buckets]
        self.adam.step(gradients, self.scale(gradients, microbatches))
        self.publish()
        for gradient_S in gradients:
            gradient_S.zero_()


class Zero3(Zero2):
    """Stage 3, P_os+g+p: of the weights, too, each rank keeps its shard. A layer's are whole while it computes.

    `units` come from `units_of`. A unit that several layers need (tied weights) stays whole from its first use to its
    last; so does every unit where `release_after_forward` is False, which saves the second gather.
    """

    def __init__(self, units, dtype=torch.bfloat16, release_after_forward=True, **options):
        """Shard the parameters of the units; hook the gathers and releases to their layers."""
        self.release_after_forward = release_after_forward
        super().__init__(units, dtype, **options)

    def prepare(self, unit, weight_P):
        """Keep the shard of the weights, and a whole buffer without memory; gather around each layer."""
        unit.weight_S = self.own(weight_P).clone()
        super().prepare(unit, weight_P)
        self.release(unit)
        for layer in unit.layers:
            layer.register_forward_pre_hook(lambda *_: self.gather(unit))
            layer.register_full_backward_pre_hook(lambda *_: self.gather(unit))
            if self.release_after_forward and len(unit.layers) == 1:
                layer.register_forward_hook(lambda *_: self.release(unit))

    def gather(self, unit):
        """Give the whole buffer its memory and every rank's shard, unless it has them."""
        storage = unit.weight_P.untyped_storage()
        if not storage.size():
            storage.resize_(unit.padded * unit.weight_P.element_size())
            dist.all_gather_into_tensor(unit.weight_P, unit.weight_S, self.group)

    def release(self, unit):
        """Take the memory back. The tensors stay: what autograd has saved sees the weights of the next gather."""
        unit.weight_P.untyped_storage().resize_(0)

    def reduce(self, unit):
        """When the last gradient of a unit is there, nothing in this backward needs its weights any more."""
        self.release(unit)
        super().reduce(unit)

    def publish(self):
        """Round this rank's shard of the master weights. Nothing is sent: the next gather brings the new weights."""
        for unit, master_S in zip(self.buckets, self.adam.masters, strict=True):
            self.release(unit)  # a forward without a backward can have left it whole, with the old weights
            unit.weight_S.copy_(master_S)


def reduce_scatter(gradient_P, group=None):
    """The sum over the ranks of `group` (None: all) of their (P,) buffers: this rank's (S,) shard of it."""
    shard_S = gradient_P.new_empty(len(gradient_P) // dist.get_world_size(group))
    dist.reduce_scatter_tensor(shard_S, gradient_P, group=group)
    return shard_S


guard(globals(), KINDS, "DataParallel", "Zero3", "DataParallel.step", together=TOGETHER)
