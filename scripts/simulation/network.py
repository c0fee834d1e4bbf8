"""The datagrams of a simulated cluster: some are lost, late or out of order, and some pairs of nodes exchange none."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ftslurm.dataclasses import dataclass
from ftslurm.records.node import NodeRecord

if TYPE_CHECKING:
    from simulation.faulty_agent import FaultyAgent, VirtualNode

LATE, LATEST_S = 0.05, 5.0
"""Fraction of the datagrams that are late, and by how much at most, in seconds; they arrive out of order."""


@dataclass
class Network:
    """Between the nodes of one cluster.

    Args:
        now: true time, seconds.
        after: calls a function after some seconds.
        rng: decides what is lost and what is late.
        agents: by incarnation, including ended ones.

    Attributes:
        lost: fraction of the datagrams that are lost.
        blocked: until when datagrams between two nodes are dropped, by their names in order; connections are not.
    """

    now: Callable[[], float]
    after: Callable[[float, Callable[[], None]], None]
    rng: random.Random
    agents: dict[str, FaultyAgent]
    lost: float
    blocked: dict[tuple[str, str], float]

    def passes(self, sender: VirtualNode, receiver: VirtualNode) -> bool:
        """Return whether a packet of any kind gets from one node to the other."""
        now = self.now()
        return sender is receiver or max(sender.cut_until, receiver.cut_until) <= now

    def block(self, sender: str, receiver: str, seconds: float) -> None:
        """Drop the datagrams of one node to another one."""
        self.blocked[sender, receiver] = max(self.blocked.get((sender, receiver), 0.0), self.now() + seconds)

    def passes_datagrams(self, sender: VirtualNode, receiver: VirtualNode) -> bool:
        """Return whether datagrams get from one node to the other."""
        return self.passes(sender, receiver) and self.blocked.get((sender.name, receiver.name), 0.0) <= self.now()


class VirtualChannel:
    """The datagrams of one agent; see `ftslurm.rendezvous.contacts.Channel`."""

    def __init__(self, network: Network, agent: FaultyAgent) -> None:
        self._network = network
        self._agent = agent
        self._refused: list[tuple[str, str]] = []
        self._answered: list[tuple[str, str]] = []

    def send(self, record: NodeRecord, data: bytes) -> None:
        """See `Channel`."""
        net, rng = self._network, self._network.rng
        other = net.agents.get(record.incarnation)
        if other is None or not other.home.up or not net.passes_datagrams(self._agent.home, other.home):
            return
        if rng.random() < net.lost:
            return
        if rng.random() < LATE:
            net.after(rng.uniform(0.0, LATEST_S), partial(self._deliver, other, data))
        else:
            self._deliver(other, data)

    def _deliver(self, other: FaultyAgent, data: bytes) -> None:
        if other.alive:
            other.on_sign(data)
        elif other.home.up and self._network.passes(other.home, self._agent.home):
            self._refused.append((other.node, other.incarnation))

    def ask(self, record: NodeRecord) -> None:
        """See `Channel`."""
        other = self._network.agents.get(record.incarnation)
        if other is not None and other.home.up and self._network.passes(self._agent.home, other.home):
            self._answered.append((other.node, other.incarnation))

    def refusals(self) -> list[tuple[str, str]]:
        """See `Channel`."""
        refused, self._refused = self._refused, []
        return refused

    def answers(self) -> list[tuple[str, str]]:
        """See `Channel`."""
        answered, self._answered = self._answered, []
        return answered
