"""The agent as histories: what happens to it, and what it then does, in order."""

from __future__ import annotations

import errno
import random
import signal
from dataclasses import replace

import pytest
from agent_histories import (
    CONT,
    HANG_ELSEWHERE,
    INT,
    KILL,
    TERM,
    USR1,
    Agent,
    closed,
    history,
    kinds,
    running,
    state,
)

from ftslurm.agent.actions import (
    CollectStacks,
    Compare,
    Exit,
    KillLeftovers,
    Log,
    Prepare,
    Publish,
    RecordFailure,
    RecordRound,
    Signal,
    Spawn,
    StartStandbys,
    WorkerEnd,
)
from ftslurm.agent.standby_slots import STANDBY_DEATHS
from ftslurm.agent.transitions import (
    FAREWELL_S,
    GONE,
    IDLE,
    PREPARING,
    STANDBY_AFTER_S,
    STANDBY_AFTER_STEP_S,
    STANDBY_AGAIN_S,
    STOPPING,
    SWEEPING,
)
from ftslurm.records.state import (
    CLOSED,
    FAILED,
    FORMING,
    LEFT,
    NODE_LOST,
    READY,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    Failure,
    Lease,
    Participant,
    State,
)
from ftslurm.records.stop import Stop, StopRequest
from ftslurm.terminal import ERROR, WARNING

# Starting


def test_an_agent_without_a_part_in_the_round_does_nothing() -> None:
    agent = Agent()
    assert agent.reads(state(phase=FORMING, round_=0)) == []
    assert agent.reads(state(participants=state().participants[:1])) == []
    assert agent.machine.phase == IDLE


def test_a_round_is_prepared_then_its_workers_are_started_and_the_node_runs() -> None:
    agent = Agent()
    (prepare,) = agent.reads(state(3))
    assert isinstance(prepare, Prepare)
    part = prepare.assignment
    assert (part.round, part.attempt, part.group_rank, part.group_world_size) == (3, "12.0", 1, 2)
    assert (part.first_rank, part.slots, part.world_size) == (2, 2, 4)
    assert (part.restart_count, part.max_restarts, part.master.port) == (2, 3, 20_000)
    assert kinds(agent.prepared(3)) == ["Publish", "Spawn", "RecordRound"]
    assert (agent.published.status, agent.published.round) == (RUNNING, 3)
    assert (agent.record.outcome, agent.record.over) == (RUNNING, False)


def test_the_same_state_read_twice_starts_nothing_twice() -> None:
    agent = running()
    assert agent.reads(state()) == []
    assert agent.reads(state(coordinator=Lease("n1", "i2", 2))) == []


def test_another_incarnations_part_is_not_taken() -> None:
    part = Participant("n2", "other", 2, 2, 1)
    assert Agent().reads(state(participants=(state().participants[0], part))) == []


def test_directories_that_cannot_be_made_are_a_failure_to_start() -> None:
    agent = Agent()
    agent.reads(state())
    actions = agent.prepared(problem="cannot make the round's directories: disk full")
    assert kinds(actions) == ["Publish", "Log", "KillLeftovers"]
    assert (agent.published.status, agent.published.failure.kind, agent.published.failure.rank) == (FAILED, "spawn", 2)
    assert "disk full" in agent.published.failure.message


def test_the_answer_for_another_round_is_not_for_this_one() -> None:
    agent = Agent()
    agent.reads(state(2))
    assert agent.prepared(1) == []
    assert agent.machine.phase == PREPARING


@pytest.mark.parametrize("problem", [None, "disk full"])
@pytest.mark.parametrize("newer", [state(phase=FORMING), state(2), closed(FAILED, "n1 was lost", 1)])
def test_when_the_state_moves_on_while_directories_are_made_nothing_is_started(
    newer: State, problem: str | None
) -> None:
    agent = Agent()
    agent.reads(state())
    assert agent.reads(newer) == []
    assert kinds(agent.prepared(problem=problem)) == ["KillLeftovers"]
    actions = agent.swept()
    assert not any(isinstance(action, Spawn) for action in agent.log)
    assert agent.published.failure is None
    if newer.phase == RUNNING:
        assert actions[-1] == Prepare(replace(actions[-1].assignment, round=2))


def test_a_first_worker_that_cannot_be_started_fails_the_round() -> None:
    agent = Agent()
    agent.cannot_start = 0
    agent.reads(state())
    actions = agent.prepared()
    assert kinds(actions) == ["Publish", "Spawn", "Publish", "Log", "KillLeftovers", "RecordRound"]
    assert (agent.published.status, agent.published.failure.rank, agent.published.failure.kind) == (FAILED, 2, "spawn")


def test_when_the_second_worker_cannot_be_started_the_first_is_stopped_and_the_record_ends_with_the_failure() -> None:
    agent = Agent()
    agent.cannot_start = 1
    agent.reads(state())
    actions = agent.prepared()
    assert Signal((0,), TERM) in actions
    assert (agent.published.status, agent.published.failure.rank, agent.published.failure.local_rank) == (FAILED, 3, 1)
    assert kinds(agent.ends(0, by=TERM)) == ["RecordFailure", "KillLeftovers"]
    agent.swept()
    assert (agent.record.outcome, agent.record.failed, agent.record.stopped) == (FAILED, {1}, {0})


