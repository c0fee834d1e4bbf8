"""A run that was asked to stop, in the report: interrupted, or which rank did not leave in time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import START_NS, RunBuilder

from ftslurm.records.attempt import SchedulerView, StepEnd
from ftslurm.records.cause import TIME_LIMIT
from ftslurm.records.codec import write_record
from ftslurm.records.verdict import REQUEUE, AttemptVerdict, Requeued
from ftslurm.report import html, markdown
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.text import render

SAVED = "saved at step 43 (3 s of 30 s grace)"
LATE = "stop requested 34 s ago, not polled since: rank 5 was in section train"


def report(parent: Path, *, orderly: bool, result: str | None, slurm: dict[str, Any] | None = None) -> dict[str, Any]:
    run = RunBuilder(parent).round().steps(1, 42, over_s=60)
    reason = f"interrupted: SIGTERM from outside; {result}" if orderly else f"SIGTERM from outside; {result}"
    path = run.stop(reason=reason, outcome="stopped").close("stopped", reason, 75 if orderly else 143).write()
    (newest,) = path.glob("state/*.json")
    content = json.loads(newest.read_text())
    content["value"]["stop"] = {
        "cause": "signal", "reason": "SIGTERM from outside", "node": "n1", "requested_ns": START_NS, "round": 1,
        "signal": "SIGTERM", "grace_s": 30.0, "proposal": 1, "step": 43, "committed": True, "orderly": orderly,
        "result": result,
    }  # fmt: skip
    newest.write_text(json.dumps(content))
    snapshot = gather(path, now_ns=run.now_ns + 10**9)
    if slurm is not None:
        view = SchedulerView(attempt="123.0", job_id="123", source="scontrol", asked_ns=run.now_ns, **slurm)
        (path / "attempts" / "123.0" / "scheduler.json").write_bytes(write_record(view))
        snapshot = gather(path, now_ns=run.now_ns + 10**9)
    found = analyse(snapshot)
    assert not found["problems"]
    assert json.loads(json.dumps(found)) == found
    return found


def test_an_orderly_stop_is_called_an_interruption_with_the_step_that_was_saved(tmp_path: Path) -> None:
    found = report(tmp_path, orderly=True, result=SAVED)
    lines = render(found, zone=time.gmtime).splitlines()
    assert lines[0] == "job-123 was interrupted: SIGTERM from outside; saved at step 43 (3 s of 30 s"
    assert lines[1].strip() == "grace)"
    assert lines[2].endswith("exit code 75; no rank is to blame")
    assert "FAILED" not in "".join(lines)
    assert found["summary"] == f"job-123 was interrupted: SIGTERM from outside; {SAVED}"
    assert "saved at step 43" in markdown.render(found, zone=time.gmtime)
    page = html.render(found, zone=time.gmtime)
    assert '<span class="badge">INTERRUPTED</span>' in page
    assert "saved at step 43" in page
    assert (found["status"], found["stop"]["orderly"], found["stop"]["result"]) == ("stopped", True, SAVED)


def test_slurms_reason_comes_before_the_step_that_was_saved(tmp_path: Path) -> None:
    found = report(tmp_path, orderly=True, result=SAVED, slurm={"state": "CANCELLED", "cancelled_by": 1000})
    assert found["summary"] == f"job-123 was interrupted: cancelled by uid 1000; {SAVED}"


@pytest.mark.parametrize("slurm", [None, {"state": "CANCELLED"}])
def test_a_rank_that_did_not_leave_in_time_is_named(tmp_path: Path, slurm: dict[str, Any] | None) -> None:
    found = report(tmp_path, orderly=False, result=LATE, slurm=slurm)
    why = "SIGTERM from outside" if slurm is None else "cancelled by a user"
    assert found["summary"] == f"job-123 was stopped: {why}; {LATE}"


def test_a_hostile_result_reaches_no_terminal(tmp_path: Path) -> None:
    found = report(tmp_path, orderly=True, result="saved \x1b[31m at\nstep 1")
    assert "\x1b" not in render(found, zone=time.gmtime)


WAS_TO_BE = "requeued: time limit of 0:01:00 reached"
NOT_DONE = (
    "not requeued: time limit of 0:01:00 reached, but ftsrun was killed before it asked for that "
    "(start it with exec, or after trap : TERM); start it again: ftslurm restart 123"
)


def killed(
    parent: Path, *, state: str | None, age_s: float = 60, record: object | None = None, restarts: int = 0
) -> str:
    """Return the line on the requeue of a job that reached its time limit, as the report has it later."""
    run = RunBuilder(parent).round().steps(1, 42).stop(reason="SIGTERM from outside", outcome="stopped")
    path = run.close("stopped", "SIGTERM from outside", 143).write()
    attempt = path / "attempts" / "123.0"
    verdict = AttemptVerdict("123.0", run.now_ns, "n1", REQUEUE, TIME_LIMIT, WAS_TO_BE, 143, 42, True)
    (attempt / "verdict.json").write_bytes(write_record(verdict))
    if state is not None:
        view = SchedulerView("123.0", run.now_ns, "123", state=state, restarts=restarts, source="scontrol")
        (attempt / "scheduler.json").write_bytes(write_record(view))
    if isinstance(record, StepEnd):
        (attempt / "step.json").write_bytes(write_record(record))
    if isinstance(record, Requeued):
        (attempt / "requeue.json").write_bytes(write_record(record))
    (entry,) = analyse(gather(path, now_ns=run.now_ns + int(age_s * 1e9)))["lineage"]
    return str(entry["line"])


def test_a_requeue_that_was_not_requested_is_not_reported_as_done(tmp_path: Path) -> None:
    assert killed(tmp_path / "1", state="TIMEOUT") == NOT_DONE
    # Slurm has forgotten the job.
    assert killed(tmp_path / "2", state="COMPLETING", age_s=3600) == NOT_DONE
    assert killed(tmp_path / "3", state=None, age_s=3600) == NOT_DONE


def test_a_requeue_that_was_asked_for_or_still_may_be_is_called_so(tmp_path: Path) -> None:
    assert killed(tmp_path / "1", state="COMPLETING") == WAS_TO_BE
    assert killed(tmp_path / "2", state=None) == WAS_TO_BE
    # ftsrun prints its report between these two records.
    assert killed(tmp_path / "3", state="TIMEOUT", record=StepEnd("123.0", 1, 143, None)) == WAS_TO_BE
    assert killed(tmp_path / "4", state="TIMEOUT", record=Requeued("123.0", 1, "requeued", "123")) == WAS_TO_BE
    # Slurm has requeued it by itself meanwhile.
    assert killed(tmp_path / "5", state="TIMEOUT", restarts=1) == WAS_TO_BE
