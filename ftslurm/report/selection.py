"""Which error records, outputs and stacks of a round are opened, by the records that were read before (pure).

When one rank of 16,384 fails, the others write 16,383 nearly equal error records. The nodes' files of the round have a
summary of each with a signature of the rest, so that of equal records only the first ones are read. No cause is judged
here: of each kind of failure, enough is selected for any of them to be the first failure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import nsmallest

from ftslurm.dataclasses import dataclass
from ftslurm.failures.reason import EXIT
from ftslurm.failures.record_summary import SIMILAR
from ftslurm.pattern import pattern
from ftslurm.report.consequence import finished
from ftslurm.report.facts import Clocks, Failure, RankError, RecordSummary, RoundFiles, RoundNode, Snapshot, Worker
from ftslurm.report.root_cause import (
    OwnFailure,
    hang_of,
    order_unjudged,
    own_failures,
    recorded_failures,
    recorded_rank,
)
from ftslurm.report.swallowed import may_be_swallowed

SIMILAR_READ = 3
"""Records read of ranks whose connections broke: one may be the first failure, one a hang, the next is shown."""
STACKS_ROUNDS = 8
OUTPUTS_ALIKE = 3
OUTPUTS_PER_ROUND = 32
FIRST_OUTPUTS = 8
"""Kinds of failures of each of which the first rank's whole output is read."""
PLACES_READ = 4
BYSTANDERS_READ = 2
_NUMBER = pattern(r"\d+")


@dataclass(frozen=True)
class Output:
    """The streams of a rank of which the ends are read: "stderr", "stdout" and "stacks"."""

    rank: int
    streams: tuple[str, ...]


def final(node: RoundNode, worker: Worker) -> bool:
    """Whether the node's file has the complete summary of the worker's record, or shows that there is none.

    That of an agent that died before its last write does not. Agents write a record for each failed worker: one without
    a summary is damage, or its record could not be published.
    """
    ended = worker.ended_ns is not None and node.ended_ns is not None
    return ended and (worker.error is not None or not worker.failed)


def needs_folders(nodes: Sequence[RoundNode]) -> bool:
    """Whether ranks are unknown of which only the folders can show whether they wrote an error record."""
    known = sum(final(node, worker) for node in nodes for worker in node.workers)
    return len({node.world_size for node in nodes}) != 1 or known != nodes[0].world_size


def error_records(
    files: RoundFiles, clocks: Clocks, folders: Collection[int], *, whole: bool, ranks: Collection[int | None]
) -> list[int]:
    """Return the ranks of a round whose error records are read.

    Args:
        files: the round, without error records.
        clocks: the nodes' clocks.
        folders: the ranks that have a folder, if `needs_folders`.
        whole: whether all records are read: rows of plugins may depend on anything in one.
        ranks: those whose records are read in any case.
    """
    recorded = {worker.rank for node in files.nodes for worker in node.workers if final(node, worker)}
    ended = (worker for node in files.nodes for worker in node.workers if worker.ended_ns is not None)
    # A rank that succeeded, by its agent's record, has no error record worth an open.
    done = {worker.rank for worker in ended if not worker.failed and not worker.stopped_by_ftslurm}
    if not whole:
        done |= recorded - {*ranks, *_first_of_each_kind(files, clocks)}
    return sorted({*recorded, *folders} - done)


def _first_of_each_kind(files: RoundFiles, clocks: Clocks) -> Iterable[int]:
    kinds: dict[tuple[object, ...], list[tuple[bool, int, int]]] = {}
    for own in own_failures(files, {}):
        if isinstance(own.record, RecordSummary):
            kinds.setdefault(_kind(own), []).append(order_unjudged(clocks, files.number, own))
    for kind, orders in kinds.items():
        several = str(kind[0]).startswith(SIMILAR)
        yield from (order[-1] for order in nsmallest(SIMILAR_READ if several else 1, orders))


def rounds_with_stacks(snapshot: Snapshot, chosen: int | None) -> set[int]:
    """Return the rounds whose stacks are read: the newest ones that a hang ended, the requested one, the last stopped.

    Before a job is stopped from outside, the stacks of all ranks are collected, too; and, when ranks have lost a
    connection, those of the others.
    """
    numbers = [files.number for files in snapshot.rounds]
    hung = [number for number in numbers if hang_of(snapshot, number) is not None or _lost_peers(snapshot, number)]
    found = {number for number in hung if number in hung[-STACKS_ROUNDS:] or number == chosen}
    closed = snapshot.state.closed if snapshot.state is not None else None
    if snapshot.rounds and closed is not None and closed.outcome == "stopped":
        found.add(snapshot.rounds[-1].number)
    return found


def _lost_peers(snapshot: Snapshot, number: int) -> bool:
    """Return whether a rank that lost a connection to others, or waited for them, ended the round."""
    past = snapshot.state.past(number) if snapshot.state is not None else None
    return past is not None and past.failure is not None and past.failure.by_peers


