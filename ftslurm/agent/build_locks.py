"""Removal of the lock that a killed rank leaves in the build directory of a C++ extension.

Processes that load an extension by ``torch.utils.cpp_extension`` take turns by a file named ``lock`` in its build
directory (``torch/utils/file_baton.py``): the one that creates it builds, the others wait until it is gone. Only its
creator removes it, so the ranks of every later round would wait for one that was killed while it built. The creator
holds it open, for reading and close-on-exec, until it is done, by which a live holder is recognised.

The known locks are also noted in the agent's node-local directory: the guardian of an agent that was killed with its
ranks removes them (`remove_noted`).

Other caches leave nothing behind: Triton renames complete files into place, and torch's inductor locks by flock(2),
which ends with the process.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable

NAME = "lock"
NOTES = "build-locks"
SCAN_S, SHARE = 1.0, 0.001
"""The locks of a rank killed from outside are those of the last scan. Scans run every second, or less often so that
they take at most that share of a core: a process with a thousand files costs 2 ms."""
BUILDER = "ninja"
_PROC = "/proc"


class BuildLocks:
    """Tracks which locks this node's ranks hold, and removes those of ranks that have ended.

    Args:
        local_dir: the agent's node-local directory, for notes.
        monotonic: clock, seconds.
        log: receives a line per lock that was removed or cannot be; called from a thread.
    """

    def __init__(self, local_dir: str, monotonic: Callable[[], float], log: Callable[[str], None]) -> None:
        self._notes = os.path.join(local_dir, NOTES)
        self._noted: dict[str, int | None] = {}
        self._monotonic = monotonic
        self._log = log
        self._held: dict[int, dict[str, int | None]] = {}
        self._scan_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `on_time` is due; None: no rank runs."""
        return self._scan_at

    def on_time(self, running: Callable[[], Iterable[int]]) -> None:
        """The deadline may have passed; `running` returns the ranks' processes."""
        if self._scan_at is not None and self._monotonic() >= self._scan_at:
            self.scan(running())

    def scan(self, pids: Iterable[int]) -> None:
        """Note which locks these processes (the ranks, or all descendants of the agent) hold now.

        Nothing here touches the filesystem of the locks.
        """
        began = self._monotonic()
        for pid in pids:
            held = _held_by(pid)
            if held is not None:
                self._held[pid] = held
        self._note()
        self._scan_at = began + max(SCAN_S, (self._monotonic() - began) / SHARE)

    def scan_builders(self, pids: Iterable[int]) -> None:
        """Note the locks of builds that go on after the rank that began them was killed."""
        for pid in pids:
            if (directory := _builds_in(pid)) is not None:
                self._held[pid] = {os.path.join(directory, NAME): None}

    def remove(self) -> None:
        """Remove, on a thread, the locks of those processes; all of them have ended."""
        held = self._all()
        self._held.clear()
        self._note()
        self._scan_at = None
        if held:
            threading.Thread(target=_remove, args=(held, self._log), name="build-locks", daemon=True).start()

    def _all(self) -> dict[str, int | None]:
        return {path: inode for locks in self._held.values() for path, inode in locks.items()}

    def _note(self) -> None:
        held = self._all()
        if held == self._noted:
            return
        self._noted = held
        try:
            with open(self._notes, "w", errors="surrogateescape") as file:
                file.writelines(f"{inode or 0} {path}\0" for path, inode in held.items())
        except OSError:
            # Disk full: the notes only matter if this agent is killed, too.
            pass


def remove_noted(local_dir: str, log: Callable[[str], None]) -> None:
    """Remove the locks that an agent had noted in its node-local directory; it and its ranks have been killed."""
    try:
        with open(os.path.join(local_dir, NOTES), errors="surrogateescape") as file:
            notes = file.read().split("\0")[:-1]
    except OSError:
        return
    parts = [note.partition(" ") for note in notes]
    _remove({path: int(inode) or None for inode, _, path in parts if inode.isdecimal()}, log)


def _remove(held: dict[str, int | None], log: Callable[[str], None]) -> None:
    for path, inode in held.items():
        try:
            if not _is_left(path, inode):
                continue
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log(f"{path}: {error.strerror}; a killed rank left this lock of a C++ extension: remove it")
        else:
            log(f"removed {path}, which a killed rank left while it built a C++ extension")


def _builds_in(pid: int) -> str | None:
    """Return the directory in which a process builds, as torch starts it; None: it is no build."""
    try:
        with open(f"{_PROC}/{pid}/comm") as file:
            if file.read().strip() == BUILDER:
                return os.readlink(f"{_PROC}/{pid}/cwd")
    except OSError:
        pass
    return None


def _held_by(pid: int) -> dict[str, int | None] | None:
    """Return the locks that a process holds, each with its inode number, if known; None: it has ended."""
    found: dict[str, int | None] = {}
    try:
        numbers = os.listdir(f"{_PROC}/{pid}/fd")
    except OSError:
        return None
    for number in numbers:
        try:
            path = os.readlink(f"{_PROC}/{pid}/fd/{number}")
            if not path.endswith(f"/{NAME}"):
                continue
            with open(f"{_PROC}/{pid}/fdinfo/{number}") as file:
                facts = [line.split() for line in file]
        except OSError:
            # Closed meanwhile.
            continue
        values = {line[0]: line[1] for line in facts if len(line) > 1}
        # A holder of a kernel lock on the file does not rely on the file's removal: flock(2), proc(5) for "lock:".
        if int(values.get("flags:", "1"), 8) & os.O_ACCMODE == os.O_RDONLY and "lock:" not in values:
            inode = values.get("ino:", "")
            found[path] = int(inode) if inode.isdecimal() else None
    # A zombie's table is empty; what it held was noted before.
    return found if numbers else None


def _is_left(path: str, inode: int | None) -> bool:
    facts = os.lstat(path)
    own = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and facts.st_size == 0
    return own and inode in (None, facts.st_ino)
