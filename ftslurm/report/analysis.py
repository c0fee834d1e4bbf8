"""From a snapshot of a run directory to the report dictionary (pure)."""

from __future__ import annotations

from typing import Any

from ftslurm.report.accounting import account
from ftslurm.report.clocks import far_off
from ftslurm.report.defects import defects_report
from ftslurm.report.facts import Snapshot
from ftslurm.report.health import health_report, refused
from ftslurm.report.job_only import job_report
from ftslurm.report.missing import missing
from ftslurm.report.ranks import failed_ranks, rank_report
from ftslurm.report.repeats import repeats
from ftslurm.report.rounds import round_report
from ftslurm.report.scheduler import explain_rounds, job_failure, scheduler_report
from ftslurm.report.step import step_end, step_report
from ftslurm.report.wording import summary

SCHEMA = "ftslurm/report"
VERSION = 1
# Without a recorded end, a run whose node records changed within this time counts as running. Far more
# than a heartbeat interval, because a shared filesystem can stall for a minute without a fault.
ALIVE_S = 90.0
_DAY_NS = 86_400 * 10**9

Dict = dict[str, Any]


def analyse(
    snapshot: Snapshot, *, round_number: int | None = None, rank: int | None = None, every: bool = False
) -> Dict:
    """Analyse a snapshot.

    Args:
        snapshot: what `ftslurm.report.gathering.gather` read.
        round_number: the round to analyse; None lets the report choose (the one that the job failed in).
        rank: a rank to report in full, in that round (or the newest one).
        every: whether to report all ranks that failed there in full.

    Returns:
        The report, plain JSON types only. Keys are always present; unknown values are null. Times are
        nanoseconds since the epoch (``_ns``) by the clock of the node that wrote them, corrected where that clock
        is known to be far off; durations are seconds (``_s``). `docs/report-schema.md` explains each key.
    """
    state = snapshot.state
    closed = state.closed if state else None
    numbers = {h.round for h in state.history} if state else set()
    ordered = sorted(numbers | {files.number for files in snapshot.rounds})
    rounds = [round_report(snapshot, n, newest=n == ordered[-1]) for n in ordered]
    _link(rounds)
    alive = _alive(snapshot)
    status = closed.outcome if closed else _open_status(snapshot, alive)
    if snapshot.source != "ftslurm":
        status = _of_foreign(rounds)
    explain_rounds(snapshot, rounds)
    cause = _cause(status, rounds)
    started = next((r["started_ns"] for r in rounds if r["started_ns"] is not None), None)
    ended = closed.time_ns if closed else None
    last = ended if ended is not None else (alive["time_ns"] if alive else None)
    focus = _focus(cause, rounds, round_number)
    newest = snapshot.attempt
    attempt = newest.attempt if newest is not None else None
    if cause is None and status in ("stopped", "unfinished"):
        cause = job_failure(snapshot, attempt, rounds[-1] if rounds else None)
    if cause is None and status == "failed":
        cause = refused(snapshot, rounds)
    number = focus if focus is not None else (ordered[-1] if ordered else None)
    report: Dict = {
        "schema": SCHEMA,
        "version": VERSION,
        "made_ns": snapshot.now_ns,
        "summary": "",
        "source": snapshot.source,
        "status": status,
        "exit_code": closed.exit_code if closed else None,
        "reason": closed.reason if closed else None,
        "ended_ns": ended,
        "run": _run(snapshot),
        "started_ns": started,
        "duration_s": None if started is None or last is None else max(0, last - started) / 1e9,
        "last_step": max((r["last_step"] for r in rounds if r["last_step"] is not None), default=None),
        "max_restarts": state.max_restarts if state else None,
        "restarts_used": state.restarts_used if state else None,
        "alive": alive,
        "cause": cause,
        "focus": focus,
        "recovered": [r["round"] for r in rounds if r["recovered"]],
        "interrupted": [r["round"] for r in rounds if r["cost"] is not None and not r["recovered"]],
        "cost": _total(rounds),
        "accounting": account(snapshot, rounds),
        "rounds": rounds,
        "scheduler": scheduler_report(snapshot, attempt),
        "step": step_report(snapshot),
        "job": job_report(snapshot),
        "repeats": repeats(rounds),
        "health": health_report(snapshot, rounds, focus),
        "defects": defects_report(snapshot.defects),
        "clocks": list(far_off(snapshot.clocks)),
        "rank": rank_report(snapshot, number, rank) if rank is not None and number is not None else None,
        "failed": failed_ranks(snapshot, focus) if every and focus is not None else None,
        "missing": missing(snapshot) if status in ("failed", "unfinished") else [],
        "skipped_rounds": snapshot.skipped_rounds,
        "problems": [{"file": p.file, "reason": p.reason} for p in snapshot.problems],
    }
    report["summary"] = summary(report)
    return report


