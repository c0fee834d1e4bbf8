"""Runs a script as all ranks of a torch.distributed world, forked from one process that has imported torch.

``python peer_ranks.py SCRIPT SIZE DIRECTORY``: prints the ranks' process ids as JSON, then a line of JSON for each
that ends, ``[rank, status, seconds]`` with the status as subprocess has it. Output goes to DIRECTORY/RANK.log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> str | None:
    """Start the ranks and wait for them; in a rank, return the script's path."""
    import ctypes

    import torch.distributed  # noqa: F401

    script, size, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    began, pids = time.monotonic(), {}
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _become(rank, size, directory)
            return script
        pids[pid] = rank
    print(json.dumps({rank: pid for pid, rank in pids.items()}), flush=True)
    while pids:
        pid, status = os.wait()
        rank = pids.pop(pid)
        print(json.dumps([rank, os.waitstatus_to_exitcode(status), time.monotonic() - began]), flush=True)
    return None


def _become(rank: int, size: int, directory: Path) -> None:
    records = directory / f"records-{rank}"
    records.mkdir()
    log = os.open(directory / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
        FTSLURM_RECORD_DIR=str(records),
    )


if __name__ == "__main__":
    found = main()
    if found is not None:
        exec(compile(Path(found).read_text(), found, "exec"), {"__name__": "__main__", "__file__": found})
