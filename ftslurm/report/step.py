"""The end of an attempt's Slurm step, recorded by ftsrun (pure)."""

from __future__ import annotations

import signal
from typing import Any

from ftslurm.report.facts import Snapshot, StepEnd
from ftslurm.report.wording import safe

Dict = dict[str, Any]


def step_end(snapshot: Snapshot) -> StepEnd | None:
    """Return the end of the run's newest attempt; None while a process of the run may still be running."""
    ends = {end.attempt: end for end in snapshot.steps}
    current = snapshot.attempt
    if current is None or current.attempt not in ends:
        return None
    later = [each for each in snapshot.attempts if (each.created_ns or 0) > (current.created_ns or 0)]
    return ends[current.attempt] if all(each.attempt in ends for each in later) else None


def step_report(snapshot: Snapshot) -> Dict | None:
    """Return the report's ``step``."""
    end = step_end(snapshot)
    if end is None:
        return None
    facts = {"attempt": end.attempt, "ended_ns": end.ended_ns, "exit_code": end.exit_code, "signal": end.signal}
    return facts | {"line": line(end)}


def line(end: StepEnd) -> str:
    """Describe its end, for a run that did not close its state."""
    stopped = f", after {safe(end.signal)} from outside" if end.signal else ""
    code = end.exit_code
    what = "its agents have ended" if code is None else f"its step is over: srun ended with code {code}{_by(code)}"
    why = f": the run directory is not writable ({safe(end.refused)})" if end.refused else ""
    return f"{what}{stopped}, before the agents recorded the run's end{why}"


def _by(code: int) -> str:
    try:
        return f" ({signal.Signals(code - 128).name})"
    except ValueError:
        return ""
