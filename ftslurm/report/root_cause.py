"""Who failed first in a round: all that is known of each failed worker, ordered, root cause first (pure)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nsmallest
from typing import NamedTuple

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.causes import CASCADE, PRIMARY, ROWS
from ftslurm.failures.record_summary import ALIKE
from ftslurm.report.clocks import Clocks, Doubt
from ftslurm.report.facts import (
    Failure,
    History,
    NodeRecordFacts,
    RankError,
    RoundFiles,
    RoundNode,
    Short,
    Snapshot,
    Worker,
)
from ftslurm.report.failed_worker import FailedWorker, judge
from ftslurm.report.merged_facts import failed_worker_of
from ftslurm.report.sampling import stand_in
from ftslurm.report.scheduler import state_for_evidence

HEADS = 3
"""Of what only follows, so many of each cause are read: one may be the first failure, one hang, the next is shown."""


class Follower(NamedTuple):
    """A rank whose failure follows from another's, known by its record's short form; they compare by their order."""

    untimed: bool
    at_ns: int
    rank: int
    node: str
    time_ns: int | None


_make_follower = tuple.__new__  # for 16,384 of them, without the class's own in between


@dataclass(frozen=True)
class Sorted:
    """The workers of a round that failed by themselves.

    Attributes:
        following: by cause those of which the short form shows that they only follow, in no order.
        others: all others, each with its node, and its record or that one's short form.
        ended: the ranks whose end was seen.
    """

    following: Mapping[str, Sequence[Follower]]
    others: Sequence[tuple[RoundNode, Worker, RankError | Short | None]]
    ended: AbstractSet[int]


def suspects(snapshot: Snapshot, number: int) -> list[FailedWorker]:
    """Return the workers of a round that failed and were not stopped by ftslurm, root cause first, but for `followers`.

    Primary causes stand before cascades, then earlier before later, as far as the nodes' clocks tell. A worker that
    ftslurm stopped is no suspect, whatever it wrote on its way out; but one whose exception was caught on its own
    node before anything there was stopped had failed by itself, even if its process took longer to end.
    """
    files = round_files(snapshot, number)
    words = {rank: word for rank, word in summaries(snapshot, number).items() if word.kind != "hang"}
    found: dict[int, FailedWorker] = {}
    state = _scheduler_state(snapshot, files)
    sorted_ = _sorted(snapshot, files, state)
    for node, worker, error in sorted_.others:
        word = words.get(worker.rank)
        found[worker.rank] = _judged(snapshot, files, state, worker.rank, (node, worker), error, word)
    for rank in sorted((set(files.errors) | set(words)) - sorted_.ended - set(found)):
        # No agent's last word on this rank: its agent died first, or its file is broken.
        record = files.errors.get(rank)
        if rank in words or not _maybe_stopped(record):
            found[rank] = _judged(snapshot, files, state, rank, None, record, words.get(rank))
    return sorted(found.values(), key=lambda suspect: _order(snapshot.clocks, number, suspect))


def followers(snapshot: Snapshot, number: int) -> Mapping[str, Sequence[Follower]]:
    """Return by cause the ranks of which the short form shows that they only follow, in no order.

    Their records were not read, but one with the same signature: that one's cause is theirs. It is so for ftslurm's own
    rows for cascades, which look at nothing in which these records may differ; that is tested.
    """
    files = round_files(snapshot, number)
    return _sorted(snapshot, files, _scheduler_state(snapshot, files)).following


def _sorted(snapshot: Snapshot, files: RoundFiles, state: str) -> Sorted:
    """Sort the workers out, or find how they were: the verdicts on them belong to these very facts."""
    facts = (files.nodes, files.errors, snapshot.clocks)
    known = snapshot.judged.get((files.number, None))
    if known is None or known[1] != state or not all(map(operator.is_, known[0], facts)):
        known = snapshot.judged[files.number, None] = (facts, state, _sort(snapshot, files, state))
    result: Sorted = known[2]
    return result


def _sort(snapshot: Snapshot, files: RoundFiles, state: str) -> Sorted:
    following: dict[str, list[Follower]] = {}
    others: list[tuple[RoundNode, Worker, RankError | Short | None]] = []
    ended: set[int] = set()
    judging = bool(files.like) and snapshot.causes is ROWS
    errors = files.errors
    # By what the rows look at: the signature, and what the kernel said of the worker's end.
    verdicts: dict[tuple[str, int | None, str | None], list[Follower] | None] = {}
    for node in files.nodes:
        began_ns = _stop_began_ns(node)
        shift_ns = snapshot.clocks.comparable_ns(files.number, node.node, 0)
        name, over = node.node, node.ended_ns is not None
        for worker in node.workers:
            rank, short = worker.rank, None
            error = errors.get(rank)
            if worker.ended_ns is not None:
                ended.add(rank)
                if over and error is None:
                    # As `short_of` says, which calls more functions than 16,384 ranks leave time for.
                    short = worker.error
            if not _failed_by_itself(worker, error or short, began_ns):
                continue
            if short is None or not judging:
                others.append((node, worker, error or short))
                continue
            kind = short.like, worker.exit_code, worker.signal
            if kind not in verdicts:
                cause = _cascade(snapshot, files, state, node, worker, short)
                verdicts[kind] = None if cause is None else following.setdefault(cause, [])
            group = verdicts[kind]
            if group is None:
                others.append((node, worker, short))
                continue
            time_ns = short.time_ns
            order = (time_ns is None, (time_ns or 0) + shift_ns, rank, name, time_ns)
            group.append(_make_follower(Follower, order))
    return Sorted(following, others, ended)


def _cascade(
    snapshot: Snapshot, files: RoundFiles, state: str, node: RoundNode, worker: Worker, short: Short
) -> str | None:
    """Return the cause of an exception that only follows; None if it does not, or cannot be judged without the file."""
    like = files.errors.get(files.like.get(short.like, -1))
    if like is None or like.exception is None or short.kind != "exception":
        return None
    record = replace(stand_in(node, worker, short, like), exception=like.exception)
    cause = judge(failed_worker_of(worker.rank, (node, worker), record, None, state), (), snapshot.causes).cause
    return cause.name if cause.role == CASCADE else None


def as_follower(snapshot: Snapshot, number: int, suspect: FailedWorker) -> Follower:
    """Return a suspect's place among the followers."""
    at_ns = _comparable_ns(snapshot.clocks, number, suspect)
    return Follower(suspect.time_ns is None, at_ns, suspect.rank, suspect.node, suspect.time_ns)