def outputs(snapshot: Snapshot, clocks: Clocks, files: RoundFiles, *, every: bool, rank: int | None) -> list[Output]:
    """Return the ranks of a round of whose output the end is read, the most important ones first.

    The output of a worker without an exception can change or explain the verdict; the first failure's is shown.

    Args:
        snapshot: the run directory.
        clocks: the nodes' clocks.
        files: the round, with its error records and stacks.
        every: whether all failed ranks are requested in full.
        rank: a requested rank.
    """
    found = own_failures(files, recorded_failures(snapshot, files.number))
    ended_by = recorded_rank(snapshot, files.number)
    found = sorted(found, key=lambda own: (own.rank != ended_by, *order_unjudged(clocks, files.number, own)))
    firsts: dict[tuple[object, ...], OwnFailure] = {}
    for own in found:
        firsts.setdefault(_kind(own), own)
    # A broken connection is rarely the first failure.
    ordered = sorted(firsts.items(), key=lambda kind: str(kind[0][0]).startswith(SIMILAR))
    first = [own for _, own in ordered[:FIRST_OUTPUTS]]
    rest = [own for own in found if own not in first and (every or not own.raised or _is_exit(own))]
    chosen = [Output(own.rank, _streams(own)) for own in first] + [Output(own.rank, ("stderr",)) for own in rest]
    chosen = chosen if every else chosen[:OUTPUTS_PER_ROUND]
    # Of ranks that raised the same, one may have printed why.
    alike = [own for own in found[1:] if found[0].raised and _kind(own) == _kind(found[0])]
    chosen += [Output(own.rank, ("stderr",)) for own in alike[:OUTPUTS_ALIKE]]
    failed = {own.rank for own in found}
    workers = [worker for node in files.nodes for worker in node.workers]
    stopped = [worker for worker in workers if worker.stopped_by_ftslurm]
    ran = [worker.rank for worker in stopped if worker.rank not in failed][:BYSTANDERS_READ]
    # What they printed may be why the first one failed, which they served.
    chosen += [Output(each, ("stderr",)) for each in ran if found and found[0].raised]
    # Or one of them ended it.
    chosen += [Output(each, ("stderr", "stdout")) for each in ran if found and found[0].end[1] is not None]
    hang = hang_of(snapshot, files.number)
    if hang is not None or (files.stacks and not _lost_peers(snapshot, files.number)):
        suspects = _suspects(files, hang)
        chosen = [Output(each, ("stderr", "stdout")) for each in suspects] + chosen
        # What others have printed, too, is no reason.
        peer = next((worker.rank for worker in workers if worker.rank not in suspects), None)
        chosen += [] if peer is None else [Output(peer, ("stderr",))]
    elif _lost_peers(snapshot, files.number) or (firsts and all(str(kind[0]).startswith(SIMILAR) for kind in firsts)):
        # Of the ranks that the others waited for, the end of their output may show why.
        left = [Output(each, ("stderr", "stdout")) for each in finished(files)[:BYSTANDERS_READ]]
        chosen = [*left, *(Output(each, ("stderr",)) for each in ran), *chosen]
    if found and _is_of_store(found[0]):
        # Those that it waited for have perhaps tried to come to another place.
        others = [worker.rank for worker in workers if worker.rank not in failed]
        chosen += [Output(each, ("stderr",)) for each in others[:BYSTANDERS_READ]]
    if any(not own.raised for own in found):
        # What a rank that did not fail has printed, too, is no reason.
        healthy = next((worker.rank for worker in workers if worker.rank not in failed), None)
        chosen += [] if healthy is None else [Output(healthy, ("stderr",))]
    if found and found[0].exited:
        # Ranks that ended in the same way while ftslurm stopped them have perhaps printed the same.
        code = found[0].end[0]
        same = [each.rank for each in stopped if code and (each.exit_code == code or each.signal == "SIGTERM")]
        chosen += [Output(each, ("stderr", "stdout")) for each in same[:OUTPUTS_PER_ROUND]]
    if files.number == snapshot.rounds[-1].number:
        chosen += [Output(each, ("stderr", "stdout")) for each in may_be_swallowed(files)]
    if rank is not None:
        chosen.insert(0, Output(rank, ("stderr", "stdout", "stacks")))
    by_rank: dict[int, Output] = {}
    for output in chosen:
        known = by_rank.get(output.rank, Output(output.rank, ()))
        by_rank[output.rank] = Output(output.rank, tuple(dict.fromkeys((*known.streams, *output.streams))))
    return list(by_rank.values())


def _is_of_store(own: OwnFailure) -> bool:
    """Return whether a rank waited in vain for the others to come to torch's store."""
    exception = own.record.exception if isinstance(own.record, RankError) else None
    return exception is not None and exception.type == "DistStoreError"


def _is_exit(own: OwnFailure) -> bool:
    """Return whether it ended by sys.exit: its reason is perhaps in its output alone, and not that of its peers."""
    record = own.record
    if isinstance(record, RankError):
        return record.exception is not None and record.exception.type == EXIT
    return record is not None and record.type == EXIT


def _suspects(files: RoundFiles, hang: Failure | None) -> list[int]:
    """Return the ranks whose output may explain a hang: the suspect, or one at each place and the late one."""
    from ftslurm.monitor.triage import triage
    from ftslurm.report.rank_stacks import of_all_ranks

    found = triage(of_all_ranks(files), files.calls)
    places = [group.ranks[0] for group in found.groups[:PLACES_READ]] if len(found.groups) <= PLACES_READ else []
    return [group.ranks[0] for group in found.suspects[:1]] or ([hang.rank, *places] if hang is not None else [])


def _kind(own: OwnFailure) -> tuple[object, ...]:
    """Return a key that is equal for failures of the same kind; begins with SIMILAR if a connection broke."""
    if own.worker is not None and own.worker.error is not None:
        return own.worker.error.signature, *own.end
    record = own.record if isinstance(own.record, RankError) else None
    exception = record.exception if record is not None else None
    if exception is None:
        return "", own.failure.kind if own.failure is not None else None, *own.end
    return "", exception.type, _NUMBER.sub("#", exception.message[:300]), *own.end


def _streams(own: OwnFailure) -> tuple[str, ...]:
    record = own.record if isinstance(own.record, RankError) else None
    crashed = not own.raised and (record is None or record.stacks is None)
    return ("stderr", "stdout", "stacks") if crashed else ("stderr", "stdout")
