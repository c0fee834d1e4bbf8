"""A round's preparation: directories and the way to the master, in any order, and what goes wrong."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ftslurm.agent.actions import Assignment, Prepared
from ftslurm.agent.round_setup import COMMITS, CONNECTION, PATIENCE_S, RoundSetup, StepDone, reach_master
from ftslurm.rendezvous.state import Master


def assignment(round_: int, group_rank: int = 1) -> Assignment:
    return Assignment(round_, "1.0", group_rank, 2, 2, 2, 4, Master("n1", 29400), 0, 3)


class Story:
    def __init__(self) -> None:
        self.now = 100.0
        self.made: list[int] = []
        self.go = threading.Event()
        self.problem: str | None = None
        self.brought: list[StepDone] = []
        self.revoking: list[Callable[[str | None], None]] = []
        self.came = threading.Event()
        make = lambda part: self.made.append(part.round)  # noqa: E731
        self.preparation = RoundSetup(make, self._revoke, self._bring, lambda: self.now, 60.0, self._reach)

    def _reach(self, master: Master) -> str | None:
        assert self.go.wait(10)
        return self.problem

    def _revoke(self, part: Assignment, report: Callable[[str | None], None]) -> None:
        self.revoking.append(report)

    def _bring(self, news: StepDone) -> None:
        self.brought.append(news)
        self.came.set()

    def reached(self) -> Prepared | None:
        self.go.set()
        assert self.came.wait(10)
        return self.preparation.step_done(self.brought[-1])


def test_the_masters_own_node_needs_directories_alone() -> None:
    story = Story()
    story.preparation.begin(assignment(3, group_rank=0))
    assert story.made == [3] and story.preparation.deadline is None
    assert story.preparation.made(3, None) == Prepared(3)


@pytest.mark.parametrize("reached_first", [True, False])
def test_a_round_is_prepared_when_both_are_done(reached_first: bool) -> None:
    story = Story()
    story.preparation.begin(assignment(1))
    if reached_first:
        assert story.reached() is None
        assert story.preparation.made(1, None) == Prepared(1)
    else:
        assert story.preparation.made(1, None) is None
        assert story.reached() == Prepared(1)
    assert story.preparation.deadline is None


def test_a_master_that_cannot_be_reached_is_the_rounds_problem() -> None:
    story = Story()
    story.problem = "no route"
    story.preparation.begin(assignment(1))
    story.preparation.made(1, None)
    assert story.reached() == Prepared(1, "no route", unreachable=True)


def test_where_nobody_is_to_try_the_directories_are_enough() -> None:
    made: list[int] = []
    preparation = RoundSetup(
        lambda part: made.append(part.round), lambda *_: None, lambda news: None, lambda: 100.0, 60.0, None
    )
    preparation.begin(assignment(1))
    assert made == [1] and preparation.deadline is None
    assert preparation.made(1, None) == Prepared(1)


def test_where_health_only_tells_the_round_begins_all_the_same() -> None:
    told: list[str] = []
    story = Story()
    story.preparation = RoundSetup(
        lambda part: None, story._revoke, story._bring, lambda: story.now, 60.0, story._reach, told.append
    )
    story.problem = "no route"
    story.preparation.begin(assignment(1))
    story.preparation.made(1, None)
    assert story.reached() == Prepared(1)
    assert told == ["no route"]


FULL = OSError(28, "No space left on device")


def test_directories_that_cannot_be_made_are_tried_again() -> None:
    story = Story()
    story.preparation.begin(assignment(1, group_rank=0))
    for _ in range(20):
        assert story.preparation.made(1, FULL) is None
        story.now += 1.0
        assert story.preparation.on_time() is None
    assert len(story.made) == 21
    assert story.preparation.made(1, None) == Prepared(1)
    assert story.preparation.deadline is None


def test_directories_that_cannot_be_made_for_long_are_the_rounds_problem() -> None:
    story = Story()
    story.preparation.begin(assignment(1, group_rank=0))
    story.now += 60.0
    problem = "cannot make the round's directories: [Errno 28] No space left on device"
    assert story.preparation.made(1, FULL) == Prepared(1, problem)


def with_commits() -> Story:
    """A round on the master's node, while three commits of a past round are registered."""
    story = Story()
    story.preparation.begin(assignment(5, group_rank=0))
    assert story.preparation.made(5, 3) is None
    return story


