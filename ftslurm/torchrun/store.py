"""The store of one round: its port listens before anybody is told of it, and nobody starts before all are there."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

FIRST_LOOK_S, LONGEST_LOOK_S = 0.002, 0.1


def serve(address: str, timeout_s: float) -> TCPStore:
    """Return a store that this node serves on a free port, for the next round, should it be the master.

    It is made before anybody is told of its port, on each node that asks for a round: no moment is left in which
    somebody else could take the port. (A socket handed over when the master is known would be cheaper; torch 2.6's
    server does not take one.)

    Args:
        address: this node's own.

    Raises:
        RuntimeError: it cannot be had, or this node does not reach itself by that address.
    """
    return TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


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
