"""The workers of a round that failed by themselves, and their order: root cause first (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.failures.causes import ROWS
from ftslurm.failures.exception_line import HEADER
from ftslurm.failures.reason import EXIT, before_collective, by_distributed
from ftslurm.records.error import ExceptionRecord
from ftslurm.report.collective_timeouts import BY_WATCHDOG
from ftslurm.report.facts import (
    Attempt,
    Clocks,
    Doubt,
    Failure,
    History,
    LogTail,
    NodeRecordFacts,
    RankError,
    RecordSummary,
    RoundFiles,
    RoundNode,
    Snapshot,
    Worker,
)
from ftslurm.report.failed_worker import FailedWorker, failed_worker_of, from_summary
from ftslurm.report.judged_worker import STUCK, Peers, judge
from ftslurm.report.scheduler import state_for_evidence

HANG = "hang"
OF_FABRIC = ("nccl-ib", "nccl-truncated")
"""Causes that are a rank's own only where no other rank has one of another kind."""
ALIKE_NS = 1_000_000_000
ALIKE_LINES = 200
"""Time between equal failures within which their order means nothing: all ranks fail in the same import."""


class OwnFailure(NamedTuple):
    """A worker that failed and was not stopped by ftslurm, before its cause is judged.

    ``node``, ``worker``: its agent's records of it, if any; ``record``: its error record; if that was not read, the
    record summary; ``failure``: its failure in the node record or the state.
    """

    rank: int
    node: RoundNode | None
    worker: Worker | None
    record: RankError | RecordSummary | None
    failure: Failure | None

    @property
    def raised(self) -> bool:
        """Whether it ended by an exception, as far as recorded."""
        if isinstance(self.record, RecordSummary):
            return self.record.type is not None
        if self.record is not None and self.record.exception is not None:
            return True
        return self.record is None and self.failure is not None and self.failure.kind == "exception"

    @property
    def exited(self) -> bool:
        """Whether it ended by an exit code of its own, as also by ``sys.exit``."""
        type_ = self.record.type if isinstance(self.record, RecordSummary) else None
        if self.record is not None and not isinstance(self.record, RecordSummary) and self.record.exception is not None:
            type_ = self.record.exception.type
        return not self.raised or type_ == EXIT

    @property
    def end(self) -> tuple[int | None, str | None]:
        """The exit code and the signal in its agent's record."""
        return (None, None) if self.worker is None else (self.worker.exit_code, self.worker.signal)


class Follower(NamedTuple):
    """A rank whose failure is a cascade, known by its record summary; compared by the order of the failures.

    `where`: "file:line in function" of the innermost frame of the user's code; None: unknown.
    """

    untimed: bool
    at_ns: int
    rank: int
    node: str
    time_ns: int | None
    where: str | None = None


@dataclass(frozen=True)
class Failures:
    """The workers of a round that failed by themselves.

    Attributes:
        judged: root cause first: primary causes precede cascades, then earlier ones precede later ones, as far as the
            nodes' clocks allow.
        following: by cause the ranks whose record summaries show cascades, unordered. They share the cause of a rank
            whose record was read, because their signatures are equal. This holds for ftslurm's own rows for cascades,
            which depend on nothing in which such records may differ; a test verifies it.
    """

    judged: Sequence[FailedWorker] = ()
    following: Mapping[str, Sequence[Follower]] = field(default_factory=dict)


def own_failures(files: RoundFiles, failures: Mapping[int, Failure]) -> list[OwnFailure]:
    """Return the workers that failed by themselves.

    A worker that ftslurm stopped is not included, whatever it wrote while it ended; but if its exception was caught on
    its own node before any worker there was stopped, it failed by itself, even if its process took longer to end.

    Args:
        files: the round.
        failures: its failures in node records and the state, by rank; see `recorded_failures`.
    """
    found: list[OwnFailure] = []
    ended: set[int] = set()
    for node in files.nodes:
        began_ns = _stop_began_ns(node)
        for worker in node.workers:
            record: RankError | RecordSummary | None = files.errors.get(worker.rank)
            if worker.ended_ns is not None:
                ended.add(worker.rank)
                if record is None and node.ended_ns is not None:
                    record = worker.error
            if _failed_by_itself(worker, record, began_ns):
                found.append(OwnFailure(worker.rank, node, worker, record, failures.get(worker.rank)))
    for rank in sorted((set(files.errors) | set(failures)) - ended - {own.rank for own in found}):
        # No agent recorded this rank's end: its agent died first, or its file is damaged.
        error = files.errors.get(rank)
        if rank in failures or not _maybe_stopped(error):
            found.append(OwnFailure(rank, None, None, error, failures.get(rank)))
    return found


