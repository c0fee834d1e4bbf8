"""After the end of all agents: the record of their end, the run's report, and the attempt's exit code."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ftslurm.agent.output import complain
from ftslurm.job_end.attempts import StepEnd, attempt_of_start, publish_end
from ftslurm.job_end.verdict import judge
from ftslurm.report.command import make_report, save
from ftslurm.report.facts import StepEnd as UnrecordedEnd
from ftslurm.report.text import render
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import BadFile
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.terminal import show, wants_colour


def main(arguments: Sequence[str]) -> int:
    """Run `ftslurm conclude`, the last step of ftsrun.

    `arguments`: the run directory; the identification of the attempt (see `attempt_of_start`); srun's exit code, empty
    if it has not ended; the name of the signal that stopped ftsrun, empty for none.
    """
    run_dir, start, code, stop_signal = arguments
    # A large run has a million live objects: garbage collection of cycles would take a tenth of the time.
    gc.disable()
    attempt = None
    try:
        attempt = attempt_of_start(PosixFileSystem(owner=os.geteuid()), RunDirectory(run_dir), start)
    except OSError:
        # Handled below, with the report.
        pass
    return conclude(run_dir, attempt, int(code) if code else None, stop_signal or None)


def conclude(run_dir: str, attempt: str | None, step_code: int | None = None, stop_signal: str | None = None) -> int:
    """Record that an attempt's agents have ended, print and save the report; return the attempt's exit code.

    Args:
        attempt: its name; None: no agent has written a record.
        step_code: srun's exit code; None: there was no srun, or it did not end.
        stop_signal: the name of the signal that stopped the launcher.
    """
    unrecorded = None
    if attempt is not None:
        try:
            end = StepEnd(attempt, time.time_ns(), step_code, stop_signal)
            publish_end(PosixFileSystem(owner=os.geteuid()), RunDirectory(run_dir), end)
        except (OSError, BadFile) as error:
            # A directory that is full or missing: the report contains that, if it matters.
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            unrecorded = UnrecordedEnd(attempt, time.time_ns(), step_code, stop_signal, why)
    report = None
    try:
        report = make_report(Path(run_dir), offline=False, ended=unrecorded)
    except OSError:
        pass
    verdict = judge(report, run_dir, attempt, step_code, stop_signal)
    if report is not None and verdict.reported:
        # Saved before it is printed: the reader of the output may have exited, or block.
        save(report, Path(run_dir))
        show(render(report, colour=wants_colour()))
    if verdict.problem:
        complain(verdict.problem)
    return verdict.exit_code
