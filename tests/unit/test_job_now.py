"""What Slurm has on a run's job now: time left, a changed limit, a hold, nodes that are being drained."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder
from sample_runs.contents import START_NS

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.pipeline import rendered, running_job
from ftslurm.slurm.errors import SlurmTimeout
from ftslurm.slurm.job_now import JobNow, ask, lines
from ftslurm.slurm.run_command import Answer
from ftslurm.status.command import main
from ftslurm.status.slurm_job import KEPT_S, JobInquiry

NOW_NS = 1_795_000_000 * 10**9
JOB = """\
JobId=123 JobName=x
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   Priority={priority} Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:10:00 TimeLimit=02:00:00 TimeMin=N/A
   StartTime=1794999400 EndTime={end} Deadline=N/A
   NodeList=n[1-3]
   NumNodes=3 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
"""
NODES = """\
NodeName=n1 Arch=x86_64 State=ALLOCATED ThreadsPerCore=1
NodeName=n2 Arch=x86_64 State=MIXED+DRAIN ThreadsPerCore=1 Reason=GPU 3 [root@2026-11-22T10:00:00]
NodeName=n3 Arch=x86_64 State=DOWN*+DRAIN ThreadsPerCore=1 Reason=Not responding [slurm@2026-11-22T10:00:00]
"""


class Slurm:
    """Runs Slurm's commands."""

    def __init__(self, state: str = "RUNNING", reason: str = "None", priority: int = 4294, end: int = 1_795_006_600):
        self.job = JOB.format(state=state, reason=reason, priority=priority, end=end)
        self.commands: list[Sequence[str]] = []

    def run(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        self.commands.append(command)
        assert timeout_s <= 2
        return Answer(0, self.job if command[2] == "job" else NODES, "")

    def now(self, job_id: str = "123") -> JobNow:
        return ask(job_id, {}, lambda: NOW_NS, self.run)


def test_time_left_and_nodes_out_come_from_two_commands() -> None:
    slurm = Slurm()
    now = slurm.now()
    assert (now.state, now.left_s, now.time_limit_s, now.held) == ("RUNNING", 6600.0, 7200, False)
    assert now.nodes_out == {"n2": "MIXED+DRAIN (GPU 3)", "n3": "DOWN*+DRAIN (Not responding)"}
    assert len(slurm.commands) == 2
    assert lines(now, 7200) == [
        "Slurm: job 123 has 1 h 50 min left",
        "Slurm: n2 is MIXED+DRAIN (GPU 3)",
        "Slurm: n3 is DOWN*+DRAIN (Not responding)",
    ]


def test_a_changed_time_limit_is_named() -> None:
    assert lines(Slurm().now(), 3600)[0] == (
        "Slurm: job 123 has 1 h 50 min left, its time limit was changed from 1 h to 2 h"
    )


def test_a_hold_is_named_while_the_job_runs_and_while_it_is_pending() -> None:
    assert "Slurm: job 123 is held and does not start again before: scontrol release 123" in lines(
        Slurm(priority=0).now(), None
    )
    pending = Slurm("PENDING", "JobHeldUser", 0).now()
    assert pending.left_s is None
    assert lines(pending, None)[:2] == [
        "Slurm: job 123 is pending (JobHeldUser)",
        "Slurm: job 123 is held and does not start before: scontrol release 123",
    ]


def test_a_suspended_job_is_resumed_not_released() -> None:
    found = lines(Slurm("SUSPENDED", priority=0).now(), None)
    assert "Slurm: job 123 goes on with: scontrol resume 123" in found
    assert not any("release" in line for line in found)


def test_without_an_answer_there_is_one_line_and_without_a_cluster_none() -> None:
    def hangs(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        raise SlurmTimeout("`scontrol show job 123` did not answer; check it", "scontrol: no answer within 2 s")

    def unconfigured(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        return Answer(1, "", "scontrol: fatal: Could not establish a configuration source")

    assert lines(ask("123", {}, run=hangs), None) == ["Slurm is not reachable (scontrol: no answer within 2 s)"]
    assert lines(ask("123", {}, run=unconfigured), None) == []
    assert lines(ask("none", {}, run=Slurm().run), None)[0].startswith(
        "Slurm gives no usable answer (expected a job id"
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    builder = RunBuilder(tmp_path, nodes=3).wait((time.time_ns() - START_NS) / 1e9 - 60)
    builder.attempts[-1]["time_limit_s"] = 3600
    return builder.round().steps(1, 9).write()


def test_the_status_has_it_as_text_and_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slurm = Slurm()
    assert main([str(run)], job_now=slurm.now) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Slurm: job 123 has 1 h 50 min left, its time limit was changed from 1 h to 2 h" in out
    assert "Slurm: n2 is MIXED+DRAIN (GPU 3)" in out
    assert main([str(run), "--json"], job_now=slurm.now) == 0
    found = json.loads(capsys.readouterr().out)["slurm"]
    assert (found["left_s"], found["limit_was_s"], found["held"]) == (6600.0, 3600, False)
    slurm.commands.clear()
    assert main([str(run), "--offline"], job_now=slurm.now) == 0
    assert "Slurm" not in capsys.readouterr().out
    assert slurm.commands == []


def test_the_report_of_a_run_that_goes_on_has_it_too(run: Path) -> None:
    snapshot = gather(run, now_ns=time.time_ns())
    more = running_job(snapshot, analyse(snapshot), Slurm(priority=0).now)
    assert more is not None
    text = " ".join(rendered(analyse(more), "text").split())
    assert "its time limit was changed from 1 h to 2 h, 1 h 50 min left, held" in text
    assert "n2 MIXED+DRAIN (GPU 3)" in text


def test_a_watch_asks_again_only_after_some_seconds() -> None:
    clock = [100.0]
    slurm = Slurm()
    job = JobInquiry(slurm.now, lambda: clock[0])
    for _ in range(3):
        job.begin("123")
        assert job.answer("123") is not None
        clock[0] += KEPT_S / 3 - 0.01
    assert len(slurm.commands) == 2
    clock[0] += 1
    assert job.answer("123") is not None
    assert len(slurm.commands) == 4
    assert job.answer(None) is None


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETED", "TIMEOUT", "COMPLETING"])
def test_a_job_that_has_ended_has_no_time_left(state: str) -> None:
    # Slurm's EndTime is then the time of the end.
    now = Slurm(state, end=NOW_NS // 10**9 - 5).now()
    assert now.left_s is None
    assert lines(now, None)[0] == f"Slurm: job 123 is {state}"
