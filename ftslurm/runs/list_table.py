"""The runs of a directory as a table and as JSON (pure)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ftslurm.dataclasses import asdict
from ftslurm.runs.overview import Overview
from ftslurm.status.table import columns
from ftslurm.text import clip, duration, one_line, plural, safe

SCHEMA, VERSION = "ftslurm/list", 1
HEAD = ("run", "state", "nodes", "round", "step", "restarts", "began", "time left", "last failure")
NAME_WIDTH, STATE_WIDTH, FAILURE_WIDTH = 40, 40, 100


def render(runs: Sequence[Overview], directory: str, omitted: int, notes: Sequence[str], now_ns: int) -> str:
    """Return the table.

    Args:
        runs: the runs to print, the last changed first.
        directory: of the runs.
        omitted: number of further runs.
        notes: lines to print below it.
        now_ns: nanoseconds since the epoch.
    """
    number = plural(len(runs) + omitted, "run")
    lines = [f"{number} in {safe(directory)}" if runs or omitted else f"no run of yours in {safe(directory)}"]
    if runs:
        lines += [f"  {line}" for line in columns([HEAD, *(_row(run, now_ns) for run in runs)])]
    if omitted:
        lines.append(f"  and {omitted} more (--all)")
    return "\n".join([*lines, *(f"  {note}" for note in notes)]) + "\n"


def _row(run: Overview, now_ns: int) -> tuple[str, ...]:
    why = f" ({safe(run.why)})" if run.why else ""
    restarts = "" if run.restarts_used is None else f"{run.restarts_used} of {run.max_restarts}"
    failure = ""
    if run.failure is not None:
        failure = clip(f"round {run.failure_round}: {one_line(run.failure)}", FAILURE_WIDTH)
    return (
        clip(safe(run.run), NAME_WIDTH),
        clip(safe(run.state) + why, STATE_WIDTH if run.state != "unknown" else FAILURE_WIDTH),
        _number(run.nodes),
        _number(run.round),
        _number(run.step),
        restarts,
        "" if run.begun_ns is None else f"{duration((now_ns - run.begun_ns) / 1e9)} ago",
        "" if run.left_s is None else duration(run.left_s),
        failure,
    )


def _number(value: int | None) -> str:
    return "" if value is None else clip(str(value), 12)


def to_json(runs: Sequence[Overview], directory: str, omitted: int, notes: Sequence[str], now_ns: int) -> str:
    """Return the same as one JSON object, ASCII only."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "directory": directory,
        "made_ns": now_ns,
        "runs": [asdict(run) for run in runs],
        "omitted": omitted,
        "notes": list(notes),
    }
    return json.dumps(document, indent=2) + "\n"
