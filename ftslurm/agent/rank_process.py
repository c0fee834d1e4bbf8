"""The rank's own process below the command of `--worker-prefix`, which may become it or start it as a child."""

from __future__ import annotations

import os

from ftslurm import container
from ftslurm.dataclasses import dataclass
from ftslurm.kernel import descendants, pidfd_open
from ftslurm.monitor.process_state import status


@dataclass(frozen=True)
class RankProcess:
    """The process that runs the rank, by the agent's process ids; `pidfd` is the owner's to close."""

    pid: int
    pidfd: int


def find(started: int, record_dir: str) -> RankProcess | None:
    """Return the rank's process, None as long as it has not begun; it may be the started process itself.

    Args:
        started: process id of the command that the agent has started.
        record_dir: of the rank, where it has announced its process id, see `ftslurm.container`.
    """
    inner = container.announced(record_dir)
    if inner is None:
        return None
    for pid in (started, *(pid for pid, _ in descendants(started))):
        try:
            # Opened before the check, so that it means the checked process.
            pidfd = pidfd_open(pid)
        except OSError:
            continue
        if _innermost_id(pid) == inner:
            return RankProcess(pid, pidfd)
        os.close(pidfd)
    return None


def _innermost_id(pid: int) -> int | None:
    """Return a process's id in its own PID namespace (NSpid in proc(5); Linux 4.1)."""
    numbers = (status(f"/proc/{pid}") or {}).get("NSpid", str(pid)).split()
    return int(numbers[-1]) if numbers and numbers[-1].isdigit() else None
