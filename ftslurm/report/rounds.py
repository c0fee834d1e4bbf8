"""Parts of the report dictionary: a round by its verdict, one rank or all failed ranks of it, defects (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ftslurm.records.round import Progress
from ftslurm.report.facts import UNNAMED, Clocks, DefectRecord, Doubt, LogTail, RoundFiles, RoundNode, Worker
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import (
    LOG_LINE_LIMIT,
    LOG_LINES,
    as_rewritten,
    signature,
    uncertainty,
    worker_failure,
)
from ftslurm.report.root_cause import Follower, as_follower
from ftslurm.report.round_verdict import RoundVerdict
from ftslurm.text import ranges

SLOW_KEPT = 64
NODES_KEPT = 8
STACKS_LIMIT = 64 * 1024
MESSAGE_LIMIT = 2000

Dict = dict[str, Any]


def round_report(this: RoundVerdict, clocks: Clocks, accounting: Dict | None) -> Dict:
    """Return the report's entry of a round; see `docs/report-schema.md` for the keys."""
    cost, started, ended = this.cost, this.started_ns, this.ended_ns
    return {
        "round": this.number,
        "attempt": this.attempt,
        "nodes": list(this.nodes),
        "world_size": this.world_size,
        "started_ns": started,
        "ended_ns": ended,
        "duration_s": None if started is None or ended is None else max(0, ended - started) / 1e9,
        "outcome": this.outcome,
        "reason": this.reason,
        "first_step": this.first_step,
        "last_step": this.last_step,
        "optimizer_steps": None
        if this.optimizer_steps is None
        else {"first": this.optimizer_steps[0], "last": this.optimizer_steps[1]},
        "first_failure": this.first.as_first() if this.first is not None else None,
        "same_time": [_brief(failed, doubt) for failed, doubt in this.same_time],
        "groups": _groups(this, clocks),
        "whereabouts": _whereabouts(this),
        "collectives": _collectives(this),
        "standstill": _standstill(this),
        "slow": _slow(this.files),
        "late": _late(this.files),
        **_rest(this),
        "recovered": this.recovered,
        "cost": None
        if cost is None
        else {
            "until_next_round_s": cost.until_next_round_s,
            "steps_repeated": cost.steps_repeated,
            "requeued": cost.requeued,
        },
        "scheduler": this.scheduler,
        "accounting": accounting,
    }


def _brief(worker: FailedWorker, doubt: Doubt) -> Dict:
    return {
        "rank": worker.rank,
        "node": worker.node,
        "nodes": [worker.node],
        "time_ns": worker.time_ns,
        "cause": worker.cause.name,
        "title": worker.cause.title,
        "what": worker.what,
        "core_dumped": worker.core_dumped,
        **uncertainty(doubt),
    }


def _whereabouts(this: RoundVerdict) -> Dict | None:
    if this.triage is None:
        return None
    from ftslurm.report.hang import whereabouts

    return whereabouts(this.files, this.triage, this.world_size)


def _collectives(this: RoundVerdict) -> Dict | None:
    if this.collectives is None:
        return None
    from ftslurm.report.collectives import as_dict

    return as_dict(this.collectives, this.files, used=this.by_collectives)


def _standstill(this: RoundVerdict) -> Dict | None:
    found = this.standstill
    if found is None:
        return None
    from ftslurm.report.standstill import ADVICE

    return {"seconds_s": found.seconds, "moving": ranges(found.moving), "text": found.text, "advice": ADVICE}


def _slow(files: RoundFiles) -> list[Dict]:
    located = {worker.rank: (node.node, worker.pace) for node in files.nodes for worker in node.workers if worker.pace}
    if not located:
        return []
    from ftslurm.monitor.step_times import Histogram, slow_ranks

    found = slow_ranks({rank: Histogram.from_pairs(pace) for rank, (_, pace) in located.items()})
    return [
        {"rank": each.rank, "node": located[each.rank][0], "median_s": each.median_s, "others_s": each.others_s}
        for each in found[:SLOW_KEPT]
    ]


def _late(files: RoundFiles) -> list[Dict]:
    if not files.arrivals:
        return []
    from ftslurm.monitor.lateness import as_dicts, lateness

    nodes = {each.rank: record.node for record in files.arrivals for each in record.ranks}
    findings = {
        one.node: [each.line() for each in one.health.findings] for one in files.nodes if one.health is not None
    }
    found = lateness(each for record in files.arrivals for each in record.ranks)
    return as_dicts(found, nodes, findings)[:SLOW_KEPT]


