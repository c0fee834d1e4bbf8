"""Which run a start of ftsrun belongs to, and which runs a job has."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.sharedfs.job_runs import run_of_start, runs_beside


@pytest.mark.parametrize(
    ("closed_by", "attempt", "expected"),
    [
        ({}, "25.0", "job-25"),
        ({"job-25": "25.0"}, "25.0", "job-25-2"),
        ({"job-25": "25.0", "job-25-2": "25.0+1"}, "25.0", "job-25-3"),
        ({"job-25": "25.0", "job-25-2": "25.0+1"}, "25.1", "job-25"),
        ({"job-25": "25.1+0", "job-25-2": "25.0+1"}, "25.1", "job-25-2"),
        ({"job-25": "24.0"}, "25.0", "job-25"),
    ],
)
def test_each_start_is_a_run_of_its_own_and_is_found_again_after_a_requeue(
    closed_by: dict[str, str], attempt: str, expected: str
) -> None:
    assert run_of_start("job-25", attempt, closed_by.get, lambda name: False) == expected


def test_a_name_that_another_user_has_taken_is_passed_over() -> None:
    taken = {"job-25", "job-25-2"}
    assert run_of_start("job-25", "25.0", {"job-25-3": "25.0"}.get, taken.__contains__) == "job-25-4"
    assert run_of_start("job-25", "25.0", {}.get, lambda name: True) == "job-25", "what is refused then says why"


def test_a_job_has_the_runs_of_its_name_and_number_in_the_order_of_their_starts(tmp_path: Path) -> None:
    for name in ("job-25-10", "job-25-2", "job-25", "job-25_3", "job-25_3-2", "job-251", "job-25-x", "excluded", "llm"):
        (tmp_path / name).mkdir()
    of_25 = ["job-25", "job-25-2", "job-25-10"]
    assert runs_beside(str(tmp_path / "job-25")) == runs_beside(str(tmp_path / "job-25-2")) == of_25
    assert runs_beside(str(tmp_path / "job-25_3-2")) == ["job-25_3", "job-25_3-2"]
    assert runs_beside(str(tmp_path / "llm")) == ["llm"]
