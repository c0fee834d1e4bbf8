"""The coordinator's decisions as a table of histories: who reports what, and what must have followed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ftslurm.monitor.timeouts import Longest, Spans
from ftslurm.rendezvous.closing import describe, finish, stop_code
from ftslurm.rendezvous.fold import begin, fold, take_lease
from ftslurm.rendezvous.forming import choose
from ftslurm.rendezvous.member import first_record
from ftslurm.rendezvous.node_record import NodeRecord, Predecessor, Vitals
from ftslurm.rendezvous.observation import AT_ONCE, Observation, RunSpec, Timing
from ftslurm.rendezvous.state import (
    CLOSED,
    FAILED,
    FORMING,
    HISTORY_KEPT,
    LEFT,
    NODE_LOST,
    READY,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    Failure,
    Hang,
    Participant,
    State,
)

TIMING = Timing(node_timeout_s=8, join_timeout_s=600, last_call_s=30, stop_spread_s=2)
ATTEMPT = "12.0"


def failure(round_: int, node: str, rank: int, code: int | None = 1, signal: str | None = None) -> Failure:
    what = signal or f"exit code {code}"
    return Failure(round_, node, rank, 0, 5, "signal" if signal else "exit", code, signal, what, 40)


class Story:
    """Some nodes and their coordinator; `look` folds what is seen. A node is named by its number."""

    timing = TIMING

    def __init__(self, nodes: int, low: int | None = None, high: int | None = None, restarts: int = 3) -> None:
        self.names = [f"n{i + 1}" for i in range(nodes)]
        shape = RunSpec("r", ATTEMPT, tuple(self.names), low or nodes, high or nodes, restarts)
        self.state = begin(None, shape, "n1", "i1", 0)
        self.words: dict[str, NodeRecord] = {}
        self.silent: dict[str, float] = {}
        self.forming_s = self.told_s = 0.0
        self.now_ns = 0

    def join(self, *numbers: int, slots: int = 2) -> Story:
        for number in numbers or range(1, len(self.names) + 1):
            word = first_record(f"n{number}", f"i{number}", ATTEMPT, number - 1, slots)
            self.words[word.node] = replace(word, port=20_000 + number)
        return self

    def say(self, number: int, **changes: object) -> Story:
        name = f"n{number}"
        self.words[name] = replace(self.words[name], **changes)  # type: ignore[arg-type]
        return self

    def look(self, forming_s: float = 0.0, told_s: float = 0.0, hanging_s: float = 0.0) -> State:
        seen = Observation(self.words, self.silent, forming_s, self.now_ns, told_s, hanging_for_s=hanging_s)
        before = self.state
        self.state = fold(before, seen, self.timing)
        again = fold(self.state, seen, self.timing)
        assert again == self.state, "the same sight changed the state twice"
        assert again is self.state, "nothing changed and yet there is a new state"
        return self.state

    def run(self) -> Story:
        """Form the next round and let everybody start."""
        assert self.look().phase == RUNNING
        for p in self.state.participants:
            self.say(int(p.node[1:]), status=RUNNING, round=self.state.round, failure=None)
        return self

    def fail(self, number: int, **kind: object) -> Story:
        p = next(p for p in self.state.participants if p.node == f"n{number}")
        return self.say(
            number,
            status=FAILED,
            failure=failure(self.state.round, p.node, p.first_rank, **kind),  # type: ignore[arg-type]
        )

    def hang(self, number: int) -> Story:
        p = next(p for p in self.state.participants if p.node == f"n{number}")
        return self.say(number, hang=Hang(self.state.round, p.node, p.first_rank, 0, 5, "no heartbeat for 30.0 s", 40))

    def show(self, *numbers: int) -> Story:
        for number in numbers:
            self.say(number, stacks_collected=self.state.round)
        return self

    def told(self, *numbers: int, name: str = "SIGTERM") -> Story:
        for number in numbers:
            self.say(number, reason=f"{name} from outside", stop_signal=name)
        return self

    def ready(self, *numbers: int) -> Story:
        for number in numbers:
            self.say(number, status=READY)
        return self

    @property
    def last(self):
        return self.state.history[-1]

    @property
    def closed(self):
        assert self.state.closed is not None, self.state.phase
        return self.state.closed.outcome, self.state.closed.exit_code


# Forming


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_round_forms_when_the_last_node_is_ready(nodes: int) -> None:
    story = Story(nodes)
    for number in range(1, nodes):
        assert story.join(number).look().phase == FORMING
    state = story.join(nodes).look()
    assert (state.phase, state.round, state.world_size) == (RUNNING, 1, 2 * nodes)
    assert [(p.node, p.group_rank, p.first_rank) for p in state.participants] == [
        (f"n{i + 1}", i, 2 * i) for i in range(nodes)
    ]
    assert (state.master.address, state.master.port) == ("n1", 20_001)
    assert (story.last.round, story.last.outcome, story.last.nodes) == (1, RUNNING, tuple(story.names))


def test_ranks_follow_slurms_order_and_not_the_order_of_arrival() -> None:
    story = Story(3).join(3).join(1).join(2)
    assert [p.node for p in story.look().participants] == ["n1", "n2", "n3"]


def test_nodes_with_different_numbers_of_workers_get_contiguous_ranks() -> None:
    state = Story(3).join(1, slots=3).join(2, slots=1).join(3, slots=2).look()
    assert [(p.first_rank, p.slots) for p in state.participants] == [(0, 3), (3, 1), (4, 2)]
    assert state.world_size == 6


def test_more_than_the_minimum_is_waited_for_until_the_last_call() -> None:
    story = Story(3, low=2, high=3).join(1, 2)
    assert story.look(forming_s=29.9).phase == FORMING
    state = story.look(forming_s=30)
    assert (state.phase, [p.node for p in state.participants]) == (RUNNING, ["n1", "n2"])


def test_the_last_missing_node_ends_the_wait() -> None:
    story = Story(3, low=2, high=3).join(1, 2)
    assert story.look(forming_s=3).phase == FORMING
    assert story.join(3).look(forming_s=3.1).world_size == 6


def test_a_node_that_comes_late_takes_part_in_the_next_round_only() -> None:
    story = Story(3, low=2, high=3).join(1, 2)
    story.look(forming_s=30)
    story.say(1, status=RUNNING, round=1).say(2, status=RUNNING, round=1)
    assert story.join(3).look().round == 1
    story.fail(2).look()
    state = story.ready(1, 2).look()
    assert (state.round, [p.node for p in state.participants]) == (2, ["n1", "n2", "n3"])


def test_with_more_nodes_than_the_maximum_the_first_in_slurms_order_take_part() -> None:
    state = Story(5, low=2, high=3).join(5, 4, 2, 3, 1).look()
    assert [p.node for p in state.participants] == ["n1", "n2", "n3"]


def test_a_missing_node_at_the_join_timeout_closes_the_run_and_is_named() -> None:
    story = Story(3).join(1, 3)
    assert story.look(forming_s=599).phase == FORMING
    story.look(forming_s=600)
    assert story.closed == (FAILED, 1)
    assert "no node record of n2" in story.state.closed.reason
    assert "2 nodes left, at least 3 needed, after waiting 600 s" in story.state.closed.reason


def test_a_node_that_cannot_get_rid_of_its_workers_is_waited_for_until_the_join_timeout() -> None:
    story = Story(3, low=2).join().run().fail(3)
    story.look()
    story.ready(1, 2)
    assert story.look(forming_s=599).phase == FORMING
    state = story.look(forming_s=600)
    assert (state.phase, [p.node for p in state.participants]) == (RUNNING, ["n1", "n2"])


def test_records_of_another_attempt_are_not_counted() -> None:
    story = Story(2).join(1, 2).say(2, attempt="11.0")
    assert story.look(forming_s=30).phase == FORMING


def test_a_silent_node_is_not_counted_as_ready() -> None:
    story = Story(2, low=1).join()
    story.silent["n2"] = 8.0
    assert [p.node for p in story.look().participants] == ["n1"]


# Running


def test_a_round_ends_in_success_when_all_nodes_have_succeeded() -> None:
    story = Story(2).join().run()
    assert story.say(1, status=SUCCEEDED).look().phase == RUNNING
    story.say(2, status=SUCCEEDED).look()
    assert story.closed == (SUCCEEDED, 0)
    assert story.state.closed.reason == "all 4 ranks on 2 nodes succeeded"
    assert (story.last.outcome, story.last.reason) == (SUCCEEDED, None)


def test_success_of_an_earlier_round_does_not_count() -> None:
    story = Story(1).join().run()
    assert story.say(1, status=SUCCEEDED, round=0).look().phase == RUNNING


def test_a_node_that_fell_silent_after_its_success_has_succeeded() -> None:
    story = Story(2).join().run().say(2, status=SUCCEEDED)
    story.silent["n2"] = 100.0
    assert story.look().phase == RUNNING
    story.say(1, status=SUCCEEDED).look()
    assert story.closed == (SUCCEEDED, 0)


def test_a_failure_ends_the_round_and_the_next_forms_when_all_are_ready_again() -> None:
    story = Story(2).join().run().fail(2)
    state = story.look()
    assert (state.phase, state.round, state.restarts_used) == (FORMING, 1, 1)
    assert (story.last.outcome, story.last.failure.rank) == (FAILED, 2)
    assert story.last.reason == "rank 2 on n2 failed at step 40: exit code 1"
    assert story.ready(1).look().phase == FORMING
    story.say(2, status=READY, port=30_000).say(1, port=31_000)
    state = story.look()
    assert (state.phase, state.round, state.master.port) == (RUNNING, 2, 31_000)


def test_two_failures_at_once_cost_one_restart_and_the_lower_rank_is_recorded() -> None:
    story = Story(5).join().run().fail(4).fail(2)
    assert story.look().restarts_used == 1
    assert story.last.failure.node == "n2"


def test_a_failure_that_is_seen_late_does_not_end_the_next_round() -> None:
    story = Story(2).join().run().fail(1)
    story.look()
    story.fail(2).ready(1, 2)
    assert story.look().round == 2
    assert story.look().restarts_used == 1


def test_when_the_budget_is_used_up_the_next_failure_closes_the_run() -> None:
    story = Story(2, restarts=1).join().run().fail(1)
    story.look()
    story.ready(1, 2).run().fail(2).look()
    assert story.closed == (FAILED, 1)
    assert (story.state.restarts_used, story.state.round) == (1, 2)
    assert "rank 2 on n2 failed" in story.state.closed.reason
    assert "used up" in story.state.closed.reason


def test_without_a_budget_the_first_failure_closes_the_run() -> None:
    story = Story(1, restarts=0).join().run().fail(1)
    story.look()
    assert story.closed == (FAILED, 1)
    assert "no restarts allowed" in story.state.closed.reason


def test_code_78_closes_the_run_whatever_the_budget() -> None:
    story = Story(2).join().run().fail(2, code=78)
    story.look()
    assert story.closed == (FAILED, 78)
    assert "rank 2 on n2 ended with code 78" in story.state.closed.reason


def test_code_78_counts_also_when_another_rank_failed_before() -> None:
    story = Story(2).join().run().fail(1).fail(2, code=78)
    story.look()
    assert story.closed == (FAILED, 78)


def test_code_78_that_is_seen_while_the_next_round_forms_still_closes_the_run() -> None:
    story = Story(2).join().run().fail(1)
    assert story.look().phase == FORMING
    story.fail(2, code=78).look()
    assert story.closed == (FAILED, 78)
    assert story.last.failure.rank == 0


def test_a_lost_node_without_a_replacement_is_waited_for_until_the_join_timeout() -> None:
    story = Story(2).join().run()
    story.silent["n2"] = 7.9
    assert story.look().phase == RUNNING
    story.silent["n2"] = 8.0
    story.look()
    story.ready(1)
    assert story.look(forming_s=TIMING.join_timeout_s - 1).phase == FORMING
    story.look(forming_s=TIMING.join_timeout_s)
    assert story.closed == (FAILED, 1)
    assert story.last.outcome == NODE_LOST
    assert [(gone.node, gone.round, gone.silent_s) for gone in story.state.lost] == [("n2", 1, 8.0)]
    assert "n2 was lost: no heartbeat of its agent for 8.0 s" in story.state.closed.reason
    assert "1 node left, at least 2 needed" in story.state.closed.reason


def test_a_lost_node_that_thaws_while_it_is_waited_for_takes_part_again() -> None:
    story = Story(2).join().run()
    story.silent["n2"] = 8.0
    story.look()
    assert story.ready(1).look(forming_s=100.0).phase == FORMING
    story.silent["n2"] = 0.0
    assert story.look(forming_s=101.0).phase == FORMING, "its workers of the lost round are still being stopped"
    state = story.ready(2).look(forming_s=102.0)
    assert (state.phase, state.round, state.restarts_used) == (RUNNING, 2, 1)


def test_a_node_whose_agent_is_known_to_have_ended_is_not_waited_for() -> None:
    story = Story(2).join().run()
    story.say(2, status=LEFT, reason="its agent was killed by SIGKILL").look()
    assert story.closed == (FAILED, 1)
    assert "1 node left, at least 2 needed, and nothing can replace it" in story.state.closed.reason


def test_the_others_go_on_without_a_lost_node_when_they_are_enough() -> None:
    story = Story(3, low=2).join().run()
    story.silent["n1"] = 8.0
    assert story.look().phase == FORMING
    state = story.ready(2, 3).look()
    assert [(p.node, p.first_rank) for p in state.participants] == [("n2", 0), ("n3", 2)]
    assert (state.master.address, state.world_size) == ("n2", 4)


def test_a_spare_takes_the_place_and_ranks_of_the_lost_node() -> None:
    story = Story(4, low=2, high=3).join().run()
    story.silent["n1"] = 8.0
    story.look()
    state = story.ready(2, 3).look()
    assert [(p.node, p.first_rank) for p in state.participants] == [("n4", 0), ("n2", 2), ("n3", 4)]


def test_a_node_that_comes_back_takes_part_again() -> None:
    story = Story(3, low=2).join().run()
    story.silent["n3"] = 8.0
    story.look()
    story.silent["n3"] = 0.0
    assert story.ready(1, 2).look().phase == FORMING, "its workers are still being stopped"
    assert story.ready(3).look().world_size == 6


def test_an_agent_that_was_restarted_on_its_node_is_lost_and_takes_part_again() -> None:
    story = Story(2).join().run().say(2, incarnation="again", status=READY, round=0)
    assert story.look().phase == FORMING
    assert "n2 was lost: its agent was restarted" in story.last.reason
    assert story.ready(1).look().participants[1].incarnation == "again"


def test_an_agent_that_replaces_a_killed_one_has_its_reason_and_takes_part_again() -> None:
    story = Story(2).join().run()
    killed = Predecessor(story.words["n2"].incarnation, "its agent was killed by SIGKILL", 1)
    assert story.say(2, incarnation="again", status=READY, round=0, predecessor=killed).look().phase == FORMING
    assert story.last.reason == "n2 left: its agent was killed by SIGKILL"
    assert story.ready(1).look().participants[1].incarnation == "again"


def test_a_node_whose_guardian_starts_another_agent_is_waited_for() -> None:
    story = Story(2).join().run()
    story.say(2, status=LEFT, reason="its agent was killed by SIGKILL", to_be_replaced=True).look()
    assert story.ready(1).look(forming_s=TIMING.join_timeout_s - 1).phase == FORMING
    assert story.last.reason == "n2 left: its agent was killed by SIGKILL"
    story.look(forming_s=TIMING.join_timeout_s)
    assert story.closed == (FAILED, 1)


def test_an_old_attempts_record_read_late_loses_no_node() -> None:
    story = Story(2).join().run().say(2, incarnation="old", attempt="11.0", status=LEFT)
    assert story.look().phase == RUNNING


def test_a_node_that_left_ends_the_round_at_once_with_its_reason() -> None:
    story = Story(2).join().run().say(2, status=LEFT, reason="its agent was killed by SIGKILL")
    story.look()
    assert story.closed == (FAILED, 1)
    assert story.last.outcome == NODE_LOST
    assert "n2 left: its agent was killed by SIGKILL" in story.state.closed.reason


def test_the_next_round_waits_for_the_workers_of_a_node_that_leaves() -> None:
    story = Story(3, low=2).join()
    story.look()
    story.say(3, status=RUNNING, round=1, reason="its guardian process was killed").look()
    story.say(1, status=READY, round=1).say(2, status=READY, round=1)
    assert story.look().phase == FORMING
    assert story.say(3, status=LEFT).look().round == 2


def test_a_failure_tells_more_than_the_leaving_that_follows_it() -> None:
    story = Story(2, low=1).join().run().fail(2).say(2, status=LEFT, reason="its guardian process was killed")
    story.look()
    assert (story.last.outcome, story.last.failure.node) == (FAILED, "n2")


# Stopping from outside


def test_a_stop_signal_to_all_nodes_is_a_stop_with_the_signals_exit_code() -> None:
    story = Story(2).join().run().told(1, 2)
    story.look()
    assert story.closed == (STOPPED, 143)
    assert (story.last.outcome, story.last.reason) == (STOPPED, "SIGTERM from outside")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGHUP", 129), ("SIGQUIT", 131)])
def test_other_signals_give_their_own_exit_code(name: str, code: int) -> None:
    story = Story(1).join().run().told(1, name=name)
    story.look()
    assert story.closed == (STOPPED, code)


@pytest.mark.parametrize("restarts", [0, 3])
@pytest.mark.parametrize("low", [1, 2])
def test_a_stop_signal_to_one_node_and_shortly_after_to_the_others_is_a_stop(restarts: int, low: int) -> None:
    story = Story(2, low=low, restarts=restarts).join().run().told(2)
    assert story.look(told_s=0.0).phase == RUNNING
    assert story.look(told_s=1.9).phase == RUNNING
    story.told(1).look(told_s=1.9)
    assert story.closed == (STOPPED, 143)
    assert story.last.outcome == STOPPED


def test_ranks_that_fail_because_a_peer_was_stopped_are_not_the_cause() -> None:
    story = Story(2).join().run().told(2).fail(1)
    assert story.look(told_s=0.5).phase == RUNNING
    story.told(1).look(told_s=0.6)
    assert story.closed == (STOPPED, 143)


def test_a_single_stopped_node_is_a_lost_node_and_its_peers_failures_are_not_the_cause() -> None:
    story = Story(3, low=2).join().run().told(3).fail(1)
    state = story.look(told_s=2.0)
    assert (state.phase, story.last.outcome) == (FORMING, NODE_LOST)
    assert story.last.reason == "n3 left: SIGTERM from outside"
    state = story.say(3, status=LEFT).ready(1, 2).look(told_s=3.0)
    assert [p.node for p in state.participants] == ["n1", "n2"]


def test_a_stop_signal_to_all_nodes_while_the_first_round_forms_is_a_stop() -> None:
    story = Story(3).join(1, 2)
    story.look()
    story.told(1, 2).look()
    assert story.closed == (STOPPED, 143)
    assert story.state.history == ()


def test_a_stop_signal_to_all_nodes_before_the_next_round_keeps_the_failure_in_the_history() -> None:
    story = Story(2).join().run().fail(2)
    story.look()
    story.told(1, 2).look(forming_s=1)
    assert story.closed == (STOPPED, 143)
    assert story.last.outcome == FAILED


def test_a_rank_that_died_of_the_stops_own_signal_is_part_of_the_stop() -> None:
    story = Story(2).join().run().fail(2, code=None, signal="SIGTERM")
    assert story.look().phase == FORMING
    story.told(1, 2).look(forming_s=0.3, told_s=0.1)
    assert story.closed == (STOPPED, 143)
    assert story.last.outcome == STOPPED


def test_a_rank_that_died_of_sigterm_long_before_the_stop_keeps_its_place_in_the_history() -> None:
    story = Story(2).join().run().fail(2, code=None, signal="SIGTERM")
    story.look()
    story.told(1, 2).look(forming_s=100, told_s=0.1)
    assert story.last.outcome == FAILED


def test_a_node_lost_long_before_the_stop_keeps_its_place_in_the_history() -> None:
    story = Story(4, low=3, high=3).join(1, 2, 3).run()
    story.silent["n3"] = 8.0
    assert story.look().phase == FORMING
    story.told(1, 2).look(forming_s=100)
    assert story.closed == (STOPPED, 143)
    assert (story.last.outcome, story.last.reason[:11]) == (NODE_LOST, "n3 was lost")


def test_an_earlier_attempts_stop_is_none_of_this_one() -> None:
    story = Story(2).join().run()
    story.words["n9"] = replace(story.words["n2"], node="n9", attempt="11.0", stop_signal="SIGTERM", reason="x")
    story.say(2, status=LEFT, reason="its agent was killed by SIGKILL").say(1, status=LEFT, reason="y")
    story.look()
    assert story.closed == (FAILED, 1)


def test_all_ranks_done_is_a_success_even_when_the_stop_arrives_with_it() -> None:
    story = Story(2).join().run().say(1, status=SUCCEEDED).say(2, status=SUCCEEDED).told(1, 2)
    story.look()
    assert story.closed == (SUCCEEDED, 0)


def test_an_unknown_signal_gives_the_exit_code_of_a_failure() -> None:
    assert [stop_code(name) for name in (None, "SIGWHAT", "SIGKILL")] == [1, 1, 137]


# Attempts and the lease


def shape(attempt: str) -> RunSpec:
    return RunSpec("r", attempt, ("n1",), 1, 1, 3)


def test_an_attempt_after_a_killed_one_goes_on_counting_rounds_with_a_fresh_budget() -> None:
    story = Story(2).join().run().fail(1)
    story.look()
    story.ready(1, 2).run()
    new = begin(story.state, shape("12.1"), "n1", "j1", 77)
    assert (new.phase, new.round, new.restarts_used, new.participants) == (FORMING, 2, 0, ())
    assert new.attempts == ("12.0", "12.1")
    assert new.coordinator.term == story.state.coordinator.term + 1
    assert [entry.outcome for entry in new.history] == [FAILED, STOPPED]
    assert new.history[-1].ended_ns == 77
    assert "before attempt 12.1" in new.history[-1].reason


def test_an_attempt_after_a_closed_one_leaves_the_history_as_it_is() -> None:
    story = Story(1).join().run().say(1, status=SUCCEEDED)
    story.look()
    new = begin(story.state, shape("12.1"), "n1", "j1", 77)
    assert (new.history, new.closed) == (story.state.history, None)


def test_failures_of_an_earlier_attempts_round_do_not_count_in_the_new_one() -> None:
    story = Story(1).join().run().fail(1, code=78)
    new = begin(story.state, shape("12.1"), "n1", "j1", 77)
    words = {"n1": replace(first_record("n1", "j1", "12.1", 0, 1), port=1)}
    state = fold(new, Observation(words, {}, 0.0, 0), TIMING)
    assert (state.phase, state.round, state.restarts_used) == (RUNNING, 2, 0)


def test_a_lease_taken_changes_nothing_but_the_coordinator() -> None:
    state = Story(2).join().run().state
    taken = take_lease(state, "n2", "i2")
    assert (taken.coordinator.node, taken.coordinator.term) == ("n2", 2)
    assert replace(taken, coordinator=state.coordinator) == state


def test_a_closed_run_stays_closed() -> None:
    story = Story(1).join().run().say(1, status=SUCCEEDED)
    closed = story.look()
    story.fail(1)
    assert story.look(forming_s=1e6, told_s=1e6) is closed


def test_the_state_survives_being_written_and_read() -> None:
    story = Story(3, low=2).join().run()
    story.silent["n3"] = 9.25
    story.look()
    story.ready(1, 2).run().fail(1).look()
    story.ready(1, 2).look()
    assert State.decode(story.state.encode(), "x") == story.state
    for word in story.words.values():
        assert NodeRecord.decode(word.encode(), "x") == word


def test_only_the_newest_rounds_are_kept() -> None:
    story = Story(1, restarts=1000).join()
    for _ in range(HISTORY_KEPT + 5):
        story.run().fail(1).look()
        story.ready(1)
    assert len(story.state.history) == HISTORY_KEPT
    assert story.last.round == HISTORY_KEPT + 5


# The order of ranks


def words(*names: str) -> list[NodeRecord]:
    return [first_record(name, "i", ATTEMPT, int(name[1:]), 1) for name in names]


def before(*names: str) -> list[Participant]:
    return [Participant(name, "i", 1, i, i) for i, name in enumerate(names)]


@pytest.mark.parametrize(
    ("ready", "previous", "most", "expected"),
    [
        ("n3 n1 n2", "", 3, "n1 n2 n3"),
        ("n1 n2 n3", "n1 n2 n3", 3, "n1 n2 n3"),
        ("n1 n3 n4", "n1 n2 n3", 3, "n1 n4 n3"),
        ("n3 n4 n5", "n1 n2 n3", 3, "n4 n5 n3"),
        ("n1 n3", "n1 n2 n3", 3, "n1 n3"),
        ("n1 n2 n3 n4", "n4 n2", 2, "n4 n2"),
        ("n1 n2 n3 n4", "n4 n2", 4, "n1 n2 n3 n4"),
        ("n1 n2", "n3 n4", 2, "n1 n2"),
    ],
)
def test_who_stays_keeps_its_place_and_a_newcomer_gets_the_place_of_who_is_gone(
    ready: str, previous: str, most: int, expected: str
) -> None:
    chosen = choose(words(*ready.split()), before(*previous.split()), most)
    assert [word.node for word in chosen] == expected.split()


def test_a_failure_is_described_with_its_step_if_there_is_one() -> None:
    assert describe(failure(1, "n1", 3)) == "rank 3 on n1 failed at step 40: exit code 1"
    assert describe(replace(failure(1, "n1", 3), step=None)) == "rank 3 on n1 failed: exit code 1"


# Anything goes


def change_something(rng: random.Random, story: Story) -> None:
    name = rng.choice(story.names)
    number = int(name[1:])
    word = story.words.get(name)
    if word is None:
        story.join(number, slots=rng.randint(1, 3))
        return
    roll = rng.random()
    mine = next((p for p in story.state.participants if p.node == name and p.incarnation == word.incarnation), None)
    if roll < 0.3:
        # As its agent would: it follows the state.
        if story.state.phase == RUNNING and mine is not None and word.round < story.state.round:
            story.say(number, status=RUNNING, round=story.state.round, failure=None)
        elif story.state.phase == FORMING:
            story.say(number, status=READY, port=rng.randint(1024, 65535))
    elif roll < 0.5 and mine is not None and story.state.phase == RUNNING and word.round == story.state.round:
        story.say(number, status=SUCCEEDED)
    elif roll < 0.58 and mine is not None and word.round == story.state.round:
        story.fail(number, code=rng.choice([1, 1, 1, 78]))
    elif roll < 0.66:
        story.silent[name] = rng.choice([0.0, 0.0, 5.0, 9.0])
    elif roll < 0.68:
        story.told(number)
    elif roll < 0.70:
        story.say(number, status=LEFT, reason="gone")
    elif roll < 0.74:
        story.join(number, slots=word.slots).say(number, incarnation=f"{rng.random()}")
    elif roll < 0.76:
        story.state = take_lease(story.state, name, word.incarnation)


def check_step(story: Story, old: State, where: str) -> None:
    new = story.state
    assert new.round in (old.round, old.round + 1), where
    assert old.restarts_used <= new.restarts_used <= new.max_restarts, where
    assert new.restarts_used - old.restarts_used <= 1, where
    assert new.history[: len(old.history) - 1] == old.history[:-1], f"{where}: the past was changed"
    assert len({entry.round for entry in new.history}) == len(new.history), where
    if old.phase == CLOSED:
        assert new is old, where
    assert (new.closed is not None) == (new.phase == CLOSED), where
    if new.closed is not None:
        assert (new.closed.exit_code == 0) == (new.closed.outcome == SUCCEEDED), where
        assert all(entry.outcome != RUNNING for entry in new.history), where
    if new.phase == RUNNING:
        assert new.min_nodes <= len(new.participants) <= new.max_nodes, where
        assert new.master is not None, where
        assert new.history[-1].round == new.round, where
        assert new.history[-1].outcome == RUNNING, where
    if new.round != old.round:
        assert all(story.words[p.node].status == READY for p in new.participants), where
    ranks = [rank for p in new.participants for rank in range(p.first_rank, p.first_rank + p.slots)]
    assert ranks == list(range(new.world_size)), where
    assert [p.group_rank for p in new.participants] == list(range(len(new.participants))), where
    assert len({p.node for p in new.participants}) == len(new.participants), where


def test_the_state_stays_consistent_for_any_records() -> None:
    """A random walk; `look` itself checks that folding the same sight twice changes nothing."""
    closed = 0
    for seed in range(250):
        rng = random.Random(seed)
        nodes = rng.randint(1, 5)
        low = rng.randint(1, nodes)
        story = Story(nodes, low, rng.randint(low, nodes), rng.randint(0, 4))
        for step in range(80):
            change_something(rng, story)
            if not story.words:
                continue
            story.now_ns += 1
            old = story.state
            story.look(rng.choice([0.0, 1.0, 31.0, 700.0]), rng.choice([0.0, 1.0, 3.0]))
            check_step(story, old, f"seed {seed}, step {step}")
        closed += story.state.phase == CLOSED
    assert closed > 100, "the walk hardly ever gets to an end"


# Agents that restart their workers themselves (the torchrun plugin)


class LateStory(Story):
    """Nobody knows who will come (no node list), and late nodes get in at once."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(high, low=low, high=high)
        self.state = replace(self.state, expected=())

    def look(self, forming_s: float = 0.0, told_s: float = 0.0, joining_s: float = 0.0) -> State:
        seen = Observation(self.words, self.silent, forming_s, self.now_ns, told_s, joining_s)
        self.state = fold(self.state, seen, replace(TIMING, rejoin=AT_ONCE))
        return self.state

    def start(self, *numbers: int) -> LateStory:
        """Form the first round, after the last call for nodes that nobody has heard of."""
        self.join(*numbers)
        assert self.look(forming_s=30).phase == RUNNING
        for number in numbers:
            self.say(number, status=RUNNING, round=1)
        return self