def unread(snapshot: Snapshot, number: int) -> set[int]:
    """Return the ranks whose records must be read all the same: they are shown, or not understood without."""
    files = round_files(snapshot, number)
    if not files.like:
        return set()
    found = suspects(snapshot, number)
    sorted_ = _sorted(snapshot, files, _scheduler_state(snapshot, files))
    wanted: set[int] = set()
    for cause, group in sorted_.following.items():
        read = [as_follower(snapshot, number, s) for s in found if s.cause.name == cause]
        wanted |= {each.rank for each in nsmallest(HEADS, [*read, *group])} - {each.rank for each in read}
    for _, worker, error in sorted_.others:
        if isinstance(error, Short):
            no_example = files.like.get(error.like) not in files.errors
            if no_example or error.like.startswith(ALIKE) or worker.rank == found[0].rank:
                wanted.add(worker.rank)
    return wanted


def with_errors(snapshot: Snapshot, number: int, more: Mapping[int, RankError]) -> Snapshot:
    """Return the snapshot with more error records of a round, of ranks that were known by their short forms."""
    files = round_files(snapshot, number)
    state = _scheduler_state(snapshot, files)
    before = _sorted(snapshot, files, state)
    errors = {**files.errors, **more}
    rounds = tuple(replace(each, errors=errors) if each is files else each for each in snapshot.rounds)
    # The class of each stays what it is: only these are known better now.
    following = {cause: [each for each in group if each.rank not in more] for cause, group in before.following.items()}
    kept = [other for other in before.others if other[1].rank not in more]
    seen = [(node, worker) for node in files.nodes for worker in node.workers if worker.rank in more]
    known = [
        (node, worker, more[worker.rank])
        for node, worker in seen
        if _failed_by_itself(worker, more[worker.rank], _stop_began_ns(node))
    ]
    after = Sorted(following, [*kept, *known], before.ended)
    snapshot.judged[number, None] = ((files.nodes, errors, snapshot.clocks), state, after)
    return replace(snapshot, rounds=rounds)


def _judged(
    snapshot: Snapshot,
    files: RoundFiles,
    state: str,
    rank: int,
    seen: tuple[RoundNode, Worker] | None,
    error: RankError | Short | None,
    word: Failure | None,
) -> FailedWorker:
    """Judge a worker, or find the verdict: who reads the output's ends asks before, and the report again after it."""
    tails = files.tails.get(rank, ())
    if tails:
        return judge(failed_worker_of(rank, seen, _record(files, seen, error), word, state), tails, snapshot.causes)
    node, worker = seen or (None, None)
    known = snapshot.judged.get((files.number, rank))
    # A verdict belongs to these very objects: who replaces a fact of a snapshot takes the verdicts along.
    if known is not None and known[0] is node and known[1] is worker and known[2] is error and known[3] == word:
        suspect: FailedWorker = known[4]
        return suspect
    suspect = judge(failed_worker_of(rank, seen, _record(files, seen, error), word, state), (), snapshot.causes)
    snapshot.judged[files.number, rank] = (node, worker, error, word, suspect)
    return suspect


