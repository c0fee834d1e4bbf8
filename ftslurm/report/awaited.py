"""The rank that the others waited for, as the first failure in place of the ones that noticed (pure).

By the records of the ranks' collectives, where these decide; else by who did not fail, and by the ranks' stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftslurm.dataclasses import replace
from ftslurm.failures.own_code import own_frame
from ftslurm.report import consequence
from ftslurm.report.facts import Clocks, RoundFiles
from ftslurm.report.failed_worker import FailedWorker, beside_crash
from ftslurm.report.first_failure import FirstFailure, location_of, log_end, worker_failure
from ftslurm.report.reported_before import survived_by_one
from ftslurm.report.round_verdict import RoundVerdict
from ftslurm.text import ranges

PLACES = 2
NEW_GROUP = "All ranks of the job must call new_group, also those that are not members, and in the same order."

if TYPE_CHECKING:
    from ftslurm.collectives.judgement import Judgement
    from ftslurm.monitor.triage import Triage


def awaited_rank(this: RoundVerdict, found: Sequence[FailedWorker]) -> FirstFailure | None:
    """Return the rank for which the others waited until their time was over, or its end broke their connections.

    Or that ranks waited for each other in a cycle. None: the first failure has a reason of its own, or the records of
    the ranks' collectives show neither.
    """
    worker, records = found[0], deciding(this)
    if records is None:
        return None
    from ftslurm.collectives.finding import ABORTED, DIFFERENT
    from ftslurm.collectives.judgement import CYCLE

    differ = records.kind in DIFFERENT and records.certain
    waited = bool(records.culprits or records.kind == CYCLE or differ) and worker.cause.cascade
    mismatched = worker.cause.name == "collective-mismatch" and records.kind in (*DIFFERENT, ABORTED)
    if not waited and not mismatched:
        return None
    if worker.cause.name in consequence.BY_ITSELF or consequence.is_own_statement(worker):
        return None
    if worker.rank in records.culprits and worker.cause.name not in consequence.OF_PEERS:
        return None  # what it raised itself is why it did not come
    from ftslurm.report.hang import hang_failure
    from ftslurm.report.missing_rank import noticed_by

    noticed = noticed_by(worker, this.number)
    first = hang_failure(this.files, noticed, by_records(this, records), this.last_step, this.cwd, records)
    survived = survived_by_one(found, this.files.tails)
    first = replace(first, remarks=(*first.remarks, survived)) if survived else first
    own = next((each for each in found if each.rank == first.rank), None)
    if own is None and worker.frames and not (first.hang or {}).get("where"):
        # Of a rank that had ended, only the one that waited for it has a place.
        frame = own_frame(worker.frames)
        place = f"at {frame.file.rpartition('/')[2]}:{frame.line} (rank {worker.rank})"
        return replace(first, hang={**(first.hang or {}), "where": place})
    if own is None:
        return first
    # What it called is in its own traceback; gloo aborts a process in a thread of its own.
    own_failure = worker_failure(this.number, own, (), this.cwd)
    beside = beside_crash(own) if own_failure.where is None else None
    where, hang = own_failure.where, first.hang or {}
    if beside is not None:
        where = location_of(beside.file, beside.line, beside.function, beside.source, this.cwd)
    if where is not None:
        of = f" (rank {own.rank})" if not records.culprits else ""
        parties = "" if records.culprits else _places_of(this, own.rank, f"{where['shown']}:{where['line']}")
        hang = {**hang, "where": parties or f"at {where['shown']}:{where['line']}{of}"}
    return replace(
        first,
        where=where or first.where,
        traceback=own_failure.traceback,
        stacks=own_failure.stacks,
        advice=_advice_on(own) or _with_traceback(first.advice),
        log=log_end(this.files.tails.get(own.rank, ()), own_failure.traceback),
        hang=hang,
    )


def _advice_on(own: FailedWorker) -> str:
    """Return advice on what a rank called that the others did not; empty: it was none of these."""
    makes_group = any(frame.function == "new_group" and "/torch/distributed/" in frame.file for frame in own.frames)
    return NEW_GROUP if makes_group else ""


def _with_traceback(advice: str | None) -> str | None:
    return None if advice is None else advice.replace("the stacks below show where it is", "its traceback shows where")


def _places_of(this: RoundVerdict, rank: int, place: str) -> str:
    """Return where ranks were that waited at two places: ``rank 0 at train.py:40, rank 1 at train.py:26``.

    Args:
        this: the round.
        rank, place: where one of them was, which gloo aborted perhaps.
    """
    at = [(each.rank, own_frame(each.frames).place if each.frames else "") for each in this.failed]
    at += [(each.rank, each.where or "") for group in this.following.values() for each in group]
    places: dict[str, list[int]] = {place.rpartition("/")[2]: [rank]}
    for other, where in dict(at).items():
        if other != rank:
            # Without its function.
            places.setdefault(where.rpartition("/")[2].partition(" ")[0], []).append(other)
    if "" in places:
        return ""
    those = (f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)} at {place}" for place, ranks in places.items())
    return ", ".join(those) if len(places) == PLACES else ""


def absent_ranks(clocks: Clocks, this: RoundVerdict, found: Sequence[FailedWorker]) -> Triage | None:
    """Return the ranks' locations with those as suspects that did not come to where the others gave up; None: unknown.

    Without a suspect: all ranks of the job came, and waited for more.
    """
    worker = found[0]
    if this.places is None or not worker.cause.cascade or worker.cause.name in consequence.BY_ITSELF:
        return None
    from ftslurm.report.missing_rank import suspects, there, waits_for_more

    source = consequence.origin(this.files, clocks, found, this.following)
    source = source or consequence.origin(this.files, clocks, found, this.following, there(this.places, worker))
    if source is None or consequence.is_own_statement(worker):
        return None
    return suspects(this.places, worker, source) or waits_for_more(this.places, worker, source, this.world_size)


def deciding(this: RoundVerdict) -> Judgement | None:
    """Return what the records of the ranks' collectives show, if it takes the place of the stacks' verdict."""
    if this.collectives is None:
        return None
    from ftslurm.report.collectives import decides

    return this.collectives if decides(this.collectives, this.places) else None


def by_records(this: RoundVerdict, records: Judgement) -> Triage:
    """Return the ranks' locations with the suspects of the records."""
    from ftslurm.report.collectives import text_of, triage_by

    return triage_by(records, this.places or triage_of(this.files), text_of(records, this.files))


def triage_of(files: RoundFiles) -> Triage:
    """Return the triage of the ranks' stacks."""
    from ftslurm.monitor.triage import triage
    from ftslurm.report.rank_stacks import of_all_ranks

    return triage(of_all_ranks(files), files.calls)
