"""The programs of the book that run on several processes. Each is also `torchrun -m scalebook.labs.NAME`."""
