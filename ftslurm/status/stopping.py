"""A stop in the status: a pending one, and whether the ranks of a run that was stopped have saved (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.records.state import CLOSED, STOPPED, State
from ftslurm.records.stop import ANY_STEP
from ftslurm.status.nodes import span_s
from ftslurm.text import duration, first_line, safe

Json = Mapping[str, Any]
INTERRUPTED = "interrupted"
"""What the report calls a run whose ranks all left because they were to stop; others were "stopped"."""
_INTERRUPTED_BY = f"{INTERRUPTED}: "
"""The reason of such an end begins with it."""
NO_SAVE = "no save recorded"
"""A script may have saved in a handler of its own."""


def pending_stop(state: State | None, now_ns: int) -> dict[str, Any] | None:
    """Return the status's ``stop``; None: none is requested, or the run is closed.

    Args:
        state: the newest one.
        now_ns: since the epoch, by this machine's clock.
    """
    stop = state.stop if state is not None else None
    if state is None or stop is None or state.phase == CLOSED:
        return None
    since_s = span_s(stop.requested_ns, now_ns)
    end = state.job_end
    left = [] if end is None or end.end_ns is None else [(end.end_ns - now_ns) / 1e9]
    # A preemption's grace, which Slurm gives, may be longer than that of its signal.
    if stop.grace_s is not None and not (left and end is not None and end.preempted):
        left.append(stop.grace_s - since_s)
    return {
        "cause": stop.cause,
        "reason": stop.reason,
        "node": stop.node,
        "since_s": since_s,
        "step": None if stop.step in (None, ANY_STEP) else stop.step,
        "agreed": stop.committed,
        "left_s": max(0.0, min(left)) if left else None,
    }


def stop_line(stop: Json) -> str:
    """``stop requested 4 s ago by n1: SIGTERM from outside; all ranks leave at step 120; 26 s left``."""
    by = f" by {safe(stop['node'])}" if stop["node"] is not None else ""
    text = f"stop requested {duration(stop['since_s'])} ago{by}: {first_line(stop['reason'])}"
    if stop["step"] is not None:
        text += f"; all ranks leave at step {stop['step']}{'' if stop['agreed'] else ' (proposed)'}"
    return text if stop["left_s"] is None else f"{text}; {duration(stop['left_s'])} left"


def outcome(state: State) -> tuple[str, str | None]:
    """Return the outcome of a closed state in the report's terms; for a stop also what was saved.

    ``("interrupted", "saved at step 43")``, ``("stopped", "no save recorded")``, ``("failed", None)``.
    """
    closed = state.closed
    assert closed is not None
    if closed.outcome != STOPPED:
        return closed.outcome, None
    result = (state.stop.result if state.stop is not None else None) or ""
    interrupted = closed.reason.startswith(_INTERRUPTED_BY)
    # "saved at step 43 (3 s of 30 s grace)", "all 4 ranks left at step 43", "rank 0 left at step 43, saved by rank 0".
    tells = result and (interrupted or "saved by" in result)
    return INTERRUPTED if interrupted else STOPPED, result.partition(" (")[0] if tells else NO_SAVE
