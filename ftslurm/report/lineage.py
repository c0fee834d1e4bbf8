"""What followed from the end of each attempt of the run: whether the job started again (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.records.cause import PREEMPTED, TIME_LIMIT
from ftslurm.records.verdict import END, FAILED, REQUEUE, RESUBMITTED, AttemptVerdict, Requeued
from ftslurm.report.facts import Snapshot
from ftslurm.report.scheduler import ENDED, of_a_later_start, of_attempt
from ftslurm.slurm.environment import job_of
from ftslurm.text import one_line, safe

Dict = dict[str, Any]

UNDONE_NS = 1_200 * 10**9
"""After that time nobody carries out a verdict any more: ftsrun has at most KillWait, an agent in its place 900 s."""


def lineage_report(snapshot: Snapshot) -> list[Dict]:
    """Return the report's ``lineage``, in the order of the attempts."""
    verdicts = {verdict.attempt: verdict for verdict in snapshot.verdicts}
    outcomes = {requeued.attempt: requeued for requeued in snapshot.requeued}
    order = list(snapshot.state.attempts) if snapshot.state else sorted(verdicts)
    found = [_entry(verdicts[name], outcomes.get(name)) for name in order if name in verdicts]
    newest = verdicts.get(order[-1]) if order else None
    if newest is not None and newest.attempt not in outcomes and _is_undone(newest, snapshot):
        found[-1]["line"] = _undone(newest)
    return found


def _is_undone(verdict: AttemptVerdict, snapshot: Snapshot) -> bool:
    """Return whether the job was to start again, and ftsrun was killed before it had asked Slurm for that.

    Slurm signals the batch shell alone: a ftsrun that was started without exec ends with it. It would have recorded
    the end of the agents first, and the requeue before it requests it.
    """
    if verdict.action != REQUEUE or any(end.attempt == verdict.attempt for end in snapshot.steps):
        return False
    view = of_attempt(snapshot, verdict.attempt)
    if view is not None and of_a_later_start(view):
        return False
    return (view is not None and view.state in ENDED) or snapshot.now_ns - verdict.time_ns > UNDONE_NS


def _undone(verdict: AttemptVerdict) -> str:
    why = safe(verdict.text).removeprefix("requeued: ")
    job = job_of(verdict.attempt)
    again = f"; start it again: ftslurm restart {job}" if job is not None else ""
    how = " (start it with exec, or after trap : TERM)" if verdict.cause in (TIME_LIMIT, PREEMPTED) else ""
    return f"not requeued: {why}, but ftsrun was killed before it asked for that{how}{again}"


def _entry(verdict: AttemptVerdict, requeued: Requeued | None) -> Dict:
    return {
        "attempt": verdict.attempt,
        "time_ns": verdict.time_ns,
        "cause": verdict.cause,
        "action": verdict.action,
        "reached": verdict.reached,
        "gained": verdict.gained,
        "number": verdict.number,
        "budget": verdict.budget,
        "outcome": requeued.outcome if requeued else None,
        "job_id": requeued.job_id if requeued else None,
        "line": _line(verdict, requeued),
    }


def _line(verdict: AttemptVerdict, requeued: Requeued | None) -> str:
    """Return what followed, in one line; empty if that goes without saying."""
    text = safe(verdict.text)
    if requeued is None:
        return text
    if requeued.outcome == FAILED:
        return f"not requeued: {one_line(requeued.problem or 'Slurm refused')}"
    if requeued.outcome == RESUBMITTED:
        return f"submitted again as job {safe(requeued.job_id or '?')}: {text.removeprefix('requeued: ')}"
    return text


def exit_code(snapshot: Snapshot) -> int | None:
    """Return the exit code of the newest attempt; None while it is not known."""
    state = snapshot.state
    closed = state.closed if state else None
    if state is None or closed is None:
        return None
    found = next((one for one in snapshot.verdicts if one.attempt == state.attempt), None)
    return found.exit_code if found is not None and found.action == END and closed.exit_code else closed.exit_code


def requeue_line(report: Mapping[str, Any]) -> str:
    """Return what followed from the end of the newest attempt; empty for nothing to say."""
    entries: list[Dict] = report["lineage"]
    newest = report["run"]["attempts"][-1:]
    return entries[-1]["line"] if entries and [entries[-1]["attempt"]] == newest else ""
