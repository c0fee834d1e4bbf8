"""What Slurm said of the run's job, and what it explains: a time limit, a preemption, scancel, a failed node (pure)."""

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


def job_to_ask(snapshot: Snapshot, status: str, cause: Dict | None) -> Attempt | None:
    """Return the attempt of which Slurm should be asked: its end is not explained by what is recorded."""
    newest = snapshot.attempt
    if newest is None or not (newest.job_id or "").isdecimal():
        return None
    killed = status == "failed" and cause is not None and cause["cause"] in ("sigkill", "shell-killed")
    if status not in ("stopped", "unfinished") and not killed:
        return None
    known = of_attempt(snapshot, newest.attempt)
    return newest if known is None or known.state not in ENDED else None


def of_attempt(snapshot: Snapshot, attempt: str | None) -> Scheduler | None:
    """Return what Slurm said of an attempt."""
    return next((said for said in snapshot.scheduler if said.attempt == attempt), None)


def verdict(said: Scheduler | None) -> tuple[str, str] | None:
    """Return the kind of end that Slurm brought about, and its words; None: it says nothing of that kind."""
    if said is None or _of_a_later_start(said):
        return None
    reason = said.reason or ""
    if said.state == "TIMEOUT" or reason == "TimeLimit" or _out_of_time(said):
        return TIME_LIMIT, f"time limit{_limit(said)} reached"
    if said.state == "DEADLINE":
        return TIME_LIMIT, "the job's deadline (--deadline) was reached"
    if said.state == "PREEMPTED" or _preempted(said):
        return PREEMPTED, "preempted"
    if said.state == "CANCELLED" or _ended_from_outside(said):
        who = "a user" if said.cancelled_by is None else f"uid {said.cancelled_by}"
        return CANCELLED, f"cancelled by {who}"
    if said.state in SLURM_FAILED or reason in ("NodeDown", "NodeFail"):
        what = "node failed" if said.state in (None, "NODE_FAIL", "COMPLETING") else "the job could not run"
        node = f" {safe(said.failed_node)}" if said.failed_node else ""
        return SCHEDULER, f"{what}{node} (Slurm: {safe(said.state or reason)})"
    return None


def _of_a_later_start(said: Scheduler) -> bool:
    """Whether Slurm spoke of a later start of the job, because it had requeued it already."""
    match = _ATTEMPT.fullmatch(said.attempt)
    return match is not None and said.restarts is not None and said.restarts > int(match[2])


def _out_of_time(said: Scheduler) -> bool:
    if said.state != "COMPLETING" or said.start_ns is None or said.end_ns is None or said.time_limit_s is None:
        return False
    return said.end_ns - said.start_ns >= said.time_limit_s * 10**9


def _preempted(said: Scheduler) -> bool:
    ended = said.state in ("COMPLETING", *ENDED)
    return ended and said.preempted_ns is not None and said.state not in ("COMPLETED", "FAILED", "CANCELLED")


def _ended_from_outside(said: Scheduler) -> bool:
    """Whether Slurm is ending a job whose batch script still runs: for a limit or another job's sake it gives a reason.

    As measured with 22.05 without accounting: COMPLETING, no reason, exit code 0:0.
    """
    return said.state == "COMPLETING" and said.reason is None and (said.exit_code, said.signal) == (0, 0)


def _limit(said: Scheduler) -> str:
    if said.time_limit_s is None or not 0 <= said.time_limit_s < 10**9:
        return ""
    minutes, seconds = divmod(said.time_limit_s, 60)
    hours, minutes = divmod(minutes, 60)
    return f" of {hours}:{minutes:02d}:{seconds:02d}"


def scheduler_report(snapshot: Snapshot, attempt: str | None) -> Dict | None:
    """Return the report's ``scheduler``: what Slurm said of the newest attempt; None if nobody asked."""
    said = of_attempt(snapshot, attempt)
    if said is None:
        return None
    found = verdict(said)
    return {
        "attempt": said.attempt,
        "job_id": said.job_id,
        "asked_ns": said.asked_ns,
        "source": said.source,
        "problem": said.problem,
        "line": line(said),
        "state": said.state,
        "reason": said.reason,
        "exit_code": said.exit_code,
        "signal": said.signal,
        "restarts": said.restarts,
        "start_ns": said.start_ns,
        "end_ns": said.end_ns,
        "time_limit_s": said.time_limit_s,
        "failed_node": said.failed_node,
        "cancelled_by": said.cancelled_by,
        "nodes": dict(said.nodes),
        "verdict": found[0] if found else None,
        "text": found[1] if found else None,
    }


