"""Slurm's data on jobs and nodes, as `ftslurm.slurm.output` parses it (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ftslurm.dataclasses import dataclass

__all__ = ["ENDED", "JobFacts", "NodeFacts", "check_job_id", "select_job"]

_JOB_ID = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "TIMEOUT",
}  # fmt: skip
"""States of a job that are final, unless it is requeued."""


@dataclass(frozen=True)
class JobFacts:
    """Slurm's current data on one job (or array task); None: not available.

    Times are nanoseconds since the epoch by slurmctld's clock, in whole seconds.
    """

    job_id: str
    state: str
    """RUNNING, FAILED, ...: squeue(1), JOB STATE CODES; without the "by 1000" that sacct adds."""
    reason: str | None = None
    exit_code: tuple[int, int] | None = None
    """(exit code, signal) of the batch script; None until it ended. From `sacct` a code above 128 lacks
    128: a script's 137 is (137, 0) for scontrol and (9, 0) for sacct (observed on 22.05)."""
    restarts: int | None = None
    node_list: tuple[str, ...] = ()
    submit_ns: int | None = None
    """For a requeued job, the time of its latest requeue."""
    start_ns: int | None = None
    """For a pending job the expected start, if Slurm has one."""
    end_ns: int | None = None
    """For a running job the end of its time limit (only from scontrol)."""
    time_limit_s: int | None = None
    """Seconds; None for no limit."""
    work_dir: str | None = None
    std_out: str | None = None
    std_err: str | None = None
    requeue: bool | None = None
    """Whether Slurm may requeue it."""
    array_job_id: str | None = None
    array_task_id: str | None = None
    """A number; for pending tasks that Slurm still keeps as one record, an expression like 2-3%1."""
    failed_node: str | None = None
    """The node whose failure ended it (only from sacct of 23.02 and later)."""
    cancelled_by: int | None = None
    """The uid of the user that cancelled it (only from sacct)."""
    preempted_ns: int | None = None
    """When it was preempted (only from scontrol)."""
    partition: str | None = None
    """Its partition; for a pending job a list, if several were requested (only from scontrol)."""
    num_nodes: int | None = None
    """Minimal number of nodes (only from scontrol)."""
    batch_host: str | None = None
    """The node of the batch script, once it runs; None for a job without one, as salloc's (only from scontrol)."""
    batch: bool | None = None
    """Whether it has a batch script: False for salloc's (only from scontrol)."""
    excluded: tuple[str, ...] = ()
    """ExcNodeList: excluded nodes (only from scontrol)."""
    priority: int | None = None
    """0: it is held, and not started, or not started again, before it is released (only from scontrol)."""
    comment: str | None = None
    """--comment (only from scontrol)."""
    source: str = "scontrol"
    """The command that returned the data: "scontrol" or "sacct"."""

    @property
    def scontrol_id(self) -> str:
        """Its id for Slurm's commands: `123`, or `123_4` for a task of an array."""
        task = self.array_task_id
        return f"{self.array_job_id}_{task}" if self.array_job_id and task and task.isdecimal() else self.job_id

    @property
    def held(self) -> bool:
        """Whether it waits until a user or an administrator releases it."""
        return self.priority == 0

    @property
    def ended(self) -> bool:
        """Whether the state is final: no process of the job runs, and it is not pending again."""
        return self.state in ENDED


@dataclass(frozen=True)
class NodeFacts:
    """Slurm's current data on one node.

    Attributes:
        state: in Slurm's spelling: `IDLE+DRAIN`.
        reason: note of an administrator or of Slurm, without its author and time.
        boot_ns: boot time, nanoseconds since the epoch by its own clock; None: unknown.
    """

    name: str
    state: str
    reason: str | None
    boot_ns: int | None = None

    @property
    def is_out(self) -> bool:
        """Whether Slurm starts no new job on it until an administrator intervenes."""
        return not self._flags.isdisjoint({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING", "ERROR"})

    @property
    def is_dead(self) -> bool:
        """Whether it does not respond to Slurm, or is down."""
        return "*" in self.state or not self._flags.isdisjoint({"DOWN", "NOT_RESPONDING", "POWERED_DOWN"})

    @property
    def _flags(self) -> set[str]:
        return {flag.rstrip("*~#!%$@^-") for flag in self.state.split("+")}


def check_job_id(job_id: str) -> str:
    """Return `job_id` if it is `123` or `123_4` (a task of an array); ValueError for anything else."""
    if not isinstance(job_id, str) or _JOB_ID.fullmatch(job_id) is None:
        raise ValueError(f"expected a job id like 123, or 123_4 for a task of an array, found {job_id!a:.80}")
    return job_id


def select_job(facts: Iterable[JobFacts], job_id: str) -> list[JobFacts]:
    """Return the records of `job_id` (`123`, `123_4`) among `facts`, oldest start first.

    For `123` Slurm also returns all tasks of array 123, and for `123_4` the record of all pending tasks.
    """
    job, _, task = job_id.partition("_")
    if not task:
        chosen = [fact for fact in facts if fact.job_id == job]
    else:
        of_array = [fact for fact in facts if fact.array_job_id == job]
        exact = [fact for fact in of_array if fact.array_task_id == task]
        chosen = exact or [fact for fact in of_array if not (fact.array_task_id or "").isdecimal()]
    return sorted(chosen, key=lambda fact: fact.submit_ns or 0)
