"""The first failure of a round: the facts of each failed worker, ordered, root cause first (pure)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nsmallest
from typing import NamedTuple

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.causes import CASCADE, PRIMARY, ROWS
from ftslurm.failures.record_summary import SIMILAR
from ftslurm.report.clocks import Clocks, Doubt
from ftslurm.report.facts import (
    Failure,
    History,
    NodeRecordFacts,
    RankError,
    RecordSummary,
    RoundFiles,
    RoundNode,
    Snapshot,
    Worker,
)
from ftslurm.report.failed_worker import FailedWorker, judge
from ftslurm.report.merged_facts import failed_worker_of
from ftslurm.report.sampling import from_summary
from ftslurm.report.scheduler import state_for_evidence

HEADS = 3
"""Number of error records read per cascade cause: one may be the first failure, one a hang, the next is shown."""


class Follower(NamedTuple):
    """A rank whose failure is a cascade, known by its record summary; compared by the order of the failures."""

    untimed: bool
    at_ns: int
    rank: int
    node: str
    time_ns: int | None


_make_follower = tuple.__new__  # for 16,384 of them, without the class's own __new__


@dataclass(frozen=True)
class Classified:
    """The workers of a round that failed and were not stopped by ftslurm.

    Attributes:
        following: cascades recognised by their record summaries, by cause, unordered.
        others: all others, each with its node, and its record or record summary.
        ended: the ranks whose end was observed.
    """

    following: Mapping[str, Sequence[Follower]]
    others: Sequence[tuple[RoundNode, Worker, RankError | RecordSummary | None]]
    ended: AbstractSet[int]


def failed_workers(snapshot: Snapshot, number: int) -> list[FailedWorker]:
    """Return the failed workers of a round that ftslurm did not stop, root cause first, without the `followers`.

    Primary causes precede cascades, then earlier ones precede later ones, as far as the nodes' clocks allow. A worker
    that ftslurm stopped is not included, whatever it wrote while it ended; but if its exception was caught on its own
    node before any worker there was stopped, it failed by itself, even if its process took longer to end.
    """
    files = round_files(snapshot, number)
    failures = {rank: failure for rank, failure in summaries(snapshot, number).items() if failure.kind != "hang"}
    found: dict[int, FailedWorker] = {}
    state = _scheduler_state(snapshot, files)
    classified = _classified(snapshot, files, state)
    for node, worker, error in classified.others:
        failure = failures.get(worker.rank)
        found[worker.rank] = _judged(snapshot, files, state, worker.rank, (node, worker), error, failure)
    for rank in sorted((set(files.errors) | set(failures)) - classified.ended - set(found)):
        # No agent recorded this rank's end: its agent died first, or its file is damaged.
        record = files.errors.get(rank)
        if rank in failures or not _maybe_stopped(record):
            found[rank] = _judged(snapshot, files, state, rank, None, record, failures.get(rank))
    return sorted(found.values(), key=lambda failed: _order(snapshot.clocks, number, failed))


def followers(snapshot: Snapshot, number: int) -> Mapping[str, Sequence[Follower]]:
    """Return by cause the ranks whose record summaries show cascades, unordered.

    Their records were not read, but one with the same signature, whose cause they share. This holds for ftslurm's own
    rows for cascades, which do not depend on anything in which these records may differ; a test verifies it.
    """
    files = round_files(snapshot, number)
    return _classified(snapshot, files, _scheduler_state(snapshot, files)).following


def _classified(snapshot: Snapshot, files: RoundFiles, state: str) -> Classified:
    """Classify the workers, or return the cached result: verdicts are cached by the identity of the facts."""
    facts = (files.nodes, files.errors, snapshot.clocks)
    cached = snapshot.judged.get((files.number, None))
    if cached is None or cached[1] != state or not all(map(operator.is_, cached[0], facts)):
        cached = snapshot.judged[files.number, None] = (facts, state, _classify(snapshot, files, state))
    result: Classified = cached[2]
    return result


def _classify(snapshot: Snapshot, files: RoundFiles, state: str) -> Classified:
    following: dict[str, list[Follower]] = {}
    others: list[tuple[RoundNode, Worker, RankError | RecordSummary | None]] = []
    ended: set[int] = set()
    judging = bool(files.examples) and snapshot.causes is ROWS
    errors = files.errors
    # Keyed by the inputs of the rows: the signature, and the kernel's report of the worker's end.
    verdicts: dict[tuple[str, int | None, str | None], list[Follower] | None] = {}
    for node in files.nodes:
        began_ns = _stop_began_ns(node)
        shift_ns = snapshot.clocks.comparable_ns(files.number, node.node, 0)
        name, over = node.node, node.ended_ns is not None
        for worker in node.workers:
            rank, summary = worker.rank, None
            error = errors.get(rank)
            if worker.ended_ns is not None:
                ended.add(rank)
                if over and error is None:
                    # Inlined `summary_of`: its function calls would take too long for 16,384 ranks.
                    summary = worker.error
            if not _failed_by_itself(worker, error or summary, began_ns):
                continue
            if summary is None or not judging:
                others.append((node, worker, error or summary))
                continue
            kind = summary.signature, worker.exit_code, worker.signal
            if kind not in verdicts:
                cause = _cascade(snapshot, files, state, node, worker, summary)
                verdicts[kind] = None if cause is None else following.setdefault(cause, [])
            group = verdicts[kind]
            if group is None:
                others.append((node, worker, summary))
                continue
            time_ns = summary.time_ns
            order = (time_ns is None, (time_ns or 0) + shift_ns, rank, name, time_ns)
            group.append(_make_follower(Follower, order))
    return Classified(following, others, ended)


def _cascade(
    snapshot: Snapshot, files: RoundFiles, state: str, node: RoundNode, worker: Worker, summary: RecordSummary
) -> str | None:
    """Return the cause of a cascade's exception; None if it is none, or cannot be judged without the file."""
    sample = files.errors.get(files.examples.get(summary.signature, -1))
    if sample is None or sample.exception is None or summary.kind != "exception":
        return None
    record = replace(from_summary(node, worker, summary, sample), exception=sample.exception)
    cause = judge(failed_worker_of(worker.rank, (node, worker), record, None, state), (), snapshot.causes).cause
    return cause.name if cause.role == CASCADE else None


