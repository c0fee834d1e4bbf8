"""The worker processes of this node: start, signal, reap; no decisions are made here."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence

from ftslurm import kernel
from ftslurm.dataclasses import dataclass
from ftslurm.kernel import kill_descendants, signal_name
from ftslurm.localdir import make_private, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ftslurm.agent.standby import Standby, Standbys

NO_INPUT = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)


@dataclass(frozen=True)
class Launch:
    """One worker to start; ``stderr``: the file that its stderr goes to, None: it has none of its own."""

    local_rank: int
    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    record_dir: str
    stderr: str | None = None


@dataclass
class Worker:
    """A started worker; `pidfd` becomes readable when it ends."""

    local_rank: int
    rank: int
    pid: int
    pidfd: int
    record_dir: str
    started_ns: int
    stderr: str | None = None
    status: int | None = None
    ended_ns: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    core_dumped: bool = False


class Workers:
    """The workers of the current round.

    Args:
        now_ns: wall clock, nanoseconds since the epoch.

    Attributes:
        all: the workers.
        standbys: processes that may become workers; None: there are none.
        spared: pids of the agent's own helpers, which sweeps do not kill.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.all: list[Worker] = []
        self.standbys: Standbys | None = None
        self.spared: set[int] = set()

    def start(self, launch: Launch) -> Worker:
        """Start one worker in a session of its own; `OSError` when it cannot be.

        Must be called from the main thread: the kernel sends the parent-death signal when the *thread* that made the
        process ends.
        """
        make_private(launch.record_dir)
        started_ns = self._now_ns()
        ahead = self.standbys.take(launch) if self.standbys is not None else None
        pid, pidfd = ahead or spawn(launch.command, launch.environment, NO_INPUT)
        worker = Worker(launch.local_rank, launch.rank, pid, pidfd, launch.record_dir, started_ns, launch.stderr)
        self.all.append(worker)
        return worker

    def send(self, local_ranks: Sequence[int], number: int) -> None:
        """Send a signal to the main processes of these workers; a stopped one is continued so that it can react."""
        for worker in self.all:
            if worker.local_rank in local_ranks and worker.ended_ns is None:
                try:
                    kernel.pidfd_send_signal(worker.pidfd, number)
                    if number == signal.SIGTERM:
                        kernel.pidfd_send_signal(worker.pidfd, signal.SIGCONT)
                except ProcessLookupError:
                    pass

    def collect(self) -> None:
        """Collect all children that have ended: workers and standbys, whose status is kept, and orphans."""
        awaited: list[Worker | Standby] = [*self.all, *(self.standbys.all if self.standbys is not None else ())]
        pids = {process.pid: process for process in awaited if process.status is None}
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.spared.discard(ended[0])
                if ended[0] in pids:
                    pids.pop(ended[0]).status = ended[1]
        except ChildProcessError:
            pass

    def reap(self, worker: Worker) -> bool:
        """Note how a worker has ended; False while that is unknown: alive, or held by a debugger."""
        self.collect()
        status = worker.status
        if status is None:
            return False
        worker.ended_ns = self._now_ns()
        if os.WIFSIGNALED(status):
            worker.signal = signal_name(os.WTERMSIG(status))
            worker.core_dumped = os.WCOREDUMP(status)
        else:
            worker.exit_code = os.WEXITSTATUS(status)
        os.close(worker.pidfd)
        return True

    def clear(self) -> None:
        """Forget the round's workers, all ended, and their node-local files."""
        for worker in self.all:
            remove_tree(worker.record_dir)
        self.all = []

    def sweep(self) -> bool:
        """Kill and collect whatever descends from this process; True when no process is left that can be killed."""
        for _ in range(2):
            self.collect()
            if not kill_descendants(os.getpid(), spared=self.spared):
                return True
        return False


def spawn(command: Sequence[str], environment: Mapping[str, str], stdin: Any) -> tuple[int, int]:
    """Start a worker process in a session of its own; return its pid and pidfd.

    Args:
        stdin: what posix_spawn does to its standard input, such as `NO_INPUT`.

    Raises:
        OSError: it cannot be started.
    """
    # Python ignores the first two, the agent the third; programs expect them to be as a shell leaves them.
    ignored = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU)
    try:
        return kernel.spawn(command, environment, [stdin], ignored)
    except OSError:
        # posix_spawn(3) does not tell which of its steps failed.
        if stdin == NO_INPUT:
            os.close(os.open(NO_INPUT[2], NO_INPUT[3] | os.O_CLOEXEC))
        raise
