"""The few filesystem operations the control plane uses, as one small interface.

Everything above works on `FileSystem`, so that tests and simulations can put stale reads, lost replies and crashes
between any two calls. `PosixFileSystem` is the real one.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    # A class like any other at run time: `typing` would be loaded for this alone.
    Protocol = object

READ_RETRIES = 5
DEFAULT_READ_LIMIT = 16 << 20


class FileTooLarge(OSError):
    """A file is larger than the reader's limit."""


class ForeignFile(OSError):
    """A file or directory is not a plain one of the run's owner alone, so it is neither believed nor written to."""


class FileSystem(Protocol):
    """What the control plane asks of a shared filesystem; every operation may raise `OSError`."""

    def create(self, path: str, data: bytes, durable: bool) -> None:
        """Make a new file, mode 0600, with `data` complete in it; on the disk when `durable`."""

    def link(self, source: str, target: str) -> None:
        """Give `source` the second name `target`; `FileExistsError` when that name is taken."""

    def rename(self, source: str, target: str) -> None:
        """Move `source` to `target` atomically, replacing what was there."""

    def unlink(self, path: str) -> None:
        """Remove a name."""

    def read(self, path: str, limit: int) -> bytes:
        """Return the whole of a plain file, at most `limit` bytes (else `FileTooLarge`)."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory."""

    def refresh(self, path: str) -> None:
        """Make this client see names that others made in the directory `path`."""

    def check_own(self, path: str) -> None:
        """Raise `ForeignFile` unless the directory is no link, and this user's alone."""

    def makedirs(self, path: str) -> None:
        """Make a directory, mode 0700, and its missing parents; an existing one is fine.

        A missing parent is for those who may write to the directory above it, a group or everybody, but with the sticky
        bit, so that none of them can move or remove what another has made.
        """


class PosixFileSystem:
    """`FileSystem` by system calls.

    Args:
        owner: uid that files must belong to; files of anybody else raise `ForeignFile`. None: any owner.
    """

    def __init__(self, owner: int | None = None) -> None:
        self._owner = owner

    def create(self, path: str, data: bytes, durable: bool) -> None:
        """See `FileSystem.create`; a file that could not be completed is removed again."""
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
        """See `FileSystem.read`; ESTALE (a reader of a renamed-over file meets it) is retried, bounded."""
        for attempt in range(READ_RETRIES):
            try:
                return self._read_once(path, limit)
            except OSError as error:
                if error.errno != errno.ESTALE or attempt == READ_RETRIES - 1:
                    if error.filename is None:
                        # read(2) and fstat(2) of a descriptor do not know its name, and people need it.
                        error.filename = path
                    raise
                self.refresh(os.path.dirname(path))
        raise AssertionError("unreachable")

    def _read_once(self, path: str, limit: int) -> bytes:
        # O_NONBLOCK: somebody's named pipe under this name must not hang the reader.
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
        """Open and close the directory: on NFS this drops stale positive and negative entries (measured)."""
        os.close(os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def check_own(self, path: str) -> None:
        """See `FileSystem.check_own`."""
        from ftslurm.sharedfs.ownership import check_own_directory

        check_own_directory(path)

    def makedirs(self, path: str) -> None:
        """See `FileSystem.makedirs`."""
        try:
            self._mkdir(path)
        except FileNotFoundError:
            self._make_shared(os.path.dirname(path), path)
            # Once: where it still cannot be made (/proc, an unlinked directory) the parent is not what is missing.
            self._mkdir(path)

    def _make_shared(self, path: str, below: str) -> None:
        """Make the directory above `below`, for those who may write to the one above it."""
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
            # The kernel has passed on the set-group-ID bit (mkdir(2)), which stays.
            os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | stat.S_ISVTX | shared)

    @staticmethod
    def _mkdir(path: str) -> bool:
        """Make a directory for this user alone; return False if there is one."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return False
        return True
