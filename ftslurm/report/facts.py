"""The contents of a run directory's files as frozen facts; times are nanoseconds since the epoch (``_ns``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ftslurm.dataclasses import dataclass, field
from ftslurm.failures.causes import ROWS, Cause, HostResources
from ftslurm.health.node_health import Health
from ftslurm.monitor.stacksfile import RankStacks
from ftslurm.report.clocks import Clocks


@dataclass(frozen=True)
class Problem:
    """A file that was unusable, or usable only in part."""

    file: str
    reason: str


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback."""

    file: str
    line: int
    function: str
    source: str | None


@dataclass(frozen=True)
class Exc:
    """An exception: frames outermost first; ``link`` is its cause (then it is ``explicit``), else its context."""

    type: str
    module: str
    message: str
    frames: tuple[Frame, ...]
    link: Exc | None
    explicit: bool = False
    members: tuple[Exc, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """The summary of one worker's failure in node records and the state.

    ``blame``: whether its node may be the cause; ``since_ns``: of a hang, the time of the rank's last progress.
    """

    round: int
    node: str
    rank: int
    local_rank: int | None
    time_ns: int | None
    kind: str
    exit_code: int | None
    signal: str | None
    message: str
    step: int | None
    blame: str | None = None
    since_ns: int | None = None


@dataclass(frozen=True)
class RankError:
    """One worker's ``error.json``; if not ``whole``, reconstructed from the record summary.

    ``exception`` is the one that is judged (`ftslurm.failures.reason`); ``exit_message``: the text of the program's
    own exit because of it, empty if there was none.
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
    exception: Exc | None
    stacks: str | None
    host_resources: HostResources | None = None
    sections: tuple[tuple[str, float], ...] = ()
    cuda: tuple[tuple[str, int], ...] = ()
    exit_message: str = ""
    whole: bool = True


class Progress(NamedTuple):
    """First and last training step that a worker reported in a round."""

    first_step: int
    first_ns: int | None
    last_step: int
    last_ns: int | None


class RecordSummary(NamedTuple):
    """A record summary (`ftslurm.failures.record_summary`); ``signature``: the signature of what it omits."""

    kind: str
    type: str | None
    module: str
    message: str
    where: str | None
    step: int | None
    time_ns: int | None
    signature: str


class Worker(NamedTuple):
    """An agent's record of one worker in one round.

    ``error``: the summary of its published error record; ``error_known``: whether the agent recorded if there is one.
    """

    rank: int
    local_rank: int | None
    pid: int | None
    started_ns: int | None
    ended_ns: int | None
    exit_code: int | None
    signal: str | None
    core_dumped: bool
    stopped_by_ftslurm: bool
    stop_signal: str | None
    progress: Progress | None
    failed: bool
    pace: tuple[tuple[int, int], ...] = ()
    error: RecordSummary | None = None
    error_known: bool = False


@dataclass(frozen=True)
class Clock:
    """A node's clock relative to the filesystem server's: what to add to its times, within ``error_ns``."""

    offset_ns: int
    error_ns: int
    at_ns: int


class RoundNode(NamedTuple):
    """One agent's record of one round."""

    round: int
    attempt: str | None
    node: str
    host: str | None
    world_size: int | None
    started_ns: int | None
    ended_ns: int | None
    outcome: str
    stop_reason: str | None
    stop_ns: int | None
    workers: tuple[Worker, ...]
    clock: Clock | None = None
    health: Health | None = None
    incarnation: str | None = None


class Predecessor(NamedTuple):
    """A killed agent that a newer agent of the node has replaced: how it ended, and when."""

    incarnation: str
    reason: str
    time_ns: int | None


class NodeRecordFacts(NamedTuple):
    """The contents of a node record; ``unhealthy``, ``excluded``: why it must, or should, take part in no round."""

    node: str
    attempt: str | None
    host: str | None
    status: str
    round: int
    failure: Failure | None
    reason: str | None
    time_ns: int | None
    clock: Clock | None = None
    health: Health | None = None
    unhealthy: str | None = None
    excluded: str | None = None
    incarnation: str | None = None
    predecessor: Predecessor | None = None


@dataclass(frozen=True)
class Participant:
    """A node of the newest round and the ranks it holds."""

    node: str
    first_rank: int
    slots: int


@dataclass(frozen=True)
class LostNode:
    """A node that the coordinator declared lost, at ``time_ns``, ``silent_s`` after its last heartbeat."""

    node: str
    round: int
    time_ns: int | None
    silent_s: float | None


@dataclass(frozen=True)
class History:
    """One round in the state's history."""

    round: int
    attempt: str | None
    nodes: tuple[str, ...]
    world_size: int | None
    formed_ns: int | None
    ended_ns: int | None
    outcome: str
    reason: str | None
    failure: Failure | None


@dataclass(frozen=True)
class Closed:
    """How the run ended, as the last coordinator recorded it."""

    outcome: str
    reason: str
    exit_code: int
    time_ns: int | None


@dataclass(frozen=True)
class State:
    """The newest readable generation of the fenced state."""

    token: int
    run_id: str | None
    attempt: str | None
    attempts: tuple[str, ...]
    min_nodes: int | None
    max_restarts: int | None
    restarts_used: int | None
    phase: str
    round: int
    participants: tuple[Participant, ...]
    lost: tuple[LostNode, ...]
    history: tuple[History, ...]
    closed: Closed | None
    coordinator: str | None = None


@dataclass(frozen=True)
class Run:
    """The run's identity."""

    run_id: str
    user: str | None
    created_ns: int | None
    ftslurm: str | None


@dataclass(frozen=True)
class Attempt:
    """One Slurm (re)start of the job; ``start`` is the random name of the ftsrun start that created it.

    ``exclude_after``: that many first failures exclude a node; 0: none do, or not known.
    """

    attempt: str
    job_id: str | None
    created_ns: int | None
    cwd: str | None
    command: tuple[str, ...]
    logs: str | None
    nproc: str | None = None
    start: str | None = None
    exclude_after: int = 0


@dataclass(frozen=True)
class StepEnd:
    """The end of an attempt's agents, observed by their launcher: no process of the attempt is left.

    ``exit_code``: srun's, None if it did not end; ``signal``: the signal that stopped the launcher, if any;
    ``refused``: why the launcher could not record it, so that only the launcher's own report contains it.
    """

    attempt: str
    ended_ns: int | None
    exit_code: int | None
    signal: str | None
    refused: str | None = None


@dataclass(frozen=True)
class Scheduler:
    """Slurm's view of an attempt's job at the time of the query; ``problem`` is why there is none."""

    attempt: str
    asked_ns: int | None
    job_id: str | None
    problem: str | None
    state: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    time_limit_s: int | None = None
    failed_node: str | None = None
    cancelled_by: int | None = None
    preempted_ns: int | None = None
    source: str | None = None
    nodes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Defect:
    """A defect of ftslurm itself, as an agent recorded it in ``file``.

    ``part``: the component that it disabled, and ``meaning``, the consequence for the job; None: it ended the agent.
    ``place``: the location in ftslurm.
    """

    file: str
    node: str
    round: int | None
    time_ns: int | None
    part: str | None
    meaning: str | None
    error: str
    place: str | None


@dataclass(frozen=True)
class Job:
    """A Slurm job that has no run: ``note`` is why, ``last_lines`` are from its output file."""

    note: str
    output: str | None
    last_lines: tuple[str, ...]


@dataclass(frozen=True)
class LogTail:
    """The end of a rank's output; ``size`` is the whole file's, in bytes."""

    stream: str
    path: str
    text: str
    size: int


@dataclass(frozen=True)
class RoundFiles:
    """Contents of ``rounds/<number>/``: node files; error records, output tails and the stacks of a hang by rank.

    Not all error records are read: for each signature of a `RecordSummary`, ``examples`` gives a rank whose record was.
    """

    number: int
    nodes: tuple[RoundNode, ...]
    errors: Mapping[int, RankError]
    tails: Mapping[int, tuple[LogTail, ...]] = field(default_factory=dict)
    stacks: Mapping[int, RankStacks] = field(default_factory=dict)
    examples: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """All input of the report, read at one time (``now_ns``); ``causes`` are the catalogue's rows.

    ``source`` is "ftslurm", or another source. ``judged`` is no fact but a cache: verdicts of
    `ftslurm.report.root_cause` on these facts, by round and rank (None: on the cascades).
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
    clocks: Clocks = field(default_factory=Clocks)
    scheduler: tuple[Scheduler, ...] = ()
    defects: tuple[Defect, ...] = ()
    steps: tuple[StepEnd, ...] = ()
    source: str = "ftslurm"
    job: Job | None = None
    judged: dict[tuple[int, int | None], tuple[Any, ...]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def attempt(self) -> Attempt | None:
        """The attempt of the state; the newest one where there is no state.

        A job that was refused, because another one holds the run, has a newer attempt that never took part.
        """
        if self.state is not None and self.state.attempt is not None:
            return next((each for each in self.attempts if each.attempt == self.state.attempt), None)
        return max(self.attempts, key=lambda each: each.created_ns or 0, default=None)