@pytest.mark.parametrize(
    ("number", "blame"),
    [(errno.EMFILE, None), (errno.EAGAIN, None), (errno.EDQUOT, None), (errno.ENOSPC, "perhaps"), (None, "perhaps")],
)
def test_a_worker_that_cannot_be_started_for_the_users_own_limit_is_no_fault_of_its_node(
    number: int | None, blame: str | None
) -> None:
    agent = Agent()
    agent.cannot_start, agent.errno = 0, number
    agent.reads(state())
    agent.prepared()
    assert agent.published.failure.blame == blame


# Ending well


def test_a_node_has_succeeded_when_its_last_worker_ends_with_0() -> None:
    agent = running()
    assert agent.ends(1) == []
    assert kinds(agent.ends(0)) == ["Publish", "RecordRound"]
    assert (agent.published.status, agent.record.outcome, agent.record.over) == (SUCCEEDED, SUCCEEDED, True)


def test_when_all_have_succeeded_the_agent_sweeps_and_leaves_with_0() -> None:
    agent = running()
    agent.ends(0)
    agent.ends(1)
    assert kinds(agent.reads(closed(SUCCEEDED, "all 4 ranks succeeded", 0))) == ["KillLeftovers"]
    actions = agent.swept()
    assert (agent.record.outcome, agent.record.stop_reason, agent.record.stop_ns) == (SUCCEEDED, None, None)
    assert actions[-1] == Exit(0)
    assert (agent.published.status, agent.published.reason) == (LEFT, None)
    assert agent.machine.phase == GONE


def test_a_node_that_has_succeeded_runs_again_when_another_one_failed() -> None:
    agent = running()
    agent.ends(0)
    agent.ends(1)
    assert kinds(agent.reads(state(phase=FORMING))) == ["KillLeftovers"]
    assert agent.swept()[-1] == Publish(READY, 1, None, None, None, new_port=True)
    assert isinstance(agent.reads(state(2))[0], Prepare)


# Failing


def test_a_rank_raises_and_the_others_get_term_then_kill_then_all_is_swept_and_the_next_round_begins() -> None:
    agent = running(grace_s=15)
    actions = agent.ends(1, code=1)
    assert kinds(actions) == ["Publish", "Log", "Signal", "RecordFailure"]
    assert actions[2:] == [Signal((0,), TERM), RecordFailure(1, stopped=False)]
    assert (agent.published.status, agent.published.failure.rank) == (FAILED, 3)
    assert actions[1] == Log("round 1: rank 3 failed at step 7: boom", ERROR)
    assert agent.machine.deadline == agent.seconds + 15
    assert agent.reads(state(phase=FORMING)) == []
    assert agent.tick(13.9) == []
    assert agent.tick(0.1) == [Signal((0,), KILL)]
    assert agent.machine.deadline is None
    assert agent.ends(0, by=KILL) == [RecordFailure(0, stopped=True), KillLeftovers()]
    actions = agent.swept()
    assert kinds(actions) == ["RecordRound", "ForgetRound", "Publish"]
    assert actions[2].new_port
    assert (agent.published.status, agent.published.failure.rank) == (READY, 3), (
        "the failure stands until the next round"
    )
    record = agent.record
    assert (record.outcome, record.stop_reason, record.over) == (FAILED, "rank 3 on n2 failed", True)
    assert (record.failed, record.stopped, record.killed) == ({1}, {0}, {0})
    assert isinstance(agent.reads(state(2))[0], Prepare)
    agent.prepared(2)
    assert (agent.published.status, agent.published.round, agent.published.failure) == (RUNNING, 2, None)


def test_a_sibling_that_obeys_term_is_stopped_and_not_failed() -> None:
    agent = running()
    agent.ends(0, code=1)
    assert kinds(agent.ends(1, by=TERM)) == ["RecordFailure", "KillLeftovers"]
    agent.swept()
    assert (agent.record.failed, agent.record.stopped, agent.record.killed) == ({0}, {1}, set())


def test_a_sibling_that_ended_before_it_was_sent_a_signal_has_finished() -> None:
    agent = running()
    agent.ends(0, code=1)
    agent.ends(1, by_itself=True)
    agent.swept()
    assert (agent.record.failed, agent.record.stopped) == ({0}, set())


@pytest.mark.parametrize("end", [{"code": 0}, {"code": 1}, {"code": 143}, {"by": TERM}, {"by": signal.SIGABRT}])
def test_however_a_stopped_worker_ends_it_is_not_a_failure(end: dict[str, int]) -> None:
    agent = running()
    agent.reads(state(phase=FORMING, history=(history(1, FAILED, "rank 0 on n1 failed"),)))
    agent.ends(0, **end)
    agent.ends(1, **end)
    agent.swept()
    assert (agent.record.outcome, agent.record.failed, agent.record.stopped) == (STOPPED, set(), {0, 1})
    assert agent.record.stop_reason == "rank 0 on n1 failed"
    assert agent.published.failure is None


