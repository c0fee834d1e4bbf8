"""Can the other nodes' ports be reached from here? One short TCP connect to each, all at once."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.health.addresses import is_number
from ftslurm.health.check import THOROUGH, Absent, Check, Context, Peer
from ftslurm.health.verdict import FAIL, WARN, Finding, Json, Judgement

MOST = 64
"""Other nodes that are tried: of a thousand nodes, each tries those that follow it, so that each is tried by others."""

TIMEOUT_S = 3.5
"""Two lost packets may be chance: the kernel sends the first one again after 1 s, and after 3 s."""

LOOKUP_S = 4.0

SURE = 3
"""When so many others cannot be reached, and nobody else can, it is not they."""


def neighbours(peers: Sequence[Peer], node: str, most: int = MOST) -> list[Peer]:
    """Return so many of the peers, from this node on, around in a circle."""
    ordered = sorted((peer for peer in peers if peer.node != node), key=lambda peer: peer.node)
    after = [peer for peer in ordered if peer.node > node]
    return (after + ordered[: len(ordered) - len(after)])[:most]


def fetch(context: Context) -> Json:
    """Connect to the peers that have a port."""
    from ftslurm.health.lookup import look_up
    from ftslurm.health.reach import UNRESOLVED, Reached, reach

    peers = [peer for peer in neighbours(context.peers, context.node) if peer.port]
    if not peers:
        raise Absent("no other node to reach")
    names = [peer.address for peer in peers if not is_number(peer.address)]
    found = look_up(names, LOOKUP_S) if names else {}
    numbers = {}
    for peer in peers:
        looked = found.get(peer.address)
        numbers[peer.node] = peer.address if looked is None else (looked.addresses or ("",))[0]
    known = [peer for peer in peers if numbers[peer.node]]
    reached = reach([(numbers[peer.node], peer.port) for peer in known], TIMEOUT_S, context.address)
    said = {peer.node: one for peer, one in zip(known, reached, strict=True)}
    unresolved = Reached(UNRESOLVED, "its name does not resolve")
    return {
        "peers": [
            {
                "node": peer.node,
                "at": f"{peer.address}:{peer.port}"
                if peer.address.count(":") == 0
                else f"[{peer.address}]:{peer.port}",
                "there": (one := said.get(peer.node, unresolved)).there,
                "outcome": one.outcome,
                "text": one.text,
            }
            for peer in peers
        ]
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge who is cut off: the others, or this node."""
    peers = facts["peers"]
    lost = [peer for peer in peers if not peer["there"]]
    summary = f"{len(peers) - len(lost)} of {len(peers)} other nodes reached"
    if not lost:
        return Judgement(summary)
    if len(lost) == len(peers) >= SURE:
        ways = sorted({peer["text"] for peer in lost})
        text = f"none of {len(peers)} other nodes can be reached ({', '.join(ways)})"
        advice = "Look at this node's interface, routes and firewall."
        return Judgement(summary, (Finding(FAIL, "", text, advice),))
    return Judgement(summary, tuple(_lost(peer) for peer in lost))


def _lost(peer: Json) -> Finding:
    from ftslurm.health.reach import NO_ROUTE, UNRESOLVED

    advice = {
        NO_ROUTE: "Look at the routes, and whether that node is up.",
        UNRESOLVED: "Put the nodes into DNS or /etc/hosts.",
    }.get(peer["outcome"], "Look whether that node is up, and at the firewall between the two.")
    return Finding(WARN, peer["node"], f"cannot be reached from here at {peer['at']}: {peer['text']}", advice)


CHECK = Check(
    name="network-reach",
    about="the other nodes can be reached by TCP",
    sets=frozenset({THOROUGH}),
    limit_s=9.0,
    fetch=fetch,
    judge=judge,
    late=WARN,
    late_text="the network or the name servers do not answer",
    late_advice="Look at this node's interface and at /etc/resolv.conf.",
)
