"""Checks and records before an agent starts: the placement, the program, the attempt."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from ftslurm import __version__
from ftslurm.agent.devices import count_gpus, resolve_slots
from ftslurm.agent.environment import Program, program_argv
from ftslurm.agent.guardian import START_NAME
from ftslurm.agent.options import RunOptions, UsageError, find_program, parse_run
from ftslurm.agent.output import complain
from ftslurm.agent.placement import Placement, place
from ftslurm.dataclasses import asdict
from ftslurm.job_end.attempts import ATTEMPT_SCHEMA, ATTEMPT_VERSION, START
from ftslurm.rendezvous.state import EXIT_USAGE
from ftslurm.sharedfs.rundir import RUNS_FOLDER, RunDirectory, RunDirectoryError, exposed, open_logs, open_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts


def prepare(arguments: Sequence[str]) -> int:
    """Run `ftslurm prepare`, which ftsrun calls before srun: check everything that can be checked on the batch host.

    Takes the arguments of `ftslurm run`. Prints, each followed by a NUL because a path may hold any other byte: the run
    directory; a random name for this start; the time, in nanoseconds since the epoch; the batch script's node, empty
    without one; the node time-out in seconds; the site's KillWait in seconds, empty if unknown; the directory of the
    records of excluded nodes.
    """
    started_ns = time.time_ns()
    from ftslurm.nodes.exclude import folder
    from ftslurm.sharedfs.job_runs import run_of_start
    from ftslurm.sharedfs.ownership import is_foreign
    from ftslurm.sharedfs.publish import random_nonce
    from ftslurm.slurm.control import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    slurm = CommandSlurm()
    kill_wait: int | None = None
    facts: JobFacts | None = None
    try:
        options = parse_run(arguments, os.environ)
        placement, _, _ = check(options, unique_name(), batch=True)
        run_dir = placement.run_dir
        try:
            kill_wait = slurm.kill_wait_s()
            facts = slurm.job(placement.job.job_id) if placement.job else None
            if facts is not None and facts.array_job_id is None and options.rdzv_id is None:
                # A job submitted inside an array's task inherits SLURM_ARRAY_*: that run is not this job's.
                run_dir = os.path.join(os.path.dirname(run_dir), f"job-{facts.job_id}")
        except SlurmError:
            # Slurm's controller may be busy: these facts are optional.
            pass
        if placement.job is not None and options.rdzv_id is None:
            wanted = run_dir
            run_dir = run_of_start(wanted, placement.attempt, _closer_of, is_foreign)
            if run_dir != wanted and is_foreign(wanted):
                complain(f"{wanted} is not yours: this run is in {os.path.basename(run_dir)}")
        run, logs = open_directories(options, run_dir)
    except (UsageError, RunDirectoryError) as error:
        complain(str(error))
        return EXIT_USAGE
    warn_of_exposed(run, logs)
    if facts is not None:
        _point_to(run.root, facts)
    batch_host = facts.batch_host if facts is not None else None
    exclude_dir = folder(run.root, options.exclude_dir)
    found = (run.root, random_nonce(), started_ns, batch_host, f"{options.node_timeout_s:g}", kill_wait, exclude_dir)
    sys.stdout.write("".join(f"{'' if fact is None else fact}\0" for fact in found))
    return 0


def open_directories(options: RunOptions, run_dir: str) -> tuple[RunDirectory, str | None]:
    """Make or check the run directory and, if `--log-dir` is given, the directory of the ranks' logs; return both.

    Raises:
        RunDirectoryError: with one line.
    """
    run = open_run(run_dir, user_name(), time.time_ns(), __version__)
    if options.log_dir is None:
        return run, None
    logs = os.path.join(os.path.abspath(options.log_dir), os.path.basename(run.root))
    if logs != run.root:
        open_logs(logs)
    return run, logs


def warn_of_exposed(run: RunDirectory, logs: str | None) -> None:
    """Warn the user of directories that other users could replace; once for all nodes."""
    for directory in dict.fromkeys((run.root, logs or run.root)):
        warning = exposed(directory)
        if warning is not None:
            complain(warning)


def _closer_of(run_dir: str) -> str | None:
    """Return the attempt that has closed a run; None for a run that is not closed or not there, or cannot be read."""
    from ftslurm.rendezvous.state import CLOSED, State
    from ftslurm.sharedfs.cell import FencedCell
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import BadFile

    run = RunDirectory(run_dir)
    try:
        newest = FencedCell(PosixFileSystem(owner=os.geteuid()), run.state).get()
        state = State.decode(newest.value, run.state) if newest is not None else None
    except (OSError, BadFile):
        # The caller that opens it reports the problem.
        return None
    return state.attempt if state is not None and state.phase == CLOSED else None


def _point_to(run_dir: str, job: JobFacts) -> None:
    """Leave a link beside the job's output to a run directory that `ftslurm report JOB` would not find."""
    from pathlib import Path

    from ftslurm.sharedfs.pointer import leave_pointer

    work_dir = Path(job.work_dir or os.getcwd())
    if os.path.realpath(os.path.dirname(run_dir)) == os.path.realpath(work_dir / RUNS_FOLDER):
        return
    # Not into /dev, where --output=/dev/null is; and salloc has no output.
    beside = Path(job.std_out).parent if job.std_out and os.path.isfile(job.std_out) else work_dir
    leave_pointer(beside, job.scontrol_id, run_dir)


