"""A round's preparation: directories and the way to the master, in any order, and what goes wrong."""

from __future__ import annotations

import socket
import threading

import pytest

from ftslurm.agent.actions import Assignment
from ftslurm.agent.preparation import PATIENCE_S, Preparation, Reached, reach_master
from ftslurm.rendezvous.state import Master


def assignment(round_: int, group_rank: int = 1) -> Assignment:
    return Assignment(round_, "1.0", group_rank, 2, 2, 2, 4, Master("n1", 29400), 0, 3)


class Story:
    def __init__(self) -> None:
        self.now = 100.0
        self.made: list[int] = []
        self.go = threading.Event()
        self.problem: str | None = None
        self.brought: list[Reached] = []
        self.came = threading.Event()
        make = lambda part: self.made.append(part.round)  # noqa: E731
        self.preparation = Preparation(make, self._bring, lambda: self.now, self._reach)

    def _reach(self, master: Master) -> str | None:
        assert self.go.wait(10)
        return self.problem

    def _bring(self, news: Reached) -> None:
        self.brought.append(news)
        self.came.set()

    def reached(self) -> tuple[int, str | None] | None:
        self.go.set()
        assert self.came.wait(10)
        return self.preparation.reached(self.brought[-1])


def test_the_masters_own_node_needs_directories_alone() -> None:
    story = Story()
    story.preparation.begin(assignment(3, group_rank=0))
    assert story.made == [3] and story.preparation.deadline is None
    assert story.preparation.made(3, None) == (3, None)


@pytest.mark.parametrize("reached_first", [True, False])
def test_a_round_is_prepared_when_both_are_done(reached_first: bool) -> None:
    story = Story()
    story.preparation.begin(assignment(1))
    if reached_first:
        assert story.reached() is None
        assert story.preparation.made(1, None) == (1, None)
    else:
        assert story.preparation.made(1, None) is None
        assert story.reached() == (1, None)
    assert story.preparation.deadline is None


def test_a_master_that_cannot_be_reached_is_the_rounds_problem() -> None:
    story = Story()
    story.problem = "no route"
    story.preparation.begin(assignment(1))
    story.preparation.made(1, None)
    assert story.reached() == (1, "no route")


def test_directories_that_cannot_be_made_are_told_at_once() -> None:
    story = Story()
    story.preparation.begin(assignment(1))
    assert story.preparation.made(1, OSError(28, "No space left on device")) == (
        1,
        "cannot make the round's directories: [Errno 28] No space left on device",
    )
    assert story.reached() is None


def test_a_name_server_that_does_not_answer_is_not_waited_for_without_end() -> None:
    story = Story()
    story.preparation.begin(assignment(1))
    story.preparation.made(1, None)
    story.now += PATIENCE_S - 0.1
    assert story.preparation.on_time() is None
    story.now += 0.2
    done = story.preparation.on_time()
    assert done is not None and done[1] is not None and "no answer from the name server within 8 s" in done[1]


def test_what_belongs_to_an_earlier_round_counts_for_nothing() -> None:
    story = Story()
    story.preparation.begin(assignment(1))
    story.preparation.begin(assignment(2, group_rank=0))
    assert story.preparation.made(1, None) is None
    assert story.preparation.reached(Reached(1, "x")) is None
    assert story.preparation.made(2, None) == (2, None)


def test_a_machine_that_refuses_is_reached_and_a_name_that_does_not_resolve_is_not() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert reach_master(Master("127.0.0.1", taken.getsockname()[1])) is None
    problem = reach_master(Master("no-such-host.invalid", 29400))
    assert problem is not None and "its name does not resolve" in problem
