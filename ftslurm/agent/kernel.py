"""What the agent asks of the Linux kernel beyond the `os` module: prctl, descendants, inotify.

Sources: prctl(2), proc(5), inotify(7).
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IN_MODIFY = 0x2
IN_CLOEXEC = os.O_CLOEXEC
IN_NONBLOCK = os.O_NONBLOCK

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Let orphaned descendants become this process's children, so that none escapes it."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Ask the kernel for `sig` when the thread that made this process ends."""
    if _libc.prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def descendants(root: int) -> list[int]:
    """Return the pids of all living descendants of `root`, zombies left out, children before grandchildren.

    One pass over /proc: /proc/<pid>/task/*/children needs a kernel option that not every kernel has.
    """
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                line = file.read()
        except OSError:
            continue
        # The command's name is in parentheses and may hold anything, spaces and parentheses too.
        state, parent = line[line.rindex(b")") + 2 :].split(None, 2)[:2]
        children.setdefault(int(parent), []).append((int(name), state.decode()))
    found: list[int] = []
    queue = [root]
    while queue:
        for pid, state_ in children.get(queue.pop(), ()):
            queue.append(pid)
            if state_ not in "ZX":
                found.append(pid)
    return found


def kill_descendants(root: int, sig: int = signal.SIGKILL) -> int:
    """Send `sig` to every descendant of `root`; return to how many."""
    count = 0
    for pid in descendants(root):
        try:
            os.kill(pid, sig)
            count += 1
        except ProcessLookupError:
            pass
    return count


class FileWatch:
    """Tells when one of some files has grown on this machine, by inotify."""

    def __init__(self) -> None:
        """Open it; `OSError` when the kernel has no instance left for this user."""
        self.fd = _libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def add(self, path: str) -> None:
        """Watch the existing file `path`."""
        if _libc.inotify_add_watch(self.fd, os.fsencode(path), IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", path)

    def drain(self) -> None:
        """Forget the events so far."""
        try:
            while os.read(self.fd, 65536):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close it."""
        os.close(self.fd)