def test_a_rank_that_failed_before_the_stop_but_ended_after_it_has_failed() -> None:
    agent = running()
    agent.ends(0, code=1)
    # Its traceback was recorded 3 seconds ago, before the other one ended; its teardown took until now.
    assert kinds(agent.ends(1, code=1, recorded_ago_s=3)) == ["RecordFailure", "KillLeftovers"]
    agent.swept()
    assert (agent.record.failed, agent.record.stopped) == ({0, 1}, set())
    assert agent.published.failure.rank == 2, "the first failure stays the first"


def test_a_rank_that_the_kernel_ended_before_the_stop_has_failed_although_the_agent_reaps_it_later() -> None:
    agent = running()
    agent.ends(0, code=1)
    agent.ends(1, by=KILL, ago_s=3)
    agent.swept()
    assert (agent.record.failed, agent.record.stopped) == ({0, 1}, set())


def test_a_rank_that_failed_before_a_stop_from_elsewhere_is_published() -> None:
    agent = running()
    agent.reads(state(phase=FORMING))
    actions = agent.ends(1, code=1, recorded_ago_s=3)
    assert kinds(actions) == ["Publish", "Log", "RecordFailure"]
    assert (agent.published.status, agent.published.failure.rank) == (FAILED, 3)


def test_one_exit_0_and_then_a_failure_is_a_failure() -> None:
    agent = running()
    agent.ends(0)
    assert kinds(agent.ends(1, code=1)) == ["Publish", "Log", "KillLeftovers", "RecordFailure"]
    agent.swept()
    assert (agent.record.outcome, agent.record.stop_reason) == (FAILED, None)


def test_the_end_of_a_worker_counts_once() -> None:
    agent = running()
    agent.ends(0, code=1)
    assert agent.ends(0, code=1) == []


def test_a_long_message_is_cut_on_the_terminal() -> None:
    agent = running()
    long = Failure(1, "n2", 2, 0, 5, "exception", 1, None, "x" * 500, None)
    log = agent.done(agent.machine.on_worker_ended(WorkerEnd(0, 1, None, 5, 5, long), agent.now()))[1]
    assert isinstance(log, Log)
    assert len(log.text) < 250
    assert agent.published.failure == long


# The others


def test_a_round_that_ended_elsewhere_is_stopped_here_with_its_reason() -> None:
    agent = running()
    over = state(phase=FORMING, history=(history(1, NODE_LOST, "n1 was lost"),))
    assert agent.reads(over) == [Signal((0, 1), TERM)]
    agent.ends(0, by=TERM)
    assert kinds(agent.ends(1, by=TERM)) == ["RecordFailure", "KillLeftovers"]
    agent.swept()
    assert (agent.record.outcome, agent.record.stop_reason) == (STOPPED, "n1 was lost")
    assert agent.record.stop_ns is not None


def test_a_run_that_is_closed_while_workers_run_is_stopped_and_left_with_its_code() -> None:
    agent = running()
    assert agent.reads(closed(FAILED, "all restarts are used up", 1)) == [Signal((0, 1), TERM)]
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    assert agent.swept()[-1] == Exit(1)
    assert agent.record.stop_reason == "all restarts are used up"


def test_a_run_that_is_closed_during_a_stop_is_left_after_it() -> None:
    agent = running()
    agent.ends(0, code=78)
    assert agent.reads(closed(FAILED, "code 78", 78)) == []
    assert agent.machine.phase == STOPPING
    agent.ends(1, by=TERM)
    assert agent.reads(closed(FAILED, "code 78", 78)) == []
    assert agent.machine.phase == SWEEPING
    assert agent.swept()[-1] == Exit(78)


def test_an_idle_agent_leaves_a_closed_run_with_its_code() -> None:
    agent = Agent()
    actions = agent.reads(closed(FAILED, "no node record of n1", 1, round_=1))
    assert kinds(actions) == ["Publish", "Exit"]
    assert actions[1] == Exit(1)


def test_another_attempts_closed_run_is_not_this_ones_end() -> None:
    assert Agent().reads(replace(closed(SUCCEEDED, "done", 0), attempt="11.0")) == []


def test_the_rank_that_failed_first_is_published_though_another_ones_process_ended_first() -> None:
    agent = running()
    agent.ends(1, code=1)
    assert agent.published is not None
    assert agent.published.failure is not None
    assert agent.published.failure.rank == 3
    agent.ends(0, code=78, recorded_ago_s=5, ago_s=5)
    assert agent.published.failure.rank == 2
    assert agent.published.failure.exit_code == 78
    agent.swept()
    assert agent.record.failed == {0, 1}


def test_a_next_round_that_is_read_before_the_end_of_this_one_stops_this_one_first() -> None:
    agent = running()
    assert agent.reads(state(2)) == [Signal((0, 1), TERM)]
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    actions = agent.swept()
    assert kinds(actions) == ["RecordRound", "ForgetRound", "Publish", "Prepare"]
    assert actions[-1].assignment.round == 2