def judge_failures(snapshot: Snapshot, clocks: Clocks, files: RoundFiles) -> Failures:
    """Judge each worker that failed by itself; of many equal cascades only one."""
    state = _scheduler_state(snapshot, files)
    examples = _examples(files)
    judged: dict[int, FailedWorker] = {}
    following: dict[str, list[Follower]] = {}
    groups: dict[tuple[object, ...], list[Follower] | None] = {}
    failures = own_failures(files, recorded_failures(snapshot, files.number))
    peers = Peers(healthy_stderr(files, {own.rank for own in failures}), survived_stderr(files))
    for own in failures:
        record = own.record
        if isinstance(record, RecordSummary) and own.node is not None:
            kind = (record.signature, *own.end)
            if kind not in groups:
                cascade = _cascade(snapshot, state, own, record, examples.get(record.signature))
                groups[kind] = None if cascade is None else following.setdefault(cascade, [])
            group = groups[kind]
            if group is not None:
                at_ns = clocks.comparable_ns(files.number, own.node.node, record.time_ns or 0)
                found = (record.time_ns is None, at_ns, own.rank, own.node.node, record.time_ns, record.where)
                group.append(Follower(*found))
                continue
        judged[own.rank] = _judge(snapshot, files, state, own, examples, peers)
    if all(failed.cause.cascade for failed in judged.values()):
        before = [_before_collective(own) for own in failures if own.rank in judged]
        judged |= {own.rank: _judge(snapshot, files, state, own, examples, peers) for own in before if own}
    orders = {rank: _order(clocks, files.number, failed) for rank, failed in judged.items()}
    waited = [orders[rank][2:] for rank, failed in judged.items() if failed.cause.name in BY_WATCHDOG]
    for rank, failed in judged.items():
        if failed.cause.name == STUCK and waited and min(waited) < orders[rank][2:]:
            # Whatever others wait for stops the watchdog, too.
            orders[rank] = (True, *orders[rank][1:])
    ordered = sorted(judged.values(), key=lambda failed: orders[failed.rank])
    return Failures(_recorded_first(snapshot, clocks, files.number, ordered), following)


def healthy_stderr(files: RoundFiles, failed: set[int]) -> list[str]:
    """Return the ends of stderr, as far as read, of ranks that did not fail; of logs without records it is unknown."""
    workers = [worker for node in files.nodes for worker in node.workers]
    codes = {worker.exit_code for worker in workers if worker.rank in failed} - {None, 0}
    # Ranks that ended as a failed one did, although ftslurm was just stopping them.
    failed = failed | {worker.rank for worker in workers if worker.signal is None and worker.exit_code in codes}
    ends = [worker.ended_ns for worker in workers if worker.rank in failed and worker.ended_ns is not None]
    tails = [tail for worker in workers if worker.rank not in failed for tail in files.tails.get(worker.rank, ())]
    return [tail.text for tail in tails if tail.stream == "stderr" and not _was_failing(tail, min(ends, default=None))]


def survived_stderr(files: RoundFiles) -> list[str]:
    """Return what ranks had printed to stderr before one of their collectives failed: they had gone on after it.

    Not of ranks that called the collective in a handler, or a cleanup, of what they printed.
    """
    found: list[str] = []
    for rank, error in files.errors.items():
        raised = error.exception
        if raised is None or raised.context is not None:
            continue
        if by_distributed(raised.type, raised.module, raised.message, raised.inner_file):
            texts = (tail.text for tail in files.tails.get(rank, ()) if tail.stream == "stderr")
            found += [_before(text, raised) for text in texts]
    return found


def _before(text: str, raised: ExceptionRecord) -> str:
    """Return an output without the exception's own traceback, if it has that, and what follows."""
    if HEADER not in text:
        return text
    from ftslurm.failures.traceback_text import tracebacks

    lines = text.splitlines()
    own = next((each for each in reversed(tracebacks(lines)) if each.exception.type == raised.type), None)
    return text if own is None else "\n".join(lines[: own.first])


