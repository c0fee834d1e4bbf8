"""An in-memory filesystem with several clients, and faults injected by a hook.

It guarantees the contract of `ftslurm.sharedfs.filesystem.FileSystem` (a link never replaces, a rename is atomic, a new
file is not complete before `create` returns) and nothing else. A hook that is called around every operation can refuse
it, execute it and lose the reply, let time pass, or end the caller between any two operations.
"""

from __future__ import annotations

import errno
import functools
import os
import posixpath
from collections.abc import Callable

from ftslurm.dataclasses import dataclass
from ftslurm.sharedfs.filesystem import DEFAULT_READ_LIMIT, FileTooLarge
from ftslurm.sharedfs.ownership import ForeignFile

BEFORE, DURING, AFTER = "before", "during", "after"
"""When a hook is called; DURING only in `create`, with half of the data in the file."""


@dataclass(frozen=True)
class Operation:
    """One operation of one client.

    Attributes:
        name: the `FileSystem` method's name.
        path: its argument; for `link` and `rename` the target.
        source: the source of `link` and `rename`, else None.
        number: index of the client's operation, from 1.
    """

    name: str
    path: str
    source: str | None
    number: int


Hook = Callable[[str, Operation], None]
"""Called with BEFORE, DURING or AFTER and the operation.

Its exceptions propagate to the caller: an `OSError` raised BEFORE is a refusal, one raised AFTER a lost reply (the
operation was done). `Crash` ends the caller: afterwards its client refuses all operations, since `finally` blocks still
run.
"""


class Crash(BaseException):
    """The calling process dies at this point; not caught by `except OSError` or `except Exception`."""


@dataclass
class _Inode:
    data: bytes


class _Tree:
    """The server's data: directories, and names of files; two names may share one file."""

    def __init__(self) -> None:
        self.directories: set[str] = {"/"}
        self.files: dict[str, _Inode] = {}
        # Indexed by directory: a simulation lists small directories in a large tree a million times.
        self.names: dict[str, set[str]] = {"/": set()}

    def put(self, path: str, inode: _Inode) -> None:
        """Bind the name `path` to `inode`."""
        self.files[path] = inode
        self._list(path)

    def drop(self, path: str) -> None:
        """Remove the name `path` of a file."""
        del self.files[path]
        directory, name = _split(path)
        self.names[directory].discard(name)

    def make(self, path: str) -> None:
        """Create a directory."""
        self.directories.add(path)
        self.names[path] = set()
        self._list(path)

    def _list(self, path: str) -> None:
        directory, name = _split(path)
        self.names[directory].add(name)


