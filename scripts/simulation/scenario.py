"""Course of a simulation: a number of faults, a calm phase, and a final attempt that must succeed."""

from __future__ import annotations

import random
from functools import partial

from ftslurm.records.state import RUNNING, SUCCEEDED
from simulation.cluster import Cluster
from simulation.fault_injector import FaultInjector
from simulation.faulty_agent import VirtualAttempt
from simulation.invariants import check

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
        self._rng = random.Random(f"scenario {cluster.options.seed}")
        self._injector = FaultInjector(cluster, self._rng)
        self._pause_s = self._rng.uniform(1.0, 6.0)
        self._calm = False
        self._final_attempt: VirtualAttempt | None = None
        self.had_to_succeed: VirtualAttempt | None = None

    def run(self) -> None:
        """Run the simulation.

        Raises:
            Broken: an invariant does not hold.
        """
        cluster = self._cluster
        self._injector.begin(new_job=True)
        cluster.after(self._pause_s, self._next)
        while self._final_attempt is None or any(cluster.living()) or not self._final_attempt.agents:
            cluster.step()
            if self._calm and self._final_attempt is None and not any(cluster.living()):
                self._begin_final_attempt()
        self._must_have_succeeded(self._final_attempt, "no more faults")
        cluster.ledger.contents_hold(cluster.server.files())

    def _next(self) -> None:
        if self._calm:
            return
        cluster = self._cluster
        if cluster.strikes >= cluster.options.faults or cluster.now() > PATIENCE_S * (1 + cluster.options.faults):
            self._calm_down()
            return
        self._injector.next()
        cluster.after(self._rng.expovariate(1.0 / self._pause_s), self._next)

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
        stopped = attempt.asked_to_stop or any(agent.stop_signal for agent in attempt.agents)
        left = state.max_restarts - state.restarts_used
        if len(well) >= state.min_nodes and left >= 2 and not stopped and not attempt.requested_no_restart:
            self.had_to_succeed = attempt

    def _must_have_succeeded(self, attempt: VirtualAttempt, why: str) -> None:
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
        self._final_attempt = cluster.last = self._injector.begin(self._rng.random() < 0.5)
        cluster.after(END_S, partial(self._check_no_agents, "the beginning of a healthy attempt"))
