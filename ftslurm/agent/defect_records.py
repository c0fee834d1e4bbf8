"""Records of defects of ftslurm itself in the run directory: defects/<node>.<incarnation>.<n>.json."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from ftslurm import __version__
from ftslurm.agent.containment import Defect
from ftslurm.records.codec import write_record
from ftslurm.records.defect import DefectRecord
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass

KEPT = 50
"""Number of defects of one agent that are recorded."""


class DefectRecords:
    """Writes one agent's records, each on a thread of its own: the courier may be defective.

    Args:
        fs, run: where they go.
        node, incarnation, attempt: of the agent.
        now_ns: wall clock, nanoseconds since the epoch.
        complain: receives the traceback of a defect whose record cannot be written.
    """

    def __init__(
        self,
        fs: FileSystem,
        run: RunDirectory,
        node: str,
        incarnation: str,
        attempt: str,
        now_ns: Callable[[], int],
        complain: Callable[[str], None],
    ) -> None:
        self._fs = fs
        self._run = run
        self._node = node
        self._incarnation = incarnation
        self._attempt = attempt
        self._now_ns = now_ns
        self._complain = complain
        self._number = 0
        self._writing: dict[threading.Thread, Defect] = {}

    def write(self, defect: Defect, round_: int) -> str:
        """Start writing the record of a defect in that round, 0 for none; return its path."""
        if defect.refusal is not None:
            return ""
        self._number += 1
        path = self._run.defect_file(f"{self._node}.{self._incarnation[:8]}.{self._number}")
        if self._number <= KEPT:
            content = write_record(self._record(defect, round_))
            thread = threading.Thread(target=self._write, args=(path, content, defect), name="defect", daemon=True)
            self._writing[thread] = defect
            thread.start()
        return path

    def finish(self, timeout_s: float) -> None:
        """Wait for pending records, `timeout_s` seconds in all; complain of those not written by then."""
        end = time.monotonic() + timeout_s
        for thread, defect in self._writing.items():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self._complain(f"{defect.text}; it cannot be recorded, the run directory does not respond")
                self._complain(defect.traceback)
        self._writing.clear()

    def _record(self, defect: Defect, round_: int) -> DefectRecord:
        part = defect.part
        return DefectRecord(
            node=self._node,
            incarnation=self._incarnation,
            attempt=self._attempt,
            round=round_,
            time_ns=self._now_ns(),
            part=None if part is None else part.name,
            meaning=None if part is None else part.meaning,
            error=defect.error,
            place=defect.place,
            traceback=defect.traceback,
            ftslurm=__version__,
            python=".".join(map(str, sys.version_info[:3])),
            system=" ".join((os.uname().sysname, os.uname().release, os.uname().machine)),
        )

    def _write(self, path: str, content: bytes, defect: Defect) -> None:
        try:
            self._fs.makedirs(os.path.dirname(path))
            publish(self._fs, path, content, durable=True)
        except Exception as error:
            self._complain(f"{defect.text}; it cannot be recorded: {error}")
            self._complain(defect.traceback)
