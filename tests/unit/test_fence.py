"""The fence for the script's own data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ftslurm
from ftslurm.rendezvous.ending import close
from ftslurm.rendezvous.fold import begin
from ftslurm.rendezvous.seen import Shape
from ftslurm.rendezvous.state import RUNNING, State
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem


def running(round_: int, attempt: str = "7.0") -> State:
    state = begin(None, Shape("r", attempt, ("n1",), 1, 1, 3), "n1", "aa", 0)
    return replace(state, phase=RUNNING, round=round_)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in round 3, and this process as one of its workers."""
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("FTSLURM_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("FTSLURM_ROUND", "3")
    monkeypatch.setenv("FTSLURM_ATTEMPT", "7.0")
    publish(tmp_path, running(3))
    return tmp_path


def publish(run_dir: Path, state: State) -> None:
    cell = FencedCell(PosixFileSystem(), str(run_dir / "state"))
    newest = cell.get()
    _, won = cell.set(state.encode(), newest.token if newest else None)
    assert won


def test_a_fence_lets_the_current_round_pass_and_its_token_is_the_round(run_dir: Path) -> None:
    ftslurm.fence().check()
    assert ftslurm.fence().token == 3


@pytest.mark.parametrize(
    "state",
    [
        running(4),
        running(3, "7.1"),
        replace(running(3), phase="forming"),
        close(running(3), "failed", "why", 1, 0),
    ],
)
def test_a_fence_stops_a_rank_whose_round_is_over(run_dir: Path, state: State) -> None:
    guard = ftslurm.fence()
    publish(run_dir, state)
    with pytest.raises(ftslurm.RoundIsOver, match="round 3 of attempt"):
        guard.check()


def test_outside_ftslurm_a_fence_never_stops_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FTSLURM_ROUND", raising=False)
    ftslurm.fence().check()


def test_a_commit_gives_the_name_only_at_its_end(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "last.pt"
    target.write_text("old")
    with ftslurm.commit(target) as temporary:
        Path(temporary).write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


def test_a_commit_of_a_round_that_is_over_leaves_the_checkpoint_as_it_was(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "last.pt"
    target.write_text("of round 4")

    def save_late() -> None:
        with ftslurm.commit(target) as temporary:
            Path(temporary).write_text("of round 3")
            publish(run_dir, running(4))

    with pytest.raises(ftslurm.RoundIsOver):
        save_late()
    assert target.read_text() == "of round 4"


def test_a_commit_takes_a_directory_too(run_dir: Path, tmp_path: Path) -> None:
    with ftslurm.commit(tmp_path / "step-100") as temporary:
        Path(temporary).mkdir()
        (Path(temporary) / "rank0").write_text("x")
    assert (tmp_path / "step-100/rank0").read_text() == "x"