def test_a_late_node_waits_for_the_next_round_by_default() -> None:
    story = Story(3, low=2, high=3).join(1, 2)
    story.look(forming_s=30)
    assert story.join(3).look().phase == RUNNING


def test_a_late_node_that_fills_the_world_gets_in_at_once() -> None:
    story = LateStory(2, 3).start(1, 2)
    story.join(3).look()
    assert (story.state.phase, story.last.outcome, story.last.reason) == (FORMING, STOPPED, "n3 joined")
    assert story.state.restarts_used == 0
    assert story.ready(1, 2).look().world_size == 6


def test_late_nodes_get_in_after_a_last_call_while_the_round_goes_on() -> None:
    story = LateStory(1, 3).start(1)
    story.join(2)
    assert story.look(joining_s=29.9).phase == RUNNING
    assert story.look(joining_s=30).phase == FORMING


def test_a_late_node_that_died_or_left_ends_no_round() -> None:
    story = LateStory(1, 2).start(1)
    story.join(2).silent["n2"] = 8.0
    assert story.look().phase == RUNNING
    story.silent["n2"] = 0.0
    assert story.say(2, status=LEFT, reason="left").look().phase == RUNNING


def test_a_spare_ends_no_round() -> None:
    story = LateStory(1, 1)
    story.names.append("n2")
    story.start(1).join(2)
    assert (story.look(joining_s=99).phase, story.state.round) == (RUNNING, 1)


