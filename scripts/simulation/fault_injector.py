"""The faults of a scenario: what each kind does to a cluster."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from functools import partial

from ftslurm.dataclasses import replace
from ftslurm.records.state import EXIT_DO_NOT_REQUEUE
from ftslurm.records.stop import StopFile
from ftslurm.sharedfs.publish import publish
from ftslurm.testing.memoryfs import Crash, Operation
from simulation import faults
from simulation.agent import VirtualAgent
from simulation.cluster import RUN, Cluster
from simulation.faults import STOP_SIGNALS, WEIGHTS
from simulation.faulty_agent import FaultyAgent, VirtualAttempt

FAULTS_OF_CALLS = tuple(kind for kind in WEIGHTS if kind.startswith("lost reply")) + (
    "call refused",
    "stale handle",
    "slow call",
)


PAUSE_S, PAUSED_AGAIN_S = 5.0, 40.0
"""Longest pause of a node that must cost nothing, and the time between two of a node, in seconds."""


class FaultInjector:
    """Makes random faults in one cluster, and starts its attempts.

    Args:
        cluster: fresh.
        rng: decides.
    """

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._job, self._restart = 100, 0
        kinds = cluster.options.kinds or tuple(WEIGHTS)
        self._kinds = kinds, [WEIGHTS[kind] for kind in kinds]
        self._others: dict[str, Callable[[FaultyAgent], None]] = {
            "slow node": self._slow_node,
            "node stalls": self._node_stalls,
            "all stall": self._all_stall,
            "node refused": self._node_refused,
            "all refused": self._all_refused,
            "network cut": self._network_cut,
            "datagrams blocked": self._datagrams_blocked,
            "node pauses": self._node_pauses,
            "agent frozen": self._agent_frozen,
            "agent killed": self._agent_killed,
            "node dies": self._node_dies,
            "node returns": self._node_returns,
            "clock jumps": self._clock_jumps,
            "node unhealthy": self._node_unhealthy,
            "agent stopped": self._agent_stopped,
            "job stopped": self._job_stopped,
            "stop requested": self._stop_requested,
            "requeue": self._requeue,
            "another job": self._another_job,
            "other options": self._other_options,
        }

    def begin(self, new_job: bool) -> VirtualAttempt:
        """Start the next attempt on all nodes."""
        return self._cluster.begin(self._attempt_name(new_job), self._cluster.nodes)

    def next(self) -> None:
        """Make a fault; if no agent is alive, start the next attempt."""
        if any(self._cluster.living()):
            self._make(self._rng.choices(*self._kinds)[0])
        else:
            self._restart_job()

    def _attempt_name(self, new_job: bool) -> str:
        if new_job:
            self._job, self._restart = self._job + 1, 0
        else:
            self._restart += 1
        return f"{self._job}.{self._restart}"

    def _restart_job(self) -> None:
        """All agents have ended: start the next attempt, as a requeue or as another job."""
        for node in self._cluster.nodes:
            node.up = node.up or self._rng.random() < 0.7
        if any(node.up for node in self._cluster.nodes) and not self._is_beginning():
            self.begin(self._rng.random() < 0.3)

    def _is_beginning(self) -> bool:
        newest = self._cluster.attempts[-1]
        return not newest.agents and any(node.up for node in self._cluster.nodes) and self._cluster.now() < newest.due

    def _make(self, kind: str) -> None:
        living = [agent for agent in self._cluster.living() if not agent.armed or self._rng.random() < 0.3]
        if not living:
            return
        agent = self._rng.choice(living)
        if kind in FAULTS_OF_CALLS:
            self._arm(kind, agent)
        elif kind.startswith("rank "):
            self._fault_rank(kind, agent)
        else:
            self._others[kind](agent)

    def _arm(self, kind: str, agent: FaultyAgent) -> None:
        rng = self._rng
        if kind.startswith("lost reply: "):
            name = kind.rpartition(" ")[2]
            if name == "link" and rng.random() < 0.8:
                agent = self._coordinator() or agent
            agent.armed.append(faults.lost_reply(rng, name))
        elif kind == "call refused":
            agent.armed.append(faults.refusal(rng))
        elif kind == "stale handle":
            agent.armed.append(faults.stale_handle(rng))
        else:
            agent.armed.append(faults.slow_call(rng))

    def _coordinator(self) -> FaultyAgent | None:
        state = self._cluster.ledger.state
        agent = self._cluster.agents.get(state.coordinator.incarnation) if state else None
        return agent if agent is not None and agent.alive else None

    # Time and filesystem

    def _slow_node(self, agent: FaultyAgent) -> None:
        agent.home.slow_until = self._cluster.now() + self._rng.uniform(5.0, 40.0)
        self._cluster.struck("slow node", agent.node)

    def _length(self) -> float:
        return self._rng.choice([self._rng.uniform(2.0, 20.0), self._rng.uniform(20.0, 180.0)])

    def _node_stalls(self, agent: FaultyAgent) -> None:
        seconds = self._length()

        def strike(victim: VirtualAgent, _: Operation) -> None:
            now = self._cluster.now()
            agent.home.stalled_until = max(agent.home.stalled_until, now + seconds)
            for other in self._cluster.living():
                if other.home is agent.home:
                    other.excuse(seconds)
            victim.wait_until(now + seconds)

        agent.armed.append(faults.waiting(self._rng, "node stalls", strike))

    def _all_stall(self, agent: FaultyAgent) -> None:
        seconds = self._length()

        def strike(victim: VirtualAgent, _: Operation) -> None:
            cluster = self._cluster
            for other in cluster.living():
                other.extend_excuses(seconds)
            cluster.stalled_until = max(cluster.stalled_until, cluster.now() + seconds)
            victim.wait_until(cluster.stalled_until)

        agent.armed.append(faults.waiting(self._rng, "all stall", strike))

    def _node_refused(self, agent: FaultyAgent) -> None:
        now = self._cluster.now()
        outage = agent.home.outage = faults.outage(self._rng, now)
        for other in self._cluster.living():
            if other.home is agent.home:
                other.excuse(outage.until - now)
        self._cluster.struck("node refused", agent.node, errno.errorcode[outage.number])

    def _all_refused(self, _: FaultyAgent) -> None:
        """Let the filesystem refuse calls on all nodes, which does not excuse silence of single nodes."""
        cluster = self._cluster
        outage = cluster.outage = faults.outage(self._rng, cluster.now())
        for other in cluster.living():
            other.extend_excuses(outage.until - cluster.now())
        cluster.struck("all refused", f"for {outage.until - cluster.now():.1f} s", errno.errorcode[outage.number])

    def _network_cut(self, agent: FaultyAgent) -> None:
        """Break a node's connections to the other nodes, but not to the filesystem: its ranks fail, or a peer's do."""
        agent.home.cut_until = self._cluster.now() + self._length()
        self._cluster.struck("network cut", agent.node)
        for worker in list(agent.workers.values()):
            agent.end_worker(worker, self._rng.uniform(0.0, 3.0), 1, None)

    def _datagrams_blocked(self, agent: FaultyAgent) -> None:
        """Let a packet filter drop datagrams between a node and others, one way or both: that excuses nothing."""
        cluster, seconds = self._cluster, self._length()
        for other in cluster.nodes:
            for pair in ((agent.node, other.name), (other.name, agent.node)):
                if other is not agent.home and self._rng.random() < 0.7:
                    cluster.network.block(*pair, seconds)
        cluster.struck("datagrams blocked", agent.node)

    def _node_pauses(self, agent: FaultyAgent) -> None:
        """Stop all processes of a node for up to `PAUSE_S` seconds: that alone excuses nothing."""
        now = self._cluster.now()
        if now - agent.home.paused_at < PAUSED_AGAIN_S:
            return
        agent.home.paused_at = now
        # With one further fault it does.
        agent.small_faults += [now] * 3
        agent.freeze(self._rng.uniform(0.0, PAUSE_S))
        self._cluster.struck("node pauses", agent.node)

    def _agent_frozen(self, agent: FaultyAgent) -> None:
        seconds = self._length()

        def strike(victim: VirtualAgent, _: Operation) -> None:
            agent.excuse(seconds)
            victim.freeze(seconds)
            victim.wait_until(self._cluster.now())

        if self._rng.random() < 0.7:
            agent.armed.append(faults.waiting(self._rng, "agent frozen", strike))
        else:
            agent.excuse(seconds)
            agent.freeze(seconds)
            self._cluster.struck("agent frozen", agent.node)

    def _node_unhealthy(self, agent: FaultyAgent) -> None:
        check_s, seconds = self._rng.uniform(0.05, 3.0), self._length()
        agent.excuse(check_s + seconds)
        agent.make_unhealthy(check_s, seconds)
        self._cluster.struck("node unhealthy", agent.node)

    def _clock_jumps(self, agent: FaultyAgent) -> None:
        jump = self._rng.choice([1, -1]) * self._rng.choice([10**9, 3600 * 10**9, 2 * faults.DAY_NS])
        agent.home.offset_ns += jump
        for other in self._cluster.living():
            if other.home is agent.home:
                other.offset_ns += jump
        self._cluster.struck("clock jumps", agent.node)

    # Ends and starts

    def _agent_killed(self, agent: FaultyAgent) -> None:
        agent.armed.append(faults.crash_at_call(self._rng, "agent killed", faults.die))

    def _node_dies(self, agent: FaultyAgent) -> None:
        def strike(_: VirtualAgent, __: Operation) -> None:
            agent.home.up = False
            agent.home.cache.clear()
            for other in list(self._cluster.living()):
                if other.home is agent.home and other is not agent:
                    other.crash()
            raise Crash

        agent.armed.append(faults.crash_at_call(self._rng, "node dies", strike))

    def _node_returns(self, _: FaultyAgent) -> None:
        """Start a new agent on a node without one, whether it was down or not."""
        newest = self._newest()
        absent = [node for node in self._cluster.nodes if not newest.has(node)]
        if newest.agents and absent:
            node = self._rng.choice(absent)
            node.up = True
            self._cluster.struck("node returns", node.name)
            self._cluster.start(newest, node, self._cluster.nodes.index(node))

    def _other_options(self, _: FaultyAgent) -> None:
        """Start an agent with other options than the run's: it is refused without effect on the others."""
        newest = self._newest()
        free = [node for node in self._cluster.nodes if node.up and not newest.has(node)]
        if newest.agents and free:
            node = self._rng.choice(free)
            self._cluster.struck("other options", node.name)
            run_spec = replace(newest.run_spec, max_restarts=newest.run_spec.max_restarts + 1)
            self._cluster.start(newest, node, self._cluster.nodes.index(node), run_spec)

    def _newest(self) -> VirtualAttempt:
        name = f"{self._job}.{self._restart}"
        return next(attempt for attempt in self._cluster.attempts if attempt.name == name)

    def _agent_stopped(self, agent: FaultyAgent) -> None:
        self._cluster.struck("agent stopped", agent.node)
        agent.send_signal(self._rng.choice(STOP_SIGNALS))

    def _job_stopped(self, agent: FaultyAgent) -> None:
        self._cluster.struck("job stopped", agent.attempt.name)
        number = self._rng.choice(STOP_SIGNALS)
        for other in agent.attempt.agents:
            if other.alive:
                self._cluster.after(self._rng.uniform(0.0, 1.0), partial(_signal_agent, other, number))

    def _stop_requested(self, agent: FaultyAgent) -> None:
        """A user asks the run to stop, by `ftslurm stop`."""
        request = StopFile(agent.attempt.name, "ftslurm stop", agent.now_ns())
        self._cluster.struck("stop requested", agent.attempt.name)
        agent.attempt.asked_to_stop = True
        publish(self._cluster.server, RUN.stop_file, request.encode(), nonce=self._cluster.nonce)

    def _requeue(self, _: FaultyAgent) -> None:
        """Start the next attempt while agents of the last one are killed, frozen, or still running."""
        cluster = self._cluster
        cluster.struck("requeue")
        for agent in list(cluster.living()):
            fate = self._rng.random()
            if fate < 0.5:
                agent.crash()
            elif fate < 0.75:
                seconds = self._length()
                agent.excuse(seconds)
                agent.freeze(seconds)
        self.begin(new_job=False)

    def _another_job(self, _: FaultyAgent) -> None:
        """Start another job in the same run directory: refused while the owner is alive, its successor otherwise."""
        self._cluster.struck("another job")
        some = self._rng.sample(self._cluster.nodes, self._rng.randint(1, min(2, len(self._cluster.nodes))))
        self._cluster.begin(f"{500 + len(self._cluster.attempts)}.0", some)

    # Ranks

    def _fault_rank(self, kind: str, agent: FaultyAgent) -> None:
        if kind == "rank cannot be started":
            agent.cannot_start += 1
            return
        if not agent.workers:
            return
        worker = self._rng.choice(list(agent.workers.values()))
        self._cluster.struck(kind, agent.node)
        if kind == "rank requests no restart":
            agent.attempt.requested_no_restart = True
            agent.end_worker(worker, 0.0, EXIT_DO_NOT_REQUEUE, None)
        elif kind == "rank asks for a stop":
            agent.attempt.asked_to_stop = True
            agent.signal_rank(worker)
        else:
            faults.fault_worker(self._rng, kind, agent, worker)
        if kind in ("rank exits", "rank killed") and self._rng.random() < 0.5:
            self._fail_peers(agent)

    def _fail_peers(self, agent: FaultyAgent) -> None:
        """Let other ranks of the round fail in consequence."""
        assert agent.assignment is not None
        for other in self._cluster.living():
            same = other.assignment is not None and other.assignment.round == agent.assignment.round
            if same and other is not agent and self._rng.random() < 0.7:
                for worker in other.workers.values():
                    other.end_worker(worker, self._rng.uniform(0.0, 3.0), -1, "SIGABRT")


def _signal_agent(agent: FaultyAgent, number: int) -> None:
    if agent.alive:
        agent.send_signal(number)
