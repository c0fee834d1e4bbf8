"""`ftslurm stop`: the run that is meant, and no other job's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder
from sample_runs.contents import START_NS

from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.status.stop import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)


def asked(run: Path) -> bool:
    return Path(RunDirectory(str(run)).stop_file).exists()


def running(folder: Path, name: str, *, job: str = "40", other: str = "41") -> Path:
    """Write a run that a job runs now, and in which another job has been."""
    run = RunBuilder(folder / "ftslurm-runs", run_id=name, job_id=job).wait((time.time_ns() - START_NS) / 1e9)
    path = run.round().write()
    (path / "attempts" / f"{other}.0").mkdir()
    return path


def test_a_job_that_does_not_run_the_run_stops_not_the_one_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = running(tmp_path, "llm")
    assert main(["41"], ask=lambda job: None) == 3
    assert capsys.readouterr().err == (
        "ftslurm stop: job 41 does not run llm now: job 40 does; to stop that: ftslurm stop 40\n"
    )
    assert not asked(run)


@pytest.mark.parametrize("argument", ["40", "llm", "ftslurm-runs/llm", None])
def test_the_job_that_runs_it_its_name_and_its_directory_stop_it(tmp_path: Path, argument: str | None) -> None:
    run = running(tmp_path, "llm")
    assert main([] if argument is None else [argument], ask=lambda job: None) == 0
    assert asked(run)


def test_the_id_in_the_runs_name_means_the_run_whichever_job_continues_it(tmp_path: Path) -> None:
    run = running(tmp_path, "job-41", job="57", other="41")
    assert main(["41"], ask=lambda job: None) == 0
    assert asked(run)


def test_a_task_of_an_array_is_known_by_its_arrays_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunBuilder(tmp_path / "ftslurm-runs", run_id="llm", job_id="44").wait((time.time_ns() - START_NS) / 1e9)
    run.attempts[0] |= {"array_job_id": "42", "array_task_id": "2"}
    path = run.round().write()
    (path / "attempts" / "41.0").mkdir()
    assert main(["41"], ask=lambda job: None) == 3
    assert "job 42_2 does; to stop that: ftslurm stop 42_2" in capsys.readouterr().err
    assert main(["42_2"], ask=lambda job: None) == 0
