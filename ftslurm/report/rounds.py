"""One round of the run as a dictionary: first failure, the other ranks in groups, times and steps (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ftslurm.rendezvous.state import UNREACHABLE
from ftslurm.report import health, root_cause
from ftslurm.report.clocks import Doubt
from ftslurm.report.evidence import short, signature, worker_failure
from ftslurm.report.facts import Failure, History, LostNode, RoundFiles, Snapshot, Worker
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.hang_records import hang_of, is_first, without_hung
from ftslurm.report.lost_nodes import WORLD_LIMIT, lost_failure, lost_first, silent_nodes
from ftslurm.report.unreachable import is_unreachable, unreachable_failure
from ftslurm.report.wording import ranges

SLOW_KEPT = 64
Dict = dict[str, Any]
Following = Mapping[str, Sequence[root_cause.Follower]]


def round_report(snapshot: Snapshot, number: int, *, newest: bool) -> Dict:
    """Describe one round; see `ftslurm.report.analysis` for the keys."""
    files = root_cause.round_files(snapshot, number)
    entry = root_cause.history_of(snapshot, number)
    found = root_cause.failed_workers(snapshot, number)
    following = root_cause.followers(snapshot, number)
    outcome = _outcome(snapshot, files, entry, found, newest=newest)
    first, others, where = _first(snapshot, files, entry, found, outcome)
    started, ended = _started_ns(files, entry), _ended_ns(files, entry, outcome)
    by_worker = first is not None and first["rank"] is not None and first["hang"] is None
    if first is not None:
        first |= _doubt(snapshot, number, first)
    return {
        "round": number,
        "attempt": _attempt_name(files, entry),
        "nodes": _node_names(files, entry),
        "world_size": _world_size(files, entry),
        "started_ns": started,
        "ended_ns": ended,
        "duration_s": None if started is None or ended is None else max(0, ended - started) / 1e9,
        "outcome": outcome,
        "reason": entry.reason if entry else None,
        **_steps(files),
        "first_failure": first,
        "same_time": _same_time(snapshot, number, found) if by_worker else [],
        "groups": _groups(snapshot, number, others, following),
        "whereabouts": where,
        "slow": _slow(files),
        **_rest(files, entry, {*(s.rank for s in found), *_ranks(following)}, first, outcome),
        "recovered": False,
        "cost": None,
    }


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


def _doubt(snapshot: Snapshot, number: int, failure: Dict) -> Dict:
    if failure["node"] is None or failure["time_ns"] is None:
        return {"uncertainty_s": None, "clock": None}
    return _uncertainty(snapshot.clocks.error_ns(number, failure["node"], failure["time_ns"]))


def _same_time(snapshot: Snapshot, number: int, found: list[FailedWorker]) -> list[Dict]:
    return [short(s) | _uncertainty(doubt) for s, doubt in root_cause.at_the_same_time(snapshot.clocks, number, found)]


def _uncertainty(doubt: Doubt) -> Dict:
    return {"uncertainty_s": doubt.ns / 1e9, "clock": "measured" if doubt.known else "assumed"}


def _first(
    snapshot: Snapshot, files: RoundFiles, entry: History | None, found: list[FailedWorker], outcome: str
) -> tuple[Dict | None, list[FailedWorker], Dict | None]:
    """Choose the first failure of the round; return it with the remaining failed workers and the ranks' locations."""
    hung = hang_of(snapshot, files.number)
    where = _whereabouts(files, entry) if files.stacks else None
    if outcome in ("stopped", "succeeded", "running"):
        return None, found, where
    if entry is not None and entry.failure is not None and is_unreachable(entry):
        others = [failed for failed in found if failed.kind != UNREACHABLE]
        return unreachable_failure(entry, entry.failure), others, where
    name = _attempt_name(files, entry)
    cwd = next((a.cwd for a in snapshot.attempts if a.attempt == name), None)
    if hung is not None:
        found = without_hung(hung, found)
    lost: Sequence[LostNode] | None = silent_nodes(snapshot, files, entry, hung) if hung is not None else None
    if hung is not None and not lost and is_first(hung, found):
        first = _hang(files, hung, cwd)
        return _with_proofs(snapshot, files.number, first), found, where
    lost = lost or lost_first(snapshot, files, entry, found)
    if lost is not None:
        first = lost_failure(snapshot, files, entry, lost, _steps(files)["last_step"])
        return _with_proofs(snapshot, files.number, first), found, where
    if not found:
        return None, [], where
    tails = files.tails.get(found[0].rank, ())
    return worker_failure(files.number, health.explained(snapshot, files, found[0]), tails, cwd), found[1:], where


def _with_proofs(snapshot: Snapshot, number: int, first: Dict) -> Dict:
    return first | {"evidence_lines": [*health.proofs(snapshot, number, first), *(first["evidence_lines"] or ())]}


def _whereabouts(files: RoundFiles, entry: History | None) -> Dict | None:
    from ftslurm.monitor.triage import triage
    from ftslurm.report.hang import whereabouts

    return whereabouts(files, triage(files.stacks.values()), _world_size(files, entry))


