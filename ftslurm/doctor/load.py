"""The load of a run of a given size on its shared directory: calls per hour, and files.

The calls are measured: the agents' own membership code runs on a filesystem in memory and on virtual time, in two small
sizes. A follower's calls do not depend on the size; of the coordinator's, those of one observation grow with the number
of nodes, and the interval of its observations is `Pace`'s. The files are those of the run directory
(docs/run-directory.md), which a test compares with a real run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.records.node import first_record
from ftslurm.records.state import RUNNING
from ftslurm.rendezvous.member import Member
from ftslurm.rendezvous.observation import RunSpec, Timing
from ftslurm.rendezvous.pace import Pace, interval_factor
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.clock import VirtualClock
from ftslurm.testing.memoryfs import AFTER, Hook, MemoryFileSystem, Operation
from ftslurm.text import plural

HOUR_S = 3600
SIZES = (4, 12)
SECONDS = 60.0
SETTLE_S = 12.0
WRITES = ("create", "rename", "link", "unlink")
FILES_OF_RUN, FILES_OF_ROUND, FILES_OF_RANK = 12, 3, 3
"""Without those of nodes. Run: its directories, run.json, attempt.json, state/current and the first generations. Round:
its directories. Rank: its directory and two logs, of which only what it wrote stays."""


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
        files_running: files and directories while the first round runs; `files_per_round`: those of each further one,
            if all ranks print to both streams; `files_silent`: the same if none does.
    """

    nodes: int
    ranks: int
    node: Calls
    coordinator: Calls
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
    (few, small), (many, large) = (measure(size, pace) for size in SIZES)
    # Calls per observation, which are affine in the number of nodes.
    per_tick = [calls.reads * _interval_s(pace, size) for size, calls in zip(SIZES, (few, many), strict=True)]
    slope = (per_tick[1] - per_tick[0]) / (SIZES[1] - SIZES[0])
    reads = (per_tick[0] + slope * (nodes - SIZES[0])) / _interval_s(pace, nodes)
    node = Calls((small.reads + large.reads) / 2, (small.writes + large.writes) / 2)
    ranks = nodes * per_node
    silent = FILES_OF_ROUND + nodes
    return Load(
        nodes,
        ranks,
        node,
        Calls(reads, many.writes),
        FILES_OF_RUN + nodes + silent + FILES_OF_RANK * ranks,
        silent + FILES_OF_RANK * ranks,
        silent,
    )


def _interval_s(pace: Pace, nodes: int) -> float:
    return pace.coordinate_s * interval_factor(nodes)


def measure(nodes: int, pace: Pace) -> tuple[Calls, Calls]:
    """Return the calls of the coordinator, and of a follower on average, of a quiet round."""
    members = _Members(nodes, pace)
    members.run_until(members.all_run)
    members.run_for(SETTLE_S)
    members.counts = [[0, 0] for _ in range(nodes)]
    members.run_for(SECONDS)
    per_second = [Calls(reads / SECONDS, writes / SECONDS) for reads, writes in members.counts]
    (leader,) = [i for i, member in enumerate(members.all) if member.view().coordinating]
    others = [calls for i, calls in enumerate(per_second) if i != leader]
    reads, writes = sum(calls.reads for calls in others), sum(calls.writes for calls in others)
    return per_second[leader], Calls(reads / len(others), writes / len(others))


class _Members:
    """Members of one run in memory, each ticked when it is due."""

    def __init__(self, nodes: int, pace: Pace) -> None:
        run = RunDirectory("/run")
        server = MemoryFileSystem()
        for directory in (run.state, run.nodes):
            server.makedirs(directory)
        self.clock = VirtualClock(start_s=1000.0)
        self.counts = [[0, 0] for _ in range(nodes)]
        names = tuple(f"n{i}" for i in range(nodes))
        self._nonces = 0
        self.all: list[Member] = []
        for i, name in enumerate(names):
            record = first_record(name, f"incarnation-{i}", "1.0", i, 8)
            spec = RunSpec("r", "1.0", names, nodes, nodes, 3)
            timing = Timing(max(8.0, 2.5 * pace.heartbeat_s), join_timeout_s=600.0, last_call_s=30.0)
            now = (self.clock.now, self.clock.now_ns)
            self.all.append(Member(server.client(self._counter(i)), run, spec, record, timing, pace, *now, self._nonce))
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
    return [
        f"a run of {size} with the default intervals, while its round runs:",
        f"  each node: {node} ({load.node.writes * HOUR_S:,.0f} that write); the coordinator: {leader}",
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
        "calls_per_second": load.total,
        "files_running": load.files_running,
        "files_per_round": load.files_per_round,
        "files_per_silent_round": load.files_silent,
    }


__all__ = ["HOUR_S", "Calls", "Load", "lines", "load_of", "measure", "to_json"]