def test_where_late_nodes_get_in_at_once_only_the_first_round_waits_for_the_unknown() -> None:
    story = LateStory(1, 2).start(1, 2)
    story.silent["n2"] = 8.0
    assert story.look().phase == FORMING
    assert [p.node for p in story.ready(1).look().participants] == ["n1"]


def test_a_node_that_is_ready_although_its_round_runs_ends_the_round_for_all() -> None:
    story = Story(2).join().run().ready(2)
    assert (story.look().phase, story.last.outcome) == (FORMING, FAILED)
    assert story.last.reason == "n2 requested the next round"
    assert story.ready(1).look().round == 2


def test_whoever_finishes_the_run_ends_its_round_the_same_way() -> None:
    story = Story(1).join().run()
    state = finish(story.state, FAILED, "no restarts left", 1, 7)
    assert (state.phase, state.closed.reason, state.history[-1].outcome) == (CLOSED, "no restarts left", FAILED)
    assert state.history[-1].ended_ns == 7


# A rank hangs


def test_a_hang_ends_the_round_only_when_all_nodes_have_collected_stacks() -> None:
    story = Story(3).join().run().hang(2)
    state = story.look()
    assert (state.phase, state.hang.node) == (RUNNING, "n2")
    assert story.show(1, 2).look() is state
    state = story.show(3).look()
    assert (state.phase, state.restarts_used, state.hang) == (FORMING, 1, None)
    assert story.last.failure.kind == "hang"
    assert story.last.reason == "rank 2 on n2 hung at step 40: no heartbeat for 30.0 s"


