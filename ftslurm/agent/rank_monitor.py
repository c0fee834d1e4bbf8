"""The rank monitor: what the agent's loop knows of this node's ranks: hangs, stack collection, vitals.

It joins the node's named pipe, the heartbeat pages and the watchdog (`ftslurm.monitor.watchdog`), which decides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from ftslurm.agent.host_resources import ResourceSampler
from ftslurm.agent.journal import Journal
from ftslurm.agent.log_files import Outputs, log_sizes, outputs
from ftslurm.agent.option_groups import ON
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.stack_collection import StackCollection
from ftslurm.agent.worker_pages import has_begun, has_stepped, signs_of_movement, step_of, vitals_of
from ftslurm.agent.workers import Worker, Workers
from ftslurm.container import announced
from ftslurm.dataclasses import dataclass
from ftslurm.kernel import parent_of
from ftslurm.monitor import heartbeat_page, loading, stop_page
from ftslurm.monitor.heartbeat_page import INF
from ftslurm.monitor.message import newest
from ftslurm.monitor.movement import Movement
from ftslurm.monitor.pipe import Pipe
from ftslurm.monitor.timeouts import Learned, effective, to_env
from ftslurm.monitor.timer_file import TimerFile
from ftslurm.monitor.watchdog import TIMER, Expiry, Watchdog
from ftslurm.records.node import NodeRecord, RankVitals, Vitals
from ftslurm.records.stacks import StacksFile

PIPE = "monitor"
"""Name of the directory of the node's pipe in the agent's node-local directory."""
ANCESTORS = 64
"""Number of ancestors of a process that are followed to find the worker that it belongs to."""
FIRST_STEP_S = 1.0
"""Interval of reading the ranks' pages, which are node-local, until one has reported a step in the round."""
SIZES_EVERY_S, SIZES_SHARE = 0.1, 0.2
"""Log sizes are read every fifth of --hang-timeout, so that a rank that only prints is recognised in time; but at most
every 0.1 s."""


@dataclass(frozen=True)
class Message:
    """A line for the user."""

    text: str


@dataclass(frozen=True)
class HungRank:
    """A rank exceeded a time-out; see `AgentMachine.on_hang`. ``since_s``: monotonic second of its last progress."""

    local_rank: int
    what: str
    number: int
    step: int | None
    since_s: float


@dataclass(frozen=True)
class StacksCollected:
    """The requested stacks are collected."""


@dataclass(frozen=True)
class VitalsChanged:
    """New vitals of the ranks.

    Attributes:
        at_once: the first ones of the round with a step, not to wait for a heartbeat.
        first_heartbeat: a rank has sent its first one since the last ones; likewise, as a record that denies it may
            stay for half a minute.
    """

    vitals: Vitals
    at_once: bool = False
    first_heartbeat: bool = False


RankEvent = Message | HungRank | StacksCollected | VitalsChanged


