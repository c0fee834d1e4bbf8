"""What was read for a report, as frozen facts; its times on one scale, and the uncertainty of their order (pure).

Times are nanoseconds since the epoch (``_ns``). Each agent measures its clock against the shared filesystem's server
(`ftslurm.sharedfs.clock`) and writes the result into its node record and each round's file. `aligned` corrects all
times of nodes whose clocks are far off; `Clocks` has the small corrections and errors of the others. Failures of two
nodes are ordered only if they differ by more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.failures.causes import ROWS, Cause
from ftslurm.failures.reason import EXIT, is_bare_exit, judged
from ftslurm.monitor.stacks_file import RankStacks
from ftslurm.records.arrivals import ArrivalsRecord
from ftslurm.records.attempt import Attempt, Run, StepEnd
from ftslurm.records.attempt import SchedulerView as Scheduler
from ftslurm.records.codec import BadFile
from ftslurm.records.defect import DefectRecord
from ftslurm.records.error import ErrorRecord, ExceptionRecord, HostResources, error_record_in
from ftslurm.records.node import NodeRecord as NodeRecordFacts
from ftslurm.records.node import Predecessor
from ftslurm.records.round import Progress, RecordSummary
from ftslurm.records.round import RoundRecord as RoundNode
from ftslurm.records.round import WorkerRecord as Worker
from ftslurm.records.state import ClockOffset as Clock
from ftslurm.records.state import Closed, Failure, Participant, State
from ftslurm.records.state import RoundHistory as History
from ftslurm.records.verdict import AttemptVerdict, Requeued
from ftslurm.sharedfs.bounded_read import Malformed

__all__ = [
    "UNNAMED",
    "Attempt",
    "Clock",
    "Closed",
    "DefectRecord",
    "Failure",
    "History",
    "Job",
    "LogTail",
    "LostNode",
    "NodeRecordFacts",
    "Participant",
    "Predecessor",
    "Problem",
    "Progress",
    "RankError",
    "RecordSummary",
    "RoundFiles",
    "RoundNode",
    "Run",
    "Scheduler",
    "Snapshot",
    "State",
    "StepEnd",
    "Worker",
]  # fmt: skip

if TYPE_CHECKING:
    from typing import TypeGuard

    from ftslurm.collectives.calls import RankCalls

T = TypeVar("T")
UNNAMED = "?"
"""The name of a node that no record names."""
_YEAR_NS = 366 * 86_400 * 10**9
SKEWED_NS = 500_000_000
"""Offset from which all times of a clock are corrected, so that times and durations in the report make sense."""
ASSUMED_NS = 50_000_000
"""Assumed error of an unmeasured clock: generous for NTP in a cluster."""
DRIFT = 20e-6
"""Drift of a clock since its measurement: that of a free-running crystal; NTP keeps it lower."""
TOGETHER_NS = 2_000_000_000
"""The nodes begin a round within this time; if their clocks disagree by more, the measured errors are too small."""


@dataclass(frozen=True)
class LostNode:
    """A node lost in a round, as the state records it or the report infers it (then without times).

    ``silent_s``: seconds since its last heartbeat at ``time_ns``.
    """

    node: str
    round: int
    time_ns: int | None
    silent_s: float | None


@dataclass(frozen=True)
class Problem:
    """A file that was unusable, or usable only in part."""

    file: str
    reason: str


@dataclass(frozen=True)
class RankError:
    """One worker's ``error.json``; if not ``whole``, reconstructed from the record summary.

    ``exception`` is the one that is judged (`ftslurm.failures.reason`); ``exit_message``: the text of the program's
    own exit because of it, empty if there was none. ``order``: where there are no times, as in logs; ``quotes``:
    lines of a log that are evidence. A rank that a log does not name has a negative number.
    """

    rank: int
    node: str | None
    host: str | None
    local_rank: int | None
    time_ns: int | None
    kind: str
    exit_code: int | None
    signal: str | None
    step: int | None
    pid: int | None
    argv: tuple[str, ...]
    message: str
    traceback: str | None
    exception: ExceptionRecord | None
    stacks: str | None
    host_resources: HostResources | None = None
    sections: tuple[tuple[str, float], ...] = ()
    cuda: tuple[tuple[str, int], ...] = ()
    exit_message: str = ""
    whole: bool = True
    order: int = 0
    quotes: tuple[str, ...] = ()

    @staticmethod
    def of(record: ErrorRecord, rank: int) -> RankError:
        """Return the facts in the record of a rank."""
        whole, raised = record.exception, judged(record)
        hidden = whole is not None and whole is not raised and whole.type == EXIT and not is_bare_exit(whole)
        if whole is not None and raised is not None and raised.message:
            # As "PYTHON: No module named X", of Python itself.
            hidden = hidden and not whole.message.endswith(raised.message)
        return RankError(
            rank=rank,
            node=record.node,
            host=record.host,
            local_rank=record.local_rank,
            time_ns=record.time_ns or None,
            kind=record.kind,
            exit_code=record.exit_code,
            signal=record.signal,
            step=record.step,
            pid=record.pid,
            argv=record.argv,
            message=record.message,
            traceback=record.traceback or None,
            exception=raised,
            stacks=record.stacks or None,
            host_resources=record.host_resources,
            sections=record.sections,
            cuda=tuple((record.cuda or {}).items()),
            exit_message=whole.message if whole is not None and hidden else "",
        )


def read_error(value: object) -> tuple[ErrorRecord, str | None]:
    """Return the error record in a file's JSON value, and why ftslurm's part of it is unusable, or partly.

    Raises:
        Malformed: it is no error file.
    """
    try:
        record, unusable = error_record_in(value, "it", lenient=True)
    except BadFile as error:
        raise Malformed(str(error).removeprefix("it: ")) from None
    return record, None if unusable is None else unusable.removeprefix("it: ")


@dataclass(frozen=True)
class Job:
    """A Slurm job that has no run: ``note`` is why, ``last_lines`` are from its output file."""

    note: str
    output: str | None
    last_lines: tuple[str, ...]


@dataclass(frozen=True)
class LogTail:
    """The end of a rank's output.

    Attributes:
        size: the whole file's, in bytes.
        written_ns: when the file was written last, by its filesystem; None: unknown.
    """

    stream: str
    path: str
    text: str
    size: int
    written_ns: int | None = None


@dataclass(frozen=True)
class RoundFiles:
    """Contents of ``rounds/<number>/``: node files; error records, output tails and the stacks of a hang by rank.

    ``selected``: the ranks whose error records were to be read; of the others, their record summaries are enough.
    ``calls``: see `ftslurm.report.rank_stacks.calls_of`. ``collectives``: what the ranks called, by their records.
    ``arrivals``: when they arrived at collectives, by the nodes' samples.
    """

    number: int
    nodes: tuple[RoundNode, ...]
    errors: Mapping[int, RankError]
    tails: Mapping[int, tuple[LogTail, ...]] = field(default_factory=dict)
    stacks: Mapping[int, RankStacks] = field(default_factory=dict)
    selected: frozenset[int] = frozenset()
    calls: Mapping[tuple[str, int], str] = field(default_factory=dict)
    collectives: Mapping[int, RankCalls] = field(default_factory=dict)
    arrivals: tuple[ArrivalsRecord, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """All input of the report, read at one time (``now_ns``); ``causes`` are the catalogue's rows.

    ``source`` is "ftslurm", or another source; ``notes``: what its readers should know about it.
    """

    directory: str
    now_ns: int
    run: Run | None = None
    attempts: tuple[Attempt, ...] = ()
    state: State | None = None
    nodes: tuple[NodeRecordFacts, ...] = ()
    rounds: tuple[RoundFiles, ...] = ()
    skipped_rounds: int = 0
    problems: tuple[Problem, ...] = ()
    causes: tuple[Cause, ...] = ROWS
    scheduler: tuple[Scheduler, ...] = ()
    defects: Mapping[str, DefectRecord] = field(default_factory=dict)
    steps: tuple[StepEnd, ...] = ()
    verdicts: tuple[AttemptVerdict, ...] = ()
    requeued: tuple[Requeued, ...] = ()
    source: str = "ftslurm"
    job: Job | None = None
    notes: tuple[str, ...] = ()

    @property
    def attempt(self) -> Attempt | None:
        """The attempt of the state; the newest one where there is no state.

        A job that was refused, because another one holds the run, has a newer attempt that never took part.
        """
        if self.state is not None and self.state.attempt is not None:
            return next((each for each in self.attempts if each.attempt == self.state.attempt), None)
        return max(self.attempts, key=lambda each: each.created_ns or 0, default=None)


@dataclass(frozen=True)
class Reading:
    """A node's clock in a round: the remaining correction of its times, in nanoseconds, and its error."""

    shift_ns: int
    error_ns: int
    at_ns: int | None
    known: bool