# From outside


def test_sigterm_stops_the_workers_is_published_and_waits_for_the_verdict() -> None:
    agent = running(grace_s=60, kill_wait_s=18)
    actions = agent.signalled(TERM)
    assert kinds(actions) == ["Log", "Publish", "CollectStacks", "Signal"]
    assert (agent.published.status, agent.published.reason, agent.published.stop_signal) == (
        RUNNING,
        "SIGTERM from outside",
        "SIGTERM",
    )
    assert agent.machine.deadline == agent.seconds + 18
    agent.ends(0, by=TERM)
    agent.ends(1, code=0)
    agent.swept()
    assert (agent.published.status, agent.published.stop_signal) == (LEFT, "SIGTERM")
    assert (agent.record.outcome, agent.record.stop_reason) == (STOPPED, "SIGTERM from outside")
    assert agent.reads(closed(STOPPED, "SIGTERM from outside", 143))[-1] == Exit(143)


def test_without_a_verdict_the_agent_leaves_with_the_signals_code() -> None:
    agent = Agent()
    assert kinds(agent.signalled(INT)) == ["Log", "Publish", "Publish"]
    assert agent.published.status == LEFT
    assert agent.tick(FAREWELL_S / 2) == []
    assert agent.tick(FAREWELL_S) == [Exit(130)]


def test_an_agent_that_has_left_takes_no_part_any_more() -> None:
    agent = Agent()
    agent.signalled(TERM)
    assert agent.reads(state()) == []
    assert agent.machine.phase == GONE


def test_slurms_second_sigterm_changes_nothing() -> None:
    agent = running()
    agent.signalled(TERM)
    deadline = agent.machine.deadline
    assert agent.signalled(TERM) == []
    assert agent.machine.deadline == deadline


def test_a_second_ctrl_c_kills_at_once() -> None:
    agent = running()
    agent.signalled(INT)
    assert agent.signalled(INT) == [Log("SIGINT again: the ranks are killed now", WARNING), Signal((0, 1), KILL)]
    agent.ends(0, by=KILL)
    agent.ends(1, by=KILL)
    agent.swept()
    assert agent.record.killed == {0, 1}


@pytest.mark.parametrize(("grace_s", "left_s"), [(60.0, 18.0), (15.0, 12.0)])
def test_sigterm_during_a_stop_shortens_what_is_left_of_the_grace_to_what_slurm_allows(
    grace_s: float, left_s: float
) -> None:
    agent = running(grace_s=grace_s, kill_wait_s=18)
    agent.ends(0, code=1)
    agent.tick(2)
    assert kinds(agent.signalled(TERM)) == ["Log", "Publish"]
    assert agent.machine.deadline == agent.seconds + left_s
    assert (agent.published.status, agent.published.failure.rank, agent.published.stop_signal) == (FAILED, 2, "SIGTERM")
    agent.ends(1, by=TERM)
    agent.swept()
    assert (agent.published.status, agent.published.failure.rank) == (LEFT, 2)
    assert agent.record.stop_reason == "rank 2 on n2 failed"


def test_sigterm_while_directories_are_made_starts_nothing() -> None:
    agent = Agent()
    agent.reads(state())
    assert kinds(agent.signalled(TERM)) == ["Log", "Publish", "KillLeftovers"]
    agent.swept()
    assert (agent.published.status, agent.published.failure) == (LEFT, None)
    assert agent.prepared() == []


def test_a_signal_whose_ranks_perhaps_take_notice_waits_a_second_for_the_state() -> None:
    agent = running()
    assert agent.signalled(TERM, stoppable=None) == []
    assert agent.signalled(TERM, stoppable=None) == []
    assert agent.machine.deadline == agent.seconds
    assert kinds(agent.tick(0)) == ["Log", "Publish", "CollectStacks", "Signal"]
    assert agent.published.stop_signal == "SIGTERM"


def test_it_waits_no_longer_than_slurm_allows() -> None:
    agent = running(kill_wait_s=1.2)
    agent.signalled(TERM, stoppable=None)
    assert agent.machine.deadline == agent.seconds + 0.3


def test_it_lets_the_ranks_save_when_those_of_another_node_take_notice() -> None:
    agent = running(kill_wait_s=18)
    agent.signalled(TERM, stoppable=None)
    received_s = agent.seconds
    assert kinds(agent.reads(state(polled="12.0"))) == ["Log", "Publish"]
    assert agent.published.stop_request.signal == "SIGTERM"
    assert (agent.published.stop_signal, agent.machine.phase) == (None, RUNNING)
    # Just before the end of the grace, the stacks of ranks that have not left are collected.
    assert agent.machine.deadline == received_s + 15 - 3
    assert agent.machine.orderly_stop.kill_at == received_s + 15
    assert kinds(agent.tick(20)) == ["Publish", "CollectStacks", "Signal", "Signal"]


