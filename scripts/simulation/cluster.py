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
from ftslurm.agent.containment import Defect
from ftslurm.agent.machine import AgentMachine
from ftslurm.dataclasses import dataclass, replace
from ftslurm.records.node import NodeRecord, first_record
from ftslurm.records.state import LEFT, State
from ftslurm.rendezvous.contacts import Contacts
from ftslurm.rendezvous.member import Member
from ftslurm.rendezvous.observation import AT_ONCE, NEVER, NEXT_ROUND, RunSpec, Timing
from ftslurm.rendezvous.pace import Pace
from ftslurm.sharedfs.cell import read_generation
from ftslurm.sharedfs.commits import Commits
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.memoryfs import MemoryFileSystem, Operation
from simulation import faults
from simulation.agent import VirtualAgent
from simulation.faults import Outage
from simulation.faulty_agent import FaultyAgent, VirtualAttempt, VirtualNode
from simulation.filesystem import CachingClient, ClientCache
from simulation.host import Host, VirtualWorker
from simulation.invariants import AgentStatus, Broken, Ledger, check
from simulation.network import Network, VirtualChannel
from simulation.saver import TARGET, Saver
from simulation.stopping import Training

RUN = RunDirectory("/runs/r")
TIMING = Timing(node_timeout_s=8.0, join_timeout_s=60.0, last_call_s=4.0, rejoin=NEXT_ROUND)
PACE = Pace(heartbeat_s=2.0, follow_s=1.0, thorough_s=5.0, coordinate_s=0.25, transition_s=0.25, quiet_s=20.0)
GRACE_S, KILL_WAIT_S = 2.0, 6.0

STOP_S = PACE.thorough_s + PACE.follow_s + GRACE_S + 4.0
"""Time within which an unimpaired agent stops the workers of a finished round, in seconds."""

DELIVERED = 0.7
"""Fraction of the wake-up datagrams that are delivered."""

LOST_SIGNS = (0.0, 0.0, 0.02, 0.4, 1.0)
"""Fractions of the signs of life that are lost, of which each cluster has one."""


@dataclass(frozen=True)
class ClusterOptions:
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


