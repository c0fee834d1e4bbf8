"""``ftslurm stop``: ask a run to stop; its ranks leave at a common step."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftslurm.records.state import CLOSED
from ftslurm.records.stop import StopFile
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.ownership import user_name
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.status.running import EXIT_FAILED, failed, read_state, run_command, running_state
from ftslurm.terminal import show
from ftslurm.text import one_line

if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts

POLL_S = 0.2
"""Interval at which ``--wait`` reads the state, in seconds."""


def main(
    argv: Sequence[str],
    *,
    ask: Callable[[str], JobFacts | None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Run ``ftslurm stop`` and return its exit status: 0 the run was asked (with ``--wait``: has stopped)."""
    return run_command("stop", _parser(), argv, lambda run, options: _stop(run, options, sleep, monotonic), ask)


def _stop(
    run: RunDirectory, options: argparse.Namespace, sleep: Callable[[float], None], monotonic: Callable[[], float]
) -> int:
    fs = PosixFileSystem(owner=os.geteuid())
    name = os.path.basename(run.root)
    state = running_state(fs, run, options.run, past="", other="to stop that: ftslurm stop")
    reason = one_line(options.reason or f"ftslurm stop by {user_name()}")
    request = StopFile(state.attempt, reason, time.time_ns())
    publish(fs, run.stop_file, request.encode())
    if options.wait is None:
        show(f"{name}: asked to stop; its ranks leave at a common step, see ftslurm status {run.root}\n")
        return 0
    until = monotonic() + options.wait
    while (now := read_state(fs, run)) is None or (now.phase != CLOSED and now.attempt == request.attempt):
        if monotonic() >= until:
            return failed("stop", f"{name} has not stopped within {options.wait:g} s; it is asked to", EXIT_FAILED)
        sleep(POLL_S)
    closed = one_line(now.closed.reason) if now.closed is not None else "a new attempt has begun"
    show(f"{name}: {closed}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_run, add_shared_dir, wait_s

    parser = CommandParser(
        prog="ftslurm stop",
        description="Ask a run to stop: ranks that call ftslurm.should_stop leave at a common step; others get SIGTERM "
        "and their grace. The job then ends with exit code 75.",
    )
    add_run(parser)
    add_shared_dir(parser)
    parser.add_argument("--reason", metavar="TEXT", help="one line for the log and the report")
    parser.add_argument("--wait", type=wait_s, metavar="SECONDS", help="wait so long for the end of the run")
    return parser
