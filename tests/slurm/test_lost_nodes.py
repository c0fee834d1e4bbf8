"""Nodes that die on a real Slurm: whichever it is, the job goes on, or ends with the right reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Job, Lab

TRAIN = """\
import os, time
import ftslurm
open(f"up.{os.environ['FTSLURM_ROUND']}.{os.environ['RANK']}.{os.environ['SLURMD_NODENAME']}", "w").close()
for step in range(2000):
    ftslurm.progress(step)
    time.sleep(0.05)
    if os.path.exists("finish"):
        break
"""


def state(job: Job) -> dict[str, Any]:
    newest = max((job.run_dir / "state").glob("0*.json"))
    value: dict[str, Any] = json.loads(newest.read_text())["value"]
    return value


def ranks(work: Path, round_: int) -> dict[int, str]:
    """Return on which node each rank ran in that round."""
    found = [path.name.split(".") for path in work.glob(f"up.{round_}.*")]
    return {int(rank): node for _, _, rank, node in found}


@pytest.fixture
def job(lab: Lab, work: Path) -> Job:
    """Two nodes of three train; the third is a spare."""
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, "exec ftsrun --nnodes 2 --node-timeout 4 --heartbeat 1 train.py", nodes=3)
    lab.until(lambda: len(ranks(work, 1)) == 2, 30, job.explain)
    return job


def test_a_spare_takes_the_place_of_a_node_that_dies_and_the_other_rank_stays(lab: Lab, work: Path, job: Job) -> None:
    first = ranks(work, 1)
    assert first == {0: "t1", 1: "t2"}
    lab.lab("kill-node", "t2")
    try:
        lab.until(lambda: len(ranks(work, 2)) == 2, 60, job.explain)
        assert ranks(work, 2) == {0: "t1", 1: "t3"}
        (work / "finish").touch()
        job.until_output("succeeded after 1", 40)
        assert "t2 was lost" in job.output, job.output
        # Slurm 22.05 finds out about the node by itself, which may take a while longer.
        assert job.wait(60) in ("COMPLETED", "NODE_FAIL"), job.explain()
    finally:
        lab.lab("revive-node", "t2")


def test_the_coordinators_node_may_die_as_any_other(lab: Lab, work: Path, job: Job) -> None:
    coordinator = state(job)["coordinator"]["node"]
    lab.lab("kill-node", coordinator)
    try:
        lab.until(lambda: state(job)["coordinator"]["node"] != coordinator, 40, job.explain)
        # A spare may have been the coordinator: its death ends no round.
        rounds = 2 if coordinator in ranks(work, 1).values() else 1
        lab.until(lambda: state(job)["phase"] == "running" and state(job)["round"] == rounds, 40, job.explain)
        (work / "finish").touch()
        job.until_output("succeeded", 40)
    finally:
        lab.lab("revive-node", coordinator)


def test_the_batch_host_may_die_and_the_job_still_ends_with_a_report(lab: Lab, work: Path, job: Job) -> None:
    lab.lab("kill-node", "t1")
    try:
        lab.until(lambda: len(ranks(work, 2)) == 2, 60, job.explain)
        assert set(ranks(work, 2).values()) == {"t2", "t3"}
        (work / "finish").touch()
        # No process is left to wait for: the batch script died with its node, so the agents end the job themselves.
        lab.until(lambda: job.state not in ("RUNNING", "COMPLETING"), 60, job.explain)
        assert state(job)["closed"]["outcome"] == "succeeded"
        assert "succeeded after 1" in job.output, job.output
    finally:
        lab.lab("revive-node", "t1")