def as_follower(snapshot: Snapshot, number: int, failed: FailedWorker) -> Follower:
    """Return a failed worker as a follower, for the common order."""
    at_ns = _comparable_ns(snapshot.clocks, number, failed)
    return Follower(failed.time_ns is None, at_ns, failed.rank, failed.node, failed.time_ns)


def records_to_read(snapshot: Snapshot, number: int) -> set[int]:
    """Return the ranks whose records must be read: they are shown, or cannot be judged without them."""
    files = round_files(snapshot, number)
    if not files.examples:
        return set()
    found = failed_workers(snapshot, number)
    classified = _classified(snapshot, files, _scheduler_state(snapshot, files))
    wanted: set[int] = set()
    for cause, group in classified.following.items():
        read = [as_follower(snapshot, number, s) for s in found if s.cause.name == cause]
        wanted |= {each.rank for each in nsmallest(HEADS, [*read, *group])} - {each.rank for each in read}
    for _, worker, error in classified.others:
        if isinstance(error, RecordSummary):
            no_example = files.examples.get(error.signature) not in files.errors
            if no_example or error.signature.startswith(SIMILAR) or worker.rank == found[0].rank:
                wanted.add(worker.rank)
    return wanted


def with_errors(snapshot: Snapshot, number: int, more: Mapping[int, RankError]) -> Snapshot:
    """Return the snapshot with more error records of a round, of ranks known by their record summaries."""
    files = round_files(snapshot, number)
    state = _scheduler_state(snapshot, files)
    before = _classified(snapshot, files, state)
    errors = {**files.errors, **more}
    rounds = tuple(replace(each, errors=errors) if each is files else each for each in snapshot.rounds)
    # The classification stays valid: these ranks only have more facts now.
    following = {cause: [each for each in group if each.rank not in more] for cause, group in before.following.items()}
    kept = [other for other in before.others if other[1].rank not in more]
    observed = [(node, worker) for node in files.nodes for worker in node.workers if worker.rank in more]
    reread = [
        (node, worker, more[worker.rank])
        for node, worker in observed
        if _failed_by_itself(worker, more[worker.rank], _stop_began_ns(node))
    ]
    after = Classified(following, [*kept, *reread], before.ended)
    snapshot.judged[number, None] = ((files.nodes, errors, snapshot.clocks), state, after)
    return replace(snapshot, rounds=rounds)


def _judged(
    snapshot: Snapshot,
    files: RoundFiles,
    state: str,
    rank: int,
    observed: tuple[RoundNode, Worker] | None,
    error: RankError | RecordSummary | None,
    failure: Failure | None,
) -> FailedWorker:
    """Judge a worker, or return the cached verdict: `gather` needs it to select outputs, and the report again later."""
    tails = files.tails.get(rank, ())
    if tails:
        return judge(
            failed_worker_of(rank, observed, _record(files, observed, error), failure, state), tails, snapshot.causes
        )
    node, worker = observed or (None, None)
    cached = snapshot.judged.get((files.number, rank))
    # Verdicts are keyed by object identity: code that replaces a fact of a snapshot must carry the verdicts over.
    if cached is not None and cached[0] is node and cached[1] is worker and cached[2] is error and cached[3] == failure:
        failed: FailedWorker = cached[4]
        return failed
    failed = judge(
        failed_worker_of(rank, observed, _record(files, observed, error), failure, state), (), snapshot.causes
    )
    snapshot.judged[files.number, rank] = (node, worker, error, failure, failed)
    return failed


