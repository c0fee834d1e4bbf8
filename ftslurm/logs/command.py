"""`ftslurm logs`: prints where a rank's output is, its end, and with `-f` what is appended, over all rounds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from ftslurm.logs.files import STREAMS, RankOutput, RunOutput
from ftslurm.logs.tail import LogFile
from ftslurm.report.wording import those_ranks
from ftslurm.terminal import UsageError, print_error
from ftslurm.text import ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from ftslurm.slurm.facts import JobFacts

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
BOTH = "3"
"""--redirects for both streams."""
LINES = 20
FOLLOW_S = 0.5
"""Interval of reading the followed files, in seconds."""
ROUND_S = 2.0
"""Interval of looking for a new round and for the end of the run, in seconds."""
SILENCE_S = 30.0
"""Interval of looking whether all agents are silent, which reads all node records, in seconds."""
LAST_S = 2.0
"""How long the last lines are waited for once the run has ended: other nodes' writes may become visible late."""


class ClosedOutput(Exception):
    """The reader of this command's output has gone."""


def main(
    argv: Sequence[str],
    *,
    ask: Callable[[str], JobFacts | None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run `ftslurm logs` and return its exit status.

    Args:
        argv: the arguments after `logs`.
        ask: queries a job, see `ftslurm.status.command.locate_run`.
        sleep: waits the given seconds.
        clock: monotonic seconds.

    Returns:
        0; 2 for wrong usage, a run that does not exist, and a rank without output.
    """
    from pathlib import Path

    from ftslurm.runs.array_tasks import shown_task
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.sharedfs.locate import NotFound, place_of
    from ftslurm.slurm.bounded import job_facts
    from ftslurm.status.command import locate_run

    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    try:
        if options.rank is not None and options.node is not None:
            raise UsageError("--rank and --node: only one of them makes sense")
        with AnswerLimit("logs", place_of(options.run, os.environ, Path.cwd(), options.shared_dir)) as limit:
            directory = shown_task("logs", options.run, locate_run(options, limit.paused(ask or job_facts)))
        with AnswerLimit("logs", directory) as limit:
            view = _View(directory, options, limit.paused(sleep), clock, limit.paused(_write))
            view.print()
            limit.patient = True
            if options.follow:
                view.follow()
    except (NotFound, UsageError) as error:
        print_error(f"ftslurm logs: {error}")
        return EXIT_USAGE
    except ClosedOutput:
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


class _View:
    """The output of the chosen ranks, as it is printed."""

    def __init__(
        self,
        directory: Path,
        options: argparse.Namespace,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
        write: Callable[[bytes], None],
    ) -> None:
        self._directory = directory
        self._options = options
        self._sleep = sleep
        self._clock = clock
        self._write = write
        chosen = [name for name in STREAMS if name == f"{options.stream}.log"] or STREAMS
        self._streams = tuple(chosen)
        self._output = RunOutput(str(directory), self._streams)
        self._outputs: list[RankOutput] = []
        self._files: dict[str, tuple[RankOutput, LogFile]] = {}
        self._printed: str | None = None

    def print(self) -> None:
        """Print the end of the output of the chosen round.

        Raises:
            UsageError: there is none.
        """
        self._outputs = self._find()
        if not self._outputs and not self._options.follow:
            raise UsageError(self._nothing())
        self._open(self._options.lines)
        if not self._options.follow and not any(one.files for one in self._outputs):
            redirects = self._output.redirects()
            if redirects == BOTH:
                print_error(f"ftslurm logs: {self._printed_nothing()}")
                return
            where = ", ".join(one.directory for one in self._outputs[:3])
            given = f"with --redirects {redirects} " if redirects is not None else "without a redirect "
            raise UsageError(f"no output file in {where}: {given}it went to the job's own output")
        for path, (output, _) in self._files.items():
            if path in output.files:
                # Also for an empty file: where it is is half of the answer.
                self._print_header(output, path)
                self._print_new(path)

    def follow(self) -> None:
        """Print what is appended until the run has ended; go on with the files of each new round."""
        next_round = next_silence = self._clock()
        next_silence += SILENCE_S
        while True:
            self._print_all()
            now = self._clock()
            if now >= next_round:
                next_round = now + ROUND_S
                silent = now >= next_silence and self._is_silent()
                next_silence = now + SILENCE_S if now >= next_silence else next_silence
                end = self._end(silent)
                self._move_on()
                if end is not None:
                    self._print_last()
                    print_error(f"ftslurm logs: {end}")
                    return
            self._sleep(FOLLOW_S)

    def _find(self) -> list[RankOutput]:
        options = self._options
        if options.node is not None:
            return self._output.of_node(options.node, options.round)
        found = self._output.of_rank(options.rank or 0, options.round)
        return [found] if found is not None else []

    def _open(self, lines: int | None) -> None:
        for _, file in self._files.values():
            file.close()
        self._files = {
            path: (output, LogFile(path, lines))
            for output in self._outputs
            # Also those that are not there yet: a worker makes them as it starts.
            for path in (os.path.join(output.directory, name) for name in self._streams)
        }

    def _move_on(self) -> None:
        """Follow the files of a newer round if the ranks have any there, or files that appeared elsewhere."""
        found = self._find()
        if not found or [one.directory for one in found] == [one.directory for one in self._outputs]:
            return
        self._print_all()
        self._outputs = found
        self._open(None)

    def _end(self, silent: bool) -> str | None:
        end = self._output.end()
        if end is not None:
            return f"the run has ended: {end}"
        if silent:
            return "no agent has written for long, but the run is not closed; see ftslurm status"
        state = self._output.state() if self._options.round is not None else None
        if state is not None and state.round > self._options.round:
            return f"round {self._options.round} is over"
        return None

    def _is_silent(self) -> bool:
        from ftslurm.status.command import make_status

        try:
            return bool(make_status(self._directory)["status"] == "silent")
        except OSError:
            return False

    def _print_last(self) -> None:
        until = self._clock() + LAST_S
        while self._clock() < until:
            self._print_all()
            self._sleep(FOLLOW_S)
        self._print_all()

    def _print_all(self) -> None:
        for path in self._files:
            self._print_new(path)

    def _print_new(self, path: str) -> None:
        output, file = self._files[path]
        for chunk in file.read():
            self._print_header(output, path)
            self._write(chunk)

    def _print_header(self, output: RankOutput, path: str) -> None:
        if path != self._printed:
            node = f" on {output.node}" if output.node is not None else ""
            start = "" if self._printed is None else "\n"
            self._write(os.fsencode(f"{start}==> rank {output.rank}{node}, round {output.round}: {path} <==\n"))
            self._printed = path

    def _printed_nothing(self) -> str:
        ranks = those_ranks(ranges(one.rank for one in self._outputs))
        stream = f" to {self._options.stream}" if self._options.stream else ""
        round_ = self._outputs[0].round
        return f"{ranks} printed nothing{stream} in round {round_} (empty files are removed when a round ends)"

    def _nothing(self) -> str:
        rounds = self._output.rounds()
        if not rounds:
            return f"no round of {self._directory} has begun: there is no output yet"
        round_ = self._options.round
        if round_ is not None and round_ not in rounds:
            return f"--round {round_}: expected one from {rounds[-1]} to {rounds[0]} ({self._directory})"
        where = f"round {round_}" if round_ is not None else "any round"
        if self._options.node is not None:
            number = rounds[0] if round_ is None else round_
            known = ", ".join(self._output.nodes(number)[:16]) or "unknown"
            return f"--node {self._options.node}: has no ranks in {where}; nodes of round {number}: {known}"
        return f"rank {self._options.rank or 0} has no output in {where} of {self._directory}"


def _write(data: bytes) -> None:
    """Write bytes as they are, control characters included: a log is a log, as for `tail`."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError:
        # The interpreter would try to write the rest again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        raise ClosedOutput from None


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_run, add_shared_dir

    parser = CommandParser(
        prog="ftslurm logs",
        description="Print where a rank's output is, and its end; by default of rank 0 in the newest round.",
        epilog="With -f it ends when the run has ended. Output is printed as it is, control characters included.",
    )
    add_run(parser)
    parser.add_argument("--rank", type=_count, metavar="N", help="of this rank; default 0")
    parser.add_argument("--node", metavar="NODE", help="of all ranks of this node")
    parser.add_argument(
        "--round", type=_count, metavar="N", help="in this round; default: the newest one that has the rank"
    )
    streams = parser.add_mutually_exclusive_group()
    for stream in ("stdout", "stderr"):
        text = f"only {stream}; default: both"
        streams.add_argument(f"--{stream}", dest="stream", action="store_const", const=stream, help=text)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with what is appended, over all rounds, until the run ends"
    )
    parser.add_argument(
        "-n", "--lines", type=_count, default=LINES, metavar="LINES", help=f"number of last lines; default {LINES}"
    )
    add_shared_dir(parser)
    return parser


def _count(text: str) -> int:
    import argparse

    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, found {text!r}")
    return int(text)
