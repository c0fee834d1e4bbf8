"""The last lines of a log file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.logs.tail import CHUNK, LogFile


def last(path: Path, lines: int | None) -> bytes:
    file = LogFile(str(path), lines)
    try:
        return b"".join(file.read())
    finally:
        file.close()


@pytest.mark.parametrize("content", [b"", b"a", b"a\n", b"\n\n\n", b"a\nb\nc", b"a\nb\nc\n", b"\na"])
@pytest.mark.parametrize("lines", [0, 1, 2, 3, 9, None])
def test_the_last_lines_are_those_of_tail(tmp_path: Path, content: bytes, lines: int | None) -> None:
    (tmp_path / "log").write_bytes(content)
    every = content.splitlines(keepends=True)
    assert last(tmp_path / "log", lines) == b"".join(
        every[len(every) - min(lines, len(every)) :] if lines is not None else every
    )


def test_lines_longer_than_what_is_read_at_once_are_whole(tmp_path: Path) -> None:
    long = [bytes([65 + i]) * (CHUNK + 7 * i) for i in range(5)]
    (tmp_path / "log").write_bytes(b"\n".join(long) + b"\n")
    assert last(tmp_path / "log", 2) == long[3] + b"\n" + long[4] + b"\n"
    assert last(tmp_path / "log", 5) == b"\n".join(long) + b"\n"


def test_a_file_that_appears_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), None)
    assert b"".join(file.read()) == b""
    (tmp_path / "log").write_bytes(b"a\nb\n")
    assert b"".join(file.read()) == b"a\nb\n"
    assert b"".join(file.read()) == b""
    file.close()


def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "log").symlink_to(tmp_path / "secret")
    assert last(tmp_path / "log", None) == b""
