"""Slurm's view of the run's job and steps, and the ends it explains: time limit, preemption, scancel (pure)."""

from __future__ import annotations

import signal
from typing import Any

from ftslurm.dataclasses import replace
from ftslurm.failures.causes import Evidence, classify
from ftslurm.pattern import pattern
from ftslurm.report.facts import Attempt, Scheduler, Snapshot, StepEnd
from ftslurm.report.first_failure import FirstFailure
from ftslurm.report.wording import RAISED, STANDING, brief
from ftslurm.slurm.job_now import changed_limit
from ftslurm.text import duration, names, safe

TIME_LIMIT, PREEMPTED, CANCELLED, SCHEDULER = "time-limit", "preempted", "cancelled", "scheduler"
OUT_OF_MEMORY = "OUT_OF_MEMORY"
SLURM_FAILED = ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED")
ENDED = ("TIMEOUT", "DEADLINE", "PREEMPTED", "CANCELLED", "COMPLETED", "FAILED", OUT_OF_MEMORY, *SLURM_FAILED)
HELD = ("JobHoldMaxRequeue", "launch_failed_requeued_held", "JobHeldUser", "JobHeldAdmin")
"""Reasons of a pending job that does not start before it is released."""
_ATTEMPT = pattern(r"(\d{1,10})\.(\d{1,9})(\+.*)?")

Dict = dict[str, Any]


def attempt_to_query(snapshot: Snapshot, status: str, cause: Dict | None) -> Attempt | None:
    """Return the attempt whose end the records do not explain, so that Slurm should be queried."""
    newest = snapshot.attempt
    if newest is None or not (newest.job_id or "").isdecimal():
        return None
    killed = status == "failed" and cause is not None and cause["cause"] in ("sigkill", "shell-killed")
    if status not in ("stopped", "unfinished") and not killed:
        return None
    known = of_attempt(snapshot, newest.attempt)
    return newest if known is None or known.state not in ENDED else None


def of_attempt(snapshot: Snapshot, attempt: str | None) -> Scheduler | None:
    """Return Slurm's view of an attempt."""
    return next((view for view in snapshot.scheduler if view.attempt == attempt), None)


def verdict(view: Scheduler | None) -> tuple[str, str] | None:
    """Return the kind of end that Slurm caused, and its text; None if it caused none."""
    if view is None or of_a_later_start(view):
        return None
    reason = view.reason or ""
    if view.state == "TIMEOUT" or reason == "TimeLimit" or _out_of_time(view):
        more = f"; {view.reason}" if view.source == "log" and view.reason else ""
        return TIME_LIMIT, f"time limit{_limit(view)} reached{more}"
    if view.state == "DEADLINE":
        return TIME_LIMIT, "the job's deadline (--deadline) was reached"
    if view.state == "PREEMPTED" or _preempted(view):
        return PREEMPTED, "preempted"
    if view.state == "CANCELLED" or _ended_from_outside(view):
        if view.source == "log" and view.reason == "Requeued":
            return CANCELLED, "requeued (by a user, an administrator or Slurm)"
        if view.source == "log" and view.reason:
            only = view.reason.startswith((*STANDING, RAISED))
            return CANCELLED, f"cancelled by a user; {view.reason}" if only else view.reason
        user = "a user" if view.cancelled_by is None else f"uid {view.cancelled_by}"
        return CANCELLED, f"cancelled by {user}"
    if view.state in SLURM_FAILED or reason in ("NodeDown", "NodeFail"):
        failed = f"{safe(view.failed_node)} failed" if view.failed_node else "node failed"
        what = failed if view.state in (None, "NODE_FAIL", "COMPLETING") else "the job could not run"
        return SCHEDULER, f"{what} (Slurm: {safe(view.state or reason)})"
    return None


def of_a_later_start(view: Scheduler) -> bool:
    """Whether Slurm's view is of a later start of the job, because it had requeued it already."""
    match = _ATTEMPT.fullmatch(view.attempt)
    return match is not None and view.restarts is not None and view.restarts > int(match[2])


def _out_of_time(view: Scheduler) -> bool:
    if view.state != "COMPLETING" or view.start_ns is None or view.end_ns is None or view.time_limit_s is None:
        return False
    return view.end_ns - view.start_ns >= view.time_limit_s * 10**9


def _preempted(view: Scheduler) -> bool:
    ended = view.state in ("COMPLETING", *ENDED)
    return ended and view.preempted_ns is not None and view.state not in ("COMPLETED", "FAILED", "CANCELLED")


def _ended_from_outside(view: Scheduler) -> bool:
    """Whether Slurm is ending a job whose batch script still runs; for a limit or a preemption it gives a reason.

    As measured with 22.05 without accounting: COMPLETING, no reason, exit code 0:0.
    """
    return view.state == "COMPLETING" and view.reason is None and (view.exit_code, view.signal) == (0, 0)


def _limit(view: Scheduler) -> str:
    if view.time_limit_s is None or not 0 <= view.time_limit_s < 10**9:
        return ""
    minutes, seconds = divmod(view.time_limit_s, 60)
    hours, minutes = divmod(minutes, 60)
    return f" of {hours}:{minutes:02d}:{seconds:02d}"


