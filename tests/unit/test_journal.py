"""The agent's records, also while the shared directory refuses them."""

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
from ftslurm.agent.host_resources import ResourceSampler
from ftslurm.agent.journal import Journal
from ftslurm.agent.workers import Worker
from ftslurm.failures.record import from_exception, write
from ftslurm.records.codec import read_record
from ftslurm.records.error import ErrorRecord, error_file
from ftslurm.records.flight import FlightRecord
from ftslurm.records.node import first_record
from ftslurm.records.state import Master
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.clock import VirtualClock

DOCUMENTS = Path(__file__).parent / "flight_documents"


class Disk(PosixFileSystem):
    """A directory that may be full."""

    full = False

    def create(self, path: str, data: bytes, durable: bool) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().create(path, data, durable)


class Records:
    """A journal, its disk, and a courier that runs each task once, on request."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = VirtualClock()
        self.disk = Disk()
        self.run = RunDirectory(str(tmp_path / "run"))
        self.local = tmp_path / "local"
        (self.local / "agent").mkdir(parents=True)
        self.tasks: list[Callable[[], object]] = []
        self.problems: list[str] = []
        resources = ResourceSampler(str(self.local / "agent"), monotonic=self.clock.now)
        self.journal = Journal(
            self.tasks.append, self.disk, self.run, "r", self.clock.now_ns, resources, str(self.local)
        )

    def fail(self, rank: int, error: Exception | None = None, left: bool = False, stopped: bool = False) -> None:
        """A rank is killed, or ends by that exception; ``left``: with the record of its collectives."""
        records = self.local / f"records{rank}"
        records.mkdir()
        if error is not None:
            write(from_exception(error, None, ErrorRecord("exception", 5), None), [str(records)])
        if left:
            (records / "recorder.json").write_bytes((DOCUMENTS / "mismatch-1.json").read_bytes())
        Path(self.run.rank(1, rank)).mkdir(parents=True)
        worker = Worker(rank, rank, 100 + rank, -1, str(records), 0)
        worker.ended_ns = self.clock.now_ns()
        worker.signal, worker.exit_code = ("SIGKILL", None) if error is None else (None, 1)
        record = replace(first_record("n1", "i1", "7.0", 0, 2), round=1)
        failed = self.journal.failed_worker(worker, record)
        assert failed is not None
        self.journal.failure(failed, stopped=stopped)

    def collectives(self, rank: int) -> FlightRecord | None:
        path = Path(self.run.collectives_file(1, rank))
        return read_record(FlightRecord, path.read_bytes(), "it") if path.exists() else None

    def run_tasks(self) -> None:
        tasks, self.tasks[:] = list(self.tasks), []
        for task in tasks:
            try:
                task()
            except OSError as error:
                self.problems.append(str(error.strerror))

    def published(self, rank: int) -> dict[str, Any] | None:
        path = Path(self.run.rank(1, rank)) / "error.json"
        return json.loads(path.read_text())["ftslurm"] if path.exists() else None


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


def test_empty_logs_and_directories_of_ranks_are_removed_and_nothing_else(records: Records) -> None:
    places = [Path(records.run.rank(1, rank)) for rank in range(5)]
    records.fail(0)
    records.run_tasks()
    for place in places[1:]:
        place.mkdir(parents=True)
    for place in places:
        (place / "stdout.log").touch()
        (place / "stderr.log").touch()
    (places[1] / "stderr.log").write_text("a line\n")
    (places[2] / "stdout.log").unlink()
    (places[2] / "stdout.log").symlink_to(places[1] / "stdout.log")
    (places[3] / "stacks.txt").touch()
    records.journal.remove_empty([str(place) for place in places])
    left = [sorted(path.name for path in place.iterdir()) if place.exists() else None for place in places]
    assert left == [["error.json"], ["stderr.log"], ["stdout.log"], ["stacks.txt"], None]
    records.journal.remove_empty([str(place) for place in places])


def test_the_directory_of_a_record_that_could_not_be_written_yet_stays(records: Records) -> None:
    records.disk.full = True
    records.fail(0)
    records.run_tasks()
    records.journal.remove_empty([records.run.rank(1, 0)])
    records.disk.full = False
    records.journal.again()
    records.run_tasks()
    assert records.published(0) is not None


def test_the_error_record_has_the_host_resources(records: Records) -> None:
    records.fail(0)
    records.run_tasks()
    found = records.published(0)
    assert found is not None
    assert [space["path"] for space in found["host_resources"]["spaces"]] == ["/dev/shm", str(records.local)]
    assert records.journal.leave() is None


def test_a_record_that_a_full_disk_refused_is_written_with_the_next_one(records: Records) -> None:
    records.disk.full = True
    records.fail(0)
    records.run_tasks()
    assert records.problems == ["No space left on device"]
    records.disk.full = False
    records.clock.advance(5)
    records.fail(1)
    records.run_tasks()
    assert records.published(0) is not None
    assert records.published(1) is not None
    assert records.journal.leave() is None


def test_a_refused_record_is_tried_again_when_the_directory_works(records: Records) -> None:
    records.disk.full = True
    records.fail(0)
    records.run_tasks()
    records.journal.again()
    records.run_tasks()
    assert records.problems == ["No space left on device"], "a known problem is not reported again"
    records.disk.full = False
    records.journal.again()
    records.run_tasks()
    assert records.published(0) is not None


def test_a_record_that_is_refused_for_good_is_kept_on_the_node_and_reported(records: Records) -> None:
    records.disk.full = True
    records.fail(0)
    records.run_tasks()
    records.fail(1)  # The courier hangs: this one is not even tried.
    line = records.journal.leave()
    assert line is not None
    assert "2 records of this node did not get into" in line
    assert "(No space left on device): kept on this node in" in line
    kept = Path(re.split(" in ", line)[-1])
    assert str(kept) == records.journal.kept
    records = sorted(path for path in kept.rglob("*") if path.is_file())
    assert [str(path.relative_to(kept)) for path in records] == [
        "rounds/000001/ranks/00000/error.json",
        "rounds/000001/ranks/00001/error.json",
    ]
    assert kept.stat().st_mode & 0o777 == 0o700
    for path in records:
        assert json.loads(path.read_text())["ftslurm"]["signal"] == "SIGKILL"


def test_where_nothing_can_be_kept_that_is_reported(records: Records) -> None:
    records.disk.full = True
    records.fail(0)
    records.run_tasks()
    records.journal._local = "/proc/no/such/place"
    line = records.journal.leave()
    assert line is not None
    assert "cannot be kept here either" in line


def ended(records: Records, rank: int, own: ErrorRecord | None = None, **end: Any) -> Worker:
    """Return a worker that has ended, with the record that it wrote itself."""
    directory = records.local / f"own{rank}"
    directory.mkdir()
    if own is not None:
        (directory / "error.json").write_text(json.dumps(error_file(own)))
    worker = Worker(rank, rank, 100 + rank, -1, str(directory), records.clock.now_ns())
    worker.ended_ns = records.clock.now_ns()
    for name, value in end.items():
        setattr(worker, name, value)
    return worker


def round_file(records: Records, *workers: Worker, stopped: tuple[int, ...] = (), over: bool = True) -> dict[str, Any]:
    """Record the end of these workers in round 1, and return the node's file of it."""
    record = replace(first_record("n1", "i1", "7.0", 0, 4), round=1)
    path = Path(records.run.round_node_file(1, "n1"))
    path.parent.mkdir(parents=True, exist_ok=True)
    for worker in workers:
        Path(records.run.rank(1, worker.rank)).mkdir(parents=True, exist_ok=True)
        failed = records.journal.failed_worker(worker, record) if worker.exit_code != 0 else None
        if failed is not None:
            records.journal.failure(failed, stopped=worker.rank in stopped)
    assignment = Assignment(1, "7.0", 0, 1, 0, 4, 4, Master("n1", 1), 0, 0)
    none: frozenset[int] = frozenset()
    action = RecordRound(assignment, "failed", None, None, frozenset(stopped), none, frozenset({0}), None, over)
    records.journal.round(action, workers, record, 0, {})
    records.run_tasks()
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_rounds_file_has_a_summary_of_each_published_error_record(records: Records) -> None:
    exception = from_exception(ValueError("boom\nmore"), None, ErrorRecord("exception", 5, step=7), None)
    records.journal.begin()
    workers = [
        ended(records, 0, exception, exit_code=1),
        ended(records, 1, exception, exit_code=1),
        ended(records, 2, exit_code=0),
        ended(records, 3, signal="SIGTERM"),
    ]
    node = round_file(records, *workers, stopped=(3,))
    first, second = node["workers"][0]["error"], node["workers"][1]["error"]
    assert first.pop("signature") == second.pop("signature")
    assert first == {"kind": "exception", "type": "ValueError", "module": "builtins", "where": None,
                     "message": "boom", "step": 7, "time_ns": 5}  # fmt: skip
    # Values that are null, false or empty are left out.
    assert set(node["workers"][2]) == {"rank", "local_rank", "pid", "started_ns", "ended_ns", "exit_code"}
    assert "error" not in node["workers"][3]
    assert records.published(0) is not None
    assert records.published(3) is None, "a worker that ftslurm stopped has no record of its own"