def _run(snapshot: Snapshot) -> Dict:
    run, state = snapshot.run, snapshot.state
    names = list(state.attempts) if state and state.attempts else [a.attempt for a in snapshot.attempts]
    folder = snapshot.directory.rstrip("/").rsplit("/", 1)[-1]
    newest = snapshot.attempt
    return {
        "id": (run.run_id if run else None) or (state.run_id if state else None) or folder,
        "directory": snapshot.directory,
        "user": run.user if run else None,
        "created_ns": run.created_ns if run else None,
        "ftslurm": run.ftslurm if run else None,
        "attempts": names,
        "command": list(newest.command) if newest else [],
    }


def _alive(snapshot: Snapshot) -> Dict | None:
    signs = [(w.time_ns, w.node) for w in snapshot.nodes]
    for files in snapshot.rounds[-1:]:
        signs += [(n.ended_ns if n.ended_ns is not None else n.started_ns, n.node) for n in files.nodes]
    # A clock may be minutes off; a time days ahead comes from a damaged file and proves no activity.
    known = [(t, node) for t, node in signs if t is not None and 0 < t < snapshot.now_ns + _DAY_NS]
    if not known:
        return None
    time_ns, node = max(known)
    return {"time_ns": time_ns, "age_s": max(0, snapshot.now_ns - time_ns) / 1e9, "node": node}


def _open_status(snapshot: Snapshot, alive: Dict | None) -> str:
    ended = step_end(snapshot) is not None
    ended = ended or (bool(snapshot.nodes) and all(w.status == "left" for w in snapshot.nodes))
    return "running" if alive is not None and alive["age_s"] <= ALIVE_S and not ended else "unfinished"


def _of_foreign(rounds: list[Dict]) -> str:
    """Reset the values that output alone cannot prove, and return the status."""
    for entry in rounds:
        if entry["outcome"] == "running":
            entry["outcome"] = "unknown"
    return "failed" if rounds and rounds[-1]["first_failure"] is not None else "unfinished"


def _cause(status: str, rounds: list[Dict]) -> Dict | None:
    if status in ("succeeded", "stopped") or not rounds:
        return None
    if status == "failed":
        failed = (r["first_failure"] for r in reversed(rounds) if r["first_failure"] is not None)
        found: Dict | None = next(failed, None)
        return found
    last: Dict | None = rounds[-1]["first_failure"]
    return last


def _focus(cause: Dict | None, rounds: list[Dict], wanted: int | None) -> int | None:
    if wanted is not None:
        return wanted if any(r["round"] == wanted for r in rounds) else None
    if cause is not None:
        number: int = cause["round"]
        return number
    return next((r["round"] for r in reversed(rounds) if r["first_failure"] is not None), None)


def _link(rounds: list[Dict]) -> None:
    """Fill in what follows from the neighbouring rounds: recovery, its cost, repeated failures."""
    earlier_rounds: dict[str, list[int]] = {}
    for i, this in enumerate(rounds):
        failure = this["first_failure"]
        if failure is not None:
            earlier = earlier_rounds.setdefault(failure["signature"], [])
            failure["same_as_rounds"] = earlier[-20:]
            earlier.append(this["round"])
        if i + 1 < len(rounds) and this["outcome"] != "succeeded":
            this["recovered"] = failure is not None
            this["cost"] = _cost(this, rounds[i + 1])


def _cost(this: Dict, after: Dict) -> Dict:
    failure = this["first_failure"] or {"time_ns": None, "step": None}
    failed_ns = failure["time_ns"] if failure["time_ns"] is not None else this["ended_ns"]
    next_ns = after["started_ns"]
    step = failure["step"] if failure["step"] is not None else this["last_step"]
    resumed = after["first_step"]
    known = failed_ns is not None and next_ns is not None
    return {
        "until_next_round_s": max(0, next_ns - failed_ns) / 1e9 if known else None,
        "steps_repeated": None if step is None or resumed is None else max(0, step - resumed),
        "requeued": this["attempt"] != after["attempt"],
    }


def _total(rounds: list[Dict]) -> Dict:
    costs = [r["cost"] for r in rounds if r["cost"] is not None]
    return {
        "rounds": len(costs),
        "between_rounds_s": sum(c["until_next_round_s"] or 0 for c in costs),
        "steps_repeated": sum(c["steps_repeated"] or 0 for c in costs),
    }
