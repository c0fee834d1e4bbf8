"""Options of the commands: argparse whose mistakes are one line, and the arguments that several commands take."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from ftslurm.command_examples import examples_of
from ftslurm.records.state import EXIT_USAGE
from ftslurm.terminal import print_error
from ftslurm.text import duration_s

_CHOICE = re.compile(r"invalid choice: (.*) \(choose from (.*)\)\Z", re.DOTALL)
_UNKNOWN = re.compile(r"unrecognized arguments: (--?[\w-]+)")
_RUNS = "where runs are (default: $FTSLURM_SHARED_DIR, ./ftslurm-runs)"
_LONGEST_S = 3650 * 86_400


class CommandParser(argparse.ArgumentParser):
    """An argument parser without abbreviations that reports a mistake as ``ftslurm X: what; what to do``.

    Args:
        notes: what the help has behind the options, in lines as they are printed.
    """

    def __init__(self, *arguments: object, notes: str = "", **options: object) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})  # type: ignore[arg-type]
        self._notes = f"\n{notes}" if notes else ""

    def format_help(self) -> str:
        """Return the help, with the notes and the command's examples at its end."""
        return super().format_help() + self._notes + examples_of(self.prog)

    def error(self, message: str) -> NoReturn:
        """Print one line and leave with the exit code of a wrong usage."""
        print_error(f"{self.prog}: {plain(message)}{self._meant(message)}; see {self.prog} --help")
        raise SystemExit(EXIT_USAGE)

    def _meant(self, message: str) -> str:
        """Return the question whether another option or choice was meant; empty: none is similar."""
        from ftslurm.similar import nearest

        unknown = _UNKNOWN.match(message)
        chosen = _CHOICE.search(message)
        if unknown:
            meant = nearest(unknown[1], self._option_string_actions)
        elif chosen:
            meant = nearest(chosen[1].strip("'"), re.findall(r"[\w-]+", chosen[2]))
        else:
            meant = None
        return f"; did you mean {meant}?" if meant else ""


def plain(message: str) -> str:
    """Return argparse's message in the form of `ftslurm run`'s own parser."""
    message = message.removeprefix("argument ")
    kind, _, rest = message.partition(": ")
    if kind == "unrecognized arguments":
        first = rest.split()[0] if rest.split() else "''"
        return f"unknown option {first}" if first.startswith("-") else f"unexpected argument {first}"
    if kind == "the following arguments are required":
        return f"expected {rest}"
    if chosen := _CHOICE.search(message):
        choices = chosen[2].replace("'", "")
        return f"{message[: chosen.start()]}expected one of {choices}, found {chosen[1]}"
    return message


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments by which a command takes one run: `run` and `--latest`."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN_DIR|JOB_ID", help="default: the newest run in the shared directory"
    )
    parser.add_argument("--latest", action="store_true", help="the newest run in the shared directory, as by default")


def add_shared_dir(parser: argparse.ArgumentParser) -> None:
    """Add `--shared-dir`, the directory in which a run is searched."""
    parser.add_argument("--shared-dir", metavar="DIR", help=_RUNS)


def add_runs_directory(parser: argparse.ArgumentParser) -> None:
    """Add the argument by which a command takes all runs of a directory: `directory`."""
    parser.add_argument("directory", nargs="?", metavar="DIR", help=_RUNS)


def wait_s(text: str) -> float:
    """Parse a time to wait into seconds, as the type of an option."""
    seconds = duration_s(text)
    if seconds is None or seconds > 1e9:
        raise argparse.ArgumentTypeError(f"expected a time (such as 30 or 10m), found {text!r}")
    return seconds


def duration_ns(text: str) -> int:
    """Parse a duration (`ftslurm.text.duration_s`) into nanoseconds, as the type of an option.

    Raises:
        ArgumentTypeError: the text is invalid, or not between a second and ten years.
    """
    seconds = duration_s(text)
    if seconds is None or not 1 <= seconds <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"expected a time such as 90m, 24h, 7d or 1d12h, up to 3650d, found {text!r}")
    return round(seconds * 1e9)
