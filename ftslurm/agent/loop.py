"""The agent's event loop: waits for all sources at once and carries out the machine's actions.

It waits on a pidfd per worker, a wake-up for signals, the guardian's pidfd and the courier's pipe. Nothing
local is polled and nothing here touches the shared filesystem.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence

from ftslurm.agent.actions import (
    Action,
    Assignment,
    CollectStacks,
    Compare,
    KillLeftovers,
    Log,
    Moment,
    Prepare,
    Prepared,
    Publish,
    RecordRound,
    Signal,
    Spawn,
    StartStandbys,
    changed_record,
)
from ftslurm.agent.components import make_components
from ftslurm.agent.containment import (
    ANALYSIS,
    CONNECTION,
    DOORBELL,
    EXCLUSION,
    HEALTH,
    LEFTOVERS,
    MESSAGES,
    MONITOR,
    STANDBY,
    Component,
    Containment,
    Defect,
    defect_of,
)
from ftslurm.agent.courier import Courier, Evicted, Notice, StorageProblem
from ftslurm.agent.defect_records import DefectRecords
from ftslurm.agent.doorbell import Doorbell
from ftslurm.agent.exclusion import Excluder
from ftslurm.agent.failure_signature import signature_of
from ftslurm.agent.guardian import FORWARDED, STOPPING
from ftslurm.agent.health_gate import OFF, WATCH
from ftslurm.agent.health_monitor import HealthSettings
from ftslurm.agent.machine import AgentMachine
from ftslurm.agent.messages import messages
from ftslurm.agent.output import Console
from ftslurm.agent.ports import ReservedPort
from ftslurm.agent.preload import preload
from ftslurm.agent.rank_monitor import PIPE
from ftslurm.agent.rank_watch import SIZES, HungRank, Message, StacksCollected
from ftslurm.agent.revocation import Revocation
from ftslurm.agent.round_setup import REACH, RoundSetup, StepDone, reach_master
from ftslurm.agent.settings import AgentSettings, plan
from ftslurm.agent.worker_exits import EndedWorker, RecordOf, WorkerExits
from ftslurm.agent.workers import Worker, Workers
from ftslurm.dataclasses import replace
from ftslurm.kernel import descendants, kill_descendants
from ftslurm.monitor.pipe import discard
from ftslurm.rendezvous.member import View
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import EXIT_FAILED, LEFT, Failure, State
from ftslurm.sharedfs.commits import Commits
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.ownership import check_own_directory
from ftslurm.sharedfs.rundir import RunDirectory, rank_directory

HANDLED = (*FORWARDED, signal.SIGCHLD)
SWEEP_RETRY_S, QUICK_S = 0.02, 1.0
UNKILLABLE_S = 10.0
FINISH_S = 6.0
EXCLUSION_S = 2.0
DEFECTS_S = 2.0
BREAK_OFF_S = 5.0
LATE = "as this agent leaves"
BY_DEFECT = "its agent ended by "
"""Beginning of the reason in the guardian's death notice, see `ftslurm.agent.guardian`."""
CLEAN_UP_S = 2.0
OVERSLEPT_S = 5.0
TROUBLE_POLL_S = 1.0
NO_LINES: list[str] = []


