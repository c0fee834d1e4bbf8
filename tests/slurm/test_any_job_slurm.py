"""`ftslurm report --job` on a real Slurm: any job's output is found, and completed by what Slurm knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.conftest import Job, Lab

TRAIN = """\
import os, signal, sys, time
rank = int(os.environ["SLURM_PROCID"])
print("step 1", flush=True)
if rank == 1:
    time.sleep(0.5)
    if sys.argv[1] == "raise":
        raise ValueError("bad batch 42")
    if sys.argv[1] == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
if sys.argv[1] in ("hang", "wait"):
    open(f"up.{rank}", "w").close()
    time.sleep(120)
"""


def report(lab: Lab, job: Job, *more: str) -> tuple[int, str]:
    done = lab.command("ftslurm", "report", "--job", job.id, *more, cwd=job.directory)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("how", "options", "says"),
    [
        ("raise", "", "rank 1 on {node}: ValueError: bad batch 42"),
        ("raise", "--label", "rank 1 on {node}: ValueError: bad batch 42"),
        ("raise", "--kill-on-bad-exit", "rank 1 on {node}: ValueError: bad batch 42"),
        ("crash", "", "rank 1 on {node}: segmentation fault"),
        ("missing", "", "could not be started: "),
    ],
)
def test_a_failed_job_of_plain_srun_is_explained(lab: Lab, work: Path, how: str, options: str, says: str) -> None:
    (work / "train.py").write_text(TRAIN)
    program = "nosuchprogram" if how == "missing" else f"python3 train.py {how}"
    job = lab.submit(work, f"srun {options} {program}")
    assert job.wait() == "FAILED"
    code, text = report(lab, job, "--exit-code")
    assert code == int(job.facts()["ExitCode"].split(":")[0])
    flat = " ".join(text.split())
    assert f"job-{job.id} FAILED: " in flat
    assert says.format(node=lab.nodes[1]) in flat
    assert f"job {job.id} FAILED" in flat


def test_a_cancelled_job_is_reported_as_cancelled(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, "srun python3 train.py hang")
    lab.until(lambda: len(list(work.glob("up.*"))) == 2, 40, job.explain)
    lab.command("scancel", job.id, check=True)
    assert job.wait() == "CANCELLED"
    code, text = report(lab, job, "--exit-code")
    assert code != 0
    assert f"job-{job.id} was stopped: cancelled by " in text
    assert "no rank is to blame" in text


def test_a_dead_node_is_named(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, "srun python3 train.py wait", "--no-kill=off", "--no-requeue")
    lab.until(lambda: len(list(work.glob("up.*"))) == 2, 40, job.explain)
    dead = lab.nodes[1]
    lab.lab("kill-node", dead)
    try:
        lab.command("scontrol", "update", f"nodename={dead}", "state=DOWN", "reason=died", check=True)
        assert job.wait() == "NODE_FAIL"
        _, text = report(lab, job)
        assert f"job-{job.id} FAILED: {dead} failed (Slurm: NODE_FAIL)" in text, text
        assert dead in text, job.output
    finally:
        lab.lab("revive-node", dead)
        lab.command("scontrol", "update", f"nodename={dead}", "state=RESUME")
