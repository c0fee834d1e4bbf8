"""Processes and directories of earlier runs of this user whose guardian and agent were killed together on this node.

Workers die with their agent, but processes that they started live on, and may hold a GPU; directories stay. Inside a
Slurm step that tracks processes by cgroup Slurm kills them. Elsewhere the next start on the node does: each process
below a guardian has the guardian's identity in its environment.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator

from ftslurm.kernel import boot_and_namespace, pidfd_open, pidfd_send_signal, start_of
from ftslurm.local_directory import remove_tree

SETTLED_S = 5.0
"""A directory that is younger, in seconds, may not be locked yet by the guardian that has just made it."""
ROUNDING_S = 0.1
"""Files and processes have their times from different clocks of the kernel."""
KEPT_S = 7 * 86_400.0
"""Seconds for which an agent's records stay that did not get into the run directory (`ftslurm.agent.journal`)."""
SHOWN = 8
_PROC = "/proc"


def sweep_leftovers(
    own_dir: str, variable: str, remove_locks: Callable[[str], None], report: Callable[[str], None]
) -> None:
    """End processes and remove directories that dead guardians of this user have left.

    Args:
        own_dir: the node-local directory of this start; the directories beside it, in /tmp and in /dev/shm are swept.
        variable: the environment variable with the guardian's identity.
        remove_locks: called with each directory before its removal.
        report: called with a line about ended processes.
    """
    ended = _end_orphans(f"{variable}=".encode())
    if ended:
        more = f" and {len(ended) - SHOWN} more" if len(ended) > SHOWN else ""
        pids = ", ".join(map(str, ended[:SHOWN]))
        count = f"{len(ended)} process{'es' if len(ended) > 1 else ''}"
        report(f"ended {count} that a killed ftslurm run of yours had left on this node: {pids}{more}")
    for path in _dead_directories({os.path.dirname(own_dir), "/tmp", "/dev/shm"}):
        remove_locks(path)
        remove_tree(path)
    remove_kept({os.path.dirname(own_dir), "/tmp", "/dev/shm"}, time.time())


def remove_kept(bases: Iterable[str], now_s: float) -> None:
    """Remove directories of records that agents of this user kept on this node longer than `KEPT_S` ago.

    Args:
        bases: directories in which they lie. In those that users share, only the owner can replace an entry (sticky).
        now_s: seconds since the epoch.
    """
    pattern = re.compile(rf"ftslurm-{os.getuid()}-kept-[0-9a-f]{{8}}")
    for base in bases:
        try:
            names = [name for name in os.listdir(base) if pattern.fullmatch(name)]
        except OSError:
            continue
        for path in (os.path.join(base, name) for name in names):
            try:
                facts = os.lstat(path)
            except OSError:
                continue
            own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
            if own and now_s - facts.st_mtime > KEPT_S:
                remove_tree(path)


def _end_orphans(prefix: bytes) -> list[int]:
    """Kill the processes of this user whose guardian is dead; return their pids."""
    try:
        here, names = boot_and_namespace(), os.listdir(_PROC)
    except OSError:
        return []
    return [pid for pid in map(int, filter(str.isdigit, names)) if _end_if_orphan(pid, prefix, here)]


def _end_if_orphan(pid: int, prefix: bytes, here: str) -> bool:
    try:
        if os.stat(f"{_PROC}/{pid}").st_uid != os.geteuid():
            return False
        # Opened before its environment is read: the number may be another process's after that.
        pidfd = pidfd_open(pid)
    except OSError:
        return False
    try:
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
        found = next((one[len(prefix) :] for one in environment if one.startswith(prefix)), b"")
        if not _is_dead(found.decode("ascii", "replace"), here):
            return False
        pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def _is_dead(supervisor: str, here: str) -> bool:
    """Return whether the guardian of that identity was one of this node, boot and PID namespace, and has ended."""
    place, _, rest = supervisor.rpartition(".")
    place, _, pid = place.rpartition(".")
    if place != here or not pid.isdigit() or not rest.isdigit():
        return False
    try:
        return start_of(int(pid)) != int(rest)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError):
        return False


def _dead_directories(bases: set[str]) -> Iterator[str]:
    """Yield the node-local directories of this user's dead agents.

    Those of living ones are locked or, where an agent had to create its directory again, named by their guardian.
    """
    for base in bases:
        try:
            names = os.listdir(base)
        except OSError:
            continue
        for name in names:
            # As `ftslurm.agent.guardian` names them: ftslurm-<uid>-<pid>-<random>.
            parts = name.split("-")
            path = os.path.join(base, name)
            ours = len(parts) == 4 and parts[:2] == ["ftslurm", str(os.getuid())] and parts[2].isdigit()
            if ours and _is_abandoned(path, int(parts[2])):
                yield path


def _is_abandoned(path: str, guardian: int) -> bool:
    try:
        facts = os.lstat(path)
        young = time.time() - facts.st_mtime < SETTLED_S
        if facts.st_uid != os.geteuid() or not stat.S_ISDIR(facts.st_mode) or young:
            return False
        if _has_run_since(guardian, facts.st_mtime):
            return False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A guardian in another PID namespace has no process here.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _has_run_since(pid: int, then: float) -> bool:
    """Return whether a process of that pid runs and ran at `then` (seconds since the epoch): the pid was not reused."""
    try:
        since_boot_s = start_of(pid) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s
    return time.time() - age_s <= then + ROUNDING_S
