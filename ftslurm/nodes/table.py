"""Exclusions as a table, as a list of names and as JSON (pure)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from ftslurm.dataclasses import asdict
from ftslurm.nodes.record import SCHEMA, Exclusion
from ftslurm.slurm.nodelist import NodeListError, compress
from ftslurm.text import duration, safe

LIST_SCHEMA, LIST_VERSION = f"{SCHEMA}-list", 1
SECOND_NS = 1_000_000_000
_HEAD = ("node", "excluded", "ends", "by", "strikes", "reason")


def ends(known: Exclusion, now_ns: int) -> str:
    """Format the end of an exclusion, relative to now."""
    if known.until_ns is None:
        return "when allowed"
    if known.until_ns <= known.since_ns:
        return "-"
    left_s = (known.until_ns - now_ns) / SECOND_NS
    return f"in {duration(left_s)}" if known.holds(now_ns) else f"{duration(-left_s)} ago"


def render(
    known: Mapping[str, Exclusion],
    directory: str,
    now_ns: int,
    local: Callable[[float], time.struct_time] = time.localtime,
) -> str:
    """Return the table: exclusions in force first, then ended ones and nodes with strikes only."""
    holding = [one for one in known.values() if one.holds(now_ns)]
    others = [one for one in known.values() if not one.holds(now_ns)]
    count = len(holding)
    number = "no node is" if not count else "1 node is" if count == 1 else f"{count} nodes are"
    head = f"{number} excluded in {safe(directory)}"
    lines = [head]
    if holding:
        lines += _columns([_HEAD, *(_row(one, now_ns, local) for one in in_order(holding))])
    if others:
        lines += ["not excluded:"]
        lines += _columns([_HEAD, *(_row(one, now_ns, local) for one in in_order(others))])
    return "\n".join(lines) + "\n"


def _row(known: Exclusion, now_ns: int, local: Callable[[float], time.struct_time]) -> tuple[str, ...]:
    exclusion = known.until_ns is None or known.until_ns > known.since_ns
    since = "-"
    if exclusion and known.since_ns:
        since = time.strftime("%Y-%m-%d %H:%M", local(known.since_ns // SECOND_NS))
        since += f" ({duration((now_ns - known.since_ns) / SECOND_NS)})"
    strikes = f"{len(known.strikes)}" if known.strikes else "-"
    last = known.strikes[-1] if known.strikes else None
    reason = known.reason if exclusion else f"strike in run {last.run}: {last.reason}" if last else "-"
    return (known.node, since, ends(known, now_ns), known.by or "-", strikes, reason)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def in_order(known: Iterable[Exclusion]) -> list[Exclusion]:
    """Return them in numeric order of their names: n9 before n10."""
    return sorted(known, key=lambda one: [(part.zfill(20), part) for part in re.split(r"([0-9]+)", one.node)])


def names(known: Iterable[Exclusion], now_ns: int) -> tuple[list[str], list[str]]:
    """Return the nodes excluded now, in order, and separately those with names that are invalid in Slurm."""
    valid, invalid = [], []
    for one in in_order(known):
        if one.holds(now_ns):
            try:
                compress([one.node])
                valid.append(one.node)
            except NodeListError:
                invalid.append(one.node)
    return valid, invalid


def to_json(known: Mapping[str, Exclusion], directory: str, problems: Sequence[str], now_ns: int) -> str:
    """Return all exclusions and strikes as one JSON object."""
    document = {
        "schema": LIST_SCHEMA,
        "version": LIST_VERSION,
        "directory": directory,
        "now_ns": now_ns,
        "nodes": [{**asdict(one), "holds": one.holds(now_ns)} for one in in_order(known.values())],
        "problems": list(problems),
    }
    return json.dumps(document, indent=2) + "\n"
