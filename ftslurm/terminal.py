"""What every command does with its standard streams: whole texts to stdout, in colour if wanted; lines to stderr."""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

ERROR, WARNING, INFO, DEBUG = 40, 30, 20, 10
"""Levels of the lines of a run, by the numbers of Python's `logging`."""
LEVELS = {"error": ERROR, "warning": WARNING, "info": INFO, "debug": DEBUG}
_least_level = INFO
_output_failed = False


class UsageError(ValueError):
    """A wrong option, argument or environment variable; one line with the expected and the found value."""


def show(text: str) -> bool:
    """Print `text`, escaping what the output's encoding lacks; False when it could not be written.

    That the reader has gone (head, less, a closed terminal) is no failure; everything else is named on stderr, and
    `output_failed` is true from then on.
    """
    global _output_failed
    problem = _write(sys.stdout, text)
    if problem is None:
        return True
    if problem.errno not in (errno.EPIPE, errno.EIO):
        _output_failed = True
        print_error(f"ftslurm: the output cannot be written: {problem.strerror}")
    return False


def output_failed() -> bool:
    """Tell whether `show` could not write something that somebody may still want to read."""
    return _output_failed


def print_error(*lines: str) -> None:
    """Write lines to stderr at once; what in them could act on a terminal, as a path may, is escaped.

    That they cannot be written changes neither the exit code nor the job.
    """
    # Without `re` and imports: the guardian stays small, and a line is written where no file can be read any more.
    _write(sys.stderr, "".join(f"{line if line.isprintable() else _escaped(line)}\n" for line in lines))


def complain(text: str, *more: str, level: int = ERROR) -> None:
    """Write lines of ftslurm to stderr at once, unless lines of that level are left out."""
    if is_shown(level):
        print_error(f"ftslurm: {text}", *more)


def set_level(level: int) -> None:
    """Leave out lines below that level, in this process."""
    global _least_level
    _least_level = level


def is_shown(level: int) -> bool:
    """Tell whether lines of that level are shown."""
    return level >= _least_level


def _escaped(line: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def is_terminal() -> bool:
    """Tell whether the output is a terminal that understands control sequences."""
    return os.environ.get("TERM", "dumb") != "dumb" and sys.stdout.isatty()


def wants_colour() -> bool:
    """Tell whether the output may be coloured (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def _write(stream: TextIO, text: str) -> OSError | None:
    encoding = stream.encoding or "ascii"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError as error:
        # The interpreter would try to write the rest again at exit, and change the exit code.
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), stream.fileno())
        except (OSError, ValueError):
            pass
        return error
    return None
