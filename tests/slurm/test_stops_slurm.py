"""Orderly stops on a real Slurm: whatever asks for one, all ranks save and leave at one step, and it is reported."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Job, Lab

TRAIN = """\
import os, random, signal, time
import ftslurm
rank, attempt = os.environ["RANK"], os.environ.get("SLURM_RESTART_COUNT", "0")
jitter = random.Random(rank)
if os.environ.get("IGNORE"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
stop = (lambda step: False) if os.environ.get("NO_POLL") else ftslurm.should_stop
step = first = int(open("save").read()) if os.path.exists("save") else 0
while not stop(step):
    ftslurm.progress(step)
    if step == first + 10:
        open(f"up.new.{rank}", "w").write(str(first))
        os.replace(f"up.new.{rank}", f"up.{attempt}.{rank}")
    time.sleep(0.02 * jitter.uniform(0.2, 1.8))
    step += 1
    if os.path.exists("finish"):
        raise SystemExit
with ftslurm.section("checkpoint"):
    time.sleep(float(os.environ.get("SAVE_S", "0.2")))
    if rank == "0":
        open("save.new", "w").write(str(step))
        os.replace("save.new", "save")
    text = f"{step}|{ftslurm.stop_reason()}|{ftslurm.time_left():.0f}"
    open(f"left.new.{rank}", "w").write(text)
    os.replace(f"left.new.{rank}", f"left.{attempt}.{rank}")
"""
OPTIONS = "--node-timeout 3 --heartbeat 0.5 --health off --nproc-per-node 2"
RANKS = 4
INTERRUPTED = 75


def submit(lab: Lab, work: Path, *options: str, more: str = "", before: str = "", nodes: int = 2) -> Job:
    (work / "train.py").write_text(TRAIN)
    return lab.submit(work, f"{before}\nexec ftsrun {OPTIONS} {more} train.py", *options, nodes=nodes)


def up(job: Job, attempt: int = 0, ranks: int = RANKS) -> list[int]:
    """Wait until all ranks of an attempt train; return their first steps."""
    names = [job.directory / f"up.{attempt}.{rank}" for rank in range(ranks)]
    job.lab.until(lambda: all(path.exists() for path in names), 90, job.explain)
    return [int(path.read_text()) for path in names]


def submit_up(lab: Lab, work: Path, *options: str, more: str, before: str) -> Job:
    """Submit a job with a signal before its end until its ranks train: Slurm may send the signal much earlier."""
    names = [work / f"up.0.{rank}" for rank in range(RANKS)]
    for _ in range(5):
        for path in names:
            path.unlink(missing_ok=True)
        job = submit(lab, work, *options, more=more, before=before)
        lab.until(lambda job=job: all(path.exists() for path in names) or job.is_over, 90, job.explain)  # type: ignore[misc]
        if all(path.exists() for path in names):
            return job
    raise AssertionError(job.explain())


def left(job: Job, attempt: int = 0) -> list[tuple[int, str, float]]:
    """Return step, reason and time left as each rank of an attempt had them when it left."""
    found = [path.read_text().split("|") for path in sorted(job.directory.glob(f"left.{attempt}.*"))]
    return [(int(step), reason, float(left_s)) for step, reason, left_s in found]


def state(job: Job) -> dict[str, Any]:
    newest = max((job.run_dir / "state").glob("0*.json"))
    found: dict[str, Any] = json.loads(newest.read_text())["value"]
    return found


def closed(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = state(job)["closed"]
    return found


def report(job: Job) -> str:
    return " ".join(job.lab.command("ftslurm", "report", str(job.run_dir), cwd=job.directory).stdout.split())


def saved_together(job: Job, attempt: int = 0, ranks: int = RANKS) -> int:
    """Check that all ranks have left at one step; return it."""
    found = left(job, attempt)
    assert len(found) == ranks, (found, job.explain())
    assert len({step for step, _, _ in found}) == 1, (found, job.explain())
    return found[0][0]


def gone(job: Job) -> None:
    """Check that nothing of the job runs any more."""
    job.lab.until(
        lambda: not job.lab.processes(str(job.directory)), 10, lambda: str(job.lab.processes(str(job.directory)))
    )


def interrupted(job: Job, end: str, code: str, what: str = "") -> int:
    """Check all that is to be true of a stopped job; return the step at which its ranks left."""
    assert (job.wait(90), job.facts()["ExitCode"]) == (end, code), job.explain()
    step = saved_together(job)
    end_of_run = closed(job)
    assert end_of_run["reason"].startswith("interrupted: ") and f"; saved at step {step} (" in end_of_run["reason"], (
        end_of_run
    )
    assert end_of_run["exit_code"] == INTERRUPTED, end_of_run
    assert what in end_of_run["reason"], end_of_run
    text = report(job)
    assert f"saved at step {step}" in text, text
    assert "interrupted" in text, text
    assert "failed" not in text.split("ftslurm logs")[0], text
    gone(job)
    return step


def used_s(job: Job) -> int:
    """Return for how many seconds the job has run."""
    minutes, _, seconds = job.lab.command("squeue", "-h", "-j", job.id, "-o", "%M").stdout.strip().partition(":")
    return int(minutes) * 60 + int(seconds or 0)


# The time limit


def test_the_ranks_save_before_the_time_limit_and_an_extended_limit_delays_that(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--time=2", more="--warn-before-end 60 --requeue never")
    up(job)
    lab.command("scontrol", "update", f"JobId={job.id}", "TimeLimit=4", check=True)
    lab.until(lambda: used_s(job) >= 75, 100, job.explain)
    assert left(job) == [] and job.state == "RUNNING", job.explain()
    lab.command("scontrol", "update", f"JobId={job.id}", "TimeLimit=2", check=True)
    step = interrupted(job, "FAILED", "75:0", "the time limit is near, ")
    assert step > 0
    assert all(reason.startswith("the time limit is near") and 20 < left_s <= 60 for _, reason, left_s in left(job))


def test_ranks_that_never_ask_get_sigterm_at_the_time_limit_as_without_ftslurm(lab: Lab, work: Path) -> None:
    more = "--warn-before-end 55 --requeue never"
    job = submit_up(lab, work, "--time=1", "--signal=TERM@50", more=more, before="export NO_POLL=1")
    assert job.wait(90) == "FAILED", job.explain()
    assert job.facts()["ExitCode"] == "143:0"
    assert "saved" not in closed(job)["reason"]
    gone(job)


def test_ranks_that_ignore_sigterm_are_killed_within_the_grace(lab: Lab, work: Path) -> None:
    more = "--grace 2 --requeue never"
    job = submit_up(lab, work, "--time=1", "--signal=TERM@50", more=more, before="export NO_POLL=1 IGNORE=1")
    assert job.wait(90) == "FAILED", job.explain()
    assert job.facts()["ExitCode"] == "143:0"
    gone(job)


# Preemption


def preempt(lab: Lab, work: Path) -> None:
    argv = ("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true")
    lab.command(*argv, cwd=work, check=True)


@pytest.mark.parametrize(("mode", "grace", "save_s"), [("REQUEUE", 0, 1), ("REQUEUE", 20, 8), ("CANCEL", 20, 8)])
def test_a_preempted_job_uses_its_grace_to_save_and_resumes_there(
    lab: Lab, work: Path, preempting: None, mode: str, grace: int, save_s: int
) -> None:
    lab.command("scontrol", "update", "PartitionName=lab", f"PreemptMode={mode}", f"GraceTime={grace}", check=True)
    job = submit(
        lab, work, "--requeue", nodes=3, more="--grace 60 --requeue interrupted", before=f"export SAVE_S={save_s}"
    )
    up(job, ranks=6)
    ranks_have = "--grace 60 is cut short by Slurm: ranks have 3 s after scancel or the time limit (of KillWait, 5 s)"
    more = ", 23 s after a preemption (GraceTime 20 s of partition lab)" if grace else ""
    assert f"{ranks_have}{more}\n" in job.output, job.output
    preempt(lab, work)
    again = up(job, 1, ranks=6)
    step = saved_together(job, ranks=6)
    assert again == [step] * 6
    reasons = {reason for _, reason, _ in left(job)}
    if grace:
        # Named during its grace already: the save is longer than KillWait (5 s).
        assert all(reason.startswith("the job is being preempted") for reason in reasons), reasons
    past = state(job)["history"][0]
    assert f"saved at step {step} (" in past["reason"], past
    (work / "finish").touch()
    assert job.wait(60) == "COMPLETED", job.explain()
    assert job.facts()["Restarts"] == "1"
    gone(job)


# Signals and commands


@pytest.mark.parametrize(
    ("options", "end", "code"),
    [
        ((), "CANCELLED", "75:0"),
        (("--signal=TERM",), "FAILED", "75:0"),
        (("--signal=USR1",), "FAILED", "75:0"),
        (("--batch", "--signal=TERM"), "FAILED", "75:0"),
        (("--batch", "--signal=USR1"), "FAILED", "75:0"),
        (("--full", "--signal=USR1"), "FAILED", "75:0"),
        (("--full", "--signal=TERM"), "FAILED", "75:0"),
        (("--signal=INT",), "FAILED", "75:0"),
        (("--full", "--signal=INT"), "FAILED", "75:0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_scancel_stops_all_ranks_at_one_step(
    lab: Lab, work: Path, options: tuple[str, ...], end: str, code: str
) -> None:
    job = submit(lab, work)
    up(job)
    lab.command("scancel", *options, job.id, check=True)
    interrupted(job, end, code)


@pytest.mark.parametrize("option", ["USR1@40", "B:USR1@40", "B:TERM@40"])
def test_a_signal_ahead_of_the_time_limit_stops_all_ranks_at_one_step(lab: Lab, work: Path, option: str) -> None:
    job = submit(lab, work, "--time=1", f"--signal={option}", more="--warn-before-end 1 --requeue never")
    up(job)
    interrupted(job, "FAILED", "75:0", option.split("@", maxsplit=1)[0].removeprefix("B:"))


def pids(job: Job, mark: str) -> list[int]:
    return [int(line.split()[0]) for line in job.lab.processes(f"SLURM_JOB_ID={job.id}") if mark in line]


def test_a_signal_to_one_agent_alone_stops_all_ranks(lab: Lab, work: Path) -> None:
    job = submit(lab, work)
    up(job)
    agent = int(job.node_record(lab.nodes[1])["pid"])  # type: ignore[call-overload]
    assert lab.lab("exec", lab.nodes[1], "kill", "-TERM", str(agent)).returncode == 0
    interrupted(job, "FAILED", "75:0", "SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_rank_alone_stops_all_ranks(lab: Lab, work: Path, number: signal.Signals) -> None:
    job = submit(lab, work)
    up(job)
    os.kill(pids(job, "boot/worker.py")[-1], number)
    interrupted(job, "FAILED", "75:0", f"{number.name}")


def test_ftslurm_stop_of_a_job_stops_all_ranks(lab: Lab, work: Path) -> None:
    job = submit(lab, work)
    up(job)
    done = lab.command("ftslurm", "stop", job.id, "--reason", "maintenance", "--wait", "60", cwd=work)
    assert done.returncode == 0, done.stderr
    assert "interrupted: maintenance; saved at step" in done.stdout
    interrupted(job, "FAILED", "75:0", "maintenance")


def test_a_drained_node_stops_all_ranks_if_asked_for(lab: Lab, work: Path) -> None:
    job = submit(lab, work, "--requeue", more="--stop-when drain --requeue node")
    up(job)
    node = lab.nodes[1]
    lab.command("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=fan", check=True)
    try:
        again = up(job, 1)
        assert again == [saved_together(job)] * RANKS
        assert all(f"{node} is being drained" in reason for _, reason, _ in left(job)), left(job)
        (work / "finish").touch()
        assert job.wait(60) == "COMPLETED", job.explain()
    finally:
        lab.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
    gone(job)
