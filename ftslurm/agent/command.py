"""`ftslurm run`: from the command line to a running agent, or to one clear line and exit code 2."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from ftslurm import __version__
from ftslurm.agent.devices import count_gpus, resolve_slots
from ftslurm.agent.environment import Program, RunFacts, program_argv
from ftslurm.agent.guardian import STOPPING, Ward
from ftslurm.agent.options import RunOptions, UsageError, find_program, parse_run
from ftslurm.agent.output import Console, complain
from ftslurm.agent.placement import LOCAL_NODE, Placement, place
from ftslurm.rendezvous.state import EXIT_USAGE, State
from ftslurm.sharedfs.rundir import RunDirectory, RunDirectoryError, open_run
from ftslurm.slurm.environment import SlurmJob

ATTEMPT_SCHEMA, ATTEMPT_VERSION = "ftslurm/attempt", 1
DEFAULT_KILL_WAIT_S = 30.0
TROUBLE_S = 60.0
KILL_WAIT_MARGIN = 0.6
"""Share of Slurm's KillWait that workers get before they are killed; the rest is for the last words."""


def main(arguments: Sequence[str], ward: Ward) -> int:
    """Run `ftslurm run` in the process below the guardian; return its exit code.

    Args:
        arguments: of the command line.
        ward: of the guardian above.
    """
    try:
        options = parse_run(arguments, os.environ)
        if options.local_nodes and LOCAL_NODE not in os.environ:
            from ftslurm.agent.launcher import launch

            return launch(options, arguments, ward)
        return run_agent(options, ward)
    except (UsageError, RunDirectoryError) as error:
        complain(str(error))
        return EXIT_USAGE


def prepare(arguments: Sequence[str]) -> int:
    """Run `ftslurm prepare`, ftsrun's look before srun: check everything that can be checked on the batch host.

    Takes the arguments of `ftslurm run`. Prints the run directory and the site's KillWait, a line each.
    """
    from ftslurm.slurm.control import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    slurm = CommandSlurm()
    kill_wait: int | None = None
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
            # Slurm's controller may be busy: its word is good to have, no more.
            pass
        run = open_run(run_dir, user_name(), time.time_ns(), __version__)
    except (UsageError, RunDirectoryError) as error:
        complain(str(error))
        return EXIT_USAGE
    print(f"{run.root}\n{'' if kill_wait is None else kill_wait}")
    return 0


def check(options: RunOptions, unique: str, batch: bool = False) -> tuple[Placement, Program, int]:
    """Find out all that can be wrong before anything is started.

    Args:
        batch: this is the batch script's host, not yet a task on each node.

    Returns:
        This agent's place, the program, and its number of workers.

    Raises:
        UsageError, RunDirectoryError: with one line.
    """
    placement = place(options, os.environ, _current_directory(), os.uname().nodename, unique, batch)
    python = os.environ.get("PYTHON_EXEC") or sys.executable
    name = find_program(options, os.environ.get("PATH", os.defpath))
    kind = "module" if options.module else "exec" if options.no_python else "script"
    program = Program(kind, name, options.arguments, python)
    if batch and placement.job is not None and placement.job.node_name is None:
        # salloc's shell on a login node: what it has says nothing about the nodes.
        return placement, program, 0
    slots = resolve_slots(options.nproc_per_node, os.environ, lambda: count_gpus(python), len(os.sched_getaffinity(0)))
    return placement, program, slots


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current directory is gone; cd to one that exists") from None


def unique_name() -> str:
    """Return a name that no other start outside Slurm has: the time and this process."""
    return time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"


def run_agent(options: RunOptions, ward: Ward) -> int:
    """Run this node's agent to its end; return the exit code.

    Raises:
        UsageError, RunDirectoryError: with one line; nothing was started.
    """
    placement, program, slots = check(options, unique_name())
    run = open_run(placement.run_dir, user_name(), time.time_ns(), __version__)
    logs = _logs(options, placement)
    write_attempt(run, options, placement, program, logs)
    code = _supervise(options, placement, program, slots, run, logs or run.root, ward)
    if placement.job is None and LOCAL_NODE not in os.environ and os.environ.get("FTSLURM_REPORT") != "0":
        for number in STOPPING:
            # Nobody waits for them any more: a report that cannot be written must not be unkillable.
            signal.signal(number, signal.SIG_DFL)
        print_report(run.root)
    return code


