"""The agent as histories: what happens to it, and what it then does, in order."""

from __future__ import annotations

import errno
import random
import signal
from dataclasses import replace

import pytest

from ftslurm.agent.actions import (
    Action,
    CollectStacks,
    Compare,
    Exit,
    Log,
    Moment,
    Prepare,
    Prepared,
    Publish,
    RecordRound,
    Signal,
    Spawn,
    StartStandbys,
    WorkerEnd,
)
from ftslurm.agent.machine import (
    FAREWELL_S,
    GONE,
    IDLE,
    PREPARING,
    STANDBY_DEATHS,
    STOPPING,
    SWEEPING,
    AgentMachine,
)
from ftslurm.rendezvous.state import (
    CLOSED,
    FAILED,
    FORMING,
    LEFT,
    NODE_LOST,
    READY,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    Closed,
    Failure,
    Hang,
    Lease,
    Master,
    Participant,
    RoundHistory,
    State,
)

SECOND = 1_000_000_000
TERM, KILL, INT, USR1 = signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGUSR1
CONT = signal.SIGCONT
HANG_ELSEWHERE = Hang(1, "n1", 0, 0, 5, "no heartbeat for 30.0 s", None)


def history(round_: int, outcome: str = RUNNING, reason: str | None = None) -> RoundHistory:
    return RoundHistory(round_, "12.0", ("n1", "n2"), 4, 0, None, outcome, reason, None)


def state(round_: int = 1, phase: str = RUNNING, **changes: object) -> State:
    parts = (Participant("n1", "i2", 2, 0, 0), Participant("n2", "i1", 2, 2, 1))
    base = State(
        "r", "12.0", ("12.0",), ("n1", "n2"), 2, 2, 3, round_ - 1, Lease("n1", "i2", 1), phase, round_,
        parts, 4, Master("n1", 20_000), (), (history(round_),), None,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def closed(outcome: str, reason: str, code: int, **changes: object) -> State:
    return state(phase=CLOSED, closed=Closed(outcome, reason, code, 0), **changes)


class Agent:
    """The agent of n2 with ranks 2 and 3; each method lets something happen and returns what it did then.

    Time goes on by one second with each event. A `Spawn` for which `cannot_start` is set fails at once, inside the
    list of actions, as it does in the loop.
    """

    def __init__(self, grace_s: float = 15.0, kill_wait_s: float = 18.0, standby: bool = False) -> None:
        self.machine = AgentMachine("n2", "i1", "12.0", 2, grace_s, kill_wait_s, standby)
        self.seconds = 100.0
        self.cannot_start: int | None = None
        self.errno: int | None = None
        self.word = Publish(READY, 0, None, None, None)
        self.log: list[Action] = []

    def now(self) -> Moment:
        return Moment(self.seconds, round(self.seconds * SECOND))

    def done(self, actions: list[Action]) -> list[Action]:
        done: list[Action] = []
        for action in actions:
            done.append(action)
            if isinstance(action, Publish):
                self.word = action
            if isinstance(action, Spawn) and self.cannot_start is not None:
                problem = "cannot start python: No such file"
                done += self.done(self.machine.on_spawn_failed(self.cannot_start, problem, self.now(), self.errno))
        self.log += done
        return done

    def tick(self, seconds: float = 1.0) -> list[Action]:
        self.seconds += seconds
        return self.done(self.machine.on_time(self.now()))

    def sees(self, new: State) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_state(new, self.now()))

    def prepared(self, round_: int = 1, problem: str | None = None) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_prepared(Prepared(round_, problem), self.now()))

    def ends(
        self,
        local: int,
        code: int | None = 0,
        by: int | None = None,
        recorded_ago_s: float | None = None,
        ago_s: float = 0,
        at_start: bool = False,
    ) -> list[Action]:
        self.seconds += 1
        ended = round((self.seconds - ago_s) * SECOND)
        recorded = None if recorded_ago_s is None else round((self.seconds - recorded_ago_s) * SECOND)
        name = signal.Signals(by).name if by else None
        failure = None
        if by or code:
            kind = "signal" if by else "exit"
            round_ = self.machine._newest_round
            failure = Failure(
                round_, "n2", 2 + local, local, ended, kind, None if by else code, name, "boom", 7, at_start
            )
        end = WorkerEnd(local, None if by else code, name, ended, recorded, failure)
        return self.done(self.machine.on_worker_ended(end, self.now()))

    def compared(self, failure: Failure, signature: str | None = "same") -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_compared(failure, signature, self.now()))

    def hangs(self, local: int, number: int = KILL) -> list[Action]:
        self.seconds += 1
        now = self.now()
        return self.done(self.machine.on_hang(local, "no heartbeat for 30.0 s", number, 7, now, now.s - 30))

    def shown(self) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_stacks_collected(self.now()))

    def standby_ends(self, local: int) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_standby_ended(local, self.now()))

    def swept(self) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_swept(self.now()))

    def signalled(self, number: int) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_signal(number, self.now()))

    def lost_ground(self, reason: str) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_evicted(reason, 1, self.now()))

    @property
    def record(self) -> RecordRound:
        return [action for action in self.log if isinstance(action, RecordRound)][-1]


