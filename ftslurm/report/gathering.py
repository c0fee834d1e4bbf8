"""Read a run directory into a `Snapshot`: bounded, reading only, and never stopped by a bad file.

An unusable file (torn, empty, huge, a link, another user's, written by a newer ftslurm) becomes a
`Problem` with the file and the reason; the rest is still reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from ftslurm.dataclasses import replace
from ftslurm.failures import plugins
from ftslurm.failures.causes import ROWS, Cause
from ftslurm.monitor import stacksfile
from ftslurm.monitor.stacksfile import LIMIT as STACKS_LIMIT
from ftslurm.monitor.stacksfile import RankStacks
from ftslurm.report import root_cause
from ftslurm.report.align import aligned, corrected
from ftslurm.report.decode import (
    Json,
    Malformed,
    attempt_from,
    check_schema,
    defect_from,
    node_record_from,
    round_node_from,
    run_from,
    state_from,
    step_from,
)
from ftslurm.report.facts import (
    Attempt,
    Defect,
    LogTail,
    NodeRecordFacts,
    Problem,
    RankError,
    RoundFiles,
    RoundNode,
    Scheduler,
    Snapshot,
    State,
    StepEnd,
)
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.hang_records import hang_of
from ftslurm.report.parallel_read import read_in_parallel
from ftslurm.report.reading import list_directory, open_folder, parse_json, read_file, read_tail
from ftslurm.report.record_patterns import RecordDecoder
from ftslurm.report.sampling import examples, from_summary
from ftslurm.report.scheduler import scheduler_from

KIB = 1024
SMALL_LIMIT = 64 * KIB
RECORD_LIMIT = 1024 * KIB
STATE_LIMIT = 64 * 1024 * KIB
TAIL_LIMIT = 64 * KIB
STATE_TRIES = 5
# Older rounds are reported from the state alone: a run of a thousand rounds must not cause a million reads.
DETAILED_ROUNDS = 64
TAILS_PER_ROUND = 32
TAILS_IN_ALL = 512
# A record has some KiB; 16,384 records of the maximal size would fill the memory.
USUAL_RECORD = 16 * KIB
RECORDS_IN_ALL = 96 * 1024 * KIB
STACKS_ROUNDS = 8
# Records read for ranks known by summaries may change which ranks are shown; the second pass usually finds none.
SHOWN_TRIES = 4
STACKS_IN_ALL = 256 * 1024 * KIB
PROBLEMS_KEPT = 1000
DEFECTS_READ = 200

Fact = TypeVar("Fact")


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


class _Reader:
    def __init__(self, directory: Path, owner: int) -> None:
        self.directory = directory
        # An administrator placed root's files on purpose.
        self.owners = frozenset((owner, 0))
        self.problems: list[Problem] = []
        self.stacks_left = STACKS_IN_ALL
        self.records_left = RECORDS_IN_ALL
        self.decoder = RecordDecoder()
        self.rank: int | None = None
        self.every = False
        self.tried: set[tuple[int, int]] = set()

    def snapshot(self, now_ns: int, round_number: int | None, causes: tuple[Cause, ...]) -> Snapshot:
        run = self.record(self.directory / "run.json", "ftslurm/run", SMALL_LIMIT, run_from)
        attempts = tuple(self.attempts())
        state = self.state()
        nodes = tuple(self.node_records())
        numbers = self.round_numbers()
        chosen = [n for i, n in enumerate(numbers) if i >= len(numbers) - DETAILED_ROUNDS or n == round_number]
        # Rows of plugins may depend on anything in a record.
        whole = causes is not ROWS
        rounds = tuple(self.round(number, whole=whole or (self.every and number == round_number)) for number in chosen)
        snapshot = Snapshot(
            directory=str(self.directory),
            now_ns=now_ns,
            run=run,
            attempts=attempts,
            state=state,
            nodes=nodes,
            rounds=rounds,
            skipped_rounds=len(numbers) - len(chosen),
            causes=causes,
            scheduler=tuple(self.scheduler()),
            defects=tuple(self.defects()),
            steps=tuple(self.steps()),
        )
        # Before judging: the first failure decides which output tails are read.
        snapshot = self.with_shown(aligned(snapshot))
        snapshot = replace(snapshot, rounds=tuple(self.with_stacks(snapshot, round_number)))
        snapshot = replace(snapshot, rounds=tuple(self.with_tails(snapshot, round_number)))
        return replace(snapshot, problems=tuple(self.problems))

    def problem(self, path: Path, reason: str) -> None:
        if len(self.problems) >= PROBLEMS_KEPT:
            return
        name = os.path.relpath(path, self.directory) if path.is_relative_to(self.directory) else str(path)
        self.problems.append(Problem(name, reason))

    def listing(self, path: Path) -> tuple[list[str], list[str]]:
        try:
            return list_directory(path)
        except Malformed as error:
            self.problem(path, str(error))
            return [], []

    def record(self, path: Path, schema: str, limit: int, build: Callable[[Json], Fact]) -> Fact | None:
        try:
            data = read_file(path, limit, self.owners)
            return None if data is None else build(check_schema(parse_json(data), schema))
        except Malformed as error:
            self.problem(path, str(error))
            return None

    def records(
        self, parent: Path, names: Sequence[str], schema: str, build: Callable[[Json], Fact]
    ) -> Iterable[tuple[str, Fact]]:
        """Yield the decoded files ``names`` of a folder, with their names; unusable ones are omitted."""
        for name, data in self.contents(parent, names):
            try:
                if data is not None:
                    yield name, build(check_schema(parse_json(data), schema))
            except Malformed as error:
                self.problem(parent / name, str(error))

    def contents(self, parent: Path, names: Sequence[str], limit: int = RECORD_LIMIT) -> Iterable[tuple[str, bytes]]:
        """Yield the contents of files by their names, relative to ``parent``; in the order given."""

        def read(name: str) -> bytes | Malformed | None:
            try:
                return read_file(name, limit, self.owners, folder)
            except Malformed as error:
                return error

        if not names:
            return
        try:
            folder = open_folder(parent)
        except Malformed as error:
            self.problem(parent, str(error))
            return
        if folder is None:
            return
        try:
            for name, data in zip(names, read_in_parallel(read, names), strict=True):
                if isinstance(data, bytes):
                    yield name, data
                elif data is not None:
                    self.problem(parent / name, str(data))
        finally:
            os.close(folder)

    def attempts(self) -> Iterable[Attempt]:
        parent = self.directory / "attempts"
        for name in self.listing(parent)[1]:
            path = parent / name / "attempt.json"
            attempt = self.record(path, "ftslurm/attempt", STATE_LIMIT, attempt_from)
            if attempt is not None:
                yield attempt

    def scheduler(self) -> Iterable[Scheduler]:
        parent = self.directory / "attempts"
        for name in self.listing(parent)[1]:
            said = self.record(parent / name / "scheduler.json", "ftslurm/scheduler", SMALL_LIMIT, scheduler_from)
            if said is not None and said.attempt == name:
                yield said

    def defects(self) -> Iterable[Defect]:
        parent = self.directory / "defects"
        for name in _published(self.listing(parent)[0])[:DEFECTS_READ]:
            found = self.record(parent / name, "ftslurm/defect", RECORD_LIMIT, defect_from)
            if found is not None:
                yield replace(found, file=f"defects/{name}")

    def steps(self) -> Iterable[StepEnd]:
        parent = self.directory / "attempts"
        for name in self.listing(parent)[1]:
            end = self.record(parent / name / "step.json", "ftslurm/step", SMALL_LIMIT, step_from)
            if end is not None and end.attempt == name:
                yield end

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
        data = read_file(path, STATE_LIMIT, self.owners)
        if data is None:
            return None
        header, _, payload = data.partition(b"\n")
        cell = check_schema(parse_json(header), "ftslurm/cell")
        if cell.get("token") != token:
            raise Malformed("the header gives another generation than the file name")
        return state_from(check_schema(parse_json(payload), "ftslurm/state"), token)

    def node_records(self) -> Iterable[NodeRecordFacts]:
        parent = self.directory / "nodes"
        for _, record in self.records(parent, _published(self.listing(parent)[0]), "ftslurm/node", node_record_from):
            yield record

    def round_numbers(self) -> list[int]:
        folders = self.listing(self.directory / "rounds")[1]
        return sorted(int(n) for n in folders if len(n) == 6 and n.isascii() and n.isdigit() and int(n))

    def round(self, number: int, *, whole: bool) -> RoundFiles:
        parent = self.directory / "rounds" / f"{number:06d}"
        nodes = tuple(self.round_nodes(parent / "nodes", number))
        samples = {} if whole else examples(nodes)
        recorded = {
            w.rank for node in nodes if node.ended_ns is not None for w in node.workers if w.error_known and w.ended_ns
        }
        ended = [w for node in nodes for w in node.workers if w.ended_ns is not None]
        # A rank that succeeded or was stopped, by its agent's record, has no error record worth an open.
        done = {w.rank for w in ended if not w.failed and not w.stopped_by_ftslurm}
        done |= set() if whole else recorded - {self.rank, *samples.values()}
        # If all ranks are recorded, the listing of their folders is not needed.
        complete = len({node.world_size for node in nodes}) == 1 and len(recorded) == nodes[0].world_size
        ranks = sorted((recorded if complete else set(self.ranks(parent / "ranks"))) - done)
        return RoundFiles(number, nodes, self.errors(number, ranks), examples=samples)

    def errors(self, number: int, ranks: Iterable[int]) -> dict[int, RankError]:
        """Read the error records of these ranks; unreadable ones are omitted."""
        ranks = [rank for rank in ranks if (number, rank) not in self.tried]
        self.tried.update((number, rank) for rank in ranks)
        parent = self.directory / "rounds" / f"{number:06d}"
        errors: dict[int, RankError] = {}
        for name, data in self.contents(parent / "ranks", [f"{rank:05d}/error.json" for rank in ranks]):
            rank = int(name[:5])
            try:
                errors[rank] = self.within_limit(self.decoder.error(data, rank), len(data))
            except Malformed as error:
                self.problem(parent / "ranks" / name, str(error))
        return errors

    def with_shown(self, snapshot: Snapshot) -> Snapshot:
        """Read the error records that are shown, of ranks known by their record summaries."""
        for files in snapshot.rounds:
            for _ in range(SHOWN_TRIES):
                wanted = root_cause.records_to_read(snapshot, files.number)
                if not wanted:
                    break
                snapshot = root_cause.with_errors(snapshot, files.number, self.read_errors(snapshot, files, wanted))
        return snapshot

    def read_errors(self, snapshot: Snapshot, files: RoundFiles, ranks: set[int]) -> dict[int, RankError]:
        known = {worker.rank: (node, worker) for node in files.nodes for worker in node.workers if worker.rank in ranks}
        # Without a file, the record summary is used.
        shorts = {
            rank: from_summary(node, each, each.error, None) for rank, (node, each) in known.items() if each.error
        }
        for rank, error in self.errors(files.number, sorted(ranks)).items():
            shorts[rank] = corrected(snapshot, files, error, known[rank][0].node)
        return shorts

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
            exception = replace(exception, message=exception.message[:2000], frames=(), link=None, members=(), notes=())
        return replace(
            error, message=error.message[:2000], traceback=None, stacks=None, argv=(), exception=exception, cuda=()
        )

    def ranks(self, parent: Path) -> list[int]:
        """Return the ranks that have a folder."""
        return [int(n) for n in self.listing(parent)[1] if len(n) == 5 and n.isascii() and n.isdigit()]

    def round_nodes(self, parent: Path, number: int) -> Iterable[RoundNode]:
        names = _published(self.listing(parent)[0])
        for name, node in self.records(parent, names, "ftslurm/round-node", round_node_from):
            if node.round != number:
                self.problem(parent / name, f"belongs to round {node.round}; ignored")
                continue
            yield node

    def with_stacks(self, snapshot: Snapshot, chosen: int | None) -> Iterable[RoundFiles]:
        """Read the ranks' stacks for rounds that a hang ended: the newest ones, and the requested one."""
        hung = [files.number for files in snapshot.rounds if hang_of(snapshot, files.number) is not None]
        wanted = {number for number in hung if number in hung[-STACKS_ROUNDS:] or number == chosen}
        for files in snapshot.rounds:
            yield replace(files, stacks=dict(self.stacks(files.number))) if files.number in wanted else files

    def stacks(self, number: int) -> Iterable[tuple[int, RankStacks]]:
        parent = self.directory / "rounds" / f"{number:06d}" / "ranks"
        names = [f"{rank:05d}/stacks.txt" for rank in self.ranks(parent)]
        for name, data in self.contents(parent, names, STACKS_LIMIT):
            if self.stacks_left <= 0:
                message = f"more than {STACKS_IN_ALL} bytes of stacks; this one and the next ones are not read"
                self.problem(parent / name, message)
                return
            found = stacksfile.parse(data)
            if found is not None and found.rank == int(name[:5]):
                self.stacks_left -= len(data)
                yield found.rank, found

    def with_tails(self, snapshot: Snapshot, chosen: int | None) -> Iterable[RoundFiles]:
        """Read the output tails that can change or explain a verdict, newest rounds first."""
        budget = TAILS_IN_ALL
        done: list[RoundFiles] = []
        for files in reversed(snapshot.rounds):
            found = root_cause.failed_workers(snapshot, files.number)
            every = self.every and files.number == chosen
            wanted = found[:1] + [s for s in found[1:] if every or root_cause.tail_needed(s)]
            wanted = wanted[: min(TAILS_IN_ALL if every else TAILS_PER_ROUND, budget)]
            budget -= len(wanted)
            folder = self.log_folder(snapshot, files)
            tails = {s.rank: tuple(self.tails(folder, s, first=s is found[0])) for s in wanted}
            hang = hang_of(snapshot, files.number)
            if hang is not None and budget > 0:
                from ftslurm.report.hang import culprits

                for rank in culprits(files, hang):
                    tails[rank] = tuple(self.logs(folder / f"{rank:05d}", ("stderr", "stdout")))
                    budget -= 1
            if self.rank is not None and files.number == chosen:
                tails[self.rank] = tuple(self.all_of(folder, self.rank))
            done.append(replace(files, tails=tails))
        return reversed(done)

    def log_folder(self, snapshot: Snapshot, files: RoundFiles) -> Path:
        entry = root_cause.history_of(snapshot, files.number)
        names = {n.attempt for n in files.nodes} | {entry.attempt if entry else None}
        logs = next((a.logs for a in snapshot.attempts if a.attempt in names and a.logs), None)
        base = Path(logs) if logs and os.path.isabs(logs) and "\0" not in logs else self.directory
        return base / "rounds" / f"{files.number:06d}" / "ranks"

    def tails(self, folder: Path, worker: FailedWorker, *, first: bool) -> Iterable[LogTail]:
        yield from self.logs(folder / f"{worker.rank:05d}", ("stderr", "stdout") if first else ("stderr",))
        if first and worker.stacks is None and worker.exception is None:
            ranks = self.directory / "rounds" / folder.parent.name / "ranks"
            for tail in self.tail("stacks", ranks / f"{worker.rank:05d}" / "stacks.txt"):
                # A hang's evidence is its stacks, not the end of its output.
                if not tail.text.startswith(stacksfile.MARK):
                    yield tail

    def all_of(self, folder: Path, rank: int) -> Iterable[LogTail]:
        yield from self.logs(folder / f"{rank:05d}", ("stderr", "stdout"))
        stacks = self.directory / "rounds" / folder.parent.name / "ranks" / f"{rank:05d}" / "stacks.txt"
        yield from (tail for tail in self.tail("stacks", stacks) if not tail.text.startswith(stacksfile.MARK))

    def logs(self, folder: Path, streams: Iterable[str]) -> Iterable[LogTail]:
        for stream in streams:
            yield from self.tail(stream, folder / f"{stream}.log")

    def tail(self, stream: str, path: Path) -> Iterable[LogTail]:
        try:
            tail = read_tail(path, TAIL_LIMIT, self.owners)
        except Malformed as error:
            self.problem(path, str(error))
            return
        if tail is not None:
            yield LogTail(stream, str(path), tail[0], tail[1])


def _published(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".json") and not name.startswith(".")]


__all__ = ["gather"]
