"""What an agent writes down, and what becomes of it when the shared directory does not take it."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftslurm.agent.journal import Journal
from ftslurm.agent.surroundings import Surroundings
from ftslurm.agent.workers import Worker
from ftslurm.rendezvous.member import first_word
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
        around = Surroundings(str(self.local / "agent"), monotonic=self.clock.now)
        self.journal = Journal(
            self.errands.append, self.disk, self.run, "r", self.clock.now_ns, around, str(self.local)
        )

    def fail(self, rank: int) -> None:
        records = self.local / f"records{rank}"
        records.mkdir()
        Path(self.run.rank(1, rank)).mkdir(parents=True)
        worker = Worker(rank, rank, 100 + rank, -1, str(records), 0)
        worker.ended_ns, worker.signal = self.clock.now_ns(), "SIGKILL"
        word = first_word("n1", "i1", "7.0", 0, 2)
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
    assert [space["path"] for space in found["surroundings"]["spaces"]] == ["/dev/shm", str(desk.local)]
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
    assert sorted(path.name for path in kept.iterdir()) == [
        "rounds-000001-ranks-00000-error.json",
        "rounds-000001-ranks-00001-error.json",
    ]
    assert kept.stat().st_mode & 0o777 == 0o700
    for path in kept.iterdir():
        assert json.loads(path.read_text())["ftslurm"]["signal"] == "SIGKILL"


def test_where_nothing_can_be_kept_that_is_said_too(desk: Desk) -> None:
    desk.disk.full = True
    desk.fail(0)
    desk.carry()
    desk.journal._local = "/proc/no/such/place"
    said = desk.journal.leave()
    assert said is not None
    assert "cannot be kept here either" in said
