"""Which run directory a user means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.sharedfs import locate as locating
from ftslurm.sharedfs.job_runs import leave_pointer
from ftslurm.sharedfs.locate import NotFound, locate
from ftslurm.slurm.facts import JobFacts


def runs(tmp_path: Path) -> Path:
    return tmp_path / "ftslurm-runs"


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path / "far").write()
    assert locate(str(path), environ={}, cwd=tmp_path) == path
    assert locate("far/job-123", environ={}, cwd=tmp_path) == path


def test_a_job_id_finds_the_run_of_that_name(tmp_path: Path) -> None:
    path = RunBuilder(runs(tmp_path)).write()
    assert locate("123", environ={}, cwd=tmp_path) == path


def test_an_array_task_finds_the_run_of_that_name(tmp_path: Path) -> None:
    path = RunBuilder(runs(tmp_path), run_id="job-123_4").write()
    assert locate("123_4", environ={}, cwd=tmp_path) == path


def test_a_job_id_finds_a_run_of_another_name_by_its_attempts(tmp_path: Path) -> None:
    RunBuilder(runs(tmp_path), run_id="job-12", job_id="12").write()
    path = RunBuilder(runs(tmp_path), run_id="llm", job_id="77").write()
    assert locate("77", environ={}, cwd=tmp_path) == path


def test_a_jobs_default_name_finds_its_run_of_another_name_too(tmp_path: Path) -> None:
    path = RunBuilder(runs(tmp_path), run_id="77", job_id="77").write()
    assert locate("job-77", environ={}, cwd=tmp_path) == path
    assert locate("77", environ={}, cwd=tmp_path) == path
    with pytest.raises(NotFound):
        locate("job-78", environ={}, cwd=tmp_path)


def test_of_a_jobs_run_and_one_that_is_named_by_its_number_the_newer_one_is_meant(tmp_path: Path) -> None:
    of_job = RunBuilder(runs(tmp_path), run_id="job-12", job_id="12").write()
    named = RunBuilder(runs(tmp_path), run_id="12", job_id="99").write()
    for newer, older in ((of_job, named), (named, of_job)):
        for path, at in ((newer, 2000), (older, 1000)):
            for name in ("", "nodes", "state", "rounds"):
                if (path / name).exists():
                    os.utime(path / name, (at, at))
        assert locate("12", environ={}, cwd=tmp_path) == newer


def test_an_array_task_finds_a_run_of_another_name_by_its_attempts(tmp_path: Path) -> None:
    run = RunBuilder(runs(tmp_path), run_id="llm", job_id="130")
    run.attempts[0] |= {"array_job_id": "123", "array_task_id": "4"}
    path = run.write()
    assert locate("123_4", environ={}, cwd=tmp_path) == path


def test_a_runs_name_is_enough(tmp_path: Path) -> None:
    path = RunBuilder(runs(tmp_path), run_id="llm").write()
    assert locate("llm", environ={}, cwd=tmp_path) == path


def test_the_shared_directory_comes_from_the_environment_before_the_current_directory(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path / "shared").write()
    RunBuilder(runs(tmp_path)).write()
    assert locate("123", environ={"FTSLURM_SHARED_DIR": str(tmp_path / "shared")}, cwd=tmp_path) == path


def test_a_given_shared_directory_is_the_only_one_searched(tmp_path: Path) -> None:
    RunBuilder(runs(tmp_path)).write()
    with pytest.raises(NotFound):
        locate(
            "123",
            environ={},
            cwd=tmp_path,
            shared_dir="other",
            job_facts=lambda job: JobFacts("123", "FAILED", work_dir=str(tmp_path)),
        )


def test_slurm_is_asked_for_the_jobs_directory_only_when_nothing_else_fits(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path / "work" / "ftslurm-runs").write()
    asked: list[str] = []

    def ask(job: str) -> JobFacts | None:
        asked.append(job)
        return JobFacts(job, "COMPLETED", work_dir=str(tmp_path / "work"))

    assert locate("123", environ={}, cwd=tmp_path, job_facts=ask) == path
    RunBuilder(runs(tmp_path)).write()
    assert locate("123", environ={}, cwd=tmp_path, job_facts=ask) == runs(tmp_path) / "job-123"
    assert asked == ["123"]


def test_a_runs_default_name_is_searched_as_its_job_is(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path / "far/ftslurm-runs").write()
    asked = []

    def ask(job: str) -> JobFacts:
        asked.append(job)
        return JobFacts(job, "COMPLETED", work_dir=str(tmp_path / "far"))

    assert locate("job-123", environ={}, cwd=tmp_path, job_facts=ask) == path
    assert asked == ["123"]
    (tmp_path / "out").mkdir()
    leave_pointer(tmp_path / "out", "123", str(path))
    assert locate("job-123", environ={}, cwd=tmp_path / "out") == path


def test_a_job_that_waits_in_the_queue_has_no_run_yet(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="^job 123 is pending and has no run yet in .*ftslurm-runs"):
        locate("123", environ={}, cwd=tmp_path, job_facts=lambda job: JobFacts(job, "PENDING", work_dir="/nowhere"))
    facts = JobFacts("123", "PENDING", comment="mine ftslurm-run=llm")
    with pytest.raises(NotFound, match="^job 123 is pending; it will go on with the run llm"):
        locate("123", environ={}, cwd=tmp_path, job_facts=lambda job: facts)


@pytest.mark.parametrize("place", ["cwd", "work", "logs"])
def test_a_link_that_ftsrun_left_beside_the_output_leads_to_a_run_that_is_elsewhere(tmp_path: Path, place: str) -> None:
    run = RunBuilder(tmp_path / "scratch", run_id="exp1").write()
    for folder in ("cwd", "work", "logs"):
        (tmp_path / folder).mkdir()
    assert leave_pointer(tmp_path / place, "123", str(run))
    facts = JobFacts("123", "FAILED", work_dir=str(tmp_path / "work"), std_out=str(tmp_path / "logs" / "out.txt"))
    assert locate("123", environ={}, cwd=tmp_path / "cwd", job_facts=lambda job: facts) == run


def test_a_link_is_replaced_by_a_later_one_and_a_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    assert leave_pointer(tmp_path, "7", "/a") and leave_pointer(tmp_path, "7", "/b")
    assert (tmp_path / "slurm-7.ftslurm").readlink() == Path("/b")
    (tmp_path / "slurm-8.ftslurm").write_text("mine")
    assert not leave_pointer(tmp_path, "8", "/a")
    assert not leave_pointer(tmp_path / "nothere", "9", "/a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slurm-7.ftslurm", "slurm-8.ftslurm"]


def test_without_an_argument_the_run_written_last_is_meant(tmp_path: Path) -> None:
    old = RunBuilder(runs(tmp_path), run_id="job-2").write()
    new = RunBuilder(runs(tmp_path), run_id="job-1").write()
    for path, when in ((old, 1000), (new, 2000)):
        for each in [path, *path.rglob("*")]:
            os.utime(each, (when, when))
    assert locate(None, environ={}, cwd=tmp_path) == new
    os.utime(old / "nodes", (3000, 3000))
    assert locate(None, environ={}, cwd=tmp_path) == old


@pytest.mark.parametrize("argument", [None, "123", "123_4", "llm", "a/b", ".", "", "x" * 5000, "nul\0"])
def test_nothing_found_is_one_line_with_the_directories_searched(tmp_path: Path, argument: str | None) -> None:
    (tmp_path / "ftslurm-runs" / "empty").mkdir(parents=True)
    with pytest.raises(NotFound) as caught:
        locate(argument, environ={}, cwd=tmp_path, job_facts=lambda job: None)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "meant"),
    [("llm-tune", "llama-tune"), ("lama-tune", "llama-tune"), ("llama", "llama-tune"), ("x", None)],
)
def test_a_misspelt_name_is_answered_with_the_run_that_was_meant(
    tmp_path: Path, argument: str, meant: str | None
) -> None:
    for name in ("llama-tune", "job-123"):
        RunBuilder(runs(tmp_path), run_id=name).write()
    with pytest.raises(NotFound) as caught:
        locate(argument, environ={}, cwd=tmp_path)
    assert str(caught.value).endswith(f"did you mean {meant}?" if meant else "or --shared-dir")


@pytest.mark.parametrize("argument", ["124", "job-124"])
def test_a_jobs_number_is_not_taken_for_another_jobs(tmp_path: Path, argument: str) -> None:
    RunBuilder(runs(tmp_path), run_id="job-123").write()
    with pytest.raises(NotFound, match="or --shared-dir$"):
        locate(argument, environ={}, cwd=tmp_path)


def test_of_several_runs_of_a_job_its_id_finds_the_newest(tmp_path: Path) -> None:
    first = RunBuilder(runs(tmp_path)).write()
    second = RunBuilder(runs(tmp_path), run_id="job-123-2").write()
    for newest, other in ((second, first), (first, second)):
        for path, moment in ((newest, 2_000_000_000), (other, 1_000_000_000)):
            for name in ("", "nodes", "state", "rounds"):
                if (path / name).exists():
                    os.utime(path / name, (moment, moment))
        assert locate("123", environ={}, cwd=tmp_path) == newest
    assert locate("job-123", environ={}, cwd=tmp_path) == first


@pytest.mark.parametrize("kind", ["job-{}", "job-{}_0", "local-202601010000{:02}-4"])
def test_of_very_many_runs_only_those_that_began_last_by_their_names_are_read(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locating, "MOST_RUNS", 3)
    written = [RunBuilder(runs(tmp_path), run_id=kind.format(n), job_id=str(n)).write() for n in range(8, 13)]
    for age, path in enumerate(written):
        for directory in (path, *(each for each in path.iterdir() if each.is_dir())):
            os.utime(directory, (1e9 - age, 1e9 - age))
    # 8 and 9 were written to last, and are not among the last three.
    assert locate(None, environ={}, cwd=tmp_path) == written[2]
    assert locate(kind.format(8), environ={}, cwd=tmp_path) == written[0]


def test_a_job_that_is_not_among_the_newest_of_very_many_runs_is_searched_for_there_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locating, "MOST_RUNS", 3)
    for number in range(5):
        RunBuilder(runs(tmp_path), run_id=f"job-{number}", job_id=f"7{number}").write()
    assert locate("74", environ={}, cwd=tmp_path).name == "job-4"
    with pytest.raises(NotFound, match="of whose runs only the 3 newest by name were searched; give the run directory"):
        locate("70", environ={}, cwd=tmp_path)
