"""CommandSlurm against a real Slurm."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftslurm.slurm.commands import CommandSlurm
from ftslurm.slurm.errors import SlurmUnknownJob
from ftslurm.slurm.facts import JobFacts
from tests.slurm.conftest import Lab

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def cluster(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CommandSlurm's commands find the lab."""
    monkeypatch.setenv("SLURM_CONF", lab.environment["SLURM_CONF"])


@pytest.fixture
def submit(cluster: None, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Give a function that submits a shell line and returns the job id; what it submitted is cancelled at the end."""
    jobs: list[str] = []
    env = {name: value for name, value in os.environ.items() if name == "SLURM_CONF" or not name.startswith("SLURM_")}

    def sbatch(line: str, *options: str) -> str:
        command = ["sbatch", "--parsable", "-N1", "-t5", f"--chdir={tmp_path}", "-o/dev/null", *options, "--wrap", line]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=True)
        jobs.append(done.stdout.strip().partition(";")[0])
        return jobs[-1]

    yield sbatch
    subprocess.run(["scancel", *jobs], env=env, timeout=30, check=False)


def wait_for(job_id: str, good: Callable[[JobFacts], bool]) -> JobFacts:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        facts = CommandSlurm().job(job_id)
        if facts is not None and good(facts):
            return facts
        assert time.monotonic() < deadline, f"job {job_id} after {DEADLINE_S} s: {facts}"
        time.sleep(0.2)


def test_a_failed_job_is_known_with_its_exit_code_and_log(submit: Callable[..., str], tmp_path: Path) -> None:
    facts = wait_for(submit("exit 7", f"-o{tmp_path}/a log.txt", "-Ja b=c JobState=RUNNING"), lambda job: job.ended)
    assert (facts.state, facts.exit_code, facts.restarts) == ("FAILED", (7, 0), 0)
    assert (facts.work_dir, facts.time_limit_s, len(facts.node_list)) == (str(tmp_path), 300, 1)
    if facts.source == "scontrol":
        assert facts.std_out == f"{tmp_path}/a log.txt"
    now = time.time_ns()
    assert facts.submit_ns is not None
    assert facts.end_ns is not None
    assert now - 120_000_000_000 < facts.submit_ns <= facts.end_ns <= now


def test_requeueing_one_array_task_leaves_the_others_alone(submit: Callable[..., str]) -> None:
    array = submit("sleep 300", "--array=1-2", "--requeue")
    for task in "12":
        wait_for(f"{array}_{task}", lambda job: job.state == "RUNNING")
    CommandSlurm().requeue(f"{array}_1")
    again = wait_for(f"{array}_1", lambda job: job.restarts == 1)
    assert (again.array_job_id, again.array_task_id) == (array, "1")
    other = CommandSlurm().job(f"{array}_2")
    assert other is not None
    assert (other.state, other.restarts) == ("RUNNING", 0)


def test_a_job_that_never_was_is_none_and_cannot_be_requeued() -> None:
    slurm = CommandSlurm()
    assert slurm.job("4000000000") is None
    with pytest.raises(SlurmUnknownJob, match="4000000000"):
        slurm.requeue("4000000000")


def test_kill_wait_is_a_number_of_seconds() -> None:
    seconds = CommandSlurm().kill_wait_s()
    assert seconds is not None
    assert 0 <= seconds <= 65535


def test_the_nodes_of_a_job_have_states_and_an_unknown_node_has_none(submit: Callable[..., str]) -> None:
    job = wait_for(submit("sleep 300"), lambda job: job.state == "RUNNING")
    states = CommandSlurm().node_states([*job.node_list, "no-such-node"])
    assert set(states) == set(job.node_list)
    assert all(state.partition("+")[0] in {"MIXED", "ALLOCATED"} for state in states.values())


@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (3, "FAILED")])
def test_a_job_ends_with_an_exit_code_as_if_its_batch_script_had(
    submit: Callable[..., str], code: int, state: str
) -> None:
    job_id = submit("sleep 300")
    wait_for(job_id, lambda job: job.state == "RUNNING" and job.batch_host is not None)
    CommandSlurm().complete(job_id, code)
    facts = wait_for(job_id, lambda job: job.ended)
    assert facts.state == state
    assert code == 0 or facts.exit_code == (code, 0)
    CommandSlurm().complete(job_id, code)


def test_a_job_that_slurm_does_not_know_cannot_be_completed() -> None:
    with pytest.raises(SlurmUnknownJob):
        CommandSlurm().complete("99999999", 0)


def test_when_a_node_was_booted_is_known(lab: Lab) -> None:
    node = CommandSlurm().node(lab.nodes[0])
    assert node is not None and not node.is_dead
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])  # all nodes are this machine
    assert node.boot_ns is not None and abs(time.time() - node.boot_ns / 1e9 - uptime_s) < 120
    assert CommandSlurm().node("nothere") is None
