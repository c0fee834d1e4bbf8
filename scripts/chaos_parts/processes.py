"""Roles of the processes of the nodes, read from /proc of the host machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

RANK, AGENT, GUARDIAN, STEPD, SRUN, FTSRUN = "rank", "agent", "guardian", "slurmstepd", "srun", "ftsrun"
LEFT_BEHIND = "left behind"
WANTED = ("SLURM_JOB_ID", "FTSLURM_ROUND", "RANK")


@dataclass(frozen=True)
class Process:
    """An observed process.

    Attributes:
        pid: in the host's PID namespace.
        started: in clock ticks since the machine's start: a pid alone may have been reused.
        state: as in proc(5), such as "S".
        name: the kernel's short name of it.
        node: its node.
        job: its Slurm job id, empty without one.
        round: the round whose rank it is, or was started by; 0: none.
        rank: that rank, None: none.
    """

    pid: int
    started: int
    parent: int
    state: str
    name: str
    command: str
    node: str
    job: str = ""
    round: int = 0
    rank: int | None = None

    @property
    def text(self) -> str:
        """Description in one line."""
        of = f" of rank {self.rank}, round {self.round}" if self.rank is not None else ""
        return f"{self.node}: {self.pid} {self.state} {self.command[:160]}{of}"


def roles(processes: Iterable[Process], job: str) -> dict[str, list[Process]]:
    """Return the job's processes by role; each role's list is sorted by node and rank."""
    living = {process.pid: process for process in processes if process.state not in "ZX"}
    found: dict[str, list[Process]] = {part: [] for part in (RANK, AGENT, GUARDIAN, STEPD, SRUN, FTSRUN, LEFT_BEHIND)}
    for process in living.values():
        part = _part(process, living, job)
        if part is not None:
            found[part].append(process)
    for members in found.values():
        members.sort(key=lambda process: (process.node, process.rank or 0, process.pid))
    return found


def _part(process: Process, living: Mapping[int, Process], job: str) -> str | None:
    if process.name == "slurmstepd":
        return STEPD if f"[{job}.0]" in process.command else None
    if process.job != job:
        return None
    parent = living.get(process.parent)
    launched = parent is not None and parent.name == "slurmstepd"
    grandparent = living.get(parent.parent) if parent is not None else None
    if process.rank is not None:
        return RANK if "count.py" in process.command and "boot/worker.py" in process.command else LEFT_BEHIND
    if launched and "ftsrun" in process.command:
        return FTSRUN
    if process.name == "srun":
        return SRUN if parent is not None and "ftsrun" in parent.command else None
    if "ftslurm run " in process.command:
        if launched:
            return GUARDIAN
        if parent is not None and parent.command == process.command and _is_stepd(grandparent):
            return AGENT
    return None


def _is_stepd(process: Process | None) -> bool:
    return process is not None and process.name == "slurmstepd"


def left_of_past_rounds(parts: Mapping[str, list[Process]]) -> list[Process]:
    """Return the processes of a round before the newest one that has ranks on their node."""
    newest: dict[str, int] = {}
    for process in parts[RANK]:
        newest[process.node] = max(newest.get(process.node, 0), process.round)
    candidates = (*parts[RANK], *parts[LEFT_BEHIND])
    return [process for process in candidates if 0 < process.round < newest.get(process.node, 0)]


def scan(nodes: Mapping[int, str]) -> list[Process]:
    """Return all processes of the nodes.

    Args:
        nodes: by the inode number of their PID namespace, their names.
    """
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(int(name), nodes)) is not None:
            found.append(process)
    return found


def _read(pid: int, nodes: Mapping[int, str]) -> Process | None:
    try:
        node = nodes.get(os.stat(f"/proc/{pid}/ns/pid").st_ino)
        if node is None:
            return None
        state, parent, started = stat_of(pid)
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = file.read().strip()
        command = _strings(pid, "cmdline")
        environment = dict(variable.split("=", 1) for variable in _strings(pid, "environ") if "=" in variable)
    except (OSError, ValueError):
        return None
    job, round_, rank = (environment.get(key, "") for key in WANTED)
    number = int(rank) if rank.isdigit() else None
    return Process(
        pid,
        started,
        parent,
        state,
        name,
        " ".join(command),
        node,
        job,
        int(round_) if round_.isdigit() else 0,
        number,
    )


def stat_of(pid: int) -> tuple[str, int, int]:
    """Return a process's state, parent and start (clock ticks).

    Raises:
        OSError: there is none.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(") ")[2].split()
    return fields[0], int(fields[1]), int(fields[19])


def _strings(pid: int, file_name: str) -> list[str]:
    with open(f"/proc/{pid}/{file_name}", "rb") as file:
        return [part.decode(errors="replace") for part in file.read().split(b"\0") if part]
