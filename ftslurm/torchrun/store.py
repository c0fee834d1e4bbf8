"""The store of one round: its port listens before anybody is told of it, and nobody starts before all are there."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

BACKLOG = 4096
FIRST_LOOK_S, LONGEST_LOOK_S = 0.002, 0.1


class Listener:
    """A port on which this node would serve the next round's store.

    It listens from the beginning: whoever connects before the store is there waits in the kernel's queue, and no
    moment is left in which somebody else could take the port.

    Raises:
        OSError: no socket can be had.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._socket.bind(("::", 0))
        except OSError:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._socket.bind(("", 0))
        self._socket.listen(BACKLOG)
        self.port: int = self._socket.getsockname()[1]

    def serve(self, address: str, timeout_s: float) -> TCPStore:
        """Return the store that serves this port from now on."""
        return TCPStore(
            address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
            master_listen_fd=self._socket.detach(),
        )

    def close(self) -> None:
        """Let the port go, unless it serves."""
        self._socket.close()


def connect(address: str, port: int, timeout_s: float) -> TCPStore:
    """Return a client of the store that another node serves; `RuntimeError` when it cannot be reached."""
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def gather(store: Store, nodes: int, going_on: Callable[[], bool]) -> bool:
    """Wait until all nodes of the round are connected.

    Without it, an agent that dies between the forming of a round and its first word to the others takes them along:
    they wait for its word in a store operation whose failure torch's agent does not survive.

    Args:
        nodes: how many come.
        going_on: whether the round is still the current one.

    Returns:
        False when the round ended first; `RuntimeError` when the store went away.
    """
    ours = PrefixStore("ftslurm", store)
    if ours.add("here", 1) == nodes:
        ours.set("all", "1")
    pause = FIRST_LOOK_S
    while not ours.check(["all"]):
        if not going_on():
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_LOOK_S)
    return True
