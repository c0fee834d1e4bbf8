"""The doorbell: UDP datagrams from node to node: wake-ups ("read the shared directory now"), and signs of life.

Everything works without it, only later, and with more reads: a datagram may be lost or blocked at will. A wake-up
carries no data, and it counts only with a code by this agent's incarnation, which is in the run directory. Signs are
judged by `ftslurm.rendezvous.contacts`. Unwanted datagrams cost little: a flooded node closes its doorbell for a while,
and the rate of reads caused by wakes is bounded, too (`ftslurm.rendezvous.pace.WAKE_SHARE`).

A datagram to an agent that has ended is refused by its host's kernel, which the sender reads from its error queue.
"""

from __future__ import annotations

# What `socket` is made of: the same calls, without an enum of all its constants, which costs 2 ms and 0.3 MB.
import _socket as socket
import errno
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from ftslurm.agent.host_probe import Agent, HostProbe
from ftslurm.agent.ports import bind_within, pick_at_random
from ftslurm.records.node import NodeRecord
from ftslurm.rendezvous.contacts import code_of

GREETING = b"ftslurm look "
LONGEST = 512
AT_ONCE = 256
"""Number of datagrams received at a time; the rest may wait, since one read of the directory serves them all."""
MOST, WINDOW_S = 512, 1.0
"""After so many datagrams within so many seconds, besides signs (a flood), the socket is ignored for as long. In a
large world the coordinator may get as many when a round begins, and then it reads often anyway."""
RECEIVE_BUFFER = 1 << 20
"""For the signs of a thousand nodes, in bytes; the kernel may grant less."""
IP_RECVERR, IPV6_RECVERR = 11, 25
"""Of linux/in.h and linux/in6.h; Python has no names for them."""


class Doorbell:
    """This agent's doorbell, and the sender for those of others.

    Args:
        address: where others reach this node, a name or a numeric address; a numeric one is what the socket binds to.
        incarnation: this agent's.
        monotonic: clock, seconds.
        ports: lowest and highest port that it may have; None: any.
        on_sign: receives other datagrams; returns whether one is a sign of life.

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
        on_sign: Callable[[bytes], bool] = lambda data: False,
    ) -> None:
        self._greeting = _greeting(incarnation)
        self._on_sign = on_sign
        self._probe = HostProbe(monotonic)
        self._places: dict[tuple[str, int], Agent] = {}
        self._refused: list[Agent] = []
        self._monotonic = monotonic
        self._socket = _listen(address, ports)
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._poll = select.epoll() if self._socket else None
        self._window_since = float("-inf")
        self._received = 0
        self.deadline: float | None = None
        self._listen_again()
        self.port: int = self._socket.getsockname()[1] if self._socket else 0
        self._senders: dict[int, socket.socket] = {}
        self._numbers: dict[str, tuple[int, str]] = {}
        # Not `queue`, which would cost each agent 0.1 MB.
        self._to_resolve: deque[tuple[NodeRecord, bytes]] = deque()
        self._count = threading.Semaphore(0)
        self._resolver: threading.Thread | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a datagram arrives; -1 without a socket."""
        return self._poll.fileno() if self._poll else -1

    def answer(self) -> bool:
        """Receive the pending datagrams; return whether one of them is a wake-up for this agent."""
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
                data = self._socket.recv(LONGEST)
            except OSError:
                break
            if self._on_sign(data):
                continue
            woken |= data == self._greeting
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
            self.send(record, _greeting(record.incarnation))

    def send(self, record: NodeRecord, data: bytes) -> None:
        """Send a datagram to that record's agent; never blocks, and does not report delivery."""
        if not record.doorbell_port:
            return
        if (number := self._number(record.address)) is not None:
            self._send(number, record, data)
            return
        if self._resolver is None:
            # A name server may take half a minute to fail: only that thread waits for it.
            self._resolver = threading.Thread(target=self._resolve, name="doorbell", daemon=True)
            self._resolver.start()
        if len(self._to_resolve) < AT_ONCE:
            self._to_resolve.append((record, data))
            self._count.release()

    def ask(self, record: NodeRecord) -> None:
        """Ask the host of that record for an answer of its kernel."""
        if record.doorbell_port and (number := self._number(record.address)) is not None:
            # Nothing listens there for connections; a refusal is an answer.
            self._probe.ask((record.node, record.incarnation), number[0], (number[1], record.doorbell_port))

    def answers(self) -> list[Agent]:
        """Return the agents whose hosts have answered since the last call."""
        return self._probe.answers()

    def refusals(self) -> list[Agent]:
        """Return the agents whose hosts have reported since the last call that their port is closed."""
        for sender in list(self._senders.values()):
            self._drain_errors(sender)
        refused, self._refused = self._refused, []
        return refused

    def _drain_errors(self, sender: socket.socket) -> None:
        while True:
            try:
                _, reports, _, place = sender.recvmsg(LONGEST, LONGEST, socket.MSG_ERRQUEUE)
            except OSError:
                return
            # A report begins with the error's number; those of routers say nothing about the agent.
            refused = any(int.from_bytes(report[:4], sys.byteorder) == errno.ECONNREFUSED for _, _, report in reports)
            if refused and (agent := self._places.get((str(place[0]), int(place[1])))) is not None:
                self._refused.append(agent)

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
            record, data = self._to_resolve.popleft()
            try:
                if record.address not in self._numbers:
                    # As bytes: for a str Python would import the codec of international names.
                    host = record.address.encode("ascii")
                    family, *_, place = socket.getaddrinfo(host, record.doorbell_port, type=socket.SOCK_DGRAM)[0]
                    self._numbers[record.address] = (family, str(place[0]))
            except (OSError, UnicodeError):
                continue
            self._send(self._numbers[record.address], record, data)

    def _send(self, number: tuple[int, str], record: NodeRecord, data: bytes) -> None:
        family, address = number
        place = (address, record.doorbell_port)
        self._places[place] = (record.node, record.incarnation)
        try:
            if family not in self._senders:
                self._senders[family] = _sender(family)
            sender = self._senders[family]
            try:
                sender.sendto(data, place)
            except OSError:
                # It may be the report of an earlier one's fate, and then this one was not sent.
                self._drain_errors(sender)
                sender.sendto(data, place)
        except OSError:
            pass


def _greeting(incarnation: str) -> bytes:
    return GREETING + code_of(incarnation, incarnation, GREETING)


def _sender(family: int) -> socket.socket:
    """Return a socket that keeps the errors that hosts and routers report."""
    sender = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            sender.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        else:
            sender.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    except OSError:
        # A kernel that does not keep them; see `Contacts.evidence`.
        pass
    return sender


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
