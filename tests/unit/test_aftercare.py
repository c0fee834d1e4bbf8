"""Who ends the Slurm job when the batch script died with its node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.agent.aftercare import REPORT_FIRST_S, batch_host_lost, end_job, keep_account, worth_asking
from ftslurm.rendezvous.ending import close
from ftslurm.rendezvous.fold import begin
from ftslurm.rendezvous.seen import Shape
from ftslurm.rendezvous.state import LostNode
from ftslurm.slurm.environment import SlurmJob, from_environ
from ftslurm.slurm.errors import SlurmRefused
from ftslurm.slurm.facts import parse_job_records
from ftslurm.testing.slurm import FakeSlurm

STATE = begin(None, Shape("r", "7.0", ("n1", "n2"), 1, 2, 3), "n2", "b", 0)


def job() -> SlurmJob:
    found = from_environ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"})
    assert found is not None
    return found


def slurm(out: Path) -> FakeSlurm:
    facts = parse_job_records("JobId=7 JobName=x\n   JobState=RUNNING Reason=None Dependency=(null)\n")[0]
    return FakeSlurm([replace(facts, std_out=str(out))])


def test_only_a_closed_run_that_lost_the_first_node_is_ended_by_its_agents() -> None:
    lost = replace(STATE, lost=(LostNode("n1", "a", 1, 0, 8.0),))
    other = replace(STATE, lost=(LostNode("n2", "b", 1, 0, 8.0),))
    assert batch_host_lost(close(lost, "succeeded", "", 0, 0), job())
    assert not batch_host_lost(lost, job())
    assert not batch_host_lost(close(other, "succeeded", "", 0, 0), job())


def test_the_coordinator_adds_the_report_to_the_jobs_output_and_cancels_the_job(tmp_path: Path) -> None:
    out = tmp_path / "slurm-7.out"
    out.write_text("before\n")
    fake = slurm(out)
    waits: list[float] = []
    assert end_job(job(), fake, True, lambda: "the report\n", waits.append) == []
    assert out.read_text() == "before\nthe report\n"
    assert fake.jobs["7"].state == "CANCELLED"
    assert waits == []


def test_the_others_leave_it_time_for_that(tmp_path: Path) -> None:
    out = tmp_path / "slurm-7.out"
    out.write_text("")
    waits: list[float] = []
    assert end_job(job(), slurm(out), False, lambda: "never", waits.append) == []
    assert (out.read_text(), waits) == ("", [REPORT_FIRST_S])


def test_an_output_file_that_is_gone_or_a_refusal_of_slurms_is_said_and_does_no_harm(tmp_path: Path) -> None:
    fake = slurm(tmp_path / "nothere")
    fake.fail("cancel", SlurmRefused("not allowed"))
    first, second = end_job(job(), fake, True, lambda: "r", lambda s: None)
    assert "only in the run directory" in first
    assert "not allowed" in second


def test_slurm_is_asked_about_a_run_that_was_stopped_or_lost_a_node_and_about_no_other() -> None:
    lost = replace(STATE, lost=(LostNode("n2", "b", 1, 0, 8.0),))
    assert worth_asking(close(STATE, "stopped", "SIGTERM from outside", 143, 0))
    assert worth_asking(close(lost, "failed", "", 1, 0))
    assert not worth_asking(close(STATE, "failed", "", 1, 0))
    assert not worth_asking(close(STATE, "succeeded", "", 0, 0))
    assert not worth_asking(STATE)


def test_slurms_account_is_kept_beside_the_attempt_even_if_there_is_no_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "attempts" / "7.0").mkdir(parents=True)
    keep_account(job(), STATE, str(tmp_path))
    said = json.loads((tmp_path / "attempts" / "7.0" / "scheduler.json").read_text())
    assert (said["attempt"], said["job_id"]) == ("7.0", "7")
    assert said["problem"].startswith("scontrol was not found")
    keep_account(job(), STATE, str(tmp_path / "gone"))
