"""Checks and records before an agent starts: the placement, the program, the attempt."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from ftslurm import __version__
from ftslurm.agent.devices import count_gpus, resolve_slots
from ftslurm.agent.environment import Program, program_argv
from ftslurm.agent.guardian import START_NAME, SUPERVISOR
from ftslurm.agent.option_groups import ACT, OutputOptions, RunOptions
from ftslurm.agent.options import find_program, options_record
from ftslurm.agent.placement import LOCAL_NODE, Placement, place
from ftslurm.dataclasses import dataclass, replace
from ftslurm.host_lock import HostLock, LockHeld
from ftslurm.job_end.attempts import START
from ftslurm.rendezvous.abandonment import IN_USE
from ftslurm.sharedfs.ownership import user_name
from ftslurm.sharedfs.rundir import (
    RunDirectory,
    RunDirectoryError,
    exposed,
    open_logs,
    open_run,
    remove_empty,
)
from ftslurm.terminal import UsageError, complain
from ftslurm.text import clip

TIME_LIMIT = "FTSLURM__TIME_LIMIT_S"
"""Set by ftsrun: the time limit of its job, in seconds."""


@dataclass(frozen=True)
class CheckedRun:
    """What an agent starts with: options that were checked, and what follows from them.

    Attributes:
        slots: number of workers on this node; 0: unknown on a login node.
        choice: why `--nproc-per-node auto` has chosen that number; None: it had no choice.
    """

    options: RunOptions
    placement: Placement
    program: Program
    slots: int
    choice: str | None = None


def open_directories(output: OutputOptions, run_dir: str) -> tuple[RunDirectory, str | None]:
    """Make or check the run directory and, if `--log-dir` is given, the directory of the ranks' logs; return both.

    Raises:
        RunDirectoryError: with one line.
    """
    logs = None
    if output.log_dir is not None:
        logs = os.path.join(os.path.abspath(output.log_dir), os.path.basename(run_dir))
        # First: a run directory is not left behind where the logs are refused.
        if logs != run_dir:
            open_logs(logs)
    try:
        return open_run(run_dir, user_name(), time.time_ns(), __version__), logs
    except RunDirectoryError:
        if logs is not None:
            remove_empty(logs)
        raise


def only_agent(run: RunDirectory, placement: Placement) -> HostLock:
    """Return the lock of this node's agent of the run, held until this process ends.

    In a job, an agent of an earlier attempt holds another one: it is fenced out, and may hang in the kernel for long.

    Raises:
        UsageError: another process holds it; one line.
    """
    attempt = (placement.attempt,) if placement.job is not None else ()
    try:
        return HostLock("agent", run.root, placement.node, *attempt)
    except LockHeld as holder:
        advice = (
            "start one task on each node (--ntasks-per-node=1), once in a job" if placement.job is not None else IN_USE
        )
        raise UsageError(
            f"an agent of the run {run.root} runs on node {placement.node} already: {holder}; {advice}"
        ) from None


def only_launcher(run: RunDirectory) -> HostLock:
    """Return the lock of this host's launcher of the run (`--local-nodes`), held until this process ends.

    Raises:
        UsageError: another process holds it; one line.
    """
    try:
        return HostLock("agent", run.root, "launcher")
    except LockHeld as holder:
        raise UsageError(f"a launcher of the run {run.root} runs on this host already: {holder}; {IN_USE}") from None


def warn_of_misspelt(environment: Mapping[str, str]) -> None:
    """Warn the user of variables that are almost options; once for all nodes, and not again below ftsrun."""
    if LOCAL_NODE in environment or START in environment or environment.get("SLURM_PROCID", "0") != "0":
        return
    names = [
        name for name in environment if name.upper().startswith("FTSLURM_") and name not in (SUPERVISOR, START_NAME)
    ]
    if not names:
        return
    from ftslurm.agent.variable_names import misspelt

    for line in misspelt(names):
        complain(line)


def warn_of_exposed(run: RunDirectory, logs: str | None) -> None:
    """Warn the user of directories that other users could replace; once for all nodes."""
    for directory in dict.fromkeys((run.root, logs or run.root)):
        warning = exposed(directory)
        if warning is not None:
            complain(warning)


def check(options: RunOptions, unique: str, batch: bool = False) -> CheckedRun:
    """Check everything that can be wrong before anything is started.

    Args:
        batch: this is the batch script's host, not yet a task on each node.

    Raises:
        UsageError, RunDirectoryError: with one line.
    """
    placement = place(options.placement, os.environ, _current_directory(), os.uname().nodename, unique, batch)
    prefix = options.program.prefix
    python = os.environ.get("PYTHON_EXEC") or ("python3" if prefix else sys.executable)
    name = find_program(options.program, os.environ.get("PATH", os.defpath))
    kind = "module" if options.program.module else "exec" if options.program.no_python else "script"
    program = Program(kind, name, options.program.arguments, python, prefix)
    if batch and placement.job is not None and placement.job.node_name is None:
        # salloc's shell on a login node: its devices are not those of the nodes.
        return CheckedRun(options, placement, program, 0)
    if prefix:
        program = replace(program, prefix=(_found(prefix[0]), *prefix[1:]))
    if options.placement.interface is not None and not batch:
        placement = _with_address(placement, options.placement.interface, options.health.mode == ACT)
    wanted, cpus = options.placement.nproc_per_node, len(os.sched_getaffinity(0))
    slots = resolve_slots(wanted, os.environ, lambda: count_gpus(sys.executable if prefix else python), cpus)
    return CheckedRun(options, placement, program, slots.count, slots.choice)


def _with_address(placement: Placement, interface: str, is_checked: bool) -> Placement:
    """Return the placement with the address of that interface.

    Args:
        is_checked: where it is missing, the health check of the same finds that, and the node takes no part.
    """
    from ftslurm.interfaces import NoSuchInterface, choose, interfaces

    try:
        return replace(placement, address=choose(interface, interfaces()))
    except (NoSuchInterface, OSError) as error:
        if not is_checked:
            raise UsageError(f"{placement.node}: --interface {interface}: {error}") from None
        return placement


def _found(command: str) -> str:
    from shutil import which

    if (path := which(command)) is None:
        where = f"{os.uname().nodename} (PATH={clip(os.environ.get('PATH', ''), 200)})"
        raise UsageError(f"--worker-prefix {command}: no such program on {where}")
    return os.path.abspath(path)


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current directory is gone; cd to one that exists") from None


def unique_name() -> str:
    """Return a name unique to this start outside Slurm: the guardian's, else from the time and this process."""
    return os.environ.get(START_NAME) or time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"


