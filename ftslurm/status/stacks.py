"""``ftslurm stacks``: show where all ranks of a running job are, and in which collective; the job goes on."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftslurm.records.codec import BadFile, write_record
from ftslurm.records.stacks import StacksAnswer, StacksFile
from ftslurm.records.state import RUNNING
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import publish, read_published
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.status.running import EXIT_ENDED, EXIT_FAILED, failed, read_state, run_command, running_state
from ftslurm.status.stacks_text import render
from ftslurm.terminal import show
from ftslurm.text import duration, names

if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts

POLL_S = 0.2
WAIT_S = 20.0
"""Seconds for the answers of all nodes. An agent takes up to 6 s, if a rank does not answer."""
ANSWER_LIMIT = 256 * 1024 * 1024


def main(
    argv: Sequence[str],
    *,
    ask: Callable[[str], JobFacts | None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Run ``ftslurm stacks`` and return its exit status: 0 if all nodes have answered."""
    return run_command("stacks", _parser(), argv, lambda run, options: _stacks(run, options, sleep, monotonic), ask)


def _stacks(
    run: RunDirectory, options: argparse.Namespace, sleep: Callable[[float], None], monotonic: Callable[[], float]
) -> int:
    fs = PosixFileSystem(owner=os.geteuid())
    name = os.path.basename(run.root)
    past = f"; its past: ftslurm report {run.root}"
    state = running_state(fs, run, options.run, past=past, other="its stacks: ftslurm stacks")
    if state.phase != RUNNING:
        return failed(
            "stacks", f"{name}: no round runs now, so there are no ranks; see ftslurm status {run.root}", EXIT_ENDED
        )
    nodes = [participant.node for participant in state.participants]
    request = StacksFile(state.attempt, state.round, time.time_ns())
    os.makedirs(run.asked, 0o700, exist_ok=True)
    publish(fs, run.stacks_file, write_record(request))
    answers: dict[str, StacksAnswer] = {}
    until = monotonic() + options.wait
    over = False
    try:
        while len(answers) < len(nodes) and monotonic() < until and not over:
            sleep(POLL_S)
            fs.refresh(run.asked)
            for node in nodes:
                if node not in answers and (answer := _answer(fs, run, node, request)) is not None:
                    answers[node] = answer
            newest = read_state(fs, run)
            over = newest is not None and (newest.phase, newest.round) != (RUNNING, state.round)
    finally:
        _withdraw(fs, run, request)
    if answers:
        show(render(name, state, list(answers.values()), frames=options.full))
    silent = [node for node in nodes if node not in answers]
    if not silent:
        return 0
    why = f"round {state.round} has ended meanwhile" if over else f"no answer within {duration(options.wait)}"
    hint = "" if over else f"; see ftslurm status {run.root}: is the agent there alive, and of this version?"
    return failed("stacks", f"{names(silent)}: {why}{hint}", EXIT_FAILED)


def _answer(fs: PosixFileSystem, run: RunDirectory, node: str, request: StacksFile) -> StacksAnswer | None:
    try:
        answer = read_published(fs, run.asked_file(node), StacksAnswer, ANSWER_LIMIT)
    except (FileNotFoundError, BadFile):
        return None
    # An answer to a later request, of another terminal, is one to this request, too.
    return answer if answer.round == request.round and answer.request_ns >= request.time_ns else None


def _withdraw(fs: PosixFileSystem, run: RunDirectory, request: StacksFile) -> None:
    try:
        if read_published(fs, run.stacks_file, StacksFile) == request:
            fs.unlink(run.stacks_file)
    except (OSError, BadFile):
        pass  # Another request has replaced it, or the directory fails: a coordinator passes it on once.


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_run, add_shared_dir, wait_s

    parser = CommandParser(
        prog="ftslurm stacks",
        description="Show where all ranks of a running job are: their Python stacks, and the newest collective of each "
        "by torch's flight recorder. The job goes on.",
    )
    add_run(parser)
    add_shared_dir(parser)
    parser.add_argument("--full", action="store_true", help="all frames, not only those of the script's own code")
    parser.add_argument(
        "--wait", type=wait_s, default=WAIT_S, metavar="SECONDS", help="for all nodes' answers; default 20"
    )
    return parser