def job_failure(snapshot: Snapshot, attempt: str | None, last: Dict | None) -> Dict | None:
    """Describe as a cause what Slurm did to the job; the same keys as for a worker, but of no rank and no node.

    Args:
        snapshot: what is known.
        attempt: the newest one.
        last: the last round, during which it happened; None: there was none.
    """
    said = of_attempt(snapshot, attempt)
    found = verdict(said)
    if said is None or found is None or last is None:
        return None
    kind, words = found
    evidence = Evidence(kind=kind, message=words, scheduler=said.state or "")
    cause = classify(evidence, snapshot.causes)
    failure: Dict = dict.fromkeys(FAILURE_KEYS)
    return failure | {
        "round": last["round"],
        "nodes": [],
        "time_ns": said.end_ns if said.state in ENDED else None,
        "kind": kind,
        "core_dumped": False,
        "step": last["last_step"],
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": cause.advice,
        "restart": cause.restart,
        "what": words,
        "signature": kind,
        "same_as_rounds": [],
        "argv": [],
        "evidence": ["scheduler"],
        "evidence_lines": [line(said)],
        "uncertainty_s": None,
        "clock": None,
    }


def line(said: Scheduler) -> str:
    """Say in one line what Slurm said."""
    if said.problem is not None and said.state is None:
        return f"Slurm tells nothing: {brief(said.problem)}"
    parts = [f"job {safe(said.job_id or '?')} {safe(said.state or '?')}"]
    parts += [] if not said.reason else [f"reason {safe(said.reason)}"]
    parts += [] if said.exit_code is None else [f"exit code {said.exit_code}:{said.signal or 0}"]
    parts += [] if said.time_limit_s is None else [f"time limit{_limit(said).removeprefix(' of')}"]
    parts += [] if not said.restarts else [f"restarted {said.restarts} times"]
    states = [f"{name} {state}" for name, state in said.nodes]
    parts += [f"nodes {names(states)}"] if states else []
    return f"Slurm ({safe(said.source or 'scontrol')}): {', '.join(parts)}"


def explain_rounds(snapshot: Snapshot, rounds: Sequence[Dict]) -> None:
    """Give each attempt's last round what Slurm did to it (``scheduler``), and a lost node what Slurm says of it."""
    for i, entry in enumerate(rounds):
        entry["scheduler"] = None
        last = i + 1 == len(rounds) or rounds[i + 1]["attempt"] != entry["attempt"]
        said = of_attempt(snapshot, entry["attempt"]) if last else None
        if said is None:
            continue
        found = verdict(said)
        if found is not None and entry["outcome"] in ("stopped", "unknown", "running", "node-lost"):
            entry["scheduler"] = found[1]
        failure = entry["first_failure"]
        if failure is not None and failure["kind"] == "node-lost":
            told = [f"{name} is {state}" for name, state in said.nodes if name in failure["nodes"]]
            if said.state == "NODE_FAIL":
                told.insert(0, f"job {said.job_id}: NODE_FAIL{f', {said.failed_node}' if said.failed_node else ''}")
            if told:
                failure["evidence_lines"] = [*(failure["evidence_lines"] or []), f"Slurm: {safe('; '.join(told))}"]


def state_for_evidence(snapshot: Snapshot, number: int, attempt: str | None) -> str:
    """Return the scheduler's state that may explain how workers of a round ended; empty: none.

    Only the last round of an attempt was ended by it, and only a job that did not end by itself.
    """
    said = of_attempt(snapshot, attempt)
    if said is None or said.state is None or _of_a_later_start(said):
        return ""
    history = snapshot.state.history if snapshot.state else ()
    numbers = [h.round for h in history if h.attempt == attempt]
    numbers += [f.number for f in snapshot.rounds if any(n.attempt == attempt for n in f.nodes)]
    if not numbers or number != max(numbers):
        return ""
    closed = snapshot.state.closed if snapshot.state else None
    own_end = closed is not None and closed.outcome != "stopped"
    return said.state if said.state == OUT_OF_MEMORY or not own_end else ""
