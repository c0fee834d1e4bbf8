"""Which agents of an attempt are still there, as one observer sees them in the run directory."""

from __future__ import annotations

from collections.abc import Callable

from ftslurm.rendezvous.liveness import Attention, Liveness
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.observer import NODE_FILE_LIMIT
from ftslurm.rendezvous.state import LEFT
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import BadFile
from ftslurm.sharedfs.rundir import RunDirectory

HERE, GONE, ABSENT = "here", "gone", "absent"
"""An agent has a record of this attempt; that record says that it has left, or was found dead; there is no record."""


class Departures:
    """Observes node records.

    Args:
        fs, run: where they are.
        attempt: whose agents are meant; the records of earlier ones say nothing.
        prompt_s: of the time between two looks, at most so many seconds count as silence, see `Attention`.
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
        self._begin()

    def _begin(self) -> None:
        self._attention = Attention(self._now, self._prompt_s)
        self._liveness = Liveness()

    def nodes(self) -> list[str]:
        """Return the nodes that have a record, of any attempt.

        Raises:
            OSError: the directory cannot be read; all silence is measured anew.
        """
        try:
            names = self._fs.listdir(self._run.nodes)
        except OSError:
            self._begin()
            raise
        return [name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")]

    def look(self, node: str) -> tuple[str, float]:
        """Read one node's record; return HERE, GONE or ABSENT, and for how many seconds that has not changed.

        Raises:
            OSError: it cannot be read; all silence is measured anew.
        """
        path = self._run.node_file(node)
        found, sign = ABSENT, ("", 0)
        try:
            record = NodeRecord.decode(self._fs.read(path, NODE_FILE_LIMIT), path)
            if record.attempt == self._attempt:
                found, sign = GONE if record.status == LEFT else HERE, (record.incarnation, record.counter)
        except FileNotFoundError:
            pass
        except BadFile:
            # Written by an agent, and no agent mends it but by the next record.
            found, sign = HERE, ("unreadable", 0)
        except OSError:
            self._begin()
            raise
        return found, self._liveness.update(node, *sign, self._attention.note())
