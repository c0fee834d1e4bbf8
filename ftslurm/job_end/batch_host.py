"""The job end after the batch script died with its node: the remaining agents take over.

Slurm keeps such a job RUNNING until its time limit, without batch script and srun (sbatch and srun both with
--no-kill; 22.05 and 24.11). So, once the run is closed, the other agents stay until the batch host's agent has left. If
it does not, and Slurm has lost that node as well, ftsrun is dead: one of them prints the report where ftsrun would have
printed it, and ends the job with the exit code that ftsrun would have had (`ftslurm.slurm.complete`; scancel if that
is not possible).

Both conditions are needed. An agent may be killed or its shared directory hang while ftsrun still prints; and a node
whose slurmd was killed is DOWN for Slurm while the job's processes on it continue.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from ftslurm.dataclasses import dataclass
from ftslurm.job_end.departures import DEPARTED, Departures
from ftslurm.records.state import STOPPED, Closed, State
from ftslurm.sharedfs.ownership import ForeignFile
from ftslurm.slurm.environment import SlurmJob
from ftslurm.slurm.errors import SlurmError, SlurmTimeout, SlurmUnreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl
    from ftslurm.slurm.facts import JobFacts, NodeFacts

BATCH_HOST, BATCH_STARTED = "FTSLURM__BATCH_HOST", "FTSLURM__BATCH_STARTED_NS"
"""Environment variables with ftsrun's node, empty if salloc started it, and the time of its start, in nanoseconds since
the epoch by that node's clock."""
FIRST_INTERVAL_S, LAST_INTERVAL_S = 0.02, 1.0
"""Interval of reading the batch host's node record: at first, since its agent usually leaves at once, and later."""
QUERY_INTERVAL_S = 10.0
"""Interval of scheduler queries, in seconds, while Slurm considers the node healthy."""
STAGGER_S = 5.0
"""Delay of an agent's query after that of the previous agent, in seconds: one query suffices if that agent is alive."""
CLAIMED_S = 60.0
"""Time that the others leave to the agent that prints the report and ends the job, before they end it, in seconds."""
PATIENCE_S = 900.0
"""Time that an agent waits for a silent node that Slurm considers healthy, in seconds: SlurmdTimeout is 300 s."""


@dataclass(frozen=True)
class Survivor:
    """An agent whose run is closed.

    Attributes:
        job: its job.
        node: its node.
        batch_host: the node of the batch script.
        started_ns: start of ftsrun, by that node's clock: if the node booted later, ftsrun is dead.
        first: it is the first agent to end the job, as the coordinator is.
        node_timeout_s: an agent that has not published for this time counts as silent.
    """

    job: SlurmJob
    node: str
    batch_host: str
    started_ns: int
    first: bool
    node_timeout_s: float

    @property
    def delay_s(self) -> float:
        """Delay of its scheduler query after that of the first agent."""
        if self.first:
            return 0.0
        others = [node for node in self.job.node_list if node != self.batch_host]
        return STAGGER_S * (1 + (others.index(self.node) if self.node in others else len(others)))


def is_lost(job: JobFacts, node: NodeFacts | None, batch_host: str, started_ns: int) -> bool:
    """Return whether Slurm has lost the batch host as well (pure).

    Without --no-kill Slurm has ended the job before. With it, Slurm removes the node from the job once the node is
    DOWN. A node that returned before Slurm detected its loss has a later boot time; Slurm detects the missing batch
    script after some time (18 to 40 s in the lab), and then requeues or fails the job.
    """
    if node is None or node.is_dead:
        return True
    # For a job that Slurm is ending, only the nodes that have not finished yet are listed.
    if job.state == "RUNNING" and batch_host not in job.node_list:
        return True
    return node.boot_ns is not None and node.boot_ns > started_ns


