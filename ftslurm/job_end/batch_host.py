"""The end of a job whose batch script died with its node: the agents that are left see to it.

Slurm keeps such a job RUNNING until its time limit, without batch script and srun (sbatch and srun both with
--no-kill; 22.05 and 24.11). So, once the run is closed, the other agents stay until the batch host's agent has left. If
it does not, and Slurm, too, has lost that node, ftsrun is gone: one of them prints the report where ftsrun would have
printed it, and ends the job with the exit code that ftsrun would have had (`ftslurm.slurm.complete`; scancel where that
cannot be).

Both witnesses are needed. An agent may be killed or its shared directory hang while ftsrun still prints; and a node
whose slurmd was killed is DOWN to Slurm while the job's processes on it go on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from ftslurm.dataclasses import dataclass
from ftslurm.job_end.departures import GONE, Departures
from ftslurm.rendezvous.state import STOPPED, Closed, State
from ftslurm.sharedfs.filesystem import ForeignFile
from ftslurm.slurm.environment import SlurmJob
from ftslurm.slurm.errors import SlurmError, SlurmTimeout, SlurmUnreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl
    from ftslurm.slurm.facts import JobFacts, NodeFacts

BATCH_HOST, BATCH_STARTED = "FTSLURM__BATCH_HOST", "FTSLURM__BATCH_STARTED_NS"
"""By these variables ftsrun tells its agents the node that it runs on, empty where salloc started it, and since when,
in nanoseconds since the epoch by that node's clock."""
FIRST_LOOK_S, LAST_LOOK_S = 0.02, 1.0
"""How often to look for the batch host's agent: at first, for it leaves in the same moment, and later."""
ASK_AGAIN_S = 10.0
"""How often to ask Slurm, in seconds, while it takes the node for healthy."""
STAGGER_S = 5.0
"""So much later than the agent before it in line an agent asks Slurm: the first one is enough, if it lives."""
CLAIMED_S = 60.0
"""How long the others leave to the one that prints the report and ends the job, before they end it."""
PATIENCE_S = 900.0
"""For so long an agent stays for a node that is silent, and that Slurm takes for healthy: SlurmdTimeout is 300 s."""


@dataclass(frozen=True)
class Survivor:
    """An agent whose run is closed.

    Attributes:
        job: its job.
        node: its node.
        batch_host: the node of the batch script.
        started_ns: when ftsrun started, by that node's clock: if it was booted after that, ftsrun is gone.
        first: it is the first in line to end the job, as the coordinator is.
        node_timeout_s: an agent that has not published for so many seconds counts as silent.
    """

    job: SlurmJob
    node: str
    batch_host: str
    started_ns: int
    first: bool
    node_timeout_s: float

    @property
    def delay_s(self) -> float:
        """How much later than the first in line it asks Slurm."""
        if self.first:
            return 0.0
        others = [node for node in self.job.node_list if node != self.batch_host]
        return STAGGER_S * (1 + (others.index(self.node) if self.node in others else len(others)))


def is_lost(job: JobFacts, node: NodeFacts | None, batch_host: str, started_ns: int) -> bool:
    """Tell whether Slurm, too, has lost the batch host (pure).

    Without --no-kill it has ended the job before that. With it, it takes the node out of the job once the node is DOWN.
    A node that came back before Slurm noticed was booted meanwhile; Slurm finds the batch script missing after a while
    (18 to 40 s in the lab), and then requeues or fails the job.
    """
    if node is None or node.is_dead:
        return True
    # Of a job that Slurm is ending, only the nodes are listed that still are at it.
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
        connect: returns Slurm, to ask about the node; seldom needed, and costs imports.
        now: monotonic clock, seconds.
        sleep: waits so many seconds.

    Returns:
        What Slurm says of the job that has lost its batch host; None: there is nothing to do for it.
    """
    began, ask_at, pause_s = now(), 0.0, FIRST_LOOK_S
    while now() - began < PATIENCE_S:
        try:
            found, silent_s = departures.look(survivor.batch_host)
            if found == GONE:
                return None
            if silent_s >= survivor.node_timeout_s + survivor.delay_s and now() >= ask_at:
                ask_at = now() + ASK_AGAIN_S
                slurm = connect()
                job = slurm.job(survivor.job.scontrol_id)
                if job is None or job.batch_host is None:
                    return None
                if is_lost(job, slurm.node(survivor.batch_host), survivor.batch_host, survivor.started_ns):
                    return job
        except (OSError, SlurmError):
            # The shared directory or Slurm's controller is away: neither proves anything.
            pass
        sleep(pause_s)
        # Time between looks that are further apart would not count as silence.
        pause_s = min(2 * pause_s, LAST_LOOK_S, survivor.node_timeout_s / 4)
    return None


def end_job(
    survivor: Survivor,
    state: State,
    job: JobFacts,
    slurm: SlurmControl,
    claim: Callable[[], bool],
    report: Callable[[], str],
    sleep: Callable[[float], None],
) -> list[str]:
    """Print the report at the end of the job's output file and end the job.

    Args:
        job: what Slurm says of it.
        claim: tells whether it is this agent that prints; only one of those that noticed does.
        report: makes the report's text.
        sleep: waits so many seconds; the end of the job by another agent ends this one.

    Returns:
        What went wrong, a line each.
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
        # Slurm has been asked already, by whoever cancelled or requeued it.
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
    """End the job, as soon as Slurm's controller answers.

    Raises:
        SlurmError: Slurm refuses, or has not answered for PATIENCE_S.
    """
    waited_s = 0.0
    while True:
        try:
            _end_once(job, closed, slurm)
            return
        except (SlurmUnreachable, SlurmTimeout):
            if waited_s >= PATIENCE_S:
                raise
        sleep(ASK_AGAIN_S)
        waited_s += ASK_AGAIN_S


def _end_once(job: SlurmJob, closed: Closed, slurm: SlurmControl) -> None:
    if closed.outcome != STOPPED:
        try:
            slurm.complete(job.job_id, closed.exit_code)
            return
        except (SlurmUnreachable, SlurmTimeout):
            raise
        except SlurmError:
            # Without Slurm's library, as in some containers: CANCELLED is better than RUNNING for days.
            pass
    slurm.cancel(job.scontrol_id)


def _append(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise ForeignFile(errno.EPERM, "not a plain file of yours", path)
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
