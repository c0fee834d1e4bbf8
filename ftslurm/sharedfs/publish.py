"""Atomic publication of whole files, and reading them: a name has either no content, the old one or the new one.

The temporary lies in the same directory and its name begins with a dot, so that a crash leaves at most one hidden file,
which readers ignore.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ftslurm.records.codec import decode, read_record, write_record
from ftslurm.sharedfs.filesystem import DEFAULT_READ_LIMIT, FileSystem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")


def random_nonce() -> str:
    """Return 16 random hexadecimal digits from the kernel's generator."""
    return os.urandom(8).hex()


def temporary_name(path: str, nonce: str) -> str:
    """Return the hidden name beside `path` under which its next content is written."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.{nonce}.tmp")


def publish(
    fs: FileSystem, path: str, data: bytes, durable: bool = False, nonce: Callable[[], str] = random_nonce
) -> None:
    """Write `data` to `path` atomically, replacing the old content.

    Args:
        fs: the filesystem.
        path: the name; its directory exists.
        data: the whole content.
        durable: survive a crash of the server: fsync before the rename.
        nonce: source of the temporary's name.

    Raises:
        OSError: nothing was changed (or the rename was done and its reply lost, which is equivalent to success).
    """
    temporary = create_temporary(fs, path, data, durable, nonce())
    try:
        fs.rename(temporary, path)
    except OSError as error:
        # NFS repeats a rename whose reply was lost, and fails because the temporary no longer exists.
        if isinstance(error, FileNotFoundError) and _holds(fs, path, data):
            return
        remove_temporary(fs, temporary)
        raise


def _holds(fs: FileSystem, path: str, data: bytes) -> bool:
    try:
        fs.refresh(os.path.dirname(path))
        return fs.read(path, len(data)) == data
    except OSError:
        return False


def publish_once(
    fs: FileSystem, path: str, data: bytes, durable: bool = True, nonce: Callable[[], str] = random_nonce
) -> None:
    """Write `data` to `path` unless it exists; the first writer wins, and callers must read the winner's content."""
    temporary = create_temporary(fs, path, data, durable, nonce())
    try:
        fs.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        remove_temporary(fs, temporary)


def publish_first(fs: FileSystem, path: str, record: object) -> bool:
    """Write a record unless `path` exists; return whether the record there is then this one.

    Of several processes with different records, the one that gets True has the right to act.

    Raises:
        OSError, BadFile: it cannot be written, or not be read back.
    """
    publish_once(fs, path, write_record(record))
    return read_published(fs, path, type(record)) == record


def create_temporary(fs: FileSystem, path: str, data: bytes, durable: bool, nonce: str) -> str:
    """Write `data` under the hidden name derived from `path` and `nonce` (used only once), and return that name.

    Raises:
        OSError: it could not be written, and was removed if possible.
    """
    temporary = temporary_name(path, nonce)
    try:
        try:
            fs.create(temporary, data, durable)
        except FileExistsError:
            # No other process has the nonce: a first call created it, its reply was lost, and the repetition found it.
            remove_temporary(fs, temporary)
            fs.create(temporary, data, durable)
    except OSError:
        remove_temporary(fs, temporary)
        raise
    return temporary


def remove_temporary(fs: FileSystem, path: str) -> None:
    """Remove a temporary; on an error it remains as a hidden file."""
    try:
        fs.unlink(path)
    except OSError:
        pass


def read_published(fs: FileSystem, path: str, cls: type[T], limit: int = DEFAULT_READ_LIMIT) -> T:
    """Read a record (`ftslurm.records`).

    Raises:
        OSError: it cannot be read (`FileNotFoundError`: it does not exist).
        BadFile: it is not such a record.
    """
    return read_record(cls, fs.read(path, limit), path)


def read_object(
    fs: FileSystem, path: str, schema: str, version: int, limit: int = DEFAULT_READ_LIMIT
) -> dict[str, Any]:
    """Read `path` and `decode` it.

    Raises:
        OSError: it cannot be read (`FileNotFoundError`: it does not exist).
        BadFile: see `decode`.
    """
    return decode(fs.read(path, limit), path, schema, version)