def running(round_: int = 1, **how: float) -> Agent:
    agent = Agent(**how)
    agent.sees(state(round_))
    agent.prepared(round_)
    agent.log.clear()
    return agent


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


# Starting


def test_an_agent_without_a_part_in_the_round_does_nothing() -> None:
    agent = Agent()
    assert agent.sees(state(phase=FORMING, round_=0)) == []
    assert agent.sees(state(participants=state().participants[:1])) == []
    assert agent.machine.phase == IDLE


def test_a_round_is_prepared_then_its_workers_are_started_and_said_to_run() -> None:
    agent = Agent()
    (prepare,) = agent.sees(state(3))
    assert isinstance(prepare, Prepare)
    part = prepare.assignment
    assert (part.round, part.attempt, part.group_rank, part.group_world_size) == (3, "12.0", 1, 2)
    assert (part.first_rank, part.slots, part.world_size) == (2, 2, 4)
    assert (part.restart_count, part.max_restarts, part.master.port) == (2, 3, 20_000)
    assert kinds(agent.prepared(3)) == ["Publish", "Spawn", "RecordRound"]
    assert (agent.word.status, agent.word.round) == (RUNNING, 3)
    assert (agent.record.outcome, agent.record.over) == (RUNNING, False)


def test_the_same_state_seen_twice_starts_nothing_twice() -> None:
    agent = running()
    assert agent.sees(state()) == []
    assert agent.sees(state(coordinator=Lease("n1", "i2", 2))) == []


def test_another_incarnations_part_is_not_taken() -> None:
    part = Participant("n2", "other", 2, 2, 1)
    assert Agent().sees(state(participants=(state().participants[0], part))) == []


def test_directories_that_cannot_be_made_are_a_failure_to_start() -> None:
    agent = Agent()
    agent.sees(state())
    actions = agent.prepared(problem="cannot make the round's directories: disk full")
    assert kinds(actions) == ["Publish", "Log", "KillLeftovers"]
    assert (agent.word.status, agent.word.failure.kind, agent.word.failure.rank) == (FAILED, "spawn", 2)
    assert "disk full" in agent.word.failure.message


def test_the_answer_for_another_round_is_not_for_this_one() -> None:
    agent = Agent()
    agent.sees(state(2))
    assert agent.prepared(1) == []
    assert agent.machine.phase == PREPARING


@pytest.mark.parametrize("problem", [None, "disk full"])
@pytest.mark.parametrize("newer", [state(phase=FORMING), state(2), closed(FAILED, "n1 was lost", 1)])
def test_when_the_state_moves_on_while_directories_are_made_nothing_is_started(
    newer: State, problem: str | None
) -> None:
    agent = Agent()
    agent.sees(state())
    assert agent.sees(newer) == []
    assert kinds(agent.prepared(problem=problem)) == ["KillLeftovers"]
    actions = agent.swept()
    assert not any(isinstance(action, Spawn) for action in agent.log)
    assert agent.word.failure is None
    if newer.phase == RUNNING:
        assert actions[-1] == Prepare(replace(actions[-1].assignment, round=2))