def _groups(this: RoundVerdict, clocks: Clocks) -> list[Dict]:
    members: dict[str, list[FailedWorker]] = {}
    for failed in this.others:
        members.setdefault(signature(failed), []).append(failed)
    groups = []
    for kind, known in members.items():
        group = [as_follower(clocks, this.number, failed) for failed in known]
        # The signature of a cascade is its cause's name, and its first ones are among the others.
        group += this.following.get(kind, ())
        groups.append(_group(known[0], sorted(group)))
    return groups


def _group(first: FailedWorker, group: list[Follower]) -> Dict:
    nodes = list(dict.fromkeys(each.node for each in group if each.node != UNNAMED))
    return {
        "cause": first.cause.name,
        "title": first.cause.title,
        "role": first.cause.role,
        "what": first.what,
        "ranks": ranges(each.rank for each in group if each.rank >= 0) or UNNAMED,
        "count": len(group),
        "nodes": nodes[:8],
        "node_count": len(nodes),
        "first_ns": min((each.time_ns for each in group if each.time_ns is not None), default=None),
    }


def _rest(this: RoundVerdict) -> Dict:
    """The ranks that did not fail: stopped by ftslurm, finished, and those without a recorded end."""
    files, failed, first = this.files, this.failed_ranks, this.first
    if first is not None and first.hang is not None and first.rank is not None:
        # The hung rank was stopped as the others were, but is not one of them.
        failed.add(first.rank)
    workers = [w for n in files.nodes for w in n.workers if w.rank not in failed]
    stopped = [w for w in workers if w.stopped_by_ftslurm]
    succeeded = (w for w in workers if not w.stopped_by_ftslurm and not w.failed)
    finished = [w.rank for w in succeeded if w.ended_ns is not None]
    accounted = failed | {w.rank for w in stopped} | set(finished)
    unrecorded = [r for r in range(this.world_size or 0) if r not in accounted] if this.over else []
    reported = {n.node for n in files.nodes if n.ended_ns is not None}
    names = [n for n in this.nodes if n not in reported]
    return {
        "stopped": _stopped(files, stopped) if stopped else None,
        "finished": {"ranks": ranges(finished), "count": len(finished)} if finished else None,
        "silent": {"ranks": ranges(unrecorded), "count": len(unrecorded), "nodes": names} if unrecorded else None,
    }


def _stopped(files: RoundFiles, stopped: list[Worker]) -> Dict:
    reasons = Counter(n.stop_reason for n in files.nodes if n.stop_reason)
    killed = [w.rank for w in stopped if w.stop_signal == "SIGKILL"]
    return {
        "ranks": ranges(w.rank for w in stopped),
        "count": len(stopped),
        "reason": reasons.most_common(1)[0][0] if reasons else None,
        "killed_ranks": ranges(killed),
        "killed": len(killed),
    }


def rank_report(this: RoundVerdict, rank: int) -> Dict | None:
    """Describe one rank in one round.

    Args:
        this: the round, read with ``rank=rank``, so that it contains the ends of its output.
        rank: the rank.

    Returns:
        ``round``, ``rank``, ``node``, ``host``, ``local_rank``, ``pid``, ``started_ns``, ``ended_ns``, ``took_s``,
        ``end`` (as text), ``exit_code``, ``signal``, ``core_dumped``, ``stopped_by_ftslurm``, ``stop_signal``,
        ``stop_reason``; ``progress``: ``first_step``, ``first_ns``, ``last_step``, ``last_ns``, or null;
        ``optimizer_steps``: the same of its optimizer, where it reported none; ``message`` of its error record;
        ``failure``: as ``first_failure`` of `ftslurm.report.analysis`, if it failed by itself, else null; ``stacks``:
        text, ``problem`` why there are none, ``facts`` of /proc, or null; ``logs``: as ``log`` there. None if nothing
        is recorded about such a rank.
    """
    files = this.files
    node, worker = next(((n, w) for n in files.nodes for w in n.workers if w.rank == rank), (None, None))
    summary = worker.error if worker is not None else None
    error, hung = files.errors.get(rank), files.stacks.get(rank)
    failed = next((s for s in this.failed if s.rank == rank), None)
    tails = files.tails.get(rank, ())
    if worker is None and error is None and failed is None and hung is None and not tails:
        return None
    progress = worker.progress if worker else None
    started, ended = (worker.started_ns, worker.ended_ns) if worker else (None, None)
    known = [x for x in (worker, error, failed) if x is not None]
    return {
        "round": this.number,
        "rank": rank,
        "node": _first(node and node.node, error and error.node, failed and failed.node, hung and hung.node),
        "host": _first(node and node.host, error and error.host),
        "local_rank": _first(*(x.local_rank for x in known)),
        "pid": _first(worker and worker.pid, error and error.pid),
        "started_ns": started,
        "ended_ns": ended,
        "took_s": None if started is None or ended is None else max(0, ended - started) / 1e9,
        "end": _end(node, worker, failed=failed is not None),
        "exit_code": _first(*(x.exit_code for x in known)),
        "signal": _first(*(x.signal for x in known)),
        "core_dumped": worker is not None and worker.core_dumped,
        "stopped_by_ftslurm": worker is not None and worker.stopped_by_ftslurm,
        "stop_signal": worker.stop_signal if worker else None,
        "stop_reason": node.stop_reason if node and worker and worker.stopped_by_ftslurm else None,
        "progress": _steps(progress),
        "optimizer_steps": _steps(worker.optimizer_steps if worker else None),
        "message": error.message[:MESSAGE_LIMIT] if error else summary.message if summary else None,
        "failure": worker_failure(this.number, failed, tails, this.cwd).as_dict() if failed else None,
        "stacks": _rank_stacks(files, rank, tails),
        "logs": [_log(tail) for tail in tails if tail.stream != "stacks"],
    }