class RankMonitor:
    """Monitors the workers of this node.

    Args:
        settings: the agent's; the pipe is made in its node-local directory.
        workers: the agent's.
        journal: writes the stacks.
        host_resources: sampled as often as the vitals.
        send: runs a task where the filesystem may hang; its result is for `on_log_sizes`.
        monotonic: clock, seconds.
        wall: clock, seconds since the epoch, which torch's timers use.
        stuck: how often the agent's own loop was stuck; goes into the vitals.

    Attributes:
        fd: becomes readable when a worker sends a message.
        timer_file: where torch's timers find the pipe.
    """

    def __init__(
        self,
        settings: AgentSettings,
        workers: Workers,
        journal: Journal,
        host_resources: ResourceSampler,
        send: Callable[[Callable[[], object]], None],
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        stuck: Callable[[], int] = lambda: 0,
    ) -> None:
        self._options = settings.options.timeouts
        self._records = settings.options.output.flight_recorder == ON
        self._workers = workers
        self._journal = journal
        self._host_resources = host_resources
        self._send = send
        self._monotonic = monotonic
        self._wall = wall
        self._stuck = stuck
        self._pipe = Pipe(os.path.join(settings.local_dir, PIPE))
        self._pipe_problem: str | None = None
        self.fd = self._pipe.fd
        self.timer_file = TimerFile(settings.inherited, self._pipe.path)
        self._learned: Learned | None = None
        self._watchdog = Watchdog(effective(self._options.configured, None), self._read_page, self._owner)
        self._hung: dict[int, str] = {}
        self._collection: StackCollection | None = None
        self._request: StacksFile | None = None
        self._answer: StackCollection | None = None
        self._logs: dict[int, tuple[str, ...]] = {}
        self._sizes: dict[int, int] = {}
        self._sizes_pending = False
        self._movement = Movement(monotonic)
        self._outputs_pending = False
        sizes_s = max(SIZES_EVERY_S, SIZES_SHARE * (self._options.configured.hang_s or INF))
        self._vitals_s = min(settings.options.timing.heartbeat_s, sizes_s)
        self._vitals_at: float | None = None
        self._first_step_at: float | None = None
        self._silent = 0

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `turn` is due."""
        collection = self._collection.deadline if self._collection is not None else None
        answer = self._answer.deadline if self._answer is not None else None
        moments = (self._watchdog.deadline, self._vitals_at, self._first_step_at, collection, answer)
        return min((moment for moment in moments if moment is not None), default=None)

    # Workers

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return the monitor's environment variables of that local rank's worker."""
        self._pipe.check()
        return {
            "FTSLURM_PIPE": self._pipe.path,
            "FTSLURM_TIMEOUTS": to_env(self._options.configured, self._learned),
            "FTSLURM_AUTO_PROGRESS": self._options.auto_progress,
            **self.timer_file.environment(local_rank),
        }

    def begin(self, worker: Worker, logs: tuple[str, ...]) -> None:
        """A worker has started, whose output goes to these files."""
        self._watchdog.begin(worker.local_rank, self._monotonic())
        self._movement.begin(worker.local_rank)
        self._logs[worker.local_rank] = logs
        self._vitals_at = self._monotonic() + self._vitals_s
        self._first_step_at = self._monotonic() + FIRST_STEP_S

    def end(self, worker: Worker) -> None:
        """A worker has ended."""
        self._watchdog.end(worker.local_rank)

    def over(self, record: NodeRecord) -> None:
        """The round is over here, and nothing of it is left."""
        if self._collection is not None and not self._collection.done:
            self._collection.close()
            self._note_movement(self._collection)
            self._journal.stacks_collected(self._collection, record)
        self._collection = None
        self._vitals_at = self._first_step_at = None

    def clear(self) -> None:
        """Forget the round."""
        self._drop_answer()
        self._watchdog.clear()
        self._hung.clear()
        self._logs.clear()
        self._sizes.clear()
        self._silent = 0

    # Time-outs

    def learn(self, learned: Learned | None) -> None:
        """Apply the time-outs learned in the state from now on."""
        if learned != self._learned:
            self._learned = learned
            self._watchdog.update(effective(self._options.configured, learned))

    def forgive(self) -> None:
        """This process was suspended, and the ranks perhaps with it: that time does not count."""
        self._watchdog.forgive(self._monotonic())

    def collect_stacks(
        self,
        round_: int,
        local_ranks: Sequence[int],
        stop: str | None = None,
        after: str | None = None,
        urgent: bool = True,
    ) -> None:
        """Collect the stacks, and the records of collectives, of those workers that are alive.

        Args:
            round_: their round.
            local_ranks: the workers.
            stop: why they are stopped from outside: whether they moved is then examined, too. None: a rank hangs.
            after, urgent: see `CollectStacks`.
        """
        self._drop_answer()
        alive = [one for one in self._workers.all if one.local_rank in local_ranks and one.ended_ns is None]
        if stop is not None:
            self._sample_movement(alive, at_once=True)
        self._collection = self._collect(round_, alive, stop, after, urgent)

    def _collect(
        self,
        round_: int,
        workers: Sequence[Worker],
        stop: str | None = None,
        after: str | None = None,
        urgent: bool = True,
    ) -> StackCollection:
        found = StackCollection(round_, workers, self._hung, self._monotonic, stop, self._records, after, urgent)
        for worker in workers:
            if (step := self._vitals_of(worker).step) is not None:
                found.steps[worker.local_rank] = step
            quiet_s = self._watchdog.quiet_s(worker.local_rank, self._monotonic()) if stop is None else None
            if quiet_s is not None:
                found.still[worker.local_rank] = quiet_s, 0.0
        return found

    def request_stacks(self, request: StacksFile) -> None:
        """Collect stacks and records because a user asks for them (once for each request); the ranks go on."""
        if self._request == request or not self._workers.all:
            return
        self._request = request
        self._drop_answer()
        # A collection of a hang or a stop asks the same ranks now, and must not be disturbed.
        busy = self._collection is not None and not self._collection.done
        alive = [] if busy else [one for one in self._workers.all if one.ended_ns is None]
        self._answer = self._collect(request.round, alive)

    def _drop_answer(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer = None

    def _poll_answer(self, record: NodeRecord) -> None:
        if self._answer is not None and self._request is not None and self._answer.poll():
            self._journal.stacks_answer(self._answer, self._request.time_ns, record)
            self._answer = None

    def delays_stop(self) -> bool:
        """Return whether ranks get their SIGTERM later, because their stacks are being collected."""
        return self._collection is not None and self._collection.delays_stop

    def turn(self, readable: bool, record: NodeRecord, now: float) -> Iterator[RankEvent]:
        """Do what is due and yield the events; the caller handles each one before the next is computed.

        Args:
            readable: whether `fd` is readable.
            record: this node's, for the error records.
            now: monotonic seconds at which this process was known to run; what is over by then has expired.
        """
        due = self._watchdog.deadline is not None and self._watchdog.deadline <= now
        # Messages sent before now count: the release of a timer that is due may still lie in the pipe.
        for line in newest(self._pipe.read()) if readable or due else ():
            note = self._watchdog.receive(line, self._monotonic(), self._wall())
            if note is not None:
                yield Message(self._with_rank(note.local_rank, note.text))
        expiries = self._watchdog.due(now)
        # All of them first: the stack collection requested by the first one names all expired ranks.
        self._hung.update((expiry.local_rank, expiry.what) for expiry in expiries if expiry.signal)
        for expiry in expiries:
            yield self._expired(expiry)
        if self._collection is not None and self._collection.poll(complete=not self._outputs_pending):
            self._note_movement(self._collection)
            self._journal.stacks_collected(self._collection, record)
            yield StacksCollected()
        self._poll_answer(record)
        if self._vitals_at is not None and self._monotonic() >= self._vitals_at:
            yield from self._sample_vitals(record)
        if self._first_step_at is not None and self._monotonic() >= self._first_step_at:
            yield from self._await_first_step(record)

    def _expired(self, expiry: Expiry) -> RankEvent:
        if not expiry.signal:
            return Message(self._with_rank(expiry.local_rank, f"{expiry.what}; its timer requests no signal"))
        number = expiry.signal if expiry.kind == TIMER else self._options.hang_signal
        page = self._read_page(expiry.local_rank)
        return HungRank(expiry.local_rank, expiry.what, number, step_of(page), expiry.since_s)

    # Vitals

    def _sample_vitals(self, record: NodeRecord) -> Iterator[RankEvent]:
        self._vitals_at = self._monotonic() + self._vitals_s
        self._host_resources.sample()
        self._workers.find_ranks()
        vitals = self.vitals(record.round)
        if vitals is not None:
            # A record that denies a heartbeat would stay so: at most one further write for each rank.
            yield VitalsChanged(vitals, first_heartbeat=vitals.longest.silent < self._silent)
            self._silent = vitals.longest.silent
        self._sample_movement([worker for worker in self._workers.all if worker.ended_ns is None])
        self._request_log_sizes()
        if problem := self._keep_pipe():
            yield Message(problem)

    def _await_first_step(self, record: NodeRecord) -> Iterator[RankEvent]:
        """Read the node-local pages until a rank has reported a step: users wait for the first sign of training.

        Or until it has called `should_stop`: other nodes wait to learn whether the ranks take notice of a stop.
        """
        self._first_step_at = self._monotonic() + FIRST_STEP_S
        if any(has_begun(worker) for worker in self._workers.all):
            self._first_step_at = None
            vitals = self.vitals(record.round)
            if vitals is not None:
                yield VitalsChanged(vitals, at_once=True)
                self._silent = vitals.longest.silent

    def vitals(self, round_: int) -> Vitals | None:
        """Return the ranks' vitals; None if none has been started."""
        if not self._workers.all:
            return None
        pages = [
            (worker, heartbeat_page.read(worker.record_dir), stop_page.read(worker.record_dir))
            for worker in self._workers.all
        ]
        ranks = tuple(vitals_of(worker.rank, page, stop) for worker, page, stop in pages)
        stepped = any(has_stepped(page, stop) for _, page, stop in pages)
        stoppable = sum(stop is not None and stop.calls > 0 and worker.ended_ns is None for worker, _, stop in pages)
        checkpoints = (loading.read(worker.record_dir) for worker in self._workers.all)
        first = next((path for path in checkpoints if path is not None), None)
        return Vitals(round_, self._watchdog.longest(), ranks, self._stuck(), first, stepped, stoppable)

    @staticmethod
    def _vitals_of(worker: Worker) -> RankVitals:
        page, stop = heartbeat_page.read(worker.record_dir), stop_page.read(worker.record_dir)
        return vitals_of(worker.rank, page, stop)

    def counts(self) -> dict[str, int]:
        """Return the survived errors by kind: garbage, foreign senders, misuse, long lines, restored pipes."""
        pipe = self._pipe.counts
        kinds = {**self._watchdog.counts, **{name: pipe[name] for name in ("overlong", "remade", "failed")}}
        return {name: count for name, count in sorted(kinds.items()) if count}

    def _keep_pipe(self) -> str | None:
        """Restore the pipe and its links if they were removed; return a line for the user if that fails."""
        self._pipe.check()
        self.timer_file.restore()
        before, problem = self._pipe_problem, self._pipe.problem
        self._pipe_problem = problem
        if problem is None or problem == before:
            return None
        return f"the ranks' pipe cannot be restored: {problem}; torch's timers are not received until it is"

    # Output as progress, for --hang-timeout

    def _request_log_sizes(self) -> None:
        if self._watchdog.timeouts.hang_s is None or not self._workers.all:
            return
        if self._sizes_pending:
            # The shared directory does not respond: without data, no rank may be considered hung.
            for worker in self._workers.all:
                self._watchdog.sign_of_life(worker.local_rank, self._monotonic())
            return
        self._sizes_pending = True
        # The courier's thread reads them, perhaps long after the round is over.
        files = dict(self._logs)
        self._send(lambda: log_sizes(files))

    def on_log_sizes(self, sizes: object) -> None:
        """Handle the sizes of the ranks' log files; any other result, such as an error, counts as progress of all."""
        if isinstance(sizes, Outputs):
            self._outputs_pending = False
            self._movement.on_outputs(sizes)
            if self._collection is not None:
                self._collection.await_no_more()
            return
        self._sizes_pending = False
        found = sizes if isinstance(sizes, dict) else {worker.local_rank: -1 for worker in self._workers.all}
        for local_rank, size in found.items():
            if self._sizes.get(local_rank) != size or size < 0:
                self._watchdog.sign_of_life(local_rank, self._monotonic())
        self._sizes = found

    # Movement, for the report on a job that is stopped from outside

    def _sample_movement(self, alive: Sequence[Worker], at_once: bool = False) -> None:
        signs = {worker.local_rank: signs_of_movement(worker) for worker in alive}
        if self._movement.sample(alive, signs, at_once=at_once) and not self._outputs_pending:
            self._outputs_pending = True
            files = dict(self._logs)
            self._send(lambda: outputs(files, self._wall()))

    def _note_movement(self, collection: StackCollection) -> None:
        if collection.stop is not None and not self._outputs_pending:
            still = {worker.local_rank: self._movement.still_s(worker.local_rank) for worker in collection.workers}
            collection.still.update(still)

    # Callbacks of the watchdog

    def _read_page(self, local_rank: int) -> heartbeat_page.HeartbeatPage | None:
        worker = self._worker(local_rank)
        return heartbeat_page.read(worker.record_dir) if worker is not None else None

    def _owner(self, pid: int) -> int | None:
        """Return the local rank of a process: a worker, or a descendant of one (a program behind a shell)."""
        pids = {worker.pid: worker.local_rank for worker in self._workers.all if worker.ended_ns is None}
        sender = pid
        for _ in range(ANCESTORS):
            if pid in pids:
                return pids[pid]
            above = parent_of(pid)
            if above is None or above <= 1:
                break
            pid = above
        # In a container that has process ids of its own.
        contained = (one for one in self._workers.all if one.contained and one.ended_ns is None)
        return next((one.local_rank for one in contained if announced(one.record_dir) == sender), None)

    def _worker(self, local_rank: int) -> Worker | None:
        return next((worker for worker in self._workers.all if worker.local_rank == local_rank), None)

    def _with_rank(self, local_rank: int | None, text: str) -> str:
        worker = self._worker(local_rank) if local_rank is not None else None
        return f"rank {worker.rank}: {text}" if worker is not None else text
