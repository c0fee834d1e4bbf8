"""After the agents: the record of their end, the run's report, and the attempt's exit code."""

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
    """Run `ftslurm conclude`, by which ftsrun ends.

    `arguments`: the run directory; what identifies the attempt (see `attempt_of_start`); srun's exit code, empty if
    it has not ended; the name of the signal that told ftsrun to stop, empty for none.
    """
    run_dir, start, code, told = arguments
    # A large run is a million objects that all are needed: to look for cycles among them takes a tenth of the time.
    gc.disable()
    attempt = None
    try:
        attempt = attempt_of_start(PosixFileSystem(owner=os.geteuid()), RunDirectory(run_dir), start)
    except OSError:
        # Judged below, with the report.
        pass
    return conclude(run_dir, attempt, int(code) if code else None, told or None)


def conclude(run_dir: str, attempt: str | None, step_code: int | None = None, told: str | None = None) -> int:
    """Record that an attempt's agents have ended, print and keep the report; return the attempt's exit code.

    Args:
        attempt: its name; None: no agent has written anything.
        step_code: srun's exit code; None: there was no srun, or it did not end.
        told: the name of the signal that told the launcher to stop.
    """
    unrecorded = None
    if attempt is not None:
        try:
            end = StepEnd(attempt, time.time_ns(), step_code, told)
            publish_end(PosixFileSystem(owner=os.geteuid()), RunDirectory(run_dir), end)
        except (OSError, BadFile) as error:
            # A directory that is full or gone: the report says so, if it matters.
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            unrecorded = UnrecordedEnd(attempt, time.time_ns(), step_code, told, why)
    report = None
    try:
        report = make_report(Path(run_dir), offline=False, ended=unrecorded)
    except OSError:
        pass
    verdict = judge(report, run_dir, attempt, step_code, told)
    if report is not None and verdict.told:
        # Kept before it is printed: who reads the output may be gone, or never take it.
        save(report, Path(run_dir))
        show(render(report, colour=wants_colour()))
    if verdict.problem:
        complain(verdict.problem)
    return verdict.exit_code
