"""The programs of the book that run on several processes. Each is also `torchrun -m scalebook.labs.NAME`."""

from importlib.util import find_spec

from scalebook.lazy import without_torch

if find_spec("torch") is None:
    raise without_torch(__name__)
