"""Rounds whose master cannot be reached: nothing of it is the program's, and it may be over in a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fold_histories import TIMING, Job

from ftslurm.records.state import CLOSED, FAILED, FORMING, RUNNING, UNREACHABLE, Failure, State
from ftslurm.rendezvous.fold import fold
from ftslurm.rendezvous.observation import Observation
from ftslurm.rendezvous.unreachable import FIRST_WAIT_S, LONGEST_WAIT_S


class Cut(Job):
    """A cluster in which some nodes are cut off: no other node reaches them, and they reach no other."""

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
        while self.coordinate(forming_s=waited_s).phase == FORMING:
            waited_s += 0.5
            assert waited_s < 10 * TIMING.join_timeout_s
        self.waited_s = waited_s
        if self.state.phase == CLOSED:
            return self.state
        for participant in self.state.participants:
            number = int(participant.node[1:])
            self.publish(number, status=RUNNING, round=self.state.round, failure=None)
            if number != self.master() and self.cut & {number, self.master()}:
                self.cannot_reach(number)
        return self.coordinate()

    def cannot_reach(self, number: int) -> None:
        part = next(one for one in self.state.participants if one.node == f"n{number}")
        text = f"the master of the round ({self.state.participants[0].node}:1) cannot be reached from {part.node}"
        failure = Failure(self.state.round, part.node, part.first_rank, 0, 5, UNREACHABLE, None, None, text, None)
        self.publish(number, status=FAILED, failure=failure)

    def nodes(self) -> list[str]:
        return [participant.node for participant in self.state.participants]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_node_that_is_cut_off_is_replaced_by_a_spare_after_a_few_tries_and_costs_no_restart(cut: int) -> None:
    job = Cut(4, {cut}, low=3, high=3)
    while job.try_round().phase != RUNNING:
        assert job.state.round < 4
    assert f"n{cut}" not in job.nodes()
    assert job.state.restarts_used == 0


def test_without_a_spare_another_node_is_the_master_of_the_next_try() -> None:
    job = Cut(2, {1, 2})
    masters = []
    for _ in range(4):
        job.try_round()
        masters.append(job.master())
    assert masters[:2] == [1, 2]
    assert sorted(masters) == [1, 1, 2, 2]


def test_a_cut_that_ends_costs_nothing_but_time() -> None:
    job = Cut(2, {2})
    for _ in range(3):
        assert job.try_round().phase == FORMING
    job.cut = set()
    state = job.try_round()
    assert (state.phase, state.restarts_used) == (RUNNING, 0)


def test_each_try_waits_longer_than_the_one_before_up_to_a_limit() -> None:
    job = Cut(2, {2})
    waits = []
    for _ in range(10):
        job.try_round()
        waits.append(job.waited_s)
    assert waits[:4] == [0.0, FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert max(waits) == LONGEST_WAIT_S


def test_a_cut_that_lasts_for_the_join_timeout_ends_the_job_with_its_reason() -> None:
    job = Cut(2, {2})
    while job.try_round().phase == FORMING:
        assert job.state.round < 100
    assert job.closed == (FAILED, 1)
    assert job.state.closed.reason.startswith("the master of the round (n")
    assert "rounds in a row could not begin (--join-timeout 600)" in job.state.closed.reason
    assert "would fail again" not in job.state.closed.reason


def test_an_elastic_world_goes_on_without_the_node_that_is_cut_off() -> None:
    job = Cut(4, {4}, low=2, high=4)
    while job.try_round().phase != RUNNING:
        assert job.state.round < 4
    assert set(job.nodes()) == {"n1", "n2", "n3"}


def test_a_rank_that_fails_because_of_it_takes_no_blame() -> None:
    job = Cut(2, {2})
    for number in (1, 2):
        job.publish(number, status=RUNNING, round=job.coordinate().round)
    job.fail(1)
    job.cannot_reach(2)
    state = job.coordinate()
    assert (state.phase, state.restarts_used) == (FORMING, 0)
    assert job.last.failure is not None and job.last.failure.node == "n2"


def test_once_a_round_has_begun_no_node_is_taken_for_cut_off() -> None:
    job = Cut(2, {2})
    job.try_round()
    job.cut = set()
    job.try_round()
    job.fail(1).coordinate()
    assert (job.state.phase, job.state.restarts_used) == (FORMING, 1)
    assert job.ready(1, 2).coordinate().phase == RUNNING, "the wait is over, too"


# A coordinator that has just taken over


def restarted(unproven: set[str], nodes: int = 4, low: int = 2, high: int = 2) -> State:
    job = Job(nodes, low=low, high=high).join().run()
    job.fail(1).coordinate()
    job.ready(1, 2)
    state = replace(job.state, participants=job.state.participants)
    job.records["n2"] = replace(job.records["n2"], reason="SIGTERM from outside", status="left")
    return fold(state, Observation(job.records, {}, 0.0, 5, unproven=frozenset(unproven)), TIMING)


def test_a_spare_that_gave_no_sign_of_life_gets_no_place_while_another_one_can_have_it() -> None:
    assert [p.node for p in restarted({"n3"}).participants] == ["n1", "n4"]


def test_a_spare_that_gave_no_sign_of_life_is_waited_for_where_no_other_is_left() -> None:
    assert restarted({"n3"}, nodes=3).phase == FORMING


def test_the_first_round_of_an_attempt_asks_for_no_sign_of_life() -> None:
    job = Job(2).join()
    seen = Observation(job.records, {}, 0.0, 5, unproven=frozenset({"n2"}))
    assert fold(job.state, seen, TIMING).phase == RUNNING
