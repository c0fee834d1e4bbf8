"""From a snapshot of a run directory to the report dictionary (pure).

Repeated failures are compared over all rounds. A node is suspected by the rule that excludes it
(`ftslurm.rendezvous.exclusion`). Users inspect a rank's data because of these hints, so they must not be chance: a
rank, or a node that was lost repeatedly, is named only if its number of failures is unlikely, and never for a failure
that several nodes had at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from math import comb
from typing import Any, TypeAlias

from ftslurm.rendezvous.exclusion import blamed_failures, failed_repeatedly, repeat_offenders
from ftslurm.report.accounting import account
from ftslurm.report.facts import Snapshot, aligned, far_off
from ftslurm.report.first_failure import FirstFailure
from ftslurm.report.health import Attempted, health_report, refused
from ftslurm.report.lineage import exit_code, lineage_report
from ftslurm.report.lost_nodes import missing
from ftslurm.report.round_verdict import RoundVerdict
from ftslurm.report.rounds import defects_report, failed_ranks, rank_report, round_report
from ftslurm.report.scheduler import (
    SCHEDULER,
    job_failure,
    job_report,
    of_attempt,
    scheduler_report,
    step_end,
    step_report,
)
from ftslurm.report.scheduler import verdict as scheduler_verdict
from ftslurm.report.stopped import stop_report
from ftslurm.report.swallowed import swallowed
from ftslurm.report.verdict import judge_rounds
from ftslurm.report.wording import brief, summary
from ftslurm.text import clip, names, plural, ranges, safe

SCHEMA = "ftslurm/report"
VERSION = 1
# Without a recorded end, a run whose node records changed within this time counts as running. Far more
# than a heartbeat interval, because a shared filesystem can stall for a minute without a fault.
ALIVE_S = 90.0
_DAY_NS = 86_400 * 10**9
CHANCE = 0.25
"""No hint if the failures of a rank, or the losses of a node, are chance with more than this probability."""
REPEATED = 2
"""Number of first failures by which a node is suspected where the options do not require more."""
SHOWN_RANKS = 24

Dict = dict[str, Any]
Failed: TypeAlias = "tuple[RoundVerdict, FirstFailure]"


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
    snapshot, clocks = aligned(snapshot)
    rounds = judge_rounds(snapshot, clocks)
    state, newest = snapshot.state, snapshot.attempt
    closed = state.closed if state else None
    alive = _alive(snapshot)
    status = _status(snapshot, rounds, alive)
    cause = _cause(rounds if snapshot.source == "ftslurm" else rounds[-1:], status)
    focus = _focus(cause, rounds, round_number)
    cause = cause or _without_round(snapshot, rounds, status)
    chosen = next((this for this in rounds if this.number == focus), None)
    asked = chosen or (rounds[-1] if rounds else None)
    started = next((this.started_ns for this in rounds if this.started_ns is not None), None)
    ended = closed.time_ns if closed else None
    last = ended if ended is not None else (alive["time_ns"] if alive else None)
    spent, sums = account(snapshot, rounds)
    report: Dict = {
        "schema": SCHEMA,
        "version": VERSION,
        "made_ns": snapshot.now_ns,
        "summary": "",
        "source": snapshot.source,
        "status": status,
        "exit_code": exit_code(snapshot),
        "reason": closed.reason if closed else None,
        "ended_ns": ended,
        "run": _run(snapshot),
        "started_ns": started,
        "duration_s": None if started is None or last is None else max(0, last - started) / 1e9,
        "last_step": max((this.last_step for this in rounds if this.last_step is not None), default=None),
        "last_optimizer_step": _last_made(rounds),
        "max_restarts": state.max_restarts if state else None,
        "restarts_used": state.restarts_used if state else None,
        "alive": alive,
        "cause": None if cause is None else cause.as_first(),
        "focus": focus,
        "recovered": [this.number for this in rounds if this.recovered],
        "interrupted": [this.number for this in rounds if this.cost is not None and not this.recovered],
        "cost": _total(rounds),
        "accounting": sums,
        "rounds": [round_report(this, clocks, entry) for this, entry in zip(rounds, spent, strict=True)],
        "scheduler": scheduler_report(snapshot, newest.attempt if newest is not None else None),
        "step": step_report(snapshot),
        "stop": stop_report(state),
        "lineage": lineage_report(snapshot),
        "bad_checkpoints": list(state.avoid) if state else [],
        "job": job_report(snapshot),
        "repeats": repeats(rounds, snapshot),
        "health": health_report(snapshot, clocks, _newest_attempt(rounds), chosen.first if chosen else None),
        "defects": defects_report(snapshot.defects),
        "clocks": list(far_off(clocks)),
        "rank": rank_report(asked, rank) if rank is not None and asked is not None else None,
        "failed": failed_ranks(chosen) if every and chosen is not None else None,
        "missing": missing(snapshot) if status in ("failed", "unfinished") else [],
        "skipped_rounds": snapshot.skipped_rounds,
        "notes": [*snapshot.notes, *_swallowed(snapshot, status, rounds)],
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


def _swallowed(snapshot: Snapshot, status: str, rounds: Sequence[RoundVerdict]) -> list[str]:
    newest = snapshot.attempt
    # The exit code of a Python script is its own; a shell script's may be another program's.
    program = newest.command[:2] if newest is not None else ()
    script = "-m" in program or any(word.endswith(".py") for word in program)
    text = swallowed(rounds[-1].files) if status == "succeeded" and rounds and not script else ""
    return [text] if text else []


def _alive(snapshot: Snapshot) -> Dict | None:
    signs: list[tuple[int | None, str]] = [(w.time_ns, w.node) for w in snapshot.nodes]
    for files in snapshot.rounds[-1:]:
        signs += [(n.ended_ns if n.ended_ns is not None else n.started_ns, n.node) for n in files.nodes]
    # A clock may be minutes off; a time days ahead comes from a damaged file and proves no activity.
    known = [(t, node) for t, node in signs if t is not None and 0 < t < snapshot.now_ns + _DAY_NS]
    if not known:
        return None
    time_ns, node = max(known)
    return {"time_ns": time_ns, "age_s": max(0, snapshot.now_ns - time_ns) / 1e9, "node": node}


def _status(snapshot: Snapshot, rounds: Sequence[RoundVerdict], alive: Dict | None) -> str:
    if snapshot.source != "ftslurm":
        return _status_by_logs(snapshot, rounds)
    if snapshot.state is not None and snapshot.state.closed is not None:
        return snapshot.state.closed.outcome
    ended = step_end(snapshot) is not None
    ended = ended or (bool(snapshot.nodes) and all(w.status == "left" for w in snapshot.nodes))
    return "running" if alive is not None and alive["age_s"] <= ALIVE_S and not ended else "unfinished"


def _status_by_logs(snapshot: Snapshot, rounds: Sequence[RoundVerdict]) -> str:
    """The last attempt counts; without a failure of a rank, Slurm's action."""
    if rounds and rounds[-1].first is not None:
        return "failed"
    view = of_attempt(snapshot, rounds[-1].attempt) if rounds else None
    ended = scheduler_verdict(view)
    if ended is None:
        return "failed" if view is not None and view.state in ("FAILED", "OUT_OF_MEMORY") else "unfinished"
    return "failed" if ended[0] == SCHEDULER else "stopped"


