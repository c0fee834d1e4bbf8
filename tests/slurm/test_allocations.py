"""Allocations of all shapes on a real Slurm: tasks and GPUs per task, salloc, arrays, steps, nodes that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.conftest import Job, Lab

SHOW = """\
import os
names = ("SLURM_CPUS_ON_NODE", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK")
shown = (os.environ.get(name, "-") for name in names)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *shown, flush=True)
"""
QUIET = "ftsrun --health off"


@pytest.fixture
def show(work: Path) -> Path:
    (work / "show.py").write_text(SHOW)
    return work


def line_of_rank_0(job: Job) -> list[str]:
    return next(line for line in job.output.splitlines() if line.startswith("[rank 0]")).split()[3:]


def test_more_tasks_than_nodes_is_still_one_agent_on_each_which_has_all_cores(lab: Lab, show: Path) -> None:
    options = ("--ntasks-per-node=4", "--cpus-per-task=1", "--export=ALL,SRUN_CPUS_PER_TASK=1")
    job = lab.submit(show, f"{QUIET} show.py", *options)
    assert job.wait() == "COMPLETED", job.explain()
    # Rank 0 of 2; all four cores of the node, two tasks in the step, and the workers keep the option of sbatch.
    assert line_of_rank_0(job) == ["0", "of", "2", "4", "2", "1"]


def test_fewer_tasks_than_nodes_is_what_slurm_makes_of_it(lab: Lab, show: Path) -> None:
    job = lab.submit(show, f"{QUIET} show.py", "--ntasks=2", "--ntasks-per-node=1", nodes=3)
    assert job.wait() == "COMPLETED", job.explain()
    assert line_of_rank_0(job)[1:3] == ["of", job.facts()["NumNodes"]]


def test_ftsrun_as_a_task_of_srun_is_one_line_instead_of_a_step_that_waits_for_itself(lab: Lab, show: Path) -> None:
    job = lab.submit(show, f"srun --ntasks=1 --nodes=1 {QUIET} show.py; echo code $?")
    job.until_output("code ")
    assert "code 2" in job.output and "ftsrun is a task of srun here" in job.output
    assert "[rank 0]" not in job.output


def test_a_shell_below_srun_can_overlap(lab: Lab, show: Path) -> None:
    job = lab.submit(show, f"FTSRUN_SRUN_ARGS=--overlap srun --overlap --ntasks=1 --nodes=1 {QUIET} show.py")
    assert job.wait() == "COMPLETED", job.explain()


def test_a_job_submitted_inside_a_step_is_not_taken_for_that_step(lab: Lab, show: Path) -> None:
    (show / "inner.sbatch").write_text(f"#!/bin/bash\n{QUIET} show.py\necho inner $?\n")
    inner = "sbatch --nodes=1 --wait --output=inner.out inner.sbatch"
    job = lab.submit(show, f"srun --nodes=1 --ntasks=1 {inner}", nodes=1)
    assert job.wait() == "COMPLETED", job.explain()
    assert "inner 0" in (show / "inner.out").read_text()


def test_each_task_of_an_array_is_a_run_of_its_own_and_one_may_fail(lab: Lab, show: Path) -> None:
    fails = "import os, sys; sys.exit(os.environ['SLURM_ARRAY_TASK_ID'] == '2')"
    (show / "some.py").write_text(fails)
    job = lab.submit(show, f"exec {QUIET} --max-restarts 0 some.py", "--array=1-3", nodes=1)
    out = lab.command("squeue", "-h", "-o", "%i")
    lab.until(lambda: not lab.command("squeue", "-h", "-o", "%i").stdout.strip(), 60, lambda: out.stdout)
    runs = {path.name: (path / "report.txt").read_text() for path in (show / "ftslurm-runs").glob("job-*")}
    assert sorted(runs) == [f"job-{job.id}_{task}" for task in (1, 2, 3)]
    assert ["FAILED" in text for _, text in sorted(runs.items())] == [False, True, False]
    # The last task has the array's own number, which stands for all of them.
    shown = lab.command("ftslurm", "report", job.id, cwd=show)
    assert f"job-{job.id}_2 FAILED" in shown.stdout
    assert f"job {job.id} is an array: task 2 failed; tasks 1, 3 succeeded; task 2 is shown" in shown.stderr
    again = lab.command("ftslurm", "restart", job.id, cwd=show)
    assert again.returncode == 0 and f"job-{job.id}_2: submitted as job " in again.stdout, again.stderr


def test_a_cancelled_task_of_an_array_stops_no_other_one(lab: Lab, show: Path) -> None:
    waits = "import os, time\nopen('up' + os.environ['SLURM_ARRAY_TASK_ID'], 'w').close()\n"
    (show / "some.py").write_text(waits + "while not os.path.exists('go'):\n    time.sleep(0.1)\n")
    job = lab.submit(show, f"exec {QUIET} some.py", "--array=0-2", nodes=1)
    lab.until(lambda: all((show / f"up{task}").exists() for task in range(3)), 90, job.explain)
    lab.command("scancel", f"{job.id}_2", check=True)  # the last task's own id is the array's
    report = show / "ftslurm-runs" / f"job-{job.id}_2" / "report.txt"
    lab.until(report.exists, 90, job.explain)
    (show / "go").touch()
    lab.until(lambda: not lab.command("squeue", "-h", "-o", "%i").stdout.strip(), 60, job.explain)
    runs = {path.name: (path / "report.txt").read_text() for path in (show / "ftslurm-runs").glob("job-*")}
    assert [text.split()[1].strip(":") for _, text in sorted(runs.items())] == ["succeeded", "succeeded", "was"], runs


def test_salloc_runs_on_all_its_nodes_whatever_its_tasks(lab: Lab, show: Path) -> None:
    done = lab.command("salloc", "--nodes=2", "--ntasks=4", "ftsrun", "--health", "off", "show.py", cwd=show)
    assert done.returncode == 0, done.stderr
    assert "[rank 0] rank 0 of 2 " in done.stdout


def test_an_allocation_of_salloc_that_reaches_its_time_limit_says_so_and_is_not_requeued(lab: Lab, show: Path) -> None:
    steps = "import time, ftslurm\nfor step in range(10_000):\n    ftslurm.progress(step)\n    time.sleep(0.1)\n"
    (show / "steps.py").write_text(steps)
    command = ("salloc", "--nodes=1", "--time=1", "ftsrun", "--health", "off", "--requeue", "node", "steps.py")
    done = lab.command(*command, cwd=show)
    why = "time limit of 0:01:00 reached"
    assert done.returncode == 143, done.stdout + done.stderr
    assert f"was stopped: {why}" in done.stdout
    assert f"not requeued: {why}, and the job has no batch script (salloc)" in " ".join(done.stdout.split())
    assert "requeued" not in done.stderr, done.stderr
    assert lab.command("squeue", "-h").stdout == ""


def test_a_further_start_after_a_node_was_lost_uses_the_nodes_that_are_left(lab: Lab, show: Path) -> None:
    gone = lab.nodes[2]
    body = f"touch up\nwhile [ ! -e lost ]; do sleep 0.1; done\n{QUIET} show.py"
    job = lab.submit(show, f"{body}; {QUIET} --nnodes 3 show.py; echo code $?", nodes=3)
    lab.until((show / "up").exists, 40, job.explain)
    lab.lab("kill-node", gone)
    try:
        lab.until(lambda: job.facts().get("NumNodes") == "2", 60, job.explain)
        (show / "lost").touch()
        job.until_output("code ")
    finally:
        lab.lab("revive-node", gone)
    assert "[rank 0] rank 0 of 2 " in job.output, job.explain()
    assert "--nnodes 3: job" in job.output and "has only 2 nodes left" in job.output and "code 2" in job.output
