"""A directory that is full, or gone, just when a rank fails: its record must not be lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hang_story import history
from test_hanging_directory import Directory, shared
from test_run import Start, small_disk, start

__all__ = ["shared", "small_disk", "start"]

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


def test_what_does_not_get_there_before_the_agent_leaves_is_kept_on_its_node_and_reported(
    start: Start, small_disk: Path, tmp_path: Path
) -> None:
    local = tmp_path / "tmp"
    local.mkdir()
    options = ("--max-restarts", "0", "--join-timeout", "2")
    run = start(FILL, *options, FTSLURM_SHARED_DIR=str(small_disk), TMPDIR=str(local))
    assert run.wait(60) == 1, run.err
    printed = next(line for line in run.err.splitlines() if "kept on this node in" in line)
    assert "No space left on device" in printed
    kept = Path(printed.rpartition(" in ")[2])
    try:
        record = json.loads((kept / "rounds/000001/ranks/00000/error.json").read_text())
        assert record["message"]["message"] == "ValueError: boom"
        assert record["ftslurm"]["step"] == 5
    finally:
        shutil.rmtree(kept)
    assert list(local.iterdir()) == []


# Fills the node-local directory, or removes it, then fails; one that is full has room again when the rank has ended.
LOCAL = {
    "full": """
hog = os.open(os.path.join(os.environ["TMPDIR"], "hog"), os.O_WRONLY | os.O_CREAT)
fill(hog)
""",
    "full until the rank ends": """
hog = os.open(os.path.join(os.environ["TMPDIR"], "hog"), os.O_WRONLY | os.O_CREAT)
os.unlink(os.path.join(os.environ["TMPDIR"], "hog"))
fill(hog)
""",
    "removed": """
import shutil
shutil.rmtree(os.environ["FTSLURM_RECORD_DIR"])
""",
}
FAILS = """
import os, ftslurm
def fill(hog):
    for size in (4096, 1):
        try:
            while True:
                os.write(hog, b"x" * size)
        except OSError:
            pass
ftslurm.progress(5)
if os.environ["RANK"] == "1":
    %s
    raise ValueError("boom")
import time
time.sleep(600)
"""


@pytest.mark.parametrize("what", LOCAL)
def test_what_a_rank_wrote_where_there_was_room_is_completed_and_reported_as_the_first_failure(
    start: Start, small_disk: Path, what: str
) -> None:
    script = FAILS % LOCAL[what].replace("\n", "\n    ")
    run = start(script, "--nproc-per-node", "2", "--max-restarts", "0", TMPDIR=str(small_disk))
    assert run.wait() == 1, run.err
    record = json.loads((run.run_dir / "rounds/000001/ranks/00001/error.json").read_text())
    assert record["message"]["message"] == "ValueError: boom"
    ours = record["ftslurm"]
    assert ours["exception"]["type"] == "ValueError" and ours["exit_code"] == 1
    # What only the agent knows.
    assert ours["host_resources"]["spaces"] and ours["stopped_by_ftslurm"] is False
    assert history(run)[-1]["failure"]["message"] == "ValueError: boom"
    assert "rank 1 failed" in run.err and "exit code 1, no Python exception" not in run.err
    assert "FAILED: rank 1" in run.out and "ValueError: boom" in run.out


def test_a_rank_that_leaves_no_record_fails_all_the_same_while_the_shared_directory_hangs(
    start: Start, shared: Directory
) -> None:
    script = """
import os, time
open(f"up{os.environ['FTSLURM_ROUND']}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
os._exit(3)
"""
    run = start(script, "--max-restarts", "0", FTSLURM_SHARED_DIR=str(shared.path))
    run.until(lambda: (run.directory / "up1").exists())
    shared.hang()
    (run.directory / "go").touch()
    run.until(lambda: "failed: exit code 3" in run.err)
    shared.answer()
    assert run.wait() == 1, run.err
