"""`ftslurm chain`: what it submits, and when the rest of a chain has nothing to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.chain import check_script, main, parse
from ftslurm.job_end.requeue import AttemptEnd, decide, ends_chain
from ftslurm.records import cause
from ftslurm.records.cause import IF_NODE
from ftslurm.records.verdict import END, REQUEUE
from ftslurm.terminal import UsageError


def test_a_file_that_sbatch_would_refuse_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, log = tmp_path / "job.sbatch", tmp_path / "out.log"
    text.write_text("srun python train.py\n")
    log.touch()
    for arguments, expected in (
        (["3", str(text)], f"{text}: expected a batch script, whose first line begins with #!"),
        (["3", "/etc"], "expected a batch script, found no file among '/etc'"),
    ):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert expected in line
    text.write_text("#!/bin/sh\n")
    # sbatch knows which of its arguments is the script.
    check_script([str(log), str(text)])


def is_file(path: str) -> bool:
    return path.endswith(".sbatch")


def test_the_run_has_the_scripts_name_and_digits_or_the_name_that_is_given() -> None:
    arguments = ["5", "-p", "gpu", "jobs/my job.v2.sbatch", "--epochs", "3"]
    assert parse(arguments, is_file, "abc") == (5, "my-job-abc", arguments[1:])
    assert parse(["--run-id", "lm", *arguments], is_file, "abc") == (5, "lm", arguments[1:])
    assert parse(["--run-id=lm", *arguments], is_file, "abc") == (5, "lm", arguments[1:])


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["0", "a.sbatch"], "a number of jobs"),
        (["1000000000000", "a.sbatch"], "a number of jobs"),
        (["a.sbatch"], "a number of jobs"),
        (["3", "a.txt"], "a batch script"),
        (["3"], "a batch script"),
        (["3", "--array=1-2", "a.sbatch"], "--array=1-2"),
        (["3", "-J", "x", "a.sbatch"], "-J"),
        (["--run-id=../x", "3", "a.sbatch"], "--run-id"),
        (["--run-id"], "a number of jobs"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        parse(arguments, is_file, "abc")


@pytest.mark.parametrize(
    ("by", "gained", "action", "ends"),
    [
        (cause.SUCCEEDED, True, END, True),
        (cause.NON_RETRYABLE, True, END, True),
        (cause.FAILURE, True, END, True),
        (cause.TIME_LIMIT, True, END, False),  # the next job goes on
        (cause.TIME_LIMIT, None, END, False),
        (cause.TIME_LIMIT, False, END, True),  # as would all the others
        (cause.NODE, True, REQUEUE, False),
        (cause.CANCELLED, True, END, False),  # this job, not the others
    ],
)
def test_the_rest_of_a_chain_is_cancelled_when_it_has_nothing_to_do(
    by: str, gained: bool | None, action: str, ends: bool
) -> None:
    found = decide(IF_NODE, AttemptEnd(by, "x", 1, gained, 40), (), chained=True)
    assert found.action == action
    assert ends_chain(by, found.action, found.exit_code) is ends
