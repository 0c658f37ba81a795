"""What runs inside a rank: the process group, the call, and the report to the parent."""

import datetime
import faulthandler
import os
import pickle
import re
import signal
import socket
import struct
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist

from .results import pack

NEVER = datetime.timedelta(days=1)  # the deadline is the parent's: no rank gives up by itself

# What gloo and NCCL say where another process is gone: then this rank's failure is a consequence.
LOST_A_PEER = re.compile(r"Error: .*(Connection (closed|reset) by peer|Broken pipe|remote process exited)")


def rank_main(rank, world_size, call, backend, port, report, output, lifeline):
    """The whole life of a rank. It does not return: the parent ends it. The last three are file descriptors."""
    os.setsid()  # a group of its own, to be ended with all it started
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    _redirect(output)
    try:
        fn, args = pickle.loads(call)
        _join_group(rank, world_size, backend, port)
        message = ("returned", pack(fn(rank, world_size, *args)))
    except BaseException as error:
        summary = traceback.format_exception_only(error)[-1].strip()
        error.__traceback__ = error.__traceback__.tb_next  # this function's own frame tells a reader nothing
        text = "".join(traceback.format_exception(error)).strip()  # with the errors that led to this one
        message = ("raised", time.monotonic(), summary, text, LOST_A_PEER.search(text) is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    body = pickle.dumps(message)
    with open(report, "wb", closefd=False) as pipe:
        pipe.write(struct.pack("q", len(body)) + body)
    # Stay until the parent ends this process: closing the connections now would make peers fail that are still busy.
    threading.Event().wait()


def _end_with_parent(lifeline):
    """End this process and all it started when the parent lets go of its end of the pipe, or is gone."""
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def _redirect(output):
    """Send what the rank prints to the parent, line by line, and make it say where it stands on SIGUSR1."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.reconfigure(line_buffering=True)
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)


def _join_group(rank, world_size, backend, port):
    """Initialise the default process group through the parent's store."""
    torch.set_num_threads(1)
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]
    if "nccl" in backend:
        torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=NEVER)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=NEVER)
