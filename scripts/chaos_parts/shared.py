"""The shared directory of the lab's nodes: each node has its own mount of one backing directory, with its own faults.

chaos itself accesses the backing directory, which has no faults; only sbatch uses a mount.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import join, quote
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
MODULES = f"{CHECKOUT}:{CHECKOUT / 'scripts'}"
"""For PYTHONPATH."""
HELD_S = 4.0
"""Time to wait for a rename that the file server can hold, in seconds; a rank commits more often."""
LOGIN = "login"
PATTERNS = ("*/checkpoints/*.json", "*/state/0*.json")


class SharedDirectory:
    """Directory of the jobs, at the same path on all nodes.

    Args:
        base: a directory of this machine's own disk.
        nodes: the nodes' names.

    Attributes:
        path: the directory on the nodes.
        beneath: the same directory in the backing directory.
    """

    def __init__(self, base: Path, nodes: Iterable[str]) -> None:
        self._mount, self._backing, self._control = base / "mnt", base / "backing", base / "control"
        self._journal = base / "journal.jsonl"
        self._nodes = tuple(nodes)
        self._own: subprocess.Popen[bytes] | None = None
        for directory in (self._mount, self._backing, self._control, self._backing / "work"):
            directory.mkdir()
        self.path = self._mount / "work"
        self.mend()

    @property
    def beneath(self) -> Path:
        """The backing directory, also while it is renamed."""
        away = self._away
        return away if away.exists() else self._backing / "work"

    @property
    def _away(self) -> Path:
        return self._backing / "work.away"

    def boot_command(self, log: Path) -> str:
        """Return the bash command by which a booting node mounts the directory."""
        mounting = join(self._server("node")).replace(str(self._control / "node"), f'{self._control}/"$SLURMLAB_NODE"')
        return (
            f"exec 3< <(exec env PYTHONPATH={quote(MODULES)} {mounting} 2>>{quote(str(log))}); "
            "read -r -u 3 answer; [[ $answer == mounted ]]"
        )

    def mount(self, log: Path) -> None:
        """Mount it on this machine too, which is the cluster's login node.

        Raises:
            OSError: it cannot be mounted.
        """
        with log.open("ab") as errors:
            environment = os.environ | {"PYTHONPATH": MODULES}
            server = subprocess.Popen(self._server(LOGIN), env=environment, stdout=subprocess.PIPE, stderr=errors)
        self._own = server
        assert server.stdout is not None
        if server.stdout.readline() != b"mounted\n":
            raise OSError(f"the shared directory cannot be mounted: {log.read_text().strip()[-300:]}")

    def unmount(self) -> None:
        """Unmount it on this machine."""
        if self._own is not None:
            self._own.terminate()
            self._own.wait()

    def _server(self, name: str) -> list[str]:
        paths = (self._backing, self._mount, self._control / name)
        command = [sys.executable, "-m", "chaos_parts.faulty_mount", *map(str, paths)]
        return [*command, "--journal", str(self._journal), *PATTERNS]

    def let(self, fault: str, node: str | None = None) -> None:
        """Inject a fault, see `chaos_parts.faulty_mount`; on one node, or on all."""
        for name in self._nodes if node is None else (node,):
            (self._control / name).write_text(fault)

    def mend(self) -> None:
        """Remove the faults on all nodes."""
        self.let("")

    def move_away(self) -> None:
        """Rename it."""
        (self._backing / "work").rename(self._away)

    def move_back(self) -> None:
        """Undo `move_away`, if needed."""
        if self._away.exists():
            self._away.rename(self._backing / "work")

    def hold_a_commit(self, node: str) -> bool:
        """Hold the node's next commit until `mend`; return whether there is one."""
        before = len(list(self.journal()))
        self.let("hold-renames */checkpoints/*.json", node)
        deadline = time.monotonic() + HELD_S
        while time.monotonic() < deadline:
            if any(line["what"] == "held" for line in list(self.journal())[before:]):
                return True
            time.sleep(0.05)
        return False

    def journal(self) -> Iterator[dict[str, Any]]:
        """Yield the journal's entries, in order."""
        if not self._journal.exists():
            return
        with self._journal.open() as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)
