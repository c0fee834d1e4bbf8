"""The directory with faults on command: each is met at once, by those it is meant for, whatever was read before."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_hanging_directory import faulty_mount


class Mount:
    """A mounted directory and its control file."""

    def __init__(self, base: Path, name: str = "shared") -> None:
        self.path, self.backing, self.journal = base / name, base / "backing", base / "journal"
        self._control = base / f"control-{name}"
        self.path.mkdir()
        self.backing.mkdir(exist_ok=True)
        arguments = (self.backing, self.path, self._control, "--journal", self.journal, "*/last.json")
        self._server = faulty_mount(*arguments)

    def let(self, fault: str) -> None:
        self._control.write_text(fault)

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        pytest.skip("FUSE needs /dev/fuse and root")
    mount = Mount(tmp_path)
    (mount.path / "run").mkdir()
    (mount.path / "run" / "old").write_text("old")
    yield mount
    mount.let("")
    mount.close()


def outcome(what: str, where: Path) -> str:
    """Try something in the directory: "" or the error's name."""
    try:
        if what == "read":
            (where / "old").read_text()
        elif what == "list":
            os.listdir(where)
        elif what == "write":
            (where / "old").write_text("new")
        elif what == "create":
            (where / "created").touch()
        elif what == "mkdir":
            (where / "made").mkdir()
        elif what == "link":
            os.link(where / "old", where / "linked")
        elif what == "rename":
            os.rename(where / "old", where / "old")
            os.rename(where / "old", where / "moved")
            os.rename(where / "moved", where / "old")
        elif what == "fsync":
            fd = os.open(where / "old", os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


ALL = ("read", "list", "write", "create", "mkdir", "link", "rename", "fsync")


@pytest.mark.parametrize(
    ("fault", "error", "spared"),
    [
        ("full", "ENOSPC", {"read", "list", "rename", "fsync"}),
        ("write-errors", "EIO", {"read", "list"}),
        ("read-only", "EROFS", {"read", "list"}),
        ("errors", "EIO", set()),
    ],
)
def test_each_fault_fails_what_it_names_and_nothing_else_and_can_be_lifted(
    mount: Mount, fault: str, error: str, spared: set[str]
) -> None:
    where = mount.path / "run"
    assert outcome("read", where) == ""
    mount.let(fault)
    assert {what: outcome(what, where) for what in ALL} == {what: "" if what in spared else error for what in ALL}
    mount.let("")
    assert {what: outcome(what, where) for what in ALL} == dict.fromkeys(ALL, "")


def test_a_file_that_was_open_before_meets_the_fault_too(mount: Mount) -> None:
    fd = os.open(mount.path / "run" / "old", os.O_RDWR)
    try:
        assert os.read(fd, 10) == b"old"
        mount.let("errors")
        with pytest.raises(OSError, match="Input/output"):
            os.pread(fd, 10, 0)
        mount.let("full")
        with pytest.raises(OSError, match="No space"):
            os.write(fd, b"x")
        assert os.statvfs(mount.path).f_bavail == 0
    finally:
        os.close(fd)


def test_a_reader_of_a_hanging_directory_goes_on_when_it_answers_again(mount: Mount) -> None:
    mount.let("hang")
    outcomes: list[str] = []
    waiting = threading.Thread(target=lambda: outcomes.append(outcome("read", mount.path / "run")))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    mount.let("")
    waiting.join(20)
    assert outcomes == [""]


def test_the_journal_has_each_renamed_and_linked_file_of_the_pattern_in_order(mount: Mount) -> None:
    run = mount.path / "run"
    for number in range(3):
        (run / "temporary").write_text(f"commit {number}")
        os.rename(run / "temporary", run / "last.json")
    (run / "other").write_text("of no interest")
    os.rename(run / "other", run / "another")
    os.unlink(run / "last.json")
    os.link(run / "old", run / "last.json")
    lines = [json.loads(line) for line in mount.journal.read_text().splitlines()]
    assert [(line["what"], line["path"], line["text"]) for line in lines] == [
        *[("renamed", "run/last.json", f"commit {number}") for number in range(3)],
        ("renamed", "run/last.json", "old"),
    ]
    assert lines == sorted(lines, key=lambda line: line["began_ns"])
    assert all(line["began_ns"] <= line["done_ns"] for line in lines)


def test_a_held_rename_is_done_late_over_what_another_client_has_renamed_meanwhile(
    mount: Mount, tmp_path: Path
) -> None:
    other = Mount(tmp_path, "other")
    try:
        (mount.path / "run" / "old-round").write_text("stale")
        mount.let("hold-renames run/last.*")
        asking = f"import os; os.chdir({str(mount.path / 'run')!r}); os.rename('old-round', 'last.json')"
        with subprocess.Popen([sys.executable, "-c", asking]) as process:
            wait_for(lambda: '"held"' in mount.journal.read_text())
            process.kill()
            (other.path / "run" / "new-round").write_text("new")
            os.rename(other.path / "run" / "new-round", other.path / "run" / "last.json")
            assert (other.path / "run" / "last.json").read_text() == "new"
            mount.let("")
        wait_for(lambda: (other.path / "run" / "last.json").read_text() == "stale")
    finally:
        other.close()
    lines = [json.loads(line) for line in mount.journal.read_text().splitlines()]
    assert [(line["what"], line["text"]) for line in lines] == [("held", ""), ("renamed", "new"), ("renamed", "stale")]
    assert lines[1]["done_ns"] < lines[2]["began_ns"]


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
