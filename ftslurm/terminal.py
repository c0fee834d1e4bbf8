"""What every command does with its output: print whole texts to whoever still reads, and complaints in one line."""

from __future__ import annotations

import errno
import os
import sys


def show(text: str) -> bool:
    """Print `text`, escaping what the output's encoding lacks; False when nobody reads any more."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        # The reader (head, less) has enough, the terminal is gone, the disk is full: the job's exit code matters more,
        # and the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno not in (errno.EPIPE, errno.EIO):
            sys.stderr.write(f"ftslurm: the output cannot be written: {error.strerror}\n")
        return False
    return True


def complain(text: str) -> None:
    """Write one line to stderr, at once; what in it could act on a terminal, as a path may, is escaped."""
    if not text.isprintable():
        from ftslurm.report.words import safe

        text = safe(text)
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def is_terminal() -> bool:
    """Tell whether the output is a terminal that understands control sequences."""
    return os.environ.get("TERM", "dumb") != "dumb" and sys.stdout.isatty()


def wants_colour() -> bool:
    """Tell whether the output may be coloured (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR")