UNKNOWN = Reading(0, ASSUMED_NS, None, known=False)


@dataclass(frozen=True)
class Doubt:
    """The least difference by which one of two times is certainly later; ``known``: both clocks were measured."""

    ns: int
    known: bool


@dataclass(frozen=True)
class Clocks:
    """The nodes' clocks.

    Attributes:
        readings: by round and node.
        started: when each node began each round, on the common clock as far as known.
        ahead_ns: offset ahead of the others' clocks, of nodes whose clock is far off.
    """

    readings: Mapping[tuple[int, str], Reading] = field(default_factory=dict)
    started: Mapping[tuple[int, str], int] = field(default_factory=dict)
    ahead_ns: Mapping[str, int] = field(default_factory=dict)

    def comparable_ns(self, number: int, node: str, time_ns: int) -> int:
        """Return a node's time on the common clock."""
        return time_ns + self._reading(number, node).shift_ns

    def error_ns(self, number: int, node: str, time_ns: int) -> Doubt:
        """Return the error of a node's time."""
        reading = self._reading(number, node)
        age_ns = 0 if reading.at_ns is None else abs(time_ns - reading.at_ns)
        return Doubt(reading.error_ns + int(age_ns * DRIFT), reading.known)

    def between(self, number: int, one: tuple[str, int], other: tuple[str, int]) -> Doubt:
        """Return the uncertainty of the order of two events, each a node and its time."""
        if one[0] == other[0]:
            return Doubt(0, known=True)
        a, b = self.error_ns(number, *one), self.error_ns(number, *other)
        doubt = Doubt(a.ns + b.ns, a.known and b.known)
        starts = [self.started.get((number, node)) for node, _ in (one, other)]
        if starts[0] is None or starts[1] is None:
            return doubt
        apart_ns = abs(starts[0] - starts[1])
        return doubt if apart_ns <= TOGETHER_NS + doubt.ns else Doubt(apart_ns, known=False)

    def _reading(self, number: int, node: str) -> Reading:
        return self.readings.get((number, node), UNKNOWN)


