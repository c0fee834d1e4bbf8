"""An agent without a process: the real member and machine, wired as loop and courier wire them, on virtual time.

Its workers are entries in a table that end at some time. Whatever the agent does to the filesystem may take minutes,
or be the last thing it did.
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
from ftslurm.testing.simulation.coroutine import Coroutine, strand

FINISH_S = 10.0
TROUBLE_S = 60.0
RETRY_S = 0.5
NEVER = float("inf")


@dataclass
class VirtualWorker:
    """What a worker will do.

    Attributes:
        ends_at: true time of its end by itself, NEVER for one that hangs.
        code, signal: how it ends by itself.
        term_s: how long it takes to end after SIGTERM; NEVER: it ignores it.
        kill_s: the same after SIGKILL (a process in the kernel's hands may take a minute).
        turn: counts changes of its fate, so that an end that was planned before is not believed.
    """

    local_rank: int
    ends_at: float
    code: int
    signal: str | None
    term_s: float
    kill_s: float
    turn: int = 0


class Host:
    """What an agent needs from its cluster; see `cluster.Cluster`."""

    rng: random.Random

    def now(self) -> float:
        """Return true time, seconds."""
        raise NotImplementedError

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Call `event` so much later."""
        raise NotImplementedError

    def plan_worker(self, agent: VirtualAgent, assignment: Assignment, local_rank: int) -> VirtualWorker:
        """Return what this worker will do.

        Raises:
            OSError: it cannot be started.
        """
        raise NotImplementedError

    def reaches_master(self, agent: VirtualAgent, assignment: Assignment) -> bool:
        """Tell whether a connection from the agent's node to the round's master comes about now."""
        raise NotImplementedError

    def commits(self, agent: VirtualAgent) -> Commits:
        """Return the registrations of commits, as that agent's client sees them."""
        raise NotImplementedError

    def on_spawned(self, agent: VirtualAgent, assignment: Assignment) -> None:
        """Note that the agent has started the workers of a round."""
        raise NotImplementedError

    def on_gone(self, agent: VirtualAgent, code: int | None) -> None:
        """Note that the agent has ended, with an exit code or (None) by a crash."""
        raise NotImplementedError

    def may_wait(self, agent: VirtualAgent) -> bool:
        """Tell whether the agent's filesystem calls may take time now."""
        raise NotImplementedError


class VirtualAgent:
    """One agent process.

    Args:
        host: the cluster.
        fs: this process's client.
        run: the run directory.
        member, machine: the real ones; nobody else uses them.
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
        self.lost_ground: str | None = None
        self.gave_up = False
        self.told: str | None = None
        self.workers: dict[int, VirtualWorker] = {}
        self.assignment: Assignment | None = None
        self.seen: State | None = None
        self.strand: Coroutine | None = None
        self._busy = False
        self._stopping = False
        self._finished = False
        self._pending: NodeRecord | None = None
        self._errands: deque[tuple[Assignment, Callable[[], None]]] = deque()
        self._inbox: deque[Callable[[], None]] = deque()
        self._news: deque[Callable[[], None]] = deque()
        self._due = 0.0
        self._last: tuple[int, bool] | None = None
        self._trouble_since: float | None = None
        self._armed_for: float | None = None
        # Commits are revoked where directories are made, and the master is reached or not as the host says.
        self._preparation = RoundSetup(self._send, lambda *_: None, lambda _: None, self.monotonic, TROUBLE_S, None)

    def start(self, member: Member, machine: AgentMachine) -> None:
        """Begin."""
        self.member = member
        self.machine = machine
        self.word = member.record
        self._port(self.word.port)
        self._pending = self.word
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

    # What may befall it

    def freeze(self, seconds: float) -> None:
        """Stop the process (SIGSTOP) for that long; its workers go on."""
        until = self.host.now() + seconds
        if until > self.frozen_until:
            self.frozen_until = until
            self.host.after(seconds, self._thaw)

    def crash(self) -> None:
        """End the process where it is; its workers die with it (the parent-death signal)."""
        if not self.alive:
            return
        self._end(None)

    def sicken(self, look_s: float, seconds: float) -> None:
        """Let its health be looked at for `look_s`, and be found unhealthy for `seconds` after that."""
        self._deliver(lambda: self._judge(looking=True, unhealthy=None))
        self._after(look_s, lambda: self._judge(looking=False, unhealthy="a check failed"))
        self._after(look_s + seconds, lambda: self._judge(looking=False, unhealthy=None))

    def _judge(self, looking: bool, unhealthy: str | None) -> None:
        if not self._stopping:
            self.word = replace(self.word, health_pending=looking, unhealthy=unhealthy)
            self._pending = self.word
            self._turn_at(self.host.now())

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.told is None:
            self.told = signal.Signals(number).name
        self._deliver(lambda: self._do(self.machine.on_signal(number, self._moment())))

    def rung(self) -> None:
        """Let it hear its doorbell."""
        self._deliver(self._look_soon)

    def _look_soon(self) -> None:
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
        if self.strand is not None and self._busy:
            parked, self.strand = self.strand, None
            parked.kill()
        self.host.on_gone(self, code)

    # The courier

    def _turn_at(self, when: float) -> None:
        self.host.after(max(0.0, when - self.host.now()), self._turn)

    def _turn(self) -> None:
        """What the courier's thread does next, if it is not hanging in a call."""
        if not self.alive or self._busy or self._frozen():
            return
        if not (self._pending or self._errands or self._stopping or self.host.now() >= self._due):
            return
        self._busy = True
        hangs = self.host.may_wait(self)
        try:
            if not hangs:
                self._work()
                self._worked()
                return
            self.strand = strand()
            self._after_strand(self.strand.run(self._work))
        except Crash:
            self._busy = False
            self.strand = None
            self.crash()

    def wait_until(self, when: float) -> None:
        """Let time pass inside of a filesystem call, and at least until the process runs again."""
        assert self.strand is not None
        while (when := max(when, self.frozen_until)) > self.host.now():
            self.host.after(when - self.host.now(), partial(self._resume, self.strand))
            self.strand.park()

    def _resume(self, parked: Coroutine) -> None:
        if not self.alive or self.strand is not parked:
            return
        try:
            self._after_strand(parked.resume())
        except Crash:
            self._busy = False
            self.strand = None
            self.crash()

    def _after_strand(self, ended: bool) -> None:
        if ended:
            self.strand = None
            self._worked()
        else:
            self._hear()

    def _work(self) -> None:
        record, self._pending = self._pending, None
        errands = list(self._errands)
        self._errands.clear()
        if record is not None:
            self.member.publish(record)
        if record is not None or self._stopping or self.host.now() >= self._due:
            self._due = self._tick()
        for assignment, errand in errands:
            result: object = None
            try:
                errand()
            except (OSError, BadFile) as error:
                result = error
            self._news.append(partial(self._on_made, assignment, result))
        if self._stopping and not self._errands:
            self._finished = True

    def _tick(self) -> float:
        now = self.host.now
        try:
            view = self.member.tick()
        except (FencedOut, NodeRefused) as error:
            self._news.append(partial(self._on_lost_ground, str(error)))
            return now() + 3600.0
        except RunInUse as error:
            self.refused = True
            self._news.append(partial(self._on_lost_ground, str(error)))
            return now() + 3600.0
        except (OSError, BadFile):
            if self._trouble_since is None:
                self._trouble_since = now()
                self.host.after(TROUBLE_S + 1.0, lambda: self._deliver(self._give_up))
            self._show(self.member.view())
            return now() + RETRY_S
        self._trouble_since = None
        self._show(view)
        return now() + self.member.next_tick_s()

    def _show(self, view: View) -> None:
        if view.state is not None and (view.token, view.coordinating) != self._last:
            self._last = (view.token, view.coordinating)
            self._news.append(partial(self._on_view, view))

    def _worked(self) -> None:
        self._busy = False
        self._hear()
        if not self.alive:
            return
        if self._finished:
            self._end(self._leave_with)
            return
        self._turn_at(self.host.now() if self._pending or self._errands or self._stopping else self._due)

    def _hear(self) -> None:
        while self._news and self.alive:
            self._deliver(self._news.popleft())

    def _give_up(self) -> None:
        if self._trouble_since is None or self.workers or self._stopping:
            return
        if self.host.now() - self._trouble_since >= TROUBLE_S:
            self.gave_up = True
            self._exit(EXIT_FAILED)

    # The loop

    def _deliver(self, event: Callable[[], None]) -> None:
        """Let the loop hear of something, once it runs."""
        if not self.alive:
            return
        if self._frozen():
            self._inbox.append(event)
        else:
            event()

    def _on_view(self, view: View) -> None:
        assert view.state is not None
        self.seen = view.state
        self._do(self.machine.on_state(view.state, self._moment()))

    def _on_made(self, assignment: Assignment, result: object) -> None:
        prepared = self._preparation.made(assignment.round, result)
        if prepared is None:
            if (deadline := self._preparation.deadline) is not None:
                self._after(max(0.0, deadline - self.monotonic()) + 0.001, self._prepare_again)
        elif prepared.problem is not None or self.host.reaches_master(self, assignment):
            self._on_prepared(prepared)
        else:
            prepared = Prepared(assignment.round, "the master cannot be reached", unreachable=True)
            self._after(REACH_S, partial(self._on_prepared, prepared))

    def _prepare_again(self) -> None:
        prepared = self._preparation.on_time()
        assert prepared is None, "no step but the directories has a deadline here"

    def _on_prepared(self, prepared: Prepared) -> None:
        self._do(self.machine.on_prepared(prepared, self._moment()))

    def _on_lost_ground(self, reason: str) -> None:
        self.lost_ground = reason
        self._do(self.machine.on_evicted(reason, EXIT_FAILED, self._moment()))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if self._stopping:
                # The loop has ended: nothing is done any more.
                return
            if isinstance(action, Publish):
                self._say(action)
            elif isinstance(action, Signal):
                for local_rank in action.local_ranks:
                    self._signal_worker(local_rank, action.number)
            elif isinstance(action, Spawn):
                self._spawn(action.assignment)
            elif isinstance(action, Prepare):
                self._preparation.begin(action.assignment)
            elif isinstance(action, CollectStacks):
                self._after(self.host.rng.uniform(0.05, 3.0), self._shown)
            elif isinstance(action, KillLeftovers):
                self._preparation.drop()
                self._after(0.05, self._swept)
            elif isinstance(action, Exit):
                self._exit(action.code)
        self._arm_deadline()

    def _say(self, change: Publish) -> None:
        if change.new_port:
            self._port(self.word.port + 1)
        self.word = changed_record(self.word, change)
        self._pending = self.word
        self._turn_at(self.host.now())

    def _port(self, number: int) -> None:
        self.word = replace(self.word, port=number)

    def _send(self, assignment: Assignment) -> None:
        def make() -> None:
            for local_rank in range(assignment.slots):
                self.fs.makedirs(self.run.rank(assignment.round, assignment.first_rank + local_rank))
            self.host.commits(self).revoke(assignment.round, lambda node: True)

        self._errands.append((assignment, make))
        self._turn_at(self.host.now())

    def _exit(self, code: int) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._leave_with = code
        self._turn_at(self.host.now())
        self.host.after(FINISH_S, self._leave_all_the_same)

    def _leave_all_the_same(self) -> None:
        if self.alive and not self._frozen():
            self._end(self._leave_with)
        elif self.alive:
            self._inbox.append(self._leave_all_the_same)

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
        """Change a worker's fate: it ends so much later with this code or signal."""
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
        """Let a worker move no more, and its watch notice; one that is being killed ends all the same."""
        if worker.signal is not None:
            return
        worker.turn += 1
        what = "no heartbeat for 30.0 s (time-out 30.0 s)"
        self._deliver(
            lambda: self._do(self.machine.on_hang(worker.local_rank, what, signal.SIGKILL, None, self._moment()))
        )

    def _shown(self) -> None:
        self._do(self.machine.on_stacks_collected(self._moment()))

    def _swept(self) -> None:
        self._do(self.machine.on_swept(self._moment()))

    # What others may ask

    @property
    def leaving(self) -> bool:
        """Whether it goes for a reason of its own."""
        return self.told is not None or self.lost_ground is not None or self.gave_up

    @property
    def departed(self) -> bool:
        """Whether it has said that it is gone, or is."""
        return not self.alive or self.word.status == LEFT
