"""The effects of an agent's loop on a real node: processes, pipes, threads, and the agent's components."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator

from ftslurm.agent.actions import (
    Assignment,
    CollectStacks,
    GuardianEnded,
    RecordFailure,
    RecordRound,
    SignalReceived,
    StandbyEnded,
    WorkerEnd,
)
from ftslurm.agent.components import Components
from ftslurm.agent.containment import (
    CONNECTION,
    DOORBELL,
    HEALTH,
    JOB_WATCH,
    LEFTOVERS,
    MESSAGES,
    MONITOR,
    STANDBY,
    Containment,
    Defect,
)
from ftslurm.agent.courier import CourierThread
from ftslurm.agent.defect_records import DefectRecords
from ftslurm.agent.effects import Effects, SpawnFailed
from ftslurm.agent.left_behind import left_behind
from ftslurm.agent.messages import never_begun
from ftslurm.agent.ports import ReservedPort
from ftslurm.agent.rank_monitor import PIPE, VitalsChanged
from ftslurm.agent.round_setup import reach_master
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.waiting import Waiting, drain
from ftslurm.agent.worker_launch import launch_of
from ftslurm.agent.workers import Worker
from ftslurm.kernel import descendants
from ftslurm.monitor.pipe import discard
from ftslurm.records.node import NodeRecord, Vitals
from ftslurm.records.state import EXIT_FAILED, State
from ftslurm.records.stop import Stop, StopVote
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.ownership import check_own_directory
from ftslurm.sharedfs.rundir import RunDirectory, rank_directory
from ftslurm.terminal import INFO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.standby_effects import StandbyEffects

GUARDIAN, COURIER = "guardian", "courier"
OVERSLEPT_S = 5.0
"""The loop runs on time to within this, in seconds, or its process was stopped."""
LATE = "as this agent leaves"


class NodeEffects(Effects):
    """The effects of one agent process.

    Args:
        settings: see `AgentSettings`.
        parts: of the agent.
        waiting: the sources of events.
        slots: number of workers of this node.
        courier: runs tasks.
        fs, run: where they write.
        reserve: reserves a port for the next round.
        containment: of the components.
        defects: records defects of ftslurm itself.
        explain: gives the guardian the reason of this agent's end, in case the agent cannot publish it.
        monotonic, now_ns: the clocks.

    Attributes:
        terminated_s: when the first SIGTERM arrived, monotonic seconds; None: none.
        leaving: the loop has ended.
    """

    def __init__(
        self,
        settings: AgentSettings,
        parts: Components,
        waiting: Waiting,
        slots: int,
        courier: CourierThread,
        fs: FileSystem,
        run: RunDirectory,
        reserve: Callable[[], ReservedPort],
        containment: Containment,
        defects: DefectRecords,
        explain: Callable[[str], None],
        monotonic: Callable[[], float],
        now_ns: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._workers = parts.workers
        self._waiting = waiting
        self._slots = slots
        self._standbys: StandbyEffects | None = None
        self._courier = courier
        self._fs = fs
        self._run = run
        self._reserve = reserve
        # During set-up: a system that refuses sockets ends it with one line, not as a defect of the loop.
        self._port = reserve()
        self._containment = containment
        self._defects = defects
        self._explain = explain
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._ready: list[Worker] = []
        self._running_s = monotonic()
        self.terminated_s: float | None = None
        self.leaving = False

    # Time and events

    def monotonic(self) -> float:
        """See `Effects`."""
        return self._monotonic()

    def now_ns(self) -> int:
        """See `Effects`."""
        return self._now_ns()

    @property
    def deadline(self) -> float | None:
        """See `Effects`."""
        parts = self._parts
        watchers = (parts.monitor, parts.health, parts.build_locks, parts.arrivals)
        all_parts = (parts.exits, parts.bell, *watchers, parts.stop, parts.hooks)
        deadlines = (one.deadline for one in all_parts if one is not None)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def wait(self, until_s: float | None) -> None:
        """Wait until something happens, at most until that monotonic second."""
        self._parts.guard.waiting()
        began = self._notice_suspension(0.0)
        timeout = None if until_s is None else max(0.0, until_s - began)
        self._waiting.wait(timeout)
        self._notice_suspension(math.inf if timeout is None else timeout)
        self._parts.guard.working()

    def _notice_suspension(self, expected_s: float) -> float:
        """Return the time; if much more than `expected_s` has passed since the last call, the ranks get it again.

        This process was stopped, and the ranks perhaps with it. That can happen at any place, so every time-out is
        judged by a time that this has returned.
        """
        now = self._monotonic()
        if now - self._running_s > expected_s + OVERSLEPT_S:
            self._parts.monitor.forgive()
        self._running_s = now
        return now

    def events(self, record: NodeRecord) -> Iterator[object]:
        """See `Effects`."""
        ready = self._waiting.ready
        if COURIER in ready:
            drain(self._courier.wake_r)
        for number in self._waiting.signals():
            if number == signal.SIGCHLD:
                self._workers.collect()
                continue
            if number == signal.SIGTERM and self.terminated_s is None:
                self.terminated_s = self._monotonic()
            yield SignalReceived(number)
        if GUARDIAN in ready:
            self._waiting.forget(GUARDIAN)
            yield GuardianEnded()
        yield from self._ended_workers([source for source in ready if isinstance(source, Worker)], record)
        if STANDBY in ready and self._standbys is not None:
            yield from self._standbys.events()
        if (DOORBELL in ready or self._is_due(self._parts.bell.deadline)) and self._parts.bell.answer():
            self._courier.wake()
        if HEALTH in ready or self._is_due(self._parts.health.deadline):
            for line in self._parts.health.poll():
                self._parts.console.warn(line)
        sampled = False
        now = self._notice_suspension(0.0)
        for event in self._parts.monitor.turn(MONITOR in ready, record, now):
            sampled = sampled or isinstance(event, VitalsChanged)
            yield event
        yield from self._parts.stop.events(self._monotonic(), JOB_WATCH in ready, sampled)
        self._parts.build_locks.on_time(self._running_pids)
        self._parts.arrivals.on_time()
        if self._parts.hooks is not None:
            self._parts.hooks.poll()

    def _is_due(self, deadline: float | None) -> bool:
        return deadline is not None and deadline <= self._monotonic()

    def _ended_workers(self, ready: list[Worker], record: NodeRecord) -> list[WorkerEnd]:
        for worker in ready:
            self._waiting.forget(worker)
            self._ready.append(worker)
        # A worker held by a debugger stays here until SIGCHLD announces that it can be collected.
        reaped = [worker for worker in self._ready if self._workers.reap(worker)]
        for worker in reaped:
            self._ready.remove(worker)
            how = worker.signal or f"exit code {worker.exit_code}"
            self._parts.console.debug(f"rank {worker.rank}: process {worker.pid} has ended: {how}")
            self._parts.monitor.end(worker)
            if not worker.begun and worker.exit_code is not None:
                self._parts.console.error(never_begun(worker.rank, worker.exit_code, self._settings.program.prefix))
                # A prefix that does not run its command and ends well is no success of the rank.
                worker.exit_code = worker.exit_code or EXIT_FAILED
        self._parts.exits.add(reaped, record)
        return self._parts.exits.take(record)

    # The user and the run directory

    def log(self, text: str, level: int = INFO) -> None:
        """See `Effects`."""
        self._parts.console.log(text, level)

    def report_defect(self, defect: Defect, round_: int) -> None:
        """See `Effects`."""
        if self.leaving:
            self.log_defect(defect, LATE, round_)
            return
        if defect.part is None:
            self.log_defect(defect, "its workers are stopped and this node leaves", round_)
            self._explain(defect.text)
            return
        self.log_defect(defect, f"{defect.part.meaning} ({defect.part.name}); the job goes on", round_)
        self._waiting.forget(defect.part)
        if defect.part == MONITOR:
            try:
                # A torch timer that cannot write to the pipe would end its rank.
                discard(os.path.join(self._settings.local_dir, PIPE))
            except OSError:
                pass

    def log_defect(self, defect: Defect, what_follows: str, round_: int) -> None:
        """Log and record a defect."""
        self._parts.console.error(defect.message(what_follows, self._defects.write(defect, round_)))

    def record_round(self, action: RecordRound, record: NodeRecord, started_ns: int) -> None:
        """See `Effects`."""
        self._parts.journal.round(action, self._workers.all, record, started_ns, self._parts.monitor.counts())
        if action.over:
            # After the records, on the same thread.
            directories = self._rank_directories(action.assignment)
            clean_up = self._containment.contained_task(LEFTOVERS, self._courier.send)
            clean_up(lambda: self._parts.journal.remove_empty(directories))

    def record_failure(self, action: RecordFailure) -> None:
        """See `Effects`."""
        self._parts.exits.record(action)

    def retry_records(self) -> None:
        """See `Effects`."""
        self._parts.journal.again()

    # The node record and the state

    def publish(self, record: NodeRecord) -> None:
        """See `Effects`."""
        self._courier.publish(record)
        self._parts.excluder.on_health(record)

    def reserve_port(self) -> int:
        """See `Effects`."""
        self._port.release()
        self._port = self._reserve()
        return self._port.number

    def with_health(self, record: NodeRecord) -> NodeRecord:
        """See `Effects`."""
        return self._parts.health.with_health(record)

    def vitals(self, round_: int) -> Vitals | None:
        """See `Effects`."""
        return self._parts.monitor.vitals(round_)

    def on_state(self, state: State, coordinating: bool) -> None:
        """See `Effects`."""
        if coordinating:
            # First, so that an exclusion stands behind the failure that led to it.
            self._parts.events.on_state(state)
            self._parts.excluder.on_state(state)
            if self._parts.hooks is not None:
                self._parts.hooks.on_state(state)
        self._parts.health.on_state(state)
        self._parts.stop.on_state(state, coordinating, self._monotonic(), self._now_ns())
        self._parts.monitor.learn(state.learned)
        if (request := state.stacks_request) is not None and request.round == state.round:
            self._parts.monitor.request_stacks(request)

    # A round's beginning

    def make_directories(self, assignment: Assignment) -> int:
        """See `Effects`."""
        for root in dict.fromkeys((self._run.root, self._settings.logs)):
            for directory in self._rank_directories(assignment, root):
                self._fs.makedirs(directory)
                check_own_directory(directory, root)
        self._fs.makedirs(os.path.dirname(self._run.round_node_file(assignment.round, self._settings.facts.node)))
        timer_file = self._parts.monitor.timer_file
        if timer_file is not None and (problem := timer_file.serve()):
            self._parts.console.warn(problem)
        return len(self._parts.commits.past(assignment.round))

    def _rank_directories(self, assignment: Assignment, *roots: str) -> list[str]:
        ranks = range(assignment.first_rank, assignment.first_rank + assignment.slots)
        roots = roots or tuple(dict.fromkeys((self._run.root, self._settings.logs)))
        return [rank_directory(root, assignment.round, rank) for root in roots for rank in ranks]

    def revoke_commits(self, assignment: Assignment, report: Callable[[str | None], None]) -> None:
        """See `Effects`."""
        self._parts.revocation.start(assignment, report)

    def test_connection(self, assignment: Assignment, report: Callable[[str | None], None]) -> None:
        """See `Effects`."""

        def test() -> None:
            # A test that cannot run proves nothing.
            report(self._containment.call(CONNECTION, None, reach_master, assignment.master))

        threading.Thread(target=test, name="reach", daemon=True).start()

    def spawn(self, assignment: Assignment) -> None:
        """See `Effects`."""
        self._parts.journal.begin()
        self._parts.health.on_round()
        self._port.release()
        try:
            for local_rank in range(assignment.slots):
                self._spawn_one(assignment, local_rank)
        finally:
            # What is left could not be used.
            self.drop_standbys()
        self._parts.arrivals.begin(assignment.round, assignment.world_size)
        self._parts.build_locks.scan(self._running_pids())

    def _spawn_one(self, assignment: Assignment, local_rank: int) -> None:
        monitor = self._parts.monitor.environment(local_rank)
        launch = launch_of(self._settings, assignment, local_rank, os.getpid(), monitor)
        try:
            worker = self._workers.start(launch)
        except OSError as error:
            # The worker's record directory, its standard input, or the program.
            what = error.filename or launch.command[0]
            problem = f"cannot start a worker: {what}: {error.strerror or error}"
            raise SpawnFailed(local_rank, problem, error.errno) from error
        self._waiting.listen(worker.pidfd, worker)
        self._parts.console.debug(f"rank {worker.rank}: process {worker.pid}")
        self._parts.monitor.begin(worker, launch.logs)
        self._parts.stop.pages.begin(worker)
        for path, stream in launch.tee:
            self._parts.console.follow(path, launch.prefix, stream, launch.filtered.get(stream))

    # Standby workers

    def start_standbys(self, local_ranks: tuple[int, ...]) -> list[StandbyEnded]:
        """See `Effects`."""
        if self._standbys is None:
            from ftslurm.agent.standby_effects import StandbyEffects

            facts = (self._settings, self._slots, self._workers, self._waiting, self._parts.console)
            self._standbys = StandbyEffects(*facts, self._containment, self._monotonic)
        return self._standbys.start(local_ranks)

    def drop_standbys(self) -> None:
        """See `Effects`."""
        if self._standbys is not None:
            self._standbys.drop()

    # Its workers and its end

    def running(self) -> set[int]:
        """See `Effects`."""
        return {worker.local_rank for worker in self._workers.all if worker.ended_ns is None}

    def _running_pids(self) -> list[int]:
        return [worker.pid for worker in self._workers.all if worker.ended_ns is None]

    def signal(self, local_ranks: tuple[int, ...], number: int) -> None:
        """See `Effects`."""
        name = signal.Signals(number).name
        self._parts.console.debug(f"{name} to local ranks {', '.join(map(str, local_ranks))}")
        self._parts.build_locks.scan(self._running_pids())
        self._parts.stop.signals.send(local_ranks, number)

    def stoppable(self) -> bool:
        """See `Effects`."""
        return self._parts.stop.pages.stoppable() > 0

    def follow_stop(self, stop: Stop, kill_at: float | None) -> StopVote:
        """See `Effects`."""
        return self._parts.stop.pages.follow(stop, kill_at)

    def collect_stacks(self, round_: int, collect: CollectStacks) -> bool:
        """See `Effects`."""
        self._parts.monitor.collect_stacks(round_, collect.local_ranks, collect.stop, collect.after, collect.urgent)
        return self._containment.works(MONITOR)

    def stderr_of(self, local_rank: int) -> str | None:
        """See `Effects`."""
        return next((worker.stderr for worker in self._workers.all if worker.local_rank == local_rank), None)

    def name_left_behind(self) -> None:
        """See `Effects`."""
        if {worker.exit_code for worker in self._workers.all} != {0}:
            return
        pids = [pid for pid, _ in descendants(os.getpid(), self._workers.kept)]
        line = self._containment.call(MESSAGES, None, left_behind, pids)
        if line is not None:
            self._parts.console.warn(line)

    def prepare_sweep(self) -> None:
        """See `Effects`."""
        # Includes ranks below a shell or another launcher.
        below = [pid for pid, _ in descendants(os.getpid(), self._workers.kept)]
        self._parts.build_locks.scan(below)
        self._parts.build_locks.scan_builders(below)

    def sweep(self) -> bool:
        """See `Effects`."""
        return self._workers.sweep()

    def on_swept(self, record: NodeRecord) -> None:
        """See `Effects`."""
        self._parts.monitor.over(record)
        self._parts.build_locks.remove()
        self._parts.arrivals.over()
        hang = record.hang
        self._parts.health.on_swept(record.failure or (hang.failure() if hang is not None else None))
        clean_up = self._containment.contained_task(LEFTOVERS, self._courier.send)
        clean_up(lambda: self._parts.revocation.clean_up(record.round))

    def survivors(self) -> str:
        """See `Effects`."""
        return "processes " + ", ".join(str(pid) for pid, _ in descendants(os.getpid(), self._workers.kept)[:8])

    def forget_round(self) -> None:
        """See `Effects`."""
        self._parts.console.forget()
        self._workers.clear()
        self._parts.monitor.clear()
        self._parts.exits.clear()
        self._parts.stop.forget_round()
