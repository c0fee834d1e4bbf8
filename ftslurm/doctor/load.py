"""The load of a run of a given size on its shared directory: calls per hour, and files.

The calls are measured: the agents' own membership code runs on a filesystem in memory and on virtual time, in two
small sizes, with datagrams between the nodes and without. A follower's calls do not depend on the size. The
coordinator's grow with the number of nodes: with datagrams by each node's rare records; without, by the records of each
observation, whose interval is `Pace`'s. The files are those of the run directory
(docs/run-directory.md), which a test compares with a real run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.records.node import NodeRecord, first_record
from ftslurm.records.state import RUNNING
from ftslurm.rendezvous.contacts import Contacts
from ftslurm.rendezvous.member import Member
from ftslurm.rendezvous.observation import RunSpec, Timing
from ftslurm.rendezvous.pace import Pace, interval_factor
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.clock import VirtualClock
from ftslurm.testing.memoryfs import AFTER, Hook, MemoryFileSystem, Operation
from ftslurm.text import plural

HOUR_S = 3600
SIZES = (4, 12)
SECONDS, SECONDS_BLOCKED = 120.0, 60.0
SETTLE_S = 12.0
WRITES = ("create", "rename", "link", "unlink")
FILES_OF_RUN, FILES_OF_ROUND, FILES_OF_RANK = 14, 3, 3
"""Without those of nodes. Run: its directories, run.json, attempt.json, state/current, the first generations and the
event log of the first coordinator. Round: its directories, without that of samples of arrivals, which has a file per
node. Rank: its directory and two logs, of which only what it wrote stays."""


@dataclass(frozen=True)
class Calls:
    """Calls of the shared directory by one agent, per second; a call is one of `ftslurm.sharedfs.filesystem`."""

    reads: float
    writes: float

    @property
    def all(self) -> float:
        """Both."""
        return self.reads + self.writes


@dataclass(frozen=True)
class Load:
    """The load of a run while its round runs.

    Attributes:
        node: a node's calls; `coordinator`: those of the one node that coordinates.
        node_blocked, coordinator_blocked: the same where datagrams between the nodes are blocked.
        files_running: files and directories while the first round runs; `files_per_round`: those of each further one,
            if all ranks print to both streams; `files_silent`: the same if none does.
    """

    nodes: int
    ranks: int
    node: Calls
    coordinator: Calls
    node_blocked: Calls
    coordinator_blocked: Calls
    files_running: int
    files_per_round: int
    files_silent: int

    @property
    def total(self) -> float:
        """All nodes' calls per second."""
        return self.node.all * (self.nodes - 1) + self.coordinator.all


def load_of(nodes: int, per_node: int, pace: Pace | None = None) -> Load:
    """Measure and return the load of a run of so many nodes with `per_node` ranks each.

    Args:
        pace: the agents' intervals; None: the defaults.
    """
    pace = pace or Pace()
    coordinator, node = _extrapolated(nodes, pace, True, lambda _: 1.0)
    without = _extrapolated(nodes, pace, False, lambda size: _interval_s(pace, size))
    ranks = nodes * per_node
    silent = FILES_OF_ROUND + nodes
    return Load(
        nodes,
        ranks,
        node,
        coordinator,
        without[1],
        without[0],
        FILES_OF_RUN + nodes + silent + FILES_OF_RANK * ranks,
        silent + FILES_OF_RANK * ranks,
        silent,
    )


def _interval_s(pace: Pace, nodes: int) -> float:
    return pace.coordinate_s * interval_factor(nodes)


def _extrapolated(nodes: int, pace: Pace, datagrams: bool, interval_s: Callable[[int], float]) -> tuple[Calls, Calls]:
    """Return what `measure` would, for any size; the reads in `interval_s` of a size are affine in the size."""
    (few, small), (many, large) = (measure(size, pace, datagrams) for size in SIZES)
    per_interval = [calls.reads * interval_s(size) for size, calls in zip(SIZES, (few, many), strict=True)]
    slope = (per_interval[1] - per_interval[0]) / (SIZES[1] - SIZES[0])
    reads = (per_interval[0] + slope * (nodes - SIZES[0])) / interval_s(nodes)
    node = Calls((small.reads + large.reads) / 2, (small.writes + large.writes) / 2)
    return Calls(reads, many.writes), node


def measure(nodes: int, pace: Pace, datagrams: bool = True) -> tuple[Calls, Calls]:
    """Return the calls of the coordinator, and of a follower on average, of a quiet round."""
    members = _Members(nodes, pace, datagrams)
    members.run_until(members.all_run)
    members.run_for(SETTLE_S)
    members.counts = [[0, 0] for _ in range(nodes)]
    seconds = SECONDS if datagrams else SECONDS_BLOCKED
    members.run_for(seconds)
    per_second = [Calls(reads / seconds, writes / seconds) for reads, writes in members.counts]
    (leader,) = [i for i, member in enumerate(members.all) if member.view().coordinating]
    others = [calls for i, calls in enumerate(per_second) if i != leader]
    reads, writes = sum(calls.reads for calls in others), sum(calls.writes for calls in others)
    return per_second[leader], Calls(reads / len(others), writes / len(others))