def _supervise(
    options: RunOptions,
    placement: Placement,
    program: Program,
    slots: int,
    run: RunDirectory,
    logs: str,
    ward: Ward,
) -> int:
    from dataclasses import replace

    from ftslurm.agent.courier import Courier
    from ftslurm.agent.loop import AgentLoop, AgentSettings
    from ftslurm.agent.machine import AgentMachine
    from ftslurm.agent.ports import ReservedPort, lowest_ephemeral, pick_at_random
    from ftslurm.rendezvous.fold import Shape, Timing
    from ftslurm.rendezvous.member import Member, Pace, first_word
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import random_nonce

    incarnation = random_nonce()
    ward.bequeath(run.node_file(placement.node), incarnation)
    shape = Shape(
        placement.run_id,
        placement.attempt,
        placement.expected,
        placement.min_nodes,
        placement.max_nodes,
        options.max_restarts,
    )
    word = first_word(placement.node, incarnation, placement.attempt, placement.position, slots)
    word = replace(word, host=os.uname().nodename, address=placement.address)
    fs = PosixFileSystem(owner=os.geteuid())
    pace = Pace(heartbeat_s=options.heartbeat_s, follow_s=min(1.0, options.heartbeat_s))
    timing = Timing(options.node_timeout_s, options.join_timeout_s, options.last_call_s, rejoin=options.rejoin)
    courier = Courier(Member(fs, run, shape, word, timing, pace, time.monotonic, time.time_ns), time.monotonic)
    machine = AgentMachine(
        placement.node, incarnation, placement.attempt, slots, options.grace_s, _kill_wait_s(placement)
    )
    lowest = lowest_ephemeral()
    settings = AgentSettings(
        RunFacts(placement.run_id, run.root, placement.node, options.role),
        program,
        options.redirects,
        options.tee,
        logs,
        ward.local_dir,
        dict(os.environ),
        ward.guardian,
        min(TROUBLE_S, options.join_timeout_s),
    )
    console = Console(placement.node)
    loop = AgentLoop(
        settings,
        machine,
        word,
        courier,
        console,
        fs,
        run,
        lambda: ReservedPort(pick_at_random, lowest),
        time.monotonic,
        time.time_ns,
    )
    code = loop.run()
    if courier.published:
        ward.left()
    if placement.job is not None and loop.state is not None:
        _care(placement.job, loop.state, incarnation, run)
    return code


def _care(job: SlurmJob, state: State, incarnation: str, run: RunDirectory) -> None:
    from ftslurm.agent.aftercare import batch_host_lost, end_job
    from ftslurm.slurm.control import CommandSlurm

    if batch_host_lost(state, job):
        coordinating = state.coordinator.incarnation == incarnation
        for problem in end_job(job, CommandSlurm(), coordinating, lambda: _report(run.root), time.sleep):
            complain(problem)


def _report(run_dir: str) -> str:
    """Return the report as ftsrun prints it, and keep it in the run directory."""
    from pathlib import Path

    from ftslurm.report.command import make_report, save
    from ftslurm.report.text import render

    report = make_report(Path(run_dir))
    save(report, Path(run_dir))
    return render(report)


def _kill_wait_s(placement: Placement) -> float:
    """Return how long workers may take to stop when Slurm stops the job; ftsrun passes on the site's KillWait."""
    if placement.job is None:
        return 1e9
    text = os.environ.get("FTSLURM_KILL_WAIT", "")
    return (float(text) if text.isdigit() else DEFAULT_KILL_WAIT_S) * KILL_WAIT_MARGIN


def _logs(options: RunOptions, placement: Placement) -> str | None:
    if options.log_dir is None:
        return None
    return os.path.join(os.path.abspath(options.log_dir), placement.run_id)


def write_attempt(
    run: RunDirectory, options: RunOptions, placement: Placement, program: Program, logs: str | None
) -> None:
    """Write down what this attempt asks for and what Slurm says of it; the first node's word stands.

    Raises:
        RunDirectoryError: it cannot be written, or the attempt there is of a newer format.
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


def print_report(run_dir: str) -> int:
    """Print the report of the run, keep it in the run directory, and return the job's verdict as an exit code."""
    from ftslurm.report.command import main as report

    return report([run_dir, "--save", "--exit-code"])


def user_name() -> str:
    """Return the user's name, the uid where it has none (as in some containers)."""
    try:
        import pwd

        return pwd.getpwuid(os.geteuid()).pw_name
    except (ImportError, KeyError):
        return str(os.geteuid())
