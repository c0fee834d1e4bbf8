"""The verdict on an attempt that has ended: made once, by the coordinator or else by the process that ends the job."""

from __future__ import annotations

from ftslurm.job_end.end_cause import cause_of_end
from ftslurm.job_end.requeue import AttemptEnd, decide
from ftslurm.records.attempt import Attempt, SchedulerView
from ftslurm.records.cause import IF_NODE, REQUEUE_POLICIES
from ftslurm.records.codec import BadFile, write_record
from ftslurm.records.state import State
from ftslurm.records.submission import Chain
from ftslurm.records.verdict import AttemptVerdict
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import publish_once, read_published
from ftslurm.sharedfs.rundir import RunDirectory

LINEAGE = 50
"""Number of earlier attempts whose verdicts count."""


def settle(
    fs: FileSystem, run: RunDirectory, state: State, view: SchedulerView | None, node: str, now_ns: int
) -> AttemptVerdict:
    """Return the verdict on the attempt of a closed state; make it if there is none.

    Args:
        view: Slurm's data on the job; None: not needed, or unknown.
        node: of this process.
        now_ns: nanoseconds since the epoch.

    Raises:
        OSError, BadFile: it cannot be written, or not be read.
    """
    assert state.closed is not None
    path = run.verdict_file(state.attempt)
    try:
        return read_published(fs, path, AttemptVerdict)
    except FileNotFoundError:
        pass
    cause, what = cause_of_end(state, view, now_ns)
    end = AttemptEnd(cause, what, state.closed.exit_code, state.gained, state.reached)
    chained = chain_of(fs, run) is not None
    has_script = view is None or view.batch is not False
    found = decide(_policy(fs, run, state.attempt), end, lineage_of(fs, run, state), chained, has_script)
    verdict = AttemptVerdict(
        state.attempt,
        now_ns,
        node,
        found.action,
        cause,
        found.text,
        found.exit_code,
        state.reached,
        state.gained,
        found.number,
        found.budget,
    )
    publish_once(fs, path, write_record(verdict))
    return read_published(fs, path, AttemptVerdict)


def lineage_of(fs: FileSystem, run: RunDirectory, state: State) -> list[AttemptVerdict]:
    """Return the verdicts of the run's earlier attempts, oldest first; an attempt that was killed may have none."""
    found = []
    for attempt in [name for name in state.attempts if name != state.attempt][-LINEAGE:]:
        try:
            found.append(read_published(fs, run.verdict_file(attempt), AttemptVerdict))
        except (FileNotFoundError, NotADirectoryError, BadFile):
            continue
    return found


def chain_of(fs: FileSystem, run: RunDirectory) -> Chain | None:
    """Return the chain that the run's jobs belong to, None without one."""
    try:
        return read_published(fs, run.chain_file, Chain)
    except (FileNotFoundError, BadFile):
        return None


def _policy(fs: FileSystem, run: RunDirectory, attempt: str) -> str:
    """Return the value of --requeue."""
    try:
        policy = read_published(fs, run.attempt_file(attempt), Attempt).option("requeue")
    except (FileNotFoundError, BadFile):
        return IF_NODE
    return policy if policy in REQUEUE_POLICIES else IF_NODE
