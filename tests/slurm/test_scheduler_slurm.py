"""Jobs that a real Slurm ends from outside: the report says what Slurm did."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.slurm.conftest import Job, Lab

TRAIN = """\
import os, time
import ftslurm
open(f"up.{os.environ['RANK']}", "w").close()
for step in range(2000):
    ftslurm.progress(step)
    time.sleep(0.05)
"""

LOOK = """\
import pathlib, sys, time
from ftslurm.report.pipeline import make_report
from ftslurm.report.text import render
offline = sys.argv[2] == "offline"
print(render(make_report(pathlib.Path(sys.argv[1]), now_ns=time.time_ns() + 3600 * 10**9, offline=offline)))
"""


def start(lab: Lab, work: Path, *options: str) -> Job:
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, "exec ftsrun --node-timeout 4 --heartbeat 1 train.py", *options)
    lab.until(lambda: len(list(work.glob("up.*"))) == 2, 40, job.explain)
    return job


def test_the_output_of_a_cancelled_job_names_the_cancellation(lab: Lab, work: Path) -> None:
    job = start(lab, work)
    lab.command("scancel", job.id, check=True)
    job.until_output(f"job-{job.id} was stopped: cancelled by ")
    assert job.wait() == "CANCELLED"
    assert "no rank is to blame" in job.output
    record = json.loads((job.run_dir / "attempts" / f"{job.id}.0" / "scheduler.json").read_text())
    assert (record["job_id"], record["problem"]) == (job.id, None)


def test_a_sigterm_by_which_slurm_ends_nothing_is_not_called_a_cancellation(lab: Lab, work: Path) -> None:
    job = start(lab, work)
    lab.command("scancel", "--signal=TERM", job.id, check=True)
    job.until_output(f"job-{job.id} was stopped: SIGTERM from outside")
    job.wait()
    assert "cancelled by" not in job.output


def test_a_report_from_a_login_node_explains_a_job_whose_nodes_are_all_gone(lab: Lab, work: Path) -> None:
    job = start(lab, work, "--no-kill=off", "--no-requeue")
    lab.lab("kill-node", "t1")
    lab.lab("kill-node", "t2")
    try:
        lab.command("scontrol", "update", "nodename=t1,t2", "state=DOWN", "reason=died", check=True)
        assert job.wait() == "NODE_FAIL"
        # An hour later, so that the last signs of life are old.
        look = [sys.executable, "-c", LOOK, str(job.run_dir)]
        printed = lab.command(*look, "online").stdout
        assert f"job-{job.id}: no end was recorded" in printed, printed
        assert "  node failed (Slurm: NODE_FAIL)" in printed.splitlines(), printed
        assert "NODE_FAIL" not in lab.command(*look, "offline").stdout
    finally:
        lab.lab("revive-node", "t1")
        lab.lab("revive-node", "t2")