@pytest.mark.parametrize("what", ["failure", "interrupt", "over"])
def test_it_stops_the_ranks_when_waiting_is_of_no_use(what: str) -> None:
    agent = running(kill_wait_s=60)
    agent.signalled(TERM, stoppable=None)
    if what == "failure":
        agent.ends(0, by=TERM)
    elif what == "interrupt":
        agent.signalled(INT)
    else:
        agent.reads(state(2, FORMING, polled="12.0"))
    assert (agent.published.stop_signal, agent.machine.phase) == ("SIGTERM", STOPPING)
    assert agent.log.count(Signal((0, 1), TERM)) == 1


def test_a_second_sigterm_changes_nothing_while_the_ranks_agree_and_a_second_ctrl_c_stops_them() -> None:
    agent = running(kill_wait_s=60)
    assert "once more: without waiting for them" in agent.signalled(INT, stoppable=True)[0].text
    deadline = agent.machine.deadline
    assert agent.signalled(TERM, stoppable=True) == []
    assert agent.machine.deadline == deadline
    assert kinds(agent.signalled(INT, stoppable=True)) == ["Log", "Publish", "CollectStacks", "Signal"]
    assert agent.published.stop_signal == "SIGINT"
    assert agent.signalled(INT, stoppable=True)[-1] == Signal((0, 1), KILL)


def test_a_worker_that_fails_after_it_left_for_a_stop_leaves_the_others_their_grace() -> None:
    agent = running(kill_wait_s=18)
    agent.signalled(TERM, stoppable=True)
    agent.reads(state(stop=Stop("signal", "SIGTERM from outside", "n1", 5, 1, "SIGTERM", 15.0, 1, 40, True)))
    assert kinds(agent.ends(0, code=1, leaving=True)) == ["Publish", "Log", "RecordFailure"]
    assert (agent.published.status, agent.machine.phase) == (FAILED, RUNNING)
    assert kinds(agent.ends(1, code=0)) == ["KillLeftovers"]
    assert agent.published.failure.local_rank == 0


def test_what_cannot_be_killed_keeps_an_agent_only_as_long_as_it_has_reason_to_stay() -> None:
    agent = running()
    agent.reads(state(phase=FORMING))
    agent.tick(20)
    assert kinds(agent.done(agent.machine.on_unkillable("process 7", agent.now()))) == ["Log"]
    assert agent.machine.phase == STOPPING
    agent.signalled(TERM)
    assert agent.done(agent.machine.on_unkillable("process 7", agent.now()))[-1] == Exit(143)
    assert agent.published.status == LEFT


def test_sigterm_after_the_last_worker_succeeded_loses_nothing() -> None:
    agent = running()
    agent.ends(0)
    agent.ends(1)
    assert kinds(agent.signalled(TERM)) == ["Log", "Publish", "KillLeftovers"]
    assert agent.log[-2].status == SUCCEEDED
    agent.swept()
    assert agent.record.outcome == SUCCEEDED


def test_usr1_goes_to_the_workers_that_are_alive() -> None:
    agent = running()
    assert agent.signalled(USR1) == [Signal((0, 1), USR1)]
    agent.ends(0)
    assert agent.signalled(signal.SIGUSR2) == [Signal((1,), signal.SIGUSR2)]
    agent.ends(1)
    assert agent.signalled(USR1) == []
    assert Agent().signalled(USR1) == []


# Losing ground


def test_a_superseded_agent_stops_everything_and_leaves_with_1() -> None:
    agent = running()
    actions = agent.evicted("attempt 12.1 has taken over this run")
    assert kinds(actions) == ["Publish", "Signal"]
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    agent.swept()
    assert (agent.published.status, agent.published.stop_signal) == (LEFT, None)
    assert agent.record.stop_reason == "attempt 12.1 has taken over this run"
    assert agent.tick(0) == [Exit(1)]


def test_a_state_of_the_next_attempt_stops_the_workers() -> None:
    agent = running()
    assert agent.reads(replace(state(2), attempt="12.1")) == [Signal((0, 1), TERM)]
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    agent.swept()
    assert agent.record.stop_reason == "attempt 12.1 has taken over"
    assert agent.machine.phase == IDLE


def test_an_agent_that_is_refused_before_it_began_leaves_at_once() -> None:
    agent = Agent()
    agent.evicted("the run /runs/r is held by job 12")
    assert agent.tick(0) == [Exit(1)]


def test_an_eviction_while_leaving_changes_nothing() -> None:
    agent = running()
    agent.signalled(TERM)
    assert agent.evicted("its guardian process was killed") == []
    assert agent.published.reason == "SIGTERM from outside"


# A rank hangs


def test_a_hang_is_published_and_its_stacks_collected_and_it_is_killed_only_when_the_coordinator_decides() -> None:
    agent = running()
    assert kinds(agent.hangs(1)) == ["Publish", "Log", "CollectStacks"]
    assert (agent.published.status, agent.published.hang.rank, agent.published.stacks_collected) == (RUNNING, 3, 0)
    assert agent.reads(state(hang=agent.published.hang)) == []
    assert kinds(agent.stacks_collected()) == ["Publish"]
    assert (agent.published.status, agent.published.stacks_collected) == (RUNNING, 1)
    actions = agent.reads(state(phase=FORMING))
    assert actions[1:] == [Signal((1,), CONT), Signal((1,), KILL), Signal((0,), TERM)]
    assert (agent.published.status, agent.published.failure.kind, agent.published.failure.rank) == (FAILED, "hang", 3)


