"""Course of a simulation: a number of faults, a calm phase, and a final attempt that must succeed."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from functools import partial

from ftslurm.dataclasses import replace
from ftslurm.rendezvous.state import EXIT_DO_NOT_REQUEUE, RUNNING, SUCCEEDED
from ftslurm.testing.memoryfs import Crash, Operation
from ftslurm.testing.simulation import faults
from ftslurm.testing.simulation.agent import VirtualAgent
from ftslurm.testing.simulation.cluster import Attempt, Cluster, SimulatedAgent
from ftslurm.testing.simulation.faults import STOP_SIGNALS, WEIGHTS
from ftslurm.testing.simulation.invariants import check

CALM_S = 45.0
"""Time after the last fault until everything has settled, in seconds."""

PATIENCE_S = 60.0
"""The calm phase begins if faults are rarer than one in this time, in seconds: some kinds need others to occur."""

END_S = 600.0
"""Time after it until every run has ended, in seconds."""


class Scenario:
    """Runs one cluster from its first attempt to its last.

    Args:
        cluster: fresh.

    Attributes:
        had_to_succeed: the attempt that had enough healthy nodes and restarts left at the calm phase.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"scenario {cluster.plan.seed}")
        self._pause_s = self._rng.uniform(1.0, 6.0)
        self._job, self._restart = 100, 0
        self._calm = False
        self._final_attempt: Attempt | None = None
        self.had_to_succeed: Attempt | None = None
        kinds = cluster.plan.kinds or tuple(WEIGHTS)
        self._kinds = kinds, [WEIGHTS[kind] for kind in kinds]
        self._others: dict[str, Callable[[SimulatedAgent], None]] = {
            "slow node": self._slow_node,
            "node stalls": self._node_stalls,
            "all stall": self._all_stall,
            "node refused": self._node_refused,
            "all refused": self._all_refused,
            "network cut": self._network_cut,
            "agent frozen": self._agent_frozen,
            "agent killed": self._agent_killed,
            "node dies": self._node_dies,
            "node returns": self._node_returns,
            "clock jumps": self._clock_jumps,
            "node unhealthy": self._node_unhealthy,
            "agent stopped": self._agent_stopped,
            "job stopped": self._job_stopped,
            "requeue": self._requeue,
            "another job": self._another_job,
            "other options": self._other_options,
        }

    def run(self) -> None:
        """Run the simulation.

        Raises:
            Broken: an invariant does not hold.
        """
        cluster = self._cluster
        cluster.begin(self._attempt_name(new_job=True), cluster.nodes)
        cluster.after(self._pause_s, self._next)
        while self._final_attempt is None or any(cluster.living()) or not self._final_attempt.agents:
            cluster.step()
            if self._calm and self._final_attempt is None and not any(cluster.living()):
                self._begin_final_attempt()
        self._must_have_succeeded(self._final_attempt, "no more faults")
        cluster.ledger.contents_hold(cluster.server.files())

    def _attempt_name(self, new_job: bool) -> str:
        if new_job:
            self._job, self._restart = self._job + 1, 0
        else:
            self._restart += 1
        return f"{self._job}.{self._restart}"

    # The faults

    def _next(self) -> None:
        if self._calm:
            return
        cluster = self._cluster
        if cluster.strikes >= cluster.plan.faults or cluster.now() > PATIENCE_S * (1 + cluster.plan.faults):
            self._calm_down()
            return
        if not any(cluster.living()):
            self._restart_job()
        else:
            self._make(self._rng.choices(*self._kinds)[0])
        cluster.after(self._rng.expovariate(1.0 / self._pause_s), self._next)

    def _restart_job(self) -> None:
        """All agents have ended: start the next attempt, as a requeue or as another job."""
        for node in self._cluster.nodes:
            node.up = node.up or self._rng.random() < 0.7
        if any(node.up for node in self._cluster.nodes) and not self._is_beginning():
            self._begin_next(self._rng.random() < 0.3)

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

    def _arm(self, kind: str, agent: SimulatedAgent) -> None:
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

    def _coordinator(self) -> SimulatedAgent | None:
        state = self._cluster.ledger.state
        agent = self._cluster.agents.get(state.coordinator.incarnation) if state else None
        return agent if agent is not None and agent.alive else None

    # Time and filesystem

    def _slow_node(self, agent: SimulatedAgent) -> None:
        agent.home.slow_until = self._cluster.now() + self._rng.uniform(5.0, 40.0)
        self._cluster.struck("slow node", agent.node)

    def _length(self) -> float:
        return self._rng.choice([self._rng.uniform(2.0, 20.0), self._rng.uniform(20.0, 180.0)])

    def _node_stalls(self, agent: SimulatedAgent) -> None:
        seconds = self._length()

        def strike(victim: VirtualAgent, _: Operation) -> None:
            now = self._cluster.now()
            agent.home.stalled_until = max(agent.home.stalled_until, now + seconds)
            for other in self._cluster.living():
                if other.home is agent.home:
                    other.excuse(seconds)
            victim.wait_until(now + seconds)

        agent.armed.append(faults.waiting(self._rng, "node stalls", strike))

    def _all_stall(self, agent: SimulatedAgent) -> None:
        seconds = self._length()

        def strike(victim: VirtualAgent, _: Operation) -> None:
            cluster = self._cluster
            for other in cluster.living():
                other.extend_excuses(seconds)
            cluster.stalled_until = max(cluster.stalled_until, cluster.now() + seconds)
            victim.wait_until(cluster.stalled_until)

        agent.armed.append(faults.waiting(self._rng, "all stall", strike))

    def _node_refused(self, agent: SimulatedAgent) -> None:
        now = self._cluster.now()
        outage = agent.home.outage = faults.outage(self._rng, now)
        for other in self._cluster.living():
            if other.home is agent.home:
                other.excuse(outage.until - now)
        self._cluster.struck("node refused", agent.node, errno.errorcode[outage.number])

    def _all_refused(self, _: SimulatedAgent) -> None:
        """Let the filesystem refuse calls on all nodes, which does not excuse silence of single nodes."""
        cluster = self._cluster
        outage = cluster.outage = faults.outage(self._rng, cluster.now())
        for other in cluster.living():
            other.extend_excuses(outage.until - cluster.now())
        cluster.struck("all refused", f"for {outage.until - cluster.now():.1f} s", errno.errorcode[outage.number])

    def _network_cut(self, agent: SimulatedAgent) -> None:
        """Break a node's connections to the other nodes, but not to the filesystem: its ranks fail, or a peer's do."""
        agent.home.cut_until = self._cluster.now() + self._length()
        self._cluster.struck("network cut", agent.node)
        for worker in list(agent.workers.values()):
            agent.end_worker(worker, self._rng.uniform(0.0, 3.0), 1, None)

    def _agent_frozen(self, agent: SimulatedAgent) -> None:
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

    def _node_unhealthy(self, agent: SimulatedAgent) -> None:
        check_s, seconds = self._rng.uniform(0.05, 3.0), self._length()
        agent.excuse(check_s + seconds)
        agent.make_unhealthy(check_s, seconds)
        self._cluster.struck("node unhealthy", agent.node)

    def _clock_jumps(self, agent: SimulatedAgent) -> None:
        jump = self._rng.choice([1, -1]) * self._rng.choice([10**9, 3600 * 10**9, 2 * faults.DAY_NS])
        agent.home.offset_ns += jump
        for other in self._cluster.living():
            if other.home is agent.home:
                other.offset_ns += jump
        self._cluster.struck("clock jumps", agent.node)

    # Ends and starts

    def _agent_killed(self, agent: SimulatedAgent) -> None:
        agent.armed.append(faults.crash_at_call(self._rng, "agent killed", faults.die))

    def _node_dies(self, agent: SimulatedAgent) -> None:
        def strike(_: VirtualAgent, __: Operation) -> None:
            agent.home.up = False
            agent.home.cache.clear()
            for other in list(self._cluster.living()):
                if other.home is agent.home and other is not agent:
                    other.crash()
            raise Crash

        agent.armed.append(faults.crash_at_call(self._rng, "node dies", strike))

    def _node_returns(self, _: SimulatedAgent) -> None:
        """Start a new agent on a node without one, whether it was down or not."""
        newest = self._newest()
        absent = [node for node in self._cluster.nodes if not newest.has(node)]
        if newest.agents and absent:
            node = self._rng.choice(absent)
            node.up = True
            self._cluster.struck("node returns", node.name)
            self._cluster.start(newest, node, self._cluster.nodes.index(node))

    def _other_options(self, _: SimulatedAgent) -> None:
        """Start an agent with other options than the run's: it is refused without effect on the others."""
        newest = self._newest()
        free = [node for node in self._cluster.nodes if node.up and not newest.has(node)]
        if newest.agents and free:
            node = self._rng.choice(free)
            self._cluster.struck("other options", node.name)
            run_spec = replace(newest.run_spec, max_restarts=newest.run_spec.max_restarts + 1)
            self._cluster.start(newest, node, self._cluster.nodes.index(node), run_spec)

    def _newest(self) -> Attempt:
        name = f"{self._job}.{self._restart}"
        return next(attempt for attempt in self._cluster.attempts if attempt.name == name)

    def _agent_stopped(self, agent: SimulatedAgent) -> None:
        self._cluster.struck("agent stopped", agent.node)
        agent.signal(self._rng.choice(STOP_SIGNALS))

    def _job_stopped(self, agent: SimulatedAgent) -> None:
        self._cluster.struck("job stopped", agent.attempt.name)
        number = self._rng.choice(STOP_SIGNALS)
        for other in agent.attempt.agents:
            if other.alive:
                self._cluster.after(self._rng.uniform(0.0, 1.0), partial(_signal_agent, other, number))

    def _requeue(self, _: SimulatedAgent) -> None:
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
        self._begin_next(new_job=False)

    def _another_job(self, _: SimulatedAgent) -> None:
        """Start another job in the same run directory: refused while the owner is alive, its successor otherwise."""
        self._cluster.struck("another job")
        some = self._rng.sample(self._cluster.nodes, self._rng.randint(1, min(2, len(self._cluster.nodes))))
        self._cluster.begin(f"{500 + len(self._cluster.attempts)}.0", some)

    def _begin_next(self, new_job: bool) -> Attempt:
        return self._cluster.begin(self._attempt_name(new_job), self._cluster.nodes)

    # Ranks

    def _fault_rank(self, kind: str, agent: SimulatedAgent) -> None:
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
        else:
            faults.fault_worker(self._rng, kind, agent, worker)
        if kind in ("rank exits", "rank killed") and self._rng.random() < 0.5:
            self._fail_peers(agent)

    def _fail_peers(self, agent: SimulatedAgent) -> None:
        """Let other ranks of the round fail in consequence."""
        assert agent.assignment is not None
        for other in self._cluster.living():
            same = other.assignment is not None and other.assignment.round == agent.assignment.round
            if same and other is not agent and self._rng.random() < 0.7:
                for worker in other.workers.values():
                    other.end_worker(worker, self._rng.uniform(0.0, 3.0), -1, "SIGABRT")

    # Calm phase

    def _calm_down(self) -> None:
        cluster = self._cluster
        self._calm = cluster.gentle = True
        cluster.outage = None
        for node in cluster.nodes:
            node.slow_until, node.cut_until, node.outage = 0.0, 0.0, None
        settled = max(cluster.now(), cluster.stalled_until)
        for agent in cluster.living():
            agent.armed.clear()
            agent.cannot_start = agent.slow_in = 0
            settled = max(settled, agent.home.stalled_until, agent.frozen_until)
            for worker in agent.workers.values():
                if worker.signal is None and worker.ends_at > cluster.now() + CALM_S:
                    # Shorten the training, but beyond the time of the check in `_judge`.
                    agent.end_worker(worker, CALM_S + self._rng.uniform(1.0, 5.0), 0, None)
        cluster.note("calm")
        cluster.after(settled - cluster.now() + CALM_S, self._judge)
        cluster.after(settled - cluster.now() + END_S, self._must_be_over)

    def _judge(self) -> None:
        """Require success of the run if enough nodes are unimpaired."""
        cluster = self._cluster
        state = cluster.ledger.state
        if self._final_attempt is not None or state is None or state.phase != RUNNING:
            return
        attempt = next(attempt for attempt in cluster.attempts if attempt.name == state.attempt)
        gone = [p.incarnation for p in state.participants if not cluster.agents[p.incarnation].alive]
        alive = [agent for agent in attempt.agents if agent.alive]
        check(not gone or not alive, f"lost agents were not detected within {CALM_S} s", gone, state)
        well = [agent for agent in attempt.agents if agent.alive and not agent.is_impaired()]
        told = any(agent.stop_signal for agent in attempt.agents)
        left = state.max_restarts - state.restarts_used
        if len(well) >= state.min_nodes and left >= 2 and not told and not attempt.requested_no_restart:
            self.had_to_succeed = attempt

    def _must_have_succeeded(self, attempt: Attempt, why: str) -> None:
        verdict = self._cluster.ledger.closed.get(attempt.name)
        good = verdict is not None and verdict.outcome == SUCCEEDED
        check(good, f"{why}, and attempt {attempt.name} did not succeed", verdict)

    def _must_be_over(self) -> None:
        if self._final_attempt is None:
            self._check_no_agents("the last fault")

    def _check_no_agents(self, since: str) -> None:
        names = [f"{agent.incarnation} of {agent.attempt.name}" for agent in self._cluster.living()]
        check(not names, f"agents are still alive {END_S:.0f} s after {since}", names, self._cluster.ledger.state)

    def _begin_final_attempt(self) -> None:
        """Run the next attempt on healthy nodes: it must succeed, regardless of the leftovers of the others."""
        cluster = self._cluster
        if self.had_to_succeed is not None:
            self._must_have_succeeded(self.had_to_succeed, "enough nodes were healthy")
        for node in cluster.nodes:
            node.up, node.stalled_until, node.slow_until, node.cut_until, node.outage = True, 0.0, 0.0, 0.0, None
        cluster.stalled_until, cluster.outage = 0.0, None
        cluster.note("the final_attempt")
        self._final_attempt = cluster.last = self._begin_next(self._rng.random() < 0.5)
        cluster.after(END_S, partial(self._check_no_agents, "the beginning of a healthy attempt"))


FAULTS_OF_CALLS = tuple(kind for kind in WEIGHTS if kind.startswith("lost reply")) + (
    "call refused",
    "stale handle",
    "slow call",
)


def _signal_agent(agent: SimulatedAgent, number: int) -> None:
    if agent.alive:
        agent.signal(number)
