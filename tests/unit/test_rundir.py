"""The run directory: made, opened again, and refused with one line that says what to do."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftslurm.sharedfs import rundir
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory, RunDirectoryError, check_name, open_run, rank_directory

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def opened(root: Path) -> RunDirectory:
    return open_run(str(root), "ann", 5, "0.1.0")


def refusal(root: Path) -> str:
    with pytest.raises(RunDirectoryError) as caught:
        opened(root)
    text = str(caught.value)
    assert text.startswith(f"run directory {root}: ")
    assert "\n" not in text
    return text


@pytest.fixture
def unwritable() -> Iterator[Path]:
    """Give a directory that cannot be written to; root gives up its right to write everywhere meanwhile."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        if root:
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)
            Path(name).chmod(0o700)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Return a function that makes one operation of the filesystem fail with an error number."""

    def install(name: str, number: int) -> None:
        def fail(self: PosixFileSystem, path: str, *rest: object, **named: object) -> None:
            raise OSError(number, os.strerror(number), path)

        monkeypatch.setattr(rundir, "PosixFileSystem", type("Broken", (PosixFileSystem,), {name: fail}))

    return install


def test_a_new_run_directory_is_private_and_contains_its_identity(tmp_path: Path) -> None:
    run = opened(tmp_path / "runs/job-12")
    assert json.loads(Path(run.run_file).read_text()) == {
        "schema": "ftslurm/run",
        "version": 1,
        "run_id": "job-12",
        "created_ns": 5,
        "user": "ann",
        "uid": os.geteuid(),
        "ftslurm": "0.1.0",
    }
    for directory in ("", "state", "nodes", "rounds", "attempts", "commits"):
        assert (Path(run.root) / directory).stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in Path(run.root).rglob("*")) == [
        "attempts",
        "commits",
        "nodes",
        "rounds",
        "run.json",
        "state",
    ]


def test_a_run_directory_that_is_there_is_opened_again_and_stays_as_it_is(tmp_path: Path) -> None:
    run = opened(tmp_path / "r")
    before = Path(run.run_file).read_bytes()
    open_run(run.root, "bob", 99, "0.2.0")
    assert Path(run.run_file).read_bytes() == before


def test_a_run_directory_whose_maker_died_is_completed(tmp_path: Path) -> None:
    (tmp_path / "r/state").mkdir(parents=True, mode=0o700)
    (tmp_path / "r").chmod(0o700)
    assert Path(opened(tmp_path / "r").run_file).exists()


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("mine")
    assert f"{tmp_path / 'r'} is a file, expected a directory" in refusal(tmp_path / "r")


def test_a_file_in_its_path_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert f"{tmp_path / 'file'} is a file, expected a directory" in refusal(tmp_path / "file/runs/r")


@pytest.mark.parametrize("name", ["state", "nodes", "rounds", "attempts"])
def test_a_file_in_the_place_of_one_of_its_directories_is_refused(tmp_path: Path, name: str) -> None:
    opened(tmp_path / "r")
    (tmp_path / "r" / name).rmdir()
    (tmp_path / "r" / name).write_text("")
    assert f"{tmp_path / 'r' / name} is a file" in refusal(tmp_path / "r")


@needs_root
def test_one_that_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "r")
    os.chown(tmp_path / "r", 12345, -1)
    text = refusal(tmp_path / "r")
    assert "it belongs to uid 12345, you are uid 0" in text
    assert "choose another --rdzv-id or --shared-dir" in text


@needs_root
def test_a_run_file_of_another_user_is_refused(tmp_path: Path) -> None:
    run = opened(tmp_path / "r")
    os.chown(run.run_file, 12345, -1)
    assert "belongs to uid 12345" in refusal(tmp_path / "r")


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777])
def test_one_that_others_may_write_to_is_refused_with_the_cure(tmp_path: Path, mode: int) -> None:
    opened(tmp_path / "r")
    (tmp_path / "r").chmod(mode)
    text = refusal(tmp_path / "r")
    assert f"others may write to it (mode {mode:04o}); chmod 700 {tmp_path / 'r'}" in text


def test_one_that_others_may_read_is_fine(tmp_path: Path) -> None:
    opened(tmp_path / "r")
    (tmp_path / "r").chmod(0o755)
    opened(tmp_path / "r")


def test_a_parent_that_is_not_writable_is_refused(unwritable: Path) -> None:
    assert f"not writable ({unwritable / 'r'}); choose another --shared-dir" in refusal(unwritable / "r")


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"", "empty"),
        (b'{"schema":"ftslurm/run","ver', "torn or not JSON"),
        (b"[]", "expected a JSON object of ftslurm/run"),
        (b"\xff" * 9, "not text"),
        (b'{"schema":"other"}', "expected a JSON object of ftslurm/run"),
    ],
)
def test_a_torn_run_file_is_named_with_a_way_out(tmp_path: Path, data: bytes, wrong: str) -> None:
    run = opened(tmp_path / "r")
    Path(run.run_file).write_bytes(data)
    text = refusal(tmp_path / "r")
    assert f"run.json: {wrong}" in text
    assert "choose another --rdzv-id" in text


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    run = opened(tmp_path / "r")
    Path(run.run_file).write_text('{"schema":"ftslurm/run","version":2}')
    text = refusal(tmp_path / "r")
    assert "made by a newer ftslurm" in text
    assert "use that ftslurm, or another run id" in text


@pytest.mark.parametrize("name", ["makedirs", "create", "link", "unlink"])
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "your disk quota is used up"),
        (errno.EROFS, "on a read-only filesystem"),
        (errno.EACCES, "not writable"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_whatever_the_filesystem_refuses_is_one_line(
    tmp_path: Path, broken: Callable[[str, int], None], name: str, number: int, text: str
) -> None:
    broken(name, number)
    message = refusal(tmp_path / "r")
    assert text in message
    assert "--shared-dir" in message


def test_a_filesystem_without_hard_links_is_refused_and_reported_apart(
    tmp_path: Path, broken: Callable[[str, int], None]
) -> None:
    broken("link", errno.EPERM)
    assert "not permitted (Operation not permitted" in refusal(tmp_path / "r")


def test_a_full_disk_is_noticed_also_when_the_run_is_there_already(
    tmp_path: Path, broken: Callable[[str, int], None]
) -> None:
    opened(tmp_path / "r")
    broken("create", errno.ENOSPC)
    assert "the disk is full" in refusal(tmp_path / "r")


def test_a_path_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 300)
    assert "the path is too long" in refusal(root)


def test_names_inside_are_those_that_the_format_promises() -> None:
    run = RunDirectory("/s/r")
    assert run.run_file == "/s/r/run.json"
    assert run.state == "/s/r/state"
    assert run.node_file("n1") == "/s/r/nodes/n1.json"
    assert run.attempt_file("12.0") == "/s/r/attempts/12.0/attempt.json"
    assert run.round_node_file(7, "n1") == "/s/r/rounds/000007/nodes/n1.json"
    assert run.rank(7, 42) == rank_directory("/s/r", 7, 42) == "/s/r/rounds/000007/ranks/00042"


@pytest.mark.parametrize("name", ["a", "job-12_3", "A.b+c=d@e", "0", "x" * 128])
def test_a_name_that_is_safe_everywhere_is_taken(name: str) -> None:
    assert check_name("run id", name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "-x", "a/b", "a b", "a\n", "ä", "x" * 129, "a\0b"])
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(RunDirectoryError, match=r"^run id .*: expected 1 to 128 letters"):
        check_name("run id", name)


def test_a_removal_that_was_done_and_repeated_does_not_make_a_directory_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeated(self: PosixFileSystem, path: str) -> None:
        os.unlink(path)
        os.unlink(path)

    monkeypatch.setattr(PosixFileSystem, "unlink", repeated)
    run = open_run(str(tmp_path / "r"), "me", 1, "0.1.0")
    assert os.listdir(run.nodes) == []
