"""The coordinator's decisions as a table of histories: the nodes' records, and the state that must follow."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fold_histories import ATTEMPT, TIMING, Job, failure

from ftslurm.agent.actions import assignment_of
from ftslurm.monitor.timeouts import Longest, Spans
from ftslurm.records.node import NodeRecord, Predecessor, Vitals, first_record
from ftslurm.records.stacks import StacksFile
from ftslurm.records.state import (
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
    Participant,
    State,
)
from ftslurm.rendezvous.closing import describe, finish, stop_code
from ftslurm.rendezvous.fold import begin, fold, take_lease
from ftslurm.rendezvous.forming import choose
from ftslurm.rendezvous.observation import AT_ONCE, Observation, RunSpec

# Forming


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_round_forms_when_the_last_node_is_ready(nodes: int) -> None:
    job = Job(nodes)
    for number in range(1, nodes):
        assert job.join(number).coordinate().phase == FORMING
    state = job.join(nodes).coordinate()
    assert (state.phase, state.round, state.world_size) == (RUNNING, 1, 2 * nodes)
    assert [(p.node, p.group_rank, p.first_rank) for p in state.participants] == [
        (f"n{i + 1}", i, 2 * i) for i in range(nodes)
    ]
    assert (state.master.address, state.master.port) == ("n1", 20_001)
    assert (job.last.round, job.last.outcome, job.last.nodes) == (1, RUNNING, tuple(job.names))


def test_ranks_follow_slurms_order_and_not_the_order_of_arrival() -> None:
    job = Job(3).join(3).join(1).join(2)
    assert [p.node for p in job.coordinate().participants] == ["n1", "n2", "n3"]


def test_ranks_are_counted_within_their_role_too() -> None:
    job = Job(4)
    for number, role, slots in ((1, "actor", 2), (2, "learner", 1), (3, "actor", 3), (4, "learner", 2)):
        job.join(number, slots=slots).publish(number, role=role)
    state = job.coordinate()
    parts = [assignment_of(State.decode(state.encode(), "state"), part) for part in state.participants]
    found = [(part.first_rank, part.first_role_rank, part.role_world_size) for part in parts if part is not None]
    assert found == [(0, 0, 5), (2, 0, 3), (3, 2, 5), (6, 1, 3)]
    alike = Job(1).join(1).coordinate()
    assert b"role" not in alike.encode()


def test_nodes_with_different_numbers_of_workers_get_contiguous_ranks() -> None:
    state = Job(3).join(1, slots=3).join(2, slots=1).join(3, slots=2).coordinate()
    assert [(p.first_rank, p.slots) for p in state.participants] == [(0, 3), (3, 1), (4, 2)]
    assert state.world_size == 6


def test_more_than_the_minimum_is_waited_for_until_the_last_call() -> None:
    job = Job(3, low=2, high=3).join(1, 2)
    assert job.coordinate(forming_s=29.9).phase == FORMING
    state = job.coordinate(forming_s=30)
    assert (state.phase, [p.node for p in state.participants]) == (RUNNING, ["n1", "n2"])


def test_the_last_missing_node_ends_the_wait() -> None:
    job = Job(3, low=2, high=3).join(1, 2)
    assert job.coordinate(forming_s=3).phase == FORMING
    assert job.join(3).coordinate(forming_s=3.1).world_size == 6


def test_a_node_that_comes_late_takes_part_in_the_next_round_only() -> None:
    job = Job(3, low=2, high=3).join(1, 2)
    job.coordinate(forming_s=30)
    job.publish(1, status=RUNNING, round=1).publish(2, status=RUNNING, round=1)
    assert job.join(3).coordinate().round == 1
    job.fail(2).coordinate()
    state = job.ready(1, 2).coordinate()
    assert (state.round, [p.node for p in state.participants]) == (2, ["n1", "n2", "n3"])


def test_with_more_nodes_than_the_maximum_the_first_in_slurms_order_take_part() -> None:
    state = Job(5, low=2, high=3).join(5, 4, 2, 3, 1).coordinate()
    assert [p.node for p in state.participants] == ["n1", "n2", "n3"]


def test_a_missing_node_at_the_join_timeout_closes_the_run_and_is_named() -> None:
    job = Job(3).join(1, 3)
    assert job.coordinate(forming_s=599).phase == FORMING
    job.coordinate(forming_s=600)
    assert job.closed == (FAILED, 1)
    assert "no node record of n2" in job.state.closed.reason
    assert "2 nodes left, at least 3 needed, after waiting 10 min" in job.state.closed.reason


def test_a_node_that_cannot_get_rid_of_its_workers_is_waited_for_until_the_join_timeout() -> None:
    job = Job(3, low=2).join().run().fail(3)
    job.coordinate()
    job.ready(1, 2)
    assert job.coordinate(forming_s=599).phase == FORMING
    state = job.coordinate(forming_s=600)
    assert (state.phase, [p.node for p in state.participants]) == (RUNNING, ["n1", "n2"])


def test_records_of_another_attempt_are_not_counted() -> None:
    job = Job(2).join(1, 2).publish(2, attempt="11.0")
    assert job.coordinate(forming_s=30).phase == FORMING


def test_a_silent_node_is_not_counted_as_ready() -> None:
    job = Job(2, low=1).join()
    job.silent["n2"] = 8.0
    assert [p.node for p in job.coordinate().participants] == ["n1"]


# Running


def test_a_round_ends_in_success_when_all_nodes_have_succeeded() -> None:
    job = Job(2).join().run()
    assert job.publish(1, status=SUCCEEDED).coordinate().phase == RUNNING
    job.publish(2, status=SUCCEEDED).coordinate()
    assert job.closed == (SUCCEEDED, 0)
    assert job.state.closed.reason == "all 4 ranks on 2 nodes succeeded"
    assert (job.last.outcome, job.last.reason) == (SUCCEEDED, None)


def test_one_rank_is_no_ranks() -> None:
    job = Job(1).join().run()
    job.state = replace(job.state, world_size=1)
    job.publish(1, status=SUCCEEDED).coordinate()
    assert job.state.closed is not None and job.state.closed.reason == "1 rank on 1 node succeeded"


def test_success_of_an_earlier_round_does_not_count() -> None:
    job = Job(1).join().run()
    assert job.publish(1, status=SUCCEEDED, round=0).coordinate().phase == RUNNING


def test_a_node_that_fell_silent_after_its_success_has_succeeded() -> None:
    job = Job(2).join().run().publish(2, status=SUCCEEDED)
    job.silent["n2"] = 100.0
    assert job.coordinate().phase == RUNNING
    job.publish(1, status=SUCCEEDED).coordinate()
    assert job.closed == (SUCCEEDED, 0)


def test_a_failure_ends_the_round_and_the_next_forms_when_all_are_ready_again() -> None:
    job = Job(2).join().run().fail(2)
    state = job.coordinate()
    assert (state.phase, state.round, state.restarts_used) == (FORMING, 1, 1)
    assert (job.last.outcome, job.last.failure.rank) == (FAILED, 2)
    assert job.last.reason == "rank 2 on n2 failed at step 40: exit code 1"
    assert job.ready(1).coordinate().phase == FORMING
    job.publish(2, status=READY, port=30_000).publish(1, port=31_000)
    state = job.coordinate()
    assert (state.phase, state.round, state.master.port) == (RUNNING, 2, 31_000)


def test_two_failures_at_once_cost_one_restart_and_the_lower_rank_is_recorded() -> None:
    job = Job(5).join().run().fail(4).fail(2)
    assert job.coordinate().restarts_used == 1
    assert job.last.failure.node == "n2"


def test_a_failure_that_is_observed_late_does_not_end_the_next_round() -> None:
    job = Job(2).join().run().fail(1)
    job.coordinate()
    job.fail(2).ready(1, 2)
    assert job.coordinate().round == 2
    assert job.coordinate().restarts_used == 1


def test_when_the_budget_is_used_up_the_next_failure_closes_the_run() -> None:
    job = Job(2, restarts=1).join().run().fail(1)
    job.coordinate()
    job.ready(1, 2).run().fail(2).coordinate()
    assert job.closed == (FAILED, 1)
    assert (job.state.restarts_used, job.state.round) == (1, 2)
    assert "rank 2 on n2 failed" in job.state.closed.reason
    assert "used up" in job.state.closed.reason


def test_without_a_budget_the_first_failure_closes_the_run() -> None:
    job = Job(1, restarts=0).join().run().fail(1)
    job.coordinate()
    assert job.closed == (FAILED, 1)
    assert "no restarts allowed" in job.state.closed.reason


def test_code_78_closes_the_run_whatever_the_budget() -> None:
    job = Job(2).join().run().fail(2, code=78)
    job.coordinate()
    assert job.closed == (FAILED, 78)
    assert "rank 2 on n2 ended with code 78" in job.state.closed.reason


def test_code_78_counts_also_when_another_rank_failed_before() -> None:
    job = Job(2).join().run().fail(1).fail(2, code=78)
    job.coordinate()
    assert job.closed == (FAILED, 78)


def test_code_78_that_is_observed_while_the_next_round_forms_still_closes_the_run() -> None:
    job = Job(2).join().run().fail(1)
    assert job.coordinate().phase == FORMING
    job.fail(2, code=78).coordinate()
    assert job.closed == (FAILED, 78)
    assert job.last.failure.rank == 0


def test_a_lost_node_without_a_replacement_is_waited_for_until_the_join_timeout() -> None:
    job = Job(2).join().run()
    job.silent["n2"] = 7.9
    assert job.coordinate().phase == RUNNING
    job.silent["n2"] = 8.0
    job.coordinate()
    job.ready(1)
    assert job.coordinate(forming_s=TIMING.join_timeout_s - 1).phase == FORMING
    job.coordinate(forming_s=TIMING.join_timeout_s)
    assert job.closed == (FAILED, 1)
    assert job.last.outcome == NODE_LOST
    assert [(gone.node, gone.round, gone.silent_s) for gone in job.state.lost] == [("n2", 1, 8.0)]
    assert "n2 was lost: no heartbeat of its agent for 8 s" in job.state.closed.reason
    assert "1 node left, at least 2 needed" in job.state.closed.reason


def test_a_lost_node_that_thaws_while_it_is_waited_for_takes_part_again() -> None:
    job = Job(2).join().run()
    job.silent["n2"] = 8.0
    job.coordinate()
    assert job.ready(1).coordinate(forming_s=100.0).phase == FORMING
    job.silent["n2"] = 0.0
    assert job.coordinate(forming_s=101.0).phase == FORMING, "its workers of the lost round are still being stopped"
    state = job.ready(2).coordinate(forming_s=102.0)
    assert (state.phase, state.round, state.restarts_used) == (RUNNING, 2, 1)


def test_a_node_whose_agent_is_known_to_have_ended_is_not_waited_for() -> None:
    job = Job(2).join().run()
    job.publish(2, status=LEFT, reason="its agent was killed by SIGKILL").coordinate()
    assert job.closed == (FAILED, 1)
    assert "1 node left, at least 2 needed, and nothing can replace it" in job.state.closed.reason


def test_the_others_go_on_without_a_lost_node_when_they_are_enough() -> None:
    job = Job(3, low=2).join().run()
    job.silent["n1"] = 8.0
    assert job.coordinate().phase == FORMING
    state = job.ready(2, 3).coordinate()
    assert [(p.node, p.first_rank) for p in state.participants] == [("n2", 0), ("n3", 2)]
    assert (state.master.address, state.world_size) == ("n2", 4)


def test_a_spare_takes_the_place_and_ranks_of_the_lost_node() -> None:
    job = Job(4, low=2, high=3).join().run()
    job.silent["n1"] = 8.0
    job.coordinate()
    state = job.ready(2, 3).coordinate()
    assert [(p.node, p.first_rank) for p in state.participants] == [("n4", 0), ("n2", 2), ("n3", 4)]


def test_a_node_that_comes_back_takes_part_again() -> None:
    job = Job(3, low=2).join().run()
    job.silent["n3"] = 8.0
    job.coordinate()
    job.silent["n3"] = 0.0
    assert job.ready(1, 2).coordinate().phase == FORMING, "its workers are still being stopped"
    assert job.ready(3).coordinate().world_size == 6


def test_an_agent_that_was_restarted_on_its_node_is_lost_and_takes_part_again() -> None:
    job = Job(2).join().run().publish(2, incarnation="again", status=READY, round=0)
    assert job.coordinate().phase == FORMING
    assert "n2 was lost: its agent was restarted" in job.last.reason
    assert job.ready(1).coordinate().participants[1].incarnation == "again"


def test_an_agent_that_replaces_a_killed_one_has_its_reason_and_takes_part_again() -> None:
    job = Job(2).join().run()
    killed = Predecessor(job.records["n2"].incarnation, "its agent was killed by SIGKILL", 1)
    assert job.publish(2, incarnation="again", status=READY, round=0, predecessor=killed).coordinate().phase == FORMING
    assert job.last.reason == "n2 left: its agent was killed by SIGKILL"
    assert job.ready(1).coordinate().participants[1].incarnation == "again"


def test_a_node_whose_guardian_starts_another_agent_is_waited_for() -> None:
    job = Job(2).join().run()
    job.publish(2, status=LEFT, reason="its agent was killed by SIGKILL", to_be_replaced=True).coordinate()
    assert job.ready(1).coordinate(forming_s=TIMING.join_timeout_s - 1).phase == FORMING
    assert job.last.reason == "n2 left: its agent was killed by SIGKILL"
    job.coordinate(forming_s=TIMING.join_timeout_s)
    assert job.closed == (FAILED, 1)


def test_an_old_attempts_record_read_late_loses_no_node() -> None:
    job = Job(2).join().run().publish(2, incarnation="old", attempt="11.0", status=LEFT)
    assert job.coordinate().phase == RUNNING


def test_a_node_that_left_ends_the_round_at_once_with_its_reason() -> None:
    job = Job(2).join().run().publish(2, status=LEFT, reason="its agent was killed by SIGKILL")
    job.coordinate()
    assert job.closed == (FAILED, 1)
    assert job.last.outcome == NODE_LOST
    assert "n2 left: its agent was killed by SIGKILL" in job.state.closed.reason


def test_the_next_round_waits_for_the_workers_of_a_node_that_leaves() -> None:
    job = Job(3, low=2).join()
    job.coordinate()
    job.publish(3, status=RUNNING, round=1, reason="its guardian process was killed").coordinate()
    job.publish(1, status=READY, round=1).publish(2, status=READY, round=1)
    assert job.coordinate().phase == FORMING
    assert job.publish(3, status=LEFT).coordinate().round == 2


def test_a_failure_takes_precedence_over_the_leaving_that_follows_it() -> None:
    job = Job(2, low=1).join().run().fail(2).publish(2, status=LEFT, reason="its guardian process was killed")
    job.coordinate()
    assert (job.last.outcome, job.last.failure.node) == (FAILED, "n2")


# Stopping from outside


def test_a_stop_signal_to_all_nodes_is_a_stop_with_the_signals_exit_code() -> None:
    job = Job(2).join().run().request_stop(1, 2)
    job.coordinate()
    assert job.closed == (STOPPED, 143)
    assert (job.last.outcome, job.last.reason) == (STOPPED, "SIGTERM from outside")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGHUP", 129), ("SIGQUIT", 131)])
def test_other_signals_give_their_own_exit_code(name: str, code: int) -> None:
    job = Job(1).join().run().request_stop(1, name=name)
    job.coordinate()
    assert job.closed == (STOPPED, code)


@pytest.mark.parametrize("restarts", [0, 3])
@pytest.mark.parametrize("low", [1, 2])
def test_a_stop_signal_to_one_node_and_shortly_after_to_the_others_is_a_stop(restarts: int, low: int) -> None:
    job = Job(2, low=low, restarts=restarts).join().run().request_stop(2)
    assert job.coordinate(stop_requested_s=0.0).phase == RUNNING
    assert job.coordinate(stop_requested_s=1.9).phase == RUNNING
    job.request_stop(1).coordinate(stop_requested_s=1.9)
    assert job.closed == (STOPPED, 143)
    assert job.last.outcome == STOPPED


def test_ranks_that_fail_because_a_peer_was_stopped_are_not_the_cause() -> None:
    job = Job(2).join().run().request_stop(2).fail(1)
    assert job.coordinate(stop_requested_s=0.5).phase == RUNNING
    job.request_stop(1).coordinate(stop_requested_s=0.6)
    assert job.closed == (STOPPED, 143)


def test_a_single_stopped_node_is_a_lost_node_and_its_peers_failures_are_not_the_cause() -> None:
    job = Job(3, low=2).join().run().request_stop(3).fail(1)
    state = job.coordinate(stop_requested_s=2.0)
    assert (state.phase, job.last.outcome) == (FORMING, NODE_LOST)
    assert job.last.reason == "n3 left: SIGTERM from outside"
    state = job.publish(3, status=LEFT).ready(1, 2).coordinate(stop_requested_s=3.0)
    assert [p.node for p in state.participants] == ["n1", "n2"]


def test_a_stop_signal_to_all_nodes_while_the_first_round_forms_is_a_stop() -> None:
    job = Job(3).join(1, 2)
    job.coordinate()
    job.request_stop(1, 2).coordinate()
    assert job.closed == (STOPPED, 143)
    assert job.state.history == ()


def test_a_stop_signal_to_all_nodes_before_the_next_round_keeps_the_failure_in_the_history() -> None:
    job = Job(2).join().run().fail(2)
    job.coordinate()
    job.request_stop(1, 2).coordinate(forming_s=1)
    assert job.closed == (STOPPED, 143)
    assert job.last.outcome == FAILED


def test_a_rank_that_died_of_the_stops_own_signal_is_part_of_the_stop() -> None:
    job = Job(2).join().run().fail(2, code=None, signal="SIGTERM")
    assert job.coordinate().phase == FORMING
    job.request_stop(1, 2).coordinate(forming_s=0.3, stop_requested_s=0.1)
    assert job.closed == (STOPPED, 143)
    assert job.last.outcome == STOPPED


def test_a_rank_that_died_of_sigterm_long_before_the_stop_keeps_its_place_in_the_history() -> None:
    job = Job(2).join().run().fail(2, code=None, signal="SIGTERM")
    job.coordinate()
    job.request_stop(1, 2).coordinate(forming_s=100, stop_requested_s=0.1)
    assert job.last.outcome == FAILED


def test_a_node_lost_long_before_the_stop_keeps_its_place_in_the_history() -> None:
    job = Job(4, low=3, high=3).join(1, 2, 3).run()
    job.silent["n3"] = 8.0
    assert job.coordinate().phase == FORMING
    job.request_stop(1, 2).coordinate(forming_s=100)
    assert job.closed == (STOPPED, 143)
    assert (job.last.outcome, job.last.reason[:11]) == (NODE_LOST, "n3 was lost")


def test_an_earlier_attempts_stop_is_none_of_this_one() -> None:
    job = Job(2).join().run()
    job.records["n9"] = replace(job.records["n2"], node="n9", attempt="11.0", stop_signal="SIGTERM", reason="x")
    job.publish(2, status=LEFT, reason="its agent was killed by SIGKILL").publish(1, status=LEFT, reason="y")
    job.coordinate()
    assert job.closed == (FAILED, 1)


def test_all_ranks_done_is_a_success_even_when_the_stop_arrives_with_it() -> None:
    job = Job(2).join().run().publish(1, status=SUCCEEDED).publish(2, status=SUCCEEDED).request_stop(1, 2)
    job.coordinate()
    assert job.closed == (SUCCEEDED, 0)


def test_an_unknown_signal_gives_the_exit_code_of_a_failure() -> None:
    assert [stop_code(name) for name in (None, "SIGWHAT", "SIGKILL")] == [1, 1, 137]


# Attempts and the lease


def shape(attempt: str) -> RunSpec:
    return RunSpec("r", attempt, ("n1",), 1, 1, 3)


def test_an_attempt_after_a_killed_one_goes_on_counting_rounds_with_a_fresh_budget() -> None:
    job = Job(2).join().run().fail(1)
    job.coordinate()
    job.ready(1, 2).run()
    new = begin(job.state, shape("12.1"), "n1", "j1", 77)
    assert (new.phase, new.round, new.restarts_used, new.participants) == (FORMING, 2, 0, ())
    assert new.attempts == ("12.0", "12.1")
    assert new.coordinator.term == job.state.coordinator.term + 1
    assert [entry.outcome for entry in new.history] == [FAILED, STOPPED]
    assert new.history[-1].ended_ns == 77
    assert "before attempt 12.1" in new.history[-1].reason


def test_an_attempt_after_a_closed_one_leaves_the_history_as_it_is() -> None:
    job = Job(1).join().run().publish(1, status=SUCCEEDED)
    job.coordinate()
    new = begin(job.state, shape("12.1"), "n1", "j1", 77)
    assert (new.history, new.closed) == (job.state.history, None)


def test_failures_of_an_earlier_attempts_round_do_not_count_in_the_new_one() -> None:
    job = Job(1).join().run().fail(1, code=78)
    new = begin(job.state, shape("12.1"), "n1", "j1", 77)
    first_records = {"n1": replace(first_record("n1", "j1", "12.1", 0, 1), port=1)}
    state = fold(new, Observation(first_records, {}, 0.0, 0), TIMING)
    assert (state.phase, state.round, state.restarts_used) == (RUNNING, 2, 0)


def test_a_lease_taken_changes_nothing_but_the_coordinator() -> None:
    state = Job(2).join().run().state
    taken = take_lease(state, "n2", "i2")
    assert (taken.coordinator.node, taken.coordinator.term) == ("n2", 2)
    assert replace(taken, coordinator=state.coordinator) == state


def test_a_closed_run_stays_closed() -> None:
    job = Job(1).join().run().publish(1, status=SUCCEEDED)
    closed = job.coordinate()
    job.fail(1)
    assert job.coordinate(forming_s=1e6, stop_requested_s=1e6) is closed


def test_the_state_survives_being_written_and_read() -> None:
    job = Job(3, low=2).join().run()
    job.silent["n3"] = 9.25
    job.coordinate()
    job.ready(1, 2).run().fail(1).coordinate()
    job.ready(1, 2).coordinate()
    assert State.decode(job.state.encode(), "x") == job.state
    for record in job.records.values():
        assert NodeRecord.decode(record.encode(), "x") == record


def test_only_the_newest_rounds_are_kept() -> None:
    job = Job(1, restarts=1000).join()
    for _ in range(HISTORY_KEPT + 5):
        job.run().fail(1).coordinate()
        job.ready(1)
    assert len(job.state.history) == HISTORY_KEPT
    assert job.last.round == HISTORY_KEPT + 5


# The order of ranks


def node_records(*names: str) -> list[NodeRecord]:
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
def test_a_node_that_stays_keeps_its_place_and_a_new_one_gets_the_place_of_a_lost_one(
    ready: str, previous: str, most: int, expected: str
) -> None:
    chosen = choose(node_records(*ready.split()), before(*previous.split()), most)
    assert [record.node for record in chosen] == expected.split()


def test_a_failure_is_described_with_its_step_if_there_is_one() -> None:
    assert describe(failure(1, "n1", 3)) == "rank 3 on n1 failed at step 40: exit code 1"
    assert describe(replace(failure(1, "n1", 3), step=None)) == "rank 3 on n1 failed: exit code 1"


# Anything goes


def change_something(rng: random.Random, job: Job) -> None:
    name = rng.choice(job.names)
    number = int(name[1:])
    record = job.records.get(name)
    if record is None:
        job.join(number, slots=rng.randint(1, 3))
        return
    roll = rng.random()
    mine = next((p for p in job.state.participants if p.node == name and p.incarnation == record.incarnation), None)
    if roll < 0.3:
        # As its agent would: it follows the state.
        if job.state.phase == RUNNING and mine is not None and record.round < job.state.round:
            job.publish(number, status=RUNNING, round=job.state.round, failure=None)
        elif job.state.phase == FORMING:
            job.publish(number, status=READY, port=rng.randint(1024, 65535))
    elif roll < 0.5 and mine is not None and job.state.phase == RUNNING and record.round == job.state.round:
        job.publish(number, status=SUCCEEDED)
    elif roll < 0.58 and mine is not None and record.round == job.state.round:
        job.fail(number, code=rng.choice([1, 1, 1, 78]))
    elif roll < 0.66:
        job.silent[name] = rng.choice([0.0, 0.0, 5.0, 9.0])
    elif roll < 0.68:
        job.request_stop(number)
    elif roll < 0.70:
        job.publish(number, status=LEFT, reason="gone")
    elif roll < 0.74:
        job.join(number, slots=record.slots).publish(number, incarnation=f"{rng.random()}")
    elif roll < 0.76:
        job.state = take_lease(job.state, name, record.incarnation)


def check_step(job: Job, old: State, where: str) -> None:
    new = job.state
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
        assert all(job.records[p.node].status == READY for p in new.participants), where
    ranks = [rank for p in new.participants for rank in range(p.first_rank, p.first_rank + p.slots)]
    assert ranks == list(range(new.world_size)), where
    assert [p.group_rank for p in new.participants] == list(range(len(new.participants))), where
    assert len({p.node for p in new.participants}) == len(new.participants), where


@pytest.mark.exhaustive
def test_the_state_stays_consistent_for_any_records() -> None:
    """A random walk; `look` itself checks that folding the same sight twice changes nothing."""
    closed = 0
    for seed in range(250):
        rng = random.Random(seed)
        nodes = rng.randint(1, 5)
        low = rng.randint(1, nodes)
        job = Job(nodes, low, rng.randint(low, nodes), rng.randint(0, 4))
        for step in range(80):
            change_something(rng, job)
            if not job.records:
                continue
            job.now_ns += 1
            old = job.state
            job.coordinate(rng.choice([0.0, 1.0, 31.0, 700.0]), rng.choice([0.0, 1.0, 3.0]))
            check_step(job, old, f"seed {seed}, step {step}")
        closed += job.state.phase == CLOSED
    assert closed > 100, "the walk hardly ever gets to an end"


# Agents that restart their workers themselves (the torchrun plugin)


class LateStory(Job):
    """Which nodes will come is not known (no node list), and late nodes get in at once."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(high, low=low, high=high)
        self.state = replace(self.state, expected=())

    def coordinate(self, forming_s: float = 0.0, stop_requested_s: float = 0.0, joining_s: float = 0.0) -> State:
        seen = Observation(self.records, self.silent, forming_s, self.now_ns, stop_requested_s, joining_s)
        self.state = fold(self.state, seen, replace(TIMING, rejoin=AT_ONCE))
        return self.state

    def start(self, *numbers: int) -> LateStory:
        """Form the first round, after the last call for nodes that are not known."""
        self.join(*numbers)
        assert self.coordinate(forming_s=30).phase == RUNNING
        for number in numbers:
            self.publish(number, status=RUNNING, round=1)
        return self


