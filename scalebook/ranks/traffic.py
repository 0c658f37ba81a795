"""Count what this rank sends: collectives and point-to-point messages, calls and bytes, per kind.

Every operation of `torch.distributed` passes PyTorch's dispatcher in one of two namespaces, `c10d` (eager collectives,
DDP) or `_c10d_functional` (DTensor, FSDP2 and compiled programs). A dispatch mode sees them there, whoever calls.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from scalebook.checks import whole

# Kind of each operation, and the position of the tensors that this rank hands over: (kind, position).
OPERATIONS = {
    "c10d": {
        "allreduce_": ("all_reduce", 0),
        "allreduce_coalesced_": ("all_reduce", 0),
        "allgather_": ("all_gather", 1),
        "_allgather_base_": ("all_gather", 1),
        "allgather_coalesced_": ("all_gather", 1),
        "allgather_into_tensor_coalesced_": ("all_gather", 1),
        "reduce_scatter_": ("reduce_scatter", 1),
        "_reduce_scatter_base_": ("reduce_scatter", 1),
        "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
        "alltoall_": ("all_to_all", 1),
        "alltoall_base_": ("all_to_all", 1),
        "broadcast_": ("broadcast", 0),
        "reduce_": ("reduce", 0),
        "gather_": ("gather", 1),
        "scatter_": ("scatter", 1),
        "send": ("send", 0),
        "recv_": ("recv", 0),
        "recv_any_source_": ("recv", 0),
        "barrier": ("barrier", None),
        "monitored_barrier_": ("barrier", None),
    },
    "_c10d_functional": {
        "all_reduce": ("all_reduce", 0),
        "all_reduce_": ("all_reduce", 0),
        "all_reduce_coalesced": ("all_reduce", 0),
        "all_reduce_coalesced_": ("all_reduce", 0),
        "all_gather_into_tensor": ("all_gather", 0),
        "all_gather_into_tensor_out": ("all_gather", 0),
        "all_gather_into_tensor_coalesced": ("all_gather", 0),
        "reduce_scatter_tensor": ("reduce_scatter", 0),
        "reduce_scatter_tensor_out": ("reduce_scatter", 0),
        "reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
        "all_to_all_single": ("all_to_all", 0),
        "broadcast": ("broadcast", 0),
        "broadcast_": ("broadcast", 0),
        "isend": ("send", 0),
        "irecv": ("recv", 0),
    },
}
# These move nothing: they mark or check a tensor.
SILENT = {"wait_tensor", "_wrap_tensor_autograd", "check_for_nan"}
# What a rank sends in a ring of n, over what it hands in: times (n-1), over n where the second number is 1.
RING = {"all_reduce": (2, 1), "reduce_scatter": (1, 1), "all_gather": (1, 0)}


@dataclass
class Traffic:
    """What one rank called: `calls[kind]` and `bytes[kind]`, zero for a kind that did not occur.

    `bytes` is the payload of the tensors that the rank hands over, in bytes: the tensor of an all-reduce, the shard
    of an all-gather, the whole input of a reduce-scatter or an all-to-all, the message of a send. Receiving ranks
    count what they receive as "recv", and every rank counts the buffer of a broadcast. It is not what goes over the
    wire, which depends on the algorithm: `ring_bytes` gives that for a ring. A coalesced call is one call.

    `kept` is the part of an all-to-all's bytes that the rank hands to itself: with splits, no formula knows it.
    `log` lists the calls in their order as (kind, bytes, kept).
    """

    calls: Counter = field(default_factory=Counter)
    bytes: Counter = field(default_factory=Counter)
    kept: Counter = field(default_factory=Counter)
    log: list = field(default_factory=list)

    def add(self, kind, payload=0, kept=0):
        """Count one call."""
        self.calls[kind] += 1
        self.bytes[kind] += payload
        self.kept[kind] += kept
        self.log.append((kind, payload, kept))

    def ring_bytes(self, ranks):
        """Bytes that this rank sends, per kind, if each call ran in a ring of `ranks`.

        With payload b and n ranks: all-reduce 2 b (n-1)/n, reduce-scatter b (n-1)/n, all-gather b (n-1), where b is
        this rank's shard. An all-to-all sends each peer its own part, b less what is `kept`: b (n-1)/n where all parts
        are equal. A send sends b. Broadcast, reduce, gather and scatter are left out: there the ranks send different
        amounts. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
        workstations", section 3.

        >>> Traffic(Counter(all_reduce=1), Counter(all_reduce=400)).ring_bytes(4)
        {'all_reduce': 600}
        """
        whole("ranks", ranks)
        sent = {kind: self.bytes[kind] - self.kept[kind] for kind in ("send", "all_to_all") if kind in self.bytes}
        for kind, (factor, shared) in RING.items():
            if kind in self.bytes:
                share = Fraction(factor * (ranks - 1) * self.bytes[kind], ranks if shared else 1)
                sent[kind] = int(share) if share.denominator == 1 else float(share)
        return sent


@contextlib.contextmanager
def count() -> Iterator[Traffic]:
    """Count the collectives and messages that this rank calls inside the block; gives a `Traffic`.

    Kinds: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
    "send", "recv", "barrier". Asynchronous calls count when they are issued. An operation of a kind unknown here
    raises NotImplementedError: a count that leaves something out would be wrong.

    DDP rebuilds its buckets in the first iteration, and the second begins by broadcasting them: count from the third.

    >>> with count() as traffic:
    ...     _ = torch.ones(3) + 1
    >>> traffic.calls["all_reduce"]
    0
    """
    traffic = Traffic()
    with _Counter(traffic):
        yield traffic


class _Counter(TorchDispatchMode):
    """The dispatch mode behind `count`."""

    def __init__(self, traffic):
        super().__init__()
        self.traffic = traffic

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().split("::")[1].split(".")[0]
        if func.namespace in OPERATIONS and name not in SILENT:
            if name not in OPERATIONS[func.namespace]:
                raise NotImplementedError(f"{func.namespace}.{name} is not counted yet")
            kind, position = OPERATIONS[func.namespace][name]
            payload = 0 if position is None else _payload(args[position])
            self.traffic.add(kind, payload, _kept(name, args) if kind == "all_to_all" else 0)
        return func(*args, **kwargs)


def _payload(value):
    """Bytes of the tensors in `value`: a tensor, or lists of them."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_payload, value))


def _kept(name, args):
    """Bytes of an all-to-all that the rank hands to itself: its own one of the parts."""
    if name == "alltoall_":
        return _payload(args[1][dist.ProcessGroup.unbox(args[2]).rank()])
    if name == "alltoall_base_":
        tensor, splits, group = args[1], args[4], dist.ProcessGroup.unbox(args[2])
    else:  # all_to_all_single; the group comes by its name, or as it is
        tensor, splits, group = args[0], args[2], args[3]
        group = dist.distributed_c10d._resolve_process_group(group) if isinstance(group, str) else group
    if not splits:  # equal parts
        return _payload(tensor) // group.size()
    return splits[group.rank()] * _payload(tensor) // max(len(tensor), 1)
