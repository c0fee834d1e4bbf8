"""Can the other nodes' ports be reached from here? One short TCP connect to each, all at once."""

from __future__ import annotations

from ftslurm.health.addresses import is_number, neighbours
from ftslurm.health.check import THOROUGH, Absent, Check, Context, Peer
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.health.tcp_probe import ProbeResult

MOST = 64
"""Number of nodes to try: of a thousand nodes, each tries the following ones, so that each is tried by others."""

TIMEOUT_S = 3.5
"""Two lost packets may be chance: the kernel repeats the first one after 1 s, and after 3 s."""

LOOKUP_S = 4.0

_ADDRESSES = 4
"""Addresses tried per name; one that answers suffices, as for a client that tries all."""

SURE = 3
"""If this many others, and all of them, cannot be reached, this node is at fault."""


def _peers(context: Context) -> list[Peer]:
    return [peer for peer in neighbours(context.peers, context.node, MOST) if peer.port]


def fetch(context: Context) -> Json:
    """Connect to the peers that have a port."""
    from ftslurm.health.lookup import look_up
    from ftslurm.health.tcp_probe import UNRESOLVED, ProbeResult, probe_all

    peers = _peers(context)
    if not peers:
        raise Absent("no other node to reach")
    names = [peer.address for peer in peers if not is_number(peer.address)]
    found = look_up(names, LOOKUP_S) if names else {}
    addresses = {
        peer: (found[peer.address].addresses or ()) if peer.address in found else (peer.address,) for peer in peers
    }
    targets = [(peer, address) for peer in peers for address in addresses[peer][:_ADDRESSES]]
    reached = probe_all([(address, peer.port) for peer, address in targets], TIMEOUT_S, context.address)
    best: dict[Peer, ProbeResult] = {}
    for (peer, _), one in zip(targets, reached, strict=True):
        if peer not in best or one.there:
            best[peer] = one
    unresolved = ProbeResult(UNRESOLVED, "its name does not resolve")
    return {"peers": [_word(peer, best.get(peer, unresolved)) for peer in peers]}


def _word(peer: Peer, reached: ProbeResult) -> Json:
    at = f"[{peer.address}]:{peer.port}" if ":" in peer.address else f"{peer.address}:{peer.port}"
    return {"node": peer.node, "at": at, "there": reached.there, "outcome": reached.outcome, "text": reached.text}


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge which side is disconnected: the others, or this node."""
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
    from ftslurm.health.tcp_probe import NO_ROUTE, UNRESOLVED

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
    may_hang=lambda context: bool(_peers(context)),
)
