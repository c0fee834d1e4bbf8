"""What an agent writes down, and what becomes of it when the shared directory does not take it."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftslurm.agent.actions import Assignment, RecordRound
from ftslurm.agent.host_resources import HostResources
from ftslurm.agent.journal import Journal
from ftslurm.agent.workers import Worker
from ftslurm.failures.record import compose, from_exception, write
from ftslurm.rendezvous.member import first_record
from ftslurm.rendezvous.state import Master
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.clock import VirtualClock


class Disk(PosixFileSystem):
    """A directory that may be full."""

    full = False

    def create(self, path: str, data: bytes, durable: bool) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().create(path, data, durable)


class Desk:
    """A journal, its disk, and a courier who tries each errand once when told to."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = VirtualClock()
        self.disk = Disk()
        self.run = RunDirectory(str(tmp_path / "run"))
        self.local = tmp_path / "local"
        (self.local / "agent").mkdir(parents=True)
        self.errands: list[Callable[[], object]] = []
        self.complaints: list[str] = []
        around = HostResources(str(self.local / "agent"), monotonic=self.clock.now)
        self.journal = Journal(
            self.errands.append, self.disk, self.run, "r", self.clock.now_ns, around, str(self.local)
        )

    def fail(self, rank: int) -> None:
        records = self.local / f"records{rank}"
        records.mkdir()
        Path(self.run.rank(1, rank)).mkdir(parents=True)
        worker = Worker(rank, rank, 100 + rank, -1, str(records), 0)
        worker.ended_ns, worker.signal = self.clock.now_ns(), "SIGKILL"
        word = first_record("n1", "i1", "7.0", 0, 2)
        record = self.journal.error_record(worker, word)
        assert record is not None
        record["ftslurm"]["round"] = 1
        self.journal.failed(worker, record, stopped=False)

    def carry(self) -> None:
        errands, self.errands[:] = list(self.errands), []
        for errand in errands:
            try:
                errand()
            except OSError as error:
                self.complaints.append(str(error.strerror))

    def published(self, rank: int) -> dict[str, Any] | None:
        path = Path(self.run.rank(1, rank)) / "error.json"
        return json.loads(path.read_text())["ftslurm"] if path.exists() else None


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_error_record_holds_what_was_around_the_worker(desk: Desk) -> None:
    desk.fail(0)
    desk.carry()
    found = desk.published(0)
    assert found is not None
    assert [space["path"] for space in found["host_resources"]["spaces"]] == ["/dev/shm", str(desk.local)]
    assert desk.journal.leave() is None


def test_a_record_that_a_full_disk_refused_gets_there_when_something_else_does(desk: Desk) -> None:
    desk.disk.full = True
    desk.fail(0)
    desk.carry()
    assert desk.complaints == ["No space left on device"]
    desk.disk.full = False
    desk.clock.advance(5)
    desk.fail(1)
    desk.carry()
    assert desk.published(0) is not None
    assert desk.published(1) is not None
    assert desk.journal.leave() is None


def test_what_was_refused_is_tried_again_when_told_that_the_directory_works(desk: Desk) -> None:
    desk.disk.full = True
    desk.fail(0)
    desk.carry()
    desk.journal.again()
    desk.carry()
    assert desk.complaints == ["No space left on device"], "what is known is not said again"
    desk.disk.full = False
    desk.journal.again()
    desk.carry()
    assert desk.published(0) is not None


def test_what_never_got_there_is_left_on_the_node_and_said(desk: Desk) -> None:
    desk.disk.full = True
    desk.fail(0)
    desk.carry()
    desk.fail(1)  # The courier hangs: nobody even tries.
    said = desk.journal.leave()
    assert said is not None
    assert "2 records of this node did not get into" in said
    assert "(No space left on device): kept on this node in" in said
    kept = Path(re.split(" in ", said)[-1])
    assert str(kept) == desk.journal.kept
    records = sorted(path for path in kept.rglob("*") if path.is_file())
    assert [str(path.relative_to(kept)) for path in records] == [
        "rounds/000001/ranks/00000/error.json",
        "rounds/000001/ranks/00001/error.json",
    ]
    assert kept.stat().st_mode & 0o777 == 0o700
    for path in records:
        assert json.loads(path.read_text())["ftslurm"]["signal"] == "SIGKILL"


