"""The coordinator's log lines about a change of the state."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.agent.actions import Log
from ftslurm.agent.messages import failure_line, messages
from ftslurm.records.state import (
    CLOSED,
    FAILED,
    FORMING,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    UNREACHABLE,
    Closed,
    Failure,
    Lease,
    Master,
    Participant,
    RoundHistory,
    State,
)
from ftslurm.terminal import ERROR, INFO, WARNING

ENDED = RoundHistory(1, "12.0", ("n1",), 2, 0, 9, FAILED, "rank 0 on n1 failed: boom", None)
RUNS = State(
    "r", "12.0", ("12.0",), ("n1",), 1, 1, 3, 0, Lease("n1", "i", 1), RUNNING, 1, (Participant("n1", "i", 2, 0, 0),), 2,
    Master("n1", 20_000), (), (replace(ENDED, outcome=RUNNING, reason=None),), None,
)  # fmt: skip
FORMS = replace(RUNS, phase=FORMING, restarts_used=1, history=(ENDED,))
AGAIN = replace(FORMS, phase=RUNNING, round=2, history=(ENDED, replace(RUNS.history[0], round=2)))
OVER = replace(RUNS, phase=CLOSED, closed=Closed(FAILED, "all is lost", 1, 0), history=(ENDED,))
FIRST = Log("round 1: 2 ranks on 1 node, master n1:20000")
END = Log("round 1 ended: rank 0 on n1 failed: boom; restart 1 of 3", WARNING)
SECOND = Log("round 2: 2 ranks on 1 node, master n1:20000")


def test_a_round_is_logged_once_when_it_begins() -> None:
    assert messages(None, RUNS) == [FIRST]
    assert messages(RUNS, replace(RUNS, coordinator=Lease("n2", "i", 2))) == []


def test_an_attempt_that_goes_on_with_a_run_says_so_once() -> None:
    """Also with another job, which a fixed --rdzv-id makes go on where the user may not expect it."""
    begins = replace(FORMS, attempt="13.0", attempts=("12.0", "13.0"), restarts_used=0, round=1, history=())
    line = Log("run r goes on: attempt 2, after 12.0")
    assert messages(FORMS, begins) == messages(None, begins) == [line]
    reached = replace(begins, reached_before=120)
    assert messages(None, reached) == [Log("run r goes on: attempt 2, after 12.0, which reached step 120")]
    assert messages(begins, replace(begins, coordinator=Lease("n2", "i", 2))) == []
    ended = replace(begins, history=(ENDED,))
    assert messages(None, ended) == [Log("run r goes on: attempt 2, after 12.0 (failed)")]
    assert messages(None, RUNS) == [FIRST]


def test_one_rank_is_no_ranks() -> None:
    alone = replace(RUNS, participants=(Participant("n1", "i", 1, 0, 0),), world_size=1)
    assert messages(None, alone) == [Log("round 1: 1 rank on 1 node, master n1:20000")]


def test_the_end_of_a_round_is_logged_with_its_reason_and_the_budget() -> None:
    assert messages(RUNS, FORMS) == [END]
    assert messages(FORMS, AGAIN) == [SECOND]


def test_a_round_that_ends_and_another_that_begins_in_one_step_are_both_logged() -> None:
    assert messages(RUNS, AGAIN) == [END, SECOND]


def test_the_end_of_the_run_is_logged_once() -> None:
    assert messages(RUNS, OVER) == [Log("failed: all is lost", ERROR)]
    assert messages(None, OVER) == [Log("failed: all is lost", ERROR)]
    assert messages(OVER, replace(OVER, coordinator=Lease("n2", "i", 2))) == []


def test_a_round_that_waits_for_the_network_is_logged_as_tried_again() -> None:
    text = "the master of the round (n1:1) cannot be reached from n2"
    cut = replace(ENDED, reason=text, failure=Failure(1, "n2", 2, 0, 5, UNREACHABLE, None, None, text, None))
    forms = replace(FORMS, restarts_used=0, history=(cut,))
    assert messages(RUNS, forms) == [Log(f"round 1 ended: {text}; trying again in 500 ms", WARNING)]


def test_an_earlier_attempts_round_is_not_logged_again() -> None:
    new = replace(RUNS, attempt="12.1", phase=FORMING, history=(ENDED,))
    assert messages(RUNS, new) == []


def test_only_the_end_of_a_run_that_failed_is_an_error() -> None:
    stopped = replace(OVER, closed=Closed(STOPPED, "scancel", 143, 0))
    succeeded = replace(OVER, closed=Closed(SUCCEEDED, "all ranks succeeded", 0, 0))
    assert [line.level for new in (OVER, stopped, succeeded) for line in messages(RUNS, new)] == [ERROR, WARNING, INFO]


def test_a_failure_that_another_rank_may_have_caused_is_logged_with_that() -> None:
    """The agent's line is printed long before the report knows whose failure it was."""
    waited = Failure(1, "n1", 0, 0, 0, "exception", 1, None, "RuntimeError: Timed out waiting", 12, by_peers=True)
    assert failure_line(waited) == (
        "round 1: rank 0 failed at step 12, perhaps because of another rank: RuntimeError: Timed out waiting"
    )
    assert (
        failure_line(replace(waited, by_peers=False))
        == "round 1: rank 0 failed at step 12: RuntimeError: Timed out waiting"
    )