class MemoryFileSystem:
    """One client of an in-memory filesystem; implements `FileSystem`. Not thread-safe.

    Args:
        hook: called around each operation of this client; None: no faults.
    """

    overlaps = False

    def __init__(self, hook: Hook | None = None) -> None:
        self.hook = hook
        self._tree = _Tree()
        self._count = 0
        self._dead = False

    def client(self, hook: Hook | None = None) -> MemoryFileSystem:
        """Return another client of the same server, with a hook of its own."""
        other = MemoryFileSystem(hook)
        other._tree = self._tree
        return other

    def files(self) -> dict[str, bytes]:
        """Return every file's path and content, without calling hooks."""
        return {path: inode.data for path, inode in sorted(self._tree.files.items())}

    def content(self, path: str) -> bytes:
        """Return one file's content, without calling hooks; `KeyError` if it does not exist."""
        return self._tree.files[path].data

    # FileSystem

    def create(self, path: str, data: bytes, durable: bool) -> None:
        """See `FileSystem.create`; a crash DURING it leaves an incomplete file, an error leaves none."""
        operation = self._begin("create", path)
        path = _clean(path)
        self._parent(path)
        if path in self._tree.files or path in self._tree.directories:
            raise _error(FileExistsError, errno.EEXIST, path)
        inode = _Inode(data[: len(data) // 2])
        self._tree.put(path, inode)
        try:
            self._call(DURING, operation)
        except OSError:
            self._tree.drop(path)
            raise
        inode.data = data
        self._call(AFTER, operation)

    def link(self, source: str, target: str) -> None:
        """See `FileSystem.link`."""
        operation = self._begin("link", target, source)
        inode, target = self._inode(source), _clean(target)
        self._parent(target)
        if target in self._tree.files or target in self._tree.directories:
            raise _error(FileExistsError, errno.EEXIST, target)
        self._tree.put(target, inode)
        self._call(AFTER, operation)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`; files only."""
        operation = self._begin("rename", target, source)
        inode, target = self._inode(source), _clean(target)
        self._parent(target)
        if target in self._tree.directories:
            raise _error(IsADirectoryError, errno.EISDIR, target)
        if self._tree.files.get(target) is not inode:
            self._tree.put(target, inode)
            self._tree.drop(_clean(source))
        self._call(AFTER, operation)

    def unlink(self, path: str) -> None:
        """See `FileSystem.unlink`."""
        operation = self._begin("unlink", path)
        self._inode(path)
        self._tree.drop(_clean(path))
        self._call(AFTER, operation)

    def read(self, path: str, limit: int = DEFAULT_READ_LIMIT) -> bytes:
        """See `FileSystem.read`."""
        operation = self._begin("read", path)
        if _clean(path) in self._tree.directories:
            raise ForeignFile(errno.EINVAL, "not a plain file", path)
        data = self._inode(path).data
        if len(data) > limit:
            raise FileTooLarge(errno.EFBIG, f"larger than {limit} bytes", path)
        self._call(AFTER, operation)
        return data

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`; in the order of names."""
        operation = self._begin("listdir", path)
        names = sorted(self._tree.names[self._directory(path)])
        self._call(AFTER, operation)
        return names

    def refresh(self, path: str) -> None:
        """See `FileSystem.refresh`; nothing is stale here, but the directory must exist."""
        operation = self._begin("refresh", path)
        self._directory(path)
        self._call(AFTER, operation)

    def check_own(self, path: str) -> None:
        """See `FileSystem.check_own`; there is only one user."""
        self._directory(path)

    def makedirs(self, path: str) -> None:
        """See `FileSystem.makedirs`."""
        operation = self._begin("makedirs", path)
        path = _clean(path)
        if path in self._tree.files:
            raise _error(FileExistsError, errno.EEXIST, path)
        missing = []
        while path not in self._tree.directories:
            if path in self._tree.files:
                raise _error(NotADirectoryError, errno.ENOTDIR, path)
            missing.append(path)
            path = posixpath.dirname(path)
        for directory in reversed(missing):
            self._tree.make(directory)
        self._call(AFTER, operation)

    # Internal

    def _begin(self, name: str, path: str, source: str | None = None) -> Operation:
        self._count += 1
        operation = Operation(name, path, source, self._count)
        self._call(BEFORE, operation)
        return operation

    def _call(self, when: str, operation: Operation) -> None:
        if self._dead:
            raise Crash
        try:
            if self.hook is not None:
                self.hook(when, operation)
        except Crash:
            self._dead = True
            raise

    def _inode(self, path: str) -> _Inode:
        self._parent(_clean(path))
        inode = self._tree.files.get(_clean(path))
        if inode is None:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        return inode

    def _parent(self, path: str) -> None:
        self._directory(_split(path)[0])

    def _directory(self, path: str) -> str:
        path = _clean(path)
        if path in self._tree.files:
            raise _error(NotADirectoryError, errno.ENOTDIR, path)
        if path not in self._tree.directories:
            raise _error(FileNotFoundError, errno.ENOENT, path)
        return path


@functools.lru_cache(maxsize=4096)
def _split(path: str) -> tuple[str, str]:
    return posixpath.split(path)


@functools.lru_cache(maxsize=4096)
def _clean(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))


def _error(kind: type[OSError], number: int, path: str) -> OSError:
    return kind(number, os.strerror(number), path)
