"""A client of the shared filesystem with caches like NFS: it may return stale names and contents.

As measured on real systems: a name looked up while absent stays absent, a file that was renamed over is sometimes
served with its old content, and so is a directory's listing, each for a bounded time; opening the directory, or a
change in it by this client, invalidates the cache.
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
"""Time for which a client may answer from its cache, in seconds."""

STALE_CHANCE = 0.3
"""Probability of a stale answer for a renamed-over file or a listing; for an absent name it is 1."""


@dataclass
class ClientCache:
    """Cache of one node's kernel: by directory, the names it has looked up, and its listing.

    Args:
        now: true time, seconds.
        rng: decides whether the cache is used.
        count: called with the kind of each stale answer.
    """

    now: Callable[[], float]
    rng: random.Random
    count: Callable[[str], None]
    names: dict[str, dict[str, tuple[_Inode | None, float]]] = field(default_factory=dict)
    listings: dict[str, tuple[list[str], float]] = field(default_factory=dict)

    def drop(self, directory: str) -> None:
        """Drop the cache of a directory."""
        self.names.pop(directory, None)
        self.listings.pop(directory, None)

    def clear(self) -> None:
        """Drop the whole cache: the node was rebooted."""
        self.names.clear()
        self.listings.clear()

    def look_up(self, path: str, inode: _Inode | None) -> _Inode | None:
        """Return the client's entry of `path`, given the server's `inode`."""
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
        """Return the client's listing of `directory`, given the server's `names`."""
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
    """One process's access to the shared filesystem, through its node's cache.

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
        """See `FileSystem.link`; after an error the cache is kept."""
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
        """See `FileSystem.read`; possibly stale."""
        operation = self._begin("read", path)
        inode = self.cache.look_up(path, self._tree.files.get(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        data = inode.data
        self._call(AFTER, operation)
        return data

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`; possibly stale."""
        return self.cache.list(path, super().listdir(path))