def _record(
    files: RoundFiles, seen: tuple[RoundNode, Worker] | None, error: RankError | Short | None
) -> RankError | None:
    if seen is None or not isinstance(error, Short):
        return None if isinstance(error, Short) else error
    return stand_in(*seen, error, files.errors.get(files.like.get(error.like, -1)))


def _scheduler_state(snapshot: Snapshot, files: RoundFiles) -> str:
    if not snapshot.scheduler:
        return ""
    entry = history_of(snapshot, files.number)
    attempt = entry.attempt if entry is not None else next((node.attempt for node in files.nodes), None)
    return state_for_evidence(snapshot, files.number, attempt)


def at_the_same_time(clocks: Clocks, number: int, ordered: Sequence[FailedWorker]) -> list[tuple[FailedWorker, Doubt]]:
    """Return the primary suspects that may have been first as well, for all that the clocks tell, and their doubt.

    Of each other node the first one: there one clock says the order.
    """
    if not ordered or ordered[0].cause.role != PRIMARY or ordered[0].time_ns is None:
        return []
    first, nodes, found = ordered[0], {ordered[0].node}, []
    assert first.time_ns is not None
    for suspect in ordered[1:]:
        if suspect.cause.role != PRIMARY or suspect.time_ns is None or suspect.node in nodes:
            continue
        nodes.add(suspect.node)
        doubt = clocks.between(number, (first.node, first.time_ns), (suspect.node, suspect.time_ns))
        if _comparable_ns(clocks, number, suspect) - _comparable_ns(clocks, number, first) <= doubt.ns:
            found.append((suspect, doubt))
    return found


def tail_needed(suspect: FailedWorker) -> bool:
    """Whether the end of the worker's output can change or explain the verdict on it."""
    return suspect.exception is None


def round_files(snapshot: Snapshot, number: int) -> RoundFiles:
    """Return the files of a round; empty if there are none."""
    for files in snapshot.rounds:
        if files.number == number:
            return files
    return RoundFiles(number, (), {})


def history_of(snapshot: Snapshot, number: int) -> History | None:
    """Return what the state remembers of a round."""
    history = snapshot.state.history if snapshot.state else ()
    return next((h for h in history if h.round == number), None)


def summaries(snapshot: Snapshot, number: int) -> dict[int, Failure]:
    """Return the failures of a round as node files and the state have them in short, by rank."""
    words: dict[int, Failure] = {}
    for word in snapshot.nodes:
        _add_summary(words, _failure_of(word), number)
    entry = history_of(snapshot, number)
    if entry is not None:
        _add_summary(words, entry.failure, number)
    return words


def _failure_of(word: NodeRecordFacts) -> Failure | None:
    failure = word.failure
    return replace(failure, round=word.round) if failure is not None and not failure.round else failure


def _add_summary(words: dict[int, Failure], failure: Failure | None, number: int) -> None:
    if failure is not None and failure.round == number:
        words[failure.rank] = failure


def _stop_began_ns(node: RoundNode) -> int | None:
    """When this node began to stop its workers, or the latest time by which it surely had not."""
    if node.stop_ns is not None:
        return node.stop_ns
    if not any(worker.stopped_by_ftslurm for worker in node.workers):
        return None  # nobody asks
    own = (w for w in node.workers if w.failed and not w.stopped_by_ftslurm)
    return min((w.ended_ns for w in own if w.ended_ns is not None), default=None)


def _failed_by_itself(worker: Worker, error: RankError | Short | None, began_ns: int | None) -> bool:
    if worker.stopped_by_ftslurm:
        # Its process ended late (torch's teardown takes seconds), its exception came first: the same
        # clock says so. Across nodes no clock does, so there the agent's word stands.
        return (
            error is not None
            and error.kind == "exception"
            and error.time_ns is not None
            and began_ns is not None
            and error.time_ns < began_ns
        )
    return worker.failed or (worker.ended_ns is None and error is not None and not _maybe_stopped(error))


def _maybe_stopped(error: RankError | Short | None) -> bool:
    """Whether the record may be that of a rank that ftslurm stopped: only the agent's word could tell."""
    return isinstance(error, RankError) and error.exception is None and error.signal in ("SIGTERM", "SIGKILL")


def _order(clocks: Clocks, number: int, suspect: FailedWorker) -> tuple[bool, bool, int, int]:
    time_ns = _comparable_ns(clocks, number, suspect)
    return suspect.cause.role != PRIMARY, suspect.time_ns is None, time_ns, suspect.rank


def _comparable_ns(clocks: Clocks, number: int, suspect: FailedWorker) -> int:
    return clocks.comparable_ns(number, suspect.node, suspect.time_ns or 0)
