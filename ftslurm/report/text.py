"""The report as text: the result in the first three lines, then the evidence, then the rest (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ftslurm.report.defects import defects
from ftslurm.report.hang_sections import stacks, whereabouts
from ftslurm.report.headline import headline
from ftslurm.report.rank_text import failed, rank_page
from ftslurm.report.sections import evidence, files, health, log, missing, others, problems, slow, timeline, traceback
from ftslurm.report.style import WIDTH, Json, Style


def render(
    report: Json, *, colour: bool = False, width: int = WIDTH, zone: Callable[[float], Any] = time.localtime
) -> str:
    """Render a report for a terminal or a job's output file.

    Args:
        report: what `ftslurm.report.analysis.analyse` returned.
        colour: whether to add ANSI colours.
        width: columns; only quoted lines (tracebacks, output, paths) may be longer.
        zone: turns seconds since the epoch into a `time.struct_time` of the reader's time zone.

    Returns:
        Lines, each ended by a newline. Nothing from a file can reach the terminal as a control sequence.
    """
    style = Style(colour, max(40, width), zone)
    blocks = _whole(report, style) if report["rank"] is None else rank_page(report, style)
    shown = [block for block in blocks if block]
    # The usual, short report is one block.
    glue = [""] if len(shown) > 1 else []
    lines = shown[0]
    for block in shown[1:]:
        lines = [*lines, "", *block]
    return "\n".join([*lines, *glue, *files(report)]) + "\n"


def _whole(report: Json, style: Style) -> list[list[str]]:
    blocks = [headline(report, style), defects(report, style)]
    focus = next((r for r in report["rounds"] if r["round"] == report["focus"]), None)
    if focus is not None:
        blocks += [evidence(focus, style), traceback(focus, style), whereabouts(focus, style), stacks(focus, style)]
        blocks += [log(focus, report, style), *failed(report, style), others(focus, report, style)]
    blocks += [health(report, style), slow(report, style)]
    if focus is not None or len(report["rounds"]) > 1:
        blocks.append(timeline(report, style))
    return [*blocks, missing(report, style), problems(report, style)]


__all__ = ["render"]
