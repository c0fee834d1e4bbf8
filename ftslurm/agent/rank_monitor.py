"""The rank monitor: the node's named pipe and the watchdog of its ranks, driven by the agent's loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent.workers import Worker, Workers
from ftslurm.kernel import parent_of
from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.message import newest
from ftslurm.monitor.pipe import Pipe
from ftslurm.monitor.timeouts import Learned, Timeouts, effective, to_env
from ftslurm.monitor.timer_file import TimerFile
from ftslurm.monitor.watchdog import Expiry, Watchdog
from ftslurm.rendezvous.node_record import RankVitals, Vitals

ANCESTORS = 64
"""Number of ancestors of a process that are followed to find the worker that it belongs to."""


PIPE = "monitor"
"""Name of the node's pipe in the agent's node-local directory."""


class RankMonitor:
    """Watches the workers of this node.

    Args:
        configured: the time-outs given by the user.
        inherited: the environment that workers start from; configures torch's timers, see `TimerFile`.
        directory: node-local, of this agent alone; the pipe is made in it.
        workers: the agent's.
        monotonic: clock, seconds.
        wall: clock, seconds since the epoch, which torch's timers use.
        stuck: how often the agent's own loop was stuck; goes into the vitals.

    Attributes:
        pipe: where workers' messages arrive.
        timer_file: where torch's timers find it.
    """

    def __init__(
        self,
        configured: Timeouts,
        inherited: Mapping[str, str],
        directory: str,
        workers: Workers,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        stuck: Callable[[], int] = lambda: 0,
    ) -> None:
        self._configured = configured
        self._learned: Learned | None = None
        self._workers = workers
        self._monotonic = monotonic
        self._wall = wall
        self.pipe = Pipe(os.path.join(directory, PIPE))
        self.timer_file = TimerFile(inherited, self.pipe.path)
        self._pipe_problem: str | None = None
        self._watch = Watchdog(effective(configured, None), self._read_page, self._owner)
        self._sizes: dict[int, int] = {}
        self._sizes_pending = False
        self._stuck = stuck

    @property
    def deadline(self) -> float | None:
        """The monotonic second of the next check of a rank."""
        return self._watch.deadline

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return the monitor's environment variables of that local rank's worker."""
        self.pipe.check()
        return {
            "FTSLURM_PIPE": self.pipe.path,
            "FTSLURM_TIMEOUTS": to_env(self._configured, self._learned),
            **self.timer_file.environment(local_rank),
        }

    def keep_pipe(self) -> str | None:
        """Restore the pipe and its links if they were removed; return a line for the user if that fails."""
        self.pipe.check()
        self.timer_file.restore()
        before, self._pipe_problem = self._pipe_problem, self.pipe.problem
        if self.pipe.problem is None or self.pipe.problem == before:
            return None
        return f"the ranks' pipe cannot be restored: {self.pipe.problem}; torch's timers are not received until it is"

    def begin(self, worker: Worker) -> None:
        """A worker has started."""
        self._watch.begin(worker.local_rank, self._monotonic())

    def end(self, worker: Worker) -> None:
        """A worker has ended."""
        self._watch.end(worker.local_rank)

    def clear(self) -> None:
        """The round is over; drop its data."""
        self._watch.clear()
        self._sizes.clear()

    def learn(self, learned: Learned | None) -> None:
        """Apply the time-outs learned in the state from now on."""
        if learned != self._learned:
            self._learned = learned
            self._watch.update(effective(self._configured, learned))

    def forgive(self) -> None:
        """This process did not run for a while (suspended, stopped), and its ranks perhaps did not either."""
        self._watch.forgive(self._monotonic())

    def receive(self) -> list[str]:
        """Process the messages in the pipe; return lines for the user."""
        notes = [self._watch.receive(line, self._monotonic(), self._wall()) for line in newest(self.pipe.read())]
        return [self._with_rank(note.local_rank, note.text) for note in notes if note is not None]

    def due(self, now_s: float) -> list[Expiry]:
        """Return the time-outs expired by `now_s` (monotonic); receive messages sent before then first."""
        return self._watch.due(now_s)

    def step(self, local_rank: int) -> int | None:
        """Return the last training step that a rank reported."""
        found = self._read_page(local_rank)
        return found.progress.last_step if found is not None and found.progress is not None else None

    def vitals(self, round_: int) -> Vitals | None:
        """Return the ranks' vitals; None if none has been started."""
        if not self._workers.all:
            return None
        ranks = tuple(self._vitals_of(worker) for worker in self._workers.all)
        return Vitals(round_, self._watch.longest(), ranks, self._stuck())

    def counts(self) -> dict[str, int]:
        """Return the survived errors by kind: garbage, foreign senders, misuse, long lines, restored pipes."""
        kinds = {**self._watch.counts, **{name: self.pipe.counts[name] for name in ("overlong", "remade", "failed")}}
        return {name: count for name, count in sorted(kinds.items()) if count}

    # Output as progress, for --hang-timeout

    def wants_sizes(self) -> bool:
        """Return whether the sizes of the ranks' log files are to be read."""
        if self._watch.timeouts.hang_s is None or not self._workers.all:
            return False
        if self._sizes_pending:
            # The shared directory does not respond: without data, no rank may be considered hung.
            for worker in self._workers.all:
                self._watch.sign_of_life(worker.local_rank, self._monotonic())
        return not self._sizes_pending

    def read_sizes(self, logs: Mapping[int, Sequence[str]]) -> Callable[[], dict[int, int]]:
        """Return the task that reads them; its result is for `on_sizes`."""
        self._sizes_pending = True
        # The courier's thread reads them, perhaps long after the round is over.
        files = dict(logs)

        def read() -> dict[int, int]:
            return {local_rank: sum(_size(path) for path in paths) for local_rank, paths in files.items()}

        return read

    def on_sizes(self, sizes: object) -> None:
        """Handle the sizes of the ranks' log files; any other result, such as an error, counts as progress of all."""
        self._sizes_pending = False
        found = sizes if isinstance(sizes, dict) else {worker.local_rank: -1 for worker in self._workers.all}
        for local_rank, size in found.items():
            if self._sizes.get(local_rank) != size or size < 0:
                self._watch.sign_of_life(local_rank, self._monotonic())
        self._sizes = found

    # Callbacks of the watchdog

    def _worker(self, local_rank: int) -> Worker | None:
        return next((worker for worker in self._workers.all if worker.local_rank == local_rank), None)

    def _read_page(self, local_rank: int) -> heartbeat_page.HeartbeatPage | None:
        worker = self._worker(local_rank)
        return heartbeat_page.read(worker.record_dir) if worker is not None else None

    def _owner(self, pid: int) -> int | None:
        """Return the local rank of a process: a worker, or a descendant of one (a program behind a shell)."""
        pids = {worker.pid: worker.local_rank for worker in self._workers.all if worker.ended_ns is None}
        for _ in range(ANCESTORS):
            if pid in pids:
                return pids[pid]
            above = parent_of(pid)
            if above is None or above <= 1:
                return None
            pid = above
        return None

    def _vitals_of(self, worker: Worker) -> RankVitals:
        found = heartbeat_page.read(worker.record_dir)
        if found is None:
            return RankVitals(worker.rank, None, ())
        step = found.progress.last_step if found.progress is not None else None
        return RankVitals(worker.rank, step, tuple((i, n) for i, n in enumerate(found.pace.buckets) if n))

    def _with_rank(self, local_rank: int | None, text: str) -> str:
        worker = self._worker(local_rank) if local_rank is not None else None
        return f"rank {worker.rank}: {text}" if worker is not None else text


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