def test_a_late_node_waits_for_the_next_round_by_default() -> None:
    job = Job(3, low=2, high=3).join(1, 2)
    job.coordinate(forming_s=30)
    assert job.join(3).coordinate().phase == RUNNING


def test_a_late_node_that_fills_the_world_gets_in_at_once() -> None:
    job = LateStory(2, 3).start(1, 2)
    job.join(3).coordinate()
    assert (job.state.phase, job.last.outcome, job.last.reason) == (FORMING, STOPPED, "n3 joined")
    assert job.state.restarts_used == 0
    assert job.ready(1, 2).coordinate().world_size == 6


def test_late_nodes_get_in_after_a_last_call_while_the_round_goes_on() -> None:
    job = LateStory(1, 3).start(1)
    job.join(2)
    assert job.coordinate(joining_s=29.9).phase == RUNNING
    assert job.coordinate(joining_s=30).phase == FORMING


def test_a_late_node_that_died_or_left_ends_no_round() -> None:
    job = LateStory(1, 2).start(1)
    job.join(2).silent["n2"] = 8.0
    assert job.coordinate().phase == RUNNING
    job.silent["n2"] = 0.0
    assert job.publish(2, status=LEFT, reason="left").coordinate().phase == RUNNING


def test_a_spare_ends_no_round() -> None:
    job = LateStory(1, 1)
    job.names.append("n2")
    job.start(1).join(2)
    assert (job.coordinate(joining_s=99).phase, job.state.round) == (RUNNING, 1)


