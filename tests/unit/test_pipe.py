"""The agent's end of the named pipe, against clients of every kind."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.monitor.message import LIMIT
from ftslurm.monitor.pipe import PIPE_BYTES, Pipe


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(str(tmp_path / "node"))
    yield made
    made.close()


def write(pipe: Pipe, data: bytes) -> None:
    fd = os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        assert os.write(fd, data) == len(data)
    finally:
        os.close(fd)


def readable(pipe: Pipe) -> bool:
    return bool(select.select([pipe.fd], [], [], 0)[0])


def test_only_this_user_may_write_to_it(pipe: Pipe) -> None:
    assert os.stat(pipe.path).st_mode & 0o7777 == 0o600
    assert os.stat(os.path.dirname(pipe.path)).st_mode & 0o7777 == 0o700


def test_lines_come_as_they_were_written(pipe: Pipe) -> None:
    assert pipe.read() == []
    write(pipe, b"one\ntwo\n")
    write(pipe, b"\nthree\n")
    assert readable(pipe)
    assert pipe.read() == [b"one", b"two", b"three"]
    assert (pipe.counts["lines"], pipe.counts["bytes"]) == (3, 15)


def test_a_client_that_goes_does_not_wake_the_agent(pipe: Pipe) -> None:
    write(pipe, b"one\n")
    pipe.read()
    assert not readable(pipe)
    assert pipe.read() == []


def test_half_a_line_waits_for_its_other_half(pipe: Pipe) -> None:
    write(pipe, b"one\ntw")
    assert pipe.read() == [b"one"]
    write(pipe, b"o\nthr")
    assert pipe.read() == [b"two"]
    write(pipe, b"ee")
    assert pipe.read() == []
    write(pipe, b"\n")
    assert pipe.read() == [b"three"]


def test_a_line_of_the_limit_is_taken_and_a_longer_one_is_dropped_and_counted(pipe: Pipe) -> None:
    write(pipe, b"x" * LIMIT + b"\n")
    write(pipe, b"y" * (LIMIT + 1) + b"\nshort\n")
    assert pipe.read() == [b"x" * LIMIT, b"short"]
    assert pipe.counts["overlong"] == 1


def test_a_line_without_end_is_dropped_up_to_its_newline_and_counted_once(pipe: Pipe) -> None:
    for _ in range(40):
        write(pipe, b"z" * 3000)
        assert pipe.read() == []
        assert len(pipe._rest) <= LIMIT
    write(pipe, b"zzz\nnext\n")
    assert pipe.read() == [b"next"]
    assert pipe.counts["overlong"] == 1


def test_a_flood_is_read_in_bounded_pieces(pipe: Pipe) -> None:
    fd = os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK)
    written = 0
    try:
        while True:
            written += os.write(fd, b"x\n" * 500)
    except BlockingIOError:
        pass
    finally:
        os.close(fd)
    assert written > PIPE_BYTES // 2
    lines = pipe.read()
    assert len(lines) == written // 2
    assert not readable(pipe)


def test_a_removed_pipe_is_made_anew_and_what_the_old_one_held_is_not_lost(pipe: Pipe) -> None:
    pipe.check()
    write(pipe, b"old\nhalf")
    os.unlink(pipe.path)
    before = pipe.fd
    pipe.check()
    assert pipe.fd == before
    assert pipe.counts["remade"] == 1
    assert not readable(pipe)
    write(pipe, b"new\n")
    assert readable(pipe)
    assert pipe.read() == [b"old", b"new"]
    pipe.check()
    assert pipe.counts["remade"] == 1


def test_a_removed_directory_is_made_anew_too(pipe: Pipe) -> None:
    os.unlink(pipe.path)
    Path(pipe.path).parent.rmdir()
    pipe.check()
    write(pipe, b"new\n")
    assert pipe.read() == [b"new"]


def test_what_was_put_in_its_place_goes(pipe: Pipe) -> None:
    place = Path(pipe.path)
    for put in (place.touch, lambda: os.mkfifo(place), place.mkdir, lambda: place.symlink_to("/dev/null")):
        os.unlink(place)
        put()
        pipe.check()
        assert pipe.problem is None
        write(pipe, b"new\n")
        assert pipe.read() == [b"new"]
    assert pipe.counts["remade"] == 4


def test_while_it_cannot_be_made_anew_the_old_one_is_read_on(pipe: Pipe) -> None:
    client = os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK)
    os.unlink(pipe.path)
    Path(pipe.path).mkdir()
    (Path(pipe.path) / "precious").touch()
    pipe.check()
    assert pipe.problem is not None and "not empty" in pipe.problem
    assert pipe.counts["failed"] == 1
    os.write(client, b"old\n")
    os.close(client)
    assert readable(pipe)
    assert pipe.read() == [b"old"]
    (Path(pipe.path) / "precious").unlink()
    pipe.check()
    assert pipe.problem is None
    write(pipe, b"new\n")
    assert pipe.read() == [b"new"]


def test_a_pipe_that_an_earlier_agent_left_is_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "pipe", 0o666)
    pipe = Pipe(str(tmp_path))
    assert os.stat(pipe.path).st_mode & 0o777 == 0o600
    pipe.close()
    assert not os.path.lexists(pipe.path)


def test_closing_leaves_a_pipe_alone_that_is_not_its_own(pipe: Pipe) -> None:
    other = Pipe(os.path.dirname(pipe.path))
    write(other, b"for the other\n")
    pipe.check()
    other.close()
    assert os.path.exists(pipe.path)


def test_in_a_directory_that_others_may_write_to_there_is_no_pipe(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    pipe = Pipe(str(tmp_path))
    assert pipe.problem is not None and "others may write to it (mode 770)" in pipe.problem
    assert not readable(pipe) and pipe.read() == []
    pipe.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_in_another_users_directory_there_is_no_pipe(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    tmp_path.chmod(0o700)
    pipe = Pipe(str(tmp_path))
    assert pipe.problem is not None and "belongs to user 12345" in pipe.problem
    pipe.close()


def test_a_directory_that_cannot_be_made_is_a_problem_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pipe = Pipe(str(tmp_path / "file" / "node"))
    assert pipe.problem is not None
    (tmp_path / "file").unlink()
    pipe.check()
    assert pipe.problem is None
    write(pipe, b"new\n")
    assert pipe.read() == [b"new"]
    assert os.stat(tmp_path / "file").st_mode & 0o777 == 0o700
    pipe.close()
