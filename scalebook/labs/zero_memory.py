"""Measure what a rank keeps: the storages behind its tensors, each counted once.

`state_bytes` asks an optimizer of `scalebook.zero` for its tensors. `reachable` asks nobody: it finds every tensor
that Python can reach, so that a copy that was forgotten shows. `Peak` follows every storage that an operation makes,
also those that only autograd holds. `Watched` writes down the life of each layer's parameters.
"""

import gc
import time
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from scalebook.zero import Zero3


def state_bytes(optimizer):
    """Bytes of the storages of an optimizer of `scalebook.zero`: {"weights", "gradients", "optimizer"}.

    Whole gradients that wait in `.grad` are among the gradients, gathered parameters among the weights.
    """
    buckets = optimizer.buckets
    parameters = [p for bucket in buckets for p in bucket.parameters]
    held = {
        "weights": [*parameters, *(getattr(b, name, None) for b in buckets for name in ("weight_P", "weight_S"))],
        "gradients": [*(p.grad for p in parameters),
                      *(getattr(b, name, None) for b in buckets for name in ("gradient_P", "gradient_S"))],
        "optimizer": [*optimizer.adam.masters, *optimizer.adam.first, *optimizer.adam.second],
    }
    return {kind: storage_bytes(tensors) for kind, tensors in held.items()}


def alive_bytes(expected, patience_s=5):
    """Bytes behind `reachable`, as soon as they are no more than `expected`, or after `patience_s` seconds.

    The thread that ran a collective lets go of its tensors a moment after the call has returned.

    >>> gc.freeze()
    >>> x = torch.zeros(10)
    >>> alive_bytes(expected=40), alive_bytes(expected=0, patience_s=0)
    (40, 40)
    """
    until = time.monotonic() + patience_s
    while (alive := storage_bytes(reachable())) > expected and time.monotonic() < until:
        time.sleep(0.01)
    return alive


def storage_bytes(tensors):
    """Bytes of the storages behind some tensors, each storage once; None counts nothing.

    >>> x = torch.zeros(10)
    >>> storage_bytes([x, x[2:4], None])
    40
    """
    storages = [storage_of(tensor) for tensor in tensors if tensor is not None]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def storage_of(tensor):
    """The memory behind a tensor; of a `DTensor` that of this rank's part, since the whole is nowhere."""
    return getattr(tensor, "_local_tensor", tensor).untyped_storage()


def reachable():
    """Every tensor that Python can reach in this process, made after the last `gc.freeze()`, and their gradients.

    A process that has loaded PyTorch holds millions of objects. Freeze them before you begin, or this takes a second.
    """
    gc.collect()
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    return [*tensors, *(t.grad for t in tensors if t.is_leaf and t.grad is not None)]


class Peak(TorchDispatchMode):
    """The bytes of all storages alive, looked at after each operation: what `tensors` hold, and what comes to be.

    >>> x = torch.ones(100)
    >>> with Peak([x]) as peak:
    ...     y = (x + 1) * (x + 2)
    >>> peak.now(), peak.most  # x and y; and when y was made, both sums
    (800, 1600)
    """

    def __init__(self, tensors):
        """Start with the storages of some tensors."""
        super().__init__()
        self.known, self.most = {}, 0
        for tensor in tensors:
            self.follow(tensor)

    def follow(self, tensor):
        """Take a storage up, without keeping it alive."""
        storage = storage_of(tensor)
        if storage._cdata not in self.known:
            self.known[storage._cdata] = _Weak(storage)

    def now(self):
        """Bytes alive at this moment."""
        sizes = {key: weak.bytes() for key, weak in self.known.items()}
        self.known = {key: weak for key, weak in self.known.items() if sizes[key] is not None}
        return sum(size for size in sizes.values() if size is not None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the operation, then look at what is alive."""
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self.follow(value)
        self.most = max(self.most, self.now())
        return result


class _Weak:
    """A storage that may end: its bytes, or None when it has ended."""

    def __init__(self, storage):
        self.pointer = storage._weak_ref()

    def bytes(self):
        storage = torch.UntypedStorage._new_with_weak_ptr(self.pointer)
        return None if storage is None else storage.nbytes()

    def __del__(self):
        torch.UntypedStorage._free_weak_ref(self.pointer)


class Watched(Zero3):
    """`Zero3` that writes down each gather, reduce and release: `events` are `Event`s, in their order."""

    events = None  # nothing is noted while the parameters are being sharded

    def gather(self, unit):
        """Gather, and note it if there was something to gather."""
        whole = is_whole(unit)
        super().gather(unit)
        if not whole:
            self.note("gather", unit)

    def release(self, unit):
        """Release, and note it if there was something to release."""
        whole = is_whole(unit)
        super().release(unit)
        if whole:
            self.note("release", unit)

    def reduce(self, unit):
        """Note that a layer's gradients are all there, then reduce them; note it again when only the shard is left."""
        self.note("gradients", unit)
        super().reduce(unit)
        self.note("reduced", unit)

    def step(self, microbatches=1):
        """Step, and note it."""
        super().step(microbatches)
        self.note("step", None)

    def note(self, kind, unit):
        """Write down an event and what this rank holds just after it."""
        if self.events is not None:
            self.events.append(Event(kind, None if unit is None else self.buckets.index(unit), **state_bytes(self)))


@dataclass(frozen=True)
class Event:
    """What happened to a unit (its number, None for the step of all), and the bytes held just after it."""

    kind: str
    unit: int | None
    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self):
        """Bytes of all model states."""
        return self.weights + self.gradients + self.optimizer


def is_whole(unit):
    """Whether a unit's parameters are gathered."""
    return unit.weight_P.untyped_storage().size() > 0
