"""The records of a run, and of its attempts: one for each start of the job by Slurm; times: ns since the epoch."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class Run:
    """The run's identity: ``run.json``.

    Attributes:
        user, uid: its owner.
        ftslurm: version of the writer.
    """

    run_id: str
    created_ns: int | None = None
    user: str | None = None
    uid: int | None = None
    ftslurm: str | None = None

    SCHEMA, VERSION = "ftslurm/run", 1


@dataclass(frozen=True)
class Attempt:
    """Options and job of one attempt: ``attempts/<attempt>/attempt.json``.

    Attributes:
        start: nonce of the start of ftsrun that created it.
        node_list: the allocation, in Slurm's order.
        options: the agents' options as parsed, by their names; defaults included.
        command: the program and its arguments.
        python: the workers' interpreter.
        logs: the directory of ``--log-dir``.
        time_limit_s: the job's time limit when ftsrun began; None: no limit, or not known.
    """

    attempt: str
    created_ns: int | None = None
    start: str | None = None
    job_id: str | None = None
    restart_count: int | None = None
    node_list: tuple[str, ...] = ()
    job_name: str | None = None
    partition: str | None = None
    cluster: str | None = None
    array_job_id: str | None = None
    array_task_id: str | None = None
    options: dict[str, Any] | None = None
    command: tuple[str, ...] = ()
    cwd: str | None = None
    python: str | None = None
    logs: str | None = None
    time_limit_s: int | None = None

    SCHEMA, VERSION = "ftslurm/attempt", 1

    def option(self, name: str) -> Any:
        """Return the value of an option; None if it is not known."""
        return (self.options or {}).get(name)

    @property
    def nproc(self) -> str | None:
        """The value of ``--nproc-per-node``."""
        value = self.option("nproc_per_node")
        return value if isinstance(value, str) else None

    @property
    def exclude_after(self) -> int:
        """Number of first failures that exclude a node; 0: none do, or not known."""
        value = self.option("exclude_after")
        return value if type(value) is int else 0


@dataclass(frozen=True)
class StepEnd:
    """The end of an attempt's agents, recorded by their launcher: ``attempts/<attempt>/step.json``.

    No process of the attempt is left.

    Attributes:
        ended_ns: by the launcher's clock.
        exit_code: srun's; None: there was no srun, or it did not end.
        signal: the name of the signal that stopped the launcher, if any.
        refused: why the launcher could not write this record, which is then only in its own report.
    """

    attempt: str
    ended_ns: int
    exit_code: int | None
    signal: str | None
    refused: str | None = None

    SCHEMA, VERSION = "ftslurm/step", 1


@dataclass(frozen=True)
class SchedulerView:
    """Slurm's view of an attempt's job at the time of the query: ``attempts/<attempt>/scheduler.json``.

    Attributes:
        problem: why there is no data.
        signal: number of the signal that ended the job.
        time_limit_s: seconds.
        cancelled_by: uid.
        source: the command that answered, "scontrol" or "sacct".
        nodes: states of lost nodes by name; while the job runs, of nodes that are drained, down or failing.
        held: it is not started again before it is released.
        limit_was_s: the time limit when the attempt began, if it has been changed since; seconds.
        batch: whether the job has a batch script; salloc's has none, and cannot be requeued.
    """

    attempt: str
    asked_ns: int | None
    job_id: str | None
    problem: str | None = None
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
    nodes: dict[str, str] = field(default_factory=dict)
    held: bool = False
    limit_was_s: int | None = None
    batch: bool | None = None

    SCHEMA, VERSION = "ftslurm/scheduler", 1