def test_where_late_nodes_get_in_at_once_only_the_first_round_waits_for_the_unknown() -> None:
    job = LateStory(1, 2).start(1, 2)
    job.silent["n2"] = 8.0
    assert job.coordinate().phase == FORMING
    assert [p.node for p in job.ready(1).coordinate().participants] == ["n1"]


def test_a_node_that_is_ready_although_its_round_runs_ends_the_round_for_all() -> None:
    job = Job(2).join().run().ready(2)
    assert (job.coordinate().phase, job.last.outcome) == (FORMING, FAILED)
    assert job.last.reason == "n2 requested the next round"
    assert job.ready(1).coordinate().round == 2


def test_whoever_finishes_the_run_ends_its_round_the_same_way() -> None:
    job = Job(1).join().run()
    state = finish(job.state, FAILED, "no restarts left", 1, 7)
    assert (state.phase, state.closed.reason, state.history[-1].outcome) == (CLOSED, "no restarts left", FAILED)
    assert state.history[-1].ended_ns == 7


# A rank hangs


def test_a_hang_ends_the_round_only_when_all_nodes_have_collected_stacks() -> None:
    job = Job(3).join().run().hang(2)
    state = job.coordinate()
    assert (state.phase, state.hang.node) == (RUNNING, "n2")
    assert job.collect_stacks(1, 2).coordinate() is state
    state = job.collect_stacks(3).coordinate()
    assert (state.phase, state.restarts_used, state.hang) == (FORMING, 1, None)
    assert job.last.failure.kind == "hang"
    assert job.last.reason == "the round hung at step 40 (rank 2 on n2: no heartbeat for 30.0 s)"


