"""A process that has imported PyTorch and forks ranks from itself, so that a rank is ready in milliseconds.

It is made like the fork server of `multiprocessing`, with three differences that a notebook and a script need: it
never runs the caller's main module again, so a script needs no `__main__` guard; it talks through a pair of sockets
without a name, so no file is left behind when a kernel is ended; and it ends with its parent, at once.
"""

import atexit
import contextlib
import importlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import wait

from . import orphans

LENGTH = struct.Struct("q")
PATIENCE_S = 1  # how long a server has to end by itself
FDS = 4  # of a rank: report, output, lifeline, and status, which the server keeps
LOCK = threading.Lock()
RUNNING = []  # the server of this process, if there is one; it serves until the process ends


class ForkServer:
    """The parent's end. `modules` are imported in the server, where they can be, before the first fork."""

    def __init__(self, modules):
        """Start the server; it imports while the parent goes on."""
        self.owner = os.getpid()
        self.socket, theirs = socket.socketpair()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (it has no name, and lives as long as the server)
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from scalebook.ranks.server import serve; "
            f"serve({theirs.fileno()}, {modules!r})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[theirs.fileno()], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )
        theirs.close()

    def fork(self, arguments, fds, timeout):
        """Have a rank forked that runs `rank_main` with `arguments` and `fds`; return its process id."""
        body = pickle.dumps((arguments, dict(os.environ), os.getcwd(), sys.path))
        self.socket.settimeout(timeout)
        try:
            socket.send_fds(self.socket, [LENGTH.pack(len(body))], fds)
            self.socket.sendall(body)
            answer = _read(self.socket, LENGTH.size)
        except ConnectionError:
            answer = b""
        if len(answer) < LENGTH.size:
            self.log.seek(0)
            raise RuntimeError(f"the server that forks ranks has ended:\n{self.log.read().decode(errors='replace')}")
        return LENGTH.unpack(answer)[0]

    def stop(self):
        """End the server. Ranks that are still there end when their run lets go of them."""
        self.socket.close()  # the server sees this, ends what is left, and itself
        if self.owner == os.getpid():
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:  # it is still importing, or does not answer
                self.process.kill()
                self.process.wait()
        self.log.close()


def fork_rank(modules, arguments, fds, timeout):
    """Fork a rank from this process's server, which is started if need be; return the rank's process id.

    An exception in between, a KeyboardInterrupt too, leaves the conversation with the server unfinished: then the
    server is ended, and the next call starts another.
    """
    with LOCK:
        if RUNNING and (RUNNING[0].owner != os.getpid() or RUNNING[0].process.poll() is not None):
            stop_server()
        if not RUNNING:
            RUNNING.append(ForkServer(modules))
        try:
            return RUNNING[0].fork(arguments, fds, timeout)
        except BaseException:
            stop_server()
            raise


@atexit.register
def stop_server():
    """End this process's server, if there is one."""
    while RUNNING:
        RUNNING.pop().stop()


def serve(control_fd, modules):
    """The server: fork a rank for each request, tell the parent how each ended, end when the parent is gone."""
    # PyTorch's compiler makes the folder of its cache as it is imported; one that exists leaves nothing behind.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())  # a rank gets its parent's environment
    for name in modules:
        with contextlib.suppress(Exception):  # a rank that needs the module reports what is wrong with it
            importlib.import_module(name)
    orphans.adopt()
    control, statuses = socket.socket(fileno=control_fd), {}
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the next line has something to do
    signal.set_wakeup_fd(woken)
    while True:
        ready = wait([control, wake])
        if wake in ready:
            os.read(wake, 4096)
            _reap(statuses)
        if control in ready:
            _answer(control, statuses, [wake, woken])


def _reap(statuses):
    """Collect the ranks that have ended, and write their exit codes into their status pipes.

    With the last of them goes what they left behind: then no run is under way that it could belong to. The parent is
    told after that.
    """
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid not in statuses:  # an orphan, which this process has adopted
            continue
        fd = statuses.pop(pid)
        if not statuses:
            orphans.end()
        with contextlib.suppress(BrokenPipeError):
            os.write(fd, LENGTH.pack(os.waitstatus_to_exitcode(status)))
        os.close(fd)


def _answer(control, statuses, own):
    """Read one request, and fork."""
    header, fds, _, _ = socket.recv_fds(control, LENGTH.size, FDS)
    body = _read(control, LENGTH.unpack(header)[0]) if len(header) == LENGTH.size else b""
    if not body:  # the parent is gone
        orphans.end()
        os._exit(0)
    *of_rank, status = fds
    pid = os.fork()
    if pid == 0:
        _become_rank(body, of_rank, [control.detach(), status, *own, *statuses.values()])
    statuses[pid] = status
    for fd in of_rank:
        os.close(fd)
    control.sendall(LENGTH.pack(pid))


def _become_rank(body, fds, others):
    """In the fork: take on the parent's surroundings of this moment, and run. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in others:
            os.close(fd)
        for fd in fds:
            os.set_inheritable(fd, False)
        arguments, environment, folder, path = pickle.loads(body)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:] = path
        from .child import rank_main

        rank_main(*arguments, *fds)
    finally:
        os._exit(1)


def _read(sock, size):
    """Read `size` bytes, or less where the other end is gone."""
    data = bytearray()
    while len(data) < size and (chunk := sock.recv(min(size - len(data), 1 << 20))):
        data += chunk
    return bytes(data)
