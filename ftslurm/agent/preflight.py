"""Checks and records before an agent starts: the placement, the program, the attempt."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

from ftslurm import __version__
from ftslurm.agent.devices import count_gpus, count_xpus, resolve_slots
from ftslurm.agent.environment import Program, program_argv
from ftslurm.agent.guardian import START_NAME, SUPERVISOR
from ftslurm.agent.option_groups import ACT, OutputOptions, ProgramOptions, RunOptions
from ftslurm.agent.options import find_program, options_record, parse_run
from ftslurm.agent.placement import LOCAL_NODE, Placement, place
from ftslurm.agent.torchrun_options import WrongOptions
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
from ftslurm.terminal import INFO, WARNING, UsageError, complain, set_level
from ftslurm.text import clip, plural

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


def _warned_elsewhere(environment: Mapping[str, str]) -> bool:
    """Return whether another process of this start tells the user what is the same on all nodes."""
    return LOCAL_NODE in environment or START in environment or environment.get("SLURM_PROCID", "0") != "0"


def warn_of_differences(options: RunOptions, environment: Mapping[str, str], run_dir: str, logs: str | None) -> None:
    """Tell what habits of torchrun would expect otherwise; once for all nodes, and not again below ftsrun."""
    if _warned_elsewhere(environment):
        return
    from ftslurm.agent.torchrun_options import differences

    for line in differences(options, environment, logs or run_dir):
        complain(line, level=INFO)


def warn_of_misspelt(environment: Mapping[str, str]) -> None:
    """Warn the user of variables that are almost options; once for all nodes, and not again below ftsrun."""
    if _warned_elsewhere(environment):
        return
    prefixes = ("FTSLURM_", "PET_")
    names = [name for name in environment if name.upper().startswith(prefixes) and name not in (SUPERVISOR, START_NAME)]
    if not names:
        return
    from ftslurm.agent.variable_names import misspelt

    for line in misspelt(names):
        complain(line, level=WARNING)


def warn_of_exposed(run: RunDirectory, logs: str | None) -> None:
    """Warn the user of directories that other users could replace; once for all nodes."""
    for directory in dict.fromkeys((run.root, logs or run.root)):
        warning = exposed(directory)
        if warning is not None:
            complain(warning, level=WARNING)


def read_options(arguments: Sequence[str], environment: Mapping[str, str]) -> RunOptions:
    """Read the command line, and leave out from now on the lines that it does not ask for; raises as `parse_run`."""
    try:
        options = parse_run(arguments, environment)
    except WrongOptions as error:
        raise _and_what_follows(error, environment) from None
    set_level(options.output.level)
    return options


def _and_what_follows(error: WrongOptions, environment: Mapping[str, str]) -> WrongOptions:
    """Return the error with what would be refused next, of the corrected command line."""
    if error.kept is None or error.has_forms:
        return error
    try:
        options = parse_run(error.corrected, environment)
        find_program(options.program, environment.get("PATH", os.defpath))
    except UsageError as following:
        return WrongOptions(error.refused, (*error.mistakes, str(following)), error.kept, has_forms=True)
    return error


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
    counted = (lambda: count_gpus(sys.executable if prefix else python), cpus, lambda: count_xpus(python))
    slots = resolve_slots(wanted, os.environ, *counted)
    _check_devices(options.program, slots.count, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return CheckedRun(options, placement, program, slots.count, slots.choice)


def _check_devices(program: ProgramOptions, slots: int, visible: str | None) -> None:
    """Refuse workers without a device of their own (`--virtual-local-rank`).

    Raises:
        UsageError: with one line.
    """
    if program.virtual_local_rank and visible is not None and slots > (devices := len(visible.split(","))):
        only = f"CUDA_VISIBLE_DEVICES={visible} has {plural(devices, 'device')}"
        raise UsageError(f"--virtual-local-rank: {only} for {plural(slots, 'worker')} on {os.uname().nodename}")


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
