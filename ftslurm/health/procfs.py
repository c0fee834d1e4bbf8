"""The table of processes, and other structured files of /proc.

Unreadable values are None, never zero. Source: proc(5).
"""

from __future__ import annotations

import os
import time

from ftslurm.dataclasses import dataclass
from ftslurm.health.sysfs import names, text


def whole(word: str | None) -> int | None:
    """Return a text as a whole number; None for anything else."""
    word = (word or "").strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) < 20 else None


def fields(path: str) -> dict[str, int]:
    """Return the lines "name number …" or "name: number …" of a file; empty if it cannot be read."""
    found: dict[str, int] = {}
    for line in (text(path) or "").splitlines():
        words = line.split()
        if len(words) >= 2 and (value := whole(words[1])) is not None:
            found[words[0].rstrip(":")] = value
    return found


def cgroups(root: str, controller: str) -> list[tuple[str, int]]:
    """Return the directories of this process's cgroup and of all above it, the nearest first, each with its version.

    In a container the path may be the host's: some of these directories may not exist.
    """
    found: list[tuple[str, int]] = []
    for line in (text(f"{root}/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            mount, version = f"{root}/sys/fs/cgroup/{controller}", 1
        elif number == "0" and not controllers:
            mount, version = f"{root}/sys/fs/cgroup", 2
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        found += [("/".join((mount, *parts[:length])), version) for length in range(len(parts), -1, -1)]
    return found


def has_gpus(root: str) -> bool:
    """Return whether a GPU's device is here: NVIDIA's or AMD's."""
    devices = names(f"{root}/dev")
    return "kfd" in devices or any(name.startswith("nvidia") and name[6:].isdigit() for name in devices)


@dataclass(frozen=True)
class Process:
    """One process, from its stat file.

    Attributes:
        uid: its owner; also root if it is not accessible.
        state: "R", "S", "D" (uninterruptible sleep), "Z" (ended, not collected), ...
        threads: their number; a zombie with more than one has not ended yet.
        started: clock ticks from the machine's start to its own; with the pid, its identity.
    """

    pid: int
    uid: int
    name: str
    state: str
    parent: int
    threads: int
    started: int


RECENT_S = 1.0
_recent: tuple[str, float, dict[int, Process]] = ("", float("-inf"), {})


def recent_processes(root: str) -> dict[int, Process]:
    """Return `processes`, cached for a second: on a large node it takes long."""
    global _recent
    now = time.monotonic()
    if _recent[0] != root or now - _recent[1] > RECENT_S:
        _recent = (root, now, processes(root))
    return _recent[2]


def processes(root: str) -> dict[int, Process]:
    """Return all visible processes, by pid, without kernel threads."""
    found: dict[int, Process] = {}
    for name in names(f"{root}/proc"):
        if name.isdigit() and (one := process(root, int(name))) is not None and 2 not in (one.pid, one.parent):
            found[one.pid] = one
    return found


def process(root: str, pid: int, thread: int | None = None) -> Process | None:
    """Return a process, or one thread of it; None if it has ended."""
    directory = f"{root}/proc/{pid}" + (f"/task/{thread}" if thread is not None else "")
    line = text(f"{directory}/stat")
    try:
        uid = os.stat(directory).st_uid
        # The command's name is in parentheses and may hold anything, spaces and parentheses too.
        assert line is not None
        end = line.rindex(")")
        rest = line[end + 2 :].split()
        return Process(pid, uid, line[line.index("(") + 1 : end], rest[0], int(rest[1]), int(rest[17]), int(rest[19]))
    except (OSError, ValueError, IndexError, AssertionError):
        return None


def below(table: dict[int, Process], top: int) -> set[int]:
    """Return `top` and the pids of all its descendants."""
    children: dict[int, list[int]] = {}
    for one in table.values():
        children.setdefault(one.parent, []).append(one.pid)
    found, queue = {top}, [top]
    while queue:
        new = [pid for pid in children.get(queue.pop(), ()) if pid not in found]
        found.update(new)
        queue += new
    return found


def above(table: dict[int, Process], pid: int) -> list[int]:
    """Return the pids of a process's parent, its parent, and so on."""
    found: list[int] = []
    while (one := table.get(pid)) is not None and one.parent not in (0, *found):
        pid = one.parent
        found.append(pid)
    return found