class Cluster(Host):
    """One cluster and its run directory, over all attempts.

    Args:
        options: see `ClusterOptions`.

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

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.run = RUN
        self.rng = random.Random(options.seed)
        self.counts: Counter[str] = Counter()
        self.stale: Counter[str] = Counter()
        self.events: deque[tuple[float, str]] = deque(maxlen=80)
        self.gentle = False
        self.last: VirtualAttempt | None = None
        self.stalled_until = 0.0
        self.outage: Outage | None = None
        self.server = MemoryFileSystem()
        self.timing = replace(TIMING, rejoin=self.rng.choice([NEXT_ROUND, AT_ONCE, NEVER]))
        self.attempts: list[VirtualAttempt] = []
        self.agents: dict[str, FaultyAgent] = {}
        self.handled = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._time = 0.0
        self._nonces = 0
        self._paces: dict[tuple[str, int], tuple[float, int]] = {}
        self._polls: dict[str, bool] = {}
        self._durations: dict[tuple[str, int], float] = {}
        self.saved: Counter[str] = Counter()
        for directory in (RUN.state, RUN.nodes, RUN.commits, os.path.dirname(TARGET)):
            self.server.makedirs(directory)
        self.ledger = Ledger(AgentStatus(self._was_impaired, self._any_unimpaired))
        self.network = Network(self.now, self.after, self.rng, self.agents, self.rng.choice(LOST_SIGNS), {})
        self.nodes = [self._make_node(f"n{i + 1}") for i in range(self.rng.randint(*options.nodes))]

    def _make_node(self, name: str) -> VirtualNode:
        cache = ClientCache(self.now, self.rng, lambda kind: self.stale.update([kind]))
        days = self.rng.randint(-3 * faults.DAY_NS, 3 * faults.DAY_NS)
        return VirtualNode(name, cache, self.rng.uniform(0.0, 1e6), days)

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
        if self.options.verbose:
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

    def living(self) -> Iterator[FaultyAgent]:
        """Yield the live agents of all attempts."""
        for attempt in self.attempts:
            for agent in attempt.agents:
                if agent.alive:
                    yield agent

    def begin(self, name: str, nodes: list[VirtualNode]) -> VirtualAttempt:
        """Start an attempt on these nodes, some of them late."""
        rng = self.rng
        low = rng.randint(1, len(nodes))
        high = len(nodes) if self.gentle else rng.randint(low, len(nodes))
        expected = tuple(node.name for node in nodes) if self.gentle or rng.random() < 0.8 else ()
        restarts = 3 if self.gentle else rng.choice([0, 1, 3, *[1000] * 5])
        attempt = VirtualAttempt(RunSpec("r", name, expected, low, high, restarts), rng.randint(1, 2))
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

    def start(self, attempt: VirtualAttempt, home: VirtualNode, position: int, run_spec: RunSpec | None = None) -> None:
        """Start an agent, unless its node is down or has one of this attempt.

        Args:
            run_spec: this agent's; None: the attempt's.
        """
        if self.last not in (None, attempt):
            return
        if not home.up or attempt.has(home):
            return
        incarnation = f"{home.name}-{len(self.agents)}"
        agent = FaultyAgent(self, home, attempt, incarnation)
        self.agents[incarnation] = agent
        agent.contacts = Contacts(home.name, incarnation, agent.monotonic, VirtualChannel(self.network, agent))
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
            self.nonce,
            self._wake_agents,
            contacts=agent.contacts,
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

    def nonce(self) -> str:
        """Return a name that is used once."""
        self._nonces += 1
        return f"{self._nonces:016x}"

    # Interface for agents

    def may_wait(self, agent: VirtualAgent) -> bool:
        """See `Host`."""
        assert isinstance(agent, FaultyAgent)
        now, home = self._time, agent.home
        if home.slow_until > now and self.rng.random() < 0.3:
            agent.slow_in = self.rng.randint(1, 8)
        stalls = self.stalled_until > now or home.stalled_until > now
        return stalls or agent.slow_in > 0 or any(fault.waits for fault in agent.armed)

    def plan_worker(self, agent: VirtualAgent, assignment: Assignment, local_rank: int) -> VirtualWorker:
        """See `Host`."""
        assert isinstance(agent, FaultyAgent)
        rng = self.rng
        if agent.cannot_start:
            agent.cannot_start -= 1
            self.struck("rank cannot be started", agent.node)
            raise OSError(errno.EAGAIN, "cannot start python")
        longest = 10.0 if self.gentle else 400.0
        duration = self._durations.setdefault((assignment.attempt, assignment.round), rng.uniform(5.0, longest))
        ends_at = self._time + duration + rng.uniform(0.0, 2.0)
        training = self._training(assignment)
        return VirtualWorker(local_rank, ends_at, 0, None, rng.uniform(0.02, 0.5), 0.02, training=training)

    def _training(self, assignment: Assignment) -> Training | None:
        """Return the steps of a rank of that round; None where the script does not call `should_stop`."""
        rng, key = self.rng, (assignment.attempt, assignment.round)
        pace = self._paces.setdefault(key, (rng.choice([0.05, 0.3, 2.0, 20.0]), rng.choice([1, 1, 1, 10])))
        if self._polls.setdefault(assignment.attempt, rng.random() < 0.6):
            return Training(self._time + rng.uniform(0.5, 5.0), pace[0] * rng.uniform(0.8, 1.2), pace[1])
        return None

    def on_left(self, agent: VirtualAgent, worker: VirtualWorker, step: int, in_vain: bool) -> None:
        """See `Host`."""
        self.saved["left by an orderly stop" if not in_vain else "left without a decision"] += 1
        assert agent.assignment is not None
        self.ledger.on_left(agent, agent.assignment, worker.local_rank, step, in_vain)

    def reaches_master(self, agent: VirtualAgent, assignment: Assignment) -> bool:
        """See `Host`."""
        world = self.ledger.world(assignment.attempt, assignment.round)
        master = next(
            (node for node in self.nodes if world is not None and node.name == world.participants[0].node), None
        )
        assert isinstance(agent, FaultyAgent)
        ends = [agent.home] if master is None else [agent.home, master]
        return ends[0] is ends[-1] or all(node.cut_until <= self._time for node in ends)

    def commits(self, agent: VirtualAgent) -> Commits:
        """See `Host`."""
        return Commits(agent.fs, RUN, self.nonce)

    def on_spawned(self, agent: VirtualAgent, assignment: Assignment) -> None:
        """See `Host`."""
        self.note(f"{agent.record.incarnation} runs round {assignment.round}")
        self.ledger.on_spawned(agent, assignment)
        if assignment.first_rank == 0 and 0 in agent.workers:
            assert isinstance(agent, FaultyAgent)
            fs = CachingClient(self.server, agent.home.cache, agent.refuse)
            saver = Saver(self, fs, RUN, agent, agent.workers[0], assignment, self.ledger, self.saved)
            saver.start(Commits(fs, RUN, self.nonce), self.ledger.rounds)
        if self.ledger.is_over(assignment):
            self._expect_stop(agent, assignment, STOP_S)

    def on_gone(self, agent: VirtualAgent, code: int | None) -> None:
        """See `Host`; a killed agent's guardian may mark its node as left."""
        assert isinstance(agent, FaultyAgent)
        self.note(f"{agent.incarnation} is gone with {code}")
        if code is not None:
            self.ledger.on_exit(agent, agent.attempt.name)
        elif agent.home.up and self.rng.random() < 0.5:
            self.after(self.rng.uniform(0.02, 3.0), partial(self._mark_as_left, agent))

    def _mark_as_left(self, agent: FaultyAgent) -> None:
        path = RUN.node_file(agent.node)
        data = self.server.files().get(path)
        if data is None or not agent.home.up:
            return
        record = NodeRecord.decode(data, path)
        if record.incarnation == agent.incarnation and record.status != LEFT:
            gone = replace(record, counter=record.counter + 1, status=LEFT, reason="its agent was killed by SIGKILL")
            publish(self.server, path, gone.encode(), nonce=self.nonce)

    def on_defect(self, agent: VirtualAgent, defect: Defect) -> None:
        """See `Host`."""
        raise Broken(f"a defect of {agent.record.incarnation}: {defect.traceback}")

    # Invariants

    def on_changed(self, agent: FaultyAgent, operation: Operation) -> None:
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
        state = State.decode(read_generation(content, path, int(name[:12])).value or b"", path)
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
        assert isinstance(agent, FaultyAgent)
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
