"""Presence of the agents of an attempt, observed in the run directory."""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.observed_time import ObservedTime
from ftslurm.records.codec import BadFile
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import LEFT
from ftslurm.rendezvous.liveness import Liveness
from ftslurm.rendezvous.observer import NODE_FILE_LIMIT
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.rundir import RunDirectory

PRESENT, DEPARTED, ABSENT = "present", "departed", "absent"
"""An agent has a record of this attempt; the record's status is LEFT (set by the agent or its guardian); no record."""


class Departures:
    """Observes node records.

    Args:
        fs, run: where they are.
        attempt: the agents' attempt; records of earlier ones are ignored.
        prompt_s: longest time between two reads that counts as silence, in seconds, see `ObservedTime`.
        now: monotonic clock, seconds.
    """

    def __init__(
        self, fs: FileSystem, run: RunDirectory, attempt: str, prompt_s: float, now: Callable[[], float]
    ) -> None:
        self._fs = fs
        self._run = run
        self._attempt = attempt
        self._prompt_s = prompt_s
        self._now = now
        self._reset()

    def _reset(self) -> None:
        self._attention = ObservedTime(self._now, self._prompt_s)
        self._liveness = Liveness()

    def nodes(self) -> list[str]:
        """Return the nodes that have a record, of any attempt.

        Raises:
            OSError: the directory cannot be read; all silence restarts at 0.
        """
        try:
            names = self._fs.listdir(self._run.nodes)
        except OSError:
            self._reset()
            raise
        return [name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")]

    def observe(self, node: str) -> tuple[str, float]:
        """Read one node's record; return PRESENT, DEPARTED or ABSENT, and the seconds since the record last changed.

        Raises:
            OSError: it cannot be read; all silence restarts at 0.
        """
        path = self._run.node_file(node)
        found, sign = ABSENT, ("", 0)
        try:
            record = NodeRecord.decode(self._fs.read(path, NODE_FILE_LIMIT), path)
            if record.attempt == self._attempt:
                found, sign = DEPARTED if record.status == LEFT else PRESENT, (record.incarnation, record.counter)
        except FileNotFoundError:
            pass
        except BadFile:
            # Written by an agent, and repaired only by its next record.
            found, sign = PRESENT, ("unreadable", 0)
        except OSError:
            self._reset()
            raise
        return found, self._liveness.update(node, *sign, self._attention.note())
