"""Limits of the user's own that make calls fail on a healthy node: open files, processes, addresses, quota, file size.

Sources: getrlimit(2), quotactl(2), cgroups(7). A node is not to blame for them, and another one would not help.
"""

from __future__ import annotations

import _thread
import errno
import os

ERRNOS = {
    errno.EMFILE: "the limit of open files is reached (ulimit -n)",
    errno.EAGAIN: "the limit of processes is reached (ulimit -u, or the job's cgroup)",
    errno.ENOMEM: "the limit of memory is reached (ulimit -v, or the job's cgroup)",
    errno.EDQUOT: "the disk quota is used up (quota -s)",
    errno.EFBIG: "the limit of a file's size is reached (ulimit -f)",
}
"""Errors of calls at such a limit. The whole system's limits have other numbers (ENFILE, ENOSPC), or a health check of
their own (pid_max, memory)."""

_FILES, _THREADS, _BYTES = 16, 8, 1 << 30


def reached(threads: bool = True) -> str | None:
    """Return as text the limit that leaves this process no room for another library or command; None: none does.

    Args:
        threads: try whether threads can be started, too; not in a process that forks later.
    """
    return _no_files() or _no_addresses() or (_no_threads() if threads else None)


def _no_files() -> str | None:
    opened: list[int] = []
    try:
        while len(opened) < _FILES:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return ERRNOS.get(error.errno or 0)
    finally:
        for fd in opened:
            os.close(fd)
    return None


def _no_addresses() -> str | None:
    try:
        import mmap

        # Without a right to it, it is only addresses: nothing that the system must have.
        mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except (ImportError, MemoryError):
        return ERRNOS[errno.ENOMEM]
    except OSError as error:
        return ERRNOS.get(error.errno or 0)
    return None


def _no_threads() -> str | None:
    end = _thread.allocate_lock()
    with end:
        try:
            for _ in range(_THREADS):
                _thread.start_new_thread(_wait_for, (end,))
        except RuntimeError:
            return ERRNOS[errno.EAGAIN]
    return None


def _wait_for(end: _thread.LockType) -> None:
    with end:
        pass
