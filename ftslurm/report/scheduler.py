"""Slurm's view of the run's job, and the ends it explains: time limit, preemption, scancel, failed node (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ftslurm.failures.causes import Evidence, classify
from ftslurm.report.evidence import FAILURE_KEYS
from ftslurm.report.facts import Attempt, Scheduler, Snapshot
from ftslurm.report.fields import integer, need_text, text
from ftslurm.report.wording import brief, names, safe

TIME_LIMIT, PREEMPTED, CANCELLED, SCHEDULER = "time-limit", "preempted", "cancelled", "scheduler"
OUT_OF_MEMORY = "OUT_OF_MEMORY"
SLURM_FAILED = ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED")
ENDED = ("TIMEOUT", "DEADLINE", "PREEMPTED", "CANCELLED", "COMPLETED", "FAILED", OUT_OF_MEMORY, *SLURM_FAILED)
_ATTEMPT = re.compile(r"(\d{1,10})\.(\d{1,9})(\+.*)?")

Dict = dict[str, Any]


def scheduler_from(o: Mapping[str, Any]) -> Scheduler:
    """``attempts/<attempt>/scheduler.json``."""
    nodes = o.get("nodes")
    states = nodes.items() if isinstance(nodes, dict) else ()
    return Scheduler(
        attempt=need_text(o, "attempt"),
        asked_ns=integer(o, "asked_ns"),
        job_id=text(o, "job_id"),
        problem=text(o, "problem"),
        state=text(o, "state"),
        reason=text(o, "reason"),
        exit_code=integer(o, "exit_code"),
        signal=integer(o, "signal"),
        restarts=integer(o, "restarts"),
        start_ns=integer(o, "start_ns"),
        end_ns=integer(o, "end_ns"),
        time_limit_s=integer(o, "time_limit_s"),
        failed_node=text(o, "failed_node"),
        cancelled_by=integer(o, "cancelled_by"),
        preempted_ns=integer(o, "preempted_ns"),
        source=text(o, "source"),
        nodes=tuple((name, state) for name, state in states if isinstance(state, str)),
    )


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
    if view is None or _of_a_later_start(view):
        return None
    reason = view.reason or ""
    if view.state == "TIMEOUT" or reason == "TimeLimit" or _out_of_time(view):
        return TIME_LIMIT, f"time limit{_limit(view)} reached"
    if view.state == "DEADLINE":
        return TIME_LIMIT, "the job's deadline (--deadline) was reached"
    if view.state == "PREEMPTED" or _preempted(view):
        return PREEMPTED, "preempted"
    if view.state == "CANCELLED" or _ended_from_outside(view):
        user = "a user" if view.cancelled_by is None else f"uid {view.cancelled_by}"
        return CANCELLED, f"cancelled by {user}"
    if view.state in SLURM_FAILED or reason in ("NodeDown", "NodeFail"):
        what = "node failed" if view.state in (None, "NODE_FAIL", "COMPLETING") else "the job could not run"
        node = f" {safe(view.failed_node)}" if view.failed_node else ""
        return SCHEDULER, f"{what}{node} (Slurm: {safe(view.state or reason)})"
    return None


def _of_a_later_start(view: Scheduler) -> bool:
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
        "verdict": found[0] if found else None,
        "text": found[1] if found else None,
    }


def job_failure(snapshot: Snapshot, attempt: str | None, last: Dict | None) -> Dict | None:
    """Describe Slurm's action on the job as a cause; the same keys as for a worker, without rank and node.

    Args:
        snapshot: the run directory.
        attempt: the newest one.
        last: the last round, during which it happened; None: there was none.
    """
    view = of_attempt(snapshot, attempt)
    found = verdict(view)
    if view is None or found is None or last is None:
        return None
    kind, text = found
    evidence = Evidence(kind=kind, message=text, scheduler=view.state or "")
    cause = classify(evidence, snapshot.causes)
    failure: Dict = dict.fromkeys(FAILURE_KEYS)
    return failure | {
        "round": last["round"],
        "nodes": [],
        "time_ns": view.end_ns if view.state in ENDED else None,
        "kind": kind,
        "core_dumped": False,
        "step": last["last_step"],
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": cause.advice,
        "restart": cause.restart,
        "what": text,
        "signature": kind,
        "same_as_rounds": [],
        "argv": [],
        "evidence": ["scheduler"],
        "evidence_lines": [line(view)],
        "uncertainty_s": None,
        "clock": None,
    }


def line(view: Scheduler) -> str:
    """Summarise Slurm's view in one line."""
    if view.problem is not None and view.state is None:
        return f"no answer from Slurm: {brief(view.problem)}"
    parts = [f"job {safe(view.job_id or '?')} {safe(view.state or '?')}"]
    parts += [] if not view.reason else [f"reason {safe(view.reason)}"]
    parts += [] if view.exit_code is None else [f"exit code {view.exit_code}:{view.signal or 0}"]
    parts += [] if view.time_limit_s is None else [f"time limit{_limit(view).removeprefix(' of')}"]
    parts += [] if not view.restarts else [f"restarted {view.restarts} times"]
    states = [f"{name} {state}" for name, state in view.nodes]
    parts += [f"nodes {names(states)}"] if states else []
    return f"Slurm ({safe(view.source or 'scontrol')}): {', '.join(parts)}"


def explain_rounds(snapshot: Snapshot, rounds: Sequence[Dict]) -> None:
    """Add Slurm's action to each attempt's last round (``scheduler``), and Slurm's node states to a lost node."""
    for i, entry in enumerate(rounds):
        entry["scheduler"] = None
        last = i + 1 == len(rounds) or rounds[i + 1]["attempt"] != entry["attempt"]
        view = of_attempt(snapshot, entry["attempt"]) if last else None
        if view is None:
            continue
        found = verdict(view)
        if found is not None and entry["outcome"] in ("stopped", "unknown", "running", "node-lost"):
            entry["scheduler"] = found[1]
        failure = entry["first_failure"]
        if failure is not None and failure["kind"] == "node-lost":
            texts = [f"{name} is {state}" for name, state in view.nodes if name in failure["nodes"]]
            if view.state == "NODE_FAIL":
                texts.insert(0, f"job {view.job_id}: NODE_FAIL{f', {view.failed_node}' if view.failed_node else ''}")
            if texts:
                failure["evidence_lines"] = [*(failure["evidence_lines"] or []), f"Slurm: {safe('; '.join(texts))}"]


def state_for_evidence(snapshot: Snapshot, number: int, attempt: str | None) -> str:
    """Return the scheduler's state that may explain how workers of a round ended; empty: none.

    It can have ended only the last round of an attempt, and only in a job that did not end by itself.
    """
    view = of_attempt(snapshot, attempt)
    if view is None or view.state is None or _of_a_later_start(view):
        return ""
    history = snapshot.state.history if snapshot.state else ()
    numbers = [h.round for h in history if h.attempt == attempt]
    numbers += [f.number for f in snapshot.rounds if any(n.attempt == attempt for n in f.nodes)]
    if not numbers or number != max(numbers):
        return ""
    closed = snapshot.state.closed if snapshot.state else None
    own_end = closed is not None and closed.outcome != "stopped"
    return view.state if view.state == OUT_OF_MEMORY or not own_end else ""
