"""One simulated cluster: virtual time, nodes, agents, and checks of the invariants."""

from __future__ import annotations

import errno
import heapq
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ftslurm.agent.actions import Assignment
from ftslurm.agent.machine import AgentMachine
from ftslurm.dataclasses import dataclass, replace
from ftslurm.rendezvous.member import Member, Pace, first_record
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.observation import AT_ONCE, NEVER, NEXT_ROUND, RunSpec, Timing
from ftslurm.rendezvous.state import LEFT, State
from ftslurm.sharedfs.commits import Commits
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.memoryfs import AFTER, BEFORE, MemoryFileSystem, Operation
from ftslurm.testing.simulation import faults
from ftslurm.testing.simulation.agent import Host, VirtualAgent, VirtualWorker
from ftslurm.testing.simulation.faults import Armed, Outage
from ftslurm.testing.simulation.filesystem import CachingClient, ClientCache
from ftslurm.testing.simulation.invariants import AgentStatus, Ledger, check
from ftslurm.testing.simulation.saver import TARGET, Saver

RUN = RunDirectory("/runs/r")
TIMING = Timing(node_timeout_s=8.0, join_timeout_s=60.0, last_call_s=4.0, rejoin=NEXT_ROUND)
PACE = Pace(heartbeat_s=2.0, follow_s=1.0, thorough_s=5.0, coordinate_s=0.5, transition_s=0.25)
GRACE_S, KILL_WAIT_S = 2.0, 6.0

EXCUSE_S = 30.0
"""Time for which a fault excuses a later silence, in seconds."""

STOP_S = PACE.thorough_s + PACE.follow_s + GRACE_S + 4.0
"""Time within which an unimpaired agent stops the workers of a finished round, in seconds."""

CHANGES = ("link", "rename", "unlink")

DELIVERED = 0.7
"""Fraction of the wake-up datagrams that are delivered."""


@dataclass(frozen=True)
class Plan:
    """Parameters of a simulated cluster.

    Attributes:
        seed: of the random generators.
        nodes: (minimum, maximum).
        faults: number of faults before the calm phase.
        kinds: the kinds of faults to choose from; empty: all.
        verbose: print all events.
    """

    seed: int
    nodes: tuple[int, int] = (2, 6)
    faults: int = 100
    kinds: tuple[str, ...] = ()
    verbose: bool = False


class Node:
    """A host: its clocks, its kernel's cache of the shared filesystem, and its active faults."""

    def __init__(self, name: str, cache: ClientCache, offset_s: float, offset_ns: int) -> None:
        self.name = name
        self.cache = cache
        self.offset_s = offset_s
        self.offset_ns = offset_ns
        self.up = True
        self.stalled_until = 0.0
        self.slow_until = 0.0
        self.outage: Outage | None = None
        self.cut_until = 0.0


class Attempt:
    """One start of a job with all its agents, including ended ones."""

    def __init__(self, run_spec: RunSpec, slots: int) -> None:
        self.run_spec = run_spec
        self.name = run_spec.attempt
        self.slots = slots
        self.agents: list[SimulatedAgent] = []
        self.requested_no_restart = False
        self.due = 0.0

    def has(self, node: Node) -> bool:
        """Return whether an agent of this attempt is alive on that node."""
        return any(agent.alive and agent.home is node for agent in self.agents)


