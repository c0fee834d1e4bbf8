"""`ftslurm prepare`, which ftsrun calls before srun: the run that its agents will start, checked on the batch host."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence

from ftslurm.agent.grace import warn_of_times
from ftslurm.agent.option_groups import RunOptions
from ftslurm.agent.placement import Placement
from ftslurm.agent.plan import plan
from ftslurm.agent.preflight import (
    check,
    open_directories,
    read_options,
    unique_name,
    warn_of_differences,
    warn_of_exposed,
    warn_of_misspelt,
)
from ftslurm.agent.torchrun_options import WrongOptions
from ftslurm.kernel import parent_of
from ftslurm.records.state import EXIT_USAGE
from ftslurm.sharedfs.rundir import RunDirectory, RunDirectoryError, check_name
from ftslurm.terminal import WARNING, UsageError, complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts

_STEP_TITLE = re.compile(rb"slurmstepd: \[\d+\.(\w+)")
ANCESTORS = 64


def prepare(arguments: Sequence[str]) -> int:
    """Run `ftslurm prepare`: check everything that can be checked on the batch host.

    Takes the arguments of `ftslurm run`. Prints, each followed by a NUL because a path may hold any other byte: the run
    directory; a random name for this start; the time, in nanoseconds since the epoch; the batch script's node, empty
    without one; the node time-out in seconds; the site's KillWait in seconds, empty if unknown; the directory of the
    records of excluded nodes; the number of nodes that the job still has, empty if unknown; with `--dry-run`, which
    writes no file, what would be started, else nothing; the job's time limit in seconds, empty without one.
    """
    started_ns = time.time_ns()
    from ftslurm.nodes.exclude import folder
    from ftslurm.sharedfs.job_runs import run_of_start
    from ftslurm.sharedfs.ownership import is_foreign
    from ftslurm.sharedfs.publish import random_nonce
    from ftslurm.slurm.commands import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    slurm = CommandSlurm()
    step = _step_above()
    kill_wait: int | None = None
    facts: JobFacts | None = None
    try:
        options = read_options(arguments, os.environ)
        _refuse_place(step)
        checked = check(options, unique_name(), batch=True)
        placement = checked.placement
        run_dir = placement.run_dir
        try:
            kill_wait = slurm.kill_wait_s()
            facts = slurm.job(placement.job.job_id) if placement.job else None
            if facts is not None and options.placement.rdzv_id is None:
                run_dir = os.path.join(os.path.dirname(run_dir), _run_of(facts) or os.path.basename(run_dir))
        except SlurmError:
            # Slurm's controller may be busy: these facts are optional.
            pass
        if placement.job is not None and options.placement.rdzv_id is None:
            wanted = run_dir
            run_dir = run_of_start(wanted, placement.attempt, _closer_of, is_foreign)
            if run_dir != wanted and is_foreign(wanted):
                complain(f"{wanted} is not yours: this run is in {os.path.basename(run_dir)}", level=WARNING)
        nodes = _nodes_left(options, placement, facts)
        if options.placement.dry_run:
            show_fields(run_dir, *[""] * 6, nodes, plan(checked, run_dir), None)
            return 0
        run, logs = open_directories(options.output, run_dir)
    except (UsageError, RunDirectoryError) as error:
        return _refuse(error, step)
    warn_of_exposed(run, logs)
    warn_of_misspelt(os.environ)
    warn_of_differences(options, os.environ, run.root, logs)
    warn_of_times(options.stop, kill_wait, facts, slurm)
    if facts is not None:
        from ftslurm.agent.job_records import note_chain, point_to, record_submission

        point_to(run.root, facts)
        note_chain(run, facts)
        record_submission(run, facts.job_id, placement.job)
    batch_host = facts.batch_host if facts is not None else None
    exclude_dir = folder(run.root, options.exclusion.directory)
    node_timeout = f"{options.timing.node_timeout_s:g}"
    limit_s = facts.time_limit_s if facts is not None else None
    start = (run.root, random_nonce(), started_ns, batch_host, node_timeout, kill_wait, exclude_dir)
    show_fields(*start, nodes, "", limit_s)
    return 0


def _nodes_left(options: RunOptions, placement: Placement, facts: JobFacts | None) -> int | None:
    """Return the number of nodes that the job still has; None: unknown.

    Raises:
        UsageError: they are fewer than the run needs.
    """
    live = facts.node_list if facts is not None else ()
    if placement.job is not None and live and options.placement.nnodes and options.placement.nnodes[0] > len(live):
        least = f"--nnodes {options.placement.nnodes[0]}"
        raise UsageError(f"{least}: job {placement.job.job_id} has only {len(live)} nodes left ({','.join(live)})")
    return len(live) or None


def _run_of(facts: JobFacts) -> str | None:
    """Return the name of a job's run according to Slurm's data on it; None: as its environment has it."""
    from ftslurm.slurm.sbatch import run_of_comment

    if continued := run_of_comment(facts.comment):
        return check_name("the run in the job's comment", continued)
    # A job submitted inside an array's task inherits SLURM_ARRAY_*: that run is not this job's.
    return f"job-{facts.job_id}" if facts.array_job_id is None else None


def _step_above() -> str | None:
    """Return the number of the srun step whose task this is, which holds what the agents' step would wait for."""
    if "SLURM_JOB_ID" not in os.environ:
        return None
    overlaps = "--overlap" in os.environ.get("FTSRUN_SRUN_ARGS", "").split() or "SLURM_OVERLAP" in os.environ
    step = None if overlaps else own_step()
    return step if step is not None and step.isdecimal() else None


