"""What the files of a run directory say, as frozen facts; times are nanoseconds since the epoch (``_ns``)."""

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
    """A file that could not be used, or only in part."""

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
    """The short form of one worker's failure, as node files and the state carry it.

    ``blame``: whether its node may be to blame; ``since_ns``: of a hang, when the rank had last moved.
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
    """The long form of one worker's failure: its ``error.json``; if not ``whole``, what the short form tells of it.

    ``exception`` is the one that is judged (`ftslurm.failures.reason`); ``exit_message``: the text with which the
    program ended itself because of it, empty if it gave none.
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


class Short(NamedTuple):
    """An error record in short (`ftslurm.failures.record_summary`); ``like``: the signature of what it does not say."""

    kind: str
    type: str | None
    module: str
    message: str
    where: str | None
    step: int | None
    time_ns: int | None
    like: str


class Worker(NamedTuple):
    """What an agent saw of one worker in one round.

    ``error``: the error record that it published, in short; ``told``: whether it says if it published one.
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
    error: Short | None = None
    told: bool = False


@dataclass(frozen=True)
class Clock:
    """A node's clock against the filesystem server's: what to add to its times, within ``error_ns``."""

    offset_ns: int
    error_ns: int
    at_ns: int


class RoundNode(NamedTuple):
    """What one node's agent saw of one round."""

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
    """The killed agent of a node whose newest agent has replaced it: how it ended, and when."""

    incarnation: str
    reason: str
    time_ns: int | None


class NodeRecordFacts(NamedTuple):
    """A node's last word on itself; ``unhealthy`` and ``excluded``: why it may take part in no round, or should not."""

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
    """A node that the coordinator gave up; ``time_ns`` is when, ``silent_s`` how long it had said nothing."""

    node: str
    round: int
    time_ns: int | None
    silent_s: float | None


@dataclass(frozen=True)
class History:
    """One round as the state remembers it."""

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
    """One Slurm (re)start of the job; ``start`` is the random name of the start of ftsrun that it came from."""

    attempt: str
    job_id: str | None
    created_ns: int | None
    cwd: str | None
    command: tuple[str, ...]
    logs: str | None
    nproc: str | None = None
    start: str | None = None


@dataclass(frozen=True)
class StepEnd:
    """The end of an attempt's agents as their launcher saw it: nothing of the attempt runs any more.

    ``exit_code``: srun's, None if it did not end; ``signal``: what told the launcher to stop, if anything did;
    ``refused``: why the launcher could not record it, so that only the launcher's own report tells of it.
    """

    attempt: str
    ended_ns: int | None
    exit_code: int | None
    signal: str | None
    refused: str | None = None


@dataclass(frozen=True)
class Scheduler:
    """What Slurm said of an attempt's job when it was asked; ``problem`` is why it said nothing."""

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

    ``part``: the helper part that it disabled, and ``meaning``, what that meant for the job; None: it ended the agent.
    ``place``: where in ftslurm.
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
    """A Slurm job that has no run: ``note`` is why, ``last_lines`` are those of its output file."""

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
    """What ``rounds/<number>/`` holds: node files; error records, output ends and the stacks of a hang by rank.

    Not all error records need be read: for each signature of a `Short`, ``like`` names a rank whose record was.
    """

    number: int
    nodes: tuple[RoundNode, ...]
    errors: Mapping[int, RankError]
    tails: Mapping[int, tuple[LogTail, ...]] = field(default_factory=dict)
    stacks: Mapping[int, RankStacks] = field(default_factory=dict)
    like: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """Everything that the report is made from, read at one moment (``now_ns``); ``causes`` is what it judges by.

    ``source`` is "ftslurm", or what else it was read from. ``judged`` is no fact: verdicts that
    `ftslurm.report.root_cause` has already reached on these facts, by round and rank (None: on those that only follow).
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
        """The attempt that the state is of; the newest one where there is no state.

        A job that was refused, because another one holds the run, has a newer attempt that never had a part in it.
        """
        if self.state is not None and self.state.attempt is not None:
            return next((each for each in self.attempts if each.attempt == self.state.attempt), None)
        return max(self.attempts, key=lambda each: each.created_ns or 0, default=None)
