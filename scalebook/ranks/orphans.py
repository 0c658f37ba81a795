"""The processes that a rank leaves behind, ended with it, also where they have a session of their own.

A rank is ended by its process group. A process that began a session of its own is not in that group. On Linux a process
can ask to become the parent of every descendant that loses its own (`prctl`, PR_SET_CHILD_SUBREAPER): the server that
forks the ranks does, and so it finds what they left. Elsewhere such a process goes on.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
ROUNDS = 100  # of looking: each ends a generation, since the children of what is ended become orphans in their turn


def adopt():
    """Become the parent of descendants that lose theirs. Says whether the system does that."""
    if sys.platform != "linux":
        return False
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def children():
    """The processes whose parent is this one, as Linux tells; none elsewhere."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            after_the_name = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(after_the_name[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


def end():
    """End every child of this process, and their children, until there is none."""
    for _ in range(ROUNDS):
        left = children()
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