def test_stacks_are_collected_once_when_a_rank_hangs_elsewhere() -> None:
    agent = running()
    assert agent.reads(state(hang=HANG_ELSEWHERE)) == [CollectStacks((0, 1))]
    assert agent.reads(state(hang=HANG_ELSEWHERE)) == []
    agent.stacks_collected()
    assert agent.reads(state(phase=FORMING)) == [Signal((0, 1), TERM)]
    assert agent.published.failure is None


def test_a_second_hung_rank_is_ended_as_the_first_one_and_reported_once() -> None:
    agent = running()
    agent.hangs(1)
    assert agent.hangs(0, TERM) == []
    assert agent.hangs(0) == []
    actions = agent.reads(state(phase=FORMING))
    assert actions[1:] == [Signal((0,), CONT), Signal((0,), TERM), Signal((1,), CONT), Signal((1,), KILL)]


def test_a_rank_that_fails_while_stacks_are_collected_stops_no_other_rank_before_that_is_done() -> None:
    agent = running()
    agent.reads(state(hang=HANG_ELSEWHERE))
    assert kinds(agent.ends(1, code=1)) == ["Publish", "Log", "RecordFailure"]
    assert agent.machine.phase == RUNNING
    assert agent.stacks_collected()[-1] == Signal((0,), TERM)


def test_when_all_fail_while_stacks_are_collected_the_round_is_swept() -> None:
    agent = running()
    agent.reads(state(hang=HANG_ELSEWHERE))
    agent.ends(1, code=1)
    assert kinds(agent.ends(0, code=1)) == ["KillLeftovers", "RecordFailure"]


def test_a_hang_without_a_decision_ends_the_round_on_its_node() -> None:
    agent = running()
    agent.hangs(1)
    agent.stacks_collected()
    assert agent.tick(5) == []
    assert Signal((1,), KILL) in agent.tick(15)
    assert agent.published.status == FAILED


def test_a_hang_of_a_worker_that_is_being_stopped_changes_nothing() -> None:
    agent = running()
    agent.ends(0, code=1)
    assert agent.hangs(1) == []


def test_the_next_round_has_no_hang_of_the_last_one() -> None:
    agent = running()
    agent.hangs(1)
    agent.stacks_collected()
    agent.reads(state(phase=FORMING))
    agent.ends(0, by=TERM)
    agent.ends(1, by=KILL)
    agent.swept()
    agent.reads(state(2))
    assert agent.prepared(2)[0].hang is None


# What a failure is compared by


def failing() -> tuple[Agent, Failure]:
    """An agent one of whose ranks failed at its start, by nothing but an exit code; all is swept."""
    agent = running()
    actions = agent.ends(0, code=1, at_start=True)
    (failure,) = [action.failure for action in actions if isinstance(action, Compare)]
    agent.reads(state(phase=FORMING))
    agent.ends(1, by=TERM)
    assert agent.swept() == []
    return agent, failure


def test_a_node_is_ready_for_the_next_round_when_the_failures_signature_is_known() -> None:
    agent, failure = failing()
    assert (agent.published.status, agent.machine.phase) == (FAILED, SWEEPING)
    agent.compared(failure, "2b1c")
    assert (agent.published.status, agent.machine.phase) == (READY, IDLE)
    assert agent.published.failure == replace(failure, signature="2b1c")


def test_the_rounds_last_record_still_has_its_workers_when_the_signature_comes_late() -> None:
    agent, failure = failing()
    assert "ForgetRound" not in kinds(agent.log)
    assert kinds(agent.compared(failure, "2b1c"))[:2] == ["RecordRound", "ForgetRound"]


def test_a_signature_that_is_found_while_ranks_are_being_stopped_is_published_at_once() -> None:
    agent = running()
    agent.ends(0, code=1, at_start=True)
    failure = agent.published.failure
    assert failure is not None
    assert kinds(agent.compared(failure, "2b1c")) == ["Publish"]
    agent.ends(1, by=TERM)
    agent.swept()
    assert agent.published.status == READY
    assert agent.published.failure == replace(failure, signature="2b1c")


def test_a_failure_without_a_signature_delays_no_round() -> None:
    agent, failure = failing()
    agent.compared(failure, None)
    assert (agent.published.status, agent.published.failure) == (READY, failure)


@pytest.mark.parametrize("code", [None, 1])
def test_only_a_failure_at_start_without_a_signature_is_compared(code: int | None) -> None:
    agent = running()
    actions = agent.ends(0, code=1) if code else agent.ends(0, by=KILL)
    assert "Compare" not in kinds(actions)
    agent.ends(1, by=TERM)
    agent.swept()
    assert agent.published.status == READY


def test_the_signature_of_another_failure_than_the_first_one_is_ignored() -> None:
    agent = running()
    agent.ends(1, code=1, at_start=True)
    late = agent.published.failure
    agent.ends(0, code=2, ago_s=5)
    first = agent.published.failure
    assert late is not None
    assert agent.compared(late) == []
    assert agent.published.failure == first != late


