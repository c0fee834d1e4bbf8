"""Read the history's runs: the saved report of a run that has ended where it may be trusted, else a new one.

A `report.json` is used only if it is a plain file of the run directory's owner (or root's), of this version of the
format, and about the end that the run has now: the closed state's attempts, outcome, exit code and time, or, of a run
that nobody closed, the attempt whose launcher has recorded the agents' end. A report that was saved before the run went
on, that was copied from another run or that is damaged differs in one of these, and the run is judged anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftslurm.records.codec import BadFile, check_schema
from ftslurm.records.state import State
from ftslurm.report.analysis import SCHEMA, VERSION
from ftslurm.runs.history_entry import RunEntry, Unreadable, entry_of
from ftslurm.sharedfs.bounded_read import Malformed, parse_json, read_file
from ftslurm.status.snapshot import read

LIMIT = 64 << 20
NO_STATE = "no agent has written a state: it never started, or begins just now"


def read_run(path: str) -> RunEntry | Unreadable:
    """Return the entry of the run in a directory."""
    directory = Path(path)
    try:
        now = read(directory, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns, nodes=False)
        if now.state is None:
            problem = next((f"{each.file}: {each.reason}" for each in now.problems), NO_STATE)
            return Unreadable(directory.name, path, problem)
        entry = saved_entry(path, now.state, now.ended_ns is not None)
        if entry is not None:
            return entry
        # Imported only where it is needed: it is most of the command's start.
        from ftslurm.report.pipeline import make_report

        return entry_of(make_report(directory), path, judged=True)
    except OSError as error:
        return Unreadable(directory.name, path, f"cannot be read: {error.strerror}")
    except BadFile as error:
        return Unreadable(directory.name, path, str(error))


def saved_entry(path: str, state: State, ended: bool) -> RunEntry | None:
    """Return the entry of a run by its saved report; None if there is none for the run's present end.

    Args:
        path: the run directory.
        state: its state.
        ended: whether the agents' end is recorded for the state's attempt.
    """
    if state.closed is None and not ended:
        return None
    try:
        owners = frozenset((os.stat(path).st_uid, 0))
        data = read_file(os.path.join(path, "report.json"), LIMIT, owners)
        if data is None:
            return None
        report = check_schema(parse_json(data), "report.json", SCHEMA, VERSION)
        return entry_of(report, path, judged=False) if _is_of(report, state) else None
    except (Malformed, BadFile, OSError):
        return None


def _is_of(report: Mapping[str, Any], state: State) -> bool:
    """Return whether a report is about that end of the run (pure)."""
    run, step, closed = report.get("run"), report.get("step"), state.closed
    if report.get("version") != VERSION or not isinstance(run, dict):
        return False
    if run.get("id") != state.run_id or run.get("attempts") != list(state.attempts):
        return False
    if closed is None:
        return isinstance(step, dict) and step.get("attempt") == state.attempt
    end = (closed.outcome, closed.exit_code, closed.time_ns)
    return end == (report.get("status"), report.get("exit_code"), report.get("ended_ns"))
