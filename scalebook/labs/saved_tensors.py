"""Measure which activations are alive: the tensors that autograd keeps for the backward, while it keeps them.

Nothing here is inferred from a schedule. A hook sees every tensor that a forward saves; the tensor counts until
autograd lets go of it, which it does as it runs the backward.
"""

import contextlib
from collections import Counter

import torch


class SavedTensors:
    """The tensors saved for backward that are alive now, by the micro-batch (or any key) that saved them.

    Memory is counted by storage: two views of one storage, or one tensor saved twice, count once. What lives in the
    storages of `permanent` (parameters, which are saved too) is not counted.

    >>> import torch
    >>> x = torch.ones(10, requires_grad=True)
    >>> saved = SavedTensors(permanent=[x])
    >>> with saved.during("first"):
    ...     y = x.exp().sum()
    >>> saved.live_keys, saved.live_bytes
    (1, 40)
    >>> y.backward()
    >>> saved.live_keys, saved.live_bytes, saved.peak_keys, saved.peak_bytes
    (0, 0, 1, 40)
    """

    def __init__(self, permanent=()):
        """Start with nothing alive."""
        self.permanent = {tensor.untyped_storage().data_ptr() for tensor in permanent}
        self.holders = Counter()  # storage -> how often it is held
        self.keys = Counter()  # key -> how many of its tensors are held
        self.live_bytes = self.peak_bytes = self.peak_keys = 0

    @property
    def live_keys(self):
        """How many keys have a tensor alive."""
        return len(self.keys)

    @contextlib.contextmanager
    def during(self, key):
        """Count, under `key`, what operations inside the block save for backward."""
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Held(self, tensor, key), _Held.get):
            yield

    def hold(self, tensor, key):
        """Count a tensor that is kept by hand, until the returned object is dropped; `.get()` gives it back."""
        return _Held(self, tensor, key)

    def add(self, storage, key):
        """Count one more holder of a storage."""
        if storage.data_ptr() in self.permanent:
            return
        self.live_bytes += storage.nbytes() if not self.holders[storage.data_ptr()] else 0
        self.holders[storage.data_ptr()] += 1
        self.keys[key] += 1
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.peak_keys = max(self.peak_keys, self.live_keys)

    def remove(self, storage, key):
        """Count one holder less."""
        if storage.data_ptr() in self.permanent:
            return
        self.holders[storage.data_ptr()] -= 1
        if not self.holders[storage.data_ptr()]:
            del self.holders[storage.data_ptr()]
            self.live_bytes -= storage.nbytes()
        self.keys[key] -= 1
        if not self.keys[key]:
            del self.keys[key]


class _Held:
    """A saved tensor. Autograd keeps this object in its place; its end is the end of the tensor's use."""

    def __init__(self, ledger, tensor, key):
        # Detached: an operation may save its own output, which would then keep the graph alive, and the graph it.
        self.ledger, self.tensor, self.key = ledger, tensor.detach(), key
        ledger.add(tensor.untyped_storage(), key)

    def get(self):
        return self.tensor

    def __del__(self):
        self.ledger.remove(self.tensor.untyped_storage(), self.key)
