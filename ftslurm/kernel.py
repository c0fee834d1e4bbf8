"""What the agent asks of the Linux kernel beyond the `os` module: prctl, descendants, inotify.

Sources: prctl(2), proc(5), inotify(7).
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Container

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


def descendants(root: int) -> list[tuple[int, int]]:
    """Return pid and process group of all descendants of `root` that are not collected yet, parents first.

    Zombies are among them: behind one whose first thread has ended others may be running, and what forks and exits all
    the time is seen only by the zombies that it leaves. One pass over /proc: /proc/<pid>/task/*/children needs a kernel
    option that not every kernel has.
    """
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                line = file.read()
        except OSError:
            continue
        # The command's name is in parentheses and may hold anything, spaces and parentheses too.
        parent, group = line[line.rindex(b")") + 2 :].split(None, 3)[1:3]
        children.setdefault(int(parent), []).append((int(name), int(group)))
    found: list[tuple[int, int]] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        queue += [pid for pid, _ in below]
        found += below
    return found


def parent_of(pid: int) -> int | None:
    """Return a process's parent, None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    return int(line[line.rindex(b")") + 2 :].split(None, 2)[1])


def kill_descendants(root: int, sig: int = signal.SIGKILL, spared: Container[int] = ()) -> int:
    """Send `sig` to every descendant of `root`; return to how many that was possible, zombies included.

    Collect before: 0 means that nothing is left. Their process groups get it too: to a group the kernel sends it at one
    moment, so that a process that does nothing but fork and exit is hit, which is never found alive one by one.
    Processes of another user (sudo) cannot be killed and do not count.

    Args:
        spared: pids that are left alone.
    """
    found = [(pid, group) for pid, group in descendants(root) if pid not in spared]
    for group in {group for _, group in found} - {os.getpgrp()}:
        _send(os.killpg, group, sig)
    return sum([_send(os.kill, pid, sig) for pid, _ in found])


def _send(kill: Callable[[int, int], None], target: int, sig: int) -> bool:
    try:
        kill(target, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_name(number: int) -> str:
    """Return "SIGTERM" for 15; "SIG50" for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


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