def test_a_first_worker_that_cannot_be_started_fails_the_round() -> None:
    agent = Agent()
    agent.cannot_start = 0
    agent.sees(state())
    actions = agent.prepared()
    assert kinds(actions) == ["Publish", "Spawn", "Publish", "Log", "KillLeftovers", "RecordRound"]
    assert (agent.word.status, agent.word.failure.rank, agent.word.failure.kind) == (FAILED, 2, "spawn")


def test_when_the_second_worker_cannot_be_started_the_first_is_stopped_and_failure_is_the_last_word() -> None:
    agent = Agent()
    agent.cannot_start = 1
    agent.sees(state())
    actions = agent.prepared()
    assert Signal((0,), TERM) in actions
    assert (agent.word.status, agent.word.failure.rank, agent.word.failure.local_rank) == (FAILED, 3, 1)
    assert kinds(agent.ends(0, by=TERM)) == ["KillLeftovers"]
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
    agent.sees(state())
    agent.prepared()
    assert agent.word.failure.blame == blame


# Ending well


def test_a_node_has_succeeded_when_its_last_worker_ends_with_0() -> None:
    agent = running()
    assert agent.ends(1) == []
    assert kinds(agent.ends(0)) == ["Publish", "RecordRound"]
    assert (agent.word.status, agent.record.outcome, agent.record.over) == (SUCCEEDED, SUCCEEDED, True)


def test_when_all_have_succeeded_the_agent_sweeps_and_leaves_with_0() -> None:
    agent = running()
    agent.ends(0)
    agent.ends(1)
    assert kinds(agent.sees(closed(SUCCEEDED, "all 4 ranks succeeded", 0))) == ["KillLeftovers"]
    actions = agent.swept()
    assert (agent.record.outcome, agent.record.stop_reason, agent.record.stop_ns) == (SUCCEEDED, None, None)
    assert actions[-1] == Exit(0)
    assert (agent.word.status, agent.word.reason) == (LEFT, None)
    assert agent.machine.phase == GONE


def test_a_node_that_has_succeeded_runs_again_when_another_one_failed() -> None:
    agent = running()
    agent.ends(0)
    agent.ends(1)
    assert kinds(agent.sees(state(phase=FORMING))) == ["KillLeftovers"]
    assert agent.swept()[-1] == Publish(READY, 1, None, None, None, new_port=True)
    assert isinstance(agent.sees(state(2))[0], Prepare)


# Failing


def test_a_rank_raises_and_the_others_get_term_then_kill_then_all_is_swept_and_the_next_round_begins() -> None:
    agent = running(grace_s=15)
    actions = agent.ends(1, code=1)
    assert kinds(actions) == ["Publish", "Log", "Signal"]
    assert actions[-1] == Signal((0,), TERM)
    assert (agent.word.status, agent.word.failure.rank) == (FAILED, 3)
    assert actions[1] == Log("round 1: rank 3 failed at step 7: boom")
    assert agent.machine.deadline == agent.seconds + 15
    assert agent.sees(state(phase=FORMING)) == []
    assert agent.tick(13.9) == []
    assert agent.tick(0.1) == [Signal((0,), KILL)]
    assert agent.machine.deadline is None
    assert kinds(agent.ends(0, by=KILL)) == ["KillLeftovers"]
    actions = agent.swept()
    assert kinds(actions) == ["RecordRound", "Publish"]
    assert actions[1].new_port
    assert (agent.word.status, agent.word.failure.rank) == (READY, 3), "the failure stands until the next round"
    record = agent.record
    assert (record.outcome, record.stop_reason, record.over) == (FAILED, "rank 3 on n2 failed", True)
    assert (record.failed, record.stopped, record.killed) == ({1}, {0}, {0})
    assert isinstance(agent.sees(state(2))[0], Prepare)
    agent.prepared(2)
    assert (agent.word.status, agent.word.round, agent.word.failure) == (RUNNING, 2, None)


