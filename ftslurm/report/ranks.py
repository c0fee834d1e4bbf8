"""One rank of a round, or all its failed ranks, with all facts about each (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftslurm.report import root_cause
from ftslurm.report.evidence import LOG_LINE_LIMIT, LOG_LINES, worker_failure
from ftslurm.report.facts import LogTail, RoundFiles, RoundNode, Snapshot, Worker

STACKS_LIMIT = 64 * 1024
MESSAGE_LIMIT = 2000

Dict = dict[str, Any]


def rank_report(snapshot: Snapshot, number: int, rank: int) -> Dict | None:
    """Describe one rank in one round.

    Args:
        snapshot: read with ``rank=rank``, so that it contains the ends of its output.
        number: the round.
        rank: the rank.

    Returns:
        ``round``, ``rank``, ``node``, ``host``, ``local_rank``, ``pid``, ``started_ns``, ``ended_ns``, ``took_s``,
        ``end`` (as text), ``exit_code``, ``signal``, ``core_dumped``, ``stopped_by_ftslurm``, ``stop_signal``,
        ``stop_reason``; ``progress``: ``first_step``, ``first_ns``, ``last_step``, ``last_ns``, or null; ``message`` of
        its error record; ``failure``: as ``first_failure`` of `ftslurm.report.analysis`, if it failed by itself, else
        null; ``stacks``: text, ``problem`` why there are none, ``facts`` of /proc, or null; ``logs``: as ``log`` there.
        None if nothing is recorded about such a rank.
    """
    files = root_cause.round_files(snapshot, number)
    node, worker = next(((n, w) for n in files.nodes for w in n.workers if w.rank == rank), (None, None))
    error, hung = files.errors.get(rank), files.stacks.get(rank)
    failed = next((s for s in root_cause.failed_workers(snapshot, number) if s.rank == rank), None)
    tails = files.tails.get(rank, ())
    if worker is None and error is None and failed is None and hung is None and not tails:
        return None
    progress = worker.progress if worker else None
    started, ended = (worker.started_ns, worker.ended_ns) if worker else (None, None)
    known = [x for x in (worker, error, failed) if x is not None]
    return {
        "round": number,
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
        "progress": {
            "first_step": progress.first_step,
            "first_ns": progress.first_ns,
            "last_step": progress.last_step,
            "last_ns": progress.last_ns,
        }
        if progress
        else None,
        "message": error.message[:MESSAGE_LIMIT] if error else None,
        "failure": worker_failure(number, failed, tails, _cwd(snapshot, files)) if failed else None,
        "stacks": _stacks(files, rank, tails),
        "logs": [_log(tail) for tail in tails if tail.stream != "stacks"],
    }


def failed_ranks(snapshot: Snapshot, number: int) -> list[Dict]:
    """Describe in full all failed workers of a round that ftslurm did not stop, root cause first."""
    files = root_cause.round_files(snapshot, number)
    cwd = _cwd(snapshot, files)
    return [
        worker_failure(number, s, files.tails.get(s.rank, ()), cwd) for s in root_cause.failed_workers(snapshot, number)
    ]


def recorded_ranks(snapshot: Snapshot, number: int) -> list[int]:
    """Return the ranks of a round about which anything is recorded."""
    files = root_cause.round_files(snapshot, number)
    return sorted({w.rank for n in files.nodes for w in n.workers} | set(files.errors) | set(files.stacks))


def _cwd(snapshot: Snapshot, files: RoundFiles) -> str | None:
    entry = root_cause.history_of(snapshot, files.number)
    names = {n.attempt for n in files.nodes} | {entry.attempt if entry else None}
    return next((a.cwd for a in snapshot.attempts if a.attempt in names), None)


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


def _stacks(files: RoundFiles, rank: int, tails: Sequence[LogTail]) -> Dict | None:
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
    kept = [line[:LOG_LINE_LIMIT] for line in lines[-2 * LOG_LINES :]]
    cut = len(kept) < len(lines) or tail.size > len(tail.text.encode("utf-8", "replace"))
    return {"stream": tail.stream, "path": tail.path, "size": tail.size, "lines": kept, "cut": cut}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


__all__ = ["failed_ranks", "rank_report", "recorded_ranks"]
