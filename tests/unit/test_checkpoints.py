"""Bad checkpoints: two starts from the same one that failed without a step gained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fold_histories import Job

from ftslurm.agent.actions import assignment_of
from ftslurm.agent.messages import messages
from ftslurm.monitor import loading
from ftslurm.monitor.timeouts import Longest
from ftslurm.records.node import RankVitals, Vitals
from ftslurm.records.state import NODE_LOST, Loaded, State
from ftslurm.rendezvous.fold import begin
from ftslurm.rendezvous.observation import RunSpec


class Starts(Job):
    """Rounds of two nodes, each started from a checkpoint."""

    def start(self, path: str | None, stepped: bool = False) -> Starts:
        self.run()
        for number in (1, 2):
            vitals = Vitals(self.state.round, Longest(), (), 0, path if number == 1 else None, stepped)
            self.publish(number, vitals=vitals)
        return self

    def failed(self, path: str | None, stepped: bool = False, **kind: object) -> State:
        self.start(path, stepped).fail(1, **kind)
        self.coordinate()
        # The next round forms.
        return self.ready(1, 2).coordinate()


@pytest.fixture
def job() -> Starts:
    job = Starts(2, restarts=9)
    job.join()
    return job


def test_a_checkpoint_is_bad_after_two_starts_that_failed_without_a_step_gained(job: Starts) -> None:
    assert job.failed("last.pt").avoid == ()
    assert job.failed("last.pt").avoid == ("last.pt",)
    assert job.failed("older.pt").avoid == ("last.pt",)
    assert job.failed("older.pt").avoid == ("last.pt", "older.pt")


def test_starts_from_another_checkpoint_or_with_a_step_gained_in_between_begin_anew(job: Starts) -> None:
    job.failed("a")
    assert job.failed("b").loaded == Loaded("b", 1)
    assert job.failed("b", stepped=True).loaded is None
    assert job.failed("b").avoid == ()


def test_a_checkpoint_from_which_a_step_was_gained_after_all_is_not_bad(job: Starts) -> None:
    job.failed("a")
    assert job.failed("a").avoid == ("a",)
    assert job.failed("a", stepped=True).avoid == ()


def test_a_lost_node_proves_nothing_about_the_checkpoint(job: Starts) -> None:
    job.failed("a")
    job.start("a").silent["n2"] = 9
    job.coordinate()
    assert job.last.outcome == NODE_LOST
    job.silent.clear()
    assert job.ready(1, 2).coordinate().loaded == Loaded("a", 1)


def test_without_the_name_of_a_checkpoint_none_is_judged(job: Starts) -> None:
    job.failed(None)
    assert job.failed(None).avoid == ()


def test_bad_checkpoints_survive_a_requeue(job: Starts) -> None:
    job.failed("a")
    old = job.failed("a")
    state = begin(old, RunSpec("r", "12.1", ("n1", "n2"), 2, 2, 3), "n1", "i9", 0)
    assert state.avoid == ("a",) and state.loaded == old.loaded


def test_the_workers_of_later_rounds_are_given_them(job: Starts) -> None:
    job.failed("a")
    before = job.state
    after = job.failed("a")
    lines = [line.text for line in messages(before, after)]
    assert "checkpoint a is bad: 2 starts from it failed without a step gained" in lines
    part = assignment_of(after, after.participants[0])
    assert part is not None and part.avoid == ("a",)


def test_the_same_failure_at_start_is_tried_once_more_without_the_bad_checkpoint(job: Starts) -> None:
    def failed_at_start(path: str) -> State:
        job.start(path).fail(1)
        failure = job.records["n1"].failure
        assert failure is not None
        job.publish(1, failure=replace(failure, at_start=True, signature="s", step=None))
        job.coordinate()
        return job.ready(1, 2).coordinate() if job.state.closed is None else job.state

    failed_at_start("a")
    assert failed_at_start("a").avoid == ("a",)
    # The script loads it again.
    assert failed_at_start("a").closed is not None


@pytest.mark.parametrize("path", ["checkpoints/last.pt", "ü/\udce4", "x" * 1024])
def test_a_rank_notes_the_path_as_it_gave_it(tmp_path: Path, path: str) -> None:
    assert loading.read(str(tmp_path)) is None
    loading.write(str(tmp_path), "before")
    loading.write(str(tmp_path), path)
    assert loading.read(str(tmp_path)) == path


@pytest.mark.parametrize("path", ["", "x" * 1025, "two\nlines", "a\0b"])
def test_a_path_that_cannot_be_noted_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="a checkpoint's path"):
        loading.write(str(tmp_path), path)


def test_a_hostile_file_in_its_place_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "loading").symlink_to("/etc/passwd")
    assert loading.read(str(tmp_path)) is None
    (tmp_path / "loading").unlink()
    (tmp_path / "loading").write_bytes(b"a\nb")
    assert loading.read(str(tmp_path)) is None
    (tmp_path / "loading").unlink()
    (tmp_path / "loading").mkdir()
    assert loading.read(str(tmp_path)) is None


def test_a_checkpoint_from_which_an_optimizer_went_on_is_not_bad_though_the_script_reports_no_step(job: Starts) -> None:
    def failed_with(*intervals: tuple[int, int]) -> State:
        job.start("last.pt")
        ranks = (RankVitals(0, None, intervals, optimizer_step=7),)
        job.publish(1, vitals=Vitals(job.state.round, Longest(), ranks, 0, "last.pt"))
        job.fail(1)
        job.coordinate()
        return job.ready(1, 2).coordinate()

    assert failed_with().loaded == Loaded("last.pt", 1)
    assert failed_with((20, 400)).loaded is None
