"""After the end of all agents: the record of their end, the run's report, and the attempt's exit code."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ftslurm.hooks.at_end import follow_last_events, seconds_until_kill
from ftslurm.job_end.after_run import needs_scheduler_query, save_scheduler_record
from ftslurm.job_end.attempts import attempt_of_start, publish_end
from ftslurm.job_end.carry_out import carry_out
from ftslurm.job_end.end_cause import with_lost_step
from ftslurm.job_end.outcome import outcome_of
from ftslurm.job_end.settle import settle
from ftslurm.records.attempt import Attempt, StepEnd
from ftslurm.records.codec import BadFile
from ftslurm.records.state import State
from ftslurm.records.verdict import END, FAILED, RESUBMITTED, AttemptVerdict
from ftslurm.report.pipeline import make_report, save
from ftslurm.report.text import first_lines, render
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import FileSystem, PosixFileSystem
from ftslurm.sharedfs.publish import read_published
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.slurm.environment import SlurmEnvironmentError, SlurmJob, from_environ
from ftslurm.terminal import ERROR, INFO, complain, show, wants_colour
from ftslurm.text import duration

AWAIT_S = 30.0
"""Longest wait for the run directory, in seconds: a part of the 140 s that ftsrun has for all that follows the end of
the step."""
RETRY_S = 0.25


def main(arguments: Sequence[str]) -> int:
    """Run `ftslurm conclude`, the last step of ftsrun.

    `arguments`: the run directory; the identification of the attempt (see `attempt_of_start`); srun's exit code, empty
    if it has not ended; the name of the signal that stopped ftsrun, empty for none.
    """
    run_dir, start, code, stop_signal = arguments
    # A large run has a million live objects: garbage collection of cycles would take a tenth of the time.
    gc.disable()
    attempt = None
    fs = PosixFileSystem(owner=os.geteuid())
    try:
        await_directory(fs, run_dir, seconds_until_kill(os.environ) / 2)
        attempt = attempt_of_start(fs, RunDirectory(run_dir), start)
    except OSError:
        # Handled below, with the report.
        pass
    return conclude(run_dir, attempt, int(code) if code else None, stop_signal or None)


def await_directory(
    fs: FileSystem,
    run_dir: str,
    limit_s: float = AWAIT_S,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return as soon as the run directory can be opened, at the latest after `limit_s` seconds, at most `AWAIT_S`.

    It may be away for a moment: its server restarts, it is moved and comes back. What follows the end of the agents
    happens once: without the directory, a job would not be started again, and the run would count as running for ever.
    """
    deadline = monotonic() + min(limit_s, AWAIT_S)
    announced = False
    while True:
        try:
            fs.refresh(run_dir)
            return
        except OSError as error:
            left_s = deadline - monotonic()
            if left_s <= 0:
                return
            if not announced:
                announced = True
                complain(f"{run_dir}: {error.strerror or error}; waiting up to {duration(left_s)} for it")
            sleep(min(RETRY_S, left_s))


