"""Comparison between nodes: finds a node with one NIC less than the others, or with another driver (pure).

The majority is the expectation: "7 of 8 nodes have 8 NICs, this one 7". Two nodes that differ are both named, and
all are where no value has the majority: the right one is unknown.

`COMPARED` lists the compared values. Momentary values (load, free memory, temperature) are not compared: they depend on
jobs and neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import Any

from ftslurm.dataclasses import dataclass
from ftslurm.health.addresses import is_loopback
from ftslurm.health.verdict import Finding, Json, NodeFinding, Verdict
from ftslurm.records.health import OK, WARN
from ftslurm.text import duration, size

CLOCKS_S = 60.0
"""Nodes are not checked in the same second; smaller clock differences are left to the clock check."""

_SHOWN = 3

Facts = Mapping[str, Mapping[str, "Json | None"]]


@dataclass(frozen=True)
class Compared:
    """A value that nodes of a job should have in common.

    Attributes:
        check: the check with the facts.
        value: from the facts; hashable; None, or an error: unknown, and not compared.
        text: the value as text after "nodes have".
        advice: one short sentence.
        absent: the value of a node where the check's subject does not exist; None: not compared.
        within: relative tolerance; only for numbers.
        more_is_fine: nodes with more than the majority are not reported.
    """

    check: str
    value: Callable[[Any], Hashable]
    text: Callable[[Any], str]
    advice: str
    absent: Hashable = None
    within: float = 0.0
    more_is_fine: bool = False


def count(what: str) -> Callable[[int], str]:
    """Return a formatter to "8 GPUs", "1 GPU", "no GPUs"."""
    return lambda number: f"{number or 'no'} {what}{'s' * (number != 1)}"


def each(what: str) -> Callable[[Sequence[Any]], str]:
    """Return a formatter of a list to "7 x 400 and 1 x 200 Gb/s"."""

    def text(values: Sequence[Any]) -> str:
        return " and ".join(f"{number} x {_plain(value)}" for value, number in Counter(values).items()) + what

    return lambda values: text(values) if values else f"no{what or 'ne'}"


def named(what: str) -> Callable[[Any], str]:
    """Return a formatter to "driver 570.86" or, with a placeholder, "an MTU of 9000"."""
    return lambda value: what.format(value) if "{}" in what else f"{what} {value}"


def _links(nics: Mapping[str, Json]) -> tuple[str, ...]:
    return tuple(sorted(f"{nic['gts']:g} GT/s x{nic['width']}" for nic in nics.values()))


def _governors(facts: Json) -> tuple[str, ...] | None:
    return tuple(sorted({p["scaling_governor"] for p in facts["policies"] if p["scaling_governor"]})) or None


def _limits(facts: Json) -> tuple[tuple[str, str], ...]:
    # Limits set by the site; the kernel derives others, such as that of processes, from the node's memory.
    parts = {name: facts["soft"][name] for name in ("files", "locked")}
    return tuple((name, "unlimited" if value is None else str(value)) for name, value in parts.items())


def _pairs(what: str, pairs: Sequence[tuple[str, str]]) -> str:
    return f"{what} " + ", ".join(f"{name} {value}" for name, value in pairs)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_HARDWARE = "Check that node with `ftslurm health`; have the missing part repaired."
_SETUP = "Bring the nodes to the same state, or find out why they differ."

COMPARED: tuple[Compared, ...] = (
    Compared("gpu-driver", lambda f: f["driver"], named("NVIDIA driver"), _SETUP),
    Compared("gpu-count", lambda f: len(f["gpus"]), count("GPU"), _HARDWARE, absent=0),
    Compared("gpu-count", lambda f: tuple(sorted({g["name"] for g in f["gpus"]})) or None, " and ".join, _SETUP),
    Compared(
        "gpu-count",
        lambda f: min(g["memory"] for g in f["gpus"]),
        lambda v: f"{size(v)} on each GPU",
        _HARDWARE,
        within=0.02,
        more_is_fine=True,
    ),
    Compared("gpu-pcie", lambda f: tuple(sorted(g["width"] for g in f["gpus"])), each(" PCIe lanes"), _HARDWARE),
    Compared(
        "gpu-nvlink", lambda f: sum(sum(g["links"]) for g in f["gpus"]), count("NVLink"), _HARDWARE, more_is_fine=True
    ),
    Compared("amd-count", lambda f: len(f["buses"]), count("AMD GPU"), _HARDWARE, absent=0),
    Compared("nic-ports", lambda f: f["devices"], count("NIC"), _HARDWARE),
    Compared("nic-ports", lambda f: tuple(f["rates"]), each(" Gb/s on ports that are up"), _HARDWARE),
    Compared(
        "nic-ports", lambda f: tuple(sorted(f["firmware"].items())) or None, lambda v: _pairs("firmware", v), _SETUP
    ),
    Compared("nic-pcie", lambda f: _links(f["nics"]), each(" on the NICs' PCIe"), _HARDWARE),
    Compared("nic-nearest", lambda f: tuple(sorted(w or "none" for w in f["up"])), each(" from GPU to NIC"), _HARDWARE),
    Compared("network-interface", lambda f: f["mbps"], lambda v: f"an interface of {v / 1000:g} Gb/s", _HARDWARE),
    Compared(
        "network-interface",
        lambda f: f["mtu"],
        named("an MTU of {}"),
        "Set the same MTU on all nodes: ip link set mtu.",
    ),
    Compared(
        "host-memory", lambda f: f["total"], lambda v: f"{size(v)} of memory", _HARDWARE, within=0.01, more_is_fine=True
    ),
    Compared("host-processes", lambda f: f["cpus"], count("CPU"), _HARDWARE, more_is_fine=True),
    Compared(
        "host-clock", lambda f: f["source"], named("clock source"), "Look in the kernel log why it gave the other up."
    ),
    Compared("host-frequency", _governors, lambda v: f"CPU governor {' and '.join(v)}", _SETUP),
    Compared("host-limits", _limits, lambda v: _pairs("limits", v), _SETUP),
    Compared("host-versions", lambda f: f["kernel"], named("kernel"), _SETUP),
    Compared("host-versions", lambda f: f["system"], str, _SETUP),
    Compared("host-versions", lambda f: f["cpu"], str, _SETUP),
    Compared(
        "host-versions", lambda f: tuple(sorted(f["modules"].items())) or None, lambda v: _pairs("drivers", v), _SETUP
    ),
)


def compare(verdicts: Mapping[str, Sequence[Verdict]]) -> tuple[NodeFinding, ...]:
    """Return the differing nodes, of nodes checked in one run (`CLOCKS_S`), by the findings of the comparison."""
    return compare_facts({node: facts_of(found) for node, found in verdicts.items()})


def facts_of(verdicts: Sequence[Verdict]) -> dict[str, Json | None]:
    """Return a node's facts by check; None: the subject does not exist; missing: it could not be checked."""
    return {one.check: one.facts for one in verdicts if one.facts is not None or one.status == OK}


