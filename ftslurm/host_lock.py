"""Locks of one host: one agent per run and node, one writer of a report or of exclusions at a time.

They keep two processes of the same user on the same host apart, to give the second one a clear message. They are no
fence: other hosts do not see them, a cleaner of /tmp may remove their files, and where no node-local directory can be
written there is none. What must hold is held by the fenced state (see docs/architecture.md).

The kernel drops a lock with the last descriptor of its file (flock(2)), however the holder ends: no lock is ever stale.
Workers do not inherit it (O_CLOEXEC). The files stay, empty: removing one would let two processes lock two inodes.
"""

from __future__ import annotations

import fcntl
import os
import stat

from ftslurm.text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from filelock import BaseFileLock

BASES = ("/tmp", "/dev/shm")
"""Not $TMPDIR: it differs between the jobs and logins of a user."""
PATIENCE_S = 20.0
COMMAND_SHOWN = 120


class LockHeld(Exception):
    """Another process of this host holds the lock; the text names it."""


class HostLock:
    """A lock that is held until `release`, or until this process ends.

    By fcntl, not by filelock, whose import costs an agent 4.4 MB: nothing waits here. Both lock by flock(2).

    Args:
        kind: of the lock.
        directory: what it is about; it need not exist.
        more: what of it, such as a node.

    Raises:
        LockHeld: another process holds it.
    """

    def __init__(self, kind: str, directory: str, *more: str) -> None:
        self._fd = -1
        path = lock_file(kind, directory, *more)
        if path is None:
            return
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise LockHeld(holder_of(path)) from None
        except OSError:
            # No inode left, a filesystem without locks: the job works without.
            self.release()

    def release(self) -> None:
        """Release it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class CommandLock:
    """A lock that a command holds while it works, as a context; it waits for another process that holds it.

    Args:
        kind, directory: see `HostLock`.
        patience_s: how long to wait, in seconds.

    Raises:
        LockHeld: on entry: another process has held it for so long.
    """

    def __init__(self, kind: str, directory: str, patience_s: float = PATIENCE_S) -> None:
        self._path = lock_file(kind, directory)
        self._patience_s = patience_s
        self._lock: BaseFileLock | None = None

    def __enter__(self) -> None:
        from filelock import FileLock, Timeout

        if self._path is None:
            return
        self._lock = FileLock(self._path, timeout=self._patience_s)
        try:
            self._lock.acquire()
        except Timeout:
            raise LockHeld(holder_of(self._path)) from None
        except (OSError, NotImplementedError):
            # As above.
            pass

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()


def lock_file(kind: str, directory: str, *more: str) -> str | None:
    """Return the path of a lock's file in a directory of this user alone; None where there can be none."""
    above, own = os.path.split(os.path.realpath(directory))
    try:
        place = os.stat(above)
    except OSError:
        return None
    # By inode, not by a hash of the path: hashlib loads OpenSSL, 2 MB for an agent.
    name = f"{'-'.join((kind, f'{place.st_dev:x}.{place.st_ino}', own, *more))}.lock"
    for base in BASES:
        directory = os.path.join(base, f"ftslurm-{os.geteuid()}-locks")
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass
        except OSError:
            continue
        try:
            facts = os.lstat(directory)
        except OSError:
            continue
        # In /tmp another user may have taken the name.
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and os.access(directory, os.W_OK | os.X_OK):
            return os.path.join(directory, name)
    return None


def holder_of(path: str) -> str:
    """Return which process holds the lock, as text for a message.

    From /proc/locks (proc(5)), whose holder is always the true one; a process outside this PID namespace has no number.
    """
    try:
        inode = str(os.stat(path).st_ino)
        with open("/proc/locks") as file:
            locks = [line.split() for line in file]
        pid = next(int(one[4]) for one in locks if one[1] == "FLOCK" and one[5].rpartition(":")[2] == inode)
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = os.fsdecode(file.read(4096)).replace("\0", " ").strip()
    except (OSError, ValueError, IndexError, StopIteration):
        return "another process on this host"
    return f"process {pid} on this host ({one_line(command, COMMAND_SHOWN)})"
