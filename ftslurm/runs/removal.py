"""Removal of a run directory: measured first, moved aside in one step, checked again, then removed.

A job may take a run up at any time, by a requeue or by the same `--rdzv-id`. Therefore the directory is first renamed:
from then on no agent finds it. If its state or its node records have changed since it was judged, it is renamed back,
and the agents go on: that a run directory is missing for a moment costs them nothing.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable

from ftslurm.dataclasses import dataclass

ASIDE = ".ftslurm-clean-"
"""Names of directories that are being removed begin so; one that remains was left by a killed process."""
ASIDE_S = 3600.0
"""Age at which such a directory is surely left."""
_SYMLINK_SAFE = shutil.rmtree.avoids_symlink_attacks


class NotRemovable(Exception):
    """A run directory stays; the text is why."""


@dataclass(frozen=True)
class Mark:
    """Identity and last changes of a run directory: two equal ones mean that nothing has happened to the run."""

    device: int
    inode: int
    state_ns: int | None
    nodes_ns: int | None
    newest: str | None

    @property
    def changed_ns(self) -> int:
        """The last change of state or node records: the latter change with each heartbeat."""
        return max(self.state_ns or 0, self.nodes_ns or 0)


@dataclass(frozen=True)
class Usage:
    """What a directory occupies: `files` are inodes, directories included; `size` is bytes on disk."""

    files: int
    size: int


def mark_of(path: str) -> Mark:
    """Return the mark of a run directory.

    Raises:
        NotRemovable: it is none of this user's own, or a link.
        OSError: it is not there.
    """
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode):
        raise NotRemovable("a link, or not a directory")
    if facts.st_uid != os.geteuid():
        raise NotRemovable(f"belongs to uid {facts.st_uid}")
    state = os.path.join(path, "state")
    try:
        newest = max((name for name in os.listdir(state) if name.endswith(".json")), default=None)
    except OSError:
        newest = None
    return Mark(facts.st_dev, facts.st_ino, _mtime_ns(state), _mtime_ns(os.path.join(path, "nodes")), newest)


def _mtime_ns(path: str) -> int | None:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return None


def usage(path: str) -> Usage:
    """Return what a directory occupies, itself included; links in it are not followed.

    Raises:
        NotRemovable: another filesystem is mounted in it, or it has another user's files.
        OSError: it cannot be read.
    """
    top = os.lstat(path)
    files, size, folders = 1, top.st_blocks * 512, [path]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                try:
                    facts = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if facts.st_dev != top.st_dev:
                    raise NotRemovable(f"another filesystem is mounted in it: {entry.path}")
                if facts.st_uid != top.st_uid:
                    raise NotRemovable(f"a file in it belongs to uid {facts.st_uid}: {entry.path}")
                files, size = files + 1, size + facts.st_blocks * 512
                if stat.S_ISDIR(facts.st_mode):
                    folders.append(entry.path)
    return Usage(files, size)


def remove(path: str, judged: Mark, between: Callable[[], None] = lambda: None) -> None:
    """Remove a run directory if nothing has happened to it since it was judged.

    Args:
        path: absolute.
        judged: its mark then.
        between: called after the directory was moved aside (for tests).

    Raises:
        NotRemovable: it stays, or parts of it: one line.
    """
    aside = os.path.join(os.path.dirname(path), f"{ASIDE}{os.path.basename(path)}.{os.urandom(6).hex()}")
    try:
        if mark_of(path) != judged:
            raise NotRemovable("it has changed since it was judged")
        os.rename(path, aside)
    except OSError as error:
        raise NotRemovable(f"cannot be moved: {error.strerror}") from None
    between()
    if mark_of(aside) != judged:
        try:
            # Refused where a new run of that name has begun.
            os.rename(aside, path)
        except OSError as error:
            raise NotRemovable(f"it went on meanwhile, and its files are in {aside}: {error.strerror}") from None
        raise NotRemovable("it went on meanwhile")
    remove_tree(aside)


def remove_tree(path: str) -> None:
    """Remove a directory that is no run any more.

    Raises:
        NotRemovable: parts of it stay.
    """
    if not _SYMLINK_SAFE:
        raise NotRemovable("this system has no removal that is safe against links")
    problems: list[str] = []

    def on_error(_function: object, name: str, info: tuple[type, BaseException, object]) -> None:
        error = info[1]
        if not isinstance(error, FileNotFoundError):
            problems.append(f"{name}: {getattr(error, 'strerror', None) or error}")

    shutil.rmtree(path, onerror=on_error)
    if problems:
        raise NotRemovable(f"parts of it stay: {problems[0]}")


def left_aside(directory: str) -> list[str]:
    """Return directories that a killed process has left half-removed."""
    found = []
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if name.startswith(ASIDE):
            facts = os.lstat(path)
            own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
            # Of the rename, which changes no time of modification.
            if own and time.time() - facts.st_ctime > ASIDE_S:
                found.append(path)
    return sorted(found)
