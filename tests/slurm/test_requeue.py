"""Jobs that start again on a real Slurm, and jobs that must not: by the cause of the end, once, at the right step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Job, Lab

TRAIN = """\
import os, time
import ftslurm
rank = int(os.environ["RANK"])
mine = f"save.{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
try:
    first = int(open(mine).read()) + 1
except FileNotFoundError:
    first = 0
if rank == 0:
    with open(f"starts{mine[4:]}", "a") as file:
        facts = [os.environ[name] for name in ("FTSLURM_RUN_ID", "FTSLURM_ATTEMPT", "WORLD_SIZE")]
        print(*facts[:2], first, facts[2], file=file)
for step in range(first, 100000):
    ftslurm.progress(step)
    if os.path.exists("fail") and step >= int(open("fail").read() or 0):
        raise ValueError("a bug")
    if rank == 0:
        with open(mine + ".new", "w") as file:
            file.write(str(step))
        os.replace(mine + ".new", mine)
    time.sleep(0.05)
    if os.path.exists("finish"):
        break
"""
OPTIONS = "--node-timeout 3 --heartbeat 0.5 --health off --join-timeout 6"


def records(job: Job, name: str) -> list[dict[str, Any]]:
    """Return these records of all attempts, oldest first."""
    return [json.loads(path.read_text()) for path in sorted(job.run_dir.glob(f"attempts/*/{name}.json"))]


def starts(work: Path, task: str = "") -> list[list[str]]:
    """Return run id, attempt, first step and world size of each start of rank 0."""
    path = work / f"starts.{task}"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def saved(work: Path, task: str = "") -> int:
    path = work / f"save.{task}"
    return int(path.read_text()) if path.exists() else -1


def submit(lab: Lab, work: Path, *options: str, nodes: int = 2, more: str = "", before: str = "") -> Job:
    (work / "train.py").write_text(TRAIN)
    return lab.submit(
        work, f"unset FTSLURM_REQUEUE\n{before}\nexec ftsrun {OPTIONS} {more} train.py", *options, nodes=nodes
    )


def trained(lab: Lab, job: Job, step: int, task: str = "") -> None:
    lab.until(lambda: saved(job.directory, task) >= step, 60, job.explain)


def started_again(lab: Lab, job: Job, count: int, task: str = "") -> list[list[str]]:
    """Wait for so many starts, and check that each one went on where the one before had saved."""
    lab.until(
        lambda: len(starts(job.directory, task)) >= count,
        90,
        lambda: f"{records(job, 'verdict')}\n{records(job, 'requeue')}\n{job.explain()}",
    )
    found = starts(job.directory, task)
    assert [int(start[2]) for start in found] == sorted(int(start[2]) for start in found)
    assert all(int(start[2]) > 0 for start in found[1:]), found
    assert len({start[3] for start in found}) == 1, "not on as many nodes as before"
    return found


def host(lab: Lab, job: Job, index: int) -> str:
    """Return a node of a running job: the batch script's is the first."""
    return lab.command("scontrol", "show", "hostnames", job.facts()["NodeList"]).stdout.split()[index]


@contextmanager
def dead(lab: Lab, node: str) -> Iterator[str]:
    lab.lab("kill-node", node)
    try:
        yield node
    finally:
        lab.lab("revive-node", node)


