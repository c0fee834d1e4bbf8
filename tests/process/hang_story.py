"""What the tests about hanging ranks share: a script that hangs on demand, and what a run directory says afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from test_run import Started

from ftslurm.monitor.stacks import RankStacks, parse

# Writes its pid into a file `up<rank>.<round>`; `train` goes on until the file `done` is there.
RANK = """\
import os, signal, sys, threading, time
import ftslurm
rank, round_ = int(os.environ["RANK"]), int(os.environ["FTSLURM_ROUND"])
def up(what="up"):
    open(f"{what}{rank}.{round_}.tmp", "w").write(str(os.getpid()))
    os.rename(f"{what}{rank}.{round_}.tmp", f"{what}{rank}.{round_}")
def fetch():
    time.sleep(600)
def train(hangs=None, act=fetch, at=5):
    for step in range(100000):
        ftslurm.heartbeat()
        ftslurm.progress(step)
        if step == 0:
            up()
        if round_ == 1 and rank == hangs and step == at:
            act()
        time.sleep(0.02)
        if round_ > 1 and step > 5 or os.path.exists("done"):
            break
"""
NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--heartbeat", "0.5", "--grace", "5")
QUICK = ("--heartbeat-timeout", "2")


def stacks(run: Started, round_: int = 1) -> dict[int, RankStacks]:
    """Return what the ranks of a round have shown, by rank."""
    found = {}
    for path in sorted((run.run_dir / f"rounds/{round_:06d}/ranks").glob("*/stacks.txt")):
        read = parse(path.read_bytes())
        assert read is not None, path.read_text()
        assert read.rank == int(path.parent.name)
        found[read.rank] = read
    return found


def workers(run: Started, round_: int = 1) -> dict[int, dict[str, Any]]:
    """Return how the ranks of a round ended, by rank."""
    nodes = [json.loads(path.read_text()) for path in (run.run_dir / f"rounds/{round_:06d}/nodes").glob("*.json")]
    return {worker["rank"]: worker for node in nodes for worker in node["workers"]}


def state(run: Started) -> dict[str, Any]:
    """Return the newest state."""
    newest = sorted((run.run_dir / "state").glob("0*.json"))[-1]
    found: dict[str, Any] = json.loads(newest.read_text())["value"]
    return found


def history(run: Started) -> list[dict[str, Any]]:
    """Return the rounds that are in the newest state."""
    found: list[dict[str, Any]] = state(run)["history"]
    return found


def hung(run: Started, round_: int = 1) -> dict[str, Any]:
    """Return the failure of a round, which must be a hang."""
    past = next(entry for entry in history(run) if entry["round"] == round_)
    failure: dict[str, Any] = past["failure"]
    assert failure is not None and failure["kind"] == "hang", (past, run.err)
    return failure


def blamed(run: Started) -> dict[str, Any]:
    """Return what the report says of round 1: "rank", "node", "where" and so on."""
    found: dict[str, Any] = json.loads((run.run_dir / "report.json").read_text())["rounds"][0]["first_failure"]
    return found


def all_showed_before_the_end(run: Started, ranks: int, round_: int = 1) -> None:
    """Check that the stacks of all ranks were there before the first of them was ended."""
    shown, ended = stacks(run, round_), workers(run, round_)
    assert sorted(shown) == sorted(ended) == list(range(ranks)), run.err
    # Local nodes have one clock.
    assert max(s.time_ns for s in shown.values()) <= min(w["ended_ns"] for w in ended.values())


def pid_of(run: Started, rank: int, round_: int = 1, what: str = "up") -> int:
    """Return the process of a rank, once it is under way."""
    path = run.directory / f"{what}{rank}.{round_}"
    run.until(path.exists, 60)
    return int(path.read_text())


def agents(run: Started) -> dict[str, int]:
    """Return the nodes' agents: their process ids by their nodes' names."""
    records = [json.loads(path.read_text()) for path in (run.run_dir / "nodes").glob("*.json")]
    return {record["node"]: record["pid"] for record in records}


def proc_state(pid: int) -> str:
    """Return a process's state as one letter; empty when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return ""