def scheduler_report(snapshot: Snapshot, attempt: str | None) -> Dict | None:
    """Return the report's ``scheduler``: Slurm's view of the newest attempt; None if not queried."""
    view = of_attempt(snapshot, attempt)
    if view is None:
        return None
    found = verdict(view)
    return {
        "attempt": view.attempt,
        "job_id": view.job_id,
        "asked_ns": view.asked_ns,
        "source": view.source,
        "problem": view.problem,
        "line": line(view),
        "state": view.state,
        "reason": view.reason,
        "exit_code": view.exit_code,
        "signal": view.signal,
        "restarts": view.restarts,
        "start_ns": view.start_ns,
        "end_ns": view.end_ns,
        "time_limit_s": view.time_limit_s,
        "failed_node": view.failed_node,
        "cancelled_by": view.cancelled_by,
        "nodes": dict(view.nodes),
        "held": view.held,
        "limit_was_s": view.limit_was_s,
        "verdict": found[0] if found else None,
        "text": found[1] if found else None,
    }


def job_failure(snapshot: Snapshot, attempt: str | None, number: int, step: int | None) -> FirstFailure | None:
    """Describe Slurm's action on the job as a failure without rank and node; None if there was none.

    Args:
        snapshot: the run directory.
        attempt: the newest one.
        number: the last round, during which it happened.
        step: its last step.
    """
    view = of_attempt(snapshot, attempt)
    found = verdict(view)
    if view is None or found is None:
        return None
    kind, text = found
    return FirstFailure(
        round=number,
        kind=kind,
        cause=classify(Evidence(kind=kind, message=text, scheduler=view.state or ""), snapshot.causes),
        what=text,
        signature=kind,
        time_ns=view.end_ns if view.state in ENDED else None,
        step=step,
        evidence=("scheduler",),
        lines=(line(view),),
    )


def line(view: Scheduler) -> str:
    """Summarise Slurm's view in one line."""
    if view.source == "log" and view.job_id is None:
        return "stated in the log, not by Slurm"
    if view.problem is not None and view.state is None:
        return f"no answer from Slurm: {brief(view.problem)}"
    parts = [f"job {safe(view.job_id or '?')} {safe(view.state or '?')}"]
    stated = view.source == "log" and view.reason != "Requeued"  # the verdict's own text
    parts += [] if not view.reason or stated else [f"reason {safe(view.reason)}"]
    parts += [] if view.exit_code is None else [f"exit code {view.exit_code}:{view.signal or 0}"]
    parts += [] if view.time_limit_s is None else [f"time limit{_limit(view).removeprefix(' of')}"]
    parts += [changed_limit(view.time_limit_s, view.limit_was_s).removeprefix(", ")] if view.limit_was_s else []
    if view.state == "RUNNING" and view.end_ns is not None and view.asked_ns is not None:
        parts.append(f"{duration(max(0, view.end_ns - view.asked_ns) / 1e9)} left")
    parts += ["held: not started again before it is released"] if view.held else []
    parts += [] if not view.restarts else [f"restarted {view.restarts} times"]
    waits = view.reason in HELD and view.state not in ENDED
    parts += [f"held: scontrol release {safe(view.job_id or '')} lets it start"] if waits else []
    states = [f"{name} {state}" for name, state in view.nodes.items()]
    parts += [f"nodes {names(states)}"] if states else []
    return f"Slurm ({safe(view.source or 'scontrol')}): {', '.join(parts)}"


def explain_round(view: Scheduler, outcome: str) -> str | None:
    """Return Slurm's action that ended the last round of an attempt, as text; None if there was none."""
    found = verdict(view)
    return found[1] if found is not None and outcome in ("stopped", "unknown", "running", "node-lost") else None


def with_node_states(view: Scheduler, lost: FirstFailure) -> FirstFailure:
    """Return the failure of lost nodes with Slurm's states of them as evidence."""
    texts = [f"{name} is {state}" for name, state in view.nodes.items() if name in lost.nodes]
    if view.state == "NODE_FAIL":
        texts.insert(0, f"job {view.job_id}: NODE_FAIL{f', {view.failed_node}' if view.failed_node else ''}")
    return replace(lost, lines=(*lost.lines, f"Slurm: {safe('; '.join(texts))}")) if texts else lost


def state_for_evidence(snapshot: Snapshot, number: int, attempt: str | None) -> str:
    """Return the scheduler's state that may explain how workers of a round ended; empty: none.

    It can have ended only the last round of an attempt, and only in a job that did not end by itself.
    """
    view = of_attempt(snapshot, attempt)
    if view is None or view.state is None or of_a_later_start(view):
        return ""
    history = snapshot.state.history if snapshot.state else ()
    numbers = [h.round for h in history if h.attempt == attempt]
    numbers += [f.number for f in snapshot.rounds if any(n.attempt == attempt for n in f.nodes)]
    if not numbers or number != max(numbers):
        return ""
    closed = snapshot.state.closed if snapshot.state else None
    own_end = closed is not None and closed.outcome != "stopped"
    return view.state if view.state == OUT_OF_MEMORY or not own_end else ""


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
    return facts | {"line": step_line(end)}


def step_line(end: StepEnd) -> str:
    """Describe its end, for a run that did not close its state."""
    stopped = f" after {safe(end.signal)} from outside" if end.signal else ""
    code = end.exit_code
    over = "" if code is None else f"its step is over: srun ended with code {code}{_by(code)}, and "
    why = f": the run directory is not writable ({safe(end.refused)})" if end.refused else ""
    return f"{over}its agents ended{stopped} without recording the run's end{why}"


def _by(code: int) -> str:
    try:
        return f" ({signal.Signals(code - 128).name})"
    except ValueError:
        return ""


def job_report(snapshot: Snapshot) -> Dict | None:
    """Return the report's ``job``; None for a run."""
    if snapshot.job is None:
        return None
    scheduler = of_attempt(snapshot, snapshot.attempts[0].attempt)
    return {
        "note": snapshot.job.note,
        "line": line(scheduler) if scheduler is not None else "",
        "output": snapshot.job.output,
        "last_lines": list(snapshot.job.last_lines),
    }
