"""The store of one round: its port listens before it is published, and no node starts before all are connected."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.1


def serve(address: str, timeout_s: float) -> TCPStore:
    """Return a store that this node serves on a free port, for the case that it is the master of the next round.

    Each node that requests a round creates one before it publishes the port, so that no other process can take the port
    in between. (Passing on a listening socket once the master is known would be cheaper; torch 2.6's server does not
    accept one.)

    Args:
        address: this node's own.

    Raises:
        RuntimeError: it cannot be created, or this node does not reach itself at that address.
    """
    return _store(address, 0, timeout_s, is_master=True)


def connect(address: str, port: int, timeout_s: float) -> TCPStore:
    """Return a client of another node's store; `RuntimeError` if it cannot be reached."""
    return _store(address, port, timeout_s, is_master=False)


def _store(address: str, port: int, timeout_s: float, *, is_master: bool) -> TCPStore:
    # A torch may be built without libuv; then its users set this variable, which torch's own launcher reads.
    libuv = os.environ.get("USE_LIBUV", "1") == "1"
    limit = timedelta(seconds=timeout_s)
    return TCPStore(address, port, is_master=is_master, wait_for_workers=False, timeout=limit, use_libuv=libuv)


def gather(store: Store, nodes: int, is_current: Callable[[], bool]) -> bool:
    """Wait until all nodes of the round are connected.

    Otherwise an agent that dies between the formation of a round and its first message would make the others fail:
    they wait for that message in a store operation whose failure torch's agent does not survive.

    Args:
        nodes: number of nodes of the round.
        is_current: returns whether the round is still the current one.

    Returns:
        False if the round ended first; `RuntimeError` if the store failed.
    """
    ours = PrefixStore("ftslurm", store)
    if ours.add("here", 1) == nodes:
        ours.set("all", "1")
    pause = FIRST_PAUSE_S
    while not ours.check(["all"]):
        if not is_current():
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return True
