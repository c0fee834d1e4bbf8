"""The worker processes of this node: start, signal, reap; nothing is decided here."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ftslurm.agent.guardian import remove_tree
from ftslurm.agent.kernel import descendants, kill_descendants


@dataclass(frozen=True)
class Launch:
    """One worker to start."""

    local_rank: int
    rank: int
    command: Sequence[str]
    environment: Mapping[str, str]
    record_dir: str


@dataclass
class Worker:
    """A started worker; `pidfd` becomes readable when it ends."""

    local_rank: int
    rank: int
    pid: int
    pidfd: int
    record_dir: str
    started_ns: int
    ended_ns: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    core_dumped: bool = False


class Workers:
    """The workers of the current round.

    Args:
        now_ns: wall clock, nanoseconds since the epoch.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.all: list[Worker] = []

    def start(self, launch: Launch) -> Worker:
        """Start one worker in a session of its own; `OSError` when it cannot be.

        Must be called from the main thread: the kernel sends the parent-death signal when the *thread* that made the
        process ends.
        """
        os.makedirs(launch.record_dir, 0o700, exist_ok=True)
        started_ns = self._now_ns()
        pid = os.posix_spawn(
            launch.command[0],
            list(launch.command),
            launch.environment,
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)],
            setsid=True,
            setsigmask=[],
            # Python ignores these two; programs expect them to be as a shell leaves them.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        worker = Worker(launch.local_rank, launch.rank, pid, os.pidfd_open(pid), launch.record_dir, started_ns)
        self.all.append(worker)
        return worker

    def send(self, local_ranks: Sequence[int], number: int) -> None:
        """Send a signal to the main processes of these workers; a stopped one is continued so that it can react."""
        for worker in self.all:
            if worker.local_rank in local_ranks and worker.ended_ns is None:
                try:
                    signal.pidfd_send_signal(worker.pidfd, number)
                    if number == signal.SIGTERM:
                        signal.pidfd_send_signal(worker.pidfd, signal.SIGCONT)
                except ProcessLookupError:
                    pass

    def reap(self, worker: Worker) -> bool:
        """Collect a worker that has ended; False when it is still alive."""
        try:
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = worker.pid, 255 << 8
        if pid == 0:
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


def sweep() -> bool:
    """Kill and reap whatever descends from this process; True when nothing is left."""
    reap_orphans()
    if not kill_descendants(os.getpid()):
        return True
    reap_orphans()
    return not descendants(os.getpid())


def reap_orphans() -> None:
    """Collect all children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def signal_name(number: int) -> str:
    """Return "SIGTERM" for 15; "SIG50" for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
