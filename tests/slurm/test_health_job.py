"""Health on a real Slurm with five nodes: one is sick before the start, one gets sick, one dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Job, Lab, cluster_of, work_on

SICK = 'f=sick.$SLURMD_NODENAME; if [ -e "$f" ]; then cat "$f"; exit 2; fi; echo well'
TRAIN = """\
import os, time
import ftslurm
node, round_ = os.environ["SLURMD_NODENAME"], os.environ["FTSLURM_ROUND"]
open(f"up.{round_}.{os.environ['RANK']}.{node}", "w").close()
for step in range(2000):
    ftslurm.progress(step)
    time.sleep(0.05)
    if os.path.exists(f"die.{node}"):
        os.remove(f"die.{node}")
        os.kill(os.getpid(), 11)
    if os.path.exists("finish"):
        break
"""


@pytest.fixture(scope="module", name="lab")
def _lab() -> Iterator[Lab]:
    """A cluster of its own: two more nodes that are well would be where other tests expect none."""
    yield from cluster_of("h", 5)


@pytest.fixture(name="work")
def _work(lab: Lab) -> Iterator[Path]:
    yield from work_on(lab)


def ranks(work: Path, round_: int) -> dict[int, str]:
    found = [path.name.split(".") for path in work.glob(f"up.{round_}.*")]
    return {int(rank): node for _, _, rank, node in found}


def node_record(job: Job, node: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.run_dir / "nodes" / f"{node}.json").read_text())
    return found


def test_unhealthy_nodes_are_left_out_ranks_stay_and_the_report_has_the_reason(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    (work / "sick.h1").write_text("the fan stands still\n")
    options = "--nnodes 2 --node-timeout 4 --heartbeat 1 --health-every 2 --health-command"
    body = f"cat >check.sh <<'EOF'\n{SICK}\nEOF\nexec ftsrun {options} 'sh check.sh' train.py"
    job = lab.submit(work, body, nodes=5)

    # h1 is sick before the start.
    lab.until(lambda: len(ranks(work, 1)) == 2, 60, job.explain)
    assert ranks(work, 1) == {0: "h2", 1: "h3"}
    assert "the fan stands still" in node_record(job, "h1")["unhealthy"]

    # h3 gets sick: its rank crashes, and its check says why.
    (work / "sick.h3").write_text("the disk is worn out\n")
    (work / "die.h3").touch()
    lab.until(lambda: len(ranks(work, 2)) == 2, 60, job.explain)
    assert ranks(work, 2) == {0: "h2", 1: "h4"}

    # h2 dies.
    lab.lab("kill-node", "h2")
    try:
        lab.until(lambda: len(ranks(work, 3)) == 2, 60, job.explain)
        assert ranks(work, 3) == {0: "h5", 1: "h4"}
        (work / "finish").touch()
        job.until_output("succeeded after 2", 60)
    finally:
        lab.lab("revive-node", "h2")
    output = job.output
    assert "h1: health: unhealthy: it takes no part in any round" in output
    assert "h3" in output and "the disk is worn out" in output, output
    assert "h2 was lost" in output, output
    report = json.loads(lab.command("ftslurm", "report", str(job.run_dir), "--format", "json").stdout)
    found = {entry["node"]: entry["text"] for entry in report["health"]["findings"] if entry["status"] == "fail"}
    assert "the fan stands still" in found["h1"] and "the disk is worn out" in found["h3"], report["health"]
    # A node that was left out may come back as a spare.
    assert job.wait(60) in ("COMPLETED", "NODE_FAIL"), job.explain()


def test_a_node_that_is_mended_is_a_spare_again(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    (work / "check.sh").write_text(SICK + "\n")
    (work / "sick.h1").write_text("resting\n")
    options = "--nnodes 2 --health-every 1 --health-command 'sh check.sh'"
    job = lab.submit(work, f"exec ftsrun {options} train.py", nodes=3)
    lab.until(lambda: len(ranks(work, 1)) == 2, 60, job.explain)
    (work / "sick.h1").unlink()
    lab.until(lambda: node_record(job, "h1")["unhealthy"] is None, 30, job.explain)
    (work / "die.h3").touch()
    lab.until(lambda: len(ranks(work, 2)) == 2, 60, job.explain)
    (work / "finish").touch()
    assert job.wait(60) == "COMPLETED", job.explain()
    assert "h1: health: this node is healthy again" in job.output


def test_without_health_checks_nothing_is_checked(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text("import os")
    job = lab.submit(work, "exec ftsrun --health off train.py", nodes=2)
    assert job.wait(60) == "COMPLETED", job.explain()
    assert node_record(job, "h1")["health"] is None
