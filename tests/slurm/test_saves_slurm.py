"""Scripts that save by `ftslurm.commit` when Slurm stops their job: nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

from tests.slurm.conftest import Job, Lab

SCRIPT = """
import json, os, signal, sys, time
import ftslurm
path = f"rank{os.environ['RANK']}.json"
done = json.load(open(path))["done"] if os.path.exists(path) else []
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
while True:
    time.sleep(0.05)
    done.append(done[-1] + 1 if done else 0)
    ftslurm.progress(done[-1])
    if stop or (len(done) >= 400 and "SLURM_RESTART_COUNT" in os.environ):
        with ftslurm.commit(path) as temporary:
            with open(temporary, "w") as file:
                json.dump({"done": done}, file)
        sys.exit(143 if stop else 0)
    if len(done) == 10:
        print("at work", flush=True)
"""
BODY = "exec ftsrun --nproc-per-node 2 --tee 3 train.py"


def submit(lab: Lab, work: Path, *options: str) -> Job:
    (work / "train.py").write_text(SCRIPT)
    job = lab.submit(work, BODY, *options)
    lab.until(lambda: job.output.count("at work") >= 4, 40, job.explain)
    return job


def saved(work: Path) -> list[list[int]]:
    return [json.loads((work / f"rank{rank}.json").read_text())["done"] for rank in range(4)]


def test_a_cancelled_job_saves_its_last_step(lab: Lab, work: Path) -> None:
    job = submit(lab, work)
    lab.command("scancel", job.id, check=True)
    assert job.wait() == "CANCELLED", job.explain()
    for steps in saved(work):
        assert steps == list(range(len(steps))) and len(steps) > 10


def test_a_requeued_job_repeats_no_step(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue")
    lab.command("scontrol", "requeue", job.id, check=True)
    assert job.wait(120) == "COMPLETED", job.explain()
    for steps in saved(work):
        assert steps == list(range(len(steps))) and len(steps) >= 400
