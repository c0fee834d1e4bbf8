"""Linux system calls: prctl, pidfds, processes in sessions of their own, descendants, inotify, exchange of names.

Python's own functions depend on the libc and the kernel headers that it was built with, not on the machine that it
runs on: conda's Python and older standalone builds have neither pidfds nor ``posix_spawn(setsid=True)``, where the
kernel has both. So the kernel is called here, and only here.

Sources: prctl(2), pidfd_open(2), pidfd_send_signal(2), syscall(2), setsid(2), proc(5), inotify(7), rename(2).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import ctypes

    _libc: Any = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):
    # A Python without ctypes, or a static one: `_call` raises where it matters.
    _libc = None

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals from outside that stop a job."""
FORWARDED = (*STOPPING, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a launcher or guardian passes on to its agents."""
M_ARENA_MAX = -8
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SYS_PIDFD_SEND_SIGNAL, SYS_PIDFD_OPEN = 424, 434
"""These numbers are the same on all architectures but alpha (the kernel's scripts/syscall.tbl)."""
AT_FDCWD = -100
RENAME_EXCHANGE = 2
IN_MODIFY = 0x2
IN_CLOEXEC = os.O_CLOEXEC
IN_NONBLOCK = os.O_NONBLOCK


def _call(what: str, function: str, *arguments: object) -> int:
    """Call a function of the C library and return its result; `OSError`, which names `what`, when that is negative."""
    if _libc is None:
        raise OSError(errno.ENOSYS, "this Python cannot call the C library: it lacks ctypes", what)
    if not hasattr(_libc, function):
        raise OSError(errno.ENOSYS, f"this C library has no {function}", what)
    result: int = getattr(_libc, function)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def share_heap() -> None:
    """Let all threads of this process allocate from one heap; call it before there is a second thread.

    glibc gives threads heaps of their own (arenas, mallopt(3)), so that they need not wait for each other. Python's
    never allocate at the same time, and each arena is 0.1 MB.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(M_ARENA_MAX, 1)


def become_subreaper() -> None:
    """Let orphaned descendants become this process's children, so that none escapes it."""
    _call("prctl(PR_SET_CHILD_SUBREAPER)", "prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(sig: int = signal.SIGKILL) -> None:
    """Ask the kernel for `sig` when the thread that made this process ends."""
    _call("prctl(PR_SET_PDEATHSIG)", "prctl", PR_SET_PDEATHSIG, int(sig), 0, 0, 0)


def pidfd_open(pid: int) -> int:
    """Return a descriptor for the process `pid`, close-on-exec, which becomes readable when it ends.

    Raises:
        ProcessLookupError: there is none.
        OSError: the kernel is older than Linux 5.3, or a seccomp filter refuses the call.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _call("pidfd_open", "syscall", SYS_PIDFD_OPEN, pid, 0)


def pidfd_send_signal(pidfd: int, sig: int) -> None:
    """Send `sig` to the process of `pidfd`; 0 only tests whether that is possible.

    Raises:
        ProcessLookupError: it has ended and was collected.
        OSError: the kernel is older than Linux 5.1, or a seccomp filter refuses the call.
    """
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, sig)
    else:
        _call("pidfd_send_signal", "syscall", SYS_PIDFD_SEND_SIGNAL, pidfd, int(sig), None, 0)


def exchange(one: str, other: str) -> None:
    """Exchange two names, of files or directories, at one moment (RENAME_EXCHANGE, Linux 3.15 and glibc 2.28).

    Raises:
        FileNotFoundError: one of them does not exist.
        OSError: EINVAL: the filesystem cannot do it; ENOSYS: the kernel or the C library cannot.
    """
    arguments = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    _call(one, "renameat2", *arguments)


def supervise() -> int:
    """Make this process the reaper of all its descendants; return a pidfd of it.

    Raises:
        OSError: the kernel refuses a call that supervising needs; the error names it.
    """
    become_subreaper()
    check_proc()
    try:
        pidfd = pidfd_open(os.getpid())
        pidfd_send_signal(pidfd, 0)
    except OSError as error:
        # os.pidfd_open does not name itself.
        raise OSError(error.errno, error.strerror, error.filename or "pidfd_open") from None
    return pidfd


def check_proc() -> None:
    """Raise `OSError` unless /proc shows this process's own PID namespace: pids of another one are other processes'."""
    try:
        own = os.readlink("/proc/self")
    except OSError as error:
        # ENOENT where it is mounted: of a namespace that does not see this process.
        raise OSError(error.errno, "there is no /proc, or not that of this PID namespace") from None
    if own != str(os.getpid()):
        text = f"/proc is that of another PID namespace: this process is {own} there, and {os.getpid()} here"
        raise OSError(errno.ENXIO, text)


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    file_actions: Iterable[tuple[Any, ...]],
    setsigdef: Iterable[int] = (),
) -> tuple[int, int]:
    """Start a program in a session of its own, no signal blocked; return its pid and a pidfd of it.

    Where Python cannot make the session (posix_spawn(setsid=True), glibc 2.26), the program must: all programs that are
    started by this call `lead_session` first of all.

    Args:
        file_actions, setsigdef: as for `os.posix_spawn`.

    Raises:
        OSError: it cannot be started.
    """
    arguments = (command[0], list(command), environment)
    options: dict[str, Any] = {"file_actions": list(file_actions), "setsigmask": [], "setsigdef": list(setsigdef)}
    try:
        pid = os.posix_spawn(*arguments, **options, setsid=True)
    except NotImplementedError:
        pid = os.posix_spawn(*arguments, **options)
    try:
        return pid, pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        raise


def spawn_unawaited(
    command: Sequence[str], environment: Mapping[str, str], file_actions: Iterable[tuple[Any, ...]]
) -> tuple[int, int]:
    """As `spawn`, but without waiting until the program has begun; if it cannot begin, its exit code is 127.

    posix_spawn(3) returns when the program has begun, and all threads of Python stand still until then: while the
    filesystem of the program hangs, its caller hangs too. A fork takes 2 ms more, and hangs alone.

    Args:
        file_actions: POSIX_SPAWN_OPEN and POSIX_SPAWN_DUP2, as for `os.posix_spawn`.

    Raises:
        OSError: no process can be created.
    """
    pid = _fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            lead_session()
            for action, fd, *more in file_actions:
                if action == os.POSIX_SPAWN_OPEN:
                    os.dup2(os.open(*more), fd)
                else:
                    os.dup2(fd, more[0])
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.execve(command[0], list(command), environment)
        finally:
            os._exit(127)
    try:
        return pid, pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        raise


def _fork() -> int:
    if sys.hexversion < 0x30C00F0:  # 3.12
        return os.fork()
    import warnings

    with warnings.catch_warnings():
        # That other threads hold locks is no matter here: the child does nothing but start a program.
        warnings.simplefilter("ignore")
        return os.fork()


def lead_session() -> None:
    """Make this process the leader of a session of its own, unless it is; see `spawn`."""
    if os.getsid(0) != os.getpid():
        try:
            os.setsid()
        except PermissionError:
            # The leader of a process group, which `spawn` does not start.
            pass


def descendants(root: int, spared: Container[int] = ()) -> list[tuple[int, int]]:
    """Return pid and process group of all descendants of `root` that are not collected yet, parents first.

    Zombies are among them: behind one whose first thread has ended others may be running, and a process that forks and
    exits all the time shows only by the zombies that it leaves. One pass over /proc: /proc/<pid>/task/*/children needs
    a kernel option that not every kernel has.

    Args:
        spared: pids that are left out, with all below them.
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
        below = [child for child in children.get(queue.pop(), []) if child[0] not in spared]
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
    moment, so that a process that only forks and exits is hit, too; one by one it is never found alive.
    Processes of another user (sudo) cannot be killed and do not count.

    Args:
        spared: pids that are left alone, with all below them.
    """
    found = descendants(root, spared)
    # 0 is the group of a process outside of this PID namespace, and to killpg(2) this process's own.
    for group in {group for _, group in found} - {0, os.getpgrp()}:
        _send(os.killpg, group, sig)
    return sum([_send(os.kill, pid, sig) for pid, _ in found])


def end_descendants(limit_s: float) -> tuple[int, ...]:
    """Kill and collect all descendants of this process, a subreaper, within `limit_s` seconds.

    Returns:
        The pids of those that survive: they hang in the kernel.
    """
    end = time.monotonic() + limit_s
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return ()
        if not kill_descendants(os.getpid()) or time.monotonic() >= end:
            return tuple(pid for pid, _ in descendants(os.getpid()))
        time.sleep(0.002)


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


class FileNotifier:
    """Notification when one of some files has grown on this machine, by inotify."""

    def __init__(self) -> None:
        """Open it; `OSError` when the kernel has no instance left for this user."""
        self.fd = _call("inotify_init1", "inotify_init1", IN_CLOEXEC | IN_NONBLOCK)

    def add(self, path: str) -> None:
        """Watch the existing file `path`."""
        _call(path, "inotify_add_watch", self.fd, os.fsencode(path), IN_MODIFY)

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


def identity(pid: int) -> str:
    """Return a unique identity of the process `pid`, also among nodes: an environment travels by srun or ssh.

    The kernel's boot, this PID namespace, the pid, and when it started in clock ticks since boot (random(4), proc(5):
    field 22 of stat), parted by dots.

    Raises:
        OSError: there is no such process.
    """
    return f"{boot_and_namespace()}.{pid}.{start_of(pid)}"


def boot_and_namespace() -> str:
    """Return a unique identity of the kernel's boot and this PID namespace."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"


def start_of(pid: int) -> int:
    """Return when a process started, in clock ticks since boot.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        line = file.read()
    # The command's name is in parentheses and may hold anything.
    return int(line[line.rindex(b")") + 2 :].split()[19])


def soft_limit(name: str) -> int:
    """Return a soft limit of this process by its name in /proc/self/limits, "Max core file size"; -1: unlimited.

    From proc(5), not from `resource`: a module that each agent would hold for a few numbers.
    """
    with open("/proc/self/limits") as file:
        line = next(line for line in file if line.startswith(name))
    value = line.removeprefix(name).split()[0]
    return -1 if value == "unlimited" else int(value)


def schedstat(process: str) -> tuple[float, float] | None:
    """Return the seconds that the first thread of ``/proc/PID`` spent on a CPU and in a run queue.

    None: the process is gone, or the kernel has no CONFIG_SCHED_INFO. From its Documentation/scheduler/sched-stats.rst.
    """
    try:
        with open(f"{process}/schedstat", "rb") as file:
            ran, queued, _ = file.read().split()
        return int(ran) / 1e9, int(queued) / 1e9
    except (OSError, ValueError):
        return None
