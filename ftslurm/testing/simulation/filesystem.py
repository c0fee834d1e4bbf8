"""A client of the shared filesystem as NFS has it: it remembers names and contents, and so answers from the past.

As measured on real systems: a name looked up while absent stays absent, a file that was renamed over is now and then
served as it was, a directory's listing too, each for a bounded time; opening the directory, or an own change in it,
makes this client look anew.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable

from ftslurm.dataclasses import dataclass, field
from ftslurm.sharedfs.filesystem import DEFAULT_READ_LIMIT
from ftslurm.testing.memoryfs import AFTER, Hook, MemoryFileSystem, _Inode

STALE_S = 30.0
"""For how long a client may answer from memory, in seconds."""

STALE_CHANCE = 0.3
"""How often an open of a renamed-over file, or a listing, is answered from memory; an absent name always is."""


@dataclass
class ClientCache:
    """What one node's kernel remembers: by directory, the names it has looked up, and its listing.

    Args:
        now: true time, seconds.
        rng: decides whether memory is asked.
        count: is told what kind of old answer was given.
    """

    now: Callable[[], float]
    rng: random.Random
    count: Callable[[str], None]
    names: dict[str, dict[str, tuple[_Inode | None, float]]] = field(default_factory=dict)
    listings: dict[str, tuple[list[str], float]] = field(default_factory=dict)

    def drop(self, directory: str) -> None:
        """Forget everything about a directory."""
        self.names.pop(directory, None)
        self.listings.pop(directory, None)

    def clear(self) -> None:
        """Forget everything: the node was started anew."""
        self.names.clear()
        self.listings.clear()

    def look_up(self, path: str, inode: _Inode | None) -> _Inode | None:
        """Return what the client takes `path` for when the server has `inode` there."""
        names = self.names.setdefault(posixpath.dirname(path), {})
        known = names.get(path)
        if known is not None and known[0] is not inode and self.now() - known[1] < STALE_S:
            if known[0] is None:
                self.count("stale: absent")
                return None
            if self.rng.random() < STALE_CHANCE:
                self.count("stale: content")
                return known[0]
        if known is None or known[0] is not inode:
            names[path] = (inode, self.now())
        return inode

    def list(self, directory: str, names: list[str]) -> list[str]:
        """Return what the client takes for the names in `directory` when the server has `names`."""
        known = self.listings.get(directory)
        if known is not None and known[0] != names and self.now() - known[1] < STALE_S:
            if self.rng.random() < STALE_CHANCE:
                self.count("stale: listing")
                return known[0]
            known = None
        if known is None:
            self.listings[directory] = (names, self.now())
        return names


class CachingClient(MemoryFileSystem):
    """One process's view of the shared filesystem, through its node's cache.

    Args:
        server: any client of the same tree.
        cache: of the node that the process runs on.
        hook: see `MemoryFileSystem`.
    """

    def __init__(self, server: MemoryFileSystem, cache: ClientCache, hook: Hook | None = None) -> None:
        super().__init__(hook)
        self._tree = server._tree
        self.cache = cache

    def create(self, path: str, data: bytes, durable: bool) -> None:
        """See `FileSystem.create`."""
        super().create(path, data, durable)
        self.cache.drop(posixpath.dirname(path))

    def link(self, source: str, target: str) -> None:
        """See `FileSystem.link`; after an error the client remembers what it did."""
        super().link(source, target)
        self.cache.drop(posixpath.dirname(target))

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`."""
        super().rename(source, target)
        self.cache.drop(posixpath.dirname(target))

    def unlink(self, path: str) -> None:
        """See `FileSystem.unlink`."""
        super().unlink(path)
        self.cache.drop(posixpath.dirname(path))

    def refresh(self, path: str) -> None:
        """See `FileSystem.refresh`."""
        super().refresh(path)
        self.cache.drop(path)

    def read(self, path: str, limit: int = DEFAULT_READ_LIMIT) -> bytes:
        """See `FileSystem.read`; perhaps as it was."""
        operation = self._begin("read", path)
        inode = self.cache.look_up(path, self._tree.files.get(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        data = inode.data
        self._call(AFTER, operation)
        return data

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`; perhaps as it was."""
        return self.cache.list(path, super().listdir(path))
