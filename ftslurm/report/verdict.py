"""The verdict on each round, reached once: its outcome, its first failure, and the consequences (pure).

All parts of the report, and all its formats, are made of these verdicts; nothing else judges a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftslurm.dataclasses import replace
from ftslurm.records.state import UNREACHABLE
from ftslurm.report import collective_timeouts, consequence, health, root_cause, scheduler
from ftslurm.report.advice import advice_on
from ftslurm.report.alike import ALL, alike, is_same
from ftslurm.report.awaited import absent_ranks, awaited_rank, by_records, deciding, triage_of
from ftslurm.report.facts import Clocks, History, RoundFiles, Snapshot
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import (
    MISSING,
    TOO_FEW,
    FirstFailure,
    worker_failure,
)
from ftslurm.report.judged_worker import judge
from ftslurm.report.lost_nodes import (
    is_unreachable,
    lost_failure,
    lost_first,
    overshadowing,
    silent_nodes,
    unreachable_failure,
)
from ftslurm.report.named_ranks import named_first, odd_model
from ftslurm.report.printed_last import last_output, output_end
from ftslurm.report.remarks import UNKNOWN_SENDER, of_rank, on_source, sender, while_handling
from ftslurm.report.reported_before import behind_common
from ftslurm.report.root_cause import (
    attempts_of,
    hang_of,
    healthy_stderr,
    history_of,
    round_files,
    survived_stderr,
)
from ftslurm.report.round_facts import (
    attempt_of,
    ended_ns,
    linked,
    nodes_of,
    outcome_of,
    started_ns,
    world_size_of,
)
from ftslurm.report.round_verdict import RoundVerdict
from ftslurm.text import first_line, ranges

if TYPE_CHECKING:
    from ftslurm.collectives.judgement import Judgement
    from ftslurm.monitor.triage import Triage
    from ftslurm.report.standstill import Standstill


def judge_rounds(snapshot: Snapshot, clocks: Clocks) -> list[RoundVerdict]:
    """Return the verdict on each round of the run, oldest first.

    Args:
        snapshot: the run directory, `aligned`.
        clocks: the nodes' clocks.
    """
    numbers = {h.round for h in snapshot.state.history} if snapshot.state else set()
    ordered = sorted(numbers | {files.number for files in snapshot.rounds})
    rounds = [_judge_round(snapshot, clocks, number, newest=number == ordered[-1]) for number in ordered]
    if snapshot.source != "ftslurm":
        # The end of a round cannot be concluded from output alone.
        rounds = [replace(this, outcome="unknown") if this.outcome == "running" else this for this in rounds]
        rounds = [replace(this, over=False) for this in rounds]
    return list(linked(list(_explained(snapshot, rounds))))


def _judge_round(snapshot: Snapshot, clocks: Clocks, number: int, *, newest: bool) -> RoundVerdict:
    files, entry = round_files(snapshot, number), history_of(snapshot, number)
    failures = root_cause.judge_failures(snapshot, clocks, files)
    judged = consequence.most_telling_first(clocks, number, failures.judged)
    judged = named_first(collective_timeouts.odd_one_first(files, judged))
    outcome = outcome_of(snapshot, files, entry, judged, newest=newest)
    places = triage_of(files) if files.stacks else None
    collectives = _judged_collectives(files, places, failures)
    still = _standstill(files, places, collectives) if outcome == "stopped" else None
    progress = [w.progress for n in files.nodes for w in n.workers if w.progress is not None]
    made = [] if progress else [w.optimizer_steps for n in files.nodes for w in n.workers if w.optimizer_steps]
    plain = RoundVerdict(
        number=number,
        files=files,
        attempt=attempt_of(files, entry),
        nodes=nodes_of(files, entry),
        world_size=world_size_of(files, entry),
        started_ns=started_ns(files, entry),
        ended_ns=ended_ns(files, entry, outcome),
        outcome=outcome,
        over=outcome not in ("running", "succeeded"),
        reason=entry.reason if entry else None,
        first_step=min((p.first_step for p in progress), default=None),
        last_step=max((p.last_step for p in progress), default=None),
        cwd=next((a.cwd for a in attempts_of(snapshot, files)), None),
        failed=judged,
        others=judged,
        following=failures.following,
        places=places,
        triage=still.triage if still is not None else _triage(files, places),
        collectives=collectives,
        by_collectives=still is not None and still.by_records,
        standstill=still,
        optimizer_steps=(min(m.first_step for m in made), max(m.last_step for m in made)) if made else None,
    )
    return _with_first(snapshot, clocks, entry, plain)


def _with_first(snapshot: Snapshot, clocks: Clocks, entry: History | None, this: RoundVerdict) -> RoundVerdict:
    """Return the verdict with the round's first failure, if it had one."""
    if this.outcome in ("stopped", "succeeded", "running"):
        return this
    first, others = _first(snapshot, clocks, entry, this)
    if first is not None and "collectives" in first.evidence and this.collectives is not None:
        this = replace(this, triage=by_records(this, this.collectives), by_collectives=True)
    elif first is not None and first.hang is not None and first.hang["verdict"] in (MISSING, TOO_FEW):
        this = replace(this, triage=absent_ranks(clocks, this, others) or this.triage)
    if first is not None and first.node is not None and first.time_ns is not None:
        first = replace(first, doubt=clocks.error_ns(this.number, first.node, first.time_ns))
    by_worker = first is not None and first.rank is not None and first.hang is None
    same = root_cause.at_the_same_time(clocks, this.number, this.failed) if by_worker else []
    if first is not None and (first.alike is not None or "stderr" in first.evidence):
        same = [(other, doubt) for other, doubt in same if not is_same(this.failed[0], other)]
    return replace(this, first=first, others=others, same_time=same)


