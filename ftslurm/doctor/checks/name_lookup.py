"""The addresses of the nodes' names, on each node: rank 0's is MASTER_ADDR, and gloo looks up its own.

The look-ups are those of the check network-names; the judgement is stricter, as all nodes are here to be compared.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from ftslurm.doctor.contended import ContendedCheck, Meeting, last_value
from ftslurm.health.addresses import is_loopback
from ftslurm.health.check import Context, Peer
from ftslurm.health.checks.network_names import LIMIT_S, fetch
from ftslurm.health.timed_filesystem import Work
from ftslurm.health.verdict import Json, NodeFinding, node_finding
from ftslurm.records.health import FAIL, NOTE, WARN
from ftslurm.text import names

NAME = "name-lookup"


def _works(meeting: Meeting, seconds: float) -> list[Work]:
    node, nodes = (
        (meeting.session.node, meeting.nodes) if meeting.real_names else (socket.gethostname().partition(".")[0], ())
    )
    context = Context(node, peers=tuple(Peer(other, other) for other in nodes))
    return [lambda fs: fetch(context)]


CHECK = ContendedCheck(NAME, _works, last_value, extra_s=LIMIT_S, barriers=0)


def judge(looked_up: Mapping[str, Json], machines: Mapping[str, str]) -> list[NodeFinding]:
    """Judge the addresses.

    Args:
        looked_up: node to the facts of network-names.
        machines: node to its machine; on one machine loopback is as good as any address.
    """
    found: list[NodeFinding] = []
    several = len(set(machines.values())) > 1
    for node, facts in looked_up.items():
        found += _own(node, facts, several)
        if several:
            found += _others(node, facts, machines)
        if facts["slow"]:
            text = f"a name took {max(facts['slow'].values()):.1f} s to resolve"
            found.append(node_finding(WARN, NAME, (node,), text, "look at /etc/resolv.conf and the name servers"))
    return found


def _own(node: str, facts: Json, several: bool) -> list[NodeFinding]:
    found = []
    for name in facts["own"]:
        addresses = facts["addresses"].get(name)
        if addresses and several and all(map(is_loopback, addresses)):
            what = "Slurm's name of the node" if name == facts["own"][0] else "the host's name"
            text = f"{what} resolves to {names(addresses, 5)} on the node itself"
            advice = "gloo may bind there, unreachable for the others: mend /etc/hosts, or set GLOO_SOCKET_IFNAME"
            found.append(node_finding(WARN, NAME, (node,), text, advice))
        elif addresses == []:
            text = "the node's own name does not resolve on the node"
            advice = "put the nodes into DNS or /etc/hosts"
            found.append(node_finding(WARN if several else NOTE, NAME, (node,), text, advice))
    return found


def _others(node: str, facts: Json, machines: Mapping[str, str]) -> list[NodeFinding]:
    found = []
    others = {name: addresses for name, addresses in facts["addresses"].items() if machines.get(name)}
    unknown = [name for name, addresses in others.items() if name != node and not addresses]
    if unknown:
        text = f"{names(unknown, 5)} cannot be resolved here"
        advice = "MASTER_ADDR is a node's name: put the nodes into DNS or /etc/hosts, or use --local-addr"
        found.append(node_finding(FAIL, NAME, (node,), text, advice))
    elsewhere = {name: addresses for name, addresses in others.items() if machines[name] != machines.get(node)}
    inward = [name for name, addresses in elsewhere.items() if addresses and all(map(is_loopback, addresses))]
    if inward:
        text = f"{names(inward, 5)} resolves to this node's own loopback"
        advice = "mend /etc/hosts: another node cannot be reached there"
        found.append(node_finding(FAIL, NAME, (node,), text, advice))
    return found