def test_a_sibling_that_obeys_term_is_stopped_and_not_failed() -> None:
    agent = running()
    agent.ends(0, code=1)
    assert kinds(agent.ends(1, by=TERM)) == ["KillLeftovers"]
    agent.swept()
    assert (agent.record.failed, agent.record.stopped, agent.record.killed) == ({0}, {1}, set())


@pytest.mark.parametrize("end", [{"code": 0}, {"code": 1}, {"code": 143}, {"by": TERM}, {"by": signal.SIGABRT}])
def test_however_a_stopped_worker_ends_it_is_not_a_failure(end: dict[str, int]) -> None:
    agent = running()
    agent.sees(state(phase=FORMING, history=(history(1, FAILED, "rank 0 on n1 failed"),)))
    agent.ends(0, **end)
    agent.ends(1, **end)
    agent.swept()
    assert (agent.record.outcome, agent.record.failed, agent.record.stopped) == (STOPPED, set(), {0, 1})
    assert agent.record.stop_reason == "rank 0 on n1 failed"
    assert agent.word.failure is None


def test_a_rank_that_failed_before_the_stop_but_ended_after_it_has_failed() -> None:
    agent = running()
    agent.ends(0, code=1)
    # Its traceback was recorded 3 seconds ago, before the other one ended; its teardown took until now.
    assert kinds(agent.ends(1, code=1, recorded_ago_s=3)) == ["KillLeftovers"]
    agent.swept()
    assert (agent.record.failed, agent.record.stopped) == ({0, 1}, set())
    assert agent.word.failure.rank == 2, "the first failure stays the first"


def test_a_rank_that_the_kernel_ended_before_the_stop_has_failed_although_it_was_noticed_after() -> None:
    agent = running()
    agent.ends(0, code=1)
    agent.ends(1, by=KILL, ago_s=3)
    agent.swept()
    assert (agent.record.failed, agent.record.stopped) == ({0, 1}, set())


def test_a_rank_that_failed_before_a_stop_from_elsewhere_is_told_to_all() -> None:
    agent = running()
    agent.sees(state(phase=FORMING))
    actions = agent.ends(1, code=1, recorded_ago_s=3)
    assert kinds(actions) == ["Publish", "Log"]
    assert (agent.word.status, agent.word.failure.rank) == (FAILED, 3)


def test_one_exit_0_and_then_a_failure_is_a_failure() -> None:
    agent = running()
    agent.ends(0)
    assert kinds(agent.ends(1, code=1)) == ["Publish", "Log", "KillLeftovers"]
    agent.swept()
    assert (agent.record.outcome, agent.record.stop_reason) == (FAILED, None)


def test_the_end_of_a_worker_is_heard_once_only() -> None:
    agent = running()
    agent.ends(0, code=1)
    assert agent.ends(0, code=1) == []


def test_a_long_message_is_cut_on_the_terminal() -> None:
    agent = running()
    long = Failure(1, "n2", 2, 0, 5, "exception", 1, None, "x" * 500, None)
    log = agent.done(agent.machine.on_worker_ended(WorkerEnd(0, 1, None, 5, 5, long), agent.now()))[1]
    assert isinstance(log, Log)
    assert len(log.text) < 250
    assert agent.word.failure == long


# The others


def test_a_round_that_ended_elsewhere_is_stopped_here_with_its_reason() -> None:
    agent = running()
    over = state(phase=FORMING, history=(history(1, NODE_LOST, "n1 was lost"),))
    assert agent.sees(over) == [Signal((0, 1), TERM)]
    agent.ends(0, by=TERM)
    assert kinds(agent.ends(1, by=TERM)) == ["KillLeftovers"]
    agent.swept()
    assert (agent.record.outcome, agent.record.stop_reason) == (STOPPED, "n1 was lost")
    assert agent.record.stop_ns is not None


def test_a_run_that_is_closed_while_workers_run_is_stopped_and_left_with_its_code() -> None:
    agent = running()
    assert agent.sees(closed(FAILED, "all restarts are used up", 1)) == [Signal((0, 1), TERM)]
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    assert agent.swept()[-1] == Exit(1)
    assert agent.record.stop_reason == "all restarts are used up"


