"""Ranks that hang on the real Slurm: named, shown with all others, and survived."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftslurm.monitor.stacks import RankStacks, parse
from tests.slurm.conftest import Job, Lab

HANGING = """\
import os, signal, time
import ftslurm
rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
def fetch():
    time.sleep(600)
"""
COLLECTIVE = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(8):
    ftslurm.heartbeat()
    ftslurm.progress(step)
    if first and rank == 2 and step == 3:
        fetch()
    dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""
STOPPED = """
for step in range(100000):
    ftslurm.heartbeat()
    ftslurm.progress(step)
    if first and rank == 3 and step == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    if not first and step > 5:
        break
    time.sleep(0.02)
"""
PEER = """
import torch
import torch.distributed as dist
from ftslurm import peer
dist.init_process_group("gloo")
stop = peer.start(period=0.3, timeout=1.0)
if first and rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(torch.ones(8))
stop.set()
dist.destroy_process_group()
"""


def submit(lab: Lab, work: Path, script: str, options: str) -> Job:
    (work / "train.py").write_text(HANGING + script)
    return lab.submit(work, f"exec ftsrun --nproc-per-node 2 --max-restarts 1 {options} train.py")


def shown(job: Job) -> dict[int, RankStacks]:
    found = {}
    for path in (job.run_dir / "rounds/000001/ranks").glob("*/stacks.txt"):
        read = parse(path.read_bytes())
        assert read is not None, path.read_text()
        found[read.rank] = read
    return found


def ends(job: Job) -> dict[int, dict[str, Any]]:
    nodes = [json.loads(path.read_text()) for path in (job.run_dir / "rounds/000001/nodes").glob("*.json")]
    return {worker["rank"]: worker for node in nodes for worker in node["workers"]}


def blamed(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.run_dir / "report.json").read_text())["rounds"][0]["first_failure"]
    return found


def test_a_rank_that_sleeps_while_the_others_wait_in_a_collective_is_named_and_the_job_goes_on(
    lab: Lab, work: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    job = submit(lab, work, COLLECTIVE, "--heartbeat-timeout 3")
    assert job.wait(120) == "COMPLETED", job.explain()
    stacks = shown(job)
    assert sorted(stacks) == [0, 1, 2, 3], job.explain()
    assert "in fetch" in stacks[2].stacks.text
    assert all("in all_reduce" in stacks[rank].stacks.text for rank in (0, 1, 3))
    # One machine, one clock: all had shown where they were before the first one was ended.
    assert max(s.time_ns for s in stacks.values()) <= min(worker["ended_ns"] for worker in ends(job).values())
    found = blamed(job)
    assert (found["rank"], found["node"], found["where"]["function"]) == (2, "t2", "fetch"), job.output
    assert "all_reduce" in job.output


def test_a_stopped_rank_is_reported_as_stopped_and_the_job_goes_on(lab: Lab, work: Path) -> None:
    job = submit(lab, work, STOPPED, "--heartbeat-timeout 2")
    assert job.wait(90) == "COMPLETED", job.explain()
    assert sorted(shown(job)) == [0, 1, 2, 3]
    assert "stopped (SIGSTOP)" in (shown(job)[3].stacks.problem or "")
    assert ends(job)[3]["signal"] == "SIGKILL"
    assert (blamed(job)["rank"], blamed(job)["node"]) == (3, "t2"), job.output
    assert "stopped (SIGSTOP)" in job.output


def test_a_rank_that_answers_no_peer_is_named_by_those_of_the_other_node_and_the_job_goes_on(
    lab: Lab, work: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    job = submit(lab, work, PEER, "")
    assert job.wait(120) == "COMPLETED", job.explain()
    assert "rank 2 did not answer the peer heartbeat" in job.output


UNWATCHED = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(8):
    if rank == 2 and step == 3:
        fetch()
    dist.all_reduce(torch.ones(8))
"""


@pytest.mark.parametrize("ended_by", ["scancel", "time limit"])
def test_a_hang_that_nothing_watched_for_is_one_when_the_job_ends(lab: Lab, work: Path, ended_by: str) -> None:
    (work / "train.py").write_text(HANGING + UNWATCHED)
    job = lab.submit(work, "exec ftsrun --nproc-per-node 2 train.py", "--time=1")
    if ended_by == "scancel":
        lab.until(lambda: "round 1: 4 ranks" in job.output, 30, job.explain)
        # Ranks that stand still for so long do not only compute.
        lab.until(lambda: "00:00:4" in job.facts().get("RunTime", ""), 60, job.explain)
        lab.command("scancel", job.id, check=True)
    assert job.wait(180) in ("CANCELLED", "TIMEOUT", "FAILED"), job.explain()
    text = " ".join(job.output.split())
    assert "no rank had moved for" in text, job.output
    assert "rank 2 on" in text and "in time.sleep at train.py:5" in text, job.output
    assert "no rank is to blame" not in text
