"""An agent without a process: the real member and machine, connected as in loop and courier, on virtual time.

Its workers are table entries with an end time. Any filesystem call of the agent may take minutes, or crash it.
"""

from __future__ import annotations

import random
import signal
from collections import deque
from collections.abc import Callable
from functools import partial

from ftslurm.agent.actions import (
    Action,
    Assignment,
    CollectStacks,
    Exit,
    KillLeftovers,
    Moment,
    Prepare,
    Prepared,
    Publish,
    Signal,
    Spawn,
    WorkerEnd,
    changed_record,
)
from ftslurm.agent.machine import AgentMachine
from ftslurm.agent.round_setup import REACH_S, RoundSetup
from ftslurm.dataclasses import dataclass, replace
from ftslurm.rendezvous.member import FencedOut, Member, NodeRefused, RunInUse, View
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import EXIT_FAILED, LEFT, Failure, State
from ftslurm.sharedfs.commits import Commits
from ftslurm.sharedfs.publish import BadFile
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.clock import START_NS
from ftslurm.testing.memoryfs import Crash, MemoryFileSystem
from ftslurm.testing.simulation.coroutine import Coroutine, get_coroutine

FINISH_S = 10.0
STORAGE_S = 60.0
RETRY_S = 0.5
NEVER = float("inf")


@dataclass
class VirtualWorker:
    """Planned behaviour of a worker.

    Attributes:
        ends_at: true time of its own end; NEVER for one that hangs.
        code, signal: outcome of its own end.
        term_s: time to end after SIGTERM; NEVER: it ignores it.
        kill_s: the same after SIGKILL (a process in an uninterruptible call may take a minute).
        turn: number of changes of the plan; an end scheduled for an earlier plan is ignored.
    """

    local_rank: int
    ends_at: float
    code: int
    signal: str | None
    term_s: float
    kill_s: float
    turn: int = 0


class Host:
    """Interface of the cluster for an agent; see `cluster.Cluster`."""

    rng: random.Random

    def now(self) -> float:
        """Return true time, seconds."""
        raise NotImplementedError

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Call `event` after the given time."""
        raise NotImplementedError

    def plan_worker(self, agent: VirtualAgent, assignment: Assignment, local_rank: int) -> VirtualWorker:
        """Return the plan of this worker.

        Raises:
            OSError: it cannot be started.
        """
        raise NotImplementedError

    def reaches_master(self, agent: VirtualAgent, assignment: Assignment) -> bool:
        """Return whether the agent's node can connect to the round's master now."""
        raise NotImplementedError

    def commits(self, agent: VirtualAgent) -> Commits:
        """Return the registrations of commits, through that agent's client."""
        raise NotImplementedError

    def on_spawned(self, agent: VirtualAgent, assignment: Assignment) -> None:
        """Note that the agent has started the workers of a round."""
        raise NotImplementedError

    def on_gone(self, agent: VirtualAgent, code: int | None) -> None:
        """Note that the agent has ended, with an exit code or (None) by a crash."""
        raise NotImplementedError

    def may_wait(self, agent: VirtualAgent) -> bool:
        """Return whether the agent's filesystem calls may block now."""
        raise NotImplementedError