def conclude(
    run_dir: str,
    attempt: str | None,
    step_code: int | None = None,
    stop_signal: str | None = None,
    *,
    quiet: bool = False,
) -> int:
    """Record that an attempt's agents have ended, print and save the report; return the attempt's exit code.

    Args:
        attempt: its name; None: no agent has written a record.
        step_code: srun's exit code; None: there was no srun, or it did not end.
        stop_signal: the name of the signal that stopped the launcher.
        quiet: neither print nor save the report.
    """
    unrecorded = None
    if attempt is not None:
        try:
            end = StepEnd(attempt, time.time_ns(), step_code, stop_signal)
            publish_end(PosixFileSystem(owner=os.geteuid()), RunDirectory(run_dir), end)
        except (OSError, BadFile) as error:
            # A directory that is full or missing: the report contains that, if it matters.
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            unrecorded = StepEnd(attempt, time.time_ns(), step_code, stop_signal, why)
    # A step that a signal to ftsrun ended was not lost.
    lost_step_code = step_code if stop_signal is None else None
    follow_up = None if quiet or attempt is None else FollowUp.of(run_dir, attempt, lost_step_code)
    if follow_up is not None and stop_signal is not None:
        # Slurm kills this process soon.
        follow_up.carry_out()
    report = None
    try:
        report = make_report(Path(run_dir), offline=False, ended=unrecorded)
    except OSError:
        pass
    outcome = outcome_of(report, run_dir, attempt, step_code, stop_signal)
    if report is not None and outcome.reported and not quiet:
        # Saved before it is printed: the reader of the output may have exited, or block.
        save(report, Path(run_dir))
        shown = render if _level_of(run_dir, attempt) < ERROR else first_lines
        show(shown(report, colour=wants_colour()))
    if attempt is not None and outcome.reported:
        follow_last_events(run_dir, attempt)
    if outcome.problem:
        complain(outcome.problem)
    if follow_up is None:
        return outcome.exit_code
    if stop_signal is None and follow_up.carry_out() and report is not None and outcome.reported and not quiet:
        # The printed report had only the intention.
        save(make_report(Path(run_dir), offline=True, ended=unrecorded), Path(run_dir))
    return follow_up.exit_code(outcome.exit_code)


def _level_of(run_dir: str, attempt: str | None) -> int:
    """Return the attempt's log level; ftsrun, which has no part of the options, has this process know it."""
    run = RunDirectory(run_dir)
    try:
        found = read_published(PosixFileSystem(owner=os.geteuid()), run.attempt_file(attempt or ""), Attempt)
    except (OSError, BadFile):
        return INFO
    level = found.option("log_level")
    return level if isinstance(level, int) else INFO


class FollowUp:
    """What follows from the end of an attempt in its Slurm job: whether the job starts again.

    Args:
        fs, run: where its verdict is.
        verdict: the verdict.
        job: the job.
    """

    def __init__(self, fs: FileSystem, run: RunDirectory, verdict: AttemptVerdict, job: SlurmJob) -> None:
        self._fs = fs
        self._run = run
        self._verdict = verdict
        self._job = job

    @staticmethod
    def of(run_dir: str, attempt: str, step_code: int | None) -> FollowUp | None:
        """Return it for an attempt that has closed the run's state, or lost its step; None for another.

        Outside of Slurm there is none either.

        Args:
            step_code: the exit code of srun; None: there was none, or it was stopped by a signal from outside.
        """
        fs, run = PosixFileSystem(owner=os.geteuid()), RunDirectory(run_dir)
        try:
            job = from_environ(os.environ)
            newest = FencedCell(fs, run.state).get()
            state = State.decode(newest.value, run.state) if newest is not None else None
            if job is None or state is None or state.attempt != attempt:
                return None
            if state.closed is None and step_code:
                state = with_lost_step(state, step_code, time.time_ns())
            if state.closed is None:
                return None
            view = None
            if needs_scheduler_query(state) and not os.path.exists(run.verdict_file(attempt)):
                view = save_scheduler_record(job, state, run)
            return FollowUp(fs, run, settle(fs, run, state, view, "ftsrun", time.time_ns()), job)
        except (OSError, BadFile, SlurmEnvironmentError) as error:
            complain(f"whether the job starts again cannot be decided: {error}")
            return None

    def carry_out(self) -> bool:
        """Start the job again if that was decided; return whether something else came of it than was decided."""
        done, lines = carry_out(self._fs, self._run, self._verdict, self._job, "ftsrun")
        for line in lines:
            complain(line)
        return done is not None and done.outcome in (RESUBMITTED, FAILED)

    def exit_code(self, code: int) -> int:
        """Return the exit code of the attempt, which would be `code` without the verdict."""
        return self._verdict.exit_code if self._verdict.action == END and code else code