def test_a_run_that_is_closed_during_a_stop_is_left_after_it() -> None:
    agent = running()
    agent.ends(0, code=78)
    assert agent.sees(closed(FAILED, "code 78", 78)) == []
    assert agent.machine.phase == STOPPING
    agent.ends(1, by=TERM)
    assert agent.sees(closed(FAILED, "code 78", 78)) == []
    assert agent.machine.phase == SWEEPING
    assert agent.swept()[-1] == Exit(78)


def test_an_idle_agent_leaves_a_closed_run_with_its_code() -> None:
    agent = Agent()
    actions = agent.sees(closed(FAILED, "no node record of n1", 1, round_=1))
    assert kinds(actions) == ["Publish", "Exit"]
    assert actions[1] == Exit(1)


def test_another_attempts_closed_run_is_not_this_ones_end() -> None:
    assert Agent().sees(replace(closed(SUCCEEDED, "done", 0), attempt="11.0")) == []


def test_the_rank_that_failed_first_is_the_nodes_word_though_another_ones_process_ended_first() -> None:
    agent = running()
    agent.ends(1, code=1)
    assert agent.word is not None
    assert agent.word.failure is not None
    assert agent.word.failure.rank == 3
    agent.ends(0, code=78, recorded_ago_s=5, ago_s=5)
    assert agent.word.failure.rank == 2
    assert agent.word.failure.exit_code == 78
    agent.swept()
    assert agent.record.failed == {0, 1}


def test_a_next_round_that_is_seen_before_the_end_of_this_one_stops_this_one_first() -> None:
    agent = running()
    assert agent.sees(state(2)) == [Signal((0, 1), TERM)]
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    actions = agent.swept()
    assert kinds(actions) == ["RecordRound", "Publish", "Prepare"]
    assert actions[-1].assignment.round == 2


# From outside


def test_sigterm_stops_the_workers_says_so_and_waits_for_the_verdict() -> None:
    agent = running(grace_s=60, kill_wait_s=18)
    actions = agent.signalled(TERM)
    assert kinds(actions) == ["Publish", "Signal"]
    assert (agent.word.status, agent.word.reason, agent.word.stop_signal) == (
        RUNNING,
        "SIGTERM from outside",
        "SIGTERM",
    )
    assert agent.machine.deadline == agent.seconds + 18
    agent.ends(0, by=TERM)
    agent.ends(1, code=0)
    agent.swept()
    assert (agent.word.status, agent.word.stop_signal) == (LEFT, "SIGTERM")
    assert (agent.record.outcome, agent.record.stop_reason) == (STOPPED, "SIGTERM from outside")
    assert agent.sees(closed(STOPPED, "SIGTERM from outside", 143))[-1] == Exit(143)


def test_without_a_verdict_the_agent_leaves_with_the_signals_code() -> None:
    agent = Agent()
    assert kinds(agent.signalled(INT)) == ["Publish", "Publish"]
    assert agent.word.status == LEFT
    assert agent.tick(FAREWELL_S / 2) == []
    assert agent.tick(FAREWELL_S) == [Exit(130)]


def test_an_agent_that_has_left_takes_no_part_any_more() -> None:
    agent = Agent()
    agent.signalled(TERM)
    assert agent.sees(state()) == []
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
    assert agent.signalled(INT) == [Signal((0, 1), KILL)]
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
    assert kinds(agent.signalled(TERM)) == ["Publish"]
    assert agent.machine.deadline == agent.seconds + left_s
    assert (agent.word.status, agent.word.failure.rank, agent.word.stop_signal) == (FAILED, 2, "SIGTERM")
    agent.ends(1, by=TERM)
    agent.swept()
    assert (agent.word.status, agent.word.failure.rank) == (LEFT, 2)
    assert agent.record.stop_reason == "rank 2 on n2 failed"


def test_sigterm_while_directories_are_made_starts_nothing() -> None:
    agent = Agent()
    agent.sees(state())
    assert kinds(agent.signalled(TERM)) == ["Publish", "KillLeftovers"]
    agent.swept()
    assert (agent.word.status, agent.word.failure) == (LEFT, None)
    assert agent.prepared() == []


