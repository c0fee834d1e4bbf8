"""Rounds whose master cannot be reached: nothing of it is the program's, and it may be over in a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.rendezvous.fold import fold
from ftslurm.rendezvous.observation import Observation
from ftslurm.rendezvous.state import CLOSED, FAILED, FORMING, RUNNING, UNREACHABLE, Failure, State
from ftslurm.rendezvous.unreachable import FIRST_WAIT_S, LONGEST_WAIT_S
from tests.unit.test_fold import TIMING, Story


class Cut(Story):
    """A cluster in which some nodes are cut off: nobody reaches them, and they reach nobody."""

    def __init__(self, nodes: int, cut: set[int], low: int | None = None, high: int | None = None) -> None:
        super().__init__(nodes, low, high, restarts=1)
        self.cut = cut
        self.waited_s = 0.0
        self.join()

    def master(self) -> int:
        return int(self.state.participants[0].node[1:])

    def try_round(self) -> State:
        """Wait as long as it takes until a round forms; report what its participants find."""
        for participant in self.state.participants:
            self.ready(int(participant.node[1:]))
        waited_s = 0.0
        while self.look(forming_s=waited_s).phase == FORMING:
            waited_s += 0.5
            assert waited_s < 10 * TIMING.join_timeout_s
        self.waited_s = waited_s
        if self.state.phase == CLOSED:
            return self.state
        for participant in self.state.participants:
            number = int(participant.node[1:])
            self.say(number, status=RUNNING, round=self.state.round, failure=None)
            if number != self.master() and self.cut & {number, self.master()}:
                self.cannot_reach(number)
        return self.look()

    def cannot_reach(self, number: int) -> None:
        part = next(one for one in self.state.participants if one.node == f"n{number}")
        text = f"the master of the round ({self.state.participants[0].node}:1) cannot be reached from {part.node}"
        failure = Failure(self.state.round, part.node, part.first_rank, 0, 5, UNREACHABLE, None, None, text, None)
        self.say(number, status=FAILED, failure=failure)

    def nodes(self) -> list[str]:
        return [participant.node for participant in self.state.participants]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_node_that_is_cut_off_is_replaced_by_a_spare_after_a_few_tries_and_costs_no_restart(cut: int) -> None:
    story = Cut(4, {cut}, low=3, high=3)
    while story.try_round().phase != RUNNING:
        assert story.state.round < 4
    assert f"n{cut}" not in story.nodes()
    assert story.state.restarts_used == 0


def test_without_a_spare_another_node_is_the_master_of_the_next_try() -> None:
    story = Cut(2, {1, 2})
    masters = []
    for _ in range(4):
        story.try_round()
        masters.append(story.master())
    assert masters[:2] == [1, 2]
    assert sorted(masters) == [1, 1, 2, 2]


def test_a_cut_that_ends_costs_nothing_but_time() -> None:
    story = Cut(2, {2})
    for _ in range(3):
        assert story.try_round().phase == FORMING
    story.cut = set()
    state = story.try_round()
    assert (state.phase, state.restarts_used) == (RUNNING, 0)


def test_each_try_waits_longer_than_the_one_before_up_to_a_limit() -> None:
    story = Cut(2, {2})
    waits = []
    for _ in range(10):
        story.try_round()
        waits.append(story.waited_s)
    assert waits[:4] == [0.0, FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert max(waits) == LONGEST_WAIT_S


def test_a_cut_that_lasts_for_the_join_timeout_ends_the_job_with_its_reason() -> None:
    story = Cut(2, {2})
    while story.try_round().phase == FORMING:
        assert story.state.round < 100
    assert story.closed == (FAILED, 1)
    assert story.state.closed.reason.startswith("the master of the round (n")
    assert "rounds in a row could not begin (--join-timeout 600)" in story.state.closed.reason
    assert "would fail again" not in story.state.closed.reason


def test_an_elastic_world_goes_on_without_the_node_that_is_cut_off() -> None:
    story = Cut(4, {4}, low=2, high=4)
    while story.try_round().phase != RUNNING:
        assert story.state.round < 4
    assert set(story.nodes()) == {"n1", "n2", "n3"}


def test_a_rank_that_fails_because_of_it_takes_no_blame() -> None:
    story = Cut(2, {2})
    for number in (1, 2):
        story.say(number, status=RUNNING, round=story.look().round)
    story.fail(1)
    story.cannot_reach(2)
    state = story.look()
    assert (state.phase, state.restarts_used) == (FORMING, 0)
    assert story.last.failure is not None and story.last.failure.node == "n2"


def test_once_a_round_has_begun_nobody_is_held_to_have_been_cut_off() -> None:
    story = Cut(2, {2})
    story.try_round()
    story.cut = set()
    story.try_round()
    story.fail(1).look()
    assert (story.state.phase, story.state.restarts_used) == (FORMING, 1)
    assert story.ready(1, 2).look().phase == RUNNING, "the wait is over, too"


# A coordinator that has just taken over


def restarted(unproven: set[str], nodes: int = 4, low: int = 2, high: int = 2) -> State:
    story = Story(nodes, low=low, high=high).join().run()
    story.fail(1).look()
    story.ready(1, 2)
    state = replace(story.state, participants=story.state.participants)
    story.words["n2"] = replace(story.words["n2"], reason="SIGTERM from outside", status="left")
    return fold(state, Observation(story.words, {}, 0.0, 5, unproven=frozenset(unproven)), TIMING)


def test_a_spare_that_gave_no_sign_of_life_gets_no_place_while_another_one_can_have_it() -> None:
    assert [p.node for p in restarted({"n3"}).participants] == ["n1", "n4"]


def test_a_spare_that_gave_no_sign_of_life_is_waited_for_where_no_other_is_left() -> None:
    assert restarted({"n3"}, nodes=3).phase == FORMING


def test_the_first_round_of_an_attempt_asks_for_no_sign_of_life() -> None:
    story = Story(2).join()
    seen = Observation(story.words, {}, 0.0, 5, unproven=frozenset({"n2"}))
    assert fold(story.state, seen, TIMING).phase == RUNNING
