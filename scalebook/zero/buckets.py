"""Parameters laid end to end, so that one collective moves many of them and every rank owns an equal part.

A shard is a slice of the flat buffer. It takes no notice of where one parameter ends and the next begins, and zeros at
the end make the buffer a multiple of the ranks. Suffixes of tensors: P elements of a bucket with its padding, S of one
rank's shard (P = N S with N ranks).
"""

import torch

from scalebook.borders import guard
from scalebook.checks import whole
from scalebook.zero.kinds import KINDS, TOGETHER


class Bucket:
    """Parameters that are sharded and sent together.

    `parameters` are leaf tensors of one dtype that want a gradient; `ranks` is the number of equal shards. `elements`
    counts them without the padding, `padded` with it. Raises ValueError for no parameters, for one that wants no
    gradient, for two dtypes, and for `ranks` that is not a whole number above 0.

    >>> bucket = Bucket([torch.ones(2, 2, requires_grad=True), torch.ones(3, requires_grad=True)], ranks=4)
    >>> bucket.elements, bucket.padded
    (7, 8)
    >>> [tuple(view.shape) for view in bucket.views(torch.arange(8))]
    [(2, 2), (3,)]
    """

    def __init__(self, parameters, ranks):
        """Lay out the parameters; nothing is copied yet."""
        self.parameters = list(parameters)
        _check(self.parameters, ranks)
        self.elements = sum(p.numel() for p in self.parameters)
        self.padded = -(-self.elements // ranks) * ranks
        self.missing = set(self.parameters)  # those without their gradient in this backward
        self.hooks = []  # until you remove them, they keep alive what they call

    def flatten(self, tensors):
        """Copy one tensor for each parameter into a new (P,) buffer with zeros at its end."""
        flat_P = tensors[0].new_zeros(self.padded)
        torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat_P[: self.elements])
        return flat_P

    def views(self, flat_P):
        """The part of a (P,) buffer that belongs to each parameter, in its shape: no copy."""
        parts = flat_P[: self.elements].split([p.numel() for p in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def when_ready(self, call):
        """Call `call(self)` in every backward, as soon as the last parameter has its gradient."""

        def arrived(parameter):
            self.missing.remove(parameter)
            if not self.missing:
                self.missing.update(self.parameters)
                call(self)

        self.hooks = [p.register_post_accumulate_grad_hook(arrived) for p in self.parameters]

    def check_complete(self):
        """Raise RuntimeError where the last backward left some of the parameters without a gradient."""
        if 0 < len(self.missing) < len(self.parameters):
            shapes = sorted(tuple(p.shape) for p in self.missing)
            raise RuntimeError(f"the backward gave no gradient to parameters of shapes {shapes}; their bucket waits")


def buckets_of(model, elements, ranks):
    """Cut a model's parameters into buckets of at least `elements` elements, the last layers first.

    The backward reaches the last layers first, so the first bucket is ready first. A tied parameter appears once. What
    is in a bucket does not depend on `ranks`, only its padding does. Raises ValueError as `Bucket`, and for `elements`
    that is not a whole number above 0.

    >>> [bucket.elements for bucket in buckets_of(torch.nn.Linear(10, 5), elements=5, ranks=2)]
    [5, 50]
    """
    whole("elements", elements)
    buckets, waiting = [], []
    for parameter in reversed(list(model.parameters())):
        waiting.append(parameter)
        if sum(p.numel() for p in waiting) >= elements:
            buckets.append(Bucket(waiting, ranks))
            waiting = []
    return [*buckets, Bucket(waiting, ranks)] if waiting else buckets


def units_of(layers, ranks):
    """One bucket for each layer: what ZeRO-3 gathers at once. Its `layers` are the modules that need it.

    Layers that share a parameter share a bucket. Raises ValueError as `Bucket`, and when there are no layers.

    >>> layers = [torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), torch.nn.Linear(4, 8)]
    >>> layers[2].weight = layers[0].weight
    >>> [(unit.elements, len(unit.layers)) for unit in units_of(layers, ranks=2)]
    [(48, 2), (36, 1)]
    """
    groups = []
    for layer in layers:
        own = set(layer.parameters())
        shared = [group for group in groups if own & {p for other in group for p in other.parameters()}]
        groups = [group for group in groups if group not in shared] if len(shared) > 1 else groups
        if len(shared) == 1:
            shared[0].append(layer)
        else:
            groups.append([other for group in shared for other in group] + [layer])
    if not groups:
        raise ValueError("layers = [] is not allowed; layers must hold at least one module")
    units = []
    for group in groups:
        unit = Bucket(dict.fromkeys(p for layer in group for p in layer.parameters()), ranks)
        unit.layers = group
        units.append(unit)
    return units


def _check(parameters, ranks):
    whole("ranks", ranks)
    if not parameters:
        raise ValueError("parameters = [] is not allowed; a bucket needs at least one parameter")
    fixed = [tuple(p.shape) for p in parameters if not p.requires_grad]
    if fixed:
        raise ValueError(f"parameters of shapes {fixed} are not allowed; every parameter must want a gradient")
    dtypes = sorted({str(p.dtype) for p in parameters})
    if len(dtypes) > 1:
        raise ValueError(f"parameters of {' and '.join(dtypes)} are not allowed; a bucket holds one dtype")


guard(globals(), KINDS, "Bucket", "Bucket.flatten", "Bucket.views", together=TOGETHER)
