"""Read a run directory into a `Snapshot`: bounded, reading only, and never stopped by a bad file.

An unusable file (torn, empty, huge, a link, another user's, written by a newer ftslurm) becomes a
`Problem` with the file and the reason; the rest is still reported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.dataclasses import replace
from ftslurm.failures import plugins
from ftslurm.failures.causes import ROWS, Cause
from ftslurm.monitor import stacks_file
from ftslurm.monitor.stacks_file import LIMIT as STACKS_LIMIT
from ftslurm.monitor.stacks_file import RankStacks
from ftslurm.records.arrivals import ArrivalsRecord
from ftslurm.records.error import ExceptionRecord
from ftslurm.records.node import misnamed
from ftslurm.records.state import StateFile
from ftslurm.records.verdict import AttemptVerdict, Requeued
from ftslurm.report import selection
from ftslurm.report.facts import (
    Attempt,
    DefectRecord,
    LogTail,
    NodeRecordFacts,
    Problem,
    RankError,
    RoundFiles,
    RoundNode,
    Run,
    Scheduler,
    Snapshot,
    State,
    StepEnd,
    aligned,
    read_error,
)
from ftslurm.report.record_reader import KIB, RECORD_LIMIT, Fact, RecordReader
from ftslurm.report.root_cause import attempts_of, recorded_rank
from ftslurm.sharedfs.bounded_read import (
    Malformed,
    parse_json,
    read_tail,
)
from ftslurm.sharedfs.cell import RETIRED, wrong_token

if TYPE_CHECKING:
    from ftslurm.collectives.calls import RankCalls

SMALL_LIMIT = 64 * KIB
STATE_LIMIT = 64 * 1024 * KIB
TAIL_LIMIT = 64 * KIB
FLOOD_LIMIT = 4096 * KIB
"""Bytes that are read of the end of an output that is full of lines of one form; few of these are kept."""
STATE_TRIES = 5
# Older rounds are reported from the state alone: a run of a thousand rounds must not cause a million reads.
DETAILED_ROUNDS = 64
OUTPUTS_IN_ALL = 512
ARRIVALS_READ = 512
"""Nodes whose samples of arrivals are read: some 50 KB each."""
# A record has some KiB; 16,384 records of the maximal size would fill the memory.
USUAL_RECORD = 16 * KIB
RECORDS_IN_ALL = 96 * 1024 * KIB
STACKS_IN_ALL = 256 * 1024 * KIB
COLLECTIVES_IN_ALL = 512 * 1024 * KIB
"""Bytes that are read of the records of collectives; what is kept of each is a tenth."""
DEFECTS_READ = 200
COLLECTIVES = "collectives.json"


def gather(
    directory: Path,
    *,
    now_ns: int,
    round_number: int | None = None,
    causes: Sequence[Cause] | None = None,
    rank: int | None = None,
    every: bool = False,
) -> Snapshot:
    """Read all input of the report from a run directory.

    Args:
        directory: the run directory.
        now_ns: the time of reading, nanoseconds since the epoch.
        round_number: a round whose files are read even if it is an old one.
        causes: the catalogue's rows; None: ftslurm's, and those of entry points.
        rank: a rank whose output from round ``round_number`` is read, however it ended.
        every: whether to read the output of all failed ranks of that round, not only where it may matter.

    Returns:
        All readable facts. No file's content or absence raises.

    Raises:
        OSError: the directory itself does not exist or cannot be entered.
    """
    reader = _Reader(directory, os.stat(directory).st_uid)
    reader.rank, reader.every = rank, every
    if causes is None:
        causes, broken = plugins.load()
        reader.problems += [Problem(*each) for each in broken]
    return reader.snapshot(now_ns, round_number, tuple(causes))


class _Reader(RecordReader):
    def __init__(self, directory: Path, owner: int) -> None:
        super().__init__(directory, owner)
        self.stacks_left = STACKS_IN_ALL
        self.collectives_left = COLLECTIVES_IN_ALL
        self.records_left = RECORDS_IN_ALL
        self.rank: int | None = None
        self.every = False

    def snapshot(self, now_ns: int, round_number: int | None, causes: tuple[Cause, ...]) -> Snapshot:
        run = self.record(self.directory / "run.json", Run, SMALL_LIMIT)
        attempts = tuple(self.attempts())
        state = self.state()
        nodes = tuple(self.node_records())
        numbers = self.round_numbers()
        chosen = [n for i, n in enumerate(numbers) if i >= len(numbers) - DETAILED_ROUNDS or n == round_number]
        snapshot = Snapshot(
            directory=str(self.directory),
            now_ns=now_ns,
            run=run,
            attempts=attempts,
            state=state,
            nodes=nodes,
            rounds=tuple(self.round_files(number, number in (numbers[-1], round_number)) for number in chosen),
            skipped_rounds=len(numbers) - len(chosen),
            causes=causes,
            scheduler=tuple(self.scheduler()),
            defects=dict(self.defects()),
            steps=tuple(self.steps()),
            verdicts=tuple(self.of_attempts("verdict.json", AttemptVerdict)),
            requeued=tuple(self.of_attempts("requeue.json", Requeued)),
        )
        snapshot = self.with_errors(snapshot, round_number)
        snapshot = self.with_stacks(snapshot, round_number)
        snapshot = self.with_outputs(snapshot, round_number)
        return replace(snapshot, problems=tuple(self.problems))

    def attempts(self) -> Iterable[Attempt]:
        parent = self.directory / "attempts"
        for name in self.listing(parent)[1]:
            path = parent / name / "attempt.json"
            attempt = self.record(path, Attempt, STATE_LIMIT)
            if attempt is not None:
                yield attempt

    def scheduler(self) -> Iterable[Scheduler]:
        parent = self.directory / "attempts"
        for name in self.listing(parent)[1]:
            scheduler = self.record(parent / name / "scheduler.json", Scheduler, SMALL_LIMIT)
            if scheduler is not None and scheduler.attempt == name:
                yield scheduler

    def defects(self) -> Iterable[tuple[str, DefectRecord]]:
        parent = self.directory / "defects"
        for name in _published(self.listing(parent)[0])[:DEFECTS_READ]:
            found = self.record(parent / name, DefectRecord, RECORD_LIMIT)
            if found is not None:
                yield f"defects/{name}", found

    def steps(self) -> Iterable[StepEnd]:
        parent = self.directory / "attempts"
        for name in self.listing(parent)[1]:
            end = self.record(parent / name / "step.json", StepEnd, SMALL_LIMIT)
            if end is not None and end.attempt == name:
                yield end

    def of_attempts(self, file: str, cls: type[Fact]) -> Iterable[Fact]:
        """Yield the records of that class in the attempts' directories."""
        parent = self.directory / "attempts"
        for name in self.listing(parent)[1]:
            found: Any = self.record(parent / name / file, cls, SMALL_LIMIT)
            if found is not None and found.attempt == name:
                yield found

    def state(self) -> State | None:
        parent = self.directory / "state"
        names = [n for n in self.listing(parent)[0] if n.endswith(".json") and n[:-5].isascii() and n[:-5].isdigit()]
        newest_first = sorted(names, key=lambda n: int(n[:-5]) if len(n) < 25 else -1, reverse=True)
        for name in newest_first[:STATE_TRIES]:
            try:
                state = self.generation(parent / name, int(name[:-5]))
            except Malformed as error:
                self.problem(parent / name, str(error))
                continue
            if state is not None:
                return state
        return None

    def generation(self, path: Path, token: int) -> State | None:
        data = self.content(path, STATE_LIMIT)
        if data is None:
            return None
        cell = self.decoded(path, StateFile, parse_json(data))
        if cell.token != token:
            raise Malformed(wrong_token(cell.token, token))
        if cell.retired:
            raise Malformed(RETIRED)
        return self.decoded(path, State, cell.value)

    def node_records(self) -> Iterable[NodeRecordFacts]:
        parent = self.directory / "nodes"
        for name, record in self.records(parent, _published(self.listing(parent)[0]), NodeRecordFacts):
            if wrong := misnamed(record.node, name):
                self.problem(parent / name, wrong)
            else:
                yield record

    def round_numbers(self) -> list[int]:
        folders = self.listing(self.directory / "rounds")[1]
        return sorted(int(n) for n in folders if len(n) == 6 and n.isascii() and n.isdigit() and int(n))

    def with_errors(self, snapshot: Snapshot, chosen: int | None) -> Snapshot:
        """Read the selected error records."""
        # Times are selected on one scale, and stay in the snapshot as they were recorded.
        even, clocks = aligned(snapshot)
        rounds = []
        for files, at in zip(snapshot.rounds, even.rounds, strict=True):
            folders = self.ranks(files.number) if selection.needs_folders(files.nodes) else []
            whole = snapshot.causes is not ROWS or (self.every and files.number == chosen)
            wanted = (self.rank, recorded_rank(snapshot, files.number))
            ranks = selection.error_records(at, clocks, folders, whole=whole, ranks=wanted)
            rounds.append(replace(files, errors=self.errors(files.number, ranks), selected=frozenset(ranks)))
        return replace(snapshot, rounds=tuple(rounds))

    def errors(self, number: int, ranks: Iterable[int]) -> dict[int, RankError]:
        """Read the error records of these ranks; unreadable ones are omitted."""
        parent = self.round_folder(number) / "ranks"
        errors: dict[int, RankError] = {}
        for name, data in self.contents(parent, [f"{rank:05d}/error.json" for rank in ranks]):
            rank = int(name[:5])
            try:
                record, unusable = read_error(parse_json(data))
                errors[rank] = self.within_limit(RankError.of(record, rank), len(data))
                if unusable is not None:
                    self.problem(parent / name, unusable)
            except Malformed as error:
                self.problem(parent / name, str(error))
        return errors

    def within_limit(self, error: RankError, size: int) -> RankError:
        """Return a record, without its long texts once the records in memory have reached their limit."""
        if size <= USUAL_RECORD:
            return error
        self.records_left -= size
        if self.records_left >= 0:
            return error
        if self.records_left + size >= 0:
            message = f"more than {RECORDS_IN_ALL} bytes of long error records; of the others only short facts are kept"
            self.problem(self.directory / "rounds", message)
        exception = error.exception
        if exception is not None:
            exception = ExceptionRecord(exception.type, exception.module, exception.message[:2000])
        return replace(
            error, message=error.message[:2000], traceback=None, stacks=None, argv=(), exception=exception, cuda=()
        )

    def round_folder(self, number: int) -> Path:
        return self.directory / "rounds" / f"{number:06d}"

    def ranks(self, number: int) -> list[int]:
        """Return the ranks that have a folder."""
        names = self.listing(self.round_folder(number) / "ranks")[1]
        return [int(n) for n in names if len(n) == 5 and n.isascii() and n.isdigit()]

    def round_nodes(self, number: int) -> Iterable[RoundNode]:
        parent = self.round_folder(number) / "nodes"
        names = _published(self.listing(parent)[0])
        for name, node in self.records(parent, names, RoundNode):
            if node.round != number:
                self.problem(parent / name, f"belongs to round {node.round}; ignored")
                continue
            yield node

    def round_files(self, number: int, with_arrivals: bool) -> RoundFiles:
        nodes = tuple(self.round_nodes(number))
        arrivals = tuple(self.arrivals(number, nodes)) if with_arrivals else ()
        return RoundFiles(number, nodes, {}, arrivals=arrivals)

    def arrivals(self, number: int, nodes: Sequence[RoundNode]) -> Iterable[ArrivalsRecord]:
        parent = self.round_folder(number) / "arrivals"
        known = {f"{node.node}.json" for node in nodes}
        names = [name for name in self.listing(parent)[0] if name in known]
        for _, record in self.records(parent, names[:ARRIVALS_READ], ArrivalsRecord):
            if record.round == number:
                yield record

    def with_stacks(self, snapshot: Snapshot, chosen: int | None) -> Snapshot:
        """Read the ranks' stacks, and the records of their collectives, of the selected rounds."""
        wanted = selection.rounds_with_stacks(snapshot, chosen)
        rounds = (self.round_with_stacks(files) if files.number in wanted else files for files in snapshot.rounds)
        return replace(snapshot, rounds=tuple(rounds))

    def round_with_stacks(self, files: RoundFiles) -> RoundFiles:
        ranks = self.ranks(files.number)
        files = self.with_collectives(files, ranks)
        stacks = dict(self.stacks(files.number, ranks))
        if not stacks:
            return files
        from ftslurm.report.rank_stacks import calls_of

        return replace(files, stacks=stacks, calls=calls_of(stacks.values(), self.owners))

    def with_collectives(self, files: RoundFiles, ranks: Sequence[int]) -> RoundFiles:
        """Read the records of the ranks' collectives; of each only its newest calls stay in memory."""
        parent = self.round_folder(files.number) / "ranks"
        world = next((node.world_size for node in files.nodes if node.world_size), None)
        found: dict[int, RankCalls] = {}
        for name, data in self.contents(parent, [f"{rank:05d}/{COLLECTIVES}" for rank in ranks]):
            from ftslurm.collectives.calls import calls_of
            from ftslurm.records.flight import FlightRecord

            self.collectives_left -= len(data)
            if self.collectives_left < 0:
                message = f"more than {COLLECTIVES_IN_ALL} bytes of records of collectives; the rest is not read"
                self.problem(parent / name, message)
                break
            try:
                record = self.decoded(parent / name, FlightRecord, parse_json(data))
            except Malformed as error:
                self.problem(parent / name, str(error))
                continue
            if record.rank == int(name[:5]) and record.round == files.number:
                found[record.rank] = calls_of(record, world)
            else:
                self.problem(parent / name, f"belongs to rank {record.rank} of round {record.round}; ignored")
        return replace(files, collectives=found) if found else files

    def stacks(self, number: int, ranks: Sequence[int]) -> Iterable[tuple[int, RankStacks]]:
        parent = self.round_folder(number) / "ranks"
        names = [f"{rank:05d}/stacks.txt" for rank in ranks]
        for name, data in self.contents(parent, names, STACKS_LIMIT):
            if self.stacks_left <= 0:
                message = f"more than {STACKS_IN_ALL} bytes of stacks; this one and the next ones are not read"
                self.problem(parent / name, message)
                return
            found = stacks_file.parse(data)
            if found is not None and found.rank == int(name[:5]):
                self.stacks_left -= len(data)
                yield found.rank, found

    def with_outputs(self, snapshot: Snapshot, chosen: int | None) -> Snapshot:
        """Read the ends of the selected outputs, newest rounds first."""
        even, clocks = aligned(snapshot)
        left = OUTPUTS_IN_ALL
        done: list[RoundFiles] = []
        for files, at in zip(reversed(snapshot.rounds), reversed(even.rounds), strict=True):
            asked = files.number == chosen
            rank = self.rank if asked else None
            wanted = selection.outputs(even, clocks, at, every=self.every and asked, rank=rank)
            wanted = wanted[: max(left, rank is not None)]
            left -= len(wanted)
            tails = {output.rank: tuple(self.tails(snapshot, files, output)) for output in wanted}
            done.append(replace(files, tails=tails))
        return replace(snapshot, rounds=tuple(reversed(done)))

    def tails(self, snapshot: Snapshot, files: RoundFiles, output: selection.Output) -> Iterable[LogTail]:
        logs = next((a.logs for a in attempts_of(snapshot, files) if a.logs), None)
        base = Path(logs) if logs and os.path.isabs(logs) and "\0" not in logs else self.directory
        folder = base / "rounds" / f"{files.number:06d}" / "ranks" / f"{output.rank:05d}"
        for stream in output.streams:
            if stream != "stacks":
                yield from self.tail(stream, folder / f"{stream}.log")
                continue
            path = self.round_folder(files.number) / "ranks" / f"{output.rank:05d}" / "stacks.txt"
            # A hang's evidence is its stacks, not the end of its output.
            yield from (tail for tail in self.tail(stream, path) if not tail.text.startswith(stacks_file.MARK))

    def tail(self, stream: str, path: Path) -> Iterable[LogTail]:
        try:
            tail = read_tail(path, TAIL_LIMIT, self.owners)
            if tail is not None and tail[1] > TAIL_LIMIT:
                from ftslurm.failures.closing_lines import ends_in_flood, without_floods

                if ends_in_flood(tail[0]):
                    tail = read_tail(path, FLOOD_LIMIT, self.owners) or tail
                    tail = (without_floods(tail[0])[-TAIL_LIMIT:], *tail[1:])
        except Malformed as error:
            self.problem(path, str(error))
            return
        if tail is not None:
            yield LogTail(stream, str(path), *tail)


def _published(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".json") and not name.startswith(".")]
