"""A command waits for a filesystem that does not answer only for a limited time."""

from __future__ import annotations

import threading

import pytest

from ftslurm.sharedfs.answer_limit import AnswerLimit, silences


def ticks_of(progress: list[int], limit_s: float) -> list[int]:
    """Return the ticks, counted from 1, at which a silence was found."""
    left, now = iter(progress), [progress[0]]
    count = 0

    def tick() -> bool:
        nonlocal count
        now[0] = next(left, -1)
        count += 1
        return now[0] != -1

    return [count for _ in silences(lambda: now[0], limit_s, tick)]


@pytest.mark.parametrize(
    ("progress", "found"),
    [
        ([1, 1, 1, 1, 1, 1, 1], [4]),
        ([1, 1, 1, 2, 2, 2, 3], []),
        ([1, 2, 3, 3, 3, 3, 3, 3, 3], [7]),
        ([1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2], [4, 10]),
    ],
)
def test_a_silence_is_found_once_until_there_is_progress_again(progress: list[int], found: list[int]) -> None:
    assert ticks_of(progress, 1.0) == found


def test_a_command_that_waits_for_a_call_ends_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[int] = []
    hang = threading.Event()

    def end(code: int) -> None:
        ended.append(code)
        hang.set()

    with AnswerLimit("status", "/shared/run", end=end, limit_s=0.5):
        assert hang.wait(30)
    assert ended == [1]
    err = capsys.readouterr().err
    assert err.startswith("ftslurm status: /shared/run has not answered for 500 ms: its filesystem hangs; try later")


def test_a_command_that_has_printed_something_waits_on_with_one_notice(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[int] = []
    with AnswerLimit("logs", "/r", patient=True, end=ended.append, limit_s=0.25):
        threading.Event().wait(1.2)
    assert ended == []
    assert capsys.readouterr().err == "ftslurm logs: /r has not answered for 250 ms: its filesystem hangs; waiting\n"


def test_a_wait_for_something_else_is_not_limited(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[int] = []
    with AnswerLimit("logs", "/r", end=ended.append, limit_s=0.25) as limit:
        limit.paused(threading.Event().wait)(1.2)
    assert (ended, capsys.readouterr().err) == ([], "")