def test_a_request_for_stacks_is_passed_on_once_while_its_round_runs_and_changes_nothing_else() -> None:
    job = Job(2).join().run()
    before, attempt = job.state, job.state.attempt
    for old in (StacksFile(attempt, 0, 5), StacksFile("another", 1, 5)):
        job.stacks_file = old
        assert job.coordinate() is before
    job.stacks_file = StacksFile(attempt, 1, 7)
    assert job.coordinate() == replace(before, stacks_request=job.stacks_file)
    assert job.coordinate() is job.state
    job.stacks_file = StacksFile(attempt, 1, 8)
    assert job.coordinate().stacks_request.time_ns == 8
    job.fail(1)
    assert job.coordinate().phase == FORMING


def test_a_node_that_cannot_show_its_ranks_delays_the_stop_by_a_bounded_time() -> None:
    job = Job(3).join().run().hang(2)
    job.coordinate()
    job.collect_stacks(1, 2)
    assert job.coordinate(hanging_s=TIMING.stack_collection_s - 0.1).phase == RUNNING
    assert job.coordinate(hanging_s=TIMING.stack_collection_s).phase == FORMING


def test_the_round_does_not_wait_for_the_stacks_of_a_node_that_is_lost_or_leaving() -> None:
    job = Job(3).join().run().hang(2)
    job.coordinate()
    job.collect_stacks(1, 2).publish(3, reason="its disk is full", status=LEFT)
    job.silent["n1"] = 9.0
    assert job.coordinate().phase != RUNNING
    assert job.last.failure.kind == "hang", "both nodes were there when the rank hung"


