"""Are the InfiniBand and RoCE ports that the job may use up, and at their speed?

A port that is down need not be broken: second ports of cards, cards for a network that a site does not have and ports
of a machine that was moved have no cable for years. Evidence of a fault, the strongest first:

1. The port was ACTIVE at the last check. It broke: FAIL.
2. It has carried data since its driver was loaded, more than tests of a link do. It was in use: FAIL, so that a
   broken link is also found by the first check on a node.
3. At least three others like it (same product, layer, port number and PCI function: second ports are compared with
   second ports) are ACTIVE, all of them. It should be too, but was never observed to work: WARN.

All else is no finding: probably no cable. Differences between nodes are left to the comparison over all nodes.

sysfs has no maximum of a port, only its present state; and not every link slower than its NIC is broken (a split cable
gives two ports half the lanes each). So the reference is the previous run, and others of the same product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ftslurm.health import infiniband
from ftslurm.health.check import SETS, Context
from ftslurm.health.infiniband import INFINIBAND, Port
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, UNKNOWN, WARN

USED = 1 << 30
"""Bytes. A port that carried more was in use; the subnet manager and link tests send far less."""

ALIKE = 3
"""Number of others of the same kind that establish an expectation."""

_CABLE = "Look at the cable, its transceivers and the switch's port."

_TRAINING = ("LinkErrorRecovery", "PortConfigurationTraining")
_OFF = ("Disabled", "Sleep", "Phy Test")


def fetch(context: Context) -> Json:
    """Read all ports. No port is a fact too: ports of the previous run have vanished then."""
    ports = infiniband.ports(context.root)
    active = [port for port in ports if port.active]
    return {
        "ports": [port.to_json() for port in ports],
        "devices": len({port.device for port in ports}),
        "rates": sorted((port.gbps for port in active), reverse=True),
        "firmware": {port.board: port.firmware for port in ports if port.board and port.firmware},
    }


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge the ports by the previous run, and by each other."""
    ports = [Port(**port) for port in facts["ports"]]
    was = {port.key: port for port in (Port(**port) for port in (before or {}).get("ports", ()))}
    found = [finding for port in ports if (finding := _judge(port, was.get(port.key), ports)) is not None]
    here = {port.key for port in ports}
    found += [_gone(port) for key, port in was.items() if key not in here]
    return Judgement(_summary(ports), tuple(found))


def _summary(ports: Sequence[Port]) -> str:
    if not ports:
        return "no InfiniBand or RoCE device here"
    sorts = Counter((port.layer or "other", port.gbps) for port in ports if port.active)
    states = [
        f"{count} {layer} port{'s' * (count > 1)} ACTIVE at {gbps:g} Gb/s" for (layer, gbps), count in sorts.items()
    ]
    idle = sum(not port.active for port in ports)
    return ", ".join([*states, f"{idle} not ACTIVE"] if idle else states)


def _judge(port: Port, was: Port | None, ports: Sequence[Port]) -> Finding | None:
    others = [other for other in ports if other.sort == port.sort and other.key != port.key]
    if not port.active:
        return _down(port, was, others)
    return _slow(port, was, [other for other in others if other.active])


def _gone(port: Port) -> Finding:
    text = f"was there at the last check ({port.state}, PCI {port.pci}), and is no more"
    advice = "Look at the kernel log for its driver and for PCIe errors."
    return Finding(FAIL if port.active else WARN, port.name, text, advice)


def _down(port: Port, was: Port | None, others: Sequence[Port]) -> Finding | None:
    how = _how(port)
    used = port.carried is not None and port.carried > USED
    if not port.state and (was is None or not was.active):
        return Finding(UNKNOWN, port.name, how, "Look at the kernel log for the NIC's driver.")
    if was is not None and was.active:
        return Finding(FAIL, port.name, f"was ACTIVE at the last check, now {how}", _CABLE)
    if _is_off(port):
        # Switched off by a user or the firmware: no reason to leave a node with other ports out, only to warn.
        text = f"{how}, but has carried {_size(port)} since its driver was loaded"
        return Finding(WARN, port.name, text, "Find out who switched it off, and why.") if used else None
    if port.layer == INFINIBAND and port.physical == "LinkUp":
        text = f"its link is up, but its state is {port.state}: no subnet manager has made it ACTIVE"
        return Finding(WARN, port.name, text, "Look at the subnet manager (opensm, UFM).")
    if port.physical in _TRAINING:
        return Finding(WARN, port.name, f"{how}: it cannot agree on a link with the other end", _CABLE)
    if used:
        return Finding(FAIL, port.name, f"{how}, but has carried {_size(port)} since its driver was loaded", _CABLE)
    if len(others) >= ALIKE and all(other.active for other in others):
        text = f"{how}, while the {len(others)} others of its kind ({port.board}) are ACTIVE"
        return Finding(WARN, port.name, text, _CABLE)
    return None


def _slow(port: Port, was: Port | None, others: Sequence[Port]) -> Finding | None:
    if was is not None and was.active:
        if port.layer != was.layer:
            text = f"its link is {port.layer}, was {was.layer} at the last check"
            return Finding(WARN, port.name, text, "Set the type of the port in its firmware (LINK_TYPE).")
        if port.gbps < was.gbps:
            # All ranks wait for the slowest link, in each step.
            text = f"its link has fallen to {_rate(port)}, was {_rate(was)} at the last check"
            return Finding(FAIL, port.name, text, _CABLE)
    expected = {other.gbps for other in others}
    if len(others) >= ALIKE and len(expected) == 1 and port.gbps < min(expected):
        text = f"{_rate(port)}, while the {len(others)} others of its kind ({port.board}) have {min(expected):g} Gb/s"
        return Finding(WARN, port.name, text, _CABLE)
    # A cable that is split by design has two lanes. With Ethernet the width is meaningless: drivers call 25 Gb/s 1X.
    if port.layer == INFINIBAND and port.lanes == 1:
        return Finding(WARN, port.name, f"only 1 lane of its link works ({_rate(port)})", _CABLE)
    return None


def _is_off(port: Port) -> bool:
    # Drivers report "Disabled" for an Ethernet port without a link (mlx5_query_port_roce(), bnxt_re, efa): there only
    # the interface distinguishes a port that was switched off from a missing cable.
    return port.physical in _OFF if port.layer == INFINIBAND else port.switched_off


def _how(port: Port) -> str:
    state = port.state
    if not state:
        return "its state cannot be read"
    if port.layer != INFINIBAND:
        off = f" and its interface {port.interface} is set down" if port.switched_off else ""
        return f"{state}{off}"
    meaning = {"Polling": " (no signal from the other end)", "Disabled": " (switched off)"}.get(port.physical, "")
    return f"{state}, physically {port.physical or 'unknown'}{meaning}"


def _rate(port: Port) -> str:
    return f"{port.gbps:g} Gb/s" + (f" ({port.lanes}X)" if port.lanes and port.layer == INFINIBAND else "")


def _size(port: Port) -> str:
    size = float(port.carried or 0)
    for unit in ("GiB", "TiB", "PiB"):
        size /= 1 << 30 if unit == "GiB" else 1 << 10
        if size < 1024:
            break
    return f"{size:.1f} {unit}"


CHECK = infiniband.check("nic-ports", "InfiniBand and RoCE ports are up, at their speed", SETS, fetch, judge)
