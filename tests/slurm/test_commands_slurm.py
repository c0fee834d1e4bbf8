"""`ftslurm list`, `restart` and `status` on a real Slurm."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.slurm.conftest import Job, Lab

TRAIN = """
import os, sys, time, ftslurm
from pathlib import Path
here = Path(os.environ["SLURM_SUBMIT_DIR"])
first = int(os.environ["FTSLURM_ROUND"])
print("round", first, "arguments", *sys.argv[1:], flush=True)
print("round", first, "LR", os.environ.get("LR"), flush=True)
for step in range(100 * first, 10_000):
    ftslurm.progress(step)
    if (here / "enough").exists():
        break
    if (here / "fail").exists():
        sys.exit("asked to fail")
    time.sleep(0.05)
"""
BODY = 'exec ftsrun --max-restarts 0 train.py "$@"'


def submit(lab: Lab, work: Path, *options: str, arguments: tuple[str, ...] = (), nodes: int = 2) -> Job:
    (work / "train.py").write_text(TRAIN)
    script = work / "job.sbatch"
    script.write_text(f"#!/bin/bash\n{BODY}\n")
    argv = ["sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=1", "--no-kill", "--open-mode=append"]
    done = lab.command(*argv, *options, str(script), *arguments, cwd=work)
    assert done.returncode == 0, done.stderr
    return Job(lab, done.stdout.strip().partition(";")[0], work)


def ftslurm(lab: Lab, work: Path, *arguments: str) -> str:
    done = lab.command("ftslurm", *arguments, cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def status(lab: Lab, work: Path, job: Job) -> dict[str, Any]:
    done = lab.command("ftslurm", "status", job.id, "--json", cwd=work)
    found: dict[str, Any] = (
        json.loads(done.stdout) if done.returncode == 0 else {"status": None, "steps": {"last": None}}
    )
    return found


def until_it_trains(lab: Lab, work: Path, job: Job) -> dict[str, Any]:
    lab.until(lambda: status(lab, work, job)["steps"]["last"] is not None, 60, job.explain)
    return status(lab, work, job)


def test_status_has_time_left_a_changed_limit_a_hold_and_a_drained_node(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--time=30")
    try:
        found = until_it_trains(lab, work, job)["slurm"]
        assert found["state"] == "RUNNING"
        assert 1700 < found["left_s"] <= 1800
        assert (found["held"], found["nodes_out"], found["limit_was_s"]) == (False, {}, 1800)
        node = job.facts()["BatchHost"]
        began = time.monotonic()
        lab.command("scontrol", "update", f"JobId={job.id}", "TimeLimit=20", check=True)
        lab.command("scontrol", "hold", job.id, check=True)
        lab.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=a bad fan", check=True)
        text = " ".join(ftslurm(lab, work, "status", job.id).split())
        assert time.monotonic() - began < 10
        assert "its time limit was changed from 30 min to 20 min" in text
        assert f"job {job.id} is held and does not start again before: scontrol release {job.id}" in text
        assert f"{node} is " in text
        assert "DRAIN" in text
        assert "(a bad fan)" in text
        report = " ".join(ftslurm(lab, work, "report", job.id).split())
        assert "its time limit was changed from 30 min to 20 min" in report
        assert "a bad fan" in report
    finally:
        for name in lab.nodes:
            lab.command("scontrol", "update", f"NodeName={name}", "State=RESUME")
    (work / "enough").touch()
    assert job.wait() == "COMPLETED", job.explain()


def test_list_has_the_time_left_of_running_jobs_and_the_reason_of_pending_ones(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--time=30", "--requeue")
    until_it_trains(lab, work, job)

    def listed() -> dict[str, Any]:
        (run,) = json.loads(ftslurm(lab, work, "list", "--json"))["runs"]
        return dict(run)

    run = listed()
    assert (run["run"], run["state"], run["job"]) == (f"job-{job.id}", "running", job.id)
    assert 1700 < run["left_s"] <= 1800
    lab.command("scontrol", "requeuehold", job.id, check=True)
    lab.until(lambda: bool(listed()["state"] == "pending"), 60, job.explain)
    assert "held" in listed()["why"].lower()
    assert "job-" in ftslurm(lab, work, "list")
    lab.command("scancel", job.id)


def test_a_failed_run_goes_on_as_a_new_job_without_a_node(lab: Lab, work: Path) -> None:
    (work / "fail").touch()
    job = submit(lab, work, "--time=30", "--job-name=lm", "--no-requeue", arguments=("--epochs", "3"))
    assert job.wait() == "FAILED", job.explain()
    (work / "fail").unlink()
    assert "asked to fail" in ftslurm(lab, work, "list")
    # What is submitted is what ran, whatever became of the file.
    (work / "job.sbatch").write_text("#!/bin/bash\nexit 7\n")
    excluded = lab.nodes[0]
    out = ftslurm(lab, work, "restart", job.id, "--exclude", excluded)
    assert f"job-{job.id}: submitted as job " in out
    assert "it goes on with round 2" in out
    new = Job(lab, out.partition("submitted as job ")[2].split(",")[0].split(";")[0], work)
    lab.until(lambda: new.state == "RUNNING", 60, new.explain)
    lab.until(lambda: status(lab, work, job)["round"] == 2, 60, new.explain)
    facts = new.facts()
    assert facts["JobName"] == "lm"
    assert facts["TimeLimit"] == "00:30:00"
    assert lab.nodes[0] not in lab.command("scontrol", "show", "hostnames", facts["NodeList"]).stdout.split()
    again = lab.command("ftslurm", "restart", job.id, cwd=work)
    assert again.returncode == 3
    assert f"{new.id} is running; stop it first" in again.stderr
    (work / "enough").touch()
    assert new.wait() == "COMPLETED", new.explain()
    # One run over both jobs, and one output file.
    assert [path.name for path in (work / "ftslurm-runs").glob("job-*")] == [f"job-{job.id}"]
    lab.until(lambda: "round 2 arguments --epochs 3" in job.output, 20, job.explain)


def test_a_run_is_started_again_right_after_its_stop_and_with_the_variables_of_its_submission(
    lab: Lab, work: Path
) -> None:
    job = submit(lab, work, "--export=ALL,LR=0.125", nodes=1)
    until_it_trains(lab, work, job)
    ftslurm(lab, work, "stop", job.id, "--wait", "60")
    done = lab.command("ftslurm", "restart", job.id, cwd=work)
    assert done.returncode == 0, done.stderr
    assert f"job {job.id} is still " in done.stderr
    assert "environment: --export=ALL,LR=0.125 as before, otherwise this shell's" in done.stdout
    new = Job(lab, done.stdout.partition("submitted as job ")[2].split(";")[0], work)
    lab.until(lambda: status(lab, work, job)["round"] == 2, 60, new.explain)
    lab.until(lambda: "round 2 LR 0.125" in job.output, 20, job.explain)
    (work / "enough").touch()
    assert new.wait() == "COMPLETED", new.explain()


def test_a_cancelled_run_is_started_again_when_slurm_has_forgotten_its_job(lab: Lab, work: Path) -> None:
    job = submit(lab, work, nodes=1)
    until_it_trains(lab, work, job)
    early = lab.command("ftslurm", "restart", job.id, cwd=work)
    assert early.returncode == 3
    lab.command("scancel", job.id, check=True)
    assert job.wait() == "CANCELLED"
    # As minutes later, when only the run's own record is left; not for the new job, which inherits PATH.
    fake = work / "bin"
    fake.mkdir()
    real = lab.command("which", "scontrol").stdout.strip()
    forgotten = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    (fake / "scontrol").write_text(f'#!/bin/sh\n[ -z "$SLURM_JOB_ID" ] || exec {real} "$@"\n{forgotten}\n')
    (fake / "scontrol").chmod(0o755)
    path = f"{fake}:{lab.environment['PATH']}"
    done = lab.command("env", f"PATH={path}", "ftslurm", "restart", job.id, cwd=work)
    assert done.returncode == 0, done.stderr
    new = Job(lab, done.stdout.partition("submitted as job ")[2].split(";")[0], work)
    lab.until(lambda: status(lab, work, job)["round"] == 2, 60, new.explain)
    (work / "enough").touch()
    assert new.wait() == "COMPLETED", new.explain()


def test_versions_name_this_slurm(lab: Lab, work: Path) -> None:
    version = lab.command("scontrol", "--version").stdout.split()[-1]
    assert f"Slurm {version}\n" in ftslurm(lab, work, "--version", "-v")
