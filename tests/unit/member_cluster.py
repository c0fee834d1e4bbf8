"""Members of one run on a filesystem in memory, ticked by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ftslurm.records.node import NodeRecord, first_record
from ftslurm.records.state import FAILED, FORMING, READY, RUNNING, SUCCEEDED, State
from ftslurm.rendezvous.member import Member, View
from ftslurm.rendezvous.observation import RunSpec, Timing
from ftslurm.rendezvous.pace import Pace
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.clock import VirtualClock
from ftslurm.testing.memoryfs import Hook, MemoryFileSystem

RUN = RunDirectory("/runs/r")
TIMING = Timing(node_timeout_s=8, join_timeout_s=600, last_call_s=30)
PACE = Pace(heartbeat_s=1.0)


class Cluster:
    """Members that tick on request; after a tick each agent follows the state."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        for directory in (RUN.state, RUN.nodes):
            self.fs.makedirs(directory)
        self.clock = VirtualClock(start_s=1000.0)
        self.members: dict[str, Member] = {}
        self.views: dict[str, View] = {}
        self.count = 0
        self.woken: set[str] = set()

    def add(
        self,
        *names: str,
        attempt: str = "12.0",
        low: int | None = None,
        expected: tuple[str, ...] | None = None,
        incarnation: str | None = None,
        hook: Hook | None = None,
    ) -> Cluster:
        expected = expected or names
        for name in names:
            record = first_record(name, incarnation or f"i-{name}-{attempt}", attempt, expected.index(name), 2)
            run_spec = RunSpec("r", attempt, expected, low or len(expected), len(expected), 3)
            client = self.fs.client(hook)
            self.members[name] = Member(
                client,
                RUN,
                run_spec,
                record,
                TIMING,
                PACE,
                self.clock.now,
                self.clock.now_ns,
                self.nonce,
                self.wake_agents,
            )
        return self

    def wake_agents(self, records: Iterable[NodeRecord]) -> None:
        self.woken.update(record.node for record in records)

    def nonce(self) -> str:
        self.count += 1
        return f"{self.count:016x}"

    def tick(self, *names: str) -> View:
        for name in names or tuple(self.members):
            self.views[name] = self.members[name].tick()
            self.follow(name)
        return self.views[(names or tuple(self.members))[-1]]

    def follow(self, name: str) -> None:
        """Do as the agent of an endless program would."""
        member, state = self.members[name], self.views[name].state
        if state is None:
            return
        part = state.participant(member.record.node, member.record.incarnation)
        if state.phase == RUNNING and part is not None and member.record.round < state.round:
            member.publish(replace(member.record, status=RUNNING, round=state.round, failure=None))
        elif state.phase == FORMING and member.record.status in (RUNNING, FAILED, SUCCEEDED):
            member.publish(replace(member.record, status=READY))

    def go(self, seconds: float, *names: str, step: float = 0.5) -> None:
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.tick(*names)

    def until(self, done: Callable[[State], bool], *names: str, seconds: float = 60.0) -> State:
        for _ in range(round(seconds / 0.1)):
            state = self.tick(*names).state
            if state is not None and done(state):
                return state
            self.clock.advance(0.1)
        raise AssertionError(f"not reached within {seconds} s: {self.state()}")

    def running(self, round_: int, *names: str) -> State:
        state = self.until(lambda state: state.phase == RUNNING and state.round == round_, *names)
        self.tick(*names)
        self.tick(*names)
        return state

    def publish(self, name: str, **changes: object) -> None:
        self.members[name].publish(replace(self.members[name].record, **changes))  # type: ignore[arg-type]

    def state(self) -> State:
        newest = FencedCell(self.fs.client(), RUN.state).get()
        assert newest is not None
        return State.decode(newest.value, "state")

    def record(self, name: str) -> NodeRecord:
        return NodeRecord.decode(self.fs.files()[RUN.node_file(name)], name)

    def coordinator(self) -> str:
        return self.state().coordinator.node


def side_by_side(intruder: Cluster, cluster: Cluster, *alive: str) -> None:
    for _ in range(20):
        intruder.tick()
        cluster.clock.advance(0.5)
        cluster.tick(*alive)


def three() -> Cluster:
    cluster = Cluster().add("n1", "n2", "n3", low=2)
    cluster.running(1)
    return cluster