def far_off(clocks: Clocks) -> Iterable[dict[str, object]]:
    """Describe the clocks that are far off, for the report's ``clocks``."""
    for node, ahead_ns in sorted(clocks.ahead_ns.items(), key=lambda pair: -abs(pair[1])):
        yield {"node": node, "ahead_s": ahead_ns / 1e9}


def aligned(snapshot: Snapshot) -> tuple[Snapshot, Clocks]:
    """Return the snapshot with corrected times of nodes whose clocks are far off, and the nodes' clocks.

    The reference is the median of the nodes' clocks: where they agree with each other, nothing changes, whatever the
    offset of the server's clock.
    """
    records = {record.node: record.clock for record in snapshot.nodes if _plausible(record.clock)}
    readings: dict[tuple[int, str], Reading] = {}
    started: dict[tuple[int, str], int] = {}
    ahead: dict[str, int] = {}
    rounds = []
    for files in snapshot.rounds:
        clocks = {node.node: node.clock if _plausible(node.clock) else records.get(node.node) for node in files.nodes}
        for rank_error in files.errors.values():
            if rank_error.node is not None:
                clocks.setdefault(rank_error.node, records.get(rank_error.node))
        shifts = _shifts({node: clock for node, clock in clocks.items() if clock is not None})
        far = {node: ns for node, ns in shifts.items() if abs(ns) >= SKEWED_NS}
        ahead |= {node: -ns for node, ns in far.items()}
        for node, ns in shifts.items():
            clock = clocks[node]
            assert clock is not None
            moved = far.get(node, 0)
            readings[files.number, node] = Reading(ns - moved, clock.error_ns, clock.at_ns + moved, known=True)
        corrected = _shifted_files(files, far) if far else files
        for round_node in corrected.nodes:
            if round_node.started_ns is not None:
                rest = readings.get((files.number, round_node.node), UNKNOWN).shift_ns
                started[files.number, round_node.node] = round_node.started_ns + rest
        rounds.append(corrected)
    far = {node: ns for node, ns in _shifts(records).items() if abs(ns) >= SKEWED_NS}
    ahead |= {node: -ns for node, ns in far.items()}
    snapshot, clocks_ = replace(snapshot, rounds=tuple(rounds)), Clocks(readings, started, ahead)
    if not far:
        return snapshot, clocks_
    nodes = tuple(_moved(record, far[record.node]) if record.node in far else record for record in snapshot.nodes)
    state = None if snapshot.state is None else _shifted_state(snapshot.state, far)
    return replace(snapshot, nodes=nodes, state=state), clocks_


