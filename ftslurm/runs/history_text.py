"""The history as text: totals, failures by cause and by node, the runs (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.report.accounting import hours, percent
from ftslurm.report.layout import Style
from ftslurm.report.wording import brief
from ftslurm.status.table import columns
from ftslurm.text import clip, duration, plural, safe

Json = Mapping[str, Any]
WIDTH = 160
SHOWN = 40
NAME_WIDTH, CAUSE_WIDTH, WHY_WIDTH = 36, 44, 100
STATUSES = {"unfinished": "without a recorded end", "running": "running"}


def render(
    found: Json,
    *,
    failed: bool = False,
    everything: bool = False,
    zone: Callable[[float], Any] = time.localtime,
) -> str:
    """Return the lines.

    Args:
        found: what `ftslurm.runs.history.history` returned.
        failed: whether to print the failures by cause and by node.
        everything: all runs, causes and nodes, not only the first ones.
        zone: turns seconds since the epoch into a `time.struct_time` of the reader's time zone.
    """
    style = Style(False, WIDTH, zone)
    most = None if everything else SHOWN
    lines = [headline(found, style), *(f"  {line}" for line in totals(found))]
    if failed:
        lines += _table("failures by cause", cause_rows(found, style), most)
        lines += _table("failures by node", node_rows(found, style), most)
    lines += _table("runs with failures" if failed else "runs", run_rows(found, style), most)
    for each in found["problems"][:most]:
        lines.append(f"cannot be judged: {safe(each['run'])}: {clip(safe(each['problem']), 200)}")
    rest = len(found["problems"]) - len(found["problems"][:most])
    return "\n".join(lines + ([f"  and {rest} more (--all)"] if rest else [])) + "\n"


def headline(found: Json, style: Style) -> str:
    """``37 runs in /scratch/ftslurm-runs since 2026-03-01: 20 succeeded, 10 failed``."""
    since = "" if found["since_ns"] is None else f" since {style.date(found['since_ns'], '%Y-%m-%d %H:%M')}"
    counts = [f"{number} {STATUSES.get(status, safe(status))}" for status, number in found["counts"].items()]
    counts += [f"{len(found['problems'])} that cannot be judged"] if found["problems"] else []
    number = plural(found["totals"]["runs"] + len(found["problems"]), "run")
    return f"{number} in {safe(found['directory'])}{since}" + (f": {', '.join(counts)}" if counts else "")


def totals(found: Json) -> list[str]:
    """Return the totals, one line each."""
    sums = found["totals"]
    lines = []
    if sums["ratio"] is not None:
        of = "" if sums["of_runs"] == sums["runs"] else f" (of {plural(sums['of_runs'], 'run')} that report steps)"
        lines.append(f"effective training time: {percent(sums['ratio'])} of {duration(sums['elapsed_s'])}{of}")
    if sums["failures"]:
        every = "" if sums["mtbf_s"] is None else f", one per {duration(sums['mtbf_s'])} of running"
        lines.append(f"{plural(sums['failures'], 'failure')} in {plural(sums['failed_runs'], 'run')}{every}")
    elif sums["runs"]:
        lines.append(f"no failure in {duration(sums['running_s'])} of running")
    if sums["interrupted"]:
        lines.append(f"{plural(sums['interrupted'], 'round')} stopped from outside")
    labels = {"lost_s": "of work", "detection_s": "detection", "stopping_s": "stopping", "restart_s": "restarting"}
    labels |= {"queue_s": "between attempts"}
    lost = [f"{duration(sums[key])} {text}" for key, text in labels.items() if (sums[key] or 0) >= 0.05]
    if lost:
        held = f"; {hours(sums)}" if sums["rank_hours_lost"] else ""
        lines.append(f"lost: {', '.join(lost)}{held}")
    return lines


def cause_rows(found: Json, style: Style) -> list[list[str]]:
    """Return the table of causes, its head first."""
    rows = [["cause", "failures", "runs", "nodes", "time lost", "last", "for example"]]
    for each in found["causes"]:
        numbers = (str(each["failures"]), str(each["runs"]), str(each["nodes"]))
        lost = "" if each["lost_s"] is None else duration(each["lost_s"])
        last = _date(each["last_ns"], style)
        rows.append([clip(safe(each["title"]), CAUSE_WIDTH), *numbers, lost, last, clip(brief(each["example"]), 60)])
    return rows


def node_rows(found: Json, style: Style) -> list[list[str]]:
    """Return the table of nodes, its head first."""
    rows = [["node", "failures", "runs", "last", "causes"]]
    for each in found["nodes"]:
        causes = ", ".join(f"{number} {safe(title)}" for title, number in each["causes"].items())
        last = _date(each["last_ns"], style)
        rows.append([clip(safe(each["node"]), 40), str(each["failures"]), str(each["runs"]), last, clip(causes, 90)])
    return rows


def run_rows(found: Json, style: Style) -> list[list[str]]:
    """Return the table of runs, its head first."""
    rows = [["run", "status", "started", "took", "nodes", "rounds", "step", "training", "failures", "in short"]]
    for each in found["runs"]:
        short = each["summary"].removeprefix(f"{each['run']} ")
        rows.append(
            [
                clip(safe(each["run"]), NAME_WIDTH),
                safe(each["status"]),
                _date(each["started_ns"], style),
                "" if each["duration_s"] is None else duration(each["duration_s"]),
                str(each["nodes"]),
                str(each["rounds"]),
                "" if each["last_step"] is None else clip(str(each["last_step"]), 12),
                "" if each["ratio"] is None else percent(each["ratio"]),
                str(len(each["failures"]) or ""),
                clip(safe(short), WHY_WIDTH),
            ]
        )
    return rows


def _date(time_ns: int | None, style: Style) -> str:
    return "" if time_ns is None else style.date(time_ns, "%Y-%m-%d %H:%M")


def _table(title: str, rows: Sequence[Sequence[str]], most: int | None) -> list[str]:
    if len(rows) < 2:
        return []
    shown = rows if most is None else rows[: most + 1]
    rest = len(rows) - len(shown)
    more = [f"  and {rest} more (--all)"] if rest else []
    return ["", title, *(f"  {line}" for line in columns(shown)), *more]