@pytest.mark.parametrize("end", ["sigterm", "superseded", "closed"])
def test_an_agent_that_leaves_does_not_wait_for_a_file_that_hangs(end: str) -> None:
    agent, _ = failing()
    if end == "closed":
        agent.reads(closed(FAILED, "x", 1))
        assert any(isinstance(action, Exit) for action in agent.log)
        return
    agent.signalled(TERM) if end == "sigterm" else agent.evicted("superseded")
    assert (agent.published.status, agent.machine.phase) == (LEFT, GONE)


# Anything goes


@pytest.mark.exhaustive
def test_whatever_happens_workers_are_started_only_after_a_sweep_and_an_exit_leaves_none_alive() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        agent, alive, dirty, round_ = Agent(), set[int](), False, 0
        for step in range(60):
            where = f"seed {seed}, step {step}"
            before = len(agent.log)
            phase = agent.machine.phase
            roll = rng.random()
            if roll < 0.25:
                round_ += rng.random() < 0.4
                kind = rng.choice([RUNNING, RUNNING, RUNNING, FORMING, FORMING, CLOSED])
                agent.reads(closed(FAILED, "x", 1, round_=round_) if kind == CLOSED else state(round_, phase=kind))
            elif roll < 0.45 and phase == PREPARING:
                agent.prepared(agent.machine._newest_round, rng.choice([None, None, None, "full"]))
            elif roll < 0.65 and alive:
                local = rng.choice(sorted(alive))
                alive.discard(local)
                recorded_ago_s, at_start = rng.choice([None, 0.5, 9.0]), rng.random() < 0.5
                agent.ends(local, code=rng.choice([0, 0, 1]), recorded_ago_s=recorded_ago_s, at_start=at_start)
            elif roll < 0.8 and phase == SWEEPING:
                assert not alive, where
                dirty = False
                agent.swept()
            elif roll < 0.83:
                agent.signalled(rng.choice([TERM, INT, USR1]))
            elif roll < 0.84:
                agent.evicted("superseded")
            elif roll < 0.87:
                agent.hangs(rng.choice([0, 1]), rng.choice([TERM, KILL]))
            elif roll < 0.9:
                agent.stacks_collected()
            elif roll < 0.95 and (asked := [action for action in agent.log if isinstance(action, Compare)]):
                agent.compared(rng.choice(asked).failure, rng.choice([None, "same"]))
            else:
                agent.tick(rng.choice([0.1, 20.0]))
            for action in agent.log[before:]:
                if isinstance(action, Spawn):
                    assert not dirty, f"{where}: started on top of what another round left behind"
                    alive, dirty = {0, 1}, True
                if isinstance(action, Signal | CollectStacks):
                    assert action.local_ranks, where
                    assert set(action.local_ranks) <= alive, where
                if isinstance(action, Exit):
                    assert not alive, where
                    assert not dirty, where
                if isinstance(action, RecordRound):
                    assert not action.failed & action.stopped, where
                    assert action.killed <= {0, 1}, where
            if agent.machine.phase == STOPPING:
                assert alive, f"{where}: it waits without a living worker"


# Standby workers


def elsewhere(round_: int = 1, **changes: object) -> State:
    """Return a round in which n2 has no part."""
    return state(round_, participants=(state().participants[0], Participant("n3", "i3", 2, 2, 1)), **changes)


def spare() -> Agent:
    agent = Agent(standby=True)
    assert agent.reads(elsewhere()) == [StartStandbys((0, 1))]
    agent.log.clear()
    return agent


def test_a_spare_with_standby_workers_starts_them_once() -> None:
    agent = spare()
    assert agent.reads(elsewhere(coordinator=Lease("n1", "i2", 2))) == []
    assert agent.reads(elsewhere(2)) == []
    assert Agent(standby=False).reads(elsewhere()) == []


def test_a_node_that_takes_part_starts_standbys_when_the_start_of_its_ranks_is_long_over() -> None:
    agent = Agent(standby=True)
    assert agent.reads(state(phase=FORMING, round_=0)) == []
    assert kinds(agent.reads(state())) == ["Prepare"]
    agent.prepared()
    assert agent.machine.deadline == agent.seconds + STANDBY_AFTER_S
    assert agent.tick(STANDBY_AFTER_S - 0.1) == []
    assert agent.tick(0.1) == [StartStandbys((0, 1))]
    assert agent.machine.deadline is None
    assert agent.tick(1000) == []


def test_a_node_that_takes_part_starts_standbys_soon_after_a_step_of_its_ranks() -> None:
    agent = running(standby=True)
    agent.machine.on_ranks_begun(agent.now())
    assert agent.tick(STANDBY_AFTER_STEP_S - 0.1) == []
    assert agent.tick(0.1) == [StartStandbys((0, 1))]
    agent.machine.on_ranks_begun(agent.now())
    assert agent.tick(1000) == []
    without = running()
    without.machine.on_ranks_begun(without.now())
    assert without.tick(1000) == []