def test_what_cannot_be_killed_keeps_an_agent_only_as_long_as_it_has_reason_to_stay() -> None:
    agent = running()
    agent.sees(state(phase=FORMING))
    agent.tick(20)
    assert kinds(agent.done(agent.machine.on_unkillable("process 7", agent.now()))) == ["Log"]
    assert agent.machine.phase == STOPPING
    agent.signalled(TERM)
    assert agent.done(agent.machine.on_unkillable("process 7", agent.now()))[-1] == Exit(143)
    assert agent.word.status == LEFT


def test_sigterm_after_the_last_worker_succeeded_loses_nothing() -> None:
    agent = running()
    agent.ends(0)
    agent.ends(1)
    assert kinds(agent.signalled(TERM)) == ["Publish", "KillLeftovers"]
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
    actions = agent.lost_ground("attempt 12.1 has taken over this run")
    assert kinds(actions) == ["Publish", "Signal"]
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    agent.swept()
    assert (agent.word.status, agent.word.stop_signal) == (LEFT, None)
    assert agent.record.stop_reason == "attempt 12.1 has taken over this run"
    assert agent.tick(0) == [Exit(1)]


def test_a_state_of_the_next_attempt_stops_the_workers() -> None:
    agent = running()
    assert agent.sees(replace(state(2), attempt="12.1")) == [Signal((0, 1), TERM)]
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    agent.swept()
    assert agent.record.stop_reason == "attempt 12.1 has taken over"
    assert agent.machine.phase == IDLE


def test_an_agent_that_is_refused_before_it_began_leaves_at_once() -> None:
    agent = Agent()
    agent.lost_ground("job 12 is running in /runs/r")
    assert agent.tick(0) == [Exit(1)]


def test_losing_ground_while_leaving_changes_nothing() -> None:
    agent = running()
    agent.signalled(TERM)
    assert agent.lost_ground("its guardian process was killed") == []
    assert agent.word.reason == "SIGTERM from outside"


# A rank hangs


def test_a_rank_that_hangs_is_said_and_shown_and_killed_only_when_the_coordinator_has_heard_from_all() -> None:
    agent = running()
    assert kinds(agent.hangs(1)) == ["Publish", "Log", "CollectStacks"]
    assert (agent.word.status, agent.word.hang.rank, agent.word.stacks_collected) == (RUNNING, 3, 0)
    assert agent.sees(state(hang=agent.word.hang)) == []
    assert kinds(agent.shown()) == ["Publish"]
    assert (agent.word.status, agent.word.stacks_collected) == (RUNNING, 1)
    actions = agent.sees(state(phase=FORMING))
    assert actions[1:] == [Signal((1,), CONT), Signal((1,), KILL), Signal((0,), TERM)]
    assert (agent.word.status, agent.word.failure.kind, agent.word.failure.rank) == (FAILED, "hang", 3)


def test_a_rank_that_hangs_elsewhere_is_a_reason_to_show_where_ours_are_once() -> None:
    agent = running()
    assert agent.sees(state(hang=HANG_ELSEWHERE)) == [CollectStacks((0, 1))]
    assert agent.sees(state(hang=HANG_ELSEWHERE)) == []
    agent.shown()
    assert agent.sees(state(phase=FORMING)) == [Signal((0, 1), TERM)]
    assert agent.word.failure is None


def test_a_second_hung_rank_is_ended_as_the_first_one_and_reported_once() -> None:
    agent = running()
    agent.hangs(1)
    assert agent.hangs(0, TERM) == []
    assert agent.hangs(0) == []
    actions = agent.sees(state(phase=FORMING))
    assert actions[1:] == [Signal((0,), CONT), Signal((0,), TERM), Signal((1,), CONT), Signal((1,), KILL)]


def test_a_rank_that_fails_while_stacks_are_collected_takes_nobody_along_before_that_is_done() -> None:
    agent = running()
    agent.sees(state(hang=HANG_ELSEWHERE))
    assert kinds(agent.ends(1, code=1)) == ["Publish", "Log"]
    assert agent.machine.phase == RUNNING
    assert agent.shown()[-1] == Signal((0,), TERM)


