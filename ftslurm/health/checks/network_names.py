"""Do the node's own name and the others' resolve correctly?

torch and gloo look up their own host's name and publish the resulting address; MASTER_ADDR is often a name.
One wrong line in /etc/hosts, and a round waits until it times out.
"""

from __future__ import annotations

import socket

from ftslurm.health.addresses import is_loopback, is_number, neighbours
from ftslurm.health.check import QUICK, THOROUGH, Check, Context
from ftslurm.health.lookup import look_up
from ftslurm.health.tcp_probe import is_own
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import names, plural

MOST = 16
"""Other nodes whose names are looked up; each node takes those that follow it."""

LIMIT_S = 4.0
SLOW_S = 1.0

_HOSTS = "Put the nodes into DNS or /etc/hosts, with the address that the others use."


def fetch(context: Context) -> Json:
    """Look up this node's names and the others', and which addresses are this node's."""
    host = socket.gethostname()
    own = [name for name in dict.fromkeys((context.node, host)) if name]
    published = context.address if context.address and not is_number(context.address) else None
    others = [name for peer in neighbours(context.peers, context.node, MOST) for name in (peer.node, peer.address)]
    wanted = [name for name in [*own, published, *others] if name and not is_number(name)]
    found = look_up(wanted, LIMIT_S)
    addresses = {address for result in found.values() for address in result.addresses or ()}
    return {
        "own": own,
        "published": published,
        "addresses": {name: list(result.addresses) for name, result in found.items() if result.addresses is not None},
        "unanswered": [name for name, result in found.items() if result.addresses is None],
        "problems": {name: result.problem for name, result in found.items() if result.problem},
        "slow": {name: round(result.took_s, 1) for name, result in found.items() if result.took_s > SLOW_S},
        "here": sorted(address for address in addresses if is_own(address)),
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge the resolved addresses. A single node needs no name that others can resolve."""
    alone = all(peer.node == context.node or is_loopback(peer.address) for peer in context.peers)
    found = [] if alone else [*_own(facts), *_others(facts, context)]
    if facts["slow"]:
        slowest = max(facts["slow"], key=facts["slow"].__getitem__)
        text = f"{slowest} took {facts['slow'][slowest]:g} s to look up"
        if slowest in facts["unanswered"]:
            text = f"no answer for {names(facts['unanswered'], 5)} within {facts['slow'][slowest]:g} s"
        found.append(Finding(WARN, "", text, "Look at /etc/resolv.conf and the name servers."))
    own = facts["own"][0]
    meant = ", ".join(facts["addresses"].get(own) or ["no address"])
    return Judgement(f"{own} is {meant}; {plural(len(facts['addresses']), 'name')} looked up", tuple(found))


def _own(facts: Json) -> list[Finding]:
    published, here = facts["published"], facts["here"]
    found = []
    for name in dict.fromkeys((*facts["own"], *([published] if published else []))):
        if name in facts["unanswered"]:
            continue
        addresses = facts["addresses"].get(name, [])
        is_published = name == published
        if not addresses:
            text = f"this node's own name {name} does not resolve{_problem(facts, name)}"
            found.append(Finding(WARN, "", text, _HOSTS))
        elif all(map(is_loopback, addresses)):
            text = f"this node's own name {name} is {names(addresses, 5)} here, where no other node reaches it"
            advice = "Take the name out of the 127.* line of /etc/hosts, or set GLOO_SOCKET_IFNAME."
            found.append(Finding(WARN, "", text, advice))
        elif not set(addresses) & set(here):
            text = f"this node's own name {name} is {names(addresses, 5)}, which is no address of this node"
            # Others connect there: to another node, or to none.
            found.append(Finding(FAIL if is_published else WARN, "", text, _HOSTS))
    return found


def _others(facts: Json, context: Context) -> list[Finding]:
    published = {peer.address for peer in context.peers if not is_number(peer.address) and peer.node != context.node}
    needed_names = {peer.node for peer in context.peers if peer.node != context.node} | published
    others = [name for name in facts["addresses"] if name in needed_names]
    unknown = [name for name in others if not facts["addresses"][name]]
    found = []
    if unknown:
        # All of them, and needed: this node cannot find any. Some of them: they may be missing everywhere.
        needed = len(unknown) == len(others) > 1 and bool(published & set(unknown))
        which = (
            f"none of {len(others)} other nodes' names resolves" if needed else f"{names(unknown, 5)}: does not resolve"
        )
        found.append(Finding(FAIL if needed else WARN, "", f"{which} here{_problem(facts, unknown[0])}", _HOSTS))
    inward = [name for name in others if facts["addresses"][name] and all(map(is_loopback, facts["addresses"][name]))]
    if inward:
        text = f"{names(inward, 5)}: resolves to this node's own loopback ({names(facts['addresses'][inward[0]], 5)})"
        found.append(Finding(WARN, "", text, "Correct /etc/hosts: another node cannot be reached there."))
    return found


def _problem(facts: Json, name: str) -> str:
    problem = facts["problems"].get(name)
    return f" ({problem})" if problem else ""


CHECK = Check(
    name="network-names",
    about="this node's name and the others' resolve",
    sets=frozenset({QUICK, THOROUGH}),
    limit_s=6.0,
    fetch=fetch,
    judge=judge,
    late=WARN,
    late_text="the name servers do not answer",
    late_advice="Look at /etc/resolv.conf and the name servers.",
)
