"""The history as one HTML page: no network, no script, nothing from outside (pure)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.report.accounting import percent
from ftslurm.report.html import document
from ftslurm.report.html_elements import esc, link, row, table, tag
from ftslurm.report.layout import Style
from ftslurm.runs.history_text import WIDTH, cause_rows, headline, node_rows, run_rows, totals
from ftslurm.text import duration, plural

Json = Mapping[str, Any]
ROWS = 5000
"""The page of 100,000 runs must still open."""


def render(found: Json, *, zone: Callable[[float], Any] = time.localtime) -> str:
    """Return the page of what `ftslurm.runs.history.history` returned."""
    style = Style(False, WIDTH, zone)
    head = tag("header", tag("h1", esc(headline(found, style))) + "".join(tag("p", esc(t)) for t in totals(found)))
    parts = [head, _tiles(found), _section("Failures by cause", cause_rows(found, style))]
    parts += [_section("Failures by node", node_rows(found, style)), _runs(found, style)]
    problems = "".join(tag("li", esc(f"{each['run']}: {each['problem']}")) for each in found["problems"][:ROWS])
    if problems:
        parts.append(tag("section", tag("h2", "Runs that cannot be judged") + tag("ul", problems)))
    parts.append(tag("footer", esc(f"made by ftslurm, {style.date(found['made_ns'], '%Y-%m-%d %H:%M:%S')}")))
    return document(headline(found, style), "\n".join(part for part in parts if part))


def _tiles(found: Json) -> str:
    sums = found["totals"]
    tiles = []
    if sums["ratio"] is not None:
        tiles.append((percent(sums["ratio"]), f"of {duration(sums['elapsed_s'])} was training"))
    if sums["mtbf_s"] is not None:
        tiles.append((duration(sums["mtbf_s"]), "mean time between failures"))
    tiles.append((plural(sums["failures"], "failure"), f"in {sums['failed_runs']} of {plural(sums['runs'], 'run')}"))
    inner = (tag("div", f"<b>{esc(big)}</b><span>{esc(text)}</span>", class_="tile") for big, text in tiles)
    return tag("div", "".join(inner), class_="tiles")


def _section(title: str, rows: Sequence[Sequence[str]]) -> str:
    inner = table(rows[0], (row(*map(esc, cells)) for cells in rows[1 : ROWS + 1]), label=title)
    return tag("section", tag("h2", title) + inner) if inner else ""


def _runs(found: Json, style: Style) -> str:
    """The runs, each with a link to its own report where that may be."""
    head, *rows = run_rows(found, style)
    lines = []
    for each, cells in zip(found["runs"][:ROWS], rows, strict=False):
        page = os.path.join(each["directory"], "report.html")
        name = esc(cells[0]) if each["judged"] else link(page, cells[0], found["directory"])
        lines.append(row(name, *map(esc, cells[1:])))
    inner = table(head, lines, label="Runs")
    more = len(found["runs"]) - len(lines)
    inner += tag("p", f"and {more} more in --json") if more else ""
    return tag("section", tag("h2", "Runs") + inner) if lines else ""
