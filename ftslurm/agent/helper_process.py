"""Short-lived programs of an agent whose output it reads: health checks, queries of Slurm, a user's commands."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass, field
from ftslurm.kernel import kill_descendants, pidfd_send_signal, spawn_unawaited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OUTPUT_LIMIT = 4 << 20
_ERRORS_KEPT = 1024


@dataclass
class HelperProcess:
    """A program in a session of its own, with its standard output so far.

    Attributes:
        over: its output has ended.
        errors: the end of its stderr, if that is read.
    """

    pid: int
    pidfd: int
    fd: int
    errors_fd: int = -1
    data: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    over: bool = False

    @staticmethod
    def start(
        command: Sequence[str],
        environment: Mapping[str, str],
        poll: select.epoll,
        stdin: str = os.devnull,
        *,
        reads_errors: bool = False,
    ) -> HelperProcess:
        """Start a program; from the main thread, as `Workers.start`.

        Args:
            poll: its output is registered there.
            stdin: a file.
            reads_errors: its stderr is read, too; else it is the agent's.

        Raises:
            OSError: no process can be created.
        """
        ends = [os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) for _ in range(2 if reads_errors else 1)]
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0)]
        for number, (_, write) in enumerate(ends, start=1):
            os.set_blocking(write, True)
            actions.append((os.POSIX_SPAWN_DUP2, write, number))
        try:
            pid, pidfd = spawn_unawaited(command, environment, actions)
        except OSError:
            for read, _ in ends:
                os.close(read)
            raise
        finally:
            for _, write in ends:
                os.close(write)
        for read, _ in ends:
            poll.register(read, select.EPOLLIN)
        return HelperProcess(pid, pidfd, ends[0][0], ends[1][0] if reads_errors else -1)

    def lines(self) -> list[bytes]:
        """Take the whole lines that it has written."""
        *lines, rest = bytes(self.data).split(b"\n")
        self.data[:] = rest
        return lines

    def receive(self) -> bool:
        """Read its output; True at the end of it."""
        self._receive_errors()
        while True:
            chunk = _read(self.fd)
            if chunk is None:
                return False
            self.data += chunk
            self.over = not chunk
            if not chunk or len(self.data) > _OUTPUT_LIMIT:
                return True

    def _receive_errors(self) -> None:
        # Bounded, as a program may write faster than it is read.
        for _ in range(64):
            chunk = _read(self.errors_fd) if self.errors_fd >= 0 else None
            if chunk is None:
                return
            if not chunk:
                # At its end it would stay readable. To close it removes it from the poll.
                os.close(self.errors_fd)
                self.errors_fd = -1
                return
            self.errors = (self.errors + chunk)[-_ERRORS_KEPT:]

    def drop(self, poll: select.epoll) -> None:
        """Kill it, if it still exists, with its descendants; the agent collects it."""
        poll.unregister(self.fd)
        os.close(self.fd)
        if self.errors_fd >= 0:
            os.close(self.errors_fd)
        try:
            if not self.over:
                # A user's command that runs on would disturb the ranks. SIGSTOP first, so that it forks no more.
                pidfd_send_signal(self.pidfd, signal.SIGSTOP)
                kill_descendants(self.pid)
            pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(self.pidfd)


def _read(fd: int) -> bytes | None:
    """Return what can be read, empty at the end; None: nothing yet."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return None
