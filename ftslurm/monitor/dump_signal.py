"""The worker's side of a hang: at one signal, faulthandler writes the stacks of all threads to the rank's file.

Imported by every worker before the user's code runs, so it imports nothing that is not built in.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the module below `signal`, which would bring `enum` along
import faulthandler
import os

NAME = "hang.txt"
DUMP_SIGNAL: int = _signal.SIGRTMAX - 1
"""A real-time signal near the end of the range: SIGUSR1 and the like belong to the users' programs."""

FIRST_FD = 200  # out of the way: the user's first open() is number 3, as in plain Python


def install(directory: str) -> None:
    """Have `DUMP_SIGNAL` write the stacks of all threads of this process to ``hang.txt`` in ``directory``.

    Nothing is done where the program has a handler of its own for that signal, and the second time. The handler runs
    without the GIL, so it answers even while native code holds it. Forked children write to their stderr instead.

    Raises:
        OSError: the file cannot be made.
    """
    global _installed
    if _installed == os.getpid() or _signal.getsignal(DUMP_SIGNAL) not in (_signal.SIG_DFL, _signal.SIG_IGN):
        return
    fd = private_file(os.path.join(directory, NAME))
    faulthandler.register(DUMP_SIGNAL, fd, all_threads=True, chain=False)
    _installed = os.getpid()


def private_file(path: str) -> int:
    """Open a file for appending that is this process's alone, and return its descriptor, a high one.

    In a forked child the number leads to stderr: a data-loader process is not its rank, its stacks belong in the
    rank's log.

    Raises:
        OSError: it cannot be opened; also when it is a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = raised(os.open(path, flags, 0o600))
    opened = os.fstat(fd)

    def point_child_to_stderr() -> None:
        try:
            if os.path.samestat(os.fstat(fd), opened):  # else the user has reused the number
                os.dup2(2, fd, inheritable=False)
        except OSError:
            pass

    os.register_at_fork(after_in_child=point_child_to_stderr)
    return fd


def raised(fd: int) -> int:
    """Return another number for a descriptor, out of the user's way; the old one is closed."""
    import fcntl

    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)
    except OSError:
        return fd  # RLIMIT_NOFILE is lower than that.
    os.close(fd)
    return high


_installed = 0
