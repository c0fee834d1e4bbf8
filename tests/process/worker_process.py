"""Starts ftslurm.worker as an agent does, for the tests of the worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = ["-m", "ftslurm.worker"]
BY_FILE = [str(ROOT / "ftslurm" / "boot" / "worker.py")]
OURS = {
    "FTSLURM_RUN_ID": "job-7",
    "FTSLURM_ATTEMPT": "7.0",
    "FTSLURM_ROUND": "3",
    "FTSLURM_NODE": "n1",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
}


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of the tests' processes: this one's, nothing of a Slurm job or an agent in it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FTSLURM_", "TORCH", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(ROOT), **extra}


def plain(*arguments: str, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run plain `python -u`."""
    command = [sys.executable, "-u", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=60, check=False
    )


class WorkerProcess:
    """The record directory and the run directory of one rank, and its process."""

    def __init__(self, place: Path) -> None:
        self.records = place / "records"
        self.run_dir = place / "run"
        self.records.mkdir(mode=0o700, parents=True)
        self.env = environment(
            **OURS,
            FTSLURM_RUN_DIR=str(self.run_dir),
            FTSLURM_RECORD_DIR=str(self.records),
            FTSLURM_AUTO_PROGRESS="on",
            TORCHELASTIC_ERROR_FILE=str(self.records / "error.json"),
        )

    def command(self, *arguments: str, start: list[str] = BY_FILE, parent: int | None = None) -> list[str]:
        """Return the command line of the worker; `arguments` begin with --script, --module or --exec."""
        return [sys.executable, "-u", *start, "--parent", str(parent or os.getpid()), *arguments]

    def run(
        self, *arguments: str, cwd: Path, start: list[str] = BY_FILE, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the worker to its end."""
        return subprocess.run(
            self.command(*arguments, start=start),
            cwd=cwd,
            env={**self.env, **extra},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,
        )

    def record(self) -> dict[str, Any] | None:
        """Return what the worker wrote as error.json."""
        path = self.records / "error.json"
        return json.loads(path.read_text()) if path.exists() else None
