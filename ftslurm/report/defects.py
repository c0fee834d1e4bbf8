"""Defects of ftslurm itself that agents recorded, and their consequences, for users to report (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ftslurm.report.facts import Defect
from ftslurm.report.style import Json, Style
from ftslurm.report.wording import clip, names, safe

SHOWN = 5
NODES_KEPT = 8


def defects_report(defects: Iterable[Defect]) -> list[dict[str, Any]]:
    """Return the report's entries: the same defect on several nodes is one; those that ended agents come first."""
    groups: dict[tuple[str | None, str, str | None], list[Defect]] = {}
    for each in sorted(defects, key=lambda one: (one.part is not None, one.time_ns or 0, one.node)):
        groups.setdefault((each.part, each.error, each.place), []).append(each)
    return [_entry(same) for same in groups.values()]


def _entry(same: Sequence[Defect]) -> dict[str, Any]:
    first, nodes = same[0], sorted({each.node for each in same})
    return {
        "part": first.part,
        "meaning": first.meaning,
        "error": first.error,
        "place": first.place,
        "nodes": nodes[:NODES_KEPT],
        "node_count": len(nodes),
        "round": first.round,
        "time_ns": first.time_ns,
        "file": first.file,
    }


def defect_lines(report: Json) -> list[list[str]]:
    """Return each defect's lines of text; the first one describes it."""
    return [_lines(each) for each in report["defects"]]


def _lines(each: Json) -> list[str]:
    more = each["node_count"] - len(each["nodes"])
    where = names(each["nodes"]) + (f" and {more} more nodes" if more > 0 else "")
    place = f" ({safe(each['place'])})" if each["place"] else ""
    what = f"{clip(safe(each['error']), 200)}{place}"
    if each["part"] is None:
        first = f"{where}: the agent ended: {what}"
    else:
        first = f"{where}: {safe(each['part'])}: {what}"
    meaning = [f"{safe(each['meaning'])}; the job went on"] if each["meaning"] else []
    return [first, *meaning, f"please report it, with {safe(each['file'])}"]


def defects(report: Json, style: Style) -> list[str]:
    """Return the section of a text report."""
    found = defect_lines(report)
    lines: list[str] = []
    for first, *rest in found[:SHOWN]:
        lines += style.wrapped(first)
        lines += [line for each in rest for line in style.wrapped(each, "    ", "      ")]
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN} more (see --json)")
    return [style.section("defects of ftslurm itself, neither your program's nor a node's"), *lines] if lines else []