def test_when_all_fail_while_stacks_are_collected_the_round_is_swept() -> None:
    agent = running()
    agent.sees(state(hang=HANG_ELSEWHERE))
    agent.ends(1, code=1)
    assert kinds(agent.ends(0, code=1)) == ["KillLeftovers"]


def test_when_nobody_hears_of_the_hang_its_agent_ends_the_round_by_itself() -> None:
    agent = running()
    agent.hangs(1)
    agent.shown()
    assert agent.tick(5) == []
    assert Signal((1,), KILL) in agent.tick(15)
    assert agent.word.status == FAILED


def test_a_hang_of_a_worker_that_is_being_stopped_is_nothing_new() -> None:
    agent = running()
    agent.ends(0, code=1)
    assert agent.hangs(1) == []


def test_the_next_round_knows_nothing_of_the_last_ones_hang() -> None:
    agent = running()
    agent.hangs(1)
    agent.shown()
    agent.sees(state(phase=FORMING))
    agent.ends(0, by=TERM)
    agent.ends(1, by=KILL)
    agent.swept()
    agent.sees(state(2))
    assert agent.prepared(2)[0].hang is None


# What a failure is compared by


def failing() -> tuple[Agent, Failure]:
    """An agent one of whose ranks failed at its start, by nothing but an exit code; all is swept."""
    agent = running()
    actions = agent.ends(0, code=1, at_start=True)
    (failure,) = [action.failure for action in actions if isinstance(action, Compare)]
    agent.sees(state(phase=FORMING))
    agent.ends(1, by=TERM)
    assert agent.swept() == []
    return agent, failure


def test_a_node_is_ready_for_the_next_round_when_it_is_known_what_the_failure_is_compared_by() -> None:
    agent, failure = failing()
    assert (agent.word.status, agent.machine.phase) == (FAILED, SWEEPING)
    agent.compared(failure, "2b1c")
    assert (agent.word.status, agent.machine.phase) == (READY, IDLE)
    assert agent.word.failure == replace(failure, signature="2b1c")


def test_what_is_found_of_a_failure_while_ranks_are_still_stopping_is_said_at_once() -> None:
    agent = running()
    agent.ends(0, code=1, at_start=True)
    failure = agent.word.failure
    assert failure is not None
    assert kinds(agent.compared(failure, "2b1c")) == ["Publish"]
    agent.ends(1, by=TERM)
    agent.swept()
    assert agent.word.status == READY
    assert agent.word.failure == replace(failure, signature="2b1c")


def test_nothing_to_compare_is_an_answer_too() -> None:
    agent, failure = failing()
    agent.compared(failure, None)
    assert (agent.word.status, agent.word.failure) == (READY, failure)


@pytest.mark.parametrize("code", [None, 1])
def test_only_a_failure_at_start_that_says_nothing_itself_is_looked_into(code: int | None) -> None:
    agent = running()
    actions = agent.ends(0, code=1) if code else agent.ends(0, by=KILL)
    assert "Compare" not in kinds(actions)
    agent.ends(1, by=TERM)
    agent.swept()
    assert agent.word.status == READY


def test_the_answer_about_another_failure_than_the_first_one_is_not_taken() -> None:
    agent = running()
    agent.ends(1, code=1, at_start=True)
    late = agent.word.failure
    agent.ends(0, code=2, ago_s=5)
    first = agent.word.failure
    assert late is not None
    assert agent.compared(late) == []
    assert agent.word.failure == first != late


@pytest.mark.parametrize("end", ["sigterm", "superseded", "closed"])
def test_an_agent_that_leaves_does_not_wait_for_a_file_that_hangs(end: str) -> None:
    agent, _ = failing()
    if end == "closed":
        agent.sees(closed(FAILED, "x", 1))
        assert any(isinstance(action, Exit) for action in agent.log)
        return
    agent.signalled(TERM) if end == "sigterm" else agent.lost_ground("superseded")
    assert (agent.word.status, agent.machine.phase) == (LEFT, GONE)