def test_the_summaries_of_a_round_are_forgotten_when_the_next_begins(records: Records) -> None:
    records.journal.begin()
    assert round_file(records, ended(records, 0, signal="SIGSEGV"))["workers"][0]["error"]["kind"] == "signal"
    records.journal.begin()
    assert "error" not in round_file(records, ended(records, 1, exit_code=0))["workers"][0]


def test_a_record_that_the_worker_wrote_there_is_completed_and_not_overwritten_by_less(records: Records) -> None:
    records.fail(0)
    # The directory did not answer until now, so its agent has not read it.
    own = ErrorRecord("exception", 5, "ValueError: x", attempt="7.0", round=1, rank=0, pid=100)
    write(own, [records.run.rank(1, 0)])
    records.run_tasks()
    found = records.published(0)
    assert found is not None
    assert (found["recorded_ns"], found["signal"], found["stopped_by_ftslurm"]) == (5, "SIGKILL", False)
    assert found["host_resources"]["spaces"]


def test_a_rank_that_others_have_ended_has_left_its_collectives_and_one_that_failed_by_itself_or_was_stopped_has_not(
    records: Records,
) -> None:
    lost = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    records.fail(0, lost, left=True)
    records.fail(1, ValueError("boom"), left=True)
    records.fail(2, lost, left=True, stopped=True)
    records.fail(3, lost)
    records.run_tasks()
    found = records.collectives(0)
    assert found is not None and found.trace is not None
    assert (found.source, found.rank, found.trouble, found.after) == ("dump", 0, None, None)
    assert found.trace.entries[-1].profiling_name == "gloo:all_gather"
    assert [records.collectives(rank) for rank in (1, 2, 3)] == [None] * 3