def compare_facts(facts: Facts) -> tuple[NodeFinding, ...]:
    """Return the differing nodes from the facts by node and check."""
    found = [finding for compared in COMPARED for finding in _compare(compared, facts)]
    return (*found, *_mounts(facts), *_clocks(facts), *_names(facts))


def _compare(compared: Compared, facts: Facts) -> list[NodeFinding]:
    values: dict[str, Any] = {}
    for node, checks in facts.items():
        if compared.check not in checks:
            continue
        value = _value(compared, checks[compared.check])
        if value is not None:
            values[node] = value
    return outliers_of(values, compared)


def _value(compared: Compared, facts: Json | None) -> Hashable:
    if facts is None:
        return compared.absent
    try:
        value = compared.value(facts)
        hash(value)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # facts of another version, or unknown
        return None
    return value


def outliers_of(values: Mapping[str, Any], compared: Compared) -> list[NodeFinding]:
    """Return a finding for each value but the majority's, with the nodes that have it."""
    groups = _groups(values, compared.within)
    if len(groups) < 2:
        return []
    total = len(values)
    (expected, agreeing), *others = sorted(groups, key=lambda group: -len(group[1]))
    if len(agreeing) * 2 <= total:
        return _differing(groups, compared)
    found = []
    for value, nodes in others:
        if compared.more_is_fine and value > expected:
            continue
        text = f"{len(agreeing)} of {total} nodes have {compared.text(expected)}, this one {compared.text(value)}"
        found.append(NodeFinding(compared.check, tuple(nodes), Finding(WARN, "", text, compared.advice)))
    return found


def _groups(values: Mapping[str, Any], within: float) -> list[tuple[Any, list[str]]]:
    groups: list[tuple[Any, list[str]]] = []
    place: dict[Any, int] = {}
    ordered = sorted(values, key=lambda node: values[node]) if within else values
    for node in ordered:
        value = values[node]
        if within and groups and value - groups[-1][0] <= within * value:
            groups[-1][1].append(node)
        elif value in place:
            groups[place[value]][1].append(node)
        else:
            place[value] = len(groups)
            groups.append((value, [node]))
    return groups