def _first(
    snapshot: Snapshot, clocks: Clocks, entry: History | None, this: RoundVerdict
) -> tuple[FirstFailure | None, Sequence[FailedWorker]]:
    """Choose the first failure of a round; return it with the other failed workers."""
    files, found = this.files, list(this.failed)
    if entry is not None and entry.failure is not None and is_unreachable(entry):
        return unreachable_failure(entry, entry.failure), [s for s in found if s.kind != UNREACHABLE]
    hang = hang_of(snapshot, this.number)
    lost = silent_nodes(snapshot, files, entry, hang) if hang is not None else []
    if hang is not None:
        from ftslurm.report.hang import hang_failure, is_end_of_failure, is_first, without_hung

        found = without_hung(hang, found)
        records = deciding(this)
        verdict = by_records(this, records) if records is not None else this.places or triage_of(files)
        if not lost and is_first(hang, found) and not is_end_of_failure(hang, found, verdict):
            first = hang_failure(files, hang, verdict, this.last_step, this.cwd, records)
            return health.with_proofs(snapshot, first), found
    nodes = lost or lost_first(snapshot, files, entry, found)
    if nodes is not None:
        return health.with_proofs(snapshot, lost_failure(snapshot, files, entry, nodes, this.last_step)), found
    if not found:
        return None, []
    found = [*_swallowed(snapshot, clocks, this, found), *found]
    awaited = awaited_rank(this, found)
    if awaited is not None:
        return health.with_proofs(snapshot, awaited), found
    absent = absent_ranks(clocks, this, found)
    if absent is not None:
        from ftslurm.report.missing_rank import missing_rank, too_few_ranks

        if absent.suspects:
            missing = missing_rank(files, found[0], absent, this.last_step, this.cwd)
        else:
            missing = too_few_ranks(files, found[0], absent, this.world_size or 0, this.last_step, this.cwd)
        return health.with_proofs(snapshot, missing), found
    first = _of_worker(snapshot, clocks, replace(this, failed=found))
    return replace(first, overshadowed=overshadowing(snapshot, files, entry, found[0])), found[1:]


def _swallowed(
    snapshot: Snapshot, clocks: Clocks, this: RoundVerdict, found: Sequence[FailedWorker]
) -> list[FailedWorker]:
    """Return the failure behind the exit code 0 of a rank whose end broke the connections of the others, if any."""
    if not found[0].cause.cascade:
        return []
    source = consequence.origin(this.files, clocks, found, this.following)
    if source is None or source.kind != consequence.FINISHED:
        return []
    from ftslurm.report.swallowed import swallowed_failure

    hidden = swallowed_failure(this.files, source.ranks, snapshot.causes)
    return [] if hidden is None else [hidden]