def _hang(files: RoundFiles, hung: Failure, cwd: str | None) -> Dict:
    from ftslurm.monitor.triage import triage
    from ftslurm.report.hang import hang_failure

    verdict = triage(files.stacks.values())
    suspect_ranks = [group.ranks[0] for group in verdict.suspects[:1]]
    tails = next((files.tails[rank] for rank in (*suspect_ranks, hung.rank) if rank in files.tails), ())
    return hang_failure(files, hung, verdict, tails, _steps(files)["last_step"], cwd)


def _ranks(following: Following) -> Iterable[int]:
    return (each.rank for group in following.values() for each in group)


def _groups(snapshot: Snapshot, number: int, others: Iterable[FailedWorker], following: Following) -> list[Dict]:
    members: dict[str, list[FailedWorker]] = {}
    for failed in others:
        members.setdefault(signature(failed), []).append(failed)
    groups = []
    for kind, known in members.items():
        group = [root_cause.as_follower(snapshot, number, failed) for failed in known]
        # The signature of a cascade is its cause's name, and its first ones are among the others.
        group += following.get(kind, ())
        groups.append(_group(known[0], sorted(group)))
    return groups


def _group(first: FailedWorker, group: list[root_cause.Follower]) -> Dict:
    nodes = list(dict.fromkeys(each.node for each in group))
    return {
        "cause": first.cause.name,
        "title": first.cause.title,
        "role": first.cause.role,
        "what": first.what,
        "ranks": ranges(each.rank for each in group),
        "count": len(group),
        "nodes": nodes[:8],
        "node_count": len(nodes),
        "first_ns": min((each.time_ns for each in group if each.time_ns is not None), default=None),
    }


def _rest(files: RoundFiles, entry: History | None, failed: set[int], first: Dict | None, outcome: str) -> Dict:
    """The ranks that did not fail: stopped by ftslurm, finished, and those without a recorded end."""
    if first is not None and first["hang"] is not None:
        # The hung rank was stopped as the others were, but is not one of them.
        failed.add(first["rank"])
    workers = [w for n in files.nodes for w in n.workers if w.rank not in failed]
    stopped = [w for w in workers if w.stopped_by_ftslurm]
    succeeded = (w for w in workers if not w.stopped_by_ftslurm and not w.failed)
    finished = [w.rank for w in succeeded if w.ended_ns is not None]
    accounted = failed | {w.rank for w in stopped} | set(finished)
    over = outcome not in ("running", "succeeded")
    unrecorded = [r for r in range(_world_size(files, entry) or 0) if r not in accounted] if over else []
    reported = {n.node for n in files.nodes if n.ended_ns is not None}
    names = [n for n in _node_names(files, entry) if n not in reported]
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


def _outcome(
    snapshot: Snapshot, files: RoundFiles, entry: History | None, found: list[FailedWorker], *, newest: bool
) -> str:
    """The recorded outcome; where none was recorded, the outcome according to all files."""
    if entry is not None and entry.outcome not in ("running", "unknown"):
        return entry.outcome
    closed = snapshot.state.closed if snapshot.state else None
    if newest and closed is not None and closed.outcome == "stopped":
        return "stopped"
    if found:
        return "failed"
    outcomes = {n.outcome for n in files.nodes}
    if outcomes == {"succeeded"} and _all_there(files, entry):
        return "succeeded"
    if newest and closed is None:
        return "stopped" if outcomes == {"stopped"} else "running"
    return closed.outcome if newest and closed is not None else "unknown"


def _all_there(files: RoundFiles, entry: History | None) -> bool:
    world = _world_size(files, entry)
    return world is None or world == len({w.rank for n in files.nodes for w in n.workers})


def _attempt_name(files: RoundFiles, entry: History | None) -> str | None:
    if entry is not None and entry.attempt:
        return entry.attempt
    return next((n.attempt for n in files.nodes if n.attempt), None)


def _node_names(files: RoundFiles, entry: History | None) -> list[str]:
    if entry is not None and entry.nodes:
        return list(entry.nodes)
    return [n.node for n in files.nodes]


def _world_size(files: RoundFiles, entry: History | None) -> int | None:
    sizes = [entry.world_size if entry else None] + [n.world_size for n in files.nodes]
    return next((s for s in sizes if s is not None and 0 < s <= WORLD_LIMIT), None)


def _started_ns(files: RoundFiles, entry: History | None) -> int | None:
    if entry is not None and entry.formed_ns is not None:
        return entry.formed_ns
    return min((n.started_ns for n in files.nodes if n.started_ns is not None), default=None)


def _ended_ns(files: RoundFiles, entry: History | None, outcome: str) -> int | None:
    if entry is not None and entry.ended_ns is not None:
        return entry.ended_ns
    if outcome == "running":
        return None
    return max((n.ended_ns for n in files.nodes if n.ended_ns is not None), default=None)


def _steps(files: RoundFiles) -> Dict:
    progress = [w.progress for n in files.nodes for w in n.workers if w.progress is not None]
    return {
        "first_step": min((p.first_step for p in progress), default=None),
        "last_step": max((p.last_step for p in progress), default=None),
    }
