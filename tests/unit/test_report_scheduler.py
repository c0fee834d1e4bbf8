"""What Slurm says of a job, in the report of a run that a person or a program ended from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import START_NS, RunBuilder

from ftslurm.records.attempt import SchedulerView, StepEnd
from ftslurm.records.codec import read_record, write_record
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.pipeline import rendered, scheduler_query
from ftslurm.report.scheduler import step_line, verdict
from ftslurm.report.text import render
from ftslurm.slurm.account import account
from ftslurm.slurm.errors import SlurmUnreachable
from ftslurm.slurm.facts import JobFacts
from ftslurm.slurm.output import parse_job_records, parse_sacct
from tests.unit.fake_slurm import FakeSlurm

RUNNING = JobFacts("123", "RUNNING", restarts=0, start_ns=START_NS, time_limit_s=7200)


def fake(**changes: Any) -> FakeSlurm:
    return FakeSlurm([replace(RUNNING, **changes)])


def stopped(tmp_path: Path) -> RunBuilder:
    run = RunBuilder(tmp_path).round().steps(1, 50, over_s=600)
    run.stop(reason="SIGTERM from outside", outcome="stopped")
    return run.close("stopped", "SIGTERM from outside")


def unfinished(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path).round().steps(1, 50, over_s=600)


def report(run: RunBuilder, slurm: FakeSlurm) -> dict[str, Any]:
    snapshot = gather(run.write(), now_ns=run.now_ns + 10**12)
    more = scheduler_query(snapshot, analyse(snapshot), slurm)
    result = analyse(snapshot if more is None else more)
    assert not result["problems"]
    json.dumps(result)
    return result


ENDS = [
    (fake(state="TIMEOUT"), "time-limit", "time limit of 2:00:00 reached"),
    (fake(state="COMPLETING", reason="TimeLimit", exit_code=(0, 0)), "time-limit", "time limit of 2:00:00 reached"),
    (fake(state="PREEMPTED"), "preempted", "preempted"),
    (fake(state="COMPLETING", preempted_ns=START_NS, exit_code=(0, 0)), "preempted", "preempted"),
    (fake(state="CANCELLED", cancelled_by=1000), "cancelled", "cancelled by uid 1000"),
    (fake(state="CANCELLED"), "cancelled", "cancelled by a user"),
    (fake(state="COMPLETING", exit_code=(0, 0)), "cancelled", "cancelled by a user"),
    (fake(state="NODE_FAIL", failed_node="n2"), "scheduler", "n2 failed (Slurm: NODE_FAIL)"),
]


@pytest.mark.parametrize(("slurm", "kind", "text"), ENDS, ids=[text for _, _, text in ENDS])
def test_the_report_of_a_run_that_was_stopped_from_outside_has_what_slurm_did(
    tmp_path: Path, slurm: FakeSlurm, kind: str, text: str
) -> None:
    result = report(stopped(tmp_path), slurm)
    assert (result["status"], result["cause"]["kind"], result["cause"]["what"]) == ("stopped", kind, text)
    assert (result["cause"]["rank"], result["cause"]["node"]) == (None, None)
    assert result["summary"] == f"job-123 was stopped: {text}"
    assert render(result).splitlines()[0] == f"job-123 was stopped: {text}"
    assert result["scheduler"]["line"].startswith("Slurm (scontrol): job 123 ")


@pytest.mark.parametrize(("slurm", "kind", "text"), ENDS, ids=[text for _, _, text in ENDS])
def test_a_run_without_a_recorded_end_is_explained_by_slurm(
    tmp_path: Path, slurm: FakeSlurm, kind: str, text: str
) -> None:
    result = report(unfinished(tmp_path), slurm)
    assert (result["status"], result["cause"]["kind"]) == ("unfinished", kind)
    assert f"  {text}" in render(result).splitlines()
    assert "all processes were killed at once" not in render(result)


@pytest.mark.parametrize(
    ("code", "signal", "line"),
    [
        (None, None, "its agents ended without recording the run's end"),
        (None, "SIGTERM", "its agents ended after SIGTERM from outside without recording the run's end"),
        (
            137,
            None,
            "its step is over: srun ended with code 137 (SIGKILL), "
            "and its agents ended without recording the run's end",
        ),
    ],
)
def test_the_end_of_the_agents_is_one_sentence(code: int | None, signal: str | None, line: str) -> None:
    assert step_line(StepEnd("123.0", 5, code, signal)) == line


def test_why_a_job_is_being_ended_comes_from_the_accounting_while_scontrol_does_not_show_it(tmp_path: Path) -> None:
    slurm = fake(state="COMPLETING", exit_code=(0, 0))
    slurm.accounting["123"] = replace(RUNNING, state="CANCELLED", cancelled_by=1000, source="sacct")
    assert report(stopped(tmp_path), slurm)["cause"]["what"] == "cancelled by uid 1000"


def test_a_job_that_still_runs_was_not_stopped_by_slurm(tmp_path: Path) -> None:
    result = report(stopped(tmp_path), fake())
    assert (result["cause"], result["scheduler"]["verdict"]) == (None, None)
    assert render(result).splitlines()[0] == "job-123 was stopped: SIGTERM from outside"


def test_a_slurm_that_cannot_be_asked_is_reported_in_one_line(tmp_path: Path) -> None:
    slurm = fake()
    slurm.fail("job", SlurmUnreachable("`scontrol show job 123` failed: Unable to contact slurm"))
    result = report(unfinished(tmp_path), slurm)
    assert result["cause"] is None
    (line,) = [line for line in render(result).splitlines() if "no answer from Slurm" in line]
    assert line.startswith("  no answer from Slurm: `scontrol show job 123` failed")
    assert "Slurm no longer has a record of job 123" in render(report(unfinished(tmp_path / "b"), FakeSlurm()))


def test_slurm_is_not_asked_about_runs_whose_end_is_known(tmp_path: Path) -> None:
    slurm = fake(state="FAILED")
    report(RunBuilder(tmp_path).round().fail(0, ValueError("boom")).stop().close("failed", "x"), slurm)
    report(RunBuilder(tmp_path / "b").round().succeed().close("succeeded", "all"), slurm)
    report(RunBuilder(tmp_path / "c", job_id="local-20260301").round().steps(1, 2, over_s=600), slurm)
    assert slurm.calls == []


def test_what_the_agent_wrote_down_is_enough(tmp_path: Path) -> None:
    run = stopped(tmp_path)
    path = run.write() / "attempts" / "123.0" / "scheduler.json"
    path.write_bytes(write_record(account(fake(state="PREEMPTED"), "123.0", "123", [], START_NS)))
    slurm = fake()
    assert report(run, slurm)["cause"]["what"] == "preempted"
    assert slurm.calls == []


def test_a_preemption_with_a_requeue_is_shown_in_the_attempts_round(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 50, over_s=600)
    run.stop(reason="SIGTERM from outside", outcome="stopped").attempt().round().succeed().close("succeeded", "all")
    path = run.write() / "attempts" / "123.0" / "scheduler.json"
    path.write_bytes(write_record(account(fake(state="PREEMPTED"), "123.0", "123", [], START_NS)))
    result = report(run, fake())
    assert [entry["scheduler"] for entry in result["rounds"]] == ["preempted", None]
    assert "round 1: stopped: preempted" in render(result)


def test_slurms_data_on_a_later_start_explain_nothing(tmp_path: Path) -> None:
    result = report(unfinished(tmp_path), fake(state="TIMEOUT", restarts=1))
    assert result["cause"] is None


def test_a_rank_killed_where_slurm_counted_an_out_of_memory_was_killed_for_that(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(1, signal="SIGKILL").stop().round().fail(3, signal="SIGKILL").stop()
    result = report(run.close("failed", "no restarts"), fake(state="OUT_OF_MEMORY"))
    assert [entry["first_failure"]["cause"] for entry in result["rounds"]] == ["sigkill", "oom-kill"]


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "NODE_FAIL"])
def test_a_run_that_had_failed_by_itself_is_not_explained_by_what_became_of_its_job(tmp_path: Path, state: str) -> None:
    run = RunBuilder(tmp_path).round().fail(1, signal="SIGKILL").stop().close("failed", "no restarts")
    assert report(run, fake(state=state))["cause"]["cause"] == "sigkill"


def test_a_lost_node_has_slurms_reason(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round().lose("n2").close("failed", "n2 was lost")
    slurm = fake(state="NODE_FAIL", failed_node="n2")
    slurm.nodes = {"n2": "DOWN+NOT_RESPONDING"}
    path = run.write() / "attempts" / "123.0" / "scheduler.json"
    path.write_bytes(write_record(account(slurm, "123.0", "123", ["n2"], START_NS)))
    cause = report(run, slurm)["cause"]
    assert cause["kind"] == "node-lost"
    assert "Slurm: job 123: NODE_FAIL, n2; n2 is DOWN+NOT_RESPONDING" in cause["evidence_lines"]


def test_nothing_in_the_file_can_act_on_the_terminal(tmp_path: Path) -> None:
    run = unfinished(tmp_path)
    written = account(fake(state="NODE_FAIL", failed_node="n\x1b[2J\u202e"), "123.0", "123", [], 1)
    record = json.loads(write_record(written))
    record |= {"reason": "x\x1b]0;y\x07", "problem": "\x1b[31m", "nodes": {"a\x1b[0m": "b\x9b", "c": 7}}
    record |= {"exit_code": "0"}
    (run.write() / "attempts" / "123.0" / "scheduler.json").write_text(json.dumps(record))
    text = render(analyse(gather(run.path, now_ns=run.now_ns)))
    assert "exit_code" in text, "the damaged field is named"
    assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c == "\u202e" for c in text)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": "ftslurm/scheduler", "version": 1}'])
def test_a_broken_file_is_named_and_costs_nothing_else(tmp_path: Path, damage: str) -> None:
    run = stopped(tmp_path)
    (run.write() / "attempts" / "123.0" / "scheduler.json").write_text(damage)
    result = analyse(gather(run.path, now_ns=run.now_ns))
    assert [problem["file"] for problem in result["problems"]] == ["attempts/123.0/scheduler.json"]
    assert result["scheduler"] is None


def test_the_user_of_a_cancellation_and_the_time_of_a_preemption_are_read_from_slurms_output() -> None:
    (row,) = parse_sacct("7\x1f7\x1fCANCELLED by 1000\x1f0:15", ("JobIDRaw", "JobID", "State", "ExitCode"))
    assert (row.state, row.cancelled_by) == ("CANCELLED", 1000)
    (job,) = parse_job_records(
        "JobId=7 JobName=x\n   JobState=PREEMPTED Reason=None Dependency=(null)\n"
        "   StartTime=1795230189 EndTime=1795230289 Deadline=N/A\n"
        "   PreemptEligibleTime=1795230189 PreemptTime=1795230280\n"
    )
    assert job.preempted_ns == 1_795_230_280 * 10**9


def test_slurms_account_is_read_back_as_it_was_written() -> None:
    written = write_record(account(fake(state="TIMEOUT"), "123.0", "123", [], 5))
    found = read_record(SchedulerView, written, "scheduler.json")
    assert verdict(found) == ("time-limit", "time limit of 2:00:00 reached")
    assert verdict(replace(found, time_limit_s=None)) == ("time-limit", "time limit reached")
    assert verdict(None) is None


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
@pytest.mark.parametrize("make", [stopped, unfinished])
def test_every_form_of_the_report_has_it(tmp_path: Path, make: Callable[[Path], RunBuilder], form: str) -> None:
    assert "time limit of 2:00:00 reached" in rendered(report(make(tmp_path), fake(state="TIMEOUT")), form)
