"""Whole files published and read back, and what a damaged one says."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ftslurm.records.codec import BadFile, NewerFormat, decode, encode
from ftslurm.sharedfs.filesystem import FileTooLarge, PosixFileSystem
from ftslurm.sharedfs.ownership import ForeignFile
from ftslurm.sharedfs.publish import publish, publish_once, read_object
from ftslurm.testing.memoryfs import AFTER, BEFORE, Crash, MemoryFileSystem, Operation

FILE = "/d/x.json"


def server(content: bytes | None = None) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.makedirs("/d")
    if content is not None:
        fs.create(FILE, content, durable=False)
    return fs


def failing(name: str, when: str):
    def hook(moment: str, operation: Operation) -> None:
        if (moment, operation.name) == (when, name):
            raise OSError(errno.EIO, "broken")

    return hook


@pytest.mark.parametrize("old", [None, b"old"])
def test_publishing_replaces_what_was_there_and_leaves_no_temporary(old: bytes | None) -> None:
    fs = server(old)
    publish(fs, FILE, b"new")
    assert fs.files() == {FILE: b"new"}


@pytest.mark.parametrize(("name", "when", "then"), [("create", BEFORE, b"old"), ("rename", BEFORE, b"old")])
def test_a_publish_that_failed_changes_nothing(name: str, when: str, then: bytes) -> None:
    fs = server(b"old")
    with pytest.raises(OSError, match="broken"):
        publish(fs.client(failing(name, when)), FILE, b"new")
    assert fs.files() == {FILE: then}


def test_a_publish_whose_reply_was_lost_raises_and_is_done() -> None:
    fs = server(b"old")
    with pytest.raises(OSError, match="broken"):
        publish(fs.client(failing("rename", AFTER)), FILE, b"new")
    assert fs.files() == {FILE: b"new"}


def test_a_rename_that_was_done_and_repeated_is_no_error() -> None:
    fs = server(b"old")

    def repeat(when: str, operation: Operation) -> None:
        if when == AFTER and operation.name == "rename":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    publish(fs.client(repeat), FILE, b"new")
    assert fs.files() == {FILE: b"new"}


def test_a_rename_that_finds_no_temporary_and_was_not_done_raises() -> None:
    fs = server(b"old")

    def thief(when: str, operation: Operation) -> None:
        if when == BEFORE and operation.name == "rename":
            fs.unlink(str(operation.source))

    with pytest.raises(FileNotFoundError):
        publish(fs.client(thief), FILE, b"new")
    assert fs.files() == {FILE: b"old"}


@pytest.mark.parametrize("last", range(5))
def test_a_publisher_that_dies_leaves_the_old_or_the_new_content_and_at_most_a_hidden_file(last: int) -> None:
    fs = server(b"old")
    left = [last]

    def hook(when: str, operation: Operation) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    with pytest.raises(Crash):
        publish(fs.client(hook), FILE, b"new")
    assert fs.files()[FILE] in (b"old", b"new")
    assert all(os.path.basename(path).startswith(".") for path in fs.files() if path != FILE)


def test_of_two_that_publish_once_the_first_stands() -> None:
    fs = server()
    publish_once(fs, FILE, b"first")
    publish_once(fs, FILE, b"second")
    assert fs.files() == {FILE: b"first"}


def test_publishing_once_on_a_filesystem_without_links_raises_and_leaves_nothing() -> None:
    fs = server()
    with pytest.raises(OSError, match="broken"):
        publish_once(fs.client(failing("link", BEFORE)), FILE, b"x")
    assert fs.files() == {}


def test_a_published_file_is_private_and_reads_back(tmp_path: Path) -> None:
    fs, path = PosixFileSystem(os.geteuid()), str(tmp_path / "x.json")
    publish(fs, path, encode({"schema": "s", "version": 1, "name": "a\udc80b"}), durable=True)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert read_object(fs, path, "s", 1)["name"] == "a\udc80b"


def test_a_file_over_the_limit_is_refused_and_one_at_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345678")
    assert PosixFileSystem().read(str(path), 8) == b"12345678"
    with pytest.raises(FileTooLarge, match="larger than 7 bytes"):
        PosixFileSystem().read(str(path), 7)


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_plain_file_is_not_read_and_does_not_hang(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(OSError):
        PosixFileSystem().read(str(path), 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"{}")
    os.chown(path, 12345, -1)
    with pytest.raises(ForeignFile, match="belongs to uid 12345"):
        PosixFileSystem(os.geteuid()).read(str(path), 100)


def test_a_stale_handle_is_read_again_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"there")
    left = [3]
    really_open = os.open

    def stale(path, flags, *rest):
        if not flags & os.O_DIRECTORY and left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return really_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", stale)
    assert PosixFileSystem().read(str(tmp_path / "x"), 100) == b"there"
    left[0] = 100
    with pytest.raises(OSError, match="Stale"):
        PosixFileSystem().read(str(tmp_path / "x"), 100)


def test_an_error_while_reading_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"there")

    def fail(fd: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "read", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*/x'"):
        PosixFileSystem().read(str(tmp_path / "x"), 100)


def test_a_file_that_cannot_be_completed_is_removed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        PosixFileSystem().create(str(tmp_path / "x"), b"data", durable=True)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_made_with_its_parents_and_a_dangling_link_in_its_place_is_an_error(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    for _ in range(2):
        fs.makedirs(str(tmp_path / "a/b/c"))
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        fs.makedirs(str(tmp_path / "dangling/x"))


def test_making_a_directory_where_nothing_can_be_made_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(path: str, mode: int) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    monkeypatch.setattr(os, "mkdir", nowhere)
    with pytest.raises(FileNotFoundError):
        PosixFileSystem().makedirs("relative")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", ": empty"),
        (b" \n", ": empty"),
        (b'{"schema": "s", "ver', "torn or not JSON"),
        (b"\xff\xfe\x00", "not text (byte 0 is not UTF-8)"),
        (b"\x00" * 4096, ": empty"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 10_000, "torn or not JSON"),
        (b"[]", "found 'list'"),
        (b"null", "found 'NoneType'"),
        (b"{}", "found None"),
        (b'{"schema": "other", "version": 1}', "found 'other'"),
        (b'{"schema": "s"}', "its version is None"),
        (b'{"schema": "s", "version": "1"}', "its version is '1'"),
        (b'{"schema": "s", "version": true}', "its version is True"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong_in_one_line(data: bytes, what: str) -> None:
    with pytest.raises(BadFile) as caught:
        decode(data, "/run/x.json", "s", 1)
    text = str(caught.value)
    assert text.startswith("/run/x.json: ") and what in text and "\n" not in text


def test_a_newer_format_is_reported_with_the_remedy() -> None:
    with pytest.raises(NewerFormat, match="made by a newer ftslurm .* another run id"):
        decode(b'{"schema": "s", "version": 2}', "/run/x.json", "s", 1)


def test_what_is_encoded_is_one_line_of_ascii_and_comes_back() -> None:
    value = {"schema": "s", "version": 1, "text": "ü\n\u2028\udc80", "numbers": [1, -1, 2**63, 1.5, None, True]}
    data = encode(value)
    assert data.isascii() and data.count(b"\n") == 1 and data.endswith(b"\n")
    assert decode(data, "x", "s", 1) == value
