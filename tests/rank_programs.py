"""Programs that the tests of `scalebook.ranks` run on ranks: a rank can only run what it can import."""

import os
import subprocess
import sys
import time

import psutil
import torch
import torch.distributed as dist


def identity(rank, world_size, *args):
    return rank, world_size, args


def process_facts(rank, world_size):
    dist.barrier()
    return os.getpid(), torch.get_num_threads(), dist.get_backend()


def talk(rank, world_size):
    print("printed by", rank)
    print("warned by", rank, file=sys.stderr)
    subprocess.run(["echo", "echoed"], check=True)


def raise_on(rank, world_size, failing, delays):
    """Each failing rank raises after its delay; the others wait for them in a collective."""
    dist.barrier()
    if rank in failing:
        time.sleep(delays[failing.index(rank)])
        print("last words of", rank)
        raise ZeroDivisionError(f"rank {rank} gave up")
    dist.all_reduce(torch.ones(3))


def raise_then_exit(rank, world_size, failing, later):
    dist.barrier()
    if rank == failing:
        raise ZeroDivisionError("first")
    time.sleep(later)
    os._exit(1)


def exit_on(rank, world_size, failing, code):
    dist.barrier()
    if rank == failing:
        os._exit(code)
    dist.all_reduce(torch.ones(3))


def signal_on(rank, world_size, failing, number, folder):
    """One rank sends itself a signal and writes down when; each has written down its process and its ports."""
    dist.barrier()
    ports = [c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    (folder / f"{rank}.txt").write_text(f"{os.getpid()} {' '.join(map(str, ports))}")
    dist.barrier()
    if rank == failing:
        time.sleep(0.3)  # by now the others wait in the collective below
        (folder / "sent").write_text(str(time.monotonic()))
        os.kill(os.getpid(), number)
    dist.all_reduce(torch.ones(3))


def claim_a_lost_peer_then_die(rank, world_size, later):
    """Rank 0 says that it has lost a peer well before the news of the death comes; rank 1 dies."""
    if rank == 0:
        raise RuntimeError("pair.cc: Connection closed by peer [127.0.0.1]:1")
    time.sleep(later)
    os._exit(3)


def never_join(rank, world_size, failing):
    """One rank leaves the collective out."""
    if rank != failing:
        dist.all_reduce(torch.ones(3))


def sleep(rank, world_size, seconds, folder=None):
    if folder is not None:
        (folder / f"{rank}.txt").write_text(str(os.getpid()))
    time.sleep(seconds)


def surroundings(rank, world_size):
    return os.environ.get("SCALEBOOK_MOMENT"), os.getcwd()


def leave_a_child(rank, world_size):
    return subprocess.Popen(["sleep", "600"]).pid


def leave_a_session(rank, world_size, failing=None):
    """Start a process in a session of its own, and one whose parent has ended; then return, or fail."""
    own = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
    start = ("import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True, stdout=s.DEVNULL, "
             "stderr=s.DEVNULL).pid)")
    orphan = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True).stdout
    if rank == failing:
        raise ZeroDivisionError(f"{own} {orphan}")
    return own, int(orphan)


def write_to_a_full_device(rank, world_size):
    """Rank 1 writes where there is no room, as in a full /dev/shm."""
    dist.barrier()
    if rank == 1:
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"a byte")
    dist.barrier()


def stop_itself(rank, world_size):
    raise SystemExit("enough")


def return_a_lock(rank, world_size):
    import threading

    return threading.Lock() if rank == 1 else None


def big_tensor(rank, world_size, elements):
    return torch.arange(elements, dtype=torch.float64) + rank
