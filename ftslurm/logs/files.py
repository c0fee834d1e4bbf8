"""Which files hold a rank's output: by round and rank, in the run directory or in the one of `--log-dir`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.records.attempt import Attempt, StepEnd
from ftslurm.records.codec import BadFile, read_record
from ftslurm.records.round import RoundRecord
from ftslurm.records.state import CLOSED, Participant, State
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.next_attempt import next_attempt
from ftslurm.sharedfs.rundir import RunDirectory, rank_directory
from ftslurm.text import safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

STREAMS = ("stdout.log", "stderr.log")
_RECORD_LIMIT = 16 << 20
RECORDS_READ = 16
"""Records read at most to find the node of a rank in an earlier round."""


@dataclass(frozen=True)
class RankOutput:
    """The output of one rank in one round.

    Attributes:
        node: its node if known.
        directory: where its files are, or would be.
        files: those that exist, stdout first; at a round's end the agents remove empty ones.
    """

    round: int
    rank: int
    node: str | None
    directory: str
    files: tuple[str, ...]


class RunOutput:
    """The ranks' output of one run, as found on the shared filesystem at each call.

    Args:
        root: the run directory.
        streams: names of the files that are wanted.
    """

    def __init__(self, root: str, streams: Sequence[str] = STREAMS) -> None:
        self._run = RunDirectory(root)
        self._streams = tuple(streams)
        self._fs = PosixFileSystem()
        self._log_roots: dict[str, str | None] = {}

    def rounds(self) -> list[int]:
        """Return the numbers of all rounds, the newest first."""
        names = self._names(os.path.join(self._run.root, "rounds"))
        return sorted((int(name) for name in names if _is_number(name)), reverse=True)

    def of_rank(self, rank: int, round_: int | None = None) -> RankOutput | None:
        """Return the output of a rank in that round, or in the newest round that has it; None: there is none."""
        state = self.state()
        for number in self.rounds() if round_ is None else (round_,):
            found = self._in_round(rank, number, state)
            if found is not None:
                return found
        return None

    def of_node(self, node: str, round_: int | None = None) -> list[RankOutput]:
        """Return the output of all ranks of a node in that round, or in the newest round that it took part in."""
        state = self.state()
        for number in self.rounds() if round_ is None else (round_,):
            found = [self._in_round(rank, number, state) for rank in self._ranks_of(node, number, state)]
            if found:
                return [one for one in found if one is not None]
        return []

    def nodes(self, round_: int) -> list[str]:
        """Return the nodes that have a record of that round."""
        names = self._names(os.path.dirname(self._run.round_node_file(round_, "n")))
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and name[0] != ".")

    def state(self) -> State | None:
        """Return the newest state; None if there is none that can be read."""
        try:
            newest = FencedCell(self._fs, self._run.state).get()
            return State.decode(newest.value, self._run.state) if newest is not None else None
        except (OSError, BadFile):
            return None

    def redirects(self) -> str | None:
        """Return the value of `--redirects` of the newest attempt; None if it is not known."""
        state = self.state()
        record = self._read(Attempt, self._run.attempt_file(state.attempt)) if state is not None else None
        value = record.option("redirects") if record is not None else None
        if isinstance(value, dict):
            return ",".join(f"{safe(str(rank))}:{streams}" for rank, streams in value.items() if type(streams) is int)
        return str(value) if type(value) is int else None

    def end(self) -> str | None:
        """Return how the run ended: its outcome; None while it goes on, or if that cannot be read now."""
        if not os.path.isdir(self._run.root):
            return "its directory is gone"
        state = self.state()
        if state is None:
            return None
        if state.phase == CLOSED and state.closed is not None:
            ended_ns, how = state.closed.time_ns, state.closed.outcome
        elif (step := self._read(StepEnd, self._run.step_file(state.attempt))) is not None:
            ended_ns, how = step.ended_ns, "its agents ended without recording the run's end"
        else:
            return None
        goes_on = next_attempt(self._run.root, state.attempts, ended_ns, time.time_ns()) is not None
        return None if goes_on else how

    def _in_round(self, rank: int, number: int, state: State | None) -> RankOutput | None:
        node: str | None = None
        if state is not None and state.round == number:
            node = next((one.node for one in state.participants if rank in _ranks(one)), None)
        if node is None:
            node = self._node_of(rank, number, state)
        found: list[RankOutput] = []
        for directory in (rank_directory(root, number, rank) for root in self._roots()):
            if os.path.isdir(directory):
                paths = [os.path.join(directory, name) for name in self._streams]
                files = tuple(path for path in paths if os.path.lexists(path))
                found.append(RankOutput(number, rank, node, directory, files))
        if not found and node is not None:
            # At a round's end an empty directory is removed; what it had is not to be sought in an earlier round.
            return RankOutput(number, rank, node, rank_directory(next(self._roots()), number, rank), ())
        # With --log-dir each rank has a directory in both, and its files in one of them.
        return max(found, key=lambda one: len(one.files), default=None)

    def _node_of(self, rank: int, number: int, state: State | None) -> str | None:
        """Return the node of a rank in an earlier round, by the nodes' records; the likeliest node is read first."""
        past = state.past(number) if state is not None else None
        names = list(past.nodes) if past is not None and past.nodes else self.nodes(number)
        size = past.world_size if past is not None else 0
        if 0 <= rank < size:
            names.insert(0, names[rank * len(names) // size])
        for name in dict.fromkeys(names[:RECORDS_READ]):
            record = self._read(RoundRecord, self._run.round_node_file(number, name))
            if record is not None and any(worker.rank == rank for worker in record.workers):
                return name
        return None

    def _ranks_of(self, node: str, number: int, state: State | None) -> list[int]:
        """Return the ranks of a node in a round: by its record of the round, else by the state."""
        record = self._read(RoundRecord, self._run.round_node_file(number, node))
        if record is not None and record.workers:
            return sorted(worker.rank for worker in record.workers)
        if state is None or state.round != number:
            return []
        return [rank for one in state.participants if one.node == node for rank in _ranks(one)]

    def _roots(self) -> Iterator[str]:
        """Give the directories under which output may lie: those of `--log-dir`, then the run directory."""
        for name in self._names(os.path.join(self._run.root, "attempts")):
            if name not in self._log_roots and (record := self._read(Attempt, self._run.attempt_file(name))):
                self._log_roots[name] = record.logs if record.logs and os.path.isabs(record.logs) else None
        yield from dict.fromkeys([*(root for root in self._log_roots.values() if root), self._run.root])

    def _read(self, cls: type[T], path: str) -> T | None:
        try:
            return read_record(cls, self._fs.read(path, _RECORD_LIMIT), path, lenient=True)
        except (OSError, BadFile):
            return None

    def _names(self, directory: str) -> list[str]:
        try:
            return os.listdir(directory)
        except OSError:
            return []


def _ranks(participant: Participant) -> range:
    return range(participant.first_rank, participant.first_rank + participant.slots)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= 9
