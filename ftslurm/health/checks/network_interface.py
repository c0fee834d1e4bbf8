"""Is the interface with this node's address up, as fast as before, and without link losses?"""

from __future__ import annotations

from ftslurm.health import sysfs
from ftslurm.health.addresses import is_loopback, is_number
from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Absent, Check, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN

_CABLE = "Look at the cable and the switch's port."
_IFF_UP = 1


def _on_loopback(context: Context) -> bool:
    return bool(context.address and is_number(context.address) and is_loopback(context.address))


def fetch(context: Context) -> Json:
    """Find the interface by the routing table, and read its state."""
    if context.interface is not None:
        from ftslurm.interfaces import NoSuchInterface, choose, interfaces

        try:
            choose(context.interface, interfaces())
        except NoSuchInterface as missing:
            return {"missing": str(missing)}
    if _on_loopback(context):
        raise Absent("this node's address is the loopback's")
    address = context.address if context.address and is_number(context.address) else None
    name, exact = _interface(context.root, address)
    below = f"{context.root}/sys/class/net/{name}"
    if not name or sysfs.text(below, "operstate") is None:
        raise Absent("no interface found that carries this node's address")
    flags = sysfs.number(below, "flags")
    speed = sysfs.number(below, "speed")
    return {
        "interface": name,
        "address": address if exact else None,
        "state": sysfs.text(below, "operstate"),
        "up": flags is None or bool(flags & _IFF_UP),
        # -1 and 4294967295 mean unknown.
        "mbps": speed if speed is not None and 0 < speed < 1 << 31 else None,
        "mtu": sysfs.number(below, "mtu"),
        "losses": _losses(below),
        "boot": sysfs.text(context.root + "/proc/sys/kernel/random/boot_id"),
    }


def _losses(below: str) -> int | None:
    """Return the number of link losses."""
    down = sysfs.number(below, "carrier_down_count")
    changes = sysfs.number(below, "carrier_changes")
    return down if down is not None or changes is None else changes // 2


def _interface(root: str, address: str | None) -> tuple[str, bool]:
    """Return the interface with the address, and whether that is certain; else that of the default route."""
    import ipaddress

    if address is not None and ":" in address:
        wanted = ipaddress.IPv6Address(address.partition("%")[0])
        for line in (sysfs.text(root + "/proc/net/if_inet6") or "").splitlines():
            number, *_, name = line.split()
            if ipaddress.IPv6Address(int(number, 16)) == wanted:
                return name, True
        return "", False
    own = int(ipaddress.IPv4Address(address)) if address is not None else None
    ways: dict[int, set[str]] = {}
    default = ""
    for line in (sysfs.text(root + "/proc/net/route") or "").splitlines()[1:]:
        name, destination, gateway, _, _, _, _, mask, *_ = line.split()
        # The kernel prints these in the byte order of the network, read as a number of its own: that of x86 and arm64.
        net, bits = (int.from_bytes(bytes.fromhex(field), "little") for field in (destination, mask))
        if bits == 0:
            default = default or name
        elif own is not None and own & bits == net and int(gateway, 16) == 0:
            ways.setdefault(bits, set()).add(name)
    if not ways:
        return default, False
    # Two interfaces in one network: the table does not show which has the address. One that is up is no fault.
    names = sorted(ways[max(ways)], key=lambda name: sysfs.text(f"{root}/sys/class/net/{name}/operstate") != "up")
    return names[0], len(names) == 1


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge the interface by its required state, and by the previous run."""
    if "missing" in facts:
        subject = f"--interface {context.interface}"
        return Judgement("", (Finding(FAIL, subject, facts["missing"], "Compare it with `ip address` there."),))
    name, state = facts["interface"], facts["state"]
    speed = f" at {_speed(facts['mbps'])}" if facts["mbps"] else ""
    found = []
    # "unknown" is the state of many drivers without a link of their own (tunnels, virtual machines).
    if not facts["up"] or state in ("down", "lowerlayerdown", "notpresent"):
        why = state if facts["up"] else "set down"
        what = f"carries this node's address {facts['address']}" if facts["address"] else "leads to the other nodes"
        text = f"{what}, and is {why}"
        # The job's interface is certain only if found by its address.
        found.append(Finding(FAIL if facts["address"] else WARN, name, text, _CABLE))
    elif before is not None and before.get("interface") == name:
        found += _changes(facts, before)
    return Judgement(f"{name} is {state}{speed}", tuple(found))


def _changes(facts: Json, before: Json) -> list[Finding]:
    found = []
    name = facts["interface"]
    if facts["mbps"] and before["mbps"] and facts["mbps"] < before["mbps"]:
        text = f"its link has fallen to {_speed(facts['mbps'])}, was {_speed(before['mbps'])} at the last check"
        found.append(Finding(WARN, name, text, _CABLE))
    if before["boot"] == facts["boot"] and None not in (facts["losses"], before["losses"]):
        lost = facts["losses"] - before["losses"]
        if lost > 0:
            text = f"has lost its link {'once' if lost == 1 else f'{lost} times'} since the last check"
            found.append(Finding(WARN, name, text, _CABLE))
    return found


def _speed(mbps: int) -> str:
    return f"{mbps / 1000:g} Gb/s" if mbps >= 1000 else f"{mbps} Mb/s"


CHECK = Check(
    name="network-interface",
    about="the interface with this node's address is up",
    sets=frozenset({QUICK, BACKGROUND, THOROUGH}),
    limit_s=5.0,
    fetch=fetch,
    judge=judge,
    late=WARN,
    late_text="an interface's driver hangs",
    late_advice="Look at the node's kernel log for its driver.",
    may_hang=lambda context: not _on_loopback(context),
)