class VirtualAgent:
    """One agent process.

    Args:
        host: the cluster.
        fs: this process's client.
        run: the run directory.
        member, machine: the real ones, used by this agent only.
        offset_s, offset_ns: what the node's clocks add to true time; the latter may be changed at any time.
    """

    def __init__(
        self, host: Host, node: str, fs: MemoryFileSystem, run: RunDirectory, offset_s: float, offset_ns: int
    ) -> None:
        self.host = host
        self.node = node
        self.fs = fs
        self.run = run
        self.offset_s = offset_s
        self.offset_ns = offset_ns
        self.alive = True
        self.frozen_until = 0.0
        self.exit_code: int | None = None
        self.refused = False
        self.eviction: str | None = None
        self.gave_up = False
        self.stop_signal: str | None = None
        self.workers: dict[int, VirtualWorker] = {}
        self.assignment: Assignment | None = None
        self.last_state: State | None = None
        self.coroutine: Coroutine | None = None
        self._busy = False
        self._stopping = False
        self._finished = False
        self._pending: NodeRecord | None = None
        self._tasks: deque[tuple[Assignment, Callable[[], None]]] = deque()
        self._inbox: deque[Callable[[], None]] = deque()
        self._events: deque[Callable[[], None]] = deque()
        self._due = 0.0
        self._last: tuple[int, bool] | None = None
        self._storage_failing_since: float | None = None
        self._armed_for: float | None = None
        # Commits are revoked together with the creation of directories; the host decides if the master is reachable.
        self._round_setup = RoundSetup(self._send, lambda *_: None, lambda _: None, self.monotonic, STORAGE_S, None)

    def start(self, member: Member, machine: AgentMachine) -> None:
        """Begin."""
        self.member = member
        self.machine = machine
        self.record = member.record
        self._port(self.record.port)
        self._pending = self.record
        self._due = self.host.now()
        self._turn_at(self._due)

    # Clocks

    def monotonic(self) -> float:
        """Return this node's monotonic clock, seconds."""
        return self.host.now() + self.offset_s

    def now_ns(self) -> int:
        """Return this node's wall clock, nanoseconds since the epoch."""
        return START_NS + round(self.host.now() * 1e9) + self.offset_ns

    def _moment(self) -> Moment:
        return Moment(self.monotonic(), self.now_ns())

    # Faults

    def freeze(self, seconds: float) -> None:
        """Stop the process (SIGSTOP) for that time; its workers continue."""
        until = self.host.now() + seconds
        if until > self.frozen_until:
            self.frozen_until = until
            self.host.after(seconds, self._thaw)

    def crash(self) -> None:
        """Kill the process at this point; its workers die with it (the parent-death signal)."""
        if not self.alive:
            return
        self._end(None)

    def make_unhealthy(self, check_s: float, seconds: float) -> None:
        """Run health checks for `check_s`, which find the node unhealthy for the following `seconds`."""
        self._deliver(lambda: self._judge(pending=True, unhealthy=None))
        self._after(check_s, lambda: self._judge(pending=False, unhealthy="a check failed"))
        self._after(check_s + seconds, lambda: self._judge(pending=False, unhealthy=None))

    def _judge(self, pending: bool, unhealthy: str | None) -> None:
        if not self._stopping:
            self.record = replace(self.record, health_pending=pending, unhealthy=unhealthy)
            self._pending = self.record
            self._turn_at(self.host.now())

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.stop_signal is None:
            self.stop_signal = signal.Signals(number).name
        self._deliver(lambda: self._do(self.machine.on_signal(number, self._moment())))

    def on_wake(self) -> None:
        """Deliver a datagram to its doorbell."""
        self._deliver(self._wake)

    def _wake(self) -> None:
        self.member.wake()
        self._due = min(self._due, self.host.now() + self.member.next_tick_s())
        self._turn_at(self._due)

    def _thaw(self) -> None:
        if not self.alive or self._frozen():
            return
        while self._inbox and self.alive:
            self._inbox.popleft()()
        self._turn_at(self.host.now())

    def _frozen(self) -> bool:
        return self.frozen_until > self.host.now()

    def _end(self, code: int | None) -> None:
        self.alive = False
        self.exit_code = code
        self.workers.clear()
        if self.coroutine is not None and self._busy:
            parked, self.coroutine = self.coroutine, None
            parked.kill()
        self.host.on_gone(self, code)

    # The courier

    def _turn_at(self, when: float) -> None:
        self.host.after(max(0.0, when - self.host.now()), self._turn)

    def _turn(self) -> None:
        """Do the courier's next work, unless it is blocked in a call."""
        if not self.alive or self._busy or self._frozen():
            return
        if not (self._pending or self._tasks or self._stopping or self.host.now() >= self._due):
            return
        self._busy = True
        hangs = self.host.may_wait(self)
        try:
            if not hangs:
                self._work()
                self._worked()
                return
            self.coroutine = get_coroutine()
            self._after_run(self.coroutine.run(self._work))
        except Crash:
            self._busy = False
            self.coroutine = None
            self.crash()

    def wait_until(self, when: float) -> None:
        """Block inside a filesystem call until then, and at least until the process is no longer frozen."""
        assert self.coroutine is not None
        while (when := max(when, self.frozen_until)) > self.host.now():
            self.host.after(when - self.host.now(), partial(self._resume, self.coroutine))
            self.coroutine.park()

    def _resume(self, parked: Coroutine) -> None:
        if not self.alive or self.coroutine is not parked:
            return
        try:
            self._after_run(parked.resume())
        except Crash:
            self._busy = False
            self.coroutine = None
            self.crash()

    def _after_run(self, ended: bool) -> None:
        if ended:
            self.coroutine = None
            self._worked()
        else:
            self._handle_events()

    def _work(self) -> None:
        record, self._pending = self._pending, None
        tasks = list(self._tasks)
        self._tasks.clear()
        if record is not None:
            self.member.publish(record)
        if record is not None or self._stopping or self.host.now() >= self._due:
            self._due = self._tick()
        for assignment, task in tasks:
            result: object = None
            try:
                task()
            except (OSError, BadFile) as error:
                result = error
            self._events.append(partial(self._on_made, assignment, result))
        if self._stopping and not self._tasks:
            self._finished = True

    def _tick(self) -> float:
        now = self.host.now
        try:
            view = self.member.tick()
        except (FencedOut, NodeRefused) as error:
            self._events.append(partial(self._on_evicted, str(error)))
            return now() + 3600.0
        except RunInUse as error:
            self.refused = True
            self._events.append(partial(self._on_evicted, str(error)))
            return now() + 3600.0
        except (OSError, BadFile):
            if self._storage_failing_since is None:
                self._storage_failing_since = now()
                self.host.after(STORAGE_S + 1.0, lambda: self._deliver(self._give_up))
            self._on_tick(self.member.view())
            return now() + RETRY_S
        self._storage_failing_since = None
        self._on_tick(view)
        return now() + self.member.next_tick_s()

    def _on_tick(self, view: View) -> None:
        if view.state is not None and (view.token, view.coordinating) != self._last:
            self._last = (view.token, view.coordinating)
            self._events.append(partial(self._on_view, view))

    def _worked(self) -> None:
        self._busy = False
        self._handle_events()
        if not self.alive:
            return
        if self._finished:
            self._end(self._leave_with)
            return
        self._turn_at(self.host.now() if self._pending or self._tasks or self._stopping else self._due)

    def _handle_events(self) -> None:
        while self._events and self.alive:
            self._deliver(self._events.popleft())

    def _give_up(self) -> None:
        if self._storage_failing_since is None or self.workers or self._stopping:
            return
        if self.host.now() - self._storage_failing_since >= STORAGE_S:
            self.gave_up = True
            self._exit(EXIT_FAILED)

    # The loop

    def _deliver(self, event: Callable[[], None]) -> None:
        """Deliver an event to the loop, once the process is not frozen."""
        if not self.alive:
            return
        if self._frozen():
            self._inbox.append(event)
        else:
            event()

    def _on_view(self, view: View) -> None:
        assert view.state is not None
        self.last_state = view.state
        self._do(self.machine.on_state(view.state, self._moment()))

    def _on_made(self, assignment: Assignment, result: object) -> None:
        prepared = self._round_setup.made(assignment.round, result)
        if prepared is None:
            if (deadline := self._round_setup.deadline) is not None:
                self._after(max(0.0, deadline - self.monotonic()) + 0.001, self._retry_prepare)
        elif prepared.problem is not None or self.host.reaches_master(self, assignment):
            self._on_prepared(prepared)
        else:
            prepared = Prepared(assignment.round, "the master cannot be reached", unreachable=True)
            self._after(REACH_S, partial(self._on_prepared, prepared))

    def _retry_prepare(self) -> None:
        prepared = self._round_setup.on_time()
        assert prepared is None, "no step but the directories has a deadline here"

    def _on_prepared(self, prepared: Prepared) -> None:
        self._do(self.machine.on_prepared(prepared, self._moment()))

    def _on_evicted(self, reason: str) -> None:
        self.eviction = reason
        self._do(self.machine.on_evicted(reason, EXIT_FAILED, self._moment()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if self._stopping:
                # The loop has ended: ignore further actions.
                return
            if isinstance(action, Publish):
                self._publish(action)
            elif isinstance(action, Signal):
                for local_rank in action.local_ranks:
                    self._signal_worker(local_rank, action.number)
            elif isinstance(action, Spawn):
                self._spawn(action.assignment)
            elif isinstance(action, Prepare):
                self._round_setup.begin(action.assignment)
            elif isinstance(action, CollectStacks):
                self._after(self.host.rng.uniform(0.05, 3.0), self._stacks_collected)
            elif isinstance(action, KillLeftovers):
                self._round_setup.drop()
                self._after(0.05, self._swept)
            elif isinstance(action, Exit):
                self._exit(action.code)
        self._arm_deadline()

    def _publish(self, change: Publish) -> None:
        if change.new_port:
            self._port(self.record.port + 1)
        self.record = changed_record(self.record, change)
        self._pending = self.record
        self._turn_at(self.host.now())

    def _port(self, number: int) -> None:
        self.record = replace(self.record, port=number)

    def _send(self, assignment: Assignment) -> None:
        def make() -> None:
            for local_rank in range(assignment.slots):
                self.fs.makedirs(self.run.rank(assignment.round, assignment.first_rank + local_rank))
            self.host.commits(self).revoke(assignment.round, lambda node: True)

        self._tasks.append((assignment, make))
        self._turn_at(self.host.now())

    def _exit(self, code: int) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._leave_with = code
        self._turn_at(self.host.now())
        self.host.after(FINISH_S, self._end_without_publishing)

    def _end_without_publishing(self) -> None:
        if self.alive and not self._frozen():
            self._end(self._leave_with)
        elif self.alive:
            self._inbox.append(self._end_without_publishing)

    def _arm_deadline(self) -> None:
        deadline = self.machine.deadline
        if deadline is None or deadline == self._armed_for:
            return
        self._armed_for = deadline
        self._after(max(0.0, deadline - self.monotonic()) + 0.001, self._on_time)

    def _on_time(self) -> None:
        self._armed_for = None
        self._do(self.machine.on_time(self._moment()))

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self.host.after(seconds, lambda: self._deliver(event))

    # The workers

    def _spawn(self, assignment: Assignment) -> None:
        self.assignment = assignment
        for local_rank in range(assignment.slots):
            try:
                worker = self.host.plan_worker(self, assignment, local_rank)
            except OSError as error:
                self._do(self.machine.on_spawn_failed(local_rank, str(error), self._moment()))
                return
            self.workers[local_rank] = worker
            if worker.ends_at < NEVER:
                self.host.after(worker.ends_at - self.host.now(), partial(self._worker_ends, worker, worker.turn))
        self.host.on_spawned(self, assignment)

    def end_worker(self, worker: VirtualWorker, seconds: float, code: int, name: str | None) -> None:
        """Change a worker's plan: it ends after the given time with this code or signal."""
        worker.turn += 1
        worker.code, worker.signal = code, name
        self.host.after(seconds, partial(self._worker_ends, worker, worker.turn))

    def _signal_worker(self, local_rank: int, number: int) -> None:
        worker = self.workers.get(local_rank)
        if worker is None:
            return
        seconds = worker.term_s if number == signal.SIGTERM else worker.kill_s
        if seconds < NEVER and number in (signal.SIGTERM, signal.SIGKILL):
            self.end_worker(worker, seconds, -1, signal.Signals(number).name)

    def _worker_ends(self, worker: VirtualWorker, turn: int) -> None:
        if not self.alive or worker.turn != turn or self.workers.get(worker.local_rank) is not worker:
            return
        del self.workers[worker.local_rank]
        assignment, ended_ns = self.assignment, self.now_ns()
        assert assignment is not None
        failure = None
        if worker.code != 0:
            failure = Failure(
                assignment.round,
                self.node,
                assignment.first_rank + worker.local_rank,
                worker.local_rank,
                ended_ns,
                "signal" if worker.signal else "exit",
                None if worker.signal else worker.code,
                worker.signal,
                worker.signal or f"exit code {worker.code}",
                None,
            )
        code = None if worker.signal else worker.code
        end = WorkerEnd(worker.local_rank, code, worker.signal, ended_ns, None, failure)
        self._deliver(lambda: self._do(self.machine.on_worker_ended(end, self._moment())))

    def hang_worker(self, worker: VirtualWorker) -> None:
        """Let a worker hang and its time-out expire; one that is being killed still ends."""
        if worker.signal is not None:
            return
        worker.turn += 1
        what = "no heartbeat for 30.0 s (time-out 30.0 s)"
        self._deliver(
            lambda: self._do(self.machine.on_hang(worker.local_rank, what, signal.SIGKILL, None, self._moment()))
        )

    def _stacks_collected(self) -> None:
        self._do(self.machine.on_stacks_collected(self._moment()))

    def _swept(self) -> None:
        self._do(self.machine.on_swept(self._moment()))

    # Queries

    @property
    def leaving(self) -> bool:
        """Whether it leaves for a reason of its own."""
        return self.stop_signal is not None or self.eviction is not None or self.gave_up

    @property
    def departed(self) -> bool:
        """Whether it has ended, or published that it left."""
        return not self.alive or self.record.status == LEFT
