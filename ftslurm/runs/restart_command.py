"""`ftslurm restart`: start a run again that has ended, as a new job with the same script."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ftslurm.runs.list_command import queue_of_slurm
from ftslurm.slurm.errors import SlurmCommandMissing, SlurmError, SlurmUnreachable, in_short
from ftslurm.terminal import UsageError, print_error, show
from ftslurm.text import one_line, safe

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from ftslurm.records.submission import Submission
    from ftslurm.runs.overview import Overview
    from ftslurm.slurm.queue import QueuedJob
    from ftslurm.slurm.resubmission import BatchScript

DONE, FAILED, USAGE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130
WAIT_S, POLL_S = 60.0, 1.0
"""How long the end of the old job is awaited, whose run has ended: ftsrun reports, Slurm ends the job; seconds."""
EXPORT_WIDTH = 60
NOTES = """\
The new job has the options of the old one (--export, too), continues its rounds, and writes to the same output file.
Other variables are those of your shell now. Nodes that are excluded for your runs (ftslurm nodes list) are passed on by
ftsrun as usual. A job that is just ending is awaited for up to 60 s.

Exit codes: 0 submitted, 1 Slurm refused, 2 wrong usage, 3 the run goes on, or cannot be started again.
"""


class Submitter(Protocol):
    """See `ftslurm.slurm.resubmission.Resubmission`."""

    def script_of(self, job_id: str, run_id: str) -> BatchScript:
        """Return the script of a job."""

    def submit_script(self, script: BatchScript, *options: str) -> str:
        """Submit it; return the new job's id."""


