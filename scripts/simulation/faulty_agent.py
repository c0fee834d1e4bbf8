"""Nodes, attempts and agents of a simulated cluster, with the faults that are active on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftslurm.rendezvous.observation import RunSpec
from ftslurm.testing.memoryfs import AFTER, BEFORE, Operation
from simulation import faults
from simulation.agent import VirtualAgent
from simulation.faults import Armed, Outage
from simulation.filesystem import CachingClient, ClientCache

if TYPE_CHECKING:
    from simulation.cluster import Cluster

EXCUSE_S = 30.0
"""Time for which a fault excuses a later silence, in seconds."""

CHANGES = ("link", "rename", "unlink")


class VirtualNode:
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
        self.paused_at = float("-inf")


class VirtualAttempt:
    """One start of a job with all its agents, including ended ones."""

    def __init__(self, run_spec: RunSpec, slots: int) -> None:
        self.run_spec = run_spec
        self.name = run_spec.attempt
        self.slots = slots
        self.agents: list[FaultyAgent] = []
        self.requested_no_restart = False
        self.asked_to_stop = False
        self.due = 0.0

    def has(self, node: VirtualNode) -> bool:
        """Return whether an agent of this attempt is alive on that node."""
        return any(agent.alive and agent.home is node for agent in self.agents)


class FaultyAgent(VirtualAgent):
    """A virtual agent with the simulation's data about it.

    Attributes:
        armed: faults that wait for its calls.
        excuses: for each fault that impaired it, the time of its end.
        small_faults: times of small faults.
        cannot_start: number of its next workers that cannot be started.
        slow_in: number of calls until a slow one, 0 for none.
    """

    def __init__(self, cluster: Cluster, home: VirtualNode, attempt: VirtualAttempt, incarnation: str) -> None:
        fs = CachingClient(cluster.server, home.cache, self._on_call)
        super().__init__(cluster, home.name, fs, cluster.run, home.offset_s, home.offset_ns)
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
        # A node that is cut off proves that it lives by its record alone, and at once.
        many = 1 if self.home.cut_until >= since else 4
        return self.departed or self.leaving or small >= many or any(until >= since for until in self.excuses)

    def extend_excuses(self, seconds: float) -> None:
        """Extend its excuses by a stall of all nodes, in which it could not recover."""
        since = self._cluster.now() - EXCUSE_S
        self.excuses = [until + seconds if until >= since else until for until in self.excuses]
        self.small_faults = [at + seconds if at >= since else at for at in self.small_faults]
