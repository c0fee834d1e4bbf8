"""`ftslurm chain`: several jobs in sequence for one run, which go on where the previous one ended."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from ftslurm.terminal import UsageError, complain, show
from ftslurm.text import clip

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

MOST = 1000
_OURS = ("--array", "-a", "--dependency", "-d", "--job-name", "-J", "--comment", "--wrap")
_UNUSUAL = re.compile(r"[^A-Za-z0-9._+=@-]+")


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    from ftslurm.slurm.errors import SlurmError

    if list(arguments) in ([], ["-h"], ["--help"]):
        show(_parser().format_help())
        return 0 if arguments else 2
    try:
        number, run_id, rest = parse(arguments, os.path.isfile, os.urandom(3).hex())
        check_script(files_among(rest, os.path.isfile))
        jobs = submit(number, run_id, rest, os.environ)
    except UsageError as error:
        complain(f"chain: {error}")
        return 2
    except SlurmError as error:
        complain(f"chain: {error}")
        return 1
    show(f"jobs {', '.join(jobs)} of run {run_id}; ftslurm report {jobs[0]}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return a parser for help and completion; `parse` reads the arguments, most of which are sbatch's."""
    from ftslurm.command_line import CommandParser

    parser = CommandParser(
        prog="ftslurm chain",
        usage="ftslurm chain [--run-id ID] N [options of sbatch] job.sbatch [arguments of the script]",
        description="Submit a script N times, as jobs of one run: each one starts when the previous one has ended, and "
        "goes on in the same run. The rest is cancelled when the run has succeeded, or when it would fail again. "
        "Exit codes: 0 all N jobs are submitted, 1 Slurm refused (none is), 2 wrong usage.",
    )
    parser.add_argument(
        "--run-id", metavar="ID", help="name of the run, and of the jobs; default: the script's name and random digits"
    )
    parser.add_argument("number", metavar="N", help="number of jobs")
    parser.add_argument("script", nargs="*", metavar="job.sbatch", help="the script, with options for sbatch before it")
    return parser


def parse(arguments: Sequence[str], is_file: Callable[[str], bool], digits: str) -> tuple[int, str, list[str]]:
    """Return the number of jobs, the run's id, and the words for sbatch.

    Args:
        is_file: whether a path is a file.
        digits: of the default run id, which make it unique.

    Raises:
        UsageError: with one line.
    """
    from ftslurm.sharedfs.rundir import RunDirectoryError, check_name

    words = list(arguments)
    run_id = None
    if words[0] == "--run-id" or words[0].startswith("--run-id="):
        _, equals, run_id = words.pop(0).partition("=")
        run_id = run_id if equals else words.pop(0) if words else ""
    text = words.pop(0) if words else ""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MOST):
        raise UsageError(f"expected a number of jobs from 1 to {MOST}, found {text!a}; see ftslurm chain --help")
    if wrong := next((word for word in words if word.partition("=")[0] in _OURS), None):
        raise UsageError(f"{wrong}: a chain has its own name, comment and dependencies, and is no array; leave it out")
    script = files_among(words, is_file)[0]
    if run_id is None:
        run_id = f"{_UNUSUAL.sub('-', os.path.basename(script).partition('.')[0]).strip('-._+=@') or 'chain'}-{digits}"
    try:
        return int(text), check_name("--run-id", run_id), words
    except RunDirectoryError as error:
        raise UsageError(str(error)) from None


def files_among(words: Sequence[str], is_file: Callable[[str], bool]) -> list[str]:
    """Return what may be the batch script among the words for sbatch: the values of its options may be files, too.

    Raises:
        UsageError: there is none; one line.
    """
    files = [word for word in words if not word.startswith("-") and is_file(word)]
    if not files:
        raise UsageError(f"expected a batch script, found no file among {clip(' '.join(words), 200)!a}")
    return files


def check_script(candidates: Sequence[str]) -> None:
    """Check what sbatch would refuse.

    Raises:
        UsageError: none of the files is a script; one line, about the first.
    """
    problems = []
    for path in candidates:
        try:
            with open(path, "rb") as file:
                if file.read(2) == b"#!":
                    return
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}")
            continue
        problems.append(f"{path}: expected a batch script, whose first line begins with #! (such as #!/bin/bash)")
    raise UsageError(problems[0])


def submit(number: int, run_id: str, rest: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Submit the jobs; return their ids. If Slurm refuses one of them, those before it are cancelled.

    Raises:
        SlurmError: Slurm did not answer, or refused.
    """
    from ftslurm.slurm.commands import CommandSlurm
    from ftslurm.slurm.errors import SlurmError
    from ftslurm.slurm.sbatch import CHAIN_MARK, comment_of_run, requeue_option, submit_environment
    from ftslurm.slurm.sbatch import submit as submit_job

    env = submit_environment(env)
    ours = [f"--job-name={run_id}", "--dependency=singleton", f"--comment={comment_of_run(CHAIN_MARK, run_id)}"]
    words = [*ours, requeue_option(env), *rest]
    jobs: list[str] = []
    try:
        for _ in range(number):
            jobs.append(submit_job(words, env))
    except SlurmError:
        for job_id in jobs:
            CommandSlurm().cancel(job_id)
        raise
    return jobs
