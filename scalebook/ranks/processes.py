"""Run a function on real processes, and bring back what each returned.

The processes come from `multiprocessing`'s fork server, which imports PyTorch once; each rank is then a fork that is
ready in milliseconds. The parent keeps the rendezvous, the deadline and the right to end every rank: a rank that has
returned, or failed, waits to be ended. So a failure does not close the connections of its peers, and the first error
is not buried under theirs.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import types
from multiprocessing.connection import wait

import torch
import torch.distributed as dist

from . import checks
from .child import rank_main
from .member import Member, RankTimeout

GRACE_S = 0.2  # how long the parent looks for an earlier failure after it has seen one
STARTING = threading.Lock()  # two threads must not both hide the main module
PRELOADED = ("torch", "torch.distributed", "scalebook.ranks")


def run(fn, world_size, *args, timeout=60, backend=None):
    """Call `fn(rank, world_size, *args)` on `world_size` new processes; return the list of what each returned.

    Every rank has an initialised default process group and one thread. What a rank prints is not shown: return it.
    Results and arguments are pickled. All processes have ended when this returns or raises.

    Parameters: `fn` is a function at the top level of a module that a new process can import. `timeout` is in
    seconds, for everything from the first start to the last result. `backend` is "gloo", "nccl" (a GPU for each
    rank), or None: both where there are GPUs enough, gloo on the loopback interface otherwise.

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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, fn.__module__])
    store = _open_store()
    lifeline, held_by_parent = context.Pipe(duplex=False)
    ranks = []
    try:
        with _hidden_main():
            for rank in range(world_size):
                ranks.append(_start(context, rank, world_size, call, backend, store.port, lifeline))
        _collect(ranks, deadline, timeout)
        return [member.result() for member in ranks]
    finally:
        held_by_parent.close()  # a rank ends itself when it sees this, also one whose start was interrupted
        lifeline.close()
        for member in ranks:
            member.kill()
        for member in ranks:
            member.close()
        del store  # frees its port now, even while a caller keeps the exception and with it this frame


def launch(fn, world_size, *args, timeout=60, backend=None):
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
        results = [None] * world_size if dist.get_rank() == 0 else None
        dist.gather_object(fn(dist.get_rank(), world_size, *args), results)
        return results
    finally:
        dist.destroy_process_group()


def device():
    """Where the tensors of this rank belong: its GPU under NCCL, else the CPU."""
    if "nccl" not in dist.get_backend_config():
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


@contextlib.contextmanager
def _hidden_main():
    """Hide the caller's main module while ranks start.

    `multiprocessing` would run a script again in each rank to rebuild `__main__`. Without a `__main__` guard that
    starts ranks from ranks. No rank needs the main module, because `fn` comes from another.
    """
    with STARTING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _start(context, rank, world_size, call, backend, port, lifeline):
    """Start one rank; return the parent's view of it."""
    report, report_end = context.Pipe(duplex=False)
    output, output_end = context.Pipe(duplex=False)
    process = context.Process(
        target=rank_main,
        args=(rank, world_size, call, backend, port, report_end, output_end, lifeline),
        name=f"rank {rank}",
    )
    try:
        process.start()
    except BaseException:
        report.close()
        output.close()
        raise
    finally:
        report_end.close()
        output_end.close()
    return Member(rank, world_size, process, report, output)


def _collect(ranks, deadline, timeout):
    """Wait until every rank has returned; raise for the first that failed, or for those that are late."""
    while not all(member.settled for member in ranks):
        _update(ranks, deadline)
        if any(member.failed_at is not None for member in ranks):
            _settle(ranks, GRACE_S)
            raise min((m for m in ranks if m.failed_at is not None), key=lambda m: m.failed_at).error()
        if time.monotonic() >= deadline and not all(member.settled for member in ranks):
            raise _late([member for member in ranks if not member.settled], len(ranks), timeout)


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
            os.kill(member.process.pid, signal.SIGUSR1)
    _settle(unfinished, GRACE_S)
    numbers = [member.rank for member in unfinished]
    noun = "rank" if len(numbers) == 1 else "ranks"
    listed = ", ".join(map(str, numbers))
    return RankTimeout(
        f"{noun} {listed} of {world_size} had not finished after {timeout} s"
        + "".join(member.printed() for member in unfinished),
        numbers,
    )
