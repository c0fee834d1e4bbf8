"""A shared directory that is full just when a rank fails: its record must not be lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from test_run import Start, small_disk, start

__all__ = ["small_disk", "start"]

# Fills the shared directory, then fails itself.
FILL = """
import os, ftslurm
ftslurm.progress(5)
hog = os.open(os.path.join(os.environ["FTSLURM_SHARED_DIR"], "hog"), os.O_WRONLY | os.O_CREAT)
for size in (4096, 1):
    try:
        while True:
            os.write(hog, b"x" * size)
    except OSError:
        pass
raise ValueError("boom")
"""


def test_the_record_of_the_first_failure_gets_there_when_space_returns(start: Start, small_disk: Path) -> None:
    run = start(FILL, "--max-restarts", "0", FTSLURM_SHARED_DIR=str(small_disk))
    run.until(lambda: "No space left on device" in run.err)
    (small_disk / "hog").unlink()
    assert run.wait() == 1, run.err
    (path,) = small_disk.glob("*/rounds/000001/ranks/00000/error.json")
    assert json.loads(path.read_text())["message"]["message"] == "ValueError: boom"
    assert "kept on this node" not in run.err


def test_what_does_not_get_there_before_the_agent_leaves_is_kept_on_its_node_and_said(
    start: Start, small_disk: Path, tmp_path: Path
) -> None:
    local = tmp_path / "tmp"
    local.mkdir()
    options = ("--max-restarts", "0", "--join-timeout", "2")
    run = start(FILL, *options, FTSLURM_SHARED_DIR=str(small_disk), TMPDIR=str(local))
    assert run.wait(60) == 1, run.err
    said = next(line for line in run.err.splitlines() if "kept on this node in" in line)
    assert "No space left on device" in said
    kept = Path(said.rpartition(" in ")[2])
    try:
        record = json.loads((kept / "rounds/000001/ranks/00000/error.json").read_text())
        assert record["message"]["message"] == "ValueError: boom"
        assert record["ftslurm"]["step"] == 5
    finally:
        shutil.rmtree(kept)
    assert list(local.iterdir()) == []
