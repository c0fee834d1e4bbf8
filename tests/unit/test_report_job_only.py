"""`ftslurm report JOB` of a job that has no run: what Slurm says, instead of "not found"."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.command import main
from ftslurm.slurm.facts import JobFacts

Ask = Callable[[str], "JobFacts | None"]


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FTSLURM_SHARED_DIR", raising=False)


def known(**facts: object) -> Ask:
    job = JobFacts("123", "FAILED", reason="NonZeroExitCode", exit_code=(2, 0), work_dir="/home/ada")
    fields = {**vars(job), **facts}
    return lambda _: JobFacts(**fields)


def test_a_job_that_was_refused_before_its_start_is_reported_by_slurm_and_by_its_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "slurm-123.out"
    out.write_text("ftslurm: nothere.py: no such script\n")
    assert main(["123"], ask=known(std_out=str(out))) == 0
    printed = capsys.readouterr().out
    for expected in (
        "no such script",
        "it has no run directory in",
        "job 123 FAILED",
        "exit code 2:0",
        str(out),
        "no such scri",
    ):
        assert expected in printed, printed


def test_a_job_that_never_started_is_reported_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["123"], ask=known(state="PENDING", reason="Resources", exit_code=None)) == 0
    assert "job 123 PENDING, reason Resources" in capsys.readouterr().out


def test_a_waiting_job_is_not_blamed_for_the_output_of_the_one_that_it_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "slurm-122.out"
    out.write_text("srun: error: c1: task 0: Exited with exit code 75\n")
    assert main(["123"], ask=known(state="PENDING", reason="Resources", exit_code=None, std_out=str(out))) == 0
    printed = capsys.readouterr().out
    assert "FAILED" not in printed and "job 123 PENDING, reason Resources" in printed


@pytest.mark.parametrize(
    ("state", "exit_code", "code"),
    [("FAILED", (2, 0), 2), ("FAILED", (0, 9), 137), ("COMPLETED", (0, 0), 0), ("CANCELLED", (0, 0), 1),
     ("PENDING", None, 1), ("RUNNING", (0, 0), 1)],
)  # fmt: skip
def test_its_exit_code_is_slurms(state: str, exit_code: tuple[int, int] | None, code: int) -> None:
    assert main(["123", "--exit-code"], ask=known(state=state, exit_code=exit_code)) == code


@pytest.mark.parametrize("form", ["json", "markdown", "html"])
def test_it_can_be_had_in_every_form(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["123", "--format", form], ask=known()) == 0
    printed = capsys.readouterr().out
    assert "NonZeroExitCode" in printed
    if form == "json":
        report = json.loads(printed)
        assert (report["source"], report["status"], report["exit_code"]) == ("Slurm", "unfinished", 2)
        assert report["scheduler"]["state"] == "FAILED"


def test_a_job_that_slurm_does_not_know_either_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["123"], ask=lambda job: None) == 2
    assert "found no run directory or job '123'" in capsys.readouterr().err


def test_offline_slurm_is_not_asked() -> None:
    def never(job: str) -> JobFacts | None:
        raise AssertionError

    assert main(["123", "--offline"], ask=never) == 2


def test_a_run_directory_that_no_agent_has_written_to_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "ftslurm-runs" / "job-123"
    for name in ("attempts", "nodes", "rounds", "state"):
        (run / name).mkdir(parents=True)
    assert main(["123"], ask=known()) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "none of its agents has started" in printed and "job 123 FAILED" in printed, printed


def test_a_job_that_found_its_run_held_by_another_one_does_not_get_that_ones_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunBuilder(tmp_path / "ftslurm-runs", run_id="exp1", job_id="77").round().succeed()
    path = run.close("succeeded", "all ranks succeeded").write()
    (path / "attempts" / "123.0").mkdir()
    assert main(["123"], ask=known()) == 0
    printed = capsys.readouterr().out
    assert "took no part in its run, which attempt 77.0 held" in " ".join(printed.split()), printed
    assert "succeeded" not in printed
    assert main(["77"], ask=known()) == 0
    assert "exp1 succeeded" in capsys.readouterr().out


FAILED = """\
step 3
Traceback (most recent call last):
  File "/w/train.py", line 8, in <module>
    main()
ValueError: bad batch
srun: error: n2: task 3: Exited with exit code 1
"""


def test_any_job_of_slurm_is_reported_by_its_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "slurm-123.out"
    out.write_text(FAILED)
    assert main(["--job", "123", "--exit-code"], ask=known(std_out=str(out))) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("job-123 FAILED: rank 3 on n2: ValueError: bad batch\n")
    assert "Slurm (scontrol): job 123 FAILED, reason NonZeroExitCode, exit code 2:0" in printed


def test_a_job_without_a_run_is_reported_by_its_output_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "slurm-123.out"
    out.write_text(FAILED)
    assert main(["123"], ask=known(std_out=str(out))) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("job-123 FAILED: rank 3 on n2: ValueError: bad batch\n")
    assert "it has no run directory in" in printed


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"state": "TIMEOUT", "time_limit_s": 3600}, "job-123 was stopped: time limit of 1:00:00 reached"),
        ({"state": "NODE_FAIL", "failed_node": "n7"}, "job-123 FAILED: n7 failed (Slurm: NODE_FAIL)"),
        ({"state": "COMPLETED", "exit_code": (0, 0)}, "job-123: no failure found"),
        ({"state": "RUNNING", "exit_code": None}, "job-123: no failure found"),
    ],
)
def test_what_only_slurm_knows_completes_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: dict[str, object], says: str
) -> None:
    out = tmp_path / "slurm-123.out"
    out.write_text("step 1\nstep 2\n")
    assert main(["--job", "123"], ask=known(std_out=str(out), **state)) == 0
    assert capsys.readouterr().out.startswith(says)


def test_a_job_without_an_output_or_unknown_to_slurm_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--job", "123"], ask=known(std_out=str(tmp_path / "gone.out"))) == 2
    assert main(["--job", "123"], ask=lambda _: None) == 2
    assert main(["--job", "12x"], ask=lambda _: None) == 2
    assert main(["--job", "123", "--logs", "x"], ask=lambda _: None) == 2
    errors = capsys.readouterr().err
    for part in ("no output file", "Slurm has no job 123", "expected a job id", "cannot be combined with --logs"):
        assert part in errors