def _was_failing(tail: LogTail, first_ns: int | None) -> bool:
    """Return whether a rank had just printed a traceback as its last lines when the first one ended: it failed, too."""
    if first_ns is None or tail.written_ns is None or first_ns - tail.written_ns > ALIKE_NS:
        return False
    if HEADER not in tail.text:
        return False
    from ftslurm.failures.traceback_text import tracebacks

    lines = tail.text.rstrip().splitlines()[-ALIKE_LINES:]
    found = tracebacks(lines)
    return bool(found) and found[-1].end == len(lines)


def _judge(
    snapshot: Snapshot,
    files: RoundFiles,
    state: str,
    own: OwnFailure,
    examples: Mapping[str, RankError],
    peers: Peers,
) -> FailedWorker:
    record, observed = own.record, None
    if own.node is not None and own.worker is not None:
        observed = own.node, own.worker
        if isinstance(record, RecordSummary):
            record = from_summary(own.node, own.worker, record, examples.get(record.signature))
    error = None if isinstance(record, RecordSummary) else record
    worker = failed_worker_of(own.rank, observed, error, own.failure, state)
    return judge(worker, files.tails.get(own.rank, ()), snapshot.causes, peers)


def _before_collective(own: OwnFailure) -> OwnFailure | None:
    """Return a failure with the exception that its rank handled when its collective failed; None: there is none."""
    if not isinstance(own.record, RankError) or own.record.exception is None:
        return None
    exception = before_collective(own.record.exception)
    if exception is None:
        return None
    message = f"{exception.type}: {exception.message}"
    return own._replace(record=replace(own.record, exception=exception, message=message))


def _cascade(
    snapshot: Snapshot, state: str, own: OwnFailure, summary: RecordSummary, example: RankError | None
) -> str | None:
    """Return the cause of a cascade's exception; None if it is none, or cannot be judged by an equal record."""
    if example is None or example.exception is None or summary.kind != "exception" or snapshot.causes is not ROWS:
        return None
    assert own.node is not None
    assert own.worker is not None
    # Its message may be longer than the summary's.
    record = replace(from_summary(own.node, own.worker, summary, example), exception=example.exception)
    worker = failed_worker_of(own.rank, (own.node, own.worker), record, None, state)
    cause = judge(worker, (), snapshot.causes).cause
    return cause.name if cause.cascade else None


def _examples(files: RoundFiles) -> dict[str, RankError]:
    """Return a record for each signature of which one was read."""
    errors = files.errors
    found: dict[str, RankError] = {}
    for node in files.nodes:
        for worker in node.workers:
            if worker.error is not None and worker.rank in errors:
                found.setdefault(worker.error.signature, errors[worker.rank])
    return found


def as_follower(clocks: Clocks, number: int, failed: FailedWorker) -> Follower:
    """Return a failed worker as a follower, for the common order."""
    at_ns = _comparable_ns(clocks, number, failed)
    return Follower(failed.time_ns is None, at_ns, failed.rank, failed.node, failed.time_ns)


def order_unjudged(clocks: Clocks, number: int, own: OwnFailure) -> tuple[bool, int, int]:
    """Return the order of a failure among those of a round, without regard to their causes."""
    record, failure = own.record, own.failure
    recorded_ns = record.time_ns if record is not None else None
    published_ns = failure.time_ns if failure is not None else None
    ended_ns = own.worker.ended_ns if own.worker is not None else None
    known = (recorded_ns, published_ns, ended_ns) if own.raised else (ended_ns, recorded_ns, published_ns)
    time_ns = next((t for t in known if t is not None), None)
    node = own.node or (record if isinstance(record, RankError) else None) or failure
    name = node.node if node is not None and node.node is not None else "?"
    return time_ns is None, clocks.comparable_ns(number, name, time_ns or 0), own.rank


def at_the_same_time(clocks: Clocks, number: int, ordered: Sequence[FailedWorker]) -> list[tuple[FailedWorker, Doubt]]:
    """Return the primary failures that the clocks do not prove to be later than the first, and their uncertainty.

    The first one of each other node: within a node, one clock gives the order.
    """
    if not ordered or ordered[0].cause.cascade or ordered[0].time_ns is None:
        return []
    first, nodes, found = ordered[0], {ordered[0].node}, []
    assert first.time_ns is not None
    for failed in ordered[1:]:
        if failed.cause.cascade or failed.time_ns is None or failed.node in nodes:
            continue
        nodes.add(failed.node)
        doubt = clocks.between(number, (first.node, first.time_ns), (failed.node, failed.time_ns))
        if _comparable_ns(clocks, number, failed) - _comparable_ns(clocks, number, first) <= doubt.ns:
            found.append((failed, doubt))
    return found