class SimulatedAgent(VirtualAgent):
    """A virtual agent with the simulation's data about it.

    Attributes:
        armed: faults that wait for its calls.
        excuses: for each fault that impaired it, the time of its end.
        small_faults: times of small faults.
        cannot_start: number of its next workers that cannot be started.
        slow_in: number of calls until a slow one, 0 for none.
    """

    def __init__(self, cluster: Cluster, home: Node, attempt: Attempt, incarnation: str) -> None:
        fs = CachingClient(cluster.server, home.cache, self._on_call)
        super().__init__(cluster, home.name, fs, RUN, home.offset_s, home.offset_ns)
        self._cluster = cluster
        self.home = home
        self.attempt = attempt
        self.incarnation = incarnation
        self.born = cluster.now()
        self.armed: list[Armed] = []
        self.excuses: list[float] = [home.stalled_until, cluster.stalled_until]
        self.small_faults: list[float] = []
        self.cannot_start = 0
        self.slow_in = 0

    def _on_call(self, when: str, operation: Operation) -> None:
        """Hook of this agent's client: stalls, then armed faults."""
        if when == AFTER and operation.name in CHANGES:
            self._cluster.on_changed(self, operation)
        self.refuse(when, operation)
        if not self.armed and self.coroutine is None:
            return
        if self.coroutine is not None:
            self._hang(when)
        fault = faults.pick_armed(self.armed, when, operation)
        if fault is not None:
            self.armed.remove(fault)
            self._cluster.struck(fault.kind, self.node, operation.name)
            self.small_faults.append(self._cluster.now())
            fault.strike(self, operation)

    def refuse(self, when: str, operation: Operation) -> None:
        """Hook of its ranks' clients, and part of its own: calls that the filesystem refuses on its node."""
        if when != BEFORE:
            return
        now = self._cluster.now()
        for outage in (self._cluster.outage, self.home.outage):
            if outage is not None and outage.refuses(now, operation):
                faults.fail(outage.number, operation)

    def _hang(self, when: str) -> None:
        cluster = self._cluster
        while (until := max(cluster.stalled_until, self.home.stalled_until)) > cluster.now():
            self.wait_until(until + cluster.rng.uniform(0.0, 0.5))
        if when == BEFORE and self.slow_in > 0:
            self.slow_in -= 1
            if self.slow_in == 0:
                self.wait_until(cluster.now() + cluster.rng.uniform(0.1, 1.5))

    def excuse(self, seconds: float) -> None:
        """Record a fault that impairs it for that time."""
        self.excuses.append(self._cluster.now() + seconds)

    def is_impaired(self, excuse_s: float = EXCUSE_S) -> bool:
        """Return whether it had a reason to be silent in the last `excuse_s` seconds."""
        since = self._cluster.now() - excuse_s
        small = sum(at >= since for at in self.small_faults)
        return self.departed or self.leaving or small >= 4 or any(until >= since for until in self.excuses)

    def extend_excuses(self, seconds: float) -> None:
        """Extend its excuses by a stall of all nodes, in which it could not recover."""
        since = self._cluster.now() - EXCUSE_S
        self.excuses = [until + seconds if until >= since else until for until in self.excuses]
        self.small_faults = [at + seconds if at >= since else at for at in self.small_faults]


