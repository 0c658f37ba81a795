"""Collectives on real processes: what each does to the data of N ranks, and the ring beneath them, step by step.

`move_data` runs PyTorch's collectives on small whole numbers and `predict` says with NumPy what they must give.
`ring_steps` runs the ring all-reduce of `scalebook.collectives` and records who holds whose numbers after each step.
Nothing here depends on the machine. `scalebook.labs.collective_comparison` puts our rings beside PyTorch's collectives,
and `scalebook.labs.collective_times` measures times.

Run it with `python -m scalebook.labs.collectives --ranks 4`, or let PyTorch start the processes:
`torchrun --nproc-per-node 4 -m scalebook.labs.collectives --ranks 4`.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from scalebook import collectives, ranks
from scalebook.checks import whole
from scalebook.labs import command

COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "scatter", "gather", "all-to-all",
               "send to the next")


# What each collective does


@dataclass(frozen=True)
class Movement:
    """A collective as it was run: `before[r]` and `after[r]` are the numbers of rank r, as tuples; () is nothing."""

    before: tuple
    after: tuple


def data_before(name, size):
    """The numbers of each rank before a collective: rank r starts at 10 (r + 1), so a number says where it is from.

    Where a rank gives something to each rank, it has N numbers, else one. What only rank 0 has, the others lack.

    >>> data_before("all-to-all", 3)
    ((10, 11, 12), (20, 21, 22), (30, 31, 32))
    >>> data_before("broadcast", 3)
    ((10, 11, 12), (), ())
    """
    if name not in COLLECTIVES:
        raise ValueError(f"name = {name!r} is not allowed; it must be one of {COLLECTIVES}")
    check_size(size)
    length = 1 if name in ("all-gather", "gather") else size
    rows = tuple(tuple(10 * (rank + 1) + place for place in range(length)) for rank in range(size))
    return (rows[0],) + ((),) * (size - 1) if name in ("broadcast", "scatter") else rows


def predict(name, before):
    """What a collective must leave on each rank, by NumPy: the rows of one matrix, summed, cut and moved.

    >>> predict("reduce-scatter", ((1, 2), (30, 40)))
    ((31,), (42,))
    """
    size, rows = len(before), [np.array(row, dtype=int) for row in before]
    nothing = [np.array([], dtype=int)] * (size - 1)
    after = {
        "all-reduce": lambda: [np.sum(rows, axis=0)] * size,
        "reduce-scatter": lambda: np.sum(rows, axis=0).reshape(size, -1),
        "all-gather": lambda: [np.concatenate(rows)] * size,
        "broadcast": lambda: [rows[0]] * size,
        "scatter": lambda: rows[0].reshape(size, -1),
        "gather": lambda: [np.concatenate(rows), *nothing],
        "all-to-all": lambda: np.stack(rows).T,
        "send to the next": lambda: np.roll(rows, 1, axis=0),
    }[name]()
    return tuple(tuple(row.tolist()) for row in after)


def run_collective(name, row):
    """Call PyTorch's collective with this rank's numbers, a tensor; return the tensor that it leaves."""
    rank, size = dist.get_rank(), dist.get_world_size()
    root, out = rank == 0, torch.empty(size, dtype=row.dtype, device=row.device)
    if name == "all-reduce":
        dist.all_reduce(out := row.clone())
    elif name == "reduce-scatter":
        dist.reduce_scatter(out := out[:1], list(row.split(1)))
    elif name == "all-gather":
        dist.all_gather(list(out.split(1)), row)
    elif name == "broadcast":
        dist.broadcast(out := row.clone() if root else out, 0)
    elif name == "scatter":
        dist.scatter(out := out[:1], list(row.split(1)) if root else None, 0)
    elif name == "gather":
        dist.gather(row, list(out.split(1)) if root else None, 0)
        out = out if root else out[:0]
    elif name == "all-to-all":
        dist.all_to_all_single(out, row)
    elif size > 1:  # send to the next: PyTorch refuses a message to oneself
        sending = dist.isend(row, (rank + 1) % size)
        dist.recv(out, (rank - 1) % size)
        sending.wait()
    else:
        out = row.clone()
    return out


def move_rank(rank, world_size):
    """One rank of `move_data`: what each collective leaves here."""
    data = {name: data_before(name, world_size)[rank] for name in COLLECTIVES}
    return {name: tuple(run_collective(name, torch.tensor(row, dtype=torch.int64, device=ranks.device())).tolist())
            for name, row in data.items()}


def move_data(size=4, *, timeout=60, backend=None):
    """Run every collective of `COLLECTIVES` on `size` processes; return a dict of `Movement`s by name.

    Broadcast and scatter are from rank 0, gather is to it. Under `torchrun` rank 0 gets it and the others None. Raises
    ValueError for a size that is none, and `ranks.RankError` when a rank fails.

    >>> moved = move_data(2)["all-to-all"]
    >>> moved.before, moved.after
    (((10, 11), (20, 21)), ((10, 20), (11, 21)))
    """
    check_size(size)
    results = ranks.launch(move_rank, size, timeout=timeout, backend=backend)
    return None if results is None else gather_moves(results)


def gather_moves(results):
    """The `Movement`s of what each rank returned."""
    size = len(results)
    return {name: Movement(data_before(name, size), tuple(result[name] for result in results)) for name in COLLECTIVES}


# The ring, step by step


@dataclass(frozen=True)
class RingStep:
    """The ring after a step: `holds[r][p]` are the ranks whose numbers are in rank r's part p, in ascending order.

    `phase` is "start", "reduce-scatter" or "all-gather"; `sent[r]` the part that rank r sent in the step, None at the
    start. Step 0 is the start: each rank holds its own numbers alone.
    """

    step: int
    phase: str
    sent: tuple
    holds: tuple


def step_rank(rank, world_size):
    """One rank of `ring_steps`: the parts after each step. A part counts, for each rank, how often it was added."""
    mine = torch.nn.functional.one_hot(torch.tensor(rank, device=ranks.device()), world_size)
    parts = [mine] * world_size
    states = [[part.tolist() for part in parts]]
    for step in range(1, 2 * world_size - 1):
        collectives.ring_step(parts, step, add=step < world_size)
        states.append([part.tolist() for part in parts])
    return states


def ring_steps(size=4, *, timeout=60, backend=None):
    """Run the steps of `ring_all_reduce` on `size` processes; return a `RingStep` for the start and each of them.

    Rank r's numbers are all zero but for a 1 in place r, so that a sum says whose numbers are in it. Returns and raises
    as `move_data`; RuntimeError if a rank's numbers were added twice.

    >>> [step.holds[0] for step in ring_steps(2)]  # rank 0: its parts 0 and 1
    [((0,), (0,)), ((0, 1), (0,)), ((0, 1), (0, 1))]
    """
    check_size(size)
    results = ranks.launch(step_rank, size, timeout=timeout, backend=backend)
    return None if results is None else gather_steps(results)


def gather_steps(results):
    """The `RingStep`s of what each rank returned."""
    return tuple(read_state(step, [states[step] for states in results]) for step in range(len(results[0])))


def read_state(step, counts):
    """The `RingStep` of what each rank's parts counted."""
    size = len(counts)
    if any(count > 1 for parts in counts for part in parts for count in part):
        raise RuntimeError(f"after step {step} a rank's numbers are in a sum twice: {counts}")
    phase = "start" if step == 0 else "reduce-scatter" if step < size else "all-gather"
    sent = tuple((rank - step) % size if step else None for rank in range(size))
    holds = tuple(tuple(tuple(np.flatnonzero(part).tolist()) for part in parts) for parts in counts)
    return RingStep(step, phase, sent, holds)


