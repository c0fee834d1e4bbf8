"""`ftslurm report` on one rank, on all that failed, on a run that goes on, and on one of which files are missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.command import INTERVAL_S, follow, main
from ftslurm.report.pipeline import make_report
from ftslurm.report.text import render

GLOO = "[/gloo/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:29500"
WAITS = [("/w/train.py", 9, "main"), ("/v/site-packages/torch/distributed/distributed_c10d.py", 99, "all_reduce")]


def failed_run(parent: Path, run_id: str = "job-4711_3") -> RunBuilder:
    run = RunBuilder(parent, run_id=run_id).round().steps(1, 120).wait(60)
    run.fail(3, ValueError("boom"), step=120, log="step 120\n").fail(1, RuntimeError(GLOO), log="e\n", after_s=1)
    return run.log(0, "out of 0\n", "stdout").log(0, "a warning\n").stop().close("failed", "rank 3 failed")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_all_of_a_rank_that_failed_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, str(failed_run(tmp_path).write()), "--rank", "3")
    for part in ("rank 3 on n2, round 1", "at train.py:42 in train_step", "pid 1003", "steps 1 to 120", "| step 120"):
        assert part in text
    assert "ValueError: boom" in text.splitlines()[1]


def test_a_rank_that_was_stopped_is_shown_too_with_both_its_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, str(failed_run(tmp_path).write()), "--rank", "0", "--round", "1")
    for part in ("stopped by ftslurm with SIGTERM", "rank 3 on n2 failed", "| a warning", "| out of 0"):
        assert part in text


def test_a_ranks_stacks_of_a_hang_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places: dict[int, Any] = {0: WAITS, 1: WAITS, 2: [("/w/train.py", 7, "load")], 3: "stopped (SIGSTOP)"}
    path = RunBuilder(tmp_path).round().hang(2, places=places).stop().close("failed", "hang").write()
    assert 'File "/w/train.py", line 7 in load' in printed(capsys, str(path), "--rank", "2")
    assert "stopped (SIGSTOP)" in printed(capsys, str(path), "--rank", "3")


def test_of_a_rank_only_its_output_may_be_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = failed_run(tmp_path).write()
    shutil.rmtree(path / "rounds/000001/nodes")
    assert "a warning" in printed(capsys, str(path), "--rank", "0")


def test_all_that_failed_are_shown_in_full_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = failed_run(tmp_path).write()
    assert "traceback of rank 1 in round 1" not in printed(capsys, str(path))
    text = printed(capsys, str(path), "--all")
    assert text.index("traceback of rank 3") < text.index("traceback of rank 1")
    assert "connection to another rank broke (cascade)" in text
    report = json.loads(printed(capsys, str(path), "--all", "--json"))
    assert [(f["rank"], f["log"]["lines"]) for f in report["failed"]] == [(3, ["step 120"]), (1, ["e"])]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rank", "9"], "nothing is recorded of rank 9 in round 1 (it had ranks 0-3)"),
        (["--rank", "x"], "expected a rank"),
        (["--rank", "3", "--round", "8"], "round 8 is not recorded"),
        (["--latest"], "--latest chooses the run"),
        (["--logs", "."], "cannot be combined with a run"),
    ],
)
def test_wrong_input_is_one_clear_line_and_two(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(failed_run(tmp_path).write()), *arguments]) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]


def test_an_array_task_and_the_latest_run_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed_run(tmp_path).write()
    for how in ("4711_3", "--latest"):
        assert "job-4711_3 FAILED" in printed(capsys, how, "--shared-dir", str(tmp_path))


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ("state", "state: no generation can be read"),
        ("run.json", "run.json: the run's owner and creation time are unknown"),
        ("attempts", "attempts: no file has the command"),
        ("rounds", "rounds/000001: no files of the newest round"),
        ("rounds/000001/nodes/n2.json", "rounds/000001/nodes: no file of 1 node (n2)"),
        ("rounds/000001/ranks/00003/error.json", "no error record of 1 failed rank (3)"),
    ],
)
def test_what_should_be_there_and_is_not_is_reported(gone: str, expected: str, tmp_path: Path) -> None:
    path = failed_run(tmp_path).write()
    whole = make_report(path, now_ns=1)
    assert whole["missing"] == []
    place = path / gone
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    report = make_report(path, now_ns=1)
    assert any(expected in line for line in report["missing"])
    assert "what is missing" in render(report)


class Story:
    """A run that goes on while it is followed: each look sees the next state."""

    def __init__(self, *states: dict[str, Any], took: float = 0.0) -> None:
        self.states = list(states)
        self.took = took
        self.now = 0.0
        self.shown: list[str] = []
        self.slept: list[float] = []

    def make(self) -> dict[str, Any]:
        self.now += self.took
        return self.states.pop(0)

    def show(self, report: dict[str, Any]) -> bool:
        self.shown.append(report["content"])
        return bool(report["content"] != "closed pipe")

    def follow(self) -> dict[str, Any]:
        return follow(self.make, self.show, sleep=self.slept.append, clock=lambda: self.now)


def state(content: str, status: str = "running", **more: object) -> dict[str, Any]:
    return {"content": content, "status": status, "rounds": [], "step": None, **more}


def test_only_what_has_changed_is_shown_again_and_time_alone_is_no_change() -> None:
    story = Story(
        state("a", made_ns=1), state("a", made_ns=2, alive={"age_s": 3}), state("b"), state("b"), state("c", "failed")
    )
    assert story.follow()["status"] == "failed"
    assert story.shown == ["a", "b", "c"]
    assert story.slept == [INTERVAL_S] * 4


def test_a_run_without_a_sign_of_life_is_followed_on_for_it_may_be_requeued() -> None:
    story = Story(state("a"), state("gone", "unfinished"), state("back"), state("c", "succeeded"))
    story.follow()
    assert story.shown == ["a", "gone", "back", "c"]


def test_following_ends_where_the_agents_ended_without_closing_the_run() -> None:
    story = Story(state("a"), state("killed", "unfinished", step={"exit_code": None}), state("c"))
    story.follow()
    assert story.shown == ["a", "killed"]


def test_a_large_run_is_left_in_peace_most_of_the_time() -> None:
    story = Story(state("a"), state("b", "stopped"), took=5.0)
    story.follow()
    assert story.slept == [pytest.approx(45.0)]


def test_following_ends_when_the_output_is_closed() -> None:
    story = Story(state("closed pipe"), state("b"))
    story.follow()
    assert story.shown == ["closed pipe"]


def test_ctrl_c_ends_following_quietly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = RunBuilder(tmp_path).round().steps(1, 5).write()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    assert main([str(path), "--follow"]) == 130
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "job-123" in captured.out