def test_a_node_that_cannot_show_its_ranks_delays_the_stop_by_a_bounded_time() -> None:
    story = Story(3).join().run().hang(2)
    story.look()
    story.show(1, 2)
    assert story.look(hanging_s=TIMING.stack_collection_s - 0.1).phase == RUNNING
    assert story.look(hanging_s=TIMING.stack_collection_s).phase == FORMING


def test_the_round_does_not_wait_for_the_stacks_of_a_node_that_is_lost_or_leaving() -> None:
    story = Story(3).join().run().hang(2)
    story.look()
    story.show(1, 2).say(3, reason="its disk is full", status=LEFT)
    story.silent["n1"] = 9.0
    assert story.look().phase != RUNNING
    assert story.last.failure.kind == "hang", "both nodes were there when the rank hung"


def test_a_silent_node_is_lost_before_a_rank_that_waited_for_it_counts_as_hung() -> None:
    story = Story(3).join().run()
    story.silent["n3"] = 2.0
    story.hang(1).look()
    story.silent["n3"] = 7.9
    assert story.show(1, 2).look(hanging_s=5.9).phase == RUNNING
    story.silent["n3"] = 8.0
    story.look(hanging_s=6.0)
    assert (story.last.outcome, story.last.failure) == (NODE_LOST, None)
    assert story.last.reason == "n3 was lost: no heartbeat of its agent for 8.0 s"
    assert [lost.node for lost in story.state.lost] == ["n3"]