class AgentLoop:
    """Runs one agent until it may leave.

    Args:
        settings: see `AgentSettings`.
        machine: makes the decisions.
        record: this node's first record, the same as the courier's member has.
        courier: carries records and tasks to the shared filesystem; not yet started.
        console: writes log lines.
        fs, run: where tasks write.
        reserve: reserves a port for the next round.
        bell: the doorbell, by which other nodes wake this agent.
        health: settings of this node's health checks.
        excluder: records nodes that repeatedly fail first.
        containment: of the components, those given here and those made here.
        defects: records defects of ftslurm itself.
        explain: gives the guardian the reason of this agent's end, in case the agent cannot publish it.
        monotonic, now_ns: the clocks.
    """

    def __init__(
        self,
        settings: AgentSettings,
        machine: AgentMachine,
        record: NodeRecord,
        courier: Courier,
        console: Console,
        fs: FileSystem,
        run: RunDirectory,
        reserve: Callable[[], ReservedPort],
        bell: Doorbell,
        health: HealthSettings,
        excluder: Excluder,
        containment: Containment,
        defects: DefectRecords,
        explain: Callable[[str], None],
        monotonic: Callable[[], float],
        now_ns: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._record = record
        self._courier = courier
        self._console = console
        self._fs = fs
        self._run = run
        self._reserve = reserve
        self._port = reserve()
        self._bell = bell
        self._excluder = excluder
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._containment = containment
        self._defects = defects
        self._explain = explain
        self._workers = Workers(now_ns)
        parts = make_components(containment, settings, self._workers, courier, fs, run, health, monotonic, now_ns)
        self._health = parts.health
        self._journal = parts.journal
        self._guard = parts.guard
        self._monitor = parts.monitor
        self._watch = parts.watch
        self._build_locks = parts.build_locks
        self._ends = WorkerExits(parts.journal, containment, courier.send, monotonic)
        # Not all programs connect to the master: with this check switched off, the round must begin.
        skipped = health.mode == OFF or REACH in health.context.skip
        reach = None if skipped else lambda master: containment.call(CONNECTION, None, reach_master, master)
        tell = console.log if health.mode == WATCH else None
        self._commits = Commits(fs, run)
        self._revocation = Revocation(self._commits, record.node, monotonic, time.sleep)
        self._round_setup = RoundSetup(
            self._make, self._revocation.start, courier.post, monotonic, settings.trouble_s, reach, tell
        )
        self._selector = selectors.DefaultSelector()
        self._signals: deque[int] = deque()
        self._round_started_ns = 0
        self._sweeping = False
        self._killed_at: float | None = None
        self._ready: list[Worker] = []
        self._state: State | None = None
        self._exit: int | None = None
        self._trouble_since: float | None = None

    @property
    def state(self) -> State | None:
        """The newest state that this agent has read."""
        return self._state

    @property
    def record(self) -> NodeRecord:
        """This node's newest record."""
        return self._record

    @property
    def kept(self) -> str | None:
        """The node-local directory of records that could not be written to the run directory."""
        return self._journal.kept

    def run(self) -> int:
        """Run until the machine decides to leave; return the exit code."""
        try:
            wake_r = self._begin()
            while self._exit is None:
                self._run_once(wake_r)
        except Exception as error:
            self._break_off(error)
        assert self._exit is not None
        try:
            self._leave(self._exit)
        except Exception as error:
            # No worker runs any more: the verdict stands, and the guardian publishes that this agent has left.
            self._on_late_defect(defect_of(None, error))
            self._defects.finish(DEFECTS_S)
            self._console.drain(1.0)
        return self._exit

    def _begin(self) -> int:
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        # The pipe only wakes the loop: it may be full when thousands of orphans end at once.
        for number in HANDLED:
            signal.signal(number, lambda number, _: self._signals.append(number))
        self._selector.register(wake_r, selectors.EVENT_READ, "signal")
        self._selector.register(self._settings.guardian, selectors.EVENT_READ, "guardian")
        self._selector.register(self._courier.wake_r, selectors.EVENT_READ, "courier")
        self._listen(MONITOR, self._watch.fd)
        self._listen(DOORBELL, self._bell.fileno() if self._bell.port else None)
        self._listen(HEALTH, self._health.fd)
        self._health.begin()
        self._record = self._health.with_health(
            replace(self._record, port=self._port.number, doorbell_port=self._bell.port or 0)
        )
        self._courier.publish(self._record)
        self._courier.start()
        self._guard.start()
        # Concurrent with the courier's first tick.
        self._containment.call(ANALYSIS, None, preload, bool(self._settings.spare_imports))
        return wake_r

    def _listen(self, part: Component, fd: int | None) -> None:
        """Wait for that descriptor of a component, too; None: the component has none, or is disabled."""
        if fd is not None and fd >= 0:
            self._selector.register(fd, selectors.EVENT_READ, part)

    def _leave(self, code: int) -> None:
        self._drop_standbys()
        self._health.close()
        self._journal.again()
        if self._monitor.timer_file is not None:
            self._courier.send(self._monitor.timer_file.withdraw)
        finished = self._courier.finish(FINISH_S)
        while self._courier.events:
            event = self._courier.events.popleft()
            if isinstance(event, Defect):
                self._on_late_defect(event)
            # A coordinator's last tick may have closed the run.
            self._on_rank_event(event)
        self._revocation.finish(CLEAN_UP_S)
        if not self._excluder.finish(EXCLUSION_S) and self._containment.works(EXCLUSION):
            self._console.log("not all exclusions of nodes could be recorded for later jobs in time")
        if not finished:
            self._console.log(f"the shared directory has not responded for {FINISH_S:.0f} s: leaving anyway")
        if kept := self._journal.leave():
            self._console.log(kept)
        self._defects.finish(DEFECTS_S if finished else 0.0)
        self._console.drain(1.0)
        self._guard.stop()
        if not finished:
            # The courier's thread hangs in the filesystem; a normal exit would wait for it.
            os._exit(code)

    # Defects of ftslurm itself

    def _on_defect(self, defect: Defect) -> None:
        path = self._defects.write(defect, self._record.round)
        if defect.part is None:
            self._log_defect(defect, "its workers are stopped and this node leaves", path)
            self._explain(defect.text)
            self._do(self._machine.on_evicted(f"{BY_DEFECT}{defect.text}", EXIT_FAILED, self._moment()))
            return
        self._log_defect(defect, f"{defect.part.meaning} ({defect.part.name}); the job goes on", path)
        for key in [key for key in self._selector.get_map().values() if key.data == defect.part]:
            self._selector.unregister(key.fd)
        if defect.part == HEALTH:
            self._publish_health()
        if defect.part == MONITOR:
            try:
                # A torch timer that cannot write to the pipe would end its rank.
                discard(os.path.join(self._settings.local_dir, PIPE))
            except OSError:
                pass
            # Other nodes may wait for this node's stacks.
            self._do(self._machine.on_stacks_collected(self._moment()))

    def _break_off(self, error: Exception) -> None:
        """End in any state: kill the workers, then publish that this node has left and why."""
        defect = defect_of(None, error)
        self._exit = EXIT_FAILED
        path = self._defects.write(defect, self._record.round)
        self._log_defect(defect, "its workers are killed and this node leaves", path)
        self._explain(defect.text)
        end = time.monotonic() + BREAK_OFF_S
        while kill_descendants(os.getpid(), spared=self._workers.spared) and time.monotonic() < end:
            time.sleep(SWEEP_RETRY_S)
            self._workers.collect()
        self._record = replace(self._record, status=LEFT, reason=f"{BY_DEFECT}{defect.text}")
        self._courier.publish(self._record)

    def _on_late_defect(self, defect: Defect) -> None:
        self._log_defect(defect, LATE, self._defects.write(defect, self._record.round))

    def _log_defect(self, defect: Defect, what_follows: str, path: str) -> None:
        self._console.log(defect.message(what_follows, path))

    # Waiting

    def _run_once(self, wake_r: int) -> None:
        self._guard.waiting()
        events = self._wait()
        self._guard.working()
        # A signal from outside explains workers that died of the same signal, so it is handled first.
        sources = [key.data for key, _ in events]
        if "signal" in sources:
            _drain(wake_r)
            while self._signals:
                self._on_signal(self._signals.popleft())
        if "guardian" in sources:
            self._selector.unregister(self._settings.guardian)
            self._do(self._machine.on_evicted("its guardian process was killed", EXIT_FAILED, self._moment()))
            # No grace: the other nodes see at once that this node is gone, and its ranks may run elsewhere soon.
            self._workers.sweep()
        for source in sources:
            if isinstance(source, Worker):
                self._selector.unregister(source.pidfd)
                self._ready.append(source)
        self._poll_workers()
        if STANDBY in sources:
            self._poll_standbys()
        if "courier" in sources:
            _drain(self._courier.wake_r)
            while self._courier.events:
                self._on_event(self._courier.events.popleft())
        if (DOORBELL in sources or self._is_due(self._bell.deadline)) and self._bell.answer():
            self._courier.wake()
        self._poll_health(HEALTH in sources)
        self._watch_ranks(MONITOR in sources)
        if self._sweeping:
            self._sweep_on()
        if self._killed_at is not None and self._monotonic() - self._killed_at >= UNKILLABLE_S:
            self._killed_at = self._monotonic()
            pids = ", ".join(str(pid) for pid, _ in descendants(os.getpid())[:8])
            self._do(self._machine.on_unkillable(f"processes {pids}", self._moment()))
        self._build_locks.on_time(self._running_pids)
        for ended in self._ends.on_time():
            self._on_worker_ended(ended)
        self._on_prepared(self._round_setup.on_time())
        self._do(self._machine.on_time(self._moment()))
        self._give_up()

    def _wait(self) -> list[tuple[selectors.SelectorKey, int]]:
        timeout = self._timeout()
        began = self._monotonic()
        events = self._selector.select(timeout)
        if timeout is not None and self._monotonic() - began > timeout + OVERSLEPT_S:
            self._watch.forgive()
        return events

    def _timeout(self) -> float | None:
        now = self._monotonic()
        watches = (self._watch.deadline, self._health.deadline, self._round_setup.deadline, self._build_locks.deadline)
        moments = (self._machine.deadline, self._ends.deadline, self._bell.deadline, *watches)
        waits = [max(0.0, moment - now) for moment in moments if moment is not None]
        if self._killed_at is not None:
            waits.append(UNKILLABLE_S)
        if self._sweeping and self._killed_at is not None:
            since_s = self._monotonic() - self._killed_at
            waits.append(SWEEP_RETRY_S if since_s < QUICK_S else 10 * SWEEP_RETRY_S)
        if self._trouble_since is not None:
            waits.append(TROUBLE_POLL_S)
        return min(waits, default=None)

    def _is_due(self, deadline: float | None) -> bool:
        return deadline is not None and deadline <= self._monotonic()

    def _moment(self) -> Moment:
        return Moment(self._monotonic(), self._now_ns())

    def _watch_ranks(self, readable: bool) -> None:
        for happened in self._watch.turn(readable, self._record):
            if isinstance(happened, Message):
                self._console.log(happened.text)
            elif isinstance(happened, HungRank):
                number, step, since_s = happened.number, happened.step, happened.since_s
                now = self._moment()
                self._do(self._machine.on_hang(happened.local_rank, happened.what, number, step, now, since_s))
            elif isinstance(happened, StacksCollected):
                self._do(self._machine.on_stacks_collected(self._moment()))
            else:
                self._record = replace(self._record, vitals=happened.vitals)
                self._courier.update_vitals(happened.vitals)

    def _poll_health(self, readable: bool) -> None:
        if not readable and not self._is_due(self._health.deadline):
            return
        for line in self._health.poll():
            self._console.log(line)
        self._publish_health()

    def _publish_health(self) -> None:
        record = self._health.with_health(self._record)
        if record != self._record:
            self._record = record
            self._courier.publish(record)
            self._excluder.on_health(record)

    # Events

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._workers.collect()
            return
        if number in STOPPING:
            self._console.log(f"{signal.Signals(number).name} from outside: stopping")
        self._do(self._machine.on_signal(number, self._moment()))

    def _poll_workers(self) -> None:
        # A worker held by a debugger stays here until SIGCHLD announces that it can be collected.
        reaped = [worker for worker in self._ready if self._workers.reap(worker)]
        for worker in reaped:
            self._ready.remove(worker)
            self._watch.end(worker)
        for ended in self._ends.take(reaped, self._record):
            self._on_worker_ended(ended)

    def _on_worker_ended(self, ended: EndedWorker) -> None:
        self._do(self._machine.on_worker_ended(self._ends.worker_end(ended, self._record), self._moment()))
        if ended.record is not None:
            stopped = self._machine.stopped(ended.worker.local_rank)
            self._journal.failed(ended.worker, ended.record, stopped)

    def _on_event(self, event: object) -> None:
        self._on_rank_event(event)
        if isinstance(event, View) and event.state is not None:
            self._monitor.learn(event.state.learned)
            self._do(self._machine.on_state(event.state, self._moment()))
        elif isinstance(event, Evicted):
            self._console.log(f"{event.reason}; this agent leaves")
            self._do(self._machine.on_evicted(event.reason, EXIT_FAILED, self._moment()))
        elif isinstance(event, StorageProblem):
            self._on_trouble(event.problem)
        elif isinstance(event, Notice):
            self._console.log(event.text)
        elif isinstance(event, Defect):
            self._on_defect(event)
        elif isinstance(event, tuple) and event[0] == SIZES:
            self._watch.on_log_sizes(event[1])
        elif isinstance(event, tuple) and isinstance(event[0], Failure):
            signature = event[1] if isinstance(event[1], str) else None
            self._do(self._machine.on_compared(event[0], signature, self._moment()))
        elif isinstance(event, tuple) and isinstance(event[0], RecordOf):
            if ended := self._ends.on_record(*event):
                self._on_worker_ended(ended)
        elif isinstance(event, tuple):
            self._on_prepared(self._round_setup.made(*event))
        elif isinstance(event, StepDone):
            self._on_prepared(self._round_setup.step_done(event))

    def _on_prepared(self, prepared: Prepared | None) -> None:
        if prepared is not None:
            self._do(self._machine.on_prepared(prepared, self._moment()))

    def _on_rank_event(self, event: object) -> None:
        """Log the coordinator's decisions; only the coordinator's agent logs them."""
        if isinstance(event, View) and event.state is not None:
            if event.coordinating:
                self._excluder.on_state(event.state)
                for line in self._containment.call(MESSAGES, NO_LINES, messages, self._state, event.state):
                    self._console.log(line)
            self._health.on_state(event.state)
            self._state = event.state

    def _on_trouble(self, problem: str | None) -> None:
        if problem is None:
            self._trouble_since = None
            self._console.log("the shared directory works again")
            self._journal.again()
            return
        self._console.log(f"the shared directory: {problem}; trying again")
        if self._trouble_since is None:
            self._trouble_since = self._monotonic()

    def _give_up(self) -> None:
        """Leave when the shared directory has failed for long (full, read-only, damaged) and no worker runs."""
        if self._trouble_since is None or any(worker.ended_ns is None for worker in self._workers.all):
            return
        if self._monotonic() - self._trouble_since >= self._settings.trouble_s:
            self._console.log(f"the shared directory has failed for {self._settings.trouble_s:.0f} s: giving up")
            self._exit = EXIT_FAILED

    # Actions

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Publish):
                self._publish(action)
            elif isinstance(action, Signal):
                self._signal(action)
            elif isinstance(action, Spawn):
                self._spawn(action.assignment)
            elif isinstance(action, CollectStacks):
                self._collect_stacks(action.local_ranks)
            elif isinstance(action, Compare):
                self._compare(action.failure)
            elif isinstance(action, StartStandbys):
                self._start_standbys(action.local_ranks)
            elif isinstance(action, Prepare):
                self._prepare(action.assignment)
            elif isinstance(action, RecordRound):
                survived = self._monitor.counts()
                self._journal.round(action, self._workers.all, self._record, self._round_started_ns, survived)
            elif isinstance(action, KillLeftovers):
                self._round_setup.drop()
                self._drop_standbys()
                self._sweeping = True
                # Includes ranks below a shell or another launcher.
                below = [pid for pid, _ in descendants(os.getpid())]
                self._build_locks.scan(below)
                self._build_locks.scan_builders(below)
                self._killed_at = self._monotonic()
            elif isinstance(action, Log):
                self._console.log(action.text)
            elif self._exit is None:
                self._exit = action.code

    def _publish(self, change: Publish) -> None:
        if change.new_port:
            self._port.release()
            self._port = self._reserve()
        vitals = self._monitor.vitals(change.round)
        self._record = self._health.with_health(
            replace(changed_record(self._record, change), port=self._port.number, vitals=vitals)
        )
        self._courier.publish(self._record)

    def _running_pids(self) -> list[int]:
        return [worker.pid for worker in self._workers.all if worker.ended_ns is None]

    def _signal(self, action: Signal) -> None:
        self._build_locks.scan(self._running_pids())
        self._workers.send(action.local_ranks, action.number)
        alive = {worker.local_rank for worker in self._workers.all if worker.ended_ns is None}
        if action.number == signal.SIGKILL and alive <= set(action.local_ranks):
            # Not for a hung rank alone: the others still have their grace period.
            self._killed_at = self._monotonic()

    def _collect_stacks(self, local_ranks: tuple[int, ...]) -> None:
        self._watch.collect_stacks(self._record.round, local_ranks)
        if not self._containment.works(MONITOR):
            self._do(self._machine.on_stacks_collected(self._moment()))

    def _compare(self, failure: Failure) -> None:
        path = next((one.stderr for one in self._workers.all if one.local_rank == failure.local_rank), None)
        if path is None:
            self._do(self._machine.on_compared(failure, None, self._moment()))
        else:
            self._courier.send(lambda: signature_of(path), failure)

    def _prepare(self, assignment: Assignment) -> None:
        if self._record.unhealthy is not None:
            # As `ftslurm.rendezvous.common_failures` decides.
            self._console.log("health: this node takes part anyway: the same storage checks fail on all nodes")
        # If the set-up fails, no worker starts; the round record still needs a start time.
        self._round_started_ns = self._now_ns()
        self._round_setup.begin(assignment)

    def _make(self, assignment: Assignment) -> None:
        def make() -> int:
            try:
                return self._make_directories(assignment)
            except OSError:
                raise
            except Exception as error:
                self._containment.fail(None, error)
                raise

        self._courier.send(make, assignment.round)

    def _make_directories(self, assignment: Assignment) -> int:
        """Make a round's directories; return the number of registered commits of past rounds."""
        for local_rank in range(assignment.slots):
            rank = assignment.first_rank + local_rank
            for root in dict.fromkeys((self._run.root, self._settings.logs)):
                directory = rank_directory(root, assignment.round, rank)
                self._fs.makedirs(directory)
                check_own_directory(directory, root)
        self._fs.makedirs(os.path.dirname(self._run.round_node_file(assignment.round, self._record.node)))
        timer_file = self._monitor.timer_file
        if timer_file is not None and (problem := timer_file.serve()):
            self._console.log(problem)
        return len(self._commits.past(assignment.round))

    def _spawn(self, assignment: Assignment) -> None:
        self._round_started_ns = self._now_ns()
        self._journal.begin()
        self._health.on_round()
        self._port.release()
        for local_rank in range(assignment.slots):
            planned = plan(self._settings, assignment, local_rank, os.getpid(), self._monitor.environment(local_rank))
            try:
                worker = self._workers.start(planned.launch)
            except OSError as error:
                # The worker's record directory, its standard input, or the program.
                what = error.filename or planned.launch.command[0]
                problem = f"cannot start a worker: {what}: {error.strerror or error}"
                self._do(self._machine.on_spawn_failed(local_rank, problem, self._moment(), error.errno))
                return
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
            self._watch.begin(worker, planned.logs)
            for path, stream in planned.shown:
                self._console.follow(path, f"[rank {worker.rank}] ", stream)
        self._build_locks.scan(self._running_pids())

    # A spare's standby workers

    def _start_standbys(self, local_ranks: Sequence[int]) -> None:
        standbys = self._workers.standbys
        if standbys is None:
            from ftslurm.agent.standby import StandbyEvents, Standbys

            collect, slots = self._workers.collect, self._record.slots
            standbys = self._workers.standbys = self._containment.hold(
                STANDBY,
                Standbys,
                self._settings,
                slots,
                collect,
                self._monotonic,
                answers={"all": (), "poll": StandbyEvents},
                passes=(OSError,),
                close="drop_all",
            )
            self._listen(STANDBY, standbys.fd)
        for local_rank in local_ranks:
            try:
                standbys.start(local_rank)
            except OSError as error:
                self._console.log(f"spare: a standby worker cannot be started: {error.strerror or error}")
                self._do(self._machine.on_standby_ended(local_rank, self._moment()))

    def _poll_standbys(self) -> None:
        assert self._workers.standbys is not None
        event = self._workers.standbys.poll()
        for line in event.lines:
            self._console.log(line)
        for local_rank in event.ended:
            self._do(self._machine.on_standby_ended(local_rank, self._moment()))

    def _drop_standbys(self) -> None:
        if self._workers.standbys is not None:
            self._workers.standbys.drop_all()

    def _sweep_on(self) -> None:
        if not self._workers.sweep():
            return
        self._sweeping = False
        self._killed_at = None
        self._watch.over(self._record)
        self._build_locks.remove()
        hang = self._record.hang
        self._health.on_swept(self._record.failure or (hang.failure() if hang is not None else None))
        round_ = self._record.round
        self._containment.contained_task(LEFTOVERS, self._courier.send)(lambda: self._revocation.clean_up(round_))
        self._do(self._machine.on_swept(self._moment()))
        self._console.forget()
        self._workers.clear()
        self._watch.clear()


def _drain(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""