def _cause(rounds: Sequence[RoundVerdict], status: str) -> FirstFailure | None:
    """Return the failure that ended the job; of a job without a recorded end, that of the newest round."""
    if status in ("succeeded", "stopped") or not rounds:
        return None
    if status == "failed":
        return next((this.first for this in reversed(rounds) if this.first is not None), None)
    return rounds[-1].first


def _without_round(snapshot: Snapshot, rounds: Sequence[RoundVerdict], status: str) -> FirstFailure | None:
    """Return what ended the job if no failure in a round did: Slurm, or the health checks of its nodes."""
    last, newest = rounds[-1] if rounds else None, snapshot.attempt
    if last is not None and (status in ("stopped", "unfinished") or snapshot.source != "ftslurm"):
        return job_failure(snapshot, newest.attempt if newest else None, last.number, last.last_step)
    return refused(snapshot, last.number if last is not None else 0) if status == "failed" else None


def _focus(cause: FirstFailure | None, rounds: Sequence[RoundVerdict], wanted: int | None) -> int | None:
    if wanted is not None:
        return wanted if any(this.number == wanted for this in rounds) else None
    if cause is not None:
        return cause.round
    return next((this.number for this in reversed(rounds) if this.first is not None), None)


def _newest_attempt(rounds: Sequence[RoundVerdict]) -> Attempted:
    name = rounds[-1].attempt if rounds else None
    return name, [(this.number, this.nodes) for this in rounds if this.attempt == name]


