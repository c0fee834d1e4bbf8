"""Tests whether an address and port can be reached, by TCP, with a time-out.

A refused connection counts as reached: the machine answers. Nothing is sent.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Sequence

from ftslurm.dataclasses import dataclass

CONNECTED, REFUSED, SILENT, NO_ROUTE, UNRESOLVED, ERROR = (
    "connected",
    "refused",
    "no answer",
    "no route",
    "does not resolve",
    "error",
)

_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
_REFUSED = (errno.ECONNREFUSED, errno.ECONNRESET)


@dataclass(frozen=True)
class ProbeResult:
    """Result of an attempt.

    Attributes:
        outcome: CONNECTED, REFUSED, SILENT, NO_ROUTE, UNRESOLVED or ERROR.
        text: the same as text, with the system's message for an error.
    """

    outcome: str
    text: str

    @property
    def there(self) -> bool:
        """The other end answered."""
        return self.outcome in (CONNECTED, REFUSED)


class Probe:
    """One attempt, started by the constructor; for a caller with its own event loop.

    Wait until `fileno()` is writable, or for a time-out, and read the `result()`. Close it.
    """

    def __init__(self, address: str, port: int, source: str | None = None) -> None:
        """Start the connection.

        Args:
            address: numeric; names are not looked up, because that may take half a minute.
            port: to connect to.
            source: own address to connect from; ignored if of another family, or not this node's.
        """
        self._socket: socket.socket | None = None
        self._result: ProbeResult | None = None
        found = family(address)
        if found is None:
            self._result = ProbeResult(UNRESOLVED, f"{address!r} is no address")
            return
        try:
            self._socket = socket.socket(found, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            if source is not None and family(source) == found:
                _bind(self._socket, source)
            self._take(self._socket.connect_ex((address, port)))
        except (OSError, OverflowError) as error:
            self._result = ProbeResult(ERROR, str(error))

    def fileno(self) -> int:
        """Return the descriptor that becomes writable at the end of the attempt; -1: it has ended."""
        return -1 if self._socket is None or self._result is not None else self._socket.fileno()

    def result(self) -> ProbeResult | None:
        """Return the result; None: still pending."""
        if self._result is None and self._socket is not None:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if poll.poll(0):
                self._take(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        return self._result

    def close(self) -> None:
        """Cancel the attempt, or close the connection."""
        if self._socket is not None:
            self._socket.close()

    def _take(self, code: int) -> None:
        if code in (errno.EINPROGRESS, errno.EAGAIN):
            return
        if code == 0:
            self._result = ProbeResult(CONNECTED, "connected")
        elif code in _REFUSED:
            self._result = ProbeResult(REFUSED, "connection refused")
        elif code == errno.ETIMEDOUT:
            self._result = ProbeResult(SILENT, "no answer")
        elif code in _NO_ROUTE:
            self._result = ProbeResult(NO_ROUTE, os.strerror(code).lower())
        else:
            self._result = ProbeResult(ERROR, os.strerror(code).lower())


def probe_all(
    targets: Sequence[tuple[str, int]],
    timeout_s: float,
    source: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    one_is_enough: bool = False,
) -> list[ProbeResult]:
    """Try several numeric addresses and ports concurrently, within `timeout_s` seconds, and return each result.

    Args:
        one_is_enough: all are addresses of the same target: when one is reached the others are cancelled.
    """
    attempts = [Probe(address, port, source) for address, port in targets]
    try:
        until = clock() + timeout_s
        while waiting := [attempt for attempt in attempts if attempt.result() is None]:
            left_s = until - clock()
            if left_s <= 0 or (one_is_enough and any(came and came.there for came in map(Probe.result, attempts))):
                break
            poll = select.poll()
            for attempt in waiting:
                poll.register(attempt.fileno(), select.POLLOUT)
            poll.poll(left_s * 1000 + 1)
        late = ProbeResult(SILENT, f"no answer within {timeout_s:g} s")
        return [attempt.result() or late for attempt in attempts]
    finally:
        for attempt in attempts:
            attempt.close()


def family(address: str) -> socket.AddressFamily | None:
    """Return the family of a numeric address, None for a name."""
    for found in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(found, address)
        except (OSError, UnicodeError, ValueError):
            continue
        return found
    return None


def is_own(address: str) -> bool:
    """Return whether an address is one of this node's: only those can be bound to."""
    found = family(address)
    if found is None:
        return False
    try:
        with socket.socket(found, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as trial:
            trial.bind((address, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _bind(trial: socket.socket, source: str) -> None:
    try:
        trial.bind((source, 0))
    except OSError:
        pass