def _of_worker(snapshot: Snapshot, clocks: Clocks, this: RoundVerdict) -> FirstFailure:
    """Describe the first of the failed workers, with what it follows from and the ranks that failed alike."""
    files, worker = this.files, this.failed[0]
    tails = files.tails.get(worker.rank, ())
    behind = behind_common(this.failed, files.tails)
    if behind is not None:
        own = judge(behind, (), snapshot.causes)
        first = worker_failure(this.number, own, files.tails.get(own.rank, ()), this.cwd)
        then = f"it and the others then raised {first_line(worker.what)}"
        evidence = (*first.evidence, "stderr")
        return replace(first, what=f"{first.what} (from its stderr)", evidence=evidence, remarks=(then,))
    proved, source, recorded = True, None, snapshot.source == "ftslurm"
    advice = None
    places: consequence.Places = []
    if worker.cause.cascade and worker.cause.name not in consequence.BY_ITSELF:
        source = consequence.origin(files, clocks, this.failed, this.following)
        proved = source is not None or health.has_sick_device(snapshot, this.number)
        if not proved and consequence.is_own_statement(worker):
            rows = [row for row in snapshot.causes if not row.cascade]
            worker = judge(worker, tails, rows)
        elif not proved or source is not None:
            places = consequence.waiting_places(this.failed, this.following) if source is None else []
            world, number = this.world_size or 0, len(places)
            advice = consequence.advice(worker, source, world, recorded=recorded, places=number, attempt=this.number)
    first = worker_failure(this.number, health.explained(snapshot, files, worker), tails, this.cwd)
    recent = next(iter(attempts_of(snapshot, files)), None) if recorded else None
    followers = this.following.get(worker.cause.name, ()) if worker.cause.cascade else ()
    others, following = this.failed[1:], [each.rank for each in followers]
    # Where ranks waited at different places, these tell which; the time-outs themselves may be equal.
    collectives = collective_timeouts.remark(files, this.failed)
    parted = len(places) > 1 or collective_timeouts.are_parted(files, this.failed)
    same = None if parted else alike(files, worker, others, following, this.world_size)
    if same is not None and same.scope == ALL and consequence.only_receive([worker, *others]) and source is None:
        advice = consequence.ALL_RECEIVE
    if same is not None and source is None and not recorded and worker.cause.name in ("nccl-timeout", "nccl-abort"):
        advice = consequence.IN_ONE_CALL
    if collective_timeouts.are_mismatched(files, this.failed):
        advice = consequence.PARTED
    if not recorded and worker.cause.cascade and any(map(consequence.is_event_of_port, snapshot.notes)):
        advice = consequence.PORT
    advice = advice or first.advice or advice_on(worker, tails, same, recent)
    known_sender = sender(files, worker)
    if known_sender:
        advice = ""  # nothing to look for
        first = replace(first, what=first.what.removesuffix(UNKNOWN_SENDER))
    survived = (*healthy_stderr(files, this.failed_ranks), *survived_stderr(files))
    return replace(
        first,
        advice=advice,
        proved=proved,
        follows=None if source is None else source.short,
        awaited=ranges(source.ranks)
        if source is not None and source.named and worker.cause.name == "late-rank"
        else None,
        alike=None if same is None else same.as_dict(),
        remarks=(
            *odd_model(this.failed),
            *while_handling(worker),
            *on_source(files, source, same, places),
            *collectives,
            *of_rank(files, this.failed, worker, tails),
            *([] if known_sender else last_output(worker, tails, survived)),
        ),
    )


def _explained(snapshot: Snapshot, rounds: Sequence[RoundVerdict]) -> Iterator[RoundVerdict]:
    """Add Slurm's action to each attempt's last round, and Slurm's node states to a lost node."""
    for i, this in enumerate(rounds):
        last = i + 1 == len(rounds) or rounds[i + 1].attempt != this.attempt
        view = scheduler.of_attempt(snapshot, this.attempt) if last else None
        if view is None:
            yield this
            continue
        first = this.first
        if first is not None and first.kind == "node-lost":
            first = scheduler.with_node_states(view, first)
        yield replace(this, scheduler=scheduler.explain_round(view, this.outcome), first=first)


def _triage(files: RoundFiles, places: Triage | None) -> Triage | None:
    return places if any(one.stop is None for one in files.stacks.values()) else None


def _judged_collectives(files: RoundFiles, places: Triage | None, failures: root_cause.Failures) -> Judgement | None:
    if not files.collectives:
        return None
    from ftslurm.report.collectives import judge_collectives

    cascades = {each.rank for each in failures.judged if each.cause.cascade}
    cascades |= {each.rank for group in failures.following.values() for each in group}
    return judge_collectives(files, places, cascades, failures.judged)


def _standstill(files: RoundFiles, found: Triage | None, records: Judgement | None) -> Standstill | None:
    if found is None:
        return None
    from ftslurm.report.hang import dead_threads, finished_ranks
    from ftslurm.report.standstill import standstill

    suspects = [rank for group in found.suspects for rank in group.ranks]
    ends = output_end(files, suspects[0], of_trouble=True) if len(suspects) == 1 else ()
    more = (dead_threads(files, found), *ends, finished_ranks(found))
    remark = "; ".join(part for part in more if part)
    if records is not None:
        from ftslurm.report.collectives import decides, place_of, text_of, triage_by

        if decides(records, found):
            text = text_of(records, files)
            named = triage_by(records, found, text)
            place = place_of(named) if len(records.culprits) == 1 else None
            text = f"{text}; it is {place}" if place else text
            still = standstill(files.stacks, found, remark, text)
            return None if still is None else replace(still, triage=named, by_records=True)
    idle_s = {rank: calls.idle_s for rank, calls in files.collectives.items()}
    return standstill(files.stacks, found, remark, idle_s=idle_s)