def own_step() -> str | None:
    """Return the Slurm step that this process really is in, "0" or "batch", by the title of its slurmstepd.

    Variables do not prove it: a batch script that was submitted inside a step inherits that step's. None: no slurmstepd
    is visible above this process.
    """
    pid: int | None = os.getpid()
    for _ in range(ANCESTORS):
        pid = parent_of(pid) if pid else None
        if not pid:
            return None
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                title = _STEP_TITLE.match(file.read(200))
        except OSError:
            return None
        if title is not None:
            return title[1].decode()
    return None


def _refuse_place(step: str | None) -> None:
    """Refuse a start outside a job, or below srun.

    Raises:
        UsageError: with one line.
    """
    if not os.environ.get("SLURM_JOB_ID"):
        raise UsageError(
            "not inside a Slurm job (SLURM_JOB_ID is not set); use ftsrun in an sbatch script or after salloc, "
            "or try it here with: ftslurm run --local-nodes 2 program"
        )
    if step is not None:
        raise UsageError(
            f"ftsrun is a task of srun here (step {os.environ['SLURM_JOB_ID']}.{step}), which holds the job's nodes; "
            "ftsrun calls srun itself: start it in the batch script or in salloc, without srun; "
            "in a shell of `srun --pty` set FTSRUN_SRUN_ARGS=--overlap"
        )


def _refuse(error: UsageError | RunDirectoryError, step: str | None) -> int:
    """Print why nothing is started, in the first task of srun only; return the exit code."""
    if step is None or os.environ.get("SLURM_PROCID", "0") == "0":
        if isinstance(error, WrongOptions):
            srun = [("srun", "ftsrun calls it itself")] if step is not None else []
            complain(*error.text("ftsrun", srun).split("\n"))
        else:
            complain(str(error))
    return EXIT_USAGE


def show_fields(*fields: object) -> None:
    """Print what ftsrun reads, each field followed by a NUL; None is an empty one."""
    sys.stdout.write("".join(f"{'' if field is None else field}\0" for field in fields))


def _closer_of(run_dir: str) -> str | None:
    """Return the attempt that has closed a run; None for a run that is not closed or not there, or cannot be read."""
    from ftslurm.records.codec import BadFile
    from ftslurm.records.state import CLOSED, State
    from ftslurm.sharedfs.cell import FencedCell
    from ftslurm.sharedfs.filesystem import PosixFileSystem

    run = RunDirectory(run_dir)
    try:
        newest = FencedCell(PosixFileSystem(owner=os.geteuid()), run.state).get()
        state = State.decode(newest.value, run.state) if newest is not None else None
    except (OSError, BadFile):
        # The caller that opens it reports the problem.
        return None
    return state.attempt if state is not None and state.phase == CLOSED else None
