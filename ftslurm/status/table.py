"""Table of the nodes: one line per node, or one per group of nodes with the same status (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftslurm.report.layout import Style
from ftslurm.report.wording import Json
from ftslurm.slurm.nodelist import NodeListError, compress
from ftslurm.text import clip, duration, names, safe

HEAD = ("ranks", "round", "step", "silent >=", "status")
ROUND = 2
NODES_WIDTH = 22
RANKS_WIDTH = 12
STEPS_WIDTH = 17


def table(rows: Sequence[Json], current: int | None, style: Style, *, grouped: bool) -> list[str]:
    """Return the lines.

    Args:
        rows: the key "nodes" of `ftslurm.status.summary`.
        current: the newest round; the column of rounds is printed only if a participant is in another.
        style: layout.
        grouped: one line per group of nodes with the same status, instead of one per node.
    """
    if not rows:
        return []
    groups: dict[object, list[Json]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(_group_key(row) if grouped else i, []).append(row)
    cells = [["nodes" if grouped else "node", *HEAD], *(_cells(group, grouped) for group in groups.values())]
    if all(row["round"] in (None, current) for row in rows if row["role"] == "rank"):
        cells = [[*line[:ROUND], *line[ROUND + 1 :]] for line in cells]
    if not any(row["silent"] for row in rows):
        # The age of a record is no silence: whom the coordinator hears by datagrams writes every half minute.
        cells = [[*line[:-2], line[-1]] for line in cells]
    lines = [style.line(line) for line in columns(cells)]
    return [style.section(lines[0]), *lines[1:]]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines with aligned columns; the last cell is not padded."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    return ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows]


def _group_key(row: Json) -> tuple[object, ...]:
    health = row["health_pending"], row["excluded"]
    return row["role"], row["status"], row["why"], row["round"], row["silent"], row["stuck"] > 0, health


def _cells(group: Sequence[Json], grouped: bool) -> list[str]:
    first = group[0]
    steps = [step for row in group for step in row["steps"] or row["optimizer_steps"] or ()]
    return [
        _names([row["node"] for row in group], grouped),
        clip(_ranks(group), RANKS_WIDTH),
        "" if first["round"] is None else clip(str(first["round"]), 8),
        f"{clip(_span(steps), STEPS_WIDTH)}{_age(group) if steps else ''}",
        _silence([row["silent_s"] for row in group if row["silent"]]),
        _status(group),
    ]


def _names(nodes: Sequence[str], grouped: bool) -> str:
    if not grouped:
        return clip(safe(nodes[0]), NODES_WIDTH)
    number = f"{len(nodes)}: " if len(nodes) > 1 else ""
    try:
        return clip(number + compress(nodes), NODES_WIDTH)
    except NodeListError:
        return clip(number + names(nodes), NODES_WIDTH)


def _ranks(group: Iterable[Json]) -> str:
    """Return the ranks as ranges, computed from their ends alone, since a file may claim any number of slots."""
    parts: list[list[int]] = []
    for row in sorted((row for row in group if row["ranks"] is not None), key=lambda row: int(row["first_rank"])):
        start, end = row["first_rank"], row["first_rank"] + row["slots"] - 1
        if parts and parts[-1][1] + 1 >= start:
            parts[-1][1] = max(parts[-1][1], end)
        else:
            parts.append([start, end])
    return ",".join(_span(part) for part in parts)


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def _age(group: Sequence[Json]) -> str:
    """Return how old the steps are, if they are not of the present: nodes publish at different times."""
    old = [row["silent_s"] for row in group if row["old"] and not row["silent"]]
    return f" ({'' if len(group) == 1 else 'up to '}{duration(max(old))} ago)" if old else ""


def _silence(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    low, high = duration(min(seconds)), duration(max(seconds))
    return low if low == high else f"{low} - {high}"


def _status(group: Sequence[Json]) -> str:
    """Return the nodes' status; the last column, so that only a long reason is truncated."""
    first = group[0]
    parts = [safe(first["status"])]
    if first["silent"]:
        parts.insert(0, "SILENT")
    stuck = sum(row["stuck"] for row in group)
    if stuck:
        parts.append(f"stuck {stuck}x")
    if first["health_pending"]:
        parts.append("health pending")
    if first["excluded"]:
        parts.append("excluded")
    reason = first["why"] or first["excluded"]
    why = f": {safe(reason)}" if reason else ""
    return ", ".join(parts) + why