def _last_made(rounds: Sequence[RoundVerdict]) -> int | None:
    made = [this.optimizer_steps for this in rounds if this.optimizer_steps is not None]
    # Not the highest: the count may begin anew with each round.
    return made[-1][1] if made and all(this.last_step is None for this in rounds) else None


def _total(rounds: Sequence[RoundVerdict]) -> Dict:
    costs = [this.cost for this in rounds if this.cost is not None]
    return {
        "rounds": len(costs),
        "between_rounds_s": sum(c.until_next_round_s or 0 for c in costs),
        "steps_repeated": sum(c.steps_repeated or 0 for c in costs),
    }


def repeats(rounds: Sequence[RoundVerdict], snapshot: Snapshot) -> list[Dict]:
    """Return the repeated failures over the rounds (of all attempts), the strongest hint first.

    Args:
        rounds: the verdicts.
        snapshot: the run directory, for the history and the options.

    Returns:
        Dictionaries: ``kind``: "node" (it fails there), "rank" (it fails wherever it runs), "place" (one rank on one
        node, either of which may be the cause), "signature" (the same failure, wherever); ``rounds``: the
        numbers; ``of``: number of rounds that could have failed so; ``attempts``: in how many; ``rank``, ``node``: if
        part of the hint, else null; ``ranks``, ``nodes``, ``signature``; ``text``.
    """
    over = [this for this in rounds if this.outcome != "running"]
    failed = [(this, this.first) for this in over if this.first is not None]
    local = [(this, first) for this, first in failed if _of_one_place(this, first)]
    found = [_offender_repeats(node, group, over) for node, group in _offenders(snapshot, failed, local).items()]
    found += _by_location(over, local, {each["node"] for each in found})
    found.sort(key=lambda each: -len(each["rounds"]))
    by_signature: dict[str, list[Failed]] = defaultdict(list)
    for this, first in failed:
        by_signature[first.signature].append((this, first))
    for signature, group in by_signature.items():
        if len(group) > 1:
            found.append(_same(signature, group, len(over)))
    return found


def _of_one_place(this: RoundVerdict, first: FirstFailure) -> bool:
    """Whether one rank's or node's own failure ended the round, so that its location may matter."""
    if first.cause.cascade or not first.cause.retryable or first.hang is not None:
        return False
    if first.node is None or len(first.nodes) > 1:
        return False
    # Others with the same failure, or at the same time: all ranks have it, or the first one is unknown.
    shared = any(other.cause.name == first.cause.name for other in this.others)
    return not shared and not this.same_time


def _offenders(
    snapshot: Snapshot, failed: Sequence[Failed], local: Sequence[Failed]
) -> dict[str, list[tuple[RoundVerdict, int]]]:
    """Return the repeat offenders, each with the rounds and the ranks of its failures.

    By the recorded failures, as the run judged them; those of a run without a state by their causes. Also where
    exclusion is off, or is done after one failure: then by the default number.
    """
    after = max(REPEATED, snapshot.attempt.exclude_after if snapshot.attempt is not None else 0)
    by_round = {this.number: this for this, _ in failed}
    if snapshot.state is not None:
        history = snapshot.state.history
        nodes = set(failed_repeatedly(history, after))
        places = [(by_round.get(each.round), each.rank, each.node) for each in blamed_failures(history)]
    else:
        blamed = [(this, first) for this, first in local if first.cause.blame is not None]
        places = [(this, first.rank, first.node) for this, first in blamed if first.rank is not None and first.node]
        nodes = repeat_offenders([(rank, node) for _, rank, node in places], after)
    found: dict[str, list[tuple[RoundVerdict, int]]] = {}
    for this, rank, node in places:
        if node in nodes and this is not None:
            found.setdefault(node, []).append((this, rank))
    return found