def main(
    argv: Sequence[str],
    *,
    queue: Callable[[], Mapping[str, QueuedJob]] | None = None,
    submits: Callable[[Mapping[str, str]], Submitter] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Run the command; return its exit code.

    Args:
        argv: the arguments after `restart`.
        queue: returns the user's jobs in Slurm's queue by their ids; default: queries Slurm.
        submits: makes what submits a script, of an environment; default: Slurm's commands.
        sleep, monotonic: wait, and the clock of that, in seconds.
    """
    from pathlib import Path

    from ftslurm.runs.array_tasks import only_task
    from ftslurm.runs.overview import job_in_queue, overview
    from ftslurm.runs.restart import may_start_again, refusal
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.sharedfs.locate import NotFound, place_of
    from ftslurm.sharedfs.ownership import is_foreign
    from ftslurm.slurm.bounded import job_facts
    from ftslurm.status.command import locate_run

    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    try:
        nodes = _nodes(options.exclude)
        with AnswerLimit("restart", place_of(options.run, os.environ, Path.cwd(), options.shared_dir)) as limit:
            located = locate_run(options, limit.paused(job_facts))
            none = "none of them has failed or was stopped"
            directory = only_task("restart", options.run, located, may_start_again, none)
            if is_foreign(str(directory)):
                raise UsageError(f"{directory} is another user's, or a link")
            run, recorded = overview(str(directory)), _recorded(directory)
        queued, problem = _asked_at_the_end(run, queue or _queue, sleep, monotonic)
        refused = refusal(run, job_in_queue(run, queued))
        if refused is not None:
            return _error(refused, REFUSED)
        if problem is not None:
            return _error(f"{problem}; {safe(run.run)} is {safe(run.state)}, and nothing was submitted", FAILED)
        return _restart(run, recorded, nodes, submits or _resubmission)
    except (UsageError, NotFound) as error:
        return _error(str(error), USAGE)
    except (SlurmUnreachable, SlurmCommandMissing) as error:
        return _error(f"{in_short(error)}; nothing was submitted", FAILED)
    except (SlurmError, OSError) as error:
        return _error(str(error), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def _asked_at_the_end(
    run: Overview,
    queue: Callable[[], Mapping[str, QueuedJob]],
    sleep: Callable[[float], None],
    monotonic: Callable[[], float],
) -> tuple[Mapping[str, QueuedJob], str | None]:
    """Return the user's jobs in the queue, once the job of a run that has ended has left it or `WAIT_S` are over."""
    from ftslurm.runs.overview import job_in_queue
    from ftslurm.runs.restart import is_just_ending

    until, printed = monotonic() + WAIT_S, False
    while True:
        queued, problem = _asked(queue)
        job = job_in_queue(run, queued)
        if job is None or not is_just_ending(run, job) or monotonic() >= until:
            return queued, problem
        if not printed:
            state = safe(job.state.lower())
            print_error(f"ftslurm restart: job {job.job_id} is still {state}: waiting up to {WAIT_S:.0f} s for its end")
            printed = True
        sleep(POLL_S)


def _asked(queue: Callable[[], Mapping[str, QueuedJob]]) -> tuple[Mapping[str, QueuedJob], str | None]:
    """Return the user's jobs in the queue, and why they are unknown."""
    try:
        return queue(), None
    except SlurmError as error:
        return {}, in_short(error)


def _queue() -> Mapping[str, QueuedJob]:
    from ftslurm.slurm.run_command import has_program

    if not has_program("squeue", os.environ):
        raise SlurmCommandMissing("squeue is not on PATH")
    return queue_of_slurm()


def _restart(
    run: Overview,
    recorded: Submission | None,
    nodes: Sequence[str],
    submits: Callable[[Mapping[str, str]], Submitter],
) -> int:
    from ftslurm.runs.restart import exclude_option

    slurm = submits({**os.environ, "FTSLURM_SHARED_DIR": os.path.dirname(run.directory)})
    script = _script(run, recorded, slurm)
    if recorded is not None and recorded.cwd is not None:
        # sbatch has no option for it: SLURM_SUBMIT_DIR is where it is called.
        _enter(recorded.cwd)
    job = slurm.submit_script(script, *exclude_option(script.options, nodes))
    without = f", without {', '.join(nodes)}" if nodes else ""
    goes_on = f"it goes on with round {(run.round or 0) + 1}"
    show(f"{safe(run.run)}: submitted as job {job}{without}; {goes_on}, see ftslurm status {job}\n")
    show(f"  {_environment(script)}\n")
    return DONE


def _environment(script: BatchScript) -> str:
    """Return what the new job has for an environment, which Slurm keeps of no job."""
    exports = [option for option in script.options if option.startswith("--export=")]
    kept, else_ = (f"{one_line(exports[-1], EXPORT_WIDTH)} as before, otherwise ", " else") if exports else ("", "")
    return f"environment: {kept}this shell's; what{else_} was set when the old job was submitted is not known"


def _script(run: Overview, recorded: Submission | None, slurm: Submitter) -> BatchScript:
    """Return the run's script as recorded, else as slurmctld still has it.

    Raises:
        UsageError: neither has it.
    """
    from ftslurm.sharedfs.job_runs import first_run
    from ftslurm.slurm.resubmission import BatchScript

    if recorded is not None:
        return BatchScript(recorded.script, recorded.options, recorded.arguments)
    name = first_run(run.run)
    try:
        return slurm.script_of(run.job or "", name)
    except SlurmError as error:
        by_hand = f"sbatch --comment=ftslurm-run={name} SCRIPT"
        raise UsageError(
            f"the batch script of {name} is not recorded; submit it by hand: {by_hand} ({error})"
        ) from None


def _recorded(directory: Path) -> Submission | None:
    from ftslurm.records.codec import BadFile
    from ftslurm.records.submission import Submission
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import read_published
    from ftslurm.sharedfs.rundir import RunDirectory

    path = RunDirectory(str(directory)).submission_file
    try:
        return read_published(PosixFileSystem(owner=os.geteuid()), path, Submission)
    except FileNotFoundError:
        return None
    except (OSError, BadFile) as error:
        raise UsageError(f"the run's batch script cannot be read: {error}") from None


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(f"the run was submitted in {directory}, which cannot be entered: {error.strerror}") from None


def _nodes(lists: Sequence[str]) -> list[str]:
    from ftslurm.slurm.nodelist import NodeListError, expand

    try:
        return list(dict.fromkeys(node for text in lists for node in expand(text)))
    except NodeListError as error:
        raise UsageError(f"--exclude: {error}") from None


def _resubmission(environ: Mapping[str, str]) -> Submitter:
    from ftslurm.slurm.resubmission import Resubmission

    return Resubmission(environ)


def _error(text: str, code: int) -> int:
    print_error(f"ftslurm restart: {text}")
    return code


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_run, add_shared_dir

    parser = CommandParser(
        prog="ftslurm restart",
        description="Start a run again that has ended: submit its batch script as a new job of the same run.",
        notes=NOTES,
    )
    add_run(parser)
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="NODE",
        help="without this node, or Slurm hostlist; may be repeated",
    )
    add_shared_dir(parser)
    return parser
