"""Read the records of a rehearsed run, also while it runs: bounded, never stopped by a bad file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ftslurm.dataclasses import dataclass
from ftslurm.monitor import heartbeat_page, stop_page
from ftslurm.records.codec import BadFile, read_record
from ftslurm.records.node import NodeRecord
from ftslurm.records.round import RoundRecord, WorkerRecord
from ftslurm.records.state import RUNNING, State
from ftslurm.records.stop import StopVote
from ftslurm.sharedfs.bounded_read import Malformed, list_directory, read_file
from ftslurm.status import snapshot

RECORD_LIMIT, ENVIRONMENT_LIMIT = 1 << 20, 1 << 20


@dataclass(frozen=True)
class RunningRank:
    """A rank of the current round.

    Attributes:
        pid: of its main process.
        page: directory of its heartbeat page; None: unknown.
    """

    rank: int
    node: str
    pid: int
    page: str | None

    def steps(self) -> tuple[int, int] | None:
        """Return the first and the last step that it has reported or asked for; None: none."""
        if self.page is None:
            return None
        found = heartbeat_page.read(self.page)
        if found is not None and found.progress is not None:
            return found.progress.first_step, found.progress.last_step
        stop = stop_page.read(self.page)
        if stop is not None and stop.first_step is not None and stop.step is not None:
            return stop.first_step, stop.step
        return None


class RunRecords:
    """The records of the run in `directory`, which may not exist yet."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._owners = frozenset((os.geteuid(), 0))

    def newest(self) -> tuple[State | None, tuple[NodeRecord, ...]]:
        """Return the newest state, and the node records."""
        try:
            found = snapshot.read(Path(self.directory), wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns)
        except OSError:
            return None, ()
        return found.state, tuple(node.record for node in found.nodes)

    def rounds(self) -> tuple[RoundRecord, ...]:
        """Return the nodes' records of all rounds."""
        root = Path(self.directory) / "rounds"
        found = (self._round(root / name / "nodes") for name in self._listing(root)[1] if name.isdecimal())
        return tuple(record for records in found for record in records)

    def ranks(self, state: State) -> list[RunningRank] | None:
        """Return the ranks of the running round, in their order; None: not all of them have been started."""
        if state.phase != RUNNING:
            return None
        records = self._round(Path(self.directory) / "rounds" / f"{state.round:06d}" / "nodes")
        found = [
            _running(worker, record.node)
            for record in records
            for worker in record.workers
            if worker.pid is not None and worker.ended_ns is None
        ]
        ranks = sorted((rank for rank in found if rank is not None), key=lambda one: one.rank)
        return ranks if len(ranks) == state.world_size else None

    def _round(self, folder: Path) -> list[RoundRecord]:
        names = (name for name in self._listing(folder)[0] if name.endswith(".json"))
        return [record for name in names if (record := self._record(folder / name)) is not None]

    def _record(self, path: Path) -> RoundRecord | None:
        try:
            data = read_file(path, RECORD_LIMIT, self._owners)
            return None if data is None else read_record(RoundRecord, data, str(path), lenient=True)
        except (Malformed, BadFile):
            return None

    def _listing(self, path: Path) -> tuple[list[str], list[str]]:
        try:
            return list_directory(path)
        except Malformed:
            return [], []


def votes_of(state: State | None, nodes: tuple[NodeRecord, ...]) -> tuple[StopVote, ...]:
    """Return the nodes' last answers on the stop of that state's round."""
    if state is None:
        return ()
    return tuple(node.stop_vote for node in nodes if node.stop_vote is not None and node.stop_vote.round == state.round)


def _running(worker: WorkerRecord, node: str) -> RunningRank | None:
    if worker.pid is None:
        return None
    return RunningRank(worker.rank, node, worker.pid, _page_directory(worker.pid))


def _page_directory(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read(ENVIRONMENT_LIMIT).split(b"\0")
    except OSError:
        return None
    mark = b"FTSLURM_RECORD_DIR="
    return next((os.fsdecode(one[len(mark) :]) for one in variables if one.startswith(mark)), None)
