"""Collectives made of messages: what N ranks do together, written with sends and receives alone.

The ranks stand in a ring: each sends to the next and receives from the one before, all at the same time. The data are
cut into N parts, so that in every step each link carries one part. Sources: Patarasuk and Yuan 2009, "Bandwidth optimal
all-reduce algorithms for clusters of workstations"; for the broadcast Patarasuk, Faraj and Yuan 2006,
"Pipelined broadcast on Ethernet switched clusters". All ranks of the default process group call a function together,
with the same shapes and dtype.

Nothing here is recorded by autograd: a collective's gradient is another collective, which `torch.autograd.Function`
must be told. No function changes its arguments.
"""

import torch
import torch.distributed as dist

from scalebook import checks
from scalebook.borders import guard


def exchange(sends, receives):
    """Start all messages at once and wait for them; `sends` and `receives` are lists of (tensor, peer).

    Receives fill the tensors in place. One message at a time could wait for ever: every rank would send, none receive.
    """
    messages = [dist.P2POp(dist.isend, tensor.contiguous(), peer) for tensor, peer in sends]
    messages += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in receives]
    for work in dist.batch_isend_irecv(messages) if messages else ():
        work.wait()


def ring_step(parts, step, add):
    """One step on the ring: send part (rank - step) to the next rank, receive the part before it. Changes the list.

    With `add` what arrives is a partial sum, and joins this rank's own part; without, it takes the part's place.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, received = (rank - step) % size, (rank - step - 1) % size
    arrived = parts[received].new_empty(parts[received].shape)
    exchange([(parts[sent], (rank + 1) % size)], [(arrived, (rank - 1) % size)])
    parts[received] = parts[received] + arrived if add else arrived


@torch.no_grad()
def ring_reduce_scatter(parts):
    """Sum part r of all ranks, and leave the sum on rank r: N - 1 steps.

    `parts` has one tensor for each rank; their shapes may differ, but are the same on all ranks. A partial sum of each
    part travels the ring and grows by one rank's numbers in each step. Returns this rank's sum.

    Raises ValueError unless there is one part for each rank.

    >>> from scalebook.labs.collectives import apply, ranks
    >>> ranks.run(apply, 2, ring_reduce_scatter, [[[1, 2], [3]], [[10, 20], [30]]])
    [[11, 22], [33]]
    """
    parts = one_for_each_rank("parts", parts)
    for step in range(1, len(parts)):
        ring_step(parts, step, add=True)
    return parts[dist.get_rank()].clone()


@torch.no_grad()
def ring_all_gather(x, like=None):
    """Give every rank the tensors of all ranks, as a list in their order: N - 1 steps.

    `like` has a tensor of the shape of each rank's, where the shapes differ. In each step a rank passes on what arrived
    in the step before, first its own.

    Raises ValueError unless `like` has one tensor for each rank, this rank's of the shape of `x`.

    >>> from scalebook.labs.collectives import apply, ranks
    >>> ranks.run(apply, 2, ring_all_gather, [[1, 2], [3, 4]])
    [[[1, 2], [3, 4]], [[1, 2], [3, 4]]]
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    parts = one_for_each_rank("like", [x] * size if like is None else like)
    if parts[rank].shape != x.shape:
        raise ValueError(f"like[{rank}] has shape {tuple(parts[rank].shape)}; it must be that of x, {tuple(x.shape)}")
    parts[rank] = x.clone()
    for step in range(size - 1):
        ring_step(parts, step, add=False)
    return parts


@torch.no_grad()
def ring_all_reduce(x):
    """Give every rank the sum of all ranks' tensors: a reduce-scatter, then an all-gather, 2 (N - 1) steps.

    The number of elements need not be a multiple of N: then some parts are one element larger. Each part is summed by
    one rank, so all ranks get the same bits.

    >>> from scalebook.labs.collectives import apply, ranks
    >>> ranks.run(apply, 2, ring_all_reduce, [[1, 2, 3], [10, 20, 30]])
    [[11, 22, 33], [11, 22, 33]]
    """
    parts = x.flatten().tensor_split(dist.get_world_size())
    total = ring_reduce_scatter(parts)
    return torch.cat(ring_all_gather(total, like=parts)).view(x.shape)


