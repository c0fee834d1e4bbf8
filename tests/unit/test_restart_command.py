"""`ftslurm restart`: a run that has ended goes on as a new job; one that goes on is refused with one line."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder
from sample_runs.contents import START_NS

from ftslurm.records.codec import write_record
from ftslurm.records.submission import Submission
from ftslurm.runs.restart_command import main
from ftslurm.slurm.errors import SlurmRefused, SlurmUnknownJob, SlurmUnreachable
from ftslurm.slurm.queue import QueuedJob, by_name
from ftslurm.slurm.resubmission import BatchScript

SCRIPT = "#!/bin/bash\nexec ftsrun train.py\n"


class Sbatch:
    """What submits; with a job that slurmctld still has, or not."""

    def __init__(self, known: bool = False, refuses: bool = False) -> None:
        self.known, self.refuses = known, refuses
        self.submitted: list[tuple[BatchScript, tuple[str, ...], str]] = []
        self.environ: Mapping[str, str] = {}

    def __call__(self, environ: Mapping[str, str]) -> Sbatch:
        self.environ = environ
        return self

    def script_of(self, job_id: str, run_id: str) -> BatchScript:
        if not self.known:
            raise SlurmUnknownJob("Invalid job id specified")
        return BatchScript("from slurmctld", (f"--comment=ftslurm-run={run_id}",), ())

    def submit_script(self, script: BatchScript, *options: str) -> str:
        if self.refuses:
            raise SlurmRefused("`sbatch` failed (exit 1): Invalid account")
        self.submitted.append((script, options, str(Path.cwd())))
        return "57"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of job 12 that failed in round 2, with its script."""
    story = RunBuilder(tmp_path / "ftslurm-runs", run_id="job-12", job_id="12").round().fail(1, ValueError("a")).stop()
    path = story.round().fail(1, ValueError("a")).stop().close("failed", "no restart left").write()
    options = ("--nodes=2", "--exclude=n[7-8]", "--comment=ftslurm-run=job-12")
    record = Submission("12", 0, SCRIPT, options, ("a", "b"), str(tmp_path))
    (path / "submission.json").write_bytes(write_record(record))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)
    return path