class _Channel:
    """Datagrams that arrive at once."""

    def __init__(self, contacts: dict[str, Contacts]) -> None:
        self._contacts = contacts

    def send(self, record: NodeRecord, data: bytes) -> None:
        """See `ftslurm.rendezvous.contacts.Channel`."""
        self._contacts[record.node].receive(data)

    def ask(self, record: NodeRecord) -> None:
        """See `Channel`."""

    def refusals(self) -> list[tuple[str, str]]:
        """See `Channel`."""
        return []

    answers = refusals


class _Members:
    """Members of one run in memory, each ticked when it is due."""

    def __init__(self, nodes: int, pace: Pace, datagrams: bool) -> None:
        run = RunDirectory("/run")
        server = MemoryFileSystem()
        for directory in (run.state, run.nodes):
            server.makedirs(directory)
        self.clock = VirtualClock(start_s=1000.0)
        self.counts = [[0, 0] for _ in range(nodes)]
        names = tuple(f"n{i}" for i in range(nodes))
        self._nonces = 0
        heard: dict[str, Contacts] = {}
        self.all: list[Member] = []
        for i, name in enumerate(names):
            record = first_record(name, f"incarnation-{i}", "1.0", i, 8)
            spec = RunSpec("r", "1.0", names, nodes, nodes, 3)
            timing = Timing(max(8.0, 2.5 * pace.heartbeat_s), join_timeout_s=600.0, last_call_s=30.0)
            now = (self.clock.now, self.clock.now_ns)
            if datagrams:
                heard[name] = Contacts(name, record.incarnation, self.clock.now, _Channel(heard))
            shared = (server.client(self._counter(i)), run, spec, record, timing, pace)
            self.all.append(Member(*shared, *now, self._nonce, contacts=heard.get(name)))
        self._due = [(self.clock.now(), i) for i in range(nodes)]

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self._nonces:016x}"

    def _counter(self, member: int) -> Hook:
        def count(when: str, operation: Operation) -> None:
            if when == AFTER:
                self.counts[member][operation.name in WRITES] += 1

        return count

    def all_run(self) -> bool:
        """Return whether all follow the round."""
        return all(member.record.status == RUNNING for member in self.all)

    def run_for(self, seconds: float) -> None:
        """Let that much time pass."""
        end = self.clock.now() + seconds
        self.run_until(lambda: self._due[0][0] >= end)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Tick each member when it is due, as its courier does, and follow the state."""
        while not done():
            at, i = heapq.heappop(self._due)
            self.clock.advance(max(0.0, at - self.clock.now()))
            member = self.all[i]
            state = member.tick().state
            if state is not None and state.phase == RUNNING and member.record.round < state.round:
                member.publish(replace(member.record, status=RUNNING, round=state.round))
                member.tick()
            heapq.heappush(self._due, (self.clock.now() + member.next_tick_s(), i))


def lines(load: Load) -> Sequence[str]:
    """Return the load as text."""
    size = f"{plural(load.nodes, 'node')}, {plural(load.ranks, 'rank')}"
    node, leader = (f"{calls.all * HOUR_S:,.0f} calls an hour" for calls in (load.node, load.coordinator))
    blocked = [f"{calls.all * HOUR_S:,.0f} calls an hour" for calls in (load.node_blocked, load.coordinator_blocked)]
    return [
        f"a run of {size} with the default intervals, while its round runs:",
        f"  each node: {node} ({load.node.writes * HOUR_S:,.0f} that write); the coordinator: {leader}",
        f"  without datagrams between the nodes: {blocked[0]}; the coordinator: {blocked[1]}",
        f"  all: {load.total:,.0f} calls a second; a node's record is replaced in place, so that no file is added",
        f"  files: {load.files_running:,} in its first round, up to {load.files_per_round:,} more with each restart, "
        f"{load.files_silent:,} if its ranks print nothing",
    ]


def to_json(load: Load) -> dict[str, object]:
    """Return the load for programs: calls per hour, files."""
    return {
        "nodes": load.nodes,
        "ranks": load.ranks,
        "calls_per_node_hour": round(load.node.all * HOUR_S),
        "writes_per_node_hour": round(load.node.writes * HOUR_S),
        "coordinator_calls_per_hour": round(load.coordinator.all * HOUR_S),
        "calls_per_node_hour_without_datagrams": round(load.node_blocked.all * HOUR_S),
        "coordinator_calls_per_hour_without_datagrams": round(load.coordinator_blocked.all * HOUR_S),
        "calls_per_second": load.total,
        "files_running": load.files_running,
        "files_per_round": load.files_per_round,
        "files_per_silent_round": load.files_silent,
    }