def _by_location(over: Sequence[RoundVerdict], failed: Sequence[Failed], suspects: Collection[str]) -> list[Dict]:
    by_node: dict[str, list[Failed]] = defaultdict(list)
    by_rank: dict[int, list[Failed]] = defaultdict(list)
    for this, first in failed:
        if first.rank is not None:
            by_rank[first.rank].append((this, first))
        elif first.node is not None:
            by_node[first.node].append((this, first))
    found = []
    for node, group in by_node.items():
        there = [this for this in over if node in this.nodes]
        # With one node there is no alternative.
        places = min(len(this.nodes) for this, _ in group)
        if _unlikely(len(group), len(failed), places):
            times = f"in {len(group)} of {plural(len(there), 'round')}{_over_attempts(group)}"
            found.append(
                _repeat("node", group, len(there), f"{safe(node)} was lost {times}: suspect the node", node=node)
            )
    for rank, group in by_rank.items():
        nodes = list(dict.fromkeys(first.node or "?" for _, first in group))
        places = min(this.world_size or 1 for this, _ in group)
        if _unlikely(len(group), len(failed), places) and (len(nodes) > 1 or nodes[0] not in suspects):
            with_rank = [this for this in over if (this.world_size or 0) > rank]
            found.append(_rank_repeats(rank, nodes, group, len(with_rank)))
    return found


def _unlikely(hits: int, failures: int, places: int) -> bool:
    """Whether `hits` of `failures` at one of `places` is hardly chance (by an upper bound of its probability)."""
    if hits < 2 or places < 2:
        return False
    return comb(failures, hits) * float(places) ** (1 - hits) <= CHANCE


def _offender_repeats(node: str, group: Sequence[tuple[RoundVerdict, int]], over: Sequence[RoundVerdict]) -> Dict:
    of = sum(node in this.nodes for this in over)
    ranks = sorted({rank for _, rank in group})
    failed = [(this, this.first) for this, _ in group if this.first is not None]
    times = f"in {len(group)} of {plural(of, 'round')}{_over_attempts(failed)}"
    if len(ranks) == 1:
        suspect = "its data or the code" if _in_python(failed) else "the node, or what only this rank does"
        text = f"rank {ranks[0]} on {safe(node)} failed {times}: suspect {suspect}"
        return _repeat("place", failed, of, text, node=node, rank=ranks[0])
    which = f"ranks {clip(ranges(ranks), SHOWN_RANKS)} on {safe(node)}"
    alone = all(len(this.nodes) == 1 for this, _ in group)
    suspect = "suspect the program, or the node, the only one" if alone else "suspect the node"
    return _repeat("node", failed, of, f"{which} failed first {times}: {suspect}", node=node)


def _rank_repeats(rank: int, nodes: list[str], group: Sequence[Failed], of: int) -> Dict:
    times = f"{len(group)} of {plural(of, 'round')}{_over_attempts(group)}"
    if len(nodes) == 1:
        suspect = "its data or the code" if _in_python(group) else "what only this rank does"
        text = f"rank {rank} on {safe(nodes[0])} failed in {times}: suspect {suspect}"
        return _repeat("place", group, of, text, node=nodes[0], rank=rank)
    where = f"on {names(nodes)}" if len(nodes) <= 3 else f"on {len(nodes)} nodes"
    text = f"rank {rank} fails wherever it runs ({where}, in {times}): suspect its data or the code"
    return _repeat("rank", group, of, text, rank=rank)


def _in_python(group: Sequence[Failed]) -> bool:
    """Whether all failures are the same exception of the script, which names no device: code and data come first."""
    failures = [first for _, first in group]
    same = len({first.signature for first in failures}) == 1
    return same and all(first.kind == "exception" and first.cause.blame is None for first in failures)


def _same(signature: str, group: Sequence[Failed], of: int) -> Dict:
    last = group[-1][1]
    numbers = clip(ranges(this.number for this, _ in group), SHOWN_RANKS)
    what = clip(brief(last.what) or last.cause.title, 60)
    text = f"the same failure in rounds {numbers}{_over_attempts(group)}: {what}"
    return _repeat("signature", group, of, text) | {"signature": signature}


def _over_attempts(group: Sequence[Failed]) -> str:
    attempts = len({this.attempt for this, _ in group})
    return f", over {attempts} attempts" if attempts > 1 else ""


def _repeat(
    kind: str, group: Sequence[Failed], of: int, text: str, *, node: str | None = None, rank: int | None = None
) -> Dict:
    failures = [first for _, first in group]
    signatures = {first.signature for first in failures}
    return {
        "kind": kind,
        "rounds": [this.number for this, _ in group],
        "of": of,
        "attempts": len({this.attempt for this, _ in group}),
        "rank": rank,
        "node": node,
        "ranks": ranges(f.rank for f in failures if f.rank is not None),
        "nodes": list(dict.fromkeys(f.node for f in failures if f.node is not None))[:8],
        "signature": signatures.pop() if len(signatures) == 1 else None,
        "text": text,
    }