def _shifts(clocks: Mapping[str, Clock]) -> dict[str, int]:
    offsets = sorted(clock.offset_ns for clock in clocks.values())
    if not offsets:
        return {}
    # With an even number, the one of the two medians that is closer to the server.
    base = min(offsets[(len(offsets) - 1) // 2], offsets[len(offsets) // 2], key=abs)
    return {node: clock.offset_ns - base for node, clock in clocks.items()}


def _plausible(clock: Clock | None) -> TypeGuard[Clock]:
    """Whether a clock was measured, with a result that a damaged file would not give."""
    return clock is not None and clock.error_ns >= 0 and abs(clock.offset_ns) <= _YEAR_NS


def _plus(time_ns: int | None, ns: int) -> int | None:
    return None if time_ns is None else time_ns + ns


def _shifted_files(files: RoundFiles, far: Mapping[str, int]) -> RoundFiles:
    nodes = tuple(_moved(node, far[node.node]) if node.node in far else node for node in files.nodes)
    home = {worker.rank: node.node for node in files.nodes for worker in node.workers}
    errors = {rank: _shifted_error(e, far.get(e.node or home.get(rank, ""), 0)) for rank, e in files.errors.items()}
    return replace(files, nodes=nodes, errors=errors)


def _shifted_error(error: RankError, ns: int) -> RankError:
    return replace(error, time_ns=_plus(error.time_ns, ns)) if ns else error


def _moved(record: T, ns: int) -> T:
    """Return a record with all times in it moved, but not those of its clock's measurement."""
    changes: dict[str, Any] = {}
    for name in type(record).__annotations__:
        value = getattr(record, name)
        if isinstance(value, tuple):
            changes[name] = tuple(_moved(one, ns) if hasattr(one, "__dataclass_fields__") else one for one in value)
        elif hasattr(value, "__dataclass_fields__") and not isinstance(value, Clock):
            changes[name] = _moved(value, ns)
        elif name.endswith("_ns") and value is not None:
            changes[name] = value + ns
    return replace(record, **changes)  # type: ignore[type-var]


def _shifted_state(state: State, far: Mapping[str, int]) -> State:
    # The state's times are its coordinator's, assumed to be the same one throughout; a failure's are its node's.
    ns = far.get(state.coordinator.node, 0)
    moved = _moved(replace(state, history=()), ns)
    return replace(moved, history=tuple(_shifted_history(entry, ns, far) for entry in state.history))


def _shifted_history(entry: History, ns: int, far: Mapping[str, int]) -> History:
    failure = entry.failure
    if failure is not None:
        failure = _moved(failure, far.get(failure.node, 0))
    return replace(_moved(replace(entry, failure=None), ns), failure=failure)
