"""Atomic publication of whole files, and reading them: a name has either no content, the old one or the new one.

The temporary lies in the same directory and its name begins with a dot, so that a crash leaves at most one hidden file,
which readers ignore.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping

from ftslurm.sharedfs.filesystem import DEFAULT_READ_LIMIT, FileSystem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class BadFile(ValueError):
    """A file's content is not of the expected form; the text names the file and the error."""


class NewerFormat(BadFile):
    """A file was written by a newer ftslurm than this one."""


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


def encode(value: Mapping[str, Any]) -> bytes:
    """Return `value` as one line of ASCII JSON (lone surrogates, as in undecodable file names, escaped)."""
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def decode(data: bytes, where: str, schema: str, version: int) -> dict[str, Any]:
    """Return the JSON object in `data` after checking its schema.

    Args:
        data: the file's content.
        where: the file's name, for the error.
        schema: the expected "schema".
        version: the newest supported "version".

    Raises:
        NewerFormat: the object's version is larger.
        BadFile: it is not such an object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        what = "it is empty" if not data.strip() else f"it is not JSON ({error})"
        raise BadFile(f"{where}: expected a JSON object of {schema}, but {what}") from None
    if not isinstance(value, dict) or value.get("schema") != schema:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise BadFile(f"{where}: expected a JSON object of {schema}, found {found!r}")
    found_version = value.get("version")
    if not isinstance(found_version, int) or isinstance(found_version, bool):
        raise BadFile(f"{where}: its version is {found_version!r}, expected a number up to {version}")
    if found_version > version:
        raise NewerFormat(
            f"{where}: made by a newer ftslurm (format {found_version}, this one supports up to {version}); "
            "use that ftslurm, or another run id"
        )
    return value


def read_object(
    fs: FileSystem, path: str, schema: str, version: int, limit: int = DEFAULT_READ_LIMIT
) -> dict[str, Any]:
    """Read `path` and `decode` it.

    Raises:
        OSError: it cannot be read (`FileNotFoundError`: it does not exist).
        BadFile: see `decode`.
    """
    return decode(fs.read(path, limit), path, schema, version)
