"""The rank monitor: the node's named pipe and the watch over its ranks, as the agent's loop drives them."""

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
"""So far up a process's ancestors are followed to find the worker that it belongs to."""


PIPE = "monitor"
"""The node's pipe lies there, in the agent's node-local directory."""


class RankMonitor:
    """Watches the workers of this node.

    Args:
        asked: the time-outs that the user asked for.
        inherited: the environment that workers start from; says what is to become of torch's timers, see `TimerFile`.
        directory: node-local, of this agent alone; the pipe comes into it.
        workers: the agent's.
        monotonic: clock, seconds.
        wall: clock, seconds since the epoch: torch's timers name its times.
        stuck: how often the agent's own loop was stuck; goes into the vitals.

    Attributes:
        pipe: where workers' messages arrive.
        timer_file: where torch's timers find it.
    """

    def __init__(
        self,
        asked: Timeouts,
        inherited: Mapping[str, str],
        directory: str,
        workers: Workers,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        stuck: Callable[[], int] = lambda: 0,
    ) -> None:
        self._asked = asked
        self._learned: Learned | None = None
        self._workers = workers
        self._monotonic = monotonic
        self._wall = wall
        self.pipe = Pipe(os.path.join(directory, PIPE))
        self.timer_file = TimerFile(inherited, self.pipe.path)
        self._pipe_problem: str | None = None
        self._watch = Watchdog(effective(asked, None), self._read_mark, self._owner)
        self._sizes: dict[int, int] = {}
        self._looking = False
        self._stuck = stuck

    @property
    def deadline(self) -> float | None:
        """The monotonic second of the next look at a rank."""
        return self._watch.deadline

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return what the worker of that local rank gets to know."""
        self.pipe.check()
        return {
            "FTSLURM_PIPE": self.pipe.path,
            "FTSLURM_TIMEOUTS": to_env(self._asked, self._learned),
            **self.timer_file.environment(local_rank),
        }

    def keep_pipe(self) -> str | None:
        """Make anew what somebody has removed of the pipe and its names; return what the user should be told of it."""
        self.pipe.check()
        self.timer_file.restore()
        before, self._pipe_problem = self._pipe_problem, self.pipe.problem
        if self.pipe.problem is None or self.pipe.problem == before:
            return None
        return f"the ranks' pipe cannot be made anew: {self.pipe.problem}; torch's timers are not heard until it can"

    def begin(self, worker: Worker) -> None:
        """A worker has started."""
        self._watch.begin(worker.local_rank, self._monotonic())

    def end(self, worker: Worker) -> None:
        """A worker has ended."""
        self._watch.end(worker.local_rank)

    def clear(self) -> None:
        """The round is over; nothing of it is left in the next one."""
        self._watch.clear()
        self._sizes.clear()

    def learn(self, learned: Learned | None) -> None:
        """Let the time-outs that the state has learned hold from now on."""
        if learned != self._learned:
            self._learned = learned
            self._watch.update(effective(self._asked, learned))

    def forgive(self) -> None:
        """This process did not run for a while (suspended, stopped), and its ranks perhaps did not either."""
        self._watch.forgive(self._monotonic())

    def hear(self) -> list[str]:
        """Take what has come through the pipe; return what the user should be told."""
        notes = [self._watch.hear(line, self._monotonic(), self._wall()) for line in newest(self.pipe.read())]
        return [self._told(note.local_rank, note.text) for note in notes if note is not None]

    def due(self, now_s: float) -> list[Expiry]:
        """Return the time-outs that have expired by `now_s` (monotonic); what was said before then must be heard."""
        return self._watch.due(now_s)

    def step(self, local_rank: int) -> int | None:
        """Return the last step that a rank reported."""
        found = self._read_mark(local_rank)
        return found.progress.last_step if found is not None and found.progress is not None else None

    def vitals(self, round_: int) -> Vitals | None:
        """Return how the ranks get on; None when none has been started."""
        if not self._workers.all:
            return None
        ranks = tuple(self._vitals_of(worker) for worker in self._workers.all)
        return Vitals(round_, self._watch.longest(), ranks, self._stuck())

    def counts(self) -> dict[str, int]:
        """Return what was survived, by kind: garbage, strangers, misuse, over-long lines, a pipe made anew."""
        kinds = {**self._watch.counts, **{name: self.pipe.counts[name] for name in ("overlong", "remade", "failed")}}
        return {name: count for name, count in sorted(kinds.items()) if count}

    # Output as a sign of life, for --hang-timeout

    def wants_sizes(self) -> bool:
        """Tell whether somebody should look how long the ranks' log files are."""
        if self._watch.timeouts.hang_s is None or not self._workers.all:
            return False
        if self._looking:
            # The shared directory does not answer: who cannot see must not take anybody for dead.
            for worker in self._workers.all:
                self._watch.sign_of_life(worker.local_rank, self._monotonic())
        return not self._looking

    def look_at_sizes(self, logs: Mapping[int, Sequence[str]]) -> Callable[[], dict[int, int]]:
        """Return the errand that looks; its result is for `grown`."""
        self._looking = True
        # The courier's thread looks, perhaps long after the round is over.
        files = dict(logs)

        def look() -> dict[int, int]:
            return {local_rank: sum(_size(path) for path in paths) for local_rank, paths in files.items()}

        return look

    def grown(self, sizes: object) -> None:
        """Take the lengths of the ranks' log files; anything else, such as an error, says nothing against anybody."""
        self._looking = False
        found = sizes if isinstance(sizes, dict) else {worker.local_rank: -1 for worker in self._workers.all}
        for local_rank, size in found.items():
            if self._sizes.get(local_rank) != size or size < 0:
                self._watch.sign_of_life(local_rank, self._monotonic())
        self._sizes = found

    # What the watch asks

    def _worker(self, local_rank: int) -> Worker | None:
        return next((worker for worker in self._workers.all if worker.local_rank == local_rank), None)

    def _read_mark(self, local_rank: int) -> heartbeat_page.HeartbeatPage | None:
        worker = self._worker(local_rank)
        return heartbeat_page.read(worker.record_dir) if worker is not None else None

    def _owner(self, pid: int) -> int | None:
        """Return whose process that is: a worker's, or that of one below it (a program behind a shell)."""
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

    def _told(self, local_rank: int | None, text: str) -> str:
        worker = self._worker(local_rank) if local_rank is not None else None
        return f"rank {worker.rank}: {text}" if worker is not None else text


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
