"""The signature for comparing two failures: of the exception, or of the end of stderr (pure, but for `of_file`).

An exit code is no proof that two failures are the same: a program that logs its exceptions, a shell script, ``uv run``
or ``apptainer`` ends by the same code for every reason. Without anything to compare there is no signature, and
such a failure equals no other one.
"""

from __future__ import annotations

import os
import stat

from ftslurm.failures.reason import is_bare_exit, judged, links
from ftslurm.failures.record import crash_place
from ftslurm.pattern import pattern
from ftslurm.records.error import ErrorRecord, ExceptionRecord

OUTPUT_LIMIT = 16 * 1024
"""Bytes read from the end of stderr."""
LINES = 20
"""Lines of stderr that are compared: a traceback of usual length and the output just before it."""

_PRIME, _OFFSET = 0x100000001B3, 0xCBF29CE484222325
_MASK = (1 << 64) - 1
_VARIABLE = pattern(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{6,}\b|\btmp[a-z0-9_]{8}\b|\d+")
_COLOUR = pattern(r"\x1b\[[0-?]*[ -/]*[@-~]")
_PEERS = pattern(
    r"(\[rank\d+\]: ?)?"
    r"([\w.]*\.Dist\w*(Error|Exception)\b|[\w.]*(Error|Exception): .*(gloo[/:]|TCPStore|c10d::|\bNCCL\b))"
)
"""An exception of torch.distributed: a consequence of another rank's failure, without information about that."""


def signature(record: ErrorRecord) -> str | None:
    """Return a failure's signature from its error record; None if the record contains nothing to compare.

    Args:
        record: the error record, completed.
    """
    exception = judged(record)
    if exception is not None and not is_bare_exit(exception):
        # The whole chain: programs wrap every failure into one exception type of their own.
        return _digest(*(line for link in links(exception) for line in _lines(link)))
    crashed = crash_place(record.stacks or "") if record.signal else ""
    return _digest(crashed) if crashed else None


def of_output(end: str) -> str | None:
    """Return a failure's signature from its output; None if that contains nothing to compare.

    Numbers, addresses and names of temporary files do not count.

    Args:
        end: the last lines of stderr, from the beginning of a line on.
    """
    # Of a line that is rewritten (a progress bar) a terminal shows the last state.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in _COLOUR.sub("", end).split("\n")]
    last = [line for line in lines if line][-LINES:]
    if not last or any(map(_PEERS.match, last)):
        return None
    return _digest(*map(_normal, last))


def of_file(path: str) -> str | None:
    """Return the signature of the end of a file, see `of_output`; its filesystem may hang.

    Raises:
        OSError: the file cannot be read, or is no regular one.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        start = max(0, status.st_size - OUTPUT_LIMIT)
        text = os.pread(fd, OUTPUT_LIMIT, start).decode("utf-8", "replace")
    finally:
        os.close(fd)
    # The first line is cut at an arbitrary point.
    return of_output(text.partition("\n")[2] if start else text)


def _lines(exception: ExceptionRecord) -> tuple[str, ...]:
    place = exception.frames[-1].place if exception.frames else ""
    return f"{exception.type}: {_normal(exception.message)}", place, _normal(exception.hidden)


def _normal(text: str) -> str:
    return _VARIABLE.sub("#", text)


def _digest(*lines: str) -> str:
    return digest("\n".join(lines), 4)


def digest(text: str, size: int) -> str:
    """Return a digest of a text for comparison, `size` bytes (at most 8), as hexadecimal digits; 0.1 ms for 1 KB.

    FNV-1a, implemented here: `hashlib` loads OpenSSL (3.5 MB, 7 ms), and every other module with a hash a library that
    each agent would keep for the case of a failed rank. A deliberate collision does no harm.
    """
    value = _OFFSET
    for byte in text.encode("utf-8", "backslashreplace"):
        value = (value ^ byte) * _PRIME & _MASK
    # The upper bits depend on all bytes.
    return f"{value >> (64 - 8 * size):0{2 * size}x}"