def check(options: RunOptions, unique: str, batch: bool = False) -> tuple[Placement, Program, int]:
    """Check everything that can be wrong before anything is started.

    Args:
        batch: this is the batch script's host, not yet a task on each node.

    Returns:
        This agent's placement, the program, and its number of workers.

    Raises:
        UsageError, RunDirectoryError: with one line.
    """
    placement = place(options, os.environ, _current_directory(), os.uname().nodename, unique, batch)
    python = os.environ.get("PYTHON_EXEC") or sys.executable
    name = find_program(options, os.environ.get("PATH", os.defpath))
    kind = "module" if options.module else "exec" if options.no_python else "script"
    program = Program(kind, name, options.arguments, python)
    if batch and placement.job is not None and placement.job.node_name is None:
        # salloc's shell on a login node: its devices say nothing about the nodes.
        return placement, program, 0
    slots = resolve_slots(options.nproc_per_node, os.environ, lambda: count_gpus(python), len(os.sched_getaffinity(0)))
    return placement, program, slots


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current directory is gone; cd to one that exists") from None


def unique_name() -> str:
    """Return a name unique to this start outside Slurm: the guardian's, else from the time and this process."""
    return os.environ.get(START_NAME) or time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"


def write_attempt(
    run: RunDirectory, options: RunOptions, placement: Placement, program: Program, logs: str | None
) -> None:
    """Write the attempt's record: its options and Slurm's facts; the first node's record counts.

    Raises:
        RunDirectoryError: it cannot be written, or the existing one has a newer format.
    """
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import BadFile, encode, publish_once, read_object

    job = placement.job
    fs = PosixFileSystem(owner=os.geteuid())
    path = run.attempt_file(placement.attempt)
    facts = {
        "schema": ATTEMPT_SCHEMA,
        "version": ATTEMPT_VERSION,
        "attempt": placement.attempt,
        "created_ns": time.time_ns(),
        "start": os.environ.get(START),
        "job_id": job.job_id if job else None,
        "restart_count": job.restart_count if job else 0,
        "node_list": list(placement.expected),
        "job_name": job.job_name if job else None,
        "partition": job.partition if job else None,
        "cluster": job.cluster if job else None,
        "array_job_id": job.array_job_id if job else None,
        "array_task_id": job.array_task_id if job else None,
        "options": {
            **asdict(options),
            "min_nodes": placement.min_nodes,
            "max_nodes": placement.max_nodes,
        },
        "command": list(program_argv(program)),
        "cwd": os.getcwd(),
        "python": program.python,
        "logs": logs,
    }
    try:
        fs.makedirs(run.attempt(placement.attempt))
        try:
            read_object(fs, path, ATTEMPT_SCHEMA, ATTEMPT_VERSION)
        except FileNotFoundError:
            publish_once(fs, path, encode(facts))
    except OSError as error:
        raise RunDirectoryError(f"run directory {run.root}: {error.strerror} ({error.filename})") from None
    except BadFile as error:
        raise RunDirectoryError(str(error)) from None


def user_name() -> str:
    """Return the user's name, the uid where it has none (as in some containers)."""
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError):
        return str(os.geteuid())