def apply(rank, world_size, collective, data):
    """What `collective`, a function of `scalebook.collectives`, gives this rank for its `data[rank]`, as lists.

    >>> ranks.run(apply, 3, collectives.ring_all_reduce, [[1, 2], [10, 20], [100, 200]])
    [[111, 222], [111, 222], [111, 222]]
    """
    given = data[rank]
    put = functools.partial(torch.tensor, device=ranks.device())
    x = [put(part) for part in given] if isinstance(given[0], list) else put(given)
    result = collective(x)
    return [part.tolist() for part in result] if isinstance(result, list) else result.tolist()


def check_size(size):
    """ValueError unless it is a number of ranks."""
    whole("size", size)


def all_of_rank(rank, world_size):
    """What the command line shows, on one rank."""
    return move_rank(rank, world_size), step_rank(rank, world_size)


def main():
    """Print what each collective did, whether NumPy agrees, and the ring after each step."""
    parser = command.parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="processes (default: 4)")
    command.add_backend(parser)
    given = parser.parse_args()
    size = given.ranks
    with command.errors_in_words(parser):
        check_size(size)
        results = ranks.launch(all_of_rank, size, backend=given.backend)
    if results is None:
        return
    moves, steps = zip(*results, strict=True)
    for name, moved in gather_moves(moves).items():
        right = moved.after == predict(name, moved.before)
        print(f"{name}: {'as NumPy says' if right else 'NOT what NumPy says'}")
        for rank, (before, after) in enumerate(zip(moved.before, moved.after, strict=True)):
            print(f"  rank {rank}: {' '.join(map(str, before)) or '-'} -> {' '.join(map(str, after)) or '-'}")
    for state in gather_steps(steps):
        print(f"ring, step {state.step} ({state.phase}): whose numbers are in each part")
        for rank, parts in enumerate(state.holds):
            print(f"  rank {rank}: " + " | ".join("+".join(map(str, part)) for part in parts))


if __name__ == "__main__":
    from scalebook.labs.collectives import main

    main()
