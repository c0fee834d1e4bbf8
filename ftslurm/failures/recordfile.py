"""The file ``error.json``: atomic writing, bounded and validated reading."""

from __future__ import annotations

import json
import os
import stat

from ftslurm.dataclasses import replace
from ftslurm.failures.exceptions import clean
from ftslurm.records.codec import BadFile
from ftslurm.records.error import ErrorRecord, error_file, error_record_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

NAME = "error.json"
SIZE_LIMIT = 256 * 1024  # bytes, of error.json


def encode(record: ErrorRecord) -> bytes:
    """``record`` as JSON below SIZE_LIMIT; of a larger one the least important parts are removed first."""
    data = _dump(record)
    for lighter in (_without_foreign, _without_chain, _without_sources, _with_short_texts, _without_exception):
        if data is not None and len(data) < SIZE_LIMIT:
            return data
        record = lighter(record)
        data = _dump(record)
    assert data is not None
    return data


def _dump(record: ErrorRecord) -> bytes | None:
    try:
        return json.dumps(error_file(record)).encode()
    except (ValueError, RecursionError):  # foreign content of the file may be nested without end
        return None


def write(record: ErrorRecord, directories: Iterable[str]) -> str:
    """Publish ``record`` as error.json in the first writable one of ``directories``; returns that path.

    Raises:
        OSError: none is writable; the first one's error.
    """
    data, problem = encode(record), None
    for directory in directories:
        try:
            return _publish(data, os.path.join(directory, NAME))
        except OSError as error:
            problem = problem or error
    raise problem or FileNotFoundError("no directory to write the error record to")


def _publish(data: bytes, path: str) -> str:
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        finally:
            os.close(fd)  # No fsync: the agent reads it from this kernel's cache.
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def read_file(path: str, limit: int) -> bytes:
    """The content of the regular file ``path``, at most ``limit`` bytes plus one; never hangs on a pipe.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, or is a link, a pipe, a directory.
    """
    return _read_file(path, limit)[0]


def _read_file(path: str, limit: int) -> tuple[bytes, int]:
    """`read_file`, with the time of its last change, nanoseconds since the epoch."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        data = b""
        while len(data) <= limit and (part := os.read(fd, limit + 1 - len(data))):
            data += part
        return data, status.st_mtime_ns
    finally:
        os.close(fd)


def read(directory: str | os.PathLike[str]) -> tuple[ErrorRecord | None, str | None]:
    """The worker's (or torch's) error.json in ``directory``, and its error if it is invalid.

    Of a record of torch's, or with a damaged "ftslurm" part, only message and traceback are known, and the file's time.
    """
    path = os.path.join(os.fspath(directory), NAME)
    try:
        data, written_ns = _read_file(path, SIZE_LIMIT)
    except FileNotFoundError:
        return None, None
    except OSError as problem:
        return None, f"{NAME} is not readable: {problem.strerror or problem}"
    if len(data) > SIZE_LIMIT:
        return None, f"{NAME} is larger than {SIZE_LIMIT} bytes"
    try:
        return error_record_in(json.loads(data), NAME, written_ns)
    except BadFile as error:
        return None, str(error)
    except (ValueError, RecursionError):
        return None, f"{NAME} is torn or not JSON ({len(data)} bytes)"


def _without_foreign(record: ErrorRecord) -> ErrorRecord:
    return replace(record, reported_before=None, foreign=None)


def _without_chain(record: ErrorRecord) -> ErrorRecord:
    return _with_exception(record, cause=None, context=None, exceptions=())


def _without_sources(record: ErrorRecord) -> ErrorRecord:
    frames = record.exception.frames[-20:] if record.exception is not None else ()
    return _with_exception(record, frames=tuple(replace(frame, source=None) for frame in frames), notes=())


def _with_exception(record: ErrorRecord, **changes: Any) -> ErrorRecord:
    return record if record.exception is None else replace(record, exception=replace(record.exception, **changes))


def _with_short_texts(record: ErrorRecord) -> ErrorRecord:
    record = replace(
        record,
        message=clean(record.message, 1000),
        traceback=clean(record.traceback, 8000),
        argv=tuple(clean(argument, 200) for argument in record.argv[:20]),
        stacks=record.stacks and clean(record.stacks, 4000),
    )
    return (
        record if record.exception is None else _with_exception(record, message=clean(record.exception.message, 1000))
    )


def _without_exception(record: ErrorRecord) -> ErrorRecord:
    return replace(record, exception=None)