def test_a_node_lost_without_a_spare_has_the_job_requeued_and_it_goes_on_at_its_step(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue")
    trained(lab, job, 30)
    with dead(lab, host(lab, job, 1)) as node:
        found = started_again(lab, job, 2)
        # A busy controller may count a step for which srun then asks again: its name has that step's number.
        assert [start[1].partition("+")[0] for start in found] == [f"{job.id}.0", f"{job.id}.1"], job.output
        assert int(found[1][2]) >= 30
        assert f"requeued: node {node} was lost (1 of 3)" in job.output, job.output
        (work / "finish").touch()
        assert job.wait(60) == "COMPLETED", job.explain()
    first, last = records(job, "verdict")
    assert (first["action"], first["cause"], last["action"]) == ("requeue", "node", "end")
    assert [one["outcome"] for one in records(job, "requeue")] == ["requeued"]
    assert job.facts()["Restarts"] == "1"


def test_the_batch_host_may_be_the_lost_node(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue")
    trained(lab, job, 30)
    with dead(lab, host(lab, job, 0)) as node:
        started_again(lab, job, 2)
        (work / "finish").touch()
        assert job.wait(60) == "COMPLETED", job.explain()
    assert job.output.count(f"requeued: node {node} was lost (1 of 3)") == 1, job.output
    assert job.facts()["Restarts"] == "1"


def test_a_step_that_srun_gives_up_since_a_node_is_dead_at_the_launch_is_requeued(lab: Lab, work: Path) -> None:
    # Slurm does not know it yet: the job gets that node, too.
    with dead(lab, lab.nodes[1]):
        # The agents wait for the node for longer than srun does.
        job = submit(lab, work, "--requeue", more="--join-timeout 120", nodes=len(lab.nodes))
        lab.until(lambda: job.facts().get("Restarts") == "1", 90, job.explain)
    assert "requeued: its step was lost (srun ended with code " in job.output, job.output
    trained(lab, job, 5)
    (work / "finish").touch()
    assert job.wait(60) == "COMPLETED", job.explain()


def test_a_job_submitted_without_requeue_starts_again_once(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--no-requeue")
    trained(lab, job, 30)
    with dead(lab, host(lab, job, 1)):
        found = started_again(lab, job, 2)
        assert found[1][0] == f"job-{job.id}"
        (requeued,) = records(job, "requeue")
        # Where Slurm has already noticed the loss, it refuses to allow a requeue: then by another job.
        last = Job(lab, requeued["job_id"], work)
        (work / "finish").touch()
        assert last.wait(60) == "COMPLETED", last.explain()
    assert len(starts(work)) == 2


def test_an_exception_of_the_program_is_never_requeued(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue", more="--max-restarts 1")
    trained(lab, job, 5)
    (work / "fail").write_text("0")
    assert job.wait(60) == "FAILED", job.explain()
    assert job.facts()["Restarts"] == "0"
    assert "not requeued: rank " in job.output and "see --requeue any" in " ".join(job.output.split()), job.output


def test_a_failure_is_requeued_if_asked_for_until_no_step_is_gained(lab: Lab, work: Path) -> None:
    (work / "fail").write_text("7")
    job = submit(lab, work, "--requeue", more="--max-restarts 0 --requeue any")
    assert job.wait(120) == "FAILED", job.explain()
    assert job.facts()["ExitCode"] == "78:0", job.explain()
    assert "without a step gained beyond 7" in " ".join(job.output.split()), job.output
    assert [one["action"] for one in records(job, "verdict")] == ["requeue", "requeue", "end"]


def test_scancel_is_not_requeued(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue")
    trained(lab, job, 10)
    lab.command("scancel", job.id, check=True)
    assert job.wait(60) == "CANCELLED", job.explain()
    (verdict,) = records(job, "verdict")
    assert (verdict["action"], verdict["cause"]) == ("end", "cancelled")


def test_what_slurm_requeues_is_left_to_it_and_recorded(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue")
    trained(lab, job, 10)
    lab.command("scontrol", "requeue", job.id, check=True)
    started_again(lab, job, 2)
    assert records(job, "verdict")[0]["action"] == "by-slurm"
    (work / "finish").touch()
    assert job.wait(60) == "COMPLETED", job.explain()
    assert job.facts()["Restarts"] == "1"


def test_each_task_of_an_array_starts_again_by_itself(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue", "--array=1-2", "--exclusive", "--output=slurm-%A_%a.out", nodes=1)
    trained(lab, job, 10, "1")
    trained(lab, job, 10, "2")
    assert starts(work, "1")[0][0] == f"job-{job.id}_1"
    node = lab.command("squeue", "-h", "-j", f"{job.id}_2", "-o", "%N").stdout.strip()
    with dead(lab, node):
        started_again(lab, job, 2, "2")
        assert len(starts(work, "1")) == 1
        (work / "finish").touch()
        lab.until(lambda: not lab.command("squeue", "-h", "-j", job.id).stdout.strip(), 60, job.explain)


# Where Slurm refuses


def refusing(work: Path, command: str, action: str) -> str:
    """Return the lines of a job script that run a command before this `scontrol` command, only in the first job."""
    (work / "bin").mkdir()
    wrapper = work / "bin" / "scontrol"
    wrapper.write_text(
        f'#!/bin/bash\nPATH=${{PATH#*:}}\nif [ "$1" = {command} ]; then {action}; fi\nexec scontrol "$@"\n'
    )
    wrapper.chmod(0o755)
    return f'case $SLURM_JOB_ID in "$(cat first)") export PATH={work}/bin:$PATH;; esac'


def submit_held(lab: Lab, work: Path, lines: str) -> Job:
    """Submit a job whose script knows that it is the first one."""
    job = submit(lab, work, "--hold", "--job-name=mine", before=lines)
    (work / "first").write_text(f"{job.id}\n")
    lab.command("scontrol", "release", job.id, check=True)
    return job


@pytest.mark.parametrize("lost", [1, 0], ids=["worker", "batch-host"])
def test_a_job_that_slurm_does_not_requeue_is_submitted_again_once_and_goes_on_in_its_run(
    lab: Lab, work: Path, lost: int
) -> None:
    lines = refusing(work, "requeue", "echo 'Requeue disabled by the site' >&2; exit 1")
    job = submit_held(lab, work, lines)
    trained(lab, job, 30)
    with dead(lab, host(lab, job, lost)):
        found = started_again(lab, job, 2)
        assert {start[0] for start in found} == {f"job-{job.id}"}, found
        (requeued,) = records(job, "requeue")
        assert requeued["outcome"] == "resubmitted" and found[1][1] == f"{requeued['job_id']}.0"
        if lost:
            assert f"submitted again as job {requeued['job_id']}" in job.output, job.output
        again = Job(lab, requeued["job_id"], work)
        assert again.facts()["JobName"] == "mine"
        (work / "finish").touch()
        assert again.wait(60) == "COMPLETED", again.explain()
    # Behind this scontrol, a surviving agent does not find Slurm's library, and cancels the job.
    assert job.wait(10) == ("FAILED" if lost else "CANCELLED")


def test_a_job_that_slurm_would_hold_after_a_requeue_is_submitted_again(lab: Lab, work: Path) -> None:
    # This Slurm (22.05) does not have the setting.
    lines = refusing(work, "show", "echo 'MaxBatchRequeue         = 0'")
    job = submit_held(lab, work, lines)
    trained(lab, job, 30)
    with dead(lab, host(lab, job, 1)):
        started_again(lab, job, 2)
        (requeued,) = records(job, "requeue")
        assert requeued["outcome"] == "resubmitted", requeued
        assert "MaxBatchRequeue=0" in job.output, job.output
        again = Job(lab, requeued["job_id"], work)
        (work / "finish").touch()
        assert again.wait(60) == "COMPLETED", again.explain()


# Preemption and time limit


@pytest.mark.parametrize(("mode", "grace"), [("REQUEUE", 0), ("REQUEUE", 20), ("CANCEL", 20)])
def test_a_preempted_job_is_requeued_and_goes_on(lab: Lab, work: Path, preempting: None, mode: str, grace: int) -> None:
    lab.command("scontrol", "update", "PartitionName=lab", f"PreemptMode={mode}", f"GraceTime={grace}", check=True)
    job = submit(lab, work, "--requeue", nodes=3)
    trained(lab, job, 20)
    argv = (
        "sbatch",
        "--parsable",
        "--partition=high",
        "--nodes=3",
        "--exclusive",
        "--output=/dev/null",
        "--wrap=true",
    )
    lab.command(*argv, cwd=work, check=True)
    started_again(lab, job, 2)
    (verdict,) = records(job, "verdict")
    assert verdict["action"] == ("by-slurm" if grace == 0 else "requeue"), verdict
    if grace:
        assert "requeued: preempted" in job.output, job.output
    (work / "finish").touch()
    assert job.wait(60) == "COMPLETED", job.explain()
    assert job.facts()["Restarts"] == "1"


def test_a_job_at_its_time_limit_is_requeued_if_it_got_on(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue", "--time=1", "--signal=TERM@20")
    trained(lab, job, 5)
    lab.until(lambda: len(starts(work)) == 2, 150, job.explain)
    assert "requeued: the job's time is nearly over" in job.output, job.output
    (work / "finish").touch()
    assert job.wait(60) == "COMPLETED", job.explain()
    started_again(lab, job, 2)


# Chains


def chain(lab: Lab, work: Path, number: int) -> list[Job]:
    (work / "train.py").write_text(TRAIN)
    script = work / "lm.sbatch"
    script.write_text(f"#!/bin/bash\nunset FTSLURM_REQUEUE\nexec ftsrun {OPTIONS} --max-restarts 0 train.py\n")
    arguments = ["--nodes=1", "--no-kill", "--open-mode=append", "--time=2", str(script)]
    done = lab.command("ftslurm", "chain", "--run-id=lm", str(number), *arguments, cwd=work)
    assert done.returncode == 0, done.stderr
    ids = done.stdout.removeprefix("jobs ").partition(" of run lm")[0].split(", ")
    jobs = [Job(lab, job_id, work) for job_id in ids]
    for job in jobs:
        job.run_dir = work / "ftslurm-runs" / "lm"
    return jobs


def test_the_jobs_of_a_chain_go_on_one_after_the_other_until_the_work_is_done(lab: Lab, work: Path) -> None:
    first, second, third = chain(lab, work, 3)
    trained(lab, first, 20)
    assert (first.state, second.state, third.state) == ("RUNNING", "PENDING", "PENDING")
    # As #SBATCH --signal=TERM@110 would, so near the end of its time.
    lab.command("scancel", "--signal=TERM", first.id, check=True)
    found = started_again(lab, second, 2)
    assert found[0][:2] == ["lm", f"{first.id}.0"] and found[1][:2] == ["lm", f"{second.id}.0"]
    (work / "finish").touch()
    assert second.wait(60) == "COMPLETED", second.explain()
    assert third.wait(20) == "CANCELLED"
    assert "left to the next job of the chain" in first.output, first.output


def test_a_chain_whose_work_cannot_be_done_ends(lab: Lab, work: Path) -> None:
    (work / "fail").write_text("3")
    first, second = chain(lab, work, 2)
    assert first.wait(60) == "FAILED", first.explain()
    assert second.wait(20) == "CANCELLED"