# Anything goes


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
                agent.sees(closed(FAILED, "x", 1, round_=round_) if kind == CLOSED else state(round_, phase=kind))
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
                agent.lost_ground("superseded")
            elif roll < 0.87:
                agent.hangs(rng.choice([0, 1]), rng.choice([TERM, KILL]))
            elif roll < 0.9:
                agent.shown()
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
                assert alive, f"{where}: it waits for nobody"


# A spare's standby workers


def elsewhere(round_: int = 1, **changes: object) -> State:
    """Return a round in which n2 has no part."""
    return state(round_, participants=(state().participants[0], Participant("n3", "i3", 2, 2, 1)), **changes)


def spare() -> Agent:
    agent = Agent(standby=True)
    assert agent.sees(elsewhere()) == [StartStandbys((0, 1))]
    agent.log.clear()
    return agent


def test_a_spare_warms_its_slots_up_once_when_it_is_told_to() -> None:
    agent = spare()
    assert agent.sees(elsewhere(coordinator=Lease("n1", "i2", 2))) == []
    assert agent.sees(elsewhere(2)) == []
    assert Agent(standby=False).sees(elsewhere()) == []


def test_who_takes_part_or_may_still_take_part_warms_nothing_up() -> None:
    agent = Agent(standby=True)
    assert agent.sees(state(phase=FORMING, round_=0)) == []
    assert kinds(agent.sees(state())) == ["Prepare"]
    assert agent.sees(elsewhere(2)) == []
    agent.prepared()
    assert "StartStandbys" not in kinds(agent.log)


def test_another_attempts_round_warms_nothing_up() -> None:
    assert Agent(standby=True).sees(elsewhere(attempt="12.1")) == []


def test_who_leaves_or_follows_the_end_warms_nothing_up() -> None:
    agent = Agent(standby=True)
    agent.signalled(TERM)
    agent.sees(elsewhere())
    agent.tick()
    assert "StartStandbys" not in kinds(agent.log)
    agent = spare()
    agent.sees(closed(SUCCEEDED, "all ranks succeeded", 0))
    assert agent.standby_ends(0) == []


def test_a_promoted_spare_starts_its_workers_as_any_other_node() -> None:
    agent = spare()
    assert agent.sees(elsewhere(phase=FORMING)) == []
    assert kinds(agent.sees(state(2))) == ["Prepare"]
    assert kinds(agent.prepared(2)) == ["Publish", "Spawn", "RecordRound"]
    assert agent.standby_ends(0) == []


def test_a_standby_that_dies_is_replaced_so_many_times_and_then_no_more() -> None:
    agent = spare()
    for _ in range(STANDBY_DEATHS - 1):
        assert agent.standby_ends(1) == [StartStandbys((1,))]
    assert agent.standby_ends(1) == []
    assert agent.standby_ends(0) == [StartStandbys((0,))]
    assert agent.sees(elsewhere(2)) == []
    assert agent.machine.phase == IDLE


def test_a_standby_that_dies_while_a_round_forms_is_replaced_when_this_node_is_a_spare_again() -> None:
    agent = spare()
    agent.sees(elsewhere(phase=FORMING))
    assert agent.standby_ends(1) == []
    assert agent.sees(elsewhere(2)) == [StartStandbys((1,))]


def test_a_node_that_becomes_a_spare_again_warms_all_up_again() -> None:
    agent = spare()
    agent.sees(state(2))
    agent.prepared(2)
    agent.sees(elsewhere(2, phase=FORMING))
    agent.ends(0, by=TERM)
    agent.ends(1, by=TERM)
    assert agent.machine.phase == SWEEPING
    agent.sees(elsewhere(3))
    assert agent.swept()[-1] == StartStandbys((0, 1))


def test_a_slot_whose_standbys_always_die_gets_no_more_of_them_after_a_round() -> None:
    agent = spare()
    for _ in range(STANDBY_DEATHS):
        agent.standby_ends(1)
    agent.sees(state(2))
    agent.prepared(2, problem="disk full")
    agent.swept()
    assert agent.sees(elsewhere(3)) == [StartStandbys((0,))]