def test_a_silent_node_is_lost_before_a_rank_that_waited_for_it_counts_as_hung() -> None:
    job = Job(3).join().run()
    job.silent["n3"] = 2.0
    job.hang(1).coordinate()
    job.silent["n3"] = 7.9
    assert job.collect_stacks(1, 2).coordinate(hanging_s=5.9).phase == RUNNING
    job.silent["n3"] = 8.0
    job.coordinate(hanging_s=6.0)
    assert (job.last.outcome, job.last.failure) == (NODE_LOST, None)
    assert job.last.reason == "n3 was lost: no heartbeat of its agent for 8 s"
    assert [lost.node for lost in job.state.lost] == ["n3"]


def test_a_silent_node_is_waited_for_although_the_time_for_showing_is_over() -> None:
    job = Job(2).join().run().hang(1)
    job.timing = replace(TIMING, node_timeout_s=60)
    job.coordinate()
    job.collect_stacks(1)
    for seconds in (TIMING.stack_collection_s, 40.0, 57.0):
        job.silent["n2"] = seconds + 2
        assert job.coordinate(hanging_s=seconds).phase == RUNNING
    job.silent["n2"] = 1.0
    assert job.coordinate(hanging_s=58.0).phase == FORMING, "it has only been slow"
    assert job.last.failure.kind == "hang"