def _steps(progress: Progress | None) -> Dict | None:
    if progress is None:
        return None
    return {
        "first_step": progress.first_step,
        "first_ns": progress.first_ns,
        "last_step": progress.last_step,
        "last_ns": progress.last_ns,
    }


def failed_ranks(this: RoundVerdict) -> list[Dict]:
    """Describe in full all failed workers of a round that ftslurm did not stop, root cause first."""
    tails = this.files.tails
    return [worker_failure(this.number, s, tails.get(s.rank, ()), this.cwd).as_dict() for s in this.failed]


def _end(node: RoundNode | None, worker: Worker | None, *, failed: bool) -> str:
    if worker is None:
        return "its agent recorded nothing about it"
    if worker.ended_ns is None:
        over = node is None or node.ended_ns is not None
        return "no end is recorded" if over else "no end is recorded yet"
    if worker.stopped_by_ftslurm and not failed:
        return f"stopped by ftslurm with {worker.stop_signal or 'a signal'}"
    if worker.signal is not None:
        return f"ended by {worker.signal}{', core dumped' if worker.core_dumped else ''}"
    return "how it ended is not recorded" if worker.exit_code is None else f"exit code {worker.exit_code}"


def _rank_stacks(files: RoundFiles, rank: int, tails: Sequence[LogTail]) -> Dict | None:
    hung = files.stacks.get(rank)
    if hung is not None:
        stacks = hung.stacks
        text = stacks.text + (f"\n\nnative frames (py-spy):\n{stacks.native}" if stacks.native else "")
        return {"text": text[:STACKS_LIMIT], "problem": stacks.problem, "facts": dict(stacks.facts)}
    error = files.errors.get(rank)
    text = (error.stacks if error else None) or next((t.text for t in tails if t.stream == "stacks"), None) or ""
    return {"text": text[:STACKS_LIMIT], "problem": None, "facts": {}} if text else None


def _log(tail: LogTail) -> Dict:
    lines = tail.text.rstrip().split("\n")
    kept = [as_rewritten(line)[:LOG_LINE_LIMIT] for line in lines[-2 * LOG_LINES :]]
    cut = len(kept) < len(lines) or tail.size > len(tail.text.encode("utf-8", "replace"))
    return {"stream": tail.stream, "path": tail.path, "size": tail.size, "lines": kept, "cut": cut}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def defects_report(defects: Mapping[str, DefectRecord]) -> list[dict[str, Any]]:
    """Return the report's entries: the same defect on several nodes is one; those that ended agents come first.

    ``defects``: by file.
    """
    groups: dict[tuple[str | None, str, str | None], list[tuple[str, DefectRecord]]] = {}
    ordered = sorted(defects.items(), key=lambda one: (one[1].part is not None, one[1].time_ns or 0, one[1].node))
    for file, each in ordered:
        groups.setdefault((each.part, each.error, each.place), []).append((file, each))
    return [_defect(same) for same in groups.values()]


def _defect(same: Sequence[tuple[str, DefectRecord]]) -> dict[str, Any]:
    (file, first), nodes = same[0], sorted({each.node for _, each in same})
    return {
        "part": first.part,
        "meaning": first.meaning,
        "error": first.error,
        "place": first.place,
        "nodes": nodes[:NODES_KEPT],
        "node_count": len(nodes),
        "round": first.round,
        "time_ns": first.time_ns,
        "file": file,
    }
