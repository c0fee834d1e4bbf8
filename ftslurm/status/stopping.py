"""A pending stop in the status: why, at which step all ranks leave, and the time left (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.records.state import CLOSED, State
from ftslurm.records.stop import ANY_STEP
from ftslurm.status.nodes import span_s
from ftslurm.text import duration, first_line, safe

Json = Mapping[str, Any]


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