def test_a_node_whose_agent_was_restarted_before_it_collected_stacks_is_lost_first() -> None:
    job = Job(2).join().run().hang(1)
    job.coordinate()
    job.collect_stacks(1).publish(2, incarnation="i9", status=READY, round=0)
    job.coordinate()
    assert job.last.outcome == NODE_LOST


def test_what_fails_while_stacks_are_collected_is_not_the_first_failure() -> None:
    job = Job(2).join().run().hang(2)
    job.coordinate()
    assert job.fail(1).coordinate().phase == RUNNING
    job.collect_stacks(1, 2).coordinate()
    assert job.last.failure.kind == "hang"


def test_a_failure_that_is_observed_together_with_a_hang_explains_it() -> None:
    job = Job(2).join().run().hang(2)
    assert job.fail(1).coordinate().phase == FORMING
    assert job.last.failure.kind == "exit"


def test_the_others_still_collect_stacks_when_the_hung_ranks_agent_could_not_wait() -> None:
    job = Job(2).join().run().hang(2).collect_stacks(2)
    hang = job.records["n2"].hang
    state = job.publish(2, status=FAILED, failure=hang.failure()).coordinate()
    assert (state.phase, state.hang) == (RUNNING, hang)
    assert job.collect_stacks(1).coordinate().phase == FORMING
    assert job.last.failure.kind == "hang"