def test_the_recorded_script_is_submitted_again_where_it_was_submitted_first(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/")
    sbatch = Sbatch()
    assert main([str(run)], queue=dict, submits=sbatch) == 0
    ((script, more, cwd),) = sbatch.submitted
    assert (script.text, script.arguments, more, cwd) == (SCRIPT, ("a", "b"), (), str(run.parent.parent))
    assert "--comment=ftslurm-run=job-12" in script.options
    assert sbatch.environ["FTSLURM_SHARED_DIR"] == str(run.parent)
    assert "job-12: submitted as job 57; it goes on with round 3" in capsys.readouterr().out


def test_excluded_nodes_are_added_to_those_of_the_job(run: Path) -> None:
    sbatch = Sbatch()
    assert main(["job-12", "--exclude", "n[2-3]", "--exclude", "n5"], queue=dict, submits=sbatch) == 0
    assert sbatch.submitted[0][1] == ("--exclude=n[7-8],n2,n3,n5",)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (QueuedJob("12", None, None, "PENDING", "BeginTime", None), "its job 12 is pending (BeginTime)"),
        (QueuedJob("12", None, None, "PENDING", "JobHeldUser", None), "release it: scontrol release 12"),
        (
            QueuedJob("31", None, None, "PENDING", "Priority", None, "x ftslurm-run=job-12"),
            "starts again anyway: its job 31 is pending (Priority)",
        ),
    ],
)
def test_a_run_with_a_job_in_the_queue_is_not_submitted_twice(
    job: QueuedJob, expected: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch = Sbatch()
    assert main(["job-12"], queue=lambda: by_name([job]), submits=sbatch) == 3
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
    assert sbatch.submitted == []


class Time:
    """A clock that waiting advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_the_end_of_a_job_whose_run_has_just_ended_is_awaited(
    state: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    time, sbatch = Time(), Sbatch()
    job = by_name([QueuedJob("12", None, None, state, None, 60)])
    arguments = {"submits": sbatch, "sleep": time.sleep, "monotonic": time.monotonic}
    assert main(["job-12"], queue=lambda: job if time.now_s < 7 else {}, **arguments) == 0
    out, err = capsys.readouterr()
    assert "submitted as job 57" in out and time.now_s == 7
    assert err == f"ftslurm restart: job 12 is still {state.lower()}: waiting up to 60 s for its end\n"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("RUNNING", "12 is running; the run has ended, the batch script goes on: wait for its end, or scancel 12"),
        ("COMPLETING", "12 is completing; try again when it has ended"),
    ],
)
def test_but_not_for_long(state: str, expected: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    time, sbatch = Time(), Sbatch()
    job = by_name([QueuedJob("12", None, None, state, None, 60)])
    arguments = {"submits": sbatch, "sleep": time.sleep, "monotonic": time.monotonic}
    assert main(["job-12"], queue=lambda: job, **arguments) == 3
    assert expected in capsys.readouterr().err.splitlines()[-1]
    assert sbatch.submitted == [] and time.now_s == 60


def test_a_run_that_goes_on_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = RunBuilder(tmp_path, run_id="job-12", job_id="12").round().write()
    job = by_name([QueuedJob("12", None, None, "RUNNING", None, 60)])
    assert main([str(path)], queue=lambda: job, submits=Sbatch(), sleep=pytest.fail) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("12 is running; stop it first: ftslurm stop job-12")


def test_what_becomes_of_the_environment_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sbatch = Sbatch()
    assert main(["job-12"], queue=dict, submits=sbatch) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  environment: this shell's; what was set when the old job was submitted is not known"
    ]
    record = Submission("12", 0, SCRIPT, ("--export=ALL,LR=0.1",), (), None)
    (run / "submission.json").write_bytes(write_record(record))
    assert main(["job-12"], queue=dict, submits=sbatch) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("  environment: --export=ALL,LR=0.1 as before, otherwise this shell's; what else was set")
    assert sbatch.submitted[-1][0].options == ("--export=ALL,LR=0.1",)


def test_a_run_whose_agents_live_is_not_started_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = RunBuilder(tmp_path, run_id="job-12", job_id="12").wait((time.time_ns() - START_NS) / 1e9)
    path = story.round().write()
    assert main([str(path)], queue=dict, submits=Sbatch()) == 3
    assert "job-12 is running: its agents wrote a moment ago" in capsys.readouterr().err


def test_a_run_without_slurm_is_refused_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = RunBuilder(tmp_path, run_id="local-1", job_id="local-1").round().succeed()
    path = story.close("succeeded", "all").write()
    assert main([str(path)], queue=dict, submits=Sbatch()) == 3
    assert "ftslurm run --rdzv-id local-1 ..." in capsys.readouterr().err


def test_without_a_record_slurmctld_is_asked_and_then_the_user(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "submission.json").unlink()
    sbatch = Sbatch(known=True)
    assert main(["job-12"], queue=dict, submits=sbatch) == 0
    assert sbatch.submitted[0][0].text == "from slurmctld"
    assert main(["job-12"], queue=dict, submits=Sbatch()) == 2
    assert "submit it by hand: sbatch --comment=ftslurm-run=job-12 SCRIPT" in capsys.readouterr().err


def test_without_slurm_nothing_is_submitted_and_one_line_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down() -> dict[str, QueuedJob]:
        raise SlurmUnreachable("x" * 400, "squeue: Unable to contact slurm controller (connect failure)")

    sbatch = Sbatch()
    assert main(["job-12"], queue=down, submits=sbatch) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ftslurm restart: Slurm is not reachable (squeue: Unable to contact slurm controller (con")
    assert line.endswith("; job-12 is failed, and nothing was submitted") and not sbatch.submitted
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["job-12"], submits=sbatch) == 1
    assert "Slurm is not reachable (squeue is not on PATH)" in capsys.readouterr().err


def test_a_damaged_or_foreign_record_is_not_submitted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "submission.json"
    path.write_text("{")
    assert main(["job-12"], queue=dict, submits=Sbatch()) == 2
    assert "the run's batch script cannot be read" in capsys.readouterr().err
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        assert main(["job-12"], queue=dict, submits=Sbatch()) == 2
        os.chown(run, 12345, 12345)
        assert main([str(run)], queue=dict, submits=Sbatch()) == 2
        assert "is another user's, or a link" in capsys.readouterr().err


def test_slurms_refusal_and_wrong_names_are_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job-12"], queue=dict, submits=Sbatch(refuses=True)) == 1
    assert capsys.readouterr().err == "ftslurm restart: `sbatch` failed (exit 1): Invalid account\n"
    assert main(["job-12", "--exclude", "n[1-"], queue=dict, submits=Sbatch()) == 2
    assert capsys.readouterr().err.startswith("ftslurm restart: --exclude: ")
