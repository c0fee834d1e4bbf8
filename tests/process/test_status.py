"""`ftslurm status` of a real run: while it runs, and after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CLI = [sys.executable, "-m", "ftslurm.cli"]
TRAIN = """
import os, time, ftslurm
for step in range(100_000):
    ftslurm.heartbeat()
    with ftslurm.section("step"):
        time.sleep(0.02)
    ftslurm.progress(step)
    if os.path.exists("enough"):
        break
"""


def clean() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}


def status(directory: Path, *arguments: str) -> str:
    command = [*CLI, "status", *arguments]
    return subprocess.run(
        command, cwd=directory, env=clean(), capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A run of two nodes with two ranks each; its directory, and its process."""
    (tmp_path / "train.py").write_text(TRAIN)
    options = ["--local-nodes", "2", "--nproc-per-node", "2", "--heartbeat", "0.2", "--section-timeouts", "step=60"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            [*CLI, "run", *options, "train.py"], cwd=tmp_path, env=clean(), stdout=out, stderr=out
        )
    yield tmp_path, process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_the_status_of_a_real_run_while_it_runs_and_after(running: tuple[Path, subprocess.Popen[bytes]]) -> None:
    directory, process = running

    def wait_for_status(what: str) -> dict[str, Any]:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if any((directory / "ftslurm-runs").glob("*/state/*.json")):
                current: dict[str, Any] = json.loads(status(directory, "--json"))
                if current["status"] == what and (current["steps"]["reporting"] == 4 or what == "closed"):
                    return current
            time.sleep(0.1)
        raise AssertionError((directory / "out").read_text())

    current = wait_for_status("running")
    assert [(row["role"], row["ranks"], row["status"]) for row in current["nodes"]] == [
        ("rank", "0-1", "running"),
        ("rank", "2-3", "running"),
    ]
    assert current["steps"]["step_s"] >= 0.01
    assert {"what": "section", "name": "step", "seconds": 60.0, "source": "option"} in current["timeouts"]["entries"]
    assert (current["problems"], current["hang"], current["failures"]) == ([], None, [])
    output = status(directory, "--latest")
    assert "round 1 runs on 2 nodes, 4 ranks, step " in " ".join(output.split())

    (directory / "enough").touch()
    assert process.wait(60) == 0
    closed = wait_for_status("closed")
    assert (closed["closed"]["outcome"], closed["rounds"][0]["outcome"]) == ("succeeded", "succeeded")
    assert " succeeded: all 4 ranks on 2 nodes succeeded\n" in status(directory)


LATE = """
import os, time, ftslurm
while not os.path.exists("begin"):
    time.sleep(0.02)
ftslurm.progress(41)
if os.environ["RANK"] == "3":
    open("stepped", "w").write(str(time.time_ns()))
while not os.path.exists("enough"):
    time.sleep(0.05)
"""


def test_the_first_step_is_visible_within_two_seconds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATE)
    options = ["--local-nodes", "2", "--nproc-per-node", "2"]
    command = [*CLI, "run", *options, "train.py"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=clean(), stdout=out, stderr=out)
    try:

        def wait_for(steps: int) -> dict[str, Any]:
            end = time.monotonic() + 60
            while True:
                done = subprocess.run(
                    [*CLI, "status", "--json"], cwd=tmp_path, env=clean(), capture_output=True, text=True, timeout=60
                )
                found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
                if found.get("status") == "running" and found["steps"]["reporting"] == steps:
                    return found
                assert time.monotonic() < end, done
                time.sleep(0.02)

        wait_for(0)
        (tmp_path / "begin").touch()
        assert wait_for(4)["steps"]["last"] == 41
        # By the records, because each status takes a while on a busy machine.
        (run,) = (tmp_path / "ftslurm-runs").glob("local-*")
        published = json.loads((run / "nodes" / "local1.json").read_text())["time_ns"]
        assert published - int((tmp_path / "stepped").read_text()) < 2e9
        (tmp_path / "enough").touch()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
