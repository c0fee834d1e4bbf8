"""The steps that a rank reports, written and read in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.heartbeat_page import read_progress


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    words = heartbeat_page.open_writer(tmp_path)
    assert words is not None
    assert read_progress(tmp_path) is None
    step = heartbeat_page.stepper(words)
    step(-3)
    step(2**62)
    seen = read_progress(tmp_path)
    assert seen is not None
    assert (seen.first_step, seen.last_step, seen.marks) == (-3, 2**62, 2)
    again = heartbeat_page.open_writer(tmp_path)
    assert again is not None
    heartbeat_page.stepper(again)(7)
    seen = read_progress(tmp_path)
    assert seen is not None
    assert (seen.first_step, seen.last_step, seen.marks) == (-3, 7, 3)


@pytest.mark.parametrize(
    "content", [b"", b"x" * 64, b"ftsprog1", b"ftsprog1" + b"\xff" * 56, b"x" * heartbeat_page.SIZE]
)
def test_what_is_no_progress_mark_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "progress").write_bytes(content)
    assert read_progress(tmp_path) is None
    words = heartbeat_page.open_writer(tmp_path)
    assert words is not None
    heartbeat_page.stepper(words)(4)
    seen = read_progress(tmp_path)
    assert seen is not None
    assert (seen.first_step, seen.last_step) == (4, 4)