class Cluster(Host):
    """One cluster and its run directory, over all attempts.

    Args:
        plan: see `Plan`.

    Attributes:
        counts: the faults that struck, by kind.
        stale: stale answers of the filesystem's clients, by kind.
        saved: commits of checkpoints by the ranks, by outcome.
        events: the last events, for the error message.
        gentle: whether workers succeed soon and no node is late.
        last: the final attempt, once it has begun.
        stalled_until: end of a stall of the filesystem on all nodes.
        outage: calls that the filesystem refuses on all nodes, and until when.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.counts: Counter[str] = Counter()
        self.stale: Counter[str] = Counter()
        self.events: deque[tuple[float, str]] = deque(maxlen=80)
        self.gentle = False
        self.last: Attempt | None = None
        self.stalled_until = 0.0
        self.outage: Outage | None = None
        self.server = MemoryFileSystem()
        self.timing = replace(TIMING, rejoin=self.rng.choice([NEXT_ROUND, AT_ONCE, NEVER]))
        self.attempts: list[Attempt] = []
        self.agents: dict[str, SimulatedAgent] = {}
        self.handled = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._time = 0.0
        self._nonces = 0
        self._durations: dict[tuple[str, int], float] = {}
        self.saved: Counter[str] = Counter()
        for directory in (RUN.state, RUN.nodes, RUN.commits, os.path.dirname(TARGET)):
            self.server.makedirs(directory)
        self.ledger = Ledger(AgentStatus(self._was_impaired, self._any_unimpaired))
        self.nodes = [self._make_node(f"n{i + 1}") for i in range(self.rng.randint(*plan.nodes))]

    def _make_node(self, name: str) -> Node:
        cache = ClientCache(self.now, self.rng, lambda kind: self.stale.update([kind]))
        days = self.rng.randint(-3 * faults.DAY_NS, 3 * faults.DAY_NS)
        return Node(name, cache, self.rng.uniform(0.0, 1e6), days)

    # Time

    def now(self) -> float:
        """See `Host`."""
        return self._time

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """See `Host`."""
        self._sequence += 1
        heapq.heappush(self._queue, (self._time + seconds, self._sequence, event))

    def step(self) -> None:
        """Execute the next event."""
        when, _, event = heapq.heappop(self._queue)
        self._time = max(self._time, when)
        self.handled += 1
        event()

    def note(self, text: str) -> None:
        """Keep an event for the message of a broken invariant."""
        self.events.append((self._time, text))
        if self.plan.verbose:
            print(f"{self._time:10.3f} s  {text}")

    def struck(self, kind: str, where: str = "", call: str = "") -> None:
        """Count a fault."""
        self.counts[kind] += 1
        self.note(f"FAULT {kind} {where} {call}")

    @property
    def strikes(self) -> int:
        """Number of faults so far."""
        return self.counts.total()

    # Attempts and agents

    def living(self) -> Iterator[SimulatedAgent]:
        """Yield the live agents of all attempts."""
        for attempt in self.attempts:
            for agent in attempt.agents:
                if agent.alive:
                    yield agent

    def begin(self, name: str, nodes: list[Node]) -> Attempt:
        """Start an attempt on these nodes, some of them late."""
        rng = self.rng
        low = rng.randint(1, len(nodes))
        high = len(nodes) if self.gentle else rng.randint(low, len(nodes))
        expected = tuple(node.name for node in nodes) if self.gentle or rng.random() < 0.8 else ()
        restarts = 3 if self.gentle else rng.choice([0, 1, 3, *[1000] * 5])
        attempt = Attempt(RunSpec("r", name, expected, low, high, restarts), rng.randint(1, 2))
        self.attempts.append(attempt)
        self.note(f"attempt {name} begins on {len(nodes)} nodes, {low}:{high}, {restarts} restarts")
        for position, node in enumerate(nodes):
            delay = rng.uniform(0.0, 1.0)
            if not self.gentle and rng.random() < 0.1:
                delay = rng.uniform(3.0, 40.0)
                self.after(delay, partial(self.struck, "node joins late", node.name))
            attempt.due = max(attempt.due, self._time + delay)
            self.after(delay, partial(self.start, attempt, node, position))
        return attempt

    def start(self, attempt: Attempt, home: Node, position: int, run_spec: RunSpec | None = None) -> None:
        """Start an agent, unless its node is down or has one of this attempt.

        Args:
            run_spec: this agent's; None: the attempt's.
        """
        if self.last not in (None, attempt):
            return
        if not home.up or attempt.has(home):
            return
        incarnation = f"{home.name}-{len(self.agents)}"
        agent = SimulatedAgent(self, home, attempt, incarnation)
        self.agents[incarnation] = agent
        attempt.agents.append(agent)
        record = first_record(home.name, incarnation, attempt.name, position, attempt.slots)
        # A constant pid: that of the simulating process differs between runs.
        record = replace(record, pid=1, port=29400)
        clocks = (agent.monotonic, agent.now_ns)
        member = Member(
            agent.fs,
            RUN,
            run_spec or attempt.run_spec,
            record,
            self.timing,
            PACE,
            *clocks,
            self._nonce,
            self._wake_agents,
        )
        machine = AgentMachine(home.name, incarnation, attempt.name, attempt.slots, GRACE_S, KILL_WAIT_S)
        self.note(f"{incarnation} of {attempt.name} starts")
        agent.start(member, machine)

    def _wake_agents(self, records: Iterable[NodeRecord]) -> None:
        """Deliver wake-up datagrams: some are lost, the others arrive in any order."""
        for record in records:
            agent = self.agents.get(record.incarnation)
            if agent is not None and self.rng.random() < DELIVERED:
                self.after(self.rng.uniform(0.0, 0.05), agent.on_wake)

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self._nonces:016x}"

    # Interface for agents

    def may_wait(self, agent: VirtualAgent) -> bool:
        """See `Host`."""
        assert isinstance(agent, SimulatedAgent)
        now, home = self._time, agent.home
        if home.slow_until > now and self.rng.random() < 0.3:
            agent.slow_in = self.rng.randint(1, 8)
        stalls = self.stalled_until > now or home.stalled_until > now
        return stalls or agent.slow_in > 0 or any(fault.waits for fault in agent.armed)

    def plan_worker(self, agent: VirtualAgent, assignment: Assignment, local_rank: int) -> VirtualWorker:
        """See `Host`."""
        assert isinstance(agent, SimulatedAgent)
        rng = self.rng
        if agent.cannot_start:
            agent.cannot_start -= 1
            self.struck("rank cannot be started", agent.node)
            raise OSError(errno.EAGAIN, "cannot start python")
        longest = 10.0 if self.gentle else 400.0
        duration = self._durations.setdefault((assignment.attempt, assignment.round), rng.uniform(5.0, longest))
        ends_at = self._time + duration + rng.uniform(0.0, 2.0)
        return VirtualWorker(local_rank, ends_at, 0, None, rng.uniform(0.02, 0.5), 0.02)

    def reaches_master(self, agent: VirtualAgent, assignment: Assignment) -> bool:
        """See `Host`."""
        world = self.ledger.world(assignment.attempt, assignment.round)
        master = next(
            (node for node in self.nodes if world is not None and node.name == world.participants[0].node), None
        )
        assert isinstance(agent, SimulatedAgent)
        ends = [agent.home] if master is None else [agent.home, master]
        return ends[0] is ends[-1] or all(node.cut_until <= self._time for node in ends)

    def commits(self, agent: VirtualAgent) -> Commits:
        """See `Host`."""
        return Commits(agent.fs, RUN, self._nonce)

    def on_spawned(self, agent: VirtualAgent, assignment: Assignment) -> None:
        """See `Host`."""
        self.note(f"{agent.record.incarnation} runs round {assignment.round}")
        self.ledger.on_spawned(agent, assignment)
        if assignment.first_rank == 0 and 0 in agent.workers:
            assert isinstance(agent, SimulatedAgent)
            fs = CachingClient(self.server, agent.home.cache, agent.refuse)
            saver = Saver(self, fs, RUN, agent, agent.workers[0], assignment, self.ledger, self.saved)
            saver.start(Commits(fs, RUN, self._nonce), self.ledger.rounds)
        if self.ledger.is_over(assignment):
            self._expect_stop(agent, assignment, STOP_S)

    def on_gone(self, agent: VirtualAgent, code: int | None) -> None:
        """See `Host`; a killed agent's guardian may mark its node as left."""
        assert isinstance(agent, SimulatedAgent)
        self.note(f"{agent.incarnation} is gone with {code}")
        if code is not None:
            self.ledger.on_exit(agent, agent.attempt.name)
        elif agent.home.up and self.rng.random() < 0.5:
            self.after(self.rng.uniform(0.02, 3.0), partial(self._mark_as_left, agent))

    def _mark_as_left(self, agent: SimulatedAgent) -> None:
        path = RUN.node_file(agent.node)
        data = self.server.files().get(path)
        if data is None or not agent.home.up:
            return
        record = NodeRecord.decode(data, path)
        if record.incarnation == agent.incarnation and record.status != LEFT:
            gone = replace(record, counter=record.counter + 1, status=LEFT, reason="its agent was killed by SIGKILL")
            publish(self.server, path, gone.encode(), nonce=self._nonce)

    # Invariants

    def on_changed(self, agent: SimulatedAgent, operation: Operation) -> None:
        """Check a change of a name in the state directory."""
        path = operation.path
        directory, _, name = path.rpartition("/")
        if directory != RUN.state:
            return
        if operation.name != "link":
            self.ledger.on_overwritten(path, self.server.content(path) if operation.name == "rename" else None)
            return
        content = self.server.content(path)
        before = self.ledger.state
        state = State.decode(content.partition(b"\n")[2], path)
        self.note(
            f"{agent.incarnation} publishes {int(name[:12])}: {state.attempt} {state.phase} round {state.round}"
            f" by {state.coordinator.incarnation} restarts {state.restarts_used}"
            + (f" closed {state.closed.exit_code} {state.closed.reason}" if state.closed else "")
        )
        self.ledger.on_generation(path, int(name[:12]), content, state)
        if before is None or (before.attempt, before.round, before.phase) != (state.attempt, state.round, state.phase):
            for other in self.living():
                if other.workers and other.assignment is not None and self.ledger.is_over(other.assignment):
                    self._expect_stop(other, other.assignment, STOP_S)

    def _expect_stop(self, agent: VirtualAgent, assignment: Assignment, seconds: float) -> None:
        self.after(seconds, partial(self._check_stop, agent, assignment))

    def _check_stop(self, agent: VirtualAgent, assignment: Assignment) -> None:
        """Check that an unimpaired agent runs no worker of a finished round."""
        assert isinstance(agent, SimulatedAgent)
        if not agent.alive or agent.assignment is not assignment or not agent.workers:
            return
        slow = any(worker.kill_s > 1.0 for worker in agent.workers.values())
        unread = [one.until for one in (self.outage, agent.home.outage) if one is not None and not one.calls]
        blind = max(self.stalled_until, agent.home.slow_until, *unread) >= self._time - STOP_S
        if slow or blind or agent.is_impaired(STOP_S):
            self._expect_stop(agent, assignment, STOP_S if agent.leaving or slow or blind else 2.0)
            return
        facts = (agent.incarnation, f"round {assignment.round} of {assignment.attempt}", agent.machine.phase)
        check(False, f"workers of a finished round are alive {STOP_S} s after their agent could read that", *facts)

    def _was_impaired(self, incarnation: str) -> bool:
        agent = self.agents.get(incarnation)
        return agent is None or agent.is_impaired()

    def _any_unimpaired(self, attempt: str) -> bool:
        """Return whether an agent of that attempt has been alive and unimpaired for long."""
        mine = [agent for agent in self.agents.values() if agent.attempt.name == attempt and agent.alive]
        return any(not agent.is_impaired() and self._time - agent.born > STOP_S for agent in mine)
