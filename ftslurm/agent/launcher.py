"""`--local-nodes N`: N agents on this machine, each in a separate process tree, as Slurm would start them."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence

from ftslurm.agent.guardian import SupervisorPipe
from ftslurm.agent.option_groups import RunOptions
from ftslurm.agent.options import parse_run
from ftslurm.agent.placement import LOCAL_ATTEMPT, LOCAL_NODE, local_environment
from ftslurm.agent.preflight import (
    check,
    only_launcher,
    open_directories,
    unique_name,
    warn_of_differences,
    warn_of_exposed,
)
from ftslurm.boot import module_command
from ftslurm.kernel import FORWARDED, STOPPING, die_with_parent
from ftslurm.records.state import EXIT_FAILED
from ftslurm.terminal import UsageError, complain


def launch(options: RunOptions, arguments: Sequence[str], supervisor: SupervisorPipe) -> int:
    """Start the agents, wait for them, print the report unless `FTSLURM_REPORT=0`; return the job's exit code.

    Raises:
        UsageError, RunDirectoryError: with one line; nothing was started.
    """
    count = options.placement.local_nodes or 1
    nnodes = options.placement.nnodes
    if nnodes and nnodes[0] > count:
        raise UsageError(f"--nnodes {nnodes[0]}: expected at most --local-nodes {count}")
    unique, before = unique_name(), dict(os.environ)
    os.environ.update(local_environment(f"local-{unique}", count, os.environ))
    placement = check(parse_run(arguments, os.environ), unique).placement
    run, logs = open_directories(options.output, placement.run_dir)
    warn_of_exposed(run, logs)
    warn_of_differences(options, before, run.root, logs)
    lock = only_launcher(run)
    # Blocked before the first agent exists, so that no signal is lost in between.
    watched = {signal.SIGCHLD, *FORWARDED}
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    # If the guardian is killed, all processes below it get a SIGTERM.
    die_with_parent(signal.SIGTERM)
    if select.select([supervisor.guardian], [], [], 0)[0]:
        return EXIT_FAILED
    stopped_by = _wait({_start(index, count, arguments) for index in range(count)}, watched)
    # A surplus Ctrl-C is not meant for the report; while it is written, signals count again.
    while signal.sigtimedwait(watched, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    lock.release()
    from ftslurm.job_end.conclude import conclude

    quiet = os.environ.get("FTSLURM_REPORT") == "0"
    code = conclude(run.root, os.environ[LOCAL_ATTEMPT], stop_signal=stopped_by, quiet=quiet)
    if code:
        from ftslurm.job_end.parent_error import tell_parent

        if problem := tell_parent(run.root, os.environ):
            complain(problem)
    return code


def _start(index: int, count: int, arguments: Sequence[str]) -> int:
    environment = {**os.environ, LOCAL_NODE: f"{index}/{count}"}
    command = module_command(sys.executable, "ftslurm.cli", "run", *arguments)
    # Own process group: Ctrl-C reaches the launcher alone, which forwards it once.
    # Blocked until its guardian waits for them: an interpreter that is still starting fails on Ctrl-C.
    reset = [*FORWARDED, signal.SIGTTOU]
    return os.posix_spawn(sys.executable, command, environment, setpgroup=0, setsigmask=FORWARDED, setsigdef=reset)


def _wait(pids: set[int], watched: set[signal.Signals]) -> str | None:
    """Wait for the agents and pass signals on to them; return the name of the last one that stops them."""
    stopped_by = None
    while pids:
        number = signal.sigwait(watched)
        if number != signal.SIGCHLD:
            if number in STOPPING:
                stopped_by = signal.Signals(number).name
            for pid in pids:
                os.kill(pid, number)
            continue
        # Also collects orphans of dead agents.
        while pids and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            pids.discard(ended)
    return stopped_by