def test_a_round_begins_only_when_the_commits_of_past_rounds_are_revoked() -> None:
    story = with_commits()
    story.revoking[0](None)
    assert story.brought == [StepDone(5, COMMITS, None)]
    assert story.preparation.step_done(story.brought[0]) == Prepared(5)


def test_commits_that_cannot_be_revoked_are_the_rounds_problem_and_no_unreachable_master() -> None:
    story = with_commits()
    story.revoking[0]("cannot revoke: Input/output error")
    assert story.preparation.step_done(story.brought[0]) == Prepared(5, "cannot revoke: Input/output error")


def test_a_directory_of_checkpoints_that_hangs_is_not_waited_for_without_end() -> None:
    story = with_commits()
    story.now += 60.0
    done = story.preparation.on_time()
    assert done is not None and "their directory has not responded for 60 s" in str(done.problem)
    story.revoking[0](None)
    assert story.preparation.step_done(story.brought[0]) is None


def test_what_was_dropped_is_not_tried_again() -> None:
    story = Story()
    story.preparation.begin(assignment(1, group_rank=0))
    assert story.preparation.made(1, FULL) is None
    story.preparation.drop()
    story.now += 5.0
    assert story.preparation.deadline is None and story.preparation.on_time() is None
    assert story.made == [1]


def test_a_name_server_that_does_not_answer_is_not_waited_for_without_end() -> None:
    story = Story()
    story.preparation.begin(assignment(1))
    story.preparation.made(1, None)
    story.now += PATIENCE_S - 0.1
    assert story.preparation.on_time() is None
    story.now += 0.2
    done = story.preparation.on_time()
    assert done is not None and done.unreachable
    assert "no response from the name server within 20 s" in str(done.problem)


def test_what_belongs_to_an_earlier_round_counts_for_nothing() -> None:
    story = Story()
    story.preparation.begin(assignment(1))
    story.preparation.begin(assignment(2, group_rank=0))
    assert story.preparation.made(1, None) is None
    assert story.preparation.step_done(StepDone(1, CONNECTION, "x")) is None
    assert story.preparation.made(2, None) == Prepared(2)


def test_the_patience_with_an_earlier_round_is_not_that_with_this_one() -> None:
    story = Story()
    story.preparation.begin(assignment(1))
    story.preparation.begin(assignment(2, group_rank=0))
    story.now += PATIENCE_S + 1
    assert story.preparation.on_time() is None
    assert story.preparation.made(2, None) == Prepared(2)


Answer = list[tuple[Any, ...]]


def resolver(monkeypatch: pytest.MonkeyPatch, *answers: list[str] | int) -> None:
    """Let look-ups give these addresses, or that error, one after the other."""
    left = list(answers)

    def look_up(name: str, port: int, type: int) -> Answer:
        answer = left.pop(0)
        if isinstance(answer, int):
            raise socket.gaierror(answer, "no")
        return [(socket.AF_INET, type, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_one_of_a_names_addresses_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # TEST-NET-1 leads nowhere; the last is good on one link alone.
        resolver(monkeypatch, ["192.0.2.1", "127.0.0.1", "fe80::1%eth0"])
        began = time.monotonic()
        assert reach_master(Master("n1", taken.getsockname()[1])) is None
        assert time.monotonic() - began < 2


def test_a_name_server_that_cannot_answer_just_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        resolver(monkeypatch, socket.EAI_AGAIN, socket.EAI_AGAIN, ["127.0.0.1"])
        assert reach_master(Master("n1", taken.getsockname()[1])) is None
    resolver(monkeypatch, socket.EAI_NONAME)
    assert "its name does not resolve" in (reach_master(Master("n1", 29400)) or "")


def test_a_machine_that_refuses_is_reached() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert reach_master(Master("127.0.0.1", taken.getsockname()[1])) is None
