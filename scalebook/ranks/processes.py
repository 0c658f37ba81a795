"""Run a function on real processes, and bring back what each returned.

Each rank is forked from a server that has imported PyTorch. The parent keeps the rendezvous, the deadline and the
right to end every rank: a rank that has returned, or failed, waits to be ended. So a failure does not close the
connections of its peers, and the first error is not buried under theirs.
"""

import contextlib
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist

from . import checks
from .member import Member, RankTimeout
from .results import pack
from .server import fork_rank

GRACE_S = 0.2  # how long the parent looks for an earlier failure after it has seen one
CAUSE_S = 5  # and how long for the death of a rank, when others say that they have lost one
# `count` makes PyTorch import torch._dynamo: a second, once in the server and not in each rank of each run.
PRELOADED = ("torch", "torch.distributed", "torch._dynamo", "scalebook.ranks", "scalebook.ranks.child")


def run(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60, backend: str | None = None
) -> list[Any]:
    """Call `fn(rank, world_size, *args)` on `world_size` new processes; return the list of what each returned.

    Every rank has an initialised default process group and one thread. What a rank prints is not shown: return it.
    Results and arguments are pickled; tensors of results come back on the CPU. All processes have ended when this
    returns or raises, also what the ranks started; outside Linux that leaves out what began a session of its own. With
    several runs at once, such processes end with the last of them.

    Parameters: `fn` is a function at the top level of a module that a new process can import. `timeout` is in
    seconds, for everything from the first start to the last result. `backend` is "gloo", on the loopback interface;
    "nccl", a GPU for each rank, with gloo beside it for tensors on the CPU; or None: NCCL where there are GPUs enough.

    Raises ValueError for an argument that is not allowed; RankError with the traceback of the rank that failed
    first, or the signal that killed it; RankTimeout, naming the ranks that had not finished and where they stood.

    >>> from scalebook.labs.hello import rank_sum
    >>> run(rank_sum, 3)
    [3, 3, 3]
    """
    checks.check_function(fn)
    checks.check_world_size(world_size)
    checks.check_timeout(timeout)
    backend = checks.choose_backend(backend, world_size)
    call = checks.pack_call(fn, args)
    deadline = time.monotonic() + timeout
    store = _open_store()
    lifeline, held_by_parent = os.pipe()
    ranks = []
    try:
        for rank in range(world_size):
            arguments = (rank, world_size, call, backend, store.port)
            ranks.append(_start(arguments, [*PRELOADED, fn.__module__], lifeline, deadline, timeout))
        _collect(ranks, deadline, timeout)
        return [member.result() for member in ranks]
    finally:
        os.close(held_by_parent)  # a rank ends itself when it sees this, also one whose start was interrupted
        os.close(lifeline)
        for member in ranks:
            member.kill()
        for member in ranks:
            member.close()
        del store  # frees its port now, even while a caller keeps the exception and with it this frame


def launch(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60, backend: str | None = None
) -> list[Any] | None:
    """`run`, or, in a process that `torchrun` started, take part as one of its ranks.

    Under `torchrun` rank 0 gets the list of results and every other rank None. Raises ValueError when `torchrun`
    started another number of ranks than `world_size`; else as `run`.
    """
    if not dist.is_torchelastic_launched():
        return run(fn, world_size, *args, timeout=timeout, backend=backend)
    started = int(os.environ["WORLD_SIZE"])
    if started != world_size:
        raise ValueError(f"world_size = {world_size} is not allowed; torchrun started {started} ranks")
    torch.set_num_threads(1)
    dist.init_process_group(checks.choose_backend(backend, int(os.environ["LOCAL_WORLD_SIZE"])))
    try:
        device()  # also where `fn` does not ask: what NCCL gathers lies on the current GPU
        packed = [None] * world_size if dist.get_rank() == 0 else None
        dist.gather_object(pack(fn(dist.get_rank(), world_size, *args)), packed)
        return None if packed is None else [pickle.loads(result) for result in packed]
    finally:
        dist.destroy_process_group()


def device() -> torch.device:
    """Where the tensors of this rank belong: its GPU under NCCL, else the CPU, as in a process that is no rank."""
    if not dist.is_initialized() or "nccl" not in dist.get_backend_config():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _open_store():
    """The rendezvous, in the parent, on a port that the system picks: no other program can take it in between."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _start(arguments, modules, lifeline, deadline, timeout):
    """Start one rank; return the parent's view of it."""
    rank, world_size = arguments[:2]
    ours, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
    try:
        report, output, status = theirs
        patience = max(0.001, deadline - time.monotonic())
        pid = fork_rank(modules, arguments, [report, output, lifeline, status], patience)
    except BaseException as error:
        for fd in ours:
            os.close(fd)
        if isinstance(error, TimeoutError):
            names = list(range(rank, world_size))
            raise RankTimeout(f"{_listed(names)} of {world_size} had not started after {timeout} s", names) from None
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return Member(rank, world_size, pid, dict(zip(("report", "output", "status"), ours, strict=True)))


def _collect(ranks, deadline, timeout):
    """Wait until every rank has returned; raise for the first that failed, or for those that are late."""
    while not all(member.settled for member in ranks):
        _update(ranks, deadline)
        if any(member.failed_at is not None for member in ranks):
            raise _first_failure(ranks).error()
        if time.monotonic() >= deadline and not all(member.settled for member in ranks):
            raise _late([member for member in ranks if not member.settled], len(ranks), timeout)


def _first_failure(ranks):
    """The rank that failed first, once one has: news of an earlier failure may still be on its way."""
    _settle(ranks, GRACE_S)
    until = time.monotonic() + CAUSE_S
    while all(m.lost_a_peer for m in ranks if m.failed_at is not None) and time.monotonic() < until:
        _update(ranks, until)
    return min((m for m in ranks if m.failed_at is not None), key=lambda m: (m.lost_a_peer, m.failed_at))


def _update(ranks, until):
    """Wait until something happens to a rank, or the time comes; take in what happened."""
    wait([item for member in ranks for item in member.waitables()], max(0.0, until - time.monotonic()))
    for member in ranks:
        member.update()


def _settle(ranks, seconds):
    """Take in what happens in the next `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _update(ranks, until)


def _late(unfinished, world_size, timeout):
    """The error for ranks that had not finished: each is asked to write where it stands."""
    for member in unfinished:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGUSR1)
    _settle(unfinished, GRACE_S)
    numbers = [member.rank for member in unfinished]
    stands = "".join(member.printed() for member in unfinished)
    return RankTimeout(f"{_listed(numbers)} of {world_size} had not finished after {timeout} s{stands}", numbers)


def _listed(numbers):
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