def test_a_hang_of_an_earlier_round_is_old_news() -> None:
    job = Job(2).join().run().hang(2)
    job.coordinate()
    job.collect_stacks(1, 2).coordinate()
    assert job.ready(1, 2).run().coordinate().hang is None


def test_a_program_that_ends_well_while_its_stacks_are_collected_has_succeeded() -> None:
    job = Job(2).join().run().hang(2)
    job.coordinate()
    assert job.publish(1, status=SUCCEEDED).publish(2, status=SUCCEEDED).coordinate().closed.outcome == SUCCEEDED


def test_time_outs_are_learned_from_the_slowest_rank_of_a_round_and_inherited_by_a_requeue() -> None:
    job = Job(2).join().run()
    for number, seconds in ((1, 200.0), (2, 500.0)):
        longest = Longest(Spans(heartbeat_s=seconds, sections={"step": seconds / 10}))
        job.publish(number, vitals=Vitals(1, longest, (), 0))
    state = job.fail(1).coordinate()
    assert state.learned.timeouts.heartbeat_s == 2500.0
    assert dict(state.learned.timeouts.sections) == {"step": 250.0}
    again = begin(state, RunSpec("r", "12.1", ("n1", "n2"), 2, 2, 3), "n1", "i9", 0)
    assert State.decode(again.encode(), "state").learned == state.learned


def test_time_outs_are_not_learned_from_a_record_of_another_round() -> None:
    job = Job(2).join().run()
    job.publish(1, vitals=Vitals(7, Longest(Spans(heartbeat_s=20.0)), (), 0))
    assert job.fail(1).coordinate().learned is None
