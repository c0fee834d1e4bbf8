"""Asks hosts for an answer of their kernel: a TCP connection to any port, which is made or refused at once.

A frozen or slow process does not matter: its kernel answers. A host that is switched off, or that the network does not
reach, does not answer; a packet filter may be the reason, too, so silence means something only after an answer.
"""

from __future__ import annotations

import _socket as socket
import errno
from collections.abc import Callable

WAIT_S = 2.0
"""An answer later than this, in seconds, is none."""
MOST = 64
"""Connections at a time; further questions are not asked."""

Agent = tuple[str, str]
"""Node and incarnation."""


class HostProbe:
    """Connections that are being made.

    Args:
        monotonic: clock, seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pending: dict[Agent, tuple[socket.socket, tuple[str, int], float]] = {}
        self._answered: list[Agent] = []

    def ask(self, agent: Agent, family: int, place: tuple[str, int]) -> None:
        """Ask the host at that numeric address and port, unless a question is pending."""
        if agent in self._pending or len(self._pending) >= MOST:
            return
        try:
            one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            return
        self._pending[agent] = (one, place, self._monotonic() + WAIT_S)
        self._connect(agent)

    def answers(self) -> list[Agent]:
        """Return the agents whose hosts have answered since the last call."""
        for agent in list(self._pending):
            self._connect(agent)
        answered, self._answered = self._answered, []
        return answered

    def _connect(self, agent: Agent) -> None:
        """Begin the connection, or look what has become of it."""
        one, place, until = self._pending[agent]
        number = one.connect_ex(place)
        if number in (errno.EINPROGRESS, errno.EALREADY) and self._monotonic() < until:
            return
        del self._pending[agent]
        # What a connection could be used for is not wanted: it is reset, so that no side keeps it in mind.
        one.close()
        if number in (0, errno.EISCONN, errno.ECONNREFUSED):
            self._answered.append(agent)
