"""The job id of an array, given to a command: all tasks are named, and which one is meant is not guessed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder
from sample_runs.contents import START_NS

from ftslurm import cli
from ftslurm.records.codec import write_record
from ftslurm.records.submission import Submission
from ftslurm.runs.restart_command import main as restart
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.status.stop import main as stop
from tests.unit.test_restart_command import SCRIPT, Sbatch

OUTCOMES = {"1": "succeeded", "2": "failed", "3": "succeeded"}


def task(folder: Path, number: str, outcome: str, name: str | None = None) -> Path:
    """Write the run of a task of array 22; Slurm gives the last one the array's own number."""
    own = "22" if number == "3" else f"2{int(number) + 2}"
    run = RunBuilder(folder, run_id=name or f"job-22_{number}", job_id=own)
    run.attempts[0] |= {"array_job_id": "22", "array_task_id": number}
    if outcome == "running":
        return run.wait((time.time_ns() - START_NS) / 1e9).round().write()
    run.round()
    run = run.succeed() if outcome == "succeeded" else run.fail(1, ValueError("boom")).stop()
    path = run.close(outcome, "the end").write()
    (path / "submission.json").write_bytes(write_record(Submission(own, 0, SCRIPT, (), (), str(folder.parent))))
    return path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the runs of an array, whose last task was written to last."""
    folder = tmp_path / "ftslurm-runs"
    for number, outcome in OUTCOMES.items():
        task(folder, number, outcome)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    return folder


@pytest.mark.parametrize("command", [("report", "--offline"), ("status",), ("logs",)])
def test_the_task_that_failed_is_shown_and_the_others_are_named(
    runs: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main([*command, "22"])
    out, err = capsys.readouterr()
    first, *_ = err.splitlines()
    name = command[0]
    assert first == (
        f"ftslurm {name}: job 22 is an array: task 2 failed; tasks 1, 3 succeeded; task 2 is shown, "
        f"another one by: ftslurm {name} 22_1"
    )
    if name != "logs":
        assert "job-22_2" in out


def test_the_note_on_the_other_tasks_is_not_part_of_the_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "22", "--offline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["id"] == "job-22_2"


def test_a_task_is_shown_without_the_others(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("22_3", "24"):
        assert cli.main(["status", argument]) == 0
        out, err = capsys.readouterr()
        assert err == "" and out.startswith("run job-22_")


def test_an_array_is_found_before_its_last_task_has_begun(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "job-22_3").rename(runs / "other")
    assert cli.main(["status", "22"]) == 0
    assert "task 2 failed; task 1 succeeded;" in capsys.readouterr().err


def test_tasks_with_names_of_their_own_are_found_by_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, outcome in OUTCOMES.items():
        task(tmp_path / "ftslurm-runs", number, outcome, f"lr-{number}")
    RunBuilder(tmp_path / "ftslurm-runs", run_id="lr-4", job_id="99").write()
    assert cli.main(["status", "22", "--offline"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("run lr-2 FAILED") and "task 2 failed; tasks 1, 3 succeeded" in err


def test_the_only_task_that_can_start_again_is_started_again(runs: Path) -> None:
    sbatch = Sbatch()
    assert restart(["22"], queue=dict, submits=sbatch) == 0
    assert sbatch.environ["FTSLURM_SHARED_DIR"] == str(runs)
    assert len(sbatch.submitted) == 1


def test_of_several_that_can_start_again_one_has_to_be_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task(runs, "4", "failed")
    sbatch = Sbatch()
    assert restart(["22"], queue=dict, submits=sbatch) == 2
    assert capsys.readouterr().err == (
        "ftslurm restart: job 22 is an array: tasks 2, 4 failed; tasks 1, 3 succeeded; "
        "name one task, as in: ftslurm restart 22_2\n"
    )
    assert sbatch.submitted == []


def test_an_array_that_has_succeeded_is_not_started_again(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "job-22_2").rename(runs / "other")
    assert restart(["22"], queue=dict, submits=Sbatch()) == 2
    err = capsys.readouterr().err
    assert "tasks 1, 3 succeeded; none of them has failed or was stopped" in err and err.count("\n") == 1


def test_stop_takes_the_only_task_that_runs_and_else_asks_for_one(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stop(["22"]) == 2
    assert "none of them runs" in capsys.readouterr().err
    running = task(runs, "4", "running")
    assert stop(["22"]) == 0
    assert (
        capsys.readouterr().out.startswith("job-22_4: asked to stop")
        and Path(RunDirectory(str(running)).stop_file).exists()
    )
    task(runs, "5", "running")
    assert stop(["22"]) == 2
    err = capsys.readouterr().err
    assert "tasks 4-5 are running" in err and "name one task, as in: ftslurm stop 22_4" in err
