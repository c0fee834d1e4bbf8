"""An agent's record of a round on its node: ``rounds/<round>/nodes/<node>.json``."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.records.health import Health
from ftslurm.records.state import ClockOffset, Master

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class Progress:
    """First and last training step of a worker in a round, their times, and how many steps were reported or made."""

    first_step: int
    first_ns: int | None
    last_step: int
    last_ns: int | None
    marks: int = 0


@dataclass(frozen=True)
class RecordSummary:
    """What the report needs of an error record that is like another one; see `ftslurm.failures.record_summary`.

    Attributes:
        kind, step, time_ns: as in the record.
        type, module: of the exception that is judged; None without one.
        message: its first line, or the record's.
        where: "file:line in function" of the innermost frame of the user's code.
        signature: equal for records that differ in nothing else.
    """

    kind: str
    type: str | None
    module: str
    message: str
    where: str | None
    step: int | None
    time_ns: int | None
    signature: str


@dataclass(frozen=True)
class WorkerRecord:
    """One worker of the round; in the file, values that are null, false or empty are missing.

    Attributes:
        signal: name of the signal that ended it.
        stopped_by_ftslurm: its agent stopped it, by `stop_signal` (its last).
        failed: it failed by itself.
        progress: the steps that its script reported.
        optimizer_steps: where that reports none, those of its optimizer, by the optimizer's own count if it keeps one,
            else since the worker's start: the numbers of two rounds may mean the same steps or not.
        pace: pairs of a bucket (`ftslurm.monitor.heartbeat_page`) and its number of step intervals.
        error: the summary of its error record; None: there is none, if the round is over.
    """

    rank: int
    local_rank: int | None = None
    pid: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    core_dumped: bool = False
    stopped_by_ftslurm: bool = False
    stop_signal: str | None = None
    progress: Progress | None = None
    failed: bool = False
    pace: tuple[tuple[int, int], ...] = ()
    error: RecordSummary | None = None
    optimizer_steps: Progress | None = None

    # Of 16,384 ranks hardly one has dumped core.
    SPARSE = True


@dataclass(frozen=True)
class RoundRecord:
    """The round on one node.

    Attributes:
        agent_pid: the agent's process.
        ended_ns: None: the round is not over here, or its agent was killed.
        outcome: as of the node record's status.
        stop_reason, stop_ns: why and when the agent stopped its workers.
        host_resources: at the round's start (`ftslurm.agent.host_resources`).
        messages: number of unusable messages from workers since the agent's start, by kind.
    """

    round: int
    attempt: str | None
    node: str
    incarnation: str | None
    host: str | None
    agent_pid: int | None
    group_rank: int | None
    world_size: int | None
    master: Master | None
    started_ns: int | None
    ended_ns: int | None
    outcome: str
    stop_reason: str | None
    stop_ns: int | None
    workers: tuple[WorkerRecord, ...]
    clock: ClockOffset | None = None
    health: Health | None = None
    host_resources: dict[str, Any] | None = None
    messages: dict[str, Any] | None = None

    SCHEMA, VERSION = "ftslurm/round-node", 1