def test_a_silent_node_is_waited_for_although_the_time_for_showing_is_over() -> None:
    story = Story(2).join().run().hang(1)
    story.timing = replace(TIMING, node_timeout_s=60)
    story.look()
    story.show(1)
    for seconds in (TIMING.stack_collection_s, 40.0, 57.0):
        story.silent["n2"] = seconds + 2
        assert story.look(hanging_s=seconds).phase == RUNNING
    story.silent["n2"] = 1.0
    assert story.look(hanging_s=58.0).phase == FORMING, "it has only been slow"
    assert story.last.failure.kind == "hang"


def test_a_node_whose_agent_was_restarted_before_it_collected_stacks_is_lost_first() -> None:
    story = Story(2).join().run().hang(1)
    story.look()
    story.show(1).say(2, incarnation="i9", status=READY, round=0)
    story.look()
    assert story.last.outcome == NODE_LOST


def test_what_fails_while_stacks_are_collected_is_not_the_first_failure() -> None:
    story = Story(2).join().run().hang(2)
    story.look()
    assert story.fail(1).look().phase == RUNNING
    story.show(1, 2).look()
    assert story.last.failure.kind == "hang"


def test_a_failure_that_is_seen_together_with_a_hang_explains_it() -> None:
    story = Story(2).join().run().hang(2)
    assert story.fail(1).look().phase == FORMING
    assert story.last.failure.kind == "exit"


