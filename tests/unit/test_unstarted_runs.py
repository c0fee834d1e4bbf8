"""A run directory without a state, whose agents never started: one clear line in each command, and `clean` frees it."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ftslurm.agent.option_groups import OutputOptions
from ftslurm.agent.preflight import open_directories
from ftslurm.report.command import main as report
from ftslurm.runs.clean_command import main as clean
from ftslurm.runs.history_command import main as history
from ftslurm.runs.list_command import main as list_runs
from ftslurm.sharedfs import rundir
from ftslurm.sharedfs.rundir import RunDirectoryError, open_run
from ftslurm.slurm.queue import QueuedJob, by_name
from ftslurm.status.command import main as status

HOUR_NS = 3600 * 10**9


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs without a state: job-1 and local-1 of two hours ago, job-2 of now."""
    directory = tmp_path / "ftslurm-runs"
    for name, hours in (("job-1", 2), ("local-1", 2), ("job-2", 0)):
        then = time.time_ns() - hours * HOUR_NS
        open_run(str(directory / name), "ann", then, "1")
        for path in (directory / name / "state", directory / name / "nodes"):
            os.utime(path, ns=(then, then))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)
    return directory


def left(runs: Path) -> list[str]:
    return sorted(path.name for path in runs.iterdir())


def nothing_queued() -> Mapping[str, QueuedJob]:
    return {}


def test_list_distinguishes_by_age_what_starts_from_what_never_started(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list_runs([], queue=nothing_queued) == 0
    lines = capsys.readouterr().out.splitlines()
    (starting,) = (line.strip() for line in lines if "job-2" in line)
    (unstarted,) = (line.strip() for line in lines if "job-1" in line)
    assert starting.startswith("job-2    starting (no agent has")
    assert unstarted.startswith("job-1    unstarted (unchanged for")


def test_list_has_slurms_state_of_a_job_that_waits(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = by_name([QueuedJob("2", None, None, "PENDING", "Resources", None)])
    assert list_runs(["--json"], queue=lambda: queue) == 0
    found = {run["run"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert (found["job-2"]["state"], found["job-2"]["why"]) == ("pending", "Resources")


def test_clean_frees_what_never_started_and_nothing_that_starts(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert clean(["--older-than", "1m", "--yes"], queue=nothing_queued) == 0
    assert left(runs) == ["job-2"]
    assert "2 runs in " in (out := capsys.readouterr().out) and "ended (2 never started) and unchanged for 1 min" in out
    assert clean(["--yes"], queue=nothing_queued) == 0
    assert left(runs) == ["job-2"]


def test_clean_leaves_a_young_one_whatever_age_is_wanted(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    then = time.time_ns() - HOUR_NS // 2
    for path in (*(runs / "job-2").iterdir(), runs / "job-2"):
        os.utime(path, ns=(then, then))
    assert clean(["--older-than", "1m", "--yes"], queue=nothing_queued) == 0
    assert left(runs) == ["job-2"]
    assert "stays: job-2: it is starting" in capsys.readouterr().out


def test_clean_leaves_what_waits_in_the_queue_or_may_wait_there(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = by_name([QueuedJob("1", None, None, "RUNNING", None, 60)])
    assert clean(["--older-than", "1m", "--yes"], queue=lambda: queue) == 0
    assert left(runs) == ["job-1", "job-2"]
    assert clean(["--older-than", "1m", "--yes"], queue=lambda: None) == 0
    assert left(runs) == ["job-1", "job-2"]
    assert "stays: job-1: Slurm does not say whether its job waits for nodes" in capsys.readouterr().out


@pytest.mark.parametrize("command", [status, report])
def test_status_and_report_are_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], int]
) -> None:
    command(["--offline", str(runs / "job-1")])
    first, *rest = (line for line in capsys.readouterr().out.splitlines() if line)
    assert "job-1: no agent has started" in first
    assert len(rest) == 1 and str(runs / "job-1") in rest[0]


def test_history_names_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history([]) == 0
    out = capsys.readouterr().out
    assert "cannot be judged: job-1: no agent has written a state: it never started, or begins just now" in out


def test_refused_logs_leave_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = OutputOptions(**{**_output(), "log_dir": str(tmp_path / "file")})
    with pytest.raises(RunDirectoryError, match="is a file, expected a directory; choose another --log-dir"):
        open_directories(output, str(tmp_path / "runs" / "job-1"))
    assert not (tmp_path / "runs").exists()


def test_a_refused_run_directory_leaves_no_directory_of_logs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = OutputOptions(**{**_output(), "log_dir": str(tmp_path / "logs")})
    with pytest.raises(RunDirectoryError, match="choose another --shared-dir"):
        open_directories(output, str(tmp_path / "file" / "job-1"))
    assert not list((tmp_path / "logs").iterdir())


def test_a_full_disk_leaves_no_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rundir, "publish_once", full)
    with pytest.raises(RunDirectoryError, match="the disk is full"):
        open_run(str(tmp_path / "runs" / "job-1"), "ann", 1, "1")
    assert not (tmp_path / "runs" / "job-1").exists()


def _output() -> dict[str, object]:
    from ftslurm.agent.option_table import GROUPS

    (group,) = (group for group in GROUPS if group.name == "output")
    return {option.field: option.default for option in group.options}