def test_where_nothing_can_be_kept_that_is_said_too(desk: Desk) -> None:
    desk.disk.full = True
    desk.fail(0)
    desk.carry()
    desk.journal._local = "/proc/no/such/place"
    said = desk.journal.leave()
    assert said is not None
    assert "cannot be kept here either" in said


def ended(desk: Desk, rank: int, records: dict[str, Any] | None = None, **end: Any) -> Worker:
    """Return a worker that has ended, with what it had recorded itself."""
    directory = desk.local / f"own{rank}"
    directory.mkdir()
    if records is not None:
        (directory / "error.json").write_text(json.dumps(records))
    worker = Worker(rank, rank, 100 + rank, -1, str(directory), desk.clock.now_ns())
    worker.ended_ns = desk.clock.now_ns()
    for name, value in end.items():
        setattr(worker, name, value)
    return worker


def told(desk: Desk, *workers: Worker, stopped: tuple[int, ...] = (), over: bool = True) -> dict[str, Any]:
    """Let these have ended in round 1, and return the node's file of it."""
    word = replace(first_record("n1", "i1", "7.0", 0, 4), round=1)
    path = Path(desk.run.round_node_file(1, "n1"))
    path.parent.mkdir(parents=True, exist_ok=True)
    for worker in workers:
        Path(desk.run.rank(1, worker.rank)).mkdir(parents=True, exist_ok=True)
        error = desk.journal.error_record(worker, word)
        if error is not None:
            desk.journal.failed(worker, error, stopped=worker.rank in stopped)
    assignment = Assignment(1, "7.0", 0, 1, 0, 4, 4, Master("n1", 1), 0, 0)
    none: frozenset[int] = frozenset()
    record = RecordRound(assignment, "failed", None, None, frozenset(stopped), none, frozenset({0}), None, over)
    desk.journal.round(record, workers, word, 0, {})
    desk.carry()
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_rounds_file_tells_in_short_of_each_error_record_that_was_published(desk: Desk) -> None:
    exception = from_exception(ValueError("boom\nmore"), None, {"time_ns": 5, "step": 7}, None)
    desk.journal.begin()
    workers = [
        ended(desk, 0, exception, exit_code=1),
        ended(desk, 1, exception, exit_code=1),
        ended(desk, 2, exit_code=0),
        ended(desk, 3, signal="SIGTERM"),
    ]
    node = told(desk, *workers, stopped=(3,))
    assert [worker["error"] and worker["error"]["of"] for worker in node["workers"]] == [0, 0, None, None]
    assert node["workers"][0]["error"] == {"of": 0, "message": "boom", "step": 7, "time_ns": 5}
    assert set(node["workers"][2]) == {"rank", "local_rank", "pid", "started_ns", "ended_ns", "exit_code", "error"}
    (common,) = node["errors"]
    assert common.pop("signature").startswith("=")
    assert common == {"kind": "exception", "type": "ValueError", "module": "builtins", "where": None}
    assert desk.published(0) is not None
    assert desk.published(3) is None, "what ftslurm stopped has nothing to say of its own"


def test_the_short_forms_of_a_round_are_forgotten_when_the_next_begins(desk: Desk) -> None:
    desk.journal.begin()
    assert told(desk, ended(desk, 0, signal="SIGSEGV"))["errors"][0]["kind"] == "signal"
    desk.journal.begin()
    assert told(desk, ended(desk, 1, exit_code=0))["errors"] == []


def test_what_the_worker_wrote_there_itself_is_completed_and_not_overwritten_by_less(desk: Desk) -> None:
    desk.fail(0)
    # The directory did not answer until now, so nobody knows of it.
    facts = {"attempt": "7.0", "round": 0, "rank": 0, "kind": "exception", "time_ns": 5, "pid": 100}
    Path(desk.run.rank(0, 0)).mkdir(parents=True)
    written = compose("ValueError: x", "", facts)
    write(written, [desk.run.rank(0, 0)])
    desk.carry()
    found = desk.published(0)
    assert found is not None
    assert (found["recorded_ns"], found["signal"], found["stopped_by_ftslurm"]) == (5, "SIGKILL", False)
    assert found["host_resources"]["spaces"]
