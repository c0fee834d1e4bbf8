"""What the nodes' names resolve to, on each node: rank 0's is MASTER_ADDR, and gloo looks up its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.findings import NOTE, WARNING, WRONG, Finding, Json, some
from ftslurm.doctor.timed_filesystem import TimedFileSystem

MOST = 32
LIMIT_S = 5.0
SLOW_S = 1.0


@dataclass(frozen=True)
class Names:
    """What one node was told.

    Attributes:
        own: the node's name in Slurm; `host`: what it calls itself.
        addresses: name to addresses; none: it does not resolve.
        slowest_s: seconds of the slowest look-up.
    """

    own: str
    host: str
    addresses: dict[str, list[str]]
    slowest_s: float


def look_up(fs: TimedFileSystem, own: str | None, nodes: Sequence[str]) -> Json:
    """Resolve this node's names and the others', as many as there is time for; own None: the host's is all it has."""
    host = socket.gethostname()
    own = own or host
    end = time.monotonic() + LIMIT_S / 2
    addresses: dict[str, list[str]] = {}
    slowest = 0.0
    for name in dict.fromkeys((own, host, *nodes[:MOST])):
        if time.monotonic() > end:
            break
        began = time.monotonic()
        addresses[name] = fs.during(f"getaddrinfo {name}", lambda name=name: _resolve(name))  # type: ignore[misc]
        slowest = max(slowest, time.monotonic() - began)
    return {"own": own, "host": host, "addresses": addresses, "slowest_s": slowest}


def _resolve(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(entry[4][0]) for entry in found})


def is_loopback(address: str) -> bool:
    """Tell whether an address reaches only the machine that uses it."""
    return address == "::1" or address.startswith("127.")


def judge(names: Mapping[str, Names], machines: Mapping[str, str]) -> list[Finding]:
    """Judge what resolves where.

    Args:
        names: node to what it was told.
        machines: node to the machine that it is on; on one machine loopback is as good as any address.
    """
    found: list[Finding] = []
    several = len(set(machines.values())) > 1
    for node, facts in names.items():
        found += _own(node, facts, several)
        if several:
            found += _others(node, facts, machines)
        if facts.slowest_s > SLOW_S:
            text = f"a name took {facts.slowest_s:.1f} s to resolve"
            found.append(Finding(WARNING, "name", (node,), text, "look at /etc/resolv.conf and the name servers"))
    return found


def _own(node: str, facts: Names, several: bool) -> list[Finding]:
    found = []
    for name in dict.fromkeys((facts.own, facts.host)):
        addresses = facts.addresses.get(name)
        if addresses and several and all(map(is_loopback, addresses)):
            what = "Slurm's name of the node" if name == facts.own else "the host's name"
            text = f"{what} resolves to {some(addresses)} on the node itself"
            advice = "gloo may bind there, unreachable for the others: mend /etc/hosts, or set GLOO_SOCKET_IFNAME"
            found.append(Finding(WARNING, "name", (node,), text, advice))
        elif addresses == []:
            text = "the node's own name does not resolve on the node"
            advice = "put the nodes into DNS or /etc/hosts"
            found.append(Finding(WARNING if several else NOTE, "name", (node,), text, advice))
    return found


def _others(node: str, facts: Names, machines: Mapping[str, str]) -> list[Finding]:
    unknown = [
        name for name, addresses in facts.addresses.items() if name in machines and name != node and not addresses
    ]
    found = []
    if unknown:
        text = f"{some(unknown)} cannot be resolved here"
        advice = "MASTER_ADDR is a node's name: put the nodes into DNS or /etc/hosts, or use --local-addr"
        found.append(Finding(WRONG, "name", (node,), text, advice))
    inward = [
        name
        for name, addresses in facts.addresses.items()
        if machines.get(name, machines.get(node)) != machines.get(node)
        and addresses
        and all(map(is_loopback, addresses))
    ]
    if inward:
        text = f"{some(inward)} resolves to this node's own loopback"
        found.append(Finding(WRONG, "name", (node,), text, "mend /etc/hosts: another node cannot be reached there"))
    return found
