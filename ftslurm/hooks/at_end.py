"""The events that are left when the agents have ended: run by the process that makes the report."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping

from ftslurm.hooks.events import arguments_of, events_of
from ftslurm.kernel import kill_descendants
from ftslurm.records.attempt import Attempt
from ftslurm.records.codec import BadFile
from ftslurm.records.state import State
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import read_published
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.terminal import complain
from ftslurm.text import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

LIMIT_S = 100.0
"""Time-out for all of them, in seconds: three events of 30 s. ftsrun waits 140 s for the report and this."""
KILLED_IN = "FTSLURM__KILLED_IN_S"
"""Environment variable with the seconds until Slurm kills this job, if ftsrun has got its SIGTERM."""
ANNOUNCED_S = 2.0


def follow_last_events(run_dir: str, attempt: str, limit_s: float = LIMIT_S) -> None:
    """Run the command of `--on-event`, if the attempt has one, for its events that no agent has run it for."""
    import subprocess

    fs, run = PosixFileSystem(owner=os.geteuid()), RunDirectory(run_dir)
    try:
        command = (read_published(fs, run.attempt_file(attempt), Attempt).options or {}).get("on_event")
        newest = FencedCell(fs, run.state).get() if command else None
        state = State.decode(newest.value, run.state) if newest is not None else None
    except (OSError, BadFile):
        # The report says what is wrong with the directory.
        return
    if not isinstance(command, str) or state is None or state.attempt != attempt:
        return
    words = arguments_of(sys.executable, run_dir, os.uname().nodename, command, events_of(state))
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    killed_in_s = seconds_until_kill(os.environ)
    try:
        if killed_in_s < math.inf:
            _warn_of_kill(process, killed_in_s - ANNOUNCED_S)
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        kill_descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        complain(f"--on-event: not all commands have ended within {duration(limit_s)}")


def seconds_until_kill(environ: Mapping[str, str]) -> float:
    """Return the seconds until Slurm kills this job, as ftsrun has computed them; infinite if Slurm does not end it."""
    killed_in = environ.get(KILLED_IN, "")
    return float(killed_in) if killed_in.isdecimal() else math.inf


def _warn_of_kill(process: subprocess.Popen[bytes], in_s: float) -> None:
    """Wait until it has ended, or until Slurm is about to kill it: what is cut off cannot say so itself."""
    import subprocess

    try:
        process.wait(max(0.0, in_s))
    except subprocess.TimeoutExpired:
        complain("--on-event: its command still runs, and Slurm kills this job now: KillWait is over")