@torch.no_grad()
def ring_broadcast(x, source=0, pieces=8):
    """Give every rank the tensor of `source`; the others give one of its shape and dtype.

    The pieces follow each other along the ring: a rank sends one on while it receives the next. The last piece arrives
    after N - 2 + `pieces` steps, against (N - 1) `pieces` of that size if the whole tensor travelled at once.

    Raises ValueError for a source that is no rank, or fewer than one piece.

    >>> from scalebook.labs.collectives import apply, ranks
    >>> ranks.run(apply, 2, ring_broadcast, [[1, 2, 3], [0, 0, 0]])
    [[1, 2, 3], [1, 2, 3]]
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    whole_number("source", source, 0, size - 1)
    whole_number("pieces", pieces, 1)
    checks.size("pieces", pieces)
    result = x.clone(memory_format=torch.contiguous_format)
    distance, sending = (rank - source) % size, []
    for piece in result.view(-1).tensor_split(pieces):
        if distance > 0:
            dist.recv(piece, (rank - 1) % size)
        if distance < size - 1:
            sending.append(dist.isend(piece, (rank + 1) % size))
    for work in sending:
        work.wait()
    return result


@torch.no_grad()
def all_to_all(parts, like=None):
    """Send part r to rank r; return what the ranks sent to this one, as a list in their order.

    `parts` has one tensor for each rank. `like` has a tensor of the shape of each one that arrives; without it every
    rank is taken to cut its data alike, so all that arrive have the shape of this rank's own part.

    Raises ValueError unless each list has one tensor for each rank, and this rank's own have one shape.

    >>> from scalebook.labs.collectives import apply, ranks
    >>> ranks.run(apply, 2, all_to_all, [[[11], [12]], [[21], [22]]])
    [[[11], [21]], [[12], [22]]]
    """
    rank, parts = dist.get_rank(), one_for_each_rank("parts", parts)
    like = one_for_each_rank("like", [parts[rank]] * len(parts) if like is None else like)
    if like[rank].shape != parts[rank].shape:
        raise ValueError(f"like[{rank}] has shape {tuple(like[rank].shape)}; it must be that of parts[{rank}], "
                         f"{tuple(parts[rank].shape)}")
    arrived = [part.new_empty(part.shape) for part in like]
    arrived[rank] = parts[rank].clone()
    others = [(rank + k) % len(parts) for k in range(1, len(parts))]
    exchange([(parts[peer], peer) for peer in others], [(arrived[peer], peer) for peer in others])
    return arrived


def one_for_each_rank(name, parts):
    """The tensors as a new list; ValueError unless there is one for each rank."""
    parts, size = list(parts), dist.get_world_size()
    if len(parts) != size:
        raise ValueError(f"{name} has {len(parts)} tensors; it must have {size}, one for each rank")
    return parts


def whole_number(name, value, least, most=None):
    """ValueError unless the value is a whole number in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise ValueError(f"{name} = {value!r} is not allowed; it must be a whole number, "
                         + (f"at least {least}" if most is None else f"from {least} to {most}"))


def _tensors(name, value):
    if not isinstance(value, list | tuple) or not all(isinstance(one, torch.Tensor) for one in value):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a list of tensors")


def _tensor(name, value):
    checks.instance(name, value, torch.Tensor, "a tensor")


def _messages(name, value):
    pairs = isinstance(value, list | tuple) and all(isinstance(one, tuple) and len(one) == 2 for one in value)
    if not pairs or not all(isinstance(tensor, torch.Tensor) for tensor, _ in value):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a list of (tensor, peer)")
    for _, peer in value:
        checks.whole(f"{name}: the peer", peer, 0, dist.get_world_size() - 1)


guard(globals(), {"parts": _tensors, "like": _tensors, "sends": _messages, "receives": _messages,
                  "x": _tensor},
      "exchange", "ring_reduce_scatter", "ring_all_gather", "ring_all_reduce", "ring_broadcast", "all_to_all",
      "one_for_each_rank")