def _record(
    files: RoundFiles, observed: tuple[RoundNode, Worker] | None, error: RankError | RecordSummary | None
) -> RankError | None:
    if observed is None or not isinstance(error, RecordSummary):
        return None if isinstance(error, RecordSummary) else error
    return from_summary(*observed, error, files.errors.get(files.examples.get(error.signature, -1)))


def _scheduler_state(snapshot: Snapshot, files: RoundFiles) -> str:
    if not snapshot.scheduler:
        return ""
    entry = history_of(snapshot, files.number)
    attempt = entry.attempt if entry is not None else next((node.attempt for node in files.nodes), None)
    return state_for_evidence(snapshot, files.number, attempt)


def at_the_same_time(clocks: Clocks, number: int, ordered: Sequence[FailedWorker]) -> list[tuple[FailedWorker, Doubt]]:
    """Return the primary failures that the clocks do not prove to be later than the first, and their uncertainty.

    The first one of each other node: within a node, one clock gives the order.
    """
    if not ordered or ordered[0].cause.role != PRIMARY or ordered[0].time_ns is None:
        return []
    first, nodes, found = ordered[0], {ordered[0].node}, []
    assert first.time_ns is not None
    for failed in ordered[1:]:
        if failed.cause.role != PRIMARY or failed.time_ns is None or failed.node in nodes:
            continue
        nodes.add(failed.node)
        doubt = clocks.between(number, (first.node, first.time_ns), (failed.node, failed.time_ns))
        if _comparable_ns(clocks, number, failed) - _comparable_ns(clocks, number, first) <= doubt.ns:
            found.append((failed, doubt))
    return found


def tail_needed(failed: FailedWorker) -> bool:
    """Whether the tail of the worker's output can change or explain its verdict."""
    return failed.exception is None


def round_files(snapshot: Snapshot, number: int) -> RoundFiles:
    """Return the files of a round; empty if there are none."""
    for files in snapshot.rounds:
        if files.number == number:
            return files
    return RoundFiles(number, (), {})


def history_of(snapshot: Snapshot, number: int) -> History | None:
    """Return the state's history entry of a round."""
    history = snapshot.state.history if snapshot.state else ()
    return next((h for h in history if h.round == number), None)


def summaries(snapshot: Snapshot, number: int) -> dict[int, Failure]:
    """Return the failures of a round from node records and the state, by rank."""
    failures: dict[int, Failure] = {}
    for record in snapshot.nodes:
        _add_summary(failures, _failure_of(record), number)
    entry = history_of(snapshot, number)
    if entry is not None:
        _add_summary(failures, entry.failure, number)
    return failures


def _failure_of(record: NodeRecordFacts) -> Failure | None:
    failure = record.failure
    return replace(failure, round=record.round) if failure is not None and not failure.round else failure


def _add_summary(failures: dict[int, Failure], failure: Failure | None, number: int) -> None:
    if failure is not None and failure.round == number:
        failures[failure.rank] = failure


def _stop_began_ns(node: RoundNode) -> int | None:
    """When this node began to stop its workers, or the latest time at which it certainly had not."""
    if node.stop_ns is not None:
        return node.stop_ns
    if not any(worker.stopped_by_ftslurm for worker in node.workers):
        return None  # not needed
    own = (w for w in node.workers if w.failed and not w.stopped_by_ftslurm)
    return min((w.ended_ns for w in own if w.ended_ns is not None), default=None)


def _failed_by_itself(worker: Worker, error: RankError | RecordSummary | None, began_ns: int | None) -> bool:
    if worker.stopped_by_ftslurm:
        # Its exception precedes the stop although its process ended late (torch's teardown takes seconds): both
        # times are from one clock. Across nodes that comparison is impossible, so the agent's record decides.
        return (
            error is not None
            and error.kind == "exception"
            and error.time_ns is not None
            and began_ns is not None
            and error.time_ns < began_ns
        )
    return worker.failed or (worker.ended_ns is None and error is not None and not _maybe_stopped(error))


def _maybe_stopped(error: RankError | RecordSummary | None) -> bool:
    """Whether the record may be of a rank that ftslurm stopped: only the agent's record could exclude it."""
    return isinstance(error, RankError) and error.exception is None and error.signal in ("SIGTERM", "SIGKILL")


def _order(clocks: Clocks, number: int, failed: FailedWorker) -> tuple[bool, bool, int, int]:
    time_ns = _comparable_ns(clocks, number, failed)
    return failed.cause.role != PRIMARY, failed.time_ns is None, time_ns, failed.rank


def _comparable_ns(clocks: Clocks, number: int, failed: FailedWorker) -> int:
    return clocks.comparable_ns(number, failed.node, failed.time_ns or 0)
