"""Carries out the verdict on an attempt: the job starts again, exactly once.

As measured on Slurm 22.05, with the job's owner:

- `scontrol requeue` works while the job runs, and also while it is COMPLETING after its time limit, a preemption or
  scancel. The batch script gets SIGTERM if it has not had one. The job starts again after cred_expire (120 s).
- It is refused for a job that was submitted with --no-requeue ("presently disabled"); `scontrol update Requeue=1` by
  the owner lifts that. After the job has lost a node, that update may be refused for a while ("the DB index is being
  set"), and for ever where there is no accounting.
- It does not count for the 5 requeues after which that version holds a job (JobHoldMaxRequeue): 15 of them did not.
  Newer ones have MaxBatchRequeue. The hold begins when the last process of the job has ended, so that none of ours can
  release it: where that number is used up, the script is submitted again instead.
- Slurm has acted already if the job's number of restarts has grown: it does so in the same moment as it sends SIGTERM.

A new submission (`ftslurm.slurm.resubmission`) is the way out where Slurm refuses all of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ftslurm.dataclasses import dataclass, replace
from ftslurm.records.attempt import Attempt
from ftslurm.records.codec import BadFile, write_record
from ftslurm.records.verdict import (
    BY_SLURM,
    FAILED,
    REQUEUE,
    REQUEUED,
    RESUBMITTED,
    AttemptVerdict,
    RequeueClaim,
    Requeued,
)
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import publish, publish_first, random_nonce, read_published
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.control import SlurmControl
from ftslurm.slurm.environment import SlurmJob
from ftslurm.slurm.errors import SlurmError, SlurmRefused, SlurmTimeout, SlurmUnreachable
from ftslurm.slurm.facts import JobFacts
from ftslurm.text import plural

RETRY_S, PATIENCE_S = 5.0, 300.0
"""Interval and duration of the attempts while Slurm's controller does not answer, in seconds."""
ALLOW_TRIES = 3


class Submitter(Protocol):
    """See `ftslurm.slurm.resubmission.Resubmission`."""

    def submit(self, job_id: str, run_id: str, nodes: int) -> str:
        """Submit a job's script again, on so many nodes; return the new job's id."""


@dataclass(frozen=True)
class JobAccess:
    """The job, and how the process that carries out a verdict acts on it.

    Attributes:
        by: "ftsrun", or an agent's node.
        job: the job, as this process is part of it.
        run_id: of the run.
        slurm, resubmission: Slurm.
        now_ns: wall clock, nanoseconds since the epoch.
        sleep: waits the given seconds.
    """

    by: str
    job: SlurmJob
    run_id: str
    slurm: SlurmControl
    resubmission: Submitter
    now_ns: Callable[[], int]
    sleep: Callable[[float], None]


def start_again(fs: FileSystem, run: RunDirectory, verdict: AttemptVerdict, access: JobAccess) -> Requeued | None:
    """Carry out a verdict; return what came of it, None: nothing to do, or another process does it.

    Raises:
        OSError, BadFile: the run directory cannot be written; nothing was done.
    """
    if verdict.action != REQUEUE or not _claim(fs, run, verdict, access):
        return None
    try:
        restarts = read_published(fs, run.attempt_file(verdict.attempt), Attempt).restart_count or 0
    except (OSError, BadFile):
        restarts = access.job.restart_count
    # Written before the request: Slurm signals this process, too.
    done = Requeued(verdict.attempt, access.now_ns(), REQUEUED, access.job.job_id)
    publish(fs, run.requeue_file(verdict.attempt), write_record(done))
    outcome = _persistently(access, lambda: _request(access, restarts, done))
    if outcome != done:
        publish(fs, run.requeue_file(verdict.attempt), write_record(outcome))
    return outcome


def _claim(fs: FileSystem, run: RunDirectory, verdict: AttemptVerdict, access: JobAccess) -> bool:
    claim = RequeueClaim(verdict.attempt, access.now_ns(), access.by, random_nonce())
    return publish_first(fs, run.claim_file(verdict.attempt), claim)


def _persistently(access: JobAccess, request: Callable[[], Requeued]) -> Requeued:
    """Return the outcome once Slurm's controller answers, or that it did not."""
    waited_s = 0.0
    while True:
        try:
            return request()
        except (SlurmUnreachable, SlurmTimeout) as error:
            # A repetition after a lost reply finds the job requeued already.
            if waited_s >= PATIENCE_S:
                return Requeued(access.job.attempt, access.now_ns(), FAILED, problem=str(error))
        access.sleep(RETRY_S)
        waited_s += RETRY_S


def _request(access: JobAccess, restarts: int, done: Requeued) -> Requeued:
    """Return the outcome; raises SlurmUnreachable or SlurmTimeout."""
    slurm, job_id = access.slurm, access.job.scontrol_id
    facts = slurm.job(job_id)
    if facts is None:
        return replace(done, outcome=FAILED, problem=f"Slurm has no record of job {job_id}")
    if (facts.restarts or 0) > restarts or facts.state == "PENDING":
        return replace(done, outcome=BY_SLURM)
    if facts.batch is False:
        return replace(done, outcome=FAILED, problem="it has no batch script (salloc)")
    try:
        if facts.requeue is False:
            _allow(access)
        most = slurm.max_batch_requeue()
        if most is not None and (facts.restarts or 0) >= most:
            used = f"it has been requeued {plural(facts.restarts or 0, 'time')}, after which this Slurm holds a job"
            return _resubmit(access, facts, done, f"{used} (MaxBatchRequeue={most})")
        slurm.requeue(job_id)
        return done
    except (SlurmUnreachable, SlurmTimeout):
        raise
    except SlurmError as refused:
        return _resubmit(access, facts, done, str(refused))


def _allow(access: JobAccess) -> None:
    """Let the job be requeued; raises as `SlurmControl.allow_requeue`."""
    for _ in range(ALLOW_TRIES - 1):
        try:
            return access.slurm.allow_requeue(access.job.scontrol_id)
        except SlurmRefused as refused:
            if "try again" not in str(refused):
                raise
        access.sleep(RETRY_S)
    return access.slurm.allow_requeue(access.job.scontrol_id)


def _resubmit(access: JobAccess, facts: JobFacts, done: Requeued, refused: str) -> Requeued:
    try:
        new = access.resubmission.submit(facts.job_id, access.run_id, len(access.job.node_list))
    except (SlurmError, OSError) as error:
        return replace(done, outcome=FAILED, problem=f"{refused}; nor can it be submitted again: {error}")
    return replace(done, outcome=RESUBMITTED, job_id=new, problem=refused)
