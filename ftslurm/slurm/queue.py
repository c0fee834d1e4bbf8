"""The user's jobs in Slurm's queue: one call of squeue for any number of runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.slurm.errors import SlurmOutputError
from ftslurm.slurm.run_command import Runner, failure, run_command

LIMIT_S = 2.0
"""Time-out of squeue, in seconds: the commands that print it work without."""
PENDING, RUNNING = "PENDING", "RUNNING"
_FORMAT = "%A|%F|%K|%T|%L|%r|%k"
_LEFT = re.compile(r"(?:(?:([0-9]{1,6})-)?([0-9]{1,2}):)?([0-9]{1,3}):([0-9]{2})")
_NO_REASON = ("", "None", "(null)")


@dataclass(frozen=True)
class QueuedJob:
    """A job or array task that is pending, running or ending.

    Attributes:
        job_id: a number; of an array task its own.
        array_job_id, array_task_id: of a task of an array; a pending task may still have the array's number as
            `job_id`.
        state: PENDING, RUNNING, ...: squeue(1), JOB STATE CODES.
        reason: why it is pending; None: no reason.
        left_s: seconds until its time limit; None: no limit, or not started.
        comment: --comment; None: none.
    """

    job_id: str
    array_job_id: str | None
    array_task_id: str | None
    state: str
    reason: str | None
    left_s: int | None
    comment: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The ids that it is known by."""
        if self.array_task_id is None:
            return (self.job_id,)
        return self.job_id, f"{self.array_job_id}_{self.array_task_id}"


def user_jobs(uid: int, env: Mapping[str, str], run: Runner = run_command) -> dict[str, QueuedJob]:
    """Return a user's jobs in the queue by their ids, array tasks by both of theirs.

    Args:
        uid: the user.
        env: the command's environment.
        run: runs a command (replaced in tests).

    Raises:
        SlurmError: Slurm gave no usable answer within `LIMIT_S` seconds.
    """
    command = ("squeue", "-h", "-r", "-u", str(uid), "-o", _FORMAT)
    answer = run(command, {**env, "LC_ALL": "C"}, LIMIT_S)
    if answer.status != 0:
        raise failure(command, answer)
    return by_name(parse_queue(answer.stdout))


def by_name(jobs: Iterable[QueuedJob]) -> dict[str, QueuedJob]:
    """Return jobs by their ids (pure); a number that several tasks share, as pending ones do, means none of them."""
    found: dict[str, list[QueuedJob]] = {}
    for job in jobs:
        for name in job.names:
            found.setdefault(name, []).append(job)
    return {name: same[0] for name, same in found.items() if len(same) == 1}


def parse_queue(text: str) -> list[QueuedJob]:
    """Parse squeue's output in `_FORMAT` (pure).

    Raises:
        SlurmOutputError: a line has another form.
    """
    jobs = []
    for line in text.splitlines():
        values = line.split("|", 6)
        if len(values) != 7 or not values[0].isdecimal() or not values[3]:
            raise SlurmOutputError(f"squeue: expected {_FORMAT}, found {line!a:.120}")
        job_id, array_job, task, state, left, reason, comment = values
        is_task = task.isdecimal()
        task_of = (array_job, task) if is_task else (None, None)
        why, remark = (None if text in _NO_REASON else text for text in (reason, comment))
        jobs.append(QueuedJob(job_id, task_of[0], task_of[1], state, why, _seconds(left), remark))
    return jobs


def _seconds(text: str) -> int | None:
    """Parse `[[days-]hours:]minutes:seconds`; anything else (UNLIMITED, NOT_SET, INVALID) is None."""
    match = _LEFT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
