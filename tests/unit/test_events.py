"""The events that a state proves, each with an identity that does not change from coordinator to coordinator."""

from __future__ import annotations

from ftslurm.dataclasses import replace
from ftslurm.hooks.events import Event, events_of
from ftslurm.records.state import (
    FAILED,
    NODE_LOST,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    Closed,
    Failure,
    Lease,
    RoundHistory,
    State,
)

FAILURE = Failure(1, "n1", 3, 1, 5, "exception", None, None, "ValueError: boom", 7)
BEGIN = State(
    "run", "7.0", ("7.0",), ("n1", "n2"), 2, 2, 3, 0, Lease("n1", "x", 1), RUNNING, 1, (), 4, None, (), (), None
)


def past(round_: int, outcome: str, attempt: str = "7.0", failure: Failure | None = None) -> RoundHistory:
    ended = None if outcome == RUNNING else round_ * 10 + 5
    return RoundHistory(round_, attempt, ("n1", "n2"), 4, round_ * 10, ended, outcome, f"why {round_}", failure)


def named(state: State) -> list[tuple[str, int]]:
    return [(event.name, event.round) for event in events_of(state)]


def test_a_first_round_is_no_event() -> None:
    assert events_of(replace(BEGIN, history=(past(1, RUNNING),))) == []


def test_failures_hangs_and_lost_nodes_are_events_of_their_rounds_each_followed_by_the_restart() -> None:
    hang = replace(FAILURE, kind="hang")
    history = (past(1, FAILED, failure=FAILURE), past(2, FAILED, failure=hang), past(3, NODE_LOST), past(4, RUNNING))
    expected = [("failure", 1), ("restart", 2), ("hang", 2), ("restart", 3), ("failure", 3), ("restart", 4)]
    assert named(replace(BEGIN, history=history)) == expected


def test_an_attempt_that_continues_a_run_is_a_requeue_and_the_earlier_ones_events_are_over() -> None:
    history = (past(1, FAILED), past(2, RUNNING, "7.1"))
    state = replace(BEGIN, attempt="7.1", attempts=("7.0", "7.1"), history=history)
    assert events_of(state) == [Event("requeue", "7.1", 0, None, "attempt 2 begins")]


def test_the_end_is_an_event_and_so_is_a_stop_from_outside() -> None:
    closed = Closed(SUCCEEDED, "all ranks succeeded", 0, 99)
    assert named(replace(BEGIN, history=(past(1, SUCCEEDED),), closed=closed)) == [("end", 0)]
    closed = Closed(STOPPED, "SIGTERM from outside", 143, 99)
    assert named(replace(BEGIN, history=(past(1, STOPPED),), closed=closed)) == [("stop", 0), ("end", 0)]


def test_no_event_of_a_state_disappears_in_the_next() -> None:
    history: tuple[RoundHistory, ...] = ()
    before: list[tuple[str, int]] = []
    for round_ in range(1, 6):
        for outcome in (RUNNING, FAILED):
            history = (*(one for one in history if one.round != round_), past(round_, outcome))
            now = named(replace(BEGIN, history=history))
            assert now[: len(before)] == before
            before = now
