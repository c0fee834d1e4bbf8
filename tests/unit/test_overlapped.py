"""Several files are read at a time where that is faster, with the same result as one after the other."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.records.node import first_record
from ftslurm.rendezvous.observation import Timing
from ftslurm.rendezvous.observer import NODE_FILE_LIMIT, Observer
from ftslurm.rendezvous.pace import Pace
from ftslurm.sharedfs import overlapped
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.overlapped import AT_ONCE, read_all
from ftslurm.sharedfs.rundir import RunDirectory


class Server(PosixFileSystem):
    """A filesystem whose reads take a while."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._lock = threading.Lock()

    def read(self, path: str, limit: int = NODE_FILE_LIMIT) -> bytes:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.005)
        with self._lock:
            self.now -= 1
        return super().read(path, limit)


def files(directory: Path, count: int) -> list[str]:
    paths = [directory / str(i) for i in range(count)]
    for path in paths:
        path.write_text(f"content of {path.name}")
    return [str(path) for path in paths]


def test_contents_and_errors_come_in_the_order_of_the_paths(tmp_path: Path) -> None:
    paths = files(tmp_path, 40)
    (tmp_path / "7").unlink()
    server = Server()
    found = read_all(server, paths, 100)
    assert isinstance(found[7], FileNotFoundError)
    assert [one for one in found if isinstance(one, bytes)] == [b"content of %d" % i for i in range(40) if i != 7]
    assert 1 < server.most <= AT_ONCE


def test_where_no_thread_can_be_started_the_files_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert len(read_all(Server(), files(tmp_path, 20), 100)) == 20


@pytest.mark.parametrize("overlaps", [True, False])
def test_an_observer_reads_all_records_in_both_ways(tmp_path: Path, overlaps: bool) -> None:
    run = RunDirectory(str(tmp_path))
    Path(run.nodes).mkdir()
    count = overlapped.CHUNK + 6
    for i in range(count):
        record = replace(first_record(f"n{i}", f"i{i}", "1.0", i, 1), counter=i)
        Path(run.node_file(f"n{i}")).write_bytes(record.encode())
    Path(run.node_file("n3")).write_bytes(b"no record")
    server = Server()
    server.overlaps = overlaps
    notes: list[str] = []
    observer = Observer(server, run, (), Timing(8, 600, 30), Pace(), time.monotonic, notes)
    observer.read_records()
    assert {node: record.counter for node, record in observer.records.items()} == {
        f"n{i}": i for i in range(count) if i != 3
    }
    assert [note for note in notes if "n3.json" in note] == notes != []
    assert (server.most > 1) is overlaps