def _differing(groups: Sequence[tuple[Any, list[str]]], compared: Compared) -> list[NodeFinding]:
    found = []
    for value, nodes in groups:
        others = [(other, those) for other, those in groups if other != value]
        parts = [f"{_nodes(those)} {compared.text(other)}" for other, those in others[:_SHOWN]]
        more = f", and {len(others) - _SHOWN} more kinds" if len(others) > _SHOWN else ""
        text = f"this node has {compared.text(value)}, {', '.join(parts)}{more}"
        found.append(NodeFinding(compared.check, tuple(nodes), Finding(WARN, "", text, compared.advice)))
    return found


def _nodes(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} others"


def _mounts(facts: Facts) -> list[NodeFinding]:
    """Find paths on another type of filesystem: where the shared one is not mounted, it is a local disk."""
    types: dict[str, dict[str, str]] = {}
    for node, checks in facts.items():
        for place in (checks.get("storage-paths") or {}).get("places", ()):
            type_ = (place.get("mount") or {}).get("type")
            if type_:
                types.setdefault(str(place.get("path")), {})[node] = type_
    advice = "Look what is mounted there: `findmnt -T` that path."
    return [
        finding
        for path, by_node in types.items()
        for finding in outliers_of(by_node, Compared("storage-paths", lambda f: None, _on_type(path), advice))
    ]


def _on_type(path: str) -> Callable[[str], str]:
    return lambda type_: f"{path} on {type_}"


def _clocks(facts: Facts) -> list[NodeFinding]:
    clocks: dict[str, float] = {}
    for node, checks in facts.items():
        now = (checks.get("host-clock") or {}).get("now_s")
        if isinstance(now, (int, float)):
            clocks[node] = float(now)
    if len(clocks) < 2:
        return []
    advice = "Look at NTP on that node: `chronyc tracking`."
    if len(clocks) == 2:
        (one, first), (other, second) = clocks.items()
        if abs(first - second) <= CLOCKS_S:
            return []
        by = duration(abs(first - second))
        return [
            NodeFinding("host-clock", (node,), Finding(WARN, "clock", f"it and {its}'s differ by {by}", advice))
            for node, its in ((one, other), (other, one))
        ]
    middle = median(clocks.values())
    right = sum(abs(now - middle) <= CLOCKS_S for now in clocks.values())
    found = []
    for node, now in clocks.items():
        if abs(now - middle) > CLOCKS_S:
            way = "ahead of" if now > middle else "behind"
            text = f"it is {duration(abs(now - middle))} {way} those of {right} of {len(clocks)} nodes"
            found.append(NodeFinding("host-clock", (node,), Finding(WARN, "clock", text, advice)))
    return found


def _names(facts: Facts) -> list[NodeFinding]:
    """Find names that resolve differently on some nodes; a node's own name as 127.0.1.1 is left to network-names."""
    answers: dict[str, dict[str, frozenset[str]]] = {}
    for node, checks in facts.items():
        parts = checks.get("network-names") or {}
        for name, addresses in parts.get("addresses", {}).items():
            if not (name in parts.get("own", ()) and all(map(is_loopback, addresses))):
                answers.setdefault(name, {})[node] = frozenset(addresses)
    return [finding for name, by_node in answers.items() for finding in _name(name, by_node)]


def _name(name: str, answers: Mapping[str, frozenset[str]]) -> list[NodeFinding]:
    # Name servers shorten long lists, and some nodes have no IPv6: overlapping sets count as equal.
    groups: list[tuple[set[str], list[str]]] = []
    for node, answer in answers.items():
        group = next((one for one in groups if one[0] & answer or not (one[0] or answer)), None)
        if group is None:
            groups.append((set(answer), [node]))
        else:
            group[0].update(answer)
            group[1].append(node)
    if len(groups) < 2:
        return []
    most = max(groups, key=lambda group: len(group[1]))
    majority = len(most[1]) * 2 > len(answers)
    found = []
    for addresses, nodes in groups:
        if majority and nodes is most[1]:
            continue
        others = [most] if majority else [group for group in groups if group[1] is not nodes][:_SHOWN]
        parts = [f"to {_set(those)} on {_on(at, len(answers), majority)}" for those, at in others]
        text = f"{name} resolves to {_set(addresses)} here, {', '.join(parts)}"
        finding = Finding(WARN, "", text, "Make /etc/hosts and DNS agree on all nodes.")
        found.append(NodeFinding("network-names", tuple(nodes), finding))
    return found


def _on(nodes: Sequence[str], total: int, majority: bool) -> str:
    return f"{len(nodes)} of {total} nodes" if majority else _nodes(nodes)


def _set(addresses: set[str]) -> str:
    return ", ".join(sorted(addresses)) or "nothing"
