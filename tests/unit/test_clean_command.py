"""`ftslurm clean`: what old runs occupy; only with --yes are they removed, and never one that goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.runs import removal
from ftslurm.runs.clean_command import main
from ftslurm.runs.removal import ASIDE, NotRemovable, mark_of, remove, usage
from ftslurm.slurm.queue import QueuedJob, by_name

DAY_NS = 86400 * 10**9


def age(path: Path, days: float) -> None:
    then = time.time_ns() - int(days * DAY_NS)
    for name in ("state", "nodes"):
        os.utime(path / name, ns=(then, then))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs: job-1 and job-2 ended 40 days ago, job-3 yesterday; job-4 has a round since 40 days, with heartbeats."""
    directory = tmp_path / "ftslurm-runs"
    directory.mkdir()
    for number in (1, 2, 3):
        name = f"job-{number}"
        RunBuilder(directory, run_id=name, job_id=str(number)).round().succeed().close("succeeded", "all").write()
    RunBuilder(directory, run_id="job-4", job_id="4").round().steps(1, 9).write()
    for number, days in ((1, 40), (2, 41), (3, 1), (4, 40)):
        age(directory / f"job-{number}", days)
    os.utime(directory / "job-4" / "nodes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_without_yes_it_prints_what_would_be_freed_and_removes_nothing(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(str(path) for path in runs.rglob("*"))
    assert main([], queue=dict) == 0
    out = capsys.readouterr().out
    inside = 2 + sum(len(list((runs / name).rglob("*"))) for name in ("job-1", "job-2"))
    assert out.startswith(f"2 runs in {runs} ended and unchanged for 30 d: {inside} files, ")
    assert "nothing was removed; with --yes they are" in out
    assert sorted(str(path) for path in runs.rglob("*")) == before


def test_with_yes_old_runs_are_removed_and_no_others(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--yes"], queue=dict) == 0
    assert names(runs) == ["job-3", "job-4"]
    assert f"removed 2 runs in {runs}: " in capsys.readouterr().out
    assert main(["--yes", "--older-than", "12h"], queue=dict) == 0
    assert names(runs) == ["job-4"], "it runs: its node records change"


def test_a_run_whose_job_is_in_the_queue_stays(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = by_name([QueuedJob("1", None, None, "PENDING", "BeginTime", None)])
    assert main(["--yes"], queue=lambda: queue) == 0
    assert names(runs) == ["job-1", "job-3", "job-4"]
    assert "stays: job-1: its job 1 is pending" in capsys.readouterr().out


def test_a_run_that_a_job_in_the_queue_continues_stays(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = by_name([QueuedJob("77", None, None, "PENDING", "Priority", None, "ftslurm-run=job-1")])
    assert main(["--yes"], queue=lambda: queue) == 0
    assert "job-1" in names(runs)
    assert "stays: job-1: its job 77 is pending" in capsys.readouterr().out


def test_without_an_answer_of_slurm_the_runs_of_its_jobs_stay(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    local = RunBuilder(runs, run_id="local-1", job_id="local-1").round().succeed().close("succeeded", "all").write()
    age(local, 40)

    def unknown() -> Mapping[str, QueuedJob] | None:
        return None

    assert main(["--yes"], queue=unknown) == 0
    assert names(runs) == ["job-1", "job-2", "job-3", "job-4"]
    assert "Slurm does not say whether its job is requeued" in capsys.readouterr().out


def test_a_silent_run_is_removed_only_where_slurm_does_not_know_its_job(runs: Path) -> None:
    old = time.time_ns() - 40 * DAY_NS
    for path in [*(runs / "job-4" / "nodes").iterdir(), runs / "job-4" / "nodes"]:
        os.utime(path, ns=(old, old))
    running = by_name([QueuedJob("4", None, None, "RUNNING", None, 60)])
    assert main(["--yes"], queue=lambda: running) == 0
    assert "job-4" in names(runs)
    assert main(["--yes"], queue=dict) == 0
    assert "job-4" not in names(runs)


def test_links_and_other_directories_stay(runs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (runs / "job-1").rename(elsewhere)
    (runs / "job-1").symlink_to(elsewhere)
    (runs / "data").mkdir()
    (runs / "job-2" / "link").symlink_to(elsewhere)
    age(runs / "job-2", 41)
    assert main(["--yes"], queue=dict) == 0
    assert names(runs) == ["data", "job-1", "job-3", "job-4"]
    assert (elsewhere / "run.json").exists()


def test_a_run_with_another_users_file_stays(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    (runs / "job-1" / "note").write_text("x")
    os.chown(runs / "job-1" / "note", 12345, 12345)
    os.chown(runs / "job-2", 12345, 12345)
    assert main(["--yes"], queue=dict) == 0
    assert names(runs) == ["job-1", "job-2", "job-3", "job-4"]
    assert "stays: job-1: a file in it belongs to uid 12345" in capsys.readouterr().out


def test_a_damaged_run_stays_and_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "job-1" / "state" / "000000000007.json").write_bytes(b"{")
    age(runs / "job-1", 40)
    assert main(["--yes"], queue=dict) == 0
    assert "job-1" in names(runs)
    assert "stays: job-1: it cannot be judged" in capsys.readouterr().out


def test_a_run_that_went_on_after_it_was_judged_stays(runs: Path) -> None:
    path = runs / "job-1"
    judged = mark_of(str(path))
    (path / "state" / "000000000008.json").write_text("{}")
    with pytest.raises(NotRemovable, match="it has changed since it was judged"):
        remove(str(path), judged)
    assert path.is_dir()


def test_a_run_that_goes_on_while_it_is_moved_is_moved_back(runs: Path) -> None:
    path = runs / "job-1"

    def agent_writes() -> None:
        (aside,) = runs.glob(f"{ASIDE}*")
        (aside / "state" / "000000000008.json").write_text("{}")

    with pytest.raises(NotRemovable, match="it went on meanwhile"):
        remove(str(path), mark_of(str(path)), agent_writes)
    assert (path / "state" / "000000000008.json").exists()


def test_a_run_that_begins_anew_while_the_old_one_goes_on_is_not_replaced(runs: Path) -> None:
    path = runs / "job-1"

    def agents_write() -> None:
        (aside,) = runs.glob(f"{ASIDE}*")
        (aside / "state" / "000000000008.json").write_text("{}")
        path.mkdir()
        (path / "run.json").write_text("new")

    with pytest.raises(NotRemovable, match="its files are in"):
        remove(str(path), mark_of(str(path)), agents_write)
    assert (path / "run.json").read_text() == "new"


def test_what_a_killed_clean_left_is_removed_by_the_next_one(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "job-1").rename(runs / f"{ASIDE}job-1.00")
    assert main(["--yes"], queue=dict) == 0
    assert f"{ASIDE}job-1.00" in names(runs), "another process may be at it"
    monkeypatch.setattr(removal, "ASIDE_S", -1.0)
    assert main(["--yes"], queue=dict) == 0
    assert names(runs) == ["job-3", "job-4"]


def test_another_filesystem_in_a_run_is_not_entered(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.lstat

    def other_device(path: str) -> SimpleNamespace:
        facts = real(path)
        return SimpleNamespace(st_dev=facts.st_dev + 1, st_uid=facts.st_uid, st_blocks=facts.st_blocks)

    # As if all below were on another one.
    monkeypatch.setattr(os, "lstat", other_device)
    with pytest.raises(NotRemovable, match="another filesystem is mounted in it"):
        usage(str(runs / "job-1"))


def test_bad_input_is_one_clear_line_and_exit_code_2(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--older-than", "yesterday"], queue=dict) == 2
    assert "expected a time such as 90m" in capsys.readouterr().err
    assert main(["nowhere"], queue=dict) == 2
    assert "is not there" in capsys.readouterr().err
