"""The worker processes of this node: start, signal, reap; no decisions are made here."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from ftslurm import container, kernel
from ftslurm.agent.worker_launch import NO_INPUT, WorkerLaunch, spawn
from ftslurm.dataclasses import dataclass
from ftslurm.kernel import kill_descendants, signal_name
from ftslurm.local_directory import make_private, remove_tree
from ftslurm.monitor import stop_page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.rank_process import RankProcess
    from ftslurm.agent.standby import Standby, Standbys


@dataclass
class Worker:
    """A started worker; `pidfd` becomes readable when it ends.

    Attributes:
        contained: started through the command of `--worker-prefix`; the rank may be a child of the process.
        begun: the rank has begun, and not only the command before it.
        signalled: it was sent a signal.
    """

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
    contained: bool = False
    begun: bool = True
    signalled: bool = False
    found: RankProcess | None = None

    @property
    def rank_process(self) -> tuple[int, int]:
        """Process id and pidfd of the rank itself, as far as it is known; both may be this process's."""
        if self.contained and self.found is None and self.ended_ns is None:
            from ftslurm.agent.rank_process import find

            self.found = find(self.pid, self.record_dir)
        return (self.found.pid, self.found.pidfd) if self.found is not None else (self.pid, self.pidfd)


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

    @property
    def kept(self) -> set[int]:
        """The pids that sweeps do not kill: helpers of the agent and standby workers."""
        standbys = self.standbys.all if self.standbys is not None else ()
        return self.spared | {standby.pid for standby in standbys}

    def start(self, launch: WorkerLaunch) -> Worker:
        """Start one worker in a session of its own; `OSError` when it cannot be.

        Must be called from the main thread: the kernel sends the parent-death signal when the *thread* that made the
        process ends.
        """
        make_private(launch.record_dir)
        stop_page.create(launch.record_dir)
        if launch.own is not None:
            # Needed later, when the filesystem of Python may hang.
            import ftslurm.agent.rank_process  # noqa: F401

            container.write_environment(launch.record_dir, launch.own)
        started_ns = self._now_ns()
        ahead = self.standbys.take(launch) if self.standbys is not None else None
        pid, pidfd = ahead or spawn(launch.command, launch.environment, NO_INPUT, launch.cpus)
        worker = Worker(launch.local_rank, launch.rank, pid, pidfd, launch.record_dir, started_ns, launch.stderr)
        worker.contained = launch.own is not None
        self.all.append(worker)
        return worker

    def send(self, local_ranks: Sequence[int], number: int) -> None:
        """Send a signal to the main processes of these workers; a stopped one is continued so that it can react.

        A container runtime above a rank gets SIGKILL only: not all pass on a SIGTERM, some would end by it at once.
        """
        for worker in self.all:
            if worker.local_rank in local_ranks and worker.ended_ns is None:
                rank = worker.rank_process[1]
                for pidfd in dict.fromkeys((rank, worker.pidfd) if number == signal.SIGKILL else (rank,)):
                    try:
                        kernel.pidfd_send_signal(pidfd, number)
                        worker.signalled = True
                        if number == signal.SIGTERM:
                            kernel.pidfd_send_signal(pidfd, signal.SIGCONT)
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
            is_rank = worker.found is not None and worker.found.pid == worker.pid
            if worker.contained and not is_rank and 128 < worker.exit_code <= 192:
                # A runtime above the rank reports the rank's signal as a shell does.
                worker.signal, worker.exit_code = signal_name(worker.exit_code - 128), None
        worker.begun = not worker.contained or container.announced(worker.record_dir) is not None
        os.close(worker.pidfd)
        if worker.found is not None:
            os.close(worker.found.pidfd)
            worker.found = None
        return True

    def find_ranks(self) -> None:
        """Find the ranks' own processes below their containers' runtimes, as long as they can be found."""
        for worker in self.all:
            if worker.contained and worker.ended_ns is None:
                _ = worker.rank_process

    def clear(self) -> None:
        """Forget the round's workers, all ended, and their node-local files."""
        for worker in self.all:
            remove_tree(worker.record_dir)
        self.all = []

    def sweep(self) -> bool:
        """Kill and collect whatever descends from this process, but for `kept`; True when nothing is left to kill."""
        for _ in range(2):
            self.collect()
            if not kill_descendants(os.getpid(), spared=self.kept):
                return True
        return False