def await_loss(
    survivor: Survivor,
    departures: Departures,
    connect: Callable[[], SlurmControl],
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> JobFacts | None:
    """Wait until the batch host's agent has left, or the batch host is lost.

    Args:
        departures: observes the batch host's node record.
        connect: returns the SlurmControl for queries; rarely needed, and costs imports.
        now: monotonic clock, seconds.
        sleep: waits the given seconds.

    Returns:
        Slurm's data on the job that has lost its batch host; None: nothing to do.
    """
    began, query_at, pause_s = now(), 0.0, FIRST_INTERVAL_S
    while now() - began < PATIENCE_S:
        try:
            found, silent_s = departures.observe(survivor.batch_host)
            if found == DEPARTED:
                return None
            if silent_s >= survivor.node_timeout_s + survivor.delay_s and now() >= query_at:
                query_at = now() + QUERY_INTERVAL_S
                slurm = connect()
                job = slurm.job(survivor.job.scontrol_id)
                if job is None or job.batch_host is None:
                    return None
                if is_lost(job, slurm.node(survivor.batch_host), survivor.batch_host, survivor.started_ns):
                    return job
        except (OSError, SlurmError):
            # The shared directory or Slurm's controller is unavailable, which proves nothing.
            pass
        sleep(pause_s)
        # Time between reads that are further apart would not count as silence.
        pause_s = min(2 * pause_s, LAST_INTERVAL_S, survivor.node_timeout_s / 4)
    return None


def end_job(
    survivor: Survivor,
    state: State,
    job: JobFacts,
    slurm: SlurmControl,
    claim: Callable[[], bool],
    report: Callable[[], str],
    sleep: Callable[[float], None],
    start_again: Callable[[JobFacts], bool] = lambda job: False,
) -> list[str]:
    """Print the report at the end of the job's output file and end the job.

    Args:
        job: Slurm's data on it.
        claim: returns whether this agent prints the report; True for one agent only.
        report: returns the report's text.
        sleep: waits the given seconds; the end of the job by another agent ends this one.
        start_again: has the job start again, if that follows from the end of the attempt; returns whether it does.

    Returns:
        The problems, one line each.
    """
    assert state.closed is not None
    problems = []
    if claim():
        try:
            text = report()
            if job.std_out:
                _append(job.std_out, text)
        except OSError as error:
            problems.append(f"the report is only in the run directory: {error}")
    else:
        sleep(CLAIMED_S)
    if job.ended or job.state in ("COMPLETING", "PENDING"):
        # The job has already been cancelled or requeued.
        return problems
    if start_again(job):
        return problems
    try:
        _end(survivor.job, state.closed, slurm, sleep)
    except SlurmError as error:
        problems.append(
            f"the batch script died with {survivor.batch_host}, and the job cannot be ended from here: {error}; "
            f"scancel {survivor.job.scontrol_id}"
        )
    return problems


def _end(job: SlurmJob, closed: Closed, slurm: SlurmControl, sleep: Callable[[float], None]) -> None:
    """End the job as soon as Slurm's controller answers.

    Raises:
        SlurmError: Slurm refused, or has not answered for PATIENCE_S.
    """
    waited_s = 0.0
    while True:
        try:
            _end_once(job, closed, slurm)
            return
        except (SlurmUnreachable, SlurmTimeout):
            if waited_s >= PATIENCE_S:
                raise
        sleep(QUERY_INTERVAL_S)
        waited_s += QUERY_INTERVAL_S


def _end_once(job: SlurmJob, closed: Closed, slurm: SlurmControl) -> None:
    if closed.outcome != STOPPED:
        try:
            slurm.complete(job.job_id, closed.exit_code)
            return
        except (SlurmUnreachable, SlurmTimeout):
            raise
        except SlurmError:
            # Slurm's library is missing, as in some containers: CANCELLED is better than RUNNING for days.
            pass
    slurm.cancel(job.scontrol_id)


def _append(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise ForeignFile(errno.EPERM, "not a plain file of this user", path)
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
