"""Textual addresses, and which other nodes this one tries (pure, and cheap to import)."""

from __future__ import annotations

import re
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.health.check import Peer

_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}")


def is_number(address: str) -> bool:
    """Return whether it is a numeric address, not a name."""
    return ":" in address or _IPV4.fullmatch(address) is not None


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address."""
    return address == "::1" or (address.startswith("127.") and is_number(address))


def neighbours(peers: Sequence[Peer], node: str, most: int) -> list[Peer]:
    """Return a number of the peers, following this node in a ring."""
    ordered = sorted((peer for peer in peers if peer.node != node), key=lambda peer: peer.node)
    after = [peer for peer in ordered if peer.node > node]
    return (after + ordered[: len(ordered) - len(after)])[:most]