def round_files(snapshot: Snapshot, number: int) -> RoundFiles:
    """Return the files of a round; empty if there are none."""
    return next((files for files in snapshot.rounds if files.number == number), RoundFiles(number, (), {}))


def history_of(snapshot: Snapshot, number: int) -> History | None:
    """Return the state's history entry of a round."""
    history = snapshot.state.history if snapshot.state else ()
    return next((h for h in history if h.round == number), None)


def attempts_of(snapshot: Snapshot, files: RoundFiles) -> Sequence[Attempt]:
    """Return the attempts that wrote a round's files."""
    entry = history_of(snapshot, files.number)
    names = {node.attempt for node in files.nodes} | {entry.attempt if entry else None}
    return [each for each in snapshot.attempts if each.attempt in names]


def hang_of(snapshot: Snapshot, number: int) -> Failure | None:
    """Return the hang that ended a round; None if there was another reason."""
    entry = history_of(snapshot, number)
    if entry is not None and entry.failure is not None:
        return entry.failure if entry.failure.kind == HANG else None
    if entry is not None and entry.outcome == "node-lost":
        # Ranks that waited for those of the lost node may have hung meanwhile.
        return None
    return next((f for f in _published(snapshot, number).values() if f.kind == HANG), None)


def recorded_rank(snapshot: Snapshot, number: int) -> int | None:
    """Return the rank of the failure that ended a round, as the state has it; None: there is none."""
    entry = history_of(snapshot, number)
    failure = entry.failure if entry is not None else None
    return None if failure is None or failure.kind == HANG else failure.rank


def _recorded_first(
    snapshot: Snapshot, clocks: Clocks, number: int, ordered: list[FailedWorker]
) -> Sequence[FailedWorker]:
    """Put the failure that ended the round before one that is equal: job output, status and report name one rank."""
    rank = recorded_rank(snapshot, number)
    recorded = next((failed for failed in ordered if failed.rank == rank), None)
    if recorded is None or _comparison(recorded) != _comparison(ordered[0]):
        return ordered
    if _comparable_ns(clocks, number, recorded) - _comparable_ns(clocks, number, ordered[0]) > ALIKE_NS:
        return ordered
    return [recorded, *(failed for failed in ordered if failed is not recorded)]


def _comparison(failed: FailedWorker) -> tuple[object, ...]:
    """Return what equal failures have in common."""
    type_ = failed.exception.type if failed.exception is not None else None
    place = (failed.frames[-1].file, failed.frames[-1].line) if failed.frames else None
    return failed.kind, failed.cause.name, type_, place, failed.exit_code, failed.signal


def recorded_failures(snapshot: Snapshot, number: int) -> dict[int, Failure]:
    """Return the failures of a round in node records and the state, by rank, without hangs."""
    return {rank: failure for rank, failure in _published(snapshot, number).items() if failure.kind != HANG}


def _published(snapshot: Snapshot, number: int) -> dict[int, Failure]:
    entry = history_of(snapshot, number)
    found = [_failure_of(record) for record in snapshot.nodes] + [entry.failure if entry is not None else None]
    return {failure.rank: failure for failure in found if failure is not None and failure.round == number}


def _failure_of(record: NodeRecordFacts) -> Failure | None:
    failure = record.failure
    return replace(failure, round=record.round) if failure is not None and not failure.round else failure


def _scheduler_state(snapshot: Snapshot, files: RoundFiles) -> str:
    if not snapshot.scheduler:
        return ""
    entry = history_of(snapshot, files.number)
    attempt = entry.attempt if entry is not None else next((node.attempt for node in files.nodes), None)
    return state_for_evidence(snapshot, files.number, attempt)


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


def _order(clocks: Clocks, number: int, failed: FailedWorker) -> tuple[bool, bool, bool, int, int, int]:
    time_ns = _comparable_ns(clocks, number, failed)
    # A fabric reports the end of the process at the other end as an error of its own, too.
    of_peer = failed.cause.name in OF_FABRIC
    return failed.cause.cascade, of_peer, failed.time_ns is None, time_ns, failed.order, failed.rank


def _comparable_ns(clocks: Clocks, number: int, failed: FailedWorker) -> int:
    return clocks.comparable_ns(number, failed.node, failed.time_ns or 0)
