"""An agent without a process: the real loop, machine, courier and member, whose effects are virtual.

Its workers are table entries with an end time. Any filesystem call of its courier may take minutes, or crash it.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from ftslurm.agent.actions import Assignment, CollectStacks, SignalReceived, WorkerEnd
from ftslurm.agent.containment import Containment, Defect
from ftslurm.agent.effects import Effects, SpawnFailed
from ftslurm.agent.loop import AgentLoop
from ftslurm.agent.machine import AgentMachine
from ftslurm.agent.rank_monitor import HungRank, StacksCollected, VitalsChanged
from ftslurm.agent.round_setup import REACH_S
from ftslurm.agent.stop_pages import StopSignalled
from ftslurm.dataclasses import replace
from ftslurm.monitor.timeouts import Longest
from ftslurm.records.node import NodeRecord, Vitals
from ftslurm.records.state import LEFT, Failure
from ftslurm.records.stop import Stop, StopVote
from ftslurm.rendezvous.contacts import Contacts
from ftslurm.rendezvous.member import Member
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.terminal import INFO
from ftslurm.testing.memoryfs import MemoryFileSystem
from simulation.courier import LATE_S, VirtualCourier
from simulation.host import NEVER, Host, VirtualWorker
from simulation.process import VirtualProcess
from simulation.stopping import VirtualStops

FINISH_S = 10.0
STORAGE_S = 60.0


class VirtualAgent(VirtualProcess, Effects):
    """One agent process.

    Args:
        host: the cluster.
        fs: this process's client.
        run: the run directory.
        offset_s, offset_ns: see `VirtualProcess`.

    Attributes:
        workers: the living ones, by local rank.
    """

    machine: AgentMachine
    loop: AgentLoop
    contacts: Contacts

    def __init__(
        self, host: Host, node: str, fs: MemoryFileSystem, run: RunDirectory, offset_s: float, offset_ns: int
    ) -> None:
        super().__init__(host, offset_s, offset_ns)
        self.node = node
        self.fs = fs
        self.run = run
        self.exit_code: int | None = None
        self.stop_signal: str | None = None
        self.workers: dict[int, VirtualWorker] = {}
        self.assignment: Assignment | None = None
        self._woken = False
        self._signs: deque[bytes] = deque()
        self._health: tuple[bool, str | None] = (False, None)
        self._signals: deque[SignalReceived] = deque()
        self._ended: list[VirtualWorker] = []
        self._rank_events: deque[HungRank | StacksCollected | StopSignalled | VitalsChanged] = deque()
        self._sweeping = False
        self._port = 29400
        self._stops = VirtualStops(host, self._rank_leaves, self._rank_resumes, self._lives)

    def start(self, member: Member, machine: AgentMachine) -> None:
        """Begin."""
        self.machine = machine
        self._courier = VirtualCourier(member, self.monotonic, self._courier_alarm, self._loop_alarm)
        containment = Containment()
        containment.connect(self._courier.post)
        self.loop = AgentLoop(self, machine, self._courier, member.record, containment, STORAGE_S)
        self.loop.begin(doorbell_port=1)

    # Queries

    @property
    def record(self) -> NodeRecord:
        """Its newest node record."""
        return self.loop.record

    @property
    def leaving(self) -> bool:
        """Whether it leaves for a reason of its own."""
        gave_up = self._has_decided_to_leave() and self.record.status != LEFT
        return self.stop_signal is not None or self.record.reason is not None or gave_up

    @property
    def departed(self) -> bool:
        """Whether it has ended, or published that it left."""
        return not self.alive or self.record.status == LEFT

    # Faults

    def crash(self) -> None:
        """Kill the process at this point; its workers die with it (the parent-death signal)."""
        if self.alive:
            self._end(None)

    def make_unhealthy(self, check_s: float, seconds: float) -> None:
        """Run health checks for `check_s`, which find the node unhealthy for the following `seconds`."""
        self._on_health(True, None)
        self.host.after(check_s, partial(self._on_health, False, "a check failed"))
        self.host.after(check_s + seconds, partial(self._on_health, False, None))

    def _on_health(self, pending: bool, unhealthy: str | None) -> None:
        self._health = (pending, unhealthy)
        self._loop_alarm.set(0.0)

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self.stop_signal is None:
            self.stop_signal = signal.Signals(number).name
        self._signals.append(SignalReceived(number))
        self._loop_alarm.set(0.0)

    def on_wake(self) -> None:
        """Deliver a datagram to its doorbell."""
        self._woken = True
        self._loop_alarm.set(0.0)

    def on_sign(self, data: bytes) -> None:
        """Deliver a sign of life, which waits while the process is stopped."""
        if self._frozen():
            self._signs.append(data)
        else:
            self.contacts.receive(data)

    def end_worker(self, worker: VirtualWorker, seconds: float, code: int, name: str | None) -> None:
        """Change a worker's plan: it ends after the given time with this code or signal."""
        worker.turn += 1
        worker.code, worker.signal = code, name
        self.host.after(seconds, partial(self._worker_ends, worker, worker.turn))

    def hang_worker(self, worker: VirtualWorker) -> None:
        """Let a worker hang and its time-out expire; one that is being killed still ends."""
        if worker.signal is not None:
            return
        worker.turn += 1
        worker.training = None
        what = "no heartbeat for 30.0 s (time-out 30.0 s)"
        self._on_rank_event(HungRank(worker.local_rank, what, signal.SIGKILL, None, self.monotonic()))

    # The process

    def _has_decided_to_leave(self) -> bool:
        return self.loop.exit_code is not None

    def _turn(self) -> None:
        """Do what `NodeAgent` does when it is woken."""
        if not self.alive or self._frozen() or self._has_decided_to_leave():
            return
        self.loop.turn()
        if self._has_decided_to_leave():
            self._courier.stop()
            self.host.after(FINISH_S, self._end_without_publishing)
        elif (deadline := self.loop.deadline) is not None:
            self._loop_alarm.set(deadline - self.offset_s + LATE_S)

    def _end_without_publishing(self) -> None:
        if self.alive and self._frozen():
            self.host.after(self.frozen_until - self.host.now(), self._end_without_publishing)
        elif self.alive:
            self._leave()

    def _leave(self) -> None:
        self.loop.on_last_events()
        self._end(self.loop.exit_code)

    def _end(self, code: int | None) -> None:
        self.alive = False
        self.exit_code = code
        self.workers.clear()
        self._kill_courier()
        self.host.on_gone(self, code)

    def _may_wait(self) -> bool:
        return self.host.may_wait(self)

    # Effects: time and events

    @property
    def deadline(self) -> float | None:
        """See `Effects`: each event sets the alarm."""
        return None

    def events(self, record: NodeRecord) -> Iterator[object]:
        """See `Effects`."""
        while self._signs:
            self.contacts.receive(self._signs.popleft())
        if self._woken:
            self._woken = False
            self._courier.wake()
        while self._signals:
            yield self._signals.popleft()
        while self._ended:
            yield self._worker_end(self._ended.pop(0))
        while self._rank_events:
            yield self._rank_events.popleft()

    def signal_rank(self, worker: VirtualWorker) -> None:
        """Let a signal reach this rank alone, which asks for a stop."""
        self._on_rank_event(StopSignalled(worker.local_rank, "SIGUSR1"))

    def _on_rank_event(self, event: HungRank | StacksCollected | StopSignalled | VitalsChanged) -> None:
        self._rank_events.append(event)
        self._loop_alarm.set(0.0)

    # Effects: the user, the run directory, the node record

    def log(self, text: str, level: int = INFO) -> None:
        """See `Effects`."""

    def report_defect(self, defect: Defect, round_: int) -> None:
        """See `Effects`."""
        self.host.on_defect(self, defect)

    def publish(self, record: NodeRecord) -> None:
        """See `Effects`."""
        self._courier.publish(record)

    def reserve_port(self) -> int:
        """See `Effects`."""
        self._port += 1
        return self._port

    def with_health(self, record: NodeRecord) -> NodeRecord:
        """See `Effects`."""
        pending, unhealthy = self._health
        return replace(record, health_pending=pending, unhealthy=unhealthy)

    # Effects: a round's beginning

    def make_directories(self, assignment: Assignment) -> int:
        """See `Effects`; revokes the commits of past rounds, too."""
        for local_rank in range(assignment.slots):
            self.fs.makedirs(self.run.rank(assignment.round, assignment.first_rank + local_rank))
        self.host.commits(self).revoke(assignment.round, lambda node: True)
        return 0

    def revoke_commits(self, assignment: Assignment, report: Callable[[str | None], None]) -> None:
        """See `Effects`; not called, see `make_directories`."""
        raise NotImplementedError

    def test_connection(self, assignment: Assignment, report: Callable[[str | None], None]) -> None:
        """See `Effects`."""
        if self.host.reaches_master(self, assignment):
            report(None)
        else:
            self.host.after(REACH_S, partial(report, "the master cannot be reached"))

    def spawn(self, assignment: Assignment) -> None:
        """See `Effects`."""
        self.assignment = assignment
        for local_rank in range(assignment.slots):
            try:
                worker = self.host.plan_worker(self, assignment, local_rank)
            except OSError as error:
                raise SpawnFailed(local_rank, str(error), error.errno) from error
            self.workers[local_rank] = worker
            if worker.ends_at < NEVER:
                self.host.after(worker.ends_at - self.host.now(), partial(self._worker_ends, worker, worker.turn))
        self._stops.begin(list(self.workers.values()))
        if (seconds := self._stops.first_call_s()) is not None:
            self.host.after(seconds, partial(self._on_first_call, assignment))
        self.host.on_spawned(self, assignment)

    # Effects: its workers and its end

    def running(self) -> set[int]:
        """See `Effects`."""
        return {*self.workers, *(worker.local_rank for worker in self._ended)}

    def signal(self, local_ranks: tuple[int, ...], number: int) -> None:
        """See `Effects`."""
        for local_rank in local_ranks:
            worker = self.workers.get(local_rank)
            if worker is None or number not in (signal.SIGTERM, signal.SIGKILL):
                continue
            if number == signal.SIGTERM and _has_left(worker):
                continue  # See `StopSignals`.
            seconds = worker.term_s if number == signal.SIGTERM else worker.kill_s
            if seconds < NEVER:
                self.end_worker(worker, seconds, -1, signal.Signals(number).name)

    def vitals(self, round_: int) -> Vitals | None:
        """See `Effects`; only whether the ranks call `should_stop`."""
        return Vitals(round_, Longest(), (), 0, stoppable=int(self._stops.stoppable())) if self.workers else None

    def _on_first_call(self, assignment: Assignment) -> None:
        vitals = self.vitals(assignment.round)
        if self.alive and self.assignment is assignment and vitals is not None:
            self._on_rank_event(VitalsChanged(vitals, at_once=True))

    def stoppable(self) -> bool:
        """See `Effects`."""
        return self._stops.stoppable()

    def follow_stop(self, stop: Stop, kill_at: float | None) -> StopVote:
        """See `Effects`."""
        return self._stops.follow(stop, None if kill_at is None else kill_at - self.offset_s)

    def _lives(self, worker: VirtualWorker) -> bool:
        return self.alive and self.workers.get(worker.local_rank) is worker

    def _rank_resumes(self, worker: VirtualWorker, waited_s: float) -> None:
        worker.ends_at += waited_s
        self.end_worker(worker, max(0.0, worker.ends_at - self.host.now()), worker.code, worker.signal)

    def _rank_leaves(self, worker: VirtualWorker, step: int, in_vain: bool) -> None:
        self.host.on_left(self, worker, step, in_vain)
        rng = self.host.rng
        # Some fail to save.
        self.end_worker(worker, rng.uniform(0.1, 2.0), int(rng.random() < 0.1), None)

    def collect_stacks(self, round_: int, collect: CollectStacks) -> bool:
        """See `Effects`."""
        assignment = self.assignment

        def collected() -> None:
            if self.assignment is assignment:
                self._on_rank_event(StacksCollected())

        self.host.after(self.host.rng.uniform(0.05, 3.0), collected)
        return True

    def prepare_sweep(self) -> None:
        """See `Effects`; the first sweep finds something."""
        self._sweeping = True

    def sweep(self) -> bool:
        """See `Effects`."""
        found, self._sweeping = self._sweeping, False
        return not found

    def survivors(self) -> str:
        """See `Effects`."""
        return f"ranks {sorted(self.workers)}"

    def forget_round(self) -> None:
        """See `Effects`."""
        self.assignment = None

    def _worker_ends(self, worker: VirtualWorker, turn: int) -> None:
        if self.alive and worker.turn == turn and self.workers.get(worker.local_rank) is worker:
            del self.workers[worker.local_rank]
            self._ended.append(worker)
            self._loop_alarm.set(0.0)

    def _worker_end(self, worker: VirtualWorker) -> WorkerEnd:
        part, ended_ns = self.assignment, self.now_ns()
        assert part is not None
        code = None if worker.signal else worker.code
        failure = None
        if worker.code != 0:
            where = (part.round, self.node, part.first_rank + worker.local_rank, worker.local_rank, ended_ns)
            kind, text = ("signal", worker.signal) if worker.signal else ("exit", f"exit code {code}")
            failure = Failure(*where, kind, code, worker.signal, text, None, leaving=_has_left(worker))
        return WorkerEnd(worker.local_rank, code, worker.signal, ended_ns, None, failure)


def _has_left(worker: VirtualWorker) -> bool:
    return worker.training is not None and worker.training.left_step is not None
