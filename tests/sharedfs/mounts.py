"""The mounts of one shared filesystem, and how a command is run where each of them is."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Client:
    """One mount: its path, and what runs a command where that path is (nothing: right here)."""

    path: str
    via: tuple[str, ...] = ()

    def start(self, *command: str, output: Path) -> subprocess.Popen[bytes]:
        """Start a command there whose output goes into a file here, which is not read meanwhile."""
        with output.open("wb") as file:
            return subprocess.Popen([*self.via, *command], stdout=file)

    def run(self, *command: str, output: Path) -> list[Any]:
        """Run a command there and return the lines of JSON that it printed."""
        returncode = self.start(*command, output=output).wait()
        assert returncode == 0, f"{command} ended with {returncode} on {self}"
        return json_lines(output)


def json_lines(output: Path) -> list[Any]:
    """Return the lines of JSON in a file, without a last one that is cut short."""
    with output.open("rb") as file:
        return [json.loads(line) for line in file if line.endswith(b"\n")]


def parse(kind: str, local: Path) -> list[Client]:
    """Return the clients named by `local` or `[COMMAND:]PATH,[COMMAND:]PATH,…`."""
    if kind == "local":
        return [Client(str(local)), Client(str(local))]
    # A path has no colon here: what comes before the last one is the command.
    parts = [part.rpartition(":") for part in kind.split(",")]
    return [Client(path, tuple(shlex.split(via))) for via, _, path in parts]