def test_standbys_survive_the_end_of_a_round_and_are_used_up_by_the_next() -> None:
    agent = running(standby=True)
    assert agent.tick(STANDBY_AFTER_S) == [StartStandbys((0, 1))]
    agent.ends(0, code=1)
    assert agent.ends(1, by=TERM)[-1] == KillLeftovers(keep_standbys=True)
    agent.swept()
    agent.reads(state(2))
    assert "DropStandbys" not in kinds(agent.log)
    agent.prepared(2)
    assert agent.tick(STANDBY_AFTER_S) == [StartStandbys((0, 1))]


def test_a_standby_that_ends_beside_ranks_is_replaced_unless_a_stop_is_asked_for() -> None:
    agent = running(standby=True)
    agent.tick(STANDBY_AFTER_S)
    assert agent.standby_ends(1) == []
    assert agent.tick(STANDBY_AGAIN_S) == [StartStandbys((1,))]
    agent.standby_ends(1)
    agent.machine.on_stop_request(StopRequest("notice", "a notice", 1))
    assert agent.tick(STANDBY_AGAIN_S) == []


def test_a_standby_that_is_unusable_costs_no_chance() -> None:
    agent = spare()
    for _ in range(2 * STANDBY_DEATHS):
        assert agent.standby_ends(1, by_itself=False) == [StartStandbys((1,))]


def test_ranks_that_have_succeeded_get_no_standbys() -> None:
    agent = running(standby=True)
    agent.ends(0)
    agent.ends(1)
    assert agent.tick(STANDBY_AFTER_S) == []


def test_an_agent_that_leaves_drops_its_standbys_before_its_ranks_have_their_grace() -> None:
    agent = running(standby=True)
    agent.tick(STANDBY_AFTER_S)
    done = kinds(agent.signalled(TERM))
    assert done.index("DropStandbys") < done.index("Signal")
    agent.ends(0, by=TERM)
    assert agent.ends(1, by=TERM)[-1] == KillLeftovers(keep_standbys=False)


def test_standbys_are_not_kept_when_the_job_is_over() -> None:
    agent = running(standby=True)
    agent.tick(STANDBY_AFTER_S)
    agent.reads(closed(STOPPED, "stopped", 1))
    agent.ends(0, by=TERM)
    assert agent.ends(1, by=TERM)[-1] == KillLeftovers(keep_standbys=False)


def test_another_attempts_round_starts_no_standbys() -> None:
    assert Agent(standby=True).reads(elsewhere(attempt="12.1")) == []


def test_an_agent_that_leaves_starts_no_standbys() -> None:
    agent = Agent(standby=True)
    agent.signalled(TERM)
    agent.reads(elsewhere())
    agent.tick()
    assert "StartStandbys" not in kinds(agent.log)
    agent = spare()
    agent.reads(closed(SUCCEEDED, "all ranks succeeded", 0))
    assert agent.standby_ends(0) == []


def test_a_promoted_spare_starts_its_workers_as_any_other_node() -> None:
    agent = spare()
    assert agent.reads(elsewhere(phase=FORMING)) == []
    assert kinds(agent.reads(state(2))) == ["Prepare"]
    assert kinds(agent.prepared(2)) == ["Publish", "Spawn", "RecordRound"]
    assert agent.standby_ends(0) == []


def test_a_standby_that_dies_is_replaced_so_many_times_and_then_no_more() -> None:
    agent = spare()
    for _ in range(STANDBY_DEATHS - 1):
        assert agent.standby_ends(1) == [StartStandbys((1,))]
    assert agent.standby_ends(1) == []
    assert agent.standby_ends(0) == [StartStandbys((0,))]
    assert agent.reads(elsewhere(2)) == []
    assert agent.machine.phase == IDLE


def test_a_standby_that_dies_while_a_round_forms_is_replaced_when_this_node_is_a_spare_again() -> None:
    agent = spare()
    agent.reads(elsewhere(phase=FORMING))
    assert agent.standby_ends(1) == []
    assert agent.reads(elsewhere(2)) == [StartStandbys((1,))]


def test_a_node_that_becomes_a_spare_again_starts_all_standbys_again() -> None:
    agent = spare()
    agent.reads(state(2))
    agent.prepared(2)
    agent.reads(elsewhere(2, phase=FORMING))
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    assert agent.machine.phase == SWEEPING
    agent.reads(elsewhere(3))
    assert agent.swept()[-1] == StartStandbys((0, 1))


def test_standbys_that_a_round_did_not_need_wait_for_the_next() -> None:
    agent = spare()
    agent.reads(state(2))
    agent.prepared(2, problem="disk full")
    agent.swept()
    assert agent.reads(elsewhere(3)) == []


def test_a_slot_whose_standbys_always_die_gets_no_more_of_them_after_a_round() -> None:
    agent = spare()
    for _ in range(STANDBY_DEATHS):
        agent.standby_ends(1)
    agent.reads(state(2))
    agent.prepared(2)
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    agent.swept()
    assert agent.reads(elsewhere(3)) == [StartStandbys((0,))]