def test_the_others_still_collect_stacks_when_the_hung_ranks_agent_could_not_wait() -> None:
    story = Story(2).join().run().hang(2).show(2)
    hang = story.words["n2"].hang
    state = story.say(2, status=FAILED, failure=hang.failure()).look()
    assert (state.phase, state.hang) == (RUNNING, hang)
    assert story.show(1).look().phase == FORMING
    assert story.last.failure.kind == "hang"


def test_a_hang_of_an_earlier_round_is_old_news() -> None:
    story = Story(2).join().run().hang(2)
    story.look()
    story.show(1, 2).look()
    assert story.ready(1, 2).run().look().hang is None


def test_a_program_that_ends_well_while_its_stacks_are_collected_has_succeeded() -> None:
    story = Story(2).join().run().hang(2)
    story.look()
    assert story.say(1, status=SUCCEEDED).say(2, status=SUCCEEDED).look().closed.outcome == SUCCEEDED


def test_time_outs_are_learned_from_the_slowest_rank_of_a_round_and_inherited_by_a_requeue() -> None:
    story = Story(2).join().run()
    for number, seconds in ((1, 200.0), (2, 500.0)):
        longest = Longest(Spans(heartbeat_s=seconds, sections={"step": seconds / 10}))
        story.say(number, vitals=Vitals(1, longest, (), 0))
    state = story.fail(1).look()
    assert state.learned.timeouts.heartbeat_s == 2500.0
    assert dict(state.learned.timeouts.sections) == {"step": 250.0}
    again = begin(state, RunSpec("r", "12.1", ("n1", "n2"), 2, 2, 3), "n1", "i9", 0)
    assert State.decode(again.encode(), "state").learned == state.learned


def test_time_outs_are_not_learned_from_a_record_of_another_round() -> None:
    story = Story(2).join().run()
    story.say(1, vitals=Vitals(7, Longest(Spans(heartbeat_s=20.0)), (), 0))
    assert story.fail(1).look().learned is None
