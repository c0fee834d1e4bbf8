"""The event log of real runs: what agents write that fail, die and start again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_run
from test_agent_killed import QUICK, ROUNDS, agent_of, finish, in_round
from test_run import Start, Started

start = test_run.start
FAILS_ONCE = """
import os
print("rank", os.environ["RANK"], "speaks", flush=True)
if os.environ["FTSLURM_ROUND"] == "1" and os.environ["RANK"] == "1":
    raise ValueError("boom")
"""
NODES = ("--local-nodes", "2", "--health", "off", *QUICK)


def events(run: Started) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "ftslurm.cli", "history", "--events", str(run.run_dir), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=run.directory).stdout)
    assert found["problems"] == []
    listed: list[dict[str, Any]] = found["events"]
    return listed


def kinds(run: Started, *left_out: str) -> list[str]:
    return [event["event"] for event in events(run) if event["event"] not in left_out]


def test_a_run_that_recovers_has_its_rounds_its_failure_and_the_decision_in_its_log(start: Start) -> None:
    run = start(FAILS_ONCE, *NODES)
    assert run.wait() == 0, run.err
    assert kinds(run) == [
        *("attempt", "coordinator", "round", "failure", "round-ended", "restart"),
        *("round", "round-ended", "end"),
    ]
    failure = events(run)[3]
    assert (failure["rank"], failure["cause"], failure["text"]) == (
        1,
        "exception",
        "rank 1 on local1: ValueError: boom",
    )
    # What readers add from the state is no substitute for what is written.
    (path,) = (run.run_dir / "events").iterdir()
    assert (path.name, path.stat().st_mode & 0o777) == ("000001.jsonl", 0o600)
    assert len(path.read_text().splitlines()) == 9


def test_a_coordinator_that_is_killed_leaves_its_file_and_the_next_one_goes_on_in_another(start: Start) -> None:
    run = start(ROUNDS, *NODES)
    in_round(run, 1)
    newest = sorted((run.run_dir / "state").glob("0*.json"))[-1]
    coordinator = json.loads(newest.read_text())["value"]["coordinator"]["node"]
    os.kill(agent_of(run, coordinator), signal.SIGKILL)
    in_round(run, 2)
    finish(run)
    assert len(list((run.run_dir / "events").iterdir())) == 2
    found = events(run)
    assert [event["term"] for event in found if event["event"] == "coordinator"] == [1, 2]
    for kind in ("round", "round-ended"):
        assert [event["round"] for event in found if event["event"] == kind] == [1, 2]
    (lost,) = [event for event in found if event["event"] == "node-lost"]
    assert (lost["node"], lost["round"]) == (coordinator, 1)


def test_the_log_is_kept_when_the_run_starts_again(start: Start) -> None:
    for attempt in (1, 2):
        run = start("pass", "--rdzv-id", "again", "--health", "off")
        assert run.wait() == 0, run.err
        assert kinds(run).count("end") == attempt
    assert [event["text"] for event in events(run) if event["event"] == "attempt"] == [
        *("attempt 1 of the run: 1 node", "attempt 2 of the run: 1 node")
    ]
    assert [event["round"] for event in events(run) if event["event"] == "round"] == [1, 2]


def link(path: Path) -> None:
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("in_the_way", [Path.touch, link])
def test_a_log_that_cannot_be_written_costs_one_line_and_nothing_else(
    start: Start, tmp_path: Path, in_the_way: Callable[[Path], None]
) -> None:
    directory = tmp_path / "runs" / "refused"
    directory.mkdir(0o700, parents=True)
    in_the_way(directory / "events")
    run = start(FAILS_ONCE, *NODES, "--shared-dir", str(tmp_path / "runs"), "--rdzv-id", "refused")
    assert run.wait() == 0, run.err
    (line,) = [line for line in run.err.splitlines() if "event" in line]
    assert re.fullmatch(
        r"ftslurm: local\d: events cannot be logged in .*/events/000001.jsonl: .*; the run goes on", line
    )
    assert not (run.directory / "elsewhere").exists()
