"""A free port for the next round's master."""

from __future__ import annotations

# What `socket` is made of: the same calls, without an enum of all its constants, which costs 2 ms and 0.3 MB.
import _socket as socket
import errno
import os
from collections.abc import Callable

LOWEST, HIGHEST = 15_000, 32_000
TRIES = 200


class ReservedPort:
    """A port that no other process can bind as long as it is held.

    It is taken from below the kernel's range for outgoing connections (ip_local_port_range), so that none of these
    takes it between `release` and the moment rank 0 listens on it.

    Args:
        pick: returns a number between its two arguments, inclusive.
        lowest_ephemeral: the beginning of the kernel's range.
        within: lowest and highest port of the user's range; None: any. One that still has connections of an earlier
            round in TIME_WAIT is taken, as torch's store would take it.

    Raises:
        OSError: no port is free.
    """

    def __init__(
        self, pick: Callable[[int, int], int], lowest_ephemeral: int, within: tuple[int, int] | None = None
    ) -> None:
        if within is not None:
            self._socket = bind_within(socket.SOCK_STREAM, "", within, pick)
            self.number: int = self._socket.getsockname()[1]
            return
        highest = min(HIGHEST, lowest_ephemeral - 1)
        lowest = LOWEST if highest - LOWEST > 1000 else 1024
        problem: OSError | None = None
        for attempt in range(TRIES):
            # If there is no room below that range, the kernel's choice is the next best.
            port = pick(lowest, highest) if highest > lowest and attempt < TRIES - 1 else 0
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                self._socket.bind(("", port))
            except OSError as error:
                self._socket.close()
                problem = error
                continue
            self.number = self._socket.getsockname()[1]
            return
        raise problem or OSError("no port is free")

    def release(self) -> None:
        """Release the port: rank 0 is about to listen on it."""
        self._socket.close()


def bind_within(kind: int, address: str, within: tuple[int, int], pick: Callable[[int, int], int]) -> socket.socket:
    """Return a socket of that kind bound to a free port of the range, the first one from a picked port on.

    Raises:
        OSError: no port of it is free.
    """
    low, high = within
    first = pick(low, high)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    ports = (*range(first, high + 1), *range(low, first))
    # Those in TIME_WAIT last: two reservations of one port with this option do not exclude each other.
    for reuse in (0, 1) if kind == socket.SOCK_STREAM else (0,):
        for port in ports:
            bound = socket.socket(family, kind | socket.SOCK_CLOEXEC)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                bound.bind((address, port))
            except OSError as error:
                bound.close()
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            return bound
    raise OSError(errno.EADDRINUSE, f"no port of {low}-{high} is free")


def pick_at_random(first: int, last: int) -> int:
    """Return a number from `first` to `last` by the kernel's random source (the random module is 200 kB more)."""
    return first + int.from_bytes(os.urandom(4), "big") % (last - first + 1)


def lowest_ephemeral(path: str = "/proc/sys/net/ipv4/ip_local_port_range") -> int:
    """Return where the kernel's range for outgoing connections begins (ip(7)); Linux's default when unreadable."""
    try:
        with open(path) as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
