"""Starts launchers, waits for them without polling, reads what they cost, leaves nothing of them behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_OUTPUT_LINES = 12


class RunFailedError(Exception):
    """A launcher did not do what was asked; the text says what it did instead."""


@dataclass(frozen=True)
class Event:
    """One line of a worker."""

    time_ns: int
    what: str
    rank: int
    pid: int


@dataclass(frozen=True)
class Memory:
    """Resident memory of some processes in bytes: as each one sees it, and with shared pages divided."""

    rss: int
    pss: int


class Launch:
    """Some commands started together in one directory, as one job."""

    def __init__(self, commands: list[list[str]], directory: Path, environment: dict[str, str]) -> None:
        self.output = directory / "output.txt"
        self.started_ns = 0
        self.command = commands[0]
        self.processes: list[subprocess.Popen[bytes]] = []
        with self.output.open("ab") as output:
            for command in commands:
                self.started_ns = self.started_ns or time.monotonic_ns()
                self.processes.append(
                    subprocess.Popen(
                        command,
                        cwd=directory,
                        env=environment,
                        start_new_session=True,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                    )
                )

    def wait(self, limit_s: float) -> int:
        """Return the monotonic time in ns at which the last one ended; all must end well in ``limit_s``."""
        deadline = time.monotonic() + limit_s
        ended_ns = 0
        for process in self.processes:
            descriptor = os.pidfd_open(process.pid)
            try:
                ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(descriptor)
            ended_ns = time.monotonic_ns()
            if not ready:
                raise RunFailedError(f"it had not ended after {limit_s:.0f} s; {self.last_output()}")
        codes = [process.wait() for process in self.processes]
        if any(codes):
            raise RunFailedError(f"its exit code was {' and '.join(map(str, codes))}; {self.last_output()}")
        return ended_ns

    def running(self) -> bool:
        """Return whether all of the commands still run."""
        return all(process.poll() is None for process in self.processes)

    def last_output(self) -> str:
        """Return the end of what the commands printed."""
        lines = self.output.read_text(errors="replace").strip().splitlines()[-_OUTPUT_LINES:]
        return "its last output:\n    " + "\n    ".join(lines or ["(none)"])


def read_events(path: Path) -> list[Event]:
    """Return the workers' lines in the order of their times; none if no worker has started yet."""
    if not path.exists():
        return []
    parts = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return sorted(
        (Event(int(time_ns), what, int(rank), int(pid)) for time_ns, what, rank, pid in parts),
        key=lambda event: event.time_ns,
    )


def processes_below(roots: Set[int], without: Set[int] = frozenset()) -> set[int]:
    """Return ``roots`` and what descends from them, leaving out ``without`` and what descends from those."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                status = Path(entry.path, "stat").read_text(errors="replace")
                parent = int(status.rpartition(")")[2].split()[1])  # the name before may hold anything
                children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in without and pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


def memory_of(pids: Set[int]) -> Memory:
    """Return the memory of the processes ``pids`` together."""
    sums = {"Rss": 0, "Pss": 0}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, _, value = line.partition(":")
                if name in sums:
                    sums[name] += int(value.split()[0]) * 1024
    return Memory(sums["Rss"], sums["Pss"])


def free_port() -> int:
    """Return a port of localhost that no process listens on right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def adopt_orphans() -> None:
    """Become the parent of whatever a launcher leaves behind, so that it can be found and ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def end_descendants() -> None:
    """Kill and reap every process below this one."""
    own = os.getpid()
    while below := processes_below({own}) - {own}:
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0)[0]:
                pass


@contextlib.contextmanager
def job_directory() -> Iterator[Path]:
    """Give a new directory; at the block's end it is gone, and with it every process started in the block."""
    directory = Path(tempfile.mkdtemp(prefix="ftslurm-bench-"))
    try:
        yield directory
    finally:
        end_descendants()
        shutil.rmtree(directory, ignore_errors=True)
