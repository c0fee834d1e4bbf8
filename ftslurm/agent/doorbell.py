"""The doorbell: a UDP wake-up datagram from node to node ("read the shared directory now"); only a hint.

Everything works without it, only later: an agent without wakes reads once a second, and a datagram may be lost, blocked
or forged at will. It carries no data, and it counts only if it names this agent's incarnation, which is in the run
directory. Unwanted datagrams cost little: a flooded node closes its doorbell for a while, and the rate of reads caused
by wakes is bounded, too (`ftslurm.rendezvous.wake_budget.WAKE_SHARE`).
"""

from __future__ import annotations

# What `socket` is made of: the same calls, without an enum of all its constants, which costs 2 ms and 0.3 MB.
import _socket as socket
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from ftslurm.agent.ports import bind_within, pick_at_random
from ftslurm.records.node import NodeRecord

GREETING = b"ftslurm look "
LONGEST = 128
AT_ONCE = 256
"""Number of datagrams received at a time; the rest may wait, since one read of the directory serves them all."""
MOST, WINDOW_S = 512, 1.0
"""After so many datagrams within so many seconds (a flood) the socket is ignored for as long. In a large world the
coordinator may get as many when a round begins, and then it reads often anyway."""


class Doorbell:
    """This agent's doorbell, and the sender for those of others.

    Args:
        address: where others reach this node, a name or a numeric address; a numeric one is what the socket binds to.
        incarnation: this agent's.
        monotonic: clock, seconds.
        ports: lowest and highest port that it may have; None: any.

    Attributes:
        port: where it listens; 0 if no socket could be bound, which only delays updates.
        deadline: the monotonic second at which `answer` is due without a datagram; None: never.
    """

    def __init__(
        self,
        address: str,
        incarnation: str,
        monotonic: Callable[[], float] = time.monotonic,
        ports: tuple[int, int] | None = None,
    ) -> None:
        self._greeting = GREETING + incarnation.encode()
        self._monotonic = monotonic
        self._socket = _listen(address, ports)
        self._poll = select.epoll() if self._socket else None
        self._window_since = float("-inf")
        self._received = 0
        self.deadline: float | None = None
        self._listen_again()
        self.port: int = self._socket.getsockname()[1] if self._socket else 0
        self._senders: dict[int, socket.socket] = {}
        self._numbers: dict[str, tuple[int, str]] = {}
        # Not `queue`, which would cost each agent 0.1 MB.
        self._to_resolve: deque[NodeRecord] = deque()
        self._count = threading.Semaphore(0)
        self._resolver: threading.Thread | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a datagram arrives; -1 without a socket."""
        return self._poll.fileno() if self._poll else -1

    def answer(self) -> bool:
        """Receive the pending datagrams; return whether one of them names this agent's incarnation."""
        now = self._monotonic()
        if self._socket is None or (self.deadline is not None and now < self.deadline):
            return False
        if self.deadline is not None:
            self.deadline = None
            self._listen_again()
        if now - self._window_since >= WINDOW_S:
            self._window_since, self._received = now, 0
        woken = False
        for _ in range(AT_ONCE):
            try:
                woken |= self._socket.recv(LONGEST) == self._greeting
            except OSError:
                break
            self._received += 1
        if self._received >= MOST:
            self._ignore(now)
        return woken

    def _listen_again(self) -> None:
        if self._poll is not None and self._socket is not None:
            self._poll.register(self._socket, select.EPOLLIN)

    def _ignore(self, now: float) -> None:
        """Stop listening until the deadline: the kernel drops what exceeds its buffer, at no cost to the agent."""
        if self._poll is not None and self._socket is not None:
            self._poll.unregister(self._socket)
            self.deadline = now + WINDOW_S

    def ring(self, records: Iterable[NodeRecord]) -> None:
        """Send a wake to the agents of these records; never blocks, and does not report delivery."""
        for record in records:
            if not record.doorbell_port:
                continue
            if (number := self._number(record.address)) is not None:
                self._send(number, record)
                continue
            if self._resolver is None:
                # A name server may take half a minute to fail: only that thread waits for it.
                self._resolver = threading.Thread(target=self._resolve, name="doorbell", daemon=True)
                self._resolver.start()
            self._to_resolve.append(record)
            self._count.release()

    def _number(self, address: str) -> tuple[int, str] | None:
        if address not in self._numbers:
            family = _family(address)
            if family is None:
                return None
            self._numbers[address] = (family, address)
        return self._numbers[address]

    def _resolve(self) -> None:
        while True:
            self._count.acquire()
            record = self._to_resolve.popleft()
            try:
                if record.address not in self._numbers:
                    # As bytes: for a str Python would import the codec of international names.
                    host = record.address.encode("ascii")
                    family, *_, place = socket.getaddrinfo(host, record.doorbell_port, type=socket.SOCK_DGRAM)[0]
                    self._numbers[record.address] = (family, str(place[0]))
            except (OSError, UnicodeError):
                continue
            self._send(self._numbers[record.address], record)

    def _send(self, number: tuple[int, str], record: NodeRecord) -> None:
        family, address = number
        try:
            if family not in self._senders:
                self._senders[family] = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._senders[family].sendto(GREETING + record.incarnation.encode(), (address, record.doorbell_port))
        except OSError:
            pass


def _family(address: str) -> int | None:
    """Return the family of a numeric address, None for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)
        except (OSError, UnicodeError):
            continue
        return family
    return None


def _listen(address: str, ports: tuple[int, int] | None) -> socket.socket | None:
    """Return a bound socket; a node given by name listens on all interfaces, since a name may resolve to any."""
    family = _family(address)
    if ports is not None:
        try:
            bell = bind_within(socket.SOCK_DGRAM, address if family is not None else "", ports, pick_at_random)
        except OSError:
            return None
        bell.setblocking(False)
        return bell
    places = [(socket.AF_INET6, "::"), (socket.AF_INET, "")] if family is None else [(family, address)]
    for family, place in places:
        try:
            bell = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError:
            continue
        try:
            if place == "::":
                bell.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bell.bind((place, 0))
        except OSError:
            bell.close()
            continue
        return bell
    return None
