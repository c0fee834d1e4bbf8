"""Agents that are killed are replaced; what is left when guardian and agent are killed together is swept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import test_run
from test_run import Start, Started, guardian_of

from ftslurm.agent.guardian import REPLACEMENTS

start = test_run.start

ROUNDS = """
import os, subprocess, sys, time
rank, number = os.environ["RANK"], os.environ["FTSLURM_ROUND"]
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(f"up{rank}.{number}", "w").close()
while not os.path.exists("done"):
    time.sleep(0.02)
"""
QUICK = ("--heartbeat", "0.5", "--node-timeout", "4")


def in_round(run: Started, number: int, ranks: int = 2) -> None:
    run.until(lambda: all((run.directory / f"up{rank}.{number}").exists() for rank in range(ranks)))


def agent_of(run: Started, node: str) -> int:
    return int(json.loads((run.run_dir / f"nodes/{node}.json").read_text())["pid"])


def finish(run: Started) -> None:
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    assert run.marked() == []


@pytest.mark.parametrize("node", ["local0", "local1"])
def test_a_killed_agent_costs_a_restart_and_not_its_node(start: Start, node: str) -> None:
    run = start(ROUNDS, "--local-nodes", "2", *QUICK)
    in_round(run, 1)
    os.kill(agent_of(run, node), signal.SIGKILL)
    in_round(run, 2)
    assert f"{node} left: its agent was killed by SIGKILL; restart 1 of 3" in run.err
    finish(run)
    first = json.loads((run.run_dir / "report.json").read_text())["rounds"][0]["first_failure"]
    assert (first["nodes"], first["cause"]) == ([node], "agent-lost"), first


def test_the_only_nodes_agent_is_replaced_in_the_same_run(start: Start) -> None:
    run = start(ROUNDS, *QUICK)
    in_round(run, 1, ranks=1)
    os.kill(agent_of(run, os.uname().nodename.partition(".")[0]), signal.SIGKILL)
    in_round(run, 2, ranks=1)
    finish(run)
    assert len(list((run.directory / "ftslurm-runs").glob("local-*"))) == 1


def test_an_agent_that_is_killed_again_and_again_is_not_replaced_for_ever(start: Start) -> None:
    run = start(ROUNDS, "--local-nodes", "2", "--max-restarts", "10", *QUICK)
    for number in range(1, REPLACEMENTS + 2):
        in_round(run, number)
        os.kill(agent_of(run, "local1"), signal.SIGKILL)
    assert run.wait() == 1, run.err
    assert run.err.count("a new one starts") == REPLACEMENTS
    assert "1 node left, at least 2 needed" in run.err
    assert run.marked() == []


def test_an_agent_that_dies_of_a_stop_is_not_replaced(start: Start) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ROUNDS
    run = start(script, "--grace", "60", *QUICK)
    in_round(run, 1, ranks=1)
    agent = agent_of(run, os.uname().nodename.partition(".")[0])
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: "SIGTERM from outside: stopping" in run.err)
    os.kill(agent, signal.SIGKILL)
    assert run.wait() == 137, run.err
    assert "a new one starts" not in run.err
    assert run.marked() == []


# Both killed


@pytest.mark.alone  # the next start of any run ends what was left
def test_what_a_run_leaves_whose_guardian_and_agent_were_killed_together_is_gone_after_the_next_start(
    start: Start, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run = start(ROUNDS, *QUICK, TMPDIR=str(scratch))
    in_round(run, 1, ranks=1)
    agent = agent_of(run, os.uname().nodename.partition(".")[0])
    guardian = guardian_of(agent)
    (left,) = scratch.iterdir()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (guardian, agent):
            os.kill(pid, number)
    run.wait()
    run.until(lambda: len(run.marked()) == 1, 10)
    ((orphan, _),) = run.marked()
    os.utime(left, (0, 0))
    other = Started(tmp_path, "--rdzv-id", "next", "train.py", TMPDIR=str(scratch))
    run.until(lambda: run.marked() == [])
    run.until(lambda: not left.exists())
    (tmp_path / "done").touch()
    assert other.wait() == 0, other.err
    assert f"ended 1 process that a killed ftslurm run of yours had left on this node: {orphan}" in other.err


@pytest.mark.alone
def test_a_start_leaves_living_runs_and_what_came_from_other_hosts_alone(start: Start, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run = start(ROUNDS, *QUICK, TMPDIR=str(scratch))
    in_round(run, 1, ranks=1)
    (own,) = scratch.iterdir()
    os.utime(own, (0, 0))
    before = sorted(run.marked())
    # Started by ssh or srun from another node, where its guardian may be alive.
    foreign = {**os.environ, "FTSLURM_SUPERVISOR": "11111111-2222-3333-4444-555555555555.4026531836.1.1"}
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=foreign)
    try:
        done = subprocess.run(
            [*test_run.RUN, "--rdzv-id", "next", "--no-python", "true"],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(scratch)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "had left" not in done.stderr
        assert sorted(run.marked()) == before
        assert own.exists()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    finish(run)
