"""One rank as its parent sees it: a process, what has come through its pipes, and how it failed."""

import contextlib
import os
import pickle
import re
import signal
import struct
import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait

SLACK_S = 0.05  # a death is seen by the parent at most about this long after it happened
END_S = 10  # a killed process is gone in milliseconds; a parent must not wait for one that the system can't end
KEPT_OUTPUT = 20_000  # bytes of a rank's output that an error can show
# What a rank's stack shows below the function that it ran: how the process came to be.
BELOW_THE_CALL = re.compile(r'  File "[^"\n]*ranks/child\.py", line \d+ in rank_main\n(  File .*\n?)*')


class RankError(RuntimeError):
    """A rank failed. `rank` is the one that failed first, `signal` the signal that killed it, or None."""

    def __init__(self, message, rank=None, signal=None):
        """Say `message`; keep the rank and the signal."""
        super().__init__(message)
        self.rank, self.signal = rank, signal


class RankTimeout(RankError, TimeoutError):
    """The deadline passed. `unfinished` lists the ranks that had not returned."""

    def __init__(self, message, unfinished):
        """Say `message`; keep the ranks that had not returned."""
        super().__init__(message, rank=unfinished[0])
        self.unfinished = unfinished


@dataclass
class Member:
    """A rank's process, the parent's ends of its pipes, and what has come through them so far.

    `report` brings what `fn` returned or raised, `output` what the rank printed, `status` its exit code.
    """

    rank: int
    world_size: int
    pid: int
    pipes: dict  # "report", "output", "status" -> file descriptor
    received: dict = field(default_factory=dict)
    open_pipes: set = field(default_factory=set)
    message: tuple | None = None
    died_at: float | None = None

    def __post_init__(self):
        """Make reading from the pipes never wait."""
        for name, fd in self.pipes.items():
            os.set_blocking(fd, False)
            self.received[name] = bytearray()
            self.open_pipes.add(name)

    @property
    def settled(self):
        """Whether nothing more is to be expected from this rank."""
        return self.message is not None or self.died_at is not None

    @property
    def failed_at(self):
        """When the rank failed, on the clock that all processes of a machine share; None if it has not."""
        if self.message is not None:
            return self.message[1] if self.message[0] == "raised" else None
        return None if self.died_at is None else self.died_at - SLACK_S

    @property
    def lost_a_peer(self):
        """Whether the rank failed because another one was gone."""
        return self.message is not None and self.message[0] == "raised" and self.message[4]

    def waitables(self):
        """What becomes ready when something happens to this rank."""
        return [self.pipes[name] for name in self.open_pipes]

    def update(self):
        """Take in what the rank has written, without waiting, and notice its death."""
        self._drain("status")  # first: what the rank wrote before it died is then in the other pipes
        dead = "status" not in self.open_pipes
        for name in tuple(self.open_pipes):
            self._drain(name)
        body = self.received["report"]
        if self.message is None and len(body) >= 8 and len(body) - 8 >= struct.unpack_from("q", body)[0]:
            self.message = pickle.loads(memoryview(body)[8:])
        if dead and self.died_at is None:
            self.died_at = time.monotonic()

    def _drain(self, name):
        if name not in self.open_pipes:
            return
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.pipes[name], 1 << 20):
                self.received[name] += chunk
                if name == "output":
                    del self.received[name][:-KEPT_OUTPUT]
            self.open_pipes.discard(name)

    def result(self):
        """What `fn` returned on this rank."""
        return pickle.loads(self.message[1])

    def error(self):
        """The failure of this rank as an exception."""
        name, printed = f"rank {self.rank} of {self.world_size}", self.printed()
        if self.message is not None:
            return RankError(f"{name} raised {self.message[2]}\n\n{self.message[3]}{printed}", self.rank)
        if len(self.received["status"]) < 8:  # the server that would have told is gone
            return RankError(f"{name} was lost with the server that forked it{printed}", self.rank)
        code = struct.unpack("q", self.received["status"])[0]
        if code >= 0:
            return RankError(f"{name} ended with exit code {code} before it returned{printed}", self.rank)
        number = signal.Signals(-code)
        return RankError(f"{name} was killed by {number.name} (signal {-code}){printed}", self.rank, number)

    def printed(self):
        """What the rank printed, for an error."""
        text = BELOW_THE_CALL.sub("", self.received["output"].decode(errors="replace")).strip()
        return f"\n\nRank {self.rank} had printed:\n{text}" if text else ""

    def kill(self):
        """End the rank and every process it started."""
        for kill in (os.killpg, os.kill):  # the first fails in the first moments, before the rank leads a group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)

    def close(self):
        """Wait for the end of the process, and give back what it held here."""
        until = time.monotonic() + END_S
        while "status" in self.open_pipes and time.monotonic() < until:
            wait([self.pipes["status"]], until - time.monotonic())
            self._drain("status")
        for fd in self.pipes.values():
            os.close(fd)
