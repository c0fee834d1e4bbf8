"""Interface of the few filesystem operations that the control plane uses.

All callers use `FileSystem`, so that tests and simulations can insert stale reads, lost replies and crashes between any
two calls. `PosixFileSystem` is the real implementation.
"""

from __future__ import annotations

import errno
import os
import stat

from ftslurm.sharedfs.ownership import ForeignFile, check_own_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    # An ordinary class at run time: `typing` would be imported for this alone.
    Protocol = object

READ_RETRIES = 5
DEFAULT_READ_LIMIT = 16 << 20


class FileTooLarge(OSError):
    """A file is larger than the reader's limit."""


class FileSystem(Protocol):
    """Operations of the control plane on a shared filesystem; each may raise `OSError`.

    Attributes:
        overlaps: calls of several threads at a time are faster than one after the other.
    """

    overlaps: bool

    def create(self, path: str, data: bytes, durable: bool) -> None:
        """Create a new file, mode 0600, with the complete `data`; synced to disk if `durable`."""

    def link(self, source: str, target: str) -> None:
        """Create the hard link `target` to `source`; `FileExistsError` if that name is taken."""

    def rename(self, source: str, target: str) -> None:
        """Move `source` to `target` atomically, replacing an existing file."""

    def unlink(self, path: str) -> None:
        """Remove a name."""

    def read(self, path: str, limit: int) -> bytes:
        """Return the whole content of a plain file, at most `limit` bytes (else `FileTooLarge`)."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory."""

    def refresh(self, path: str) -> None:
        """Make names that other clients created in the directory `path` visible to this client."""

    def check_own(self, path: str) -> None:
        """Raise `ForeignFile` unless the directory is no link, owned by this user and writable for no other."""

    def makedirs(self, path: str) -> None:
        """Create a directory, mode 0700, and its missing parents; an existing one is fine.

        A missing parent gets the group and other permissions of the directory above it if that is writable for them,
        and the sticky bit, so that no user can move or remove what another one has created.
        """


class PosixFileSystem:
    """`FileSystem` by system calls.

    Args:
        owner: uid that files must belong to; files of other users raise `ForeignFile`. None: any owner.
    """

    overlaps = True

    def __init__(self, owner: int | None = None) -> None:
        self._owner = owner

    def create(self, path: str, data: bytes, durable: bool) -> None:
        """See `FileSystem.create`; an incomplete file is removed."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if durable:
                    os.fsync(fd)
            finally:
                # Network filesystems report a full disk at close: it must raise inside this block.
                os.close(fd)
        except OSError:
            try:
                os.unlink(path)
            except OSError:
                pass
            raise

    def link(self, source: str, target: str) -> None:
        """See `FileSystem.link`."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """See `FileSystem.unlink`."""
        os.unlink(path)

    def read(self, path: str, limit: int = DEFAULT_READ_LIMIT) -> bytes:
        """See `FileSystem.read`; ESTALE (read of a renamed-over file) is retried up to READ_RETRIES times."""
        for attempt in range(READ_RETRIES):
            try:
                return self._read_once(path, limit)
            except OSError as error:
                if error.errno != errno.ESTALE or attempt == READ_RETRIES - 1:
                    if error.filename is None:
                        # read(2) and fstat(2) of a descriptor do not have its name, which the message needs.
                        error.filename = path
                    raise
                self.refresh(os.path.dirname(path))
        raise AssertionError("unreachable")

    def _read_once(self, path: str, limit: int) -> bytes:
        # O_NONBLOCK: a named pipe under this name must not block the reader.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise ForeignFile(errno.EINVAL, "not a plain file", path)
            if self._owner is not None and facts.st_uid != self._owner:
                raise ForeignFile(errno.EPERM, f"belongs to uid {facts.st_uid}, expected {self._owner}", path)
            chunks: list[bytes] = []
            size = 0
            while chunk := os.read(fd, min(1 << 20, limit + 1 - size)):
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise FileTooLarge(errno.EFBIG, f"larger than {limit} bytes", path)
            return b"".join(chunks)
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`."""
        return os.listdir(path)

    def refresh(self, path: str) -> None:
        """Open and close the directory: on NFS this drops stale positive and negative cache entries (measured)."""
        os.close(os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def check_own(self, path: str) -> None:
        """See `FileSystem.check_own`."""
        check_own_directory(path)

    def makedirs(self, path: str) -> None:
        """See `FileSystem.makedirs`."""
        try:
            self._mkdir(path)
        except FileNotFoundError:
            self._make_shared(os.path.dirname(path), path)
            # One retry: if it still fails (/proc, an unlinked directory), a missing parent is not the cause.
            self._mkdir(path)

    def _make_shared(self, path: str, below: str) -> None:
        """Create the parent directory of `below`, writable for the users that may write to the directory above it."""
        if path in ("", below):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), below)
        above = os.path.dirname(path)
        try:
            made = self._mkdir(path)
        except FileNotFoundError:
            self._make_shared(above, path)
            made = self._mkdir(path)
        mode = os.stat(above or ".").st_mode
        shared = mode & stat.S_IRWXG if mode & stat.S_IWGRP else 0
        shared |= mode & stat.S_IRWXO if mode & stat.S_IWOTH else 0
        if made and shared:
            # Keeps the set-group-ID bit, which mkdir(2) inherits.
            os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | stat.S_ISVTX | shared)

    @staticmethod
    def _mkdir(path: str) -> bool:
        """Create a directory for this user alone; return False if it exists."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return False
        return True