def write_attempt(run: RunDirectory, checked: CheckedRun, logs: str | None) -> None:
    """Write the attempt's record: its options and Slurm's facts; the first node's record counts.

    Raises:
        RunDirectoryError: it cannot be written, or the existing one has a newer format.
    """
    from ftslurm.records.attempt import Attempt
    from ftslurm.records.codec import BadFile, write_record
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import publish_once, read_published

    placement, job = checked.placement, checked.placement.job
    fs = PosixFileSystem(owner=os.geteuid())
    path = run.attempt_file(placement.attempt)
    record = Attempt(
        attempt=placement.attempt,
        created_ns=time.time_ns(),
        start=os.environ.get(START),
        job_id=job.job_id if job else None,
        restart_count=job.restart_count if job else 0,
        node_list=tuple(placement.expected),
        job_name=job.job_name if job else None,
        partition=job.partition if job else None,
        cluster=job.cluster if job else None,
        array_job_id=job.array_job_id if job else None,
        array_task_id=job.array_task_id if job else None,
        options={**options_record(checked.options), "min_nodes": placement.min_nodes, "max_nodes": placement.max_nodes},
        command=tuple(program_argv(checked.program)),
        cwd=os.getcwd(),
        python=checked.program.python,
        logs=logs,
        time_limit_s=_whole(os.environ.get(TIME_LIMIT)) if job else None,
    )
    try:
        fs.makedirs(run.attempt(placement.attempt))
        try:
            read_published(fs, path, Attempt)
        except FileNotFoundError:
            publish_once(fs, path, write_record(record))
    except OSError as error:
        raise RunDirectoryError(f"run directory {run.root}: {error.strerror} ({error.filename})") from None
    except BadFile as error:
        raise RunDirectoryError(str(error)) from None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and text.isascii() and len(text) < 12 else None
