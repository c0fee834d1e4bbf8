"""The agreement on the step at which all ranks leave: the coordinator's part, as histories, and with real pages."""

from __future__ import annotations

import random
import signal
from dataclasses import replace

import pytest
from fold_histories import ATTEMPT, TIMING, Job

from ftslurm.agent import actions as act
from ftslurm.agent.actions import Action, Moment
from ftslurm.agent.machine import AgentMachine
from ftslurm.agent.orderly_stop import takes_notice
from ftslurm.monitor import stop_page
from ftslurm.monitor.stop_page import AgentSide, RankSide
from ftslurm.monitor.timeouts import Longest, Spans
from ftslurm.records.node import Vitals
from ftslurm.records.state import FORMING, READY, RUNNING, STOPPED, SUCCEEDED, State
from ftslurm.records.stop import ANY_STEP, NOTICE, PREEMPTED, SIGNAL, USER, JobEnd, StopRequest, StopVote
from ftslurm.rendezvous.fold import begin, fold
from ftslurm.rendezvous.observation import Observation, RunSpec

SECOND = 10**9
REQUEST = StopRequest(SIGNAL, "SIGTERM from outside", 5, "SIGTERM", 30.0)


def running(nodes: int = 2) -> Job:
    return Job(nodes).join().run()


def vote(job: Job, number: int, step: int | None = 100, **changes: object) -> Job:
    assert job.state.stop is not None
    answer = StopVote(job.state.round, job.state.stop.proposal, True, step, 0.1)
    return job.publish(number, stop_vote=replace(answer, **changes))  # type: ignore[arg-type]


def agreed(nodes: int = 2) -> Job:
    job = running(nodes).publish(1, stop_request=REQUEST)
    job.coordinate()
    for _ in range(2):
        for number in range(1, nodes + 1):
            vote(job, number)
        job.coordinate()
    assert job.state.stop is not None
    assert job.state.stop.committed
    return job


def test_nothing_is_proposed_before_all_nodes_have_published_where_their_ranks_are() -> None:
    job = running().publish(2, stop_request=REQUEST)
    job.coordinate()
    assert job.state.stop is not None
    assert (job.state.stop.node, job.state.stop.proposal) == ("n2", 0)
    assert vote(job, 1).coordinate().stop == job.state.stop
    assert vote(job, 2).coordinate().stop.proposal == 1


def test_the_proposed_step_is_ahead_of_every_rank_by_the_steps_of_half_a_second() -> None:
    job = running().publish(1, stop_request=REQUEST)
    job.coordinate()
    state = vote(vote(job, 1, 90), 2, 100, step_s=0.01).coordinate()
    assert state.stop.step == 151


def test_a_step_that_a_rank_has_passed_is_replaced_by_a_higher_one() -> None:
    job = running().publish(1, stop_request=REQUEST)
    job.coordinate()
    first = vote(vote(job, 1), 2).coordinate().stop
    second = vote(vote(job, 1), 2, 120, passed=True).coordinate().stop
    assert (second.proposal, second.committed) == (2, False)
    assert second.step > 120 > first.step - 20
    assert vote(vote(job, 1, 121), 2, 121).coordinate().stop.committed


def test_an_answer_to_an_earlier_proposal_does_not_count() -> None:
    job = running().publish(1, stop_request=REQUEST)
    job.coordinate()
    vote(vote(job, 1), 2).coordinate()
    old = job.records["n2"].stop_vote
    vote(job, 1)
    assert job.records["n2"].stop_vote == old
    assert not job.coordinate().stop.committed


def test_ranks_that_call_without_a_step_leave_at_their_next_call() -> None:
    job = running().publish(1, stop_request=REQUEST)
    job.coordinate()
    assert vote(vote(job, 1, None), 2, None).coordinate().stop.step == ANY_STEP


def leave(job: Job, *numbers: int, step: int | None = 105, saved: bool = True) -> Job:
    for number in numbers:
        ranks = (2 * number - 2, 2 * number - 1)
        vote(job, number, step, left=ranks, saved=ranks if saved else ()).publish(number, status=SUCCEEDED)
    return job


def test_a_run_whose_ranks_have_all_left_is_interrupted_and_may_go_on_later() -> None:
    job = agreed()
    job.now_ns = 3 * SECOND
    leave(job, 1, 2).coordinate()
    assert job.closed == (STOPPED, 75)
    assert job.state.closed.reason == "interrupted: SIGTERM from outside; saved at step 105 (3 s of 30 s grace)"
    assert job.last.outcome == STOPPED


def test_ranks_without_a_checkpoint_are_not_reported_to_have_saved() -> None:
    job = leave(agreed(), 1, 2, saved=False)
    assert "all 4 ranks left at step 105" in job.coordinate().closed.reason


def test_ranks_that_never_asked_and_followed_the_others_are_named() -> None:
    job = agreed()
    vote(job, 1, 105, left=(0,), saved=(0,), unasked=(1,)).publish(1, status=SUCCEEDED)
    vote(job, 2, None, polling=False, unasked=(2, 3)).publish(2, status=SUCCEEDED).coordinate()
    assert job.closed == (STOPPED, 75)
    expected = "rank 0 left at step 105, saved by rank 0; ranks 1-3 never called should_stop (0 s of 30 s grace)"
    assert job.state.stop.result == expected
    assert "interrupted" in job.state.closed.reason


def save_fails(job: Job, number: int) -> Job:
    """A rank of that node has left, and fails; the other one there saves."""
    ranks = (2 * number - 2, 2 * number - 1)
    job.fail(number)
    job.publish(number, failure=replace(job.records[f"n{number}"].failure, leaving=True))
    return vote(job, number, 105, left=ranks, saved=ranks[1:])


def test_a_rank_that_fails_after_it_left_does_not_end_the_round_of_those_that_save() -> None:
    job = save_fails(agreed(), 1)
    assert job.coordinate(failing_s=20).phase == RUNNING
    job.ready(1)
    assert job.coordinate(failing_s=25).phase == RUNNING
    leave(job, 2).coordinate(failing_s=26)
    assert job.closed == (STOPPED, 143)
    reason = job.state.closed.reason
    assert reason.startswith("rank 0 on n1 failed at step 40: exit code 1; SIGTERM from outside; all 4 ranks left at")
    assert reason.endswith("saved by ranks 1-3")
    assert job.last.failure.rank == 0


def test_the_failed_rank_ends_the_round_when_the_others_take_too_long() -> None:
    job = save_fails(agreed(), 1)
    assert job.coordinate(failing_s=59).phase == RUNNING
    assert job.coordinate(failing_s=61).closed.outcome == STOPPED


def test_a_node_that_is_lost_meanwhile_ends_it_at_once() -> None:
    job = save_fails(agreed(), 1)
    job.silent = {"n2": 9.0}
    job.coordinate(failing_s=1)
    assert job.closed == (STOPPED, 143)
    assert "rank 0 left at step" not in job.state.closed.reason


@pytest.mark.parametrize("answered", [False, True])
def test_a_node_that_is_lost_while_the_ranks_agree_closes_the_run(answered: bool) -> None:
    job = running().publish(1, stop_request=REQUEST)
    job.coordinate()
    if answered:
        vote(vote(job, 1), 2).coordinate()
    vote(job, 1)
    job.silent = {"n2": 7.0}
    assert job.coordinate().closed is None
    job.silent = {"n2": 9.0}
    job.coordinate()
    assert job.closed == (STOPPED, 143)
    assert job.state.closed.reason.startswith("SIGTERM from outside; round 1 had ended: n2 ")
    assert job.state.stop.result is None


def test_a_rank_that_fails_before_it_left_ends_the_round() -> None:
    job = agreed().fail(1)
    vote(job, 2, 105, left=(2, 3), unasked=()).coordinate(failing_s=0)
    assert job.closed == (STOPPED, 143)
    assert "ranks 2-3 left at step 105; round 1 had ended: rank 0 on n1 failed" in job.state.closed.reason


def test_a_failed_save_in_a_stop_by_the_user_is_a_failure() -> None:
    job = running().publish(1, stop_request=StopRequest(USER, "ftslurm stop by ann", 5))
    job.coordinate()
    for _ in range(2):
        vote(vote(job, 1), 2).coordinate()
    save_fails(job, 1).ready(1)
    leave(job, 2).coordinate()
    assert job.closed == (STOPPED, 1)


def test_a_run_that_ends_by_itself_meanwhile_has_succeeded() -> None:
    job = agreed()
    for number in (1, 2):
        job.publish(number, status=SUCCEEDED)
    job.coordinate()
    assert job.closed == (SUCCEEDED, 0)


def test_a_failure_while_stopping_is_not_restarted() -> None:
    job = agreed().fail(2)
    job.coordinate()
    assert job.closed[0] == STOPPED
    assert "round 1 had ended" in job.state.closed.reason


def test_a_stop_requested_while_a_round_forms_closes_the_run() -> None:
    job = Job(2).join(1).publish(1, stop_request=REQUEST)
    assert job.state.phase == FORMING
    job.coordinate()
    assert job.closed == (STOPPED, 143)


@pytest.mark.parametrize(("cause", "closed"), [(USER, True), (NOTICE, True), (SIGNAL, False)])
def test_ranks_that_never_call_are_stopped_by_sigterm_where_slurm_sends_none(cause: str, closed: bool) -> None:
    job = running().publish(1, stop_request=StopRequest(cause, "why", 5))
    job.coordinate()
    vote(vote(job, 1, None, polling=False), 2, None, polling=False).coordinate()
    assert (job.state.closed is not None) == closed


def near_the_end(job: Job, left_s: float, stoppable: int = 1, longest_s: float = 0.0, **answer: object) -> Job:
    job.now_ns = 1000 * SECOND
    end = JobEnd(job.now_ns + round(left_s * SECOND), False, (), 7)
    longest = Longest(Spans(sections={"checkpoint": longest_s} if longest_s else {}))
    for number in (1, 2):
        job.publish(number, vitals=Vitals(1, longest, (), 0, stoppable=stoppable))
    return job.publish(1, job_end=replace(end, **answer))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left_s", "longest_s", "asked"),
    [(61, 0, False), (59, 0, True), (229, 100, True), (231, 100, False)],
)
def test_the_time_limit_stops_a_run_in_time_for_a_save(left_s: float, longest_s: float, asked: bool) -> None:
    job = near_the_end(running(), left_s, longest_s=longest_s)
    state = job.coordinate()
    assert (state.stop is not None) == asked
    if asked:
        assert "the time limit is near" in state.stop.reason


def test_the_configured_warning_precedes_the_learned_one() -> None:
    job = near_the_end(running(), 299)
    job.timing = replace(TIMING, warn_before_end_s=300.0)
    assert job.coordinate().stop is not None
    job = near_the_end(running(), 301, longest_s=500)
    job.timing = replace(TIMING, warn_before_end_s=300.0)
    assert job.coordinate().stop is None


@pytest.mark.parametrize("configured", [None, 55.0, 3600.0])
@pytest.mark.parametrize(("left_s", "asked"), [(29, False), (27, True)])
def test_a_time_limit_as_short_as_a_save_leaves_half_of_it_for_steps(
    configured: float | None, left_s: float, asked: bool
) -> None:
    job = running()
    # A job of a minute, whose first round has formed after 4 s.
    (first,) = job.state.history
    formed_ns = 1000 * SECOND - round((56 - left_s) * SECOND)
    job.state = replace(job.state, history=(replace(first, formed_ns=formed_ns),))
    job = near_the_end(job, left_s)
    job.timing = replace(TIMING, warn_before_end_s=configured)
    assert (job.coordinate().stop is not None) == asked


def test_ranks_that_take_no_notice_are_not_warned() -> None:
    assert near_the_end(running(), 10, stoppable=0).coordinate().stop is None


def test_an_extended_time_limit_delays_the_warning() -> None:
    job = near_the_end(running(), 100)
    job.coordinate()
    job.now_ns += 50 * SECOND
    end = job.records["n1"].job_end
    job.publish(1, job_end=replace(end, end_ns=end.end_ns + 3600 * SECOND, time_ns=8))
    assert job.coordinate().stop is None
    assert job.state.job_end.end_ns == end.end_ns + 3600 * SECOND


def test_a_preemption_is_named_at_once() -> None:
    job = near_the_end(running(), 90, preempted=True)
    assert job.coordinate().stop.reason == "the job is being preempted, 1 min 30 s left"


def test_slurm_names_a_preemption_after_its_signal_and_its_grace_counts() -> None:
    job = agreed()
    requested_ns, step = job.state.stop.requested_ns, job.state.stop.step
    end = JobEnd(requested_ns + 90 * SECOND, True, (), 7)
    stop = job.publish(1, job_end=end).coordinate().stop
    assert (stop.cause, stop.reason) == (PREEMPTED, "the job is being preempted (SIGTERM)")
    assert (stop.grace_s, stop.step, stop.committed) == (90.0, step, True)
    assert job.publish(1, job_end=replace(end, preempted=False, time_ns=8)).coordinate().stop == stop


def test_a_stop_that_slurm_did_not_cause_keeps_its_reason() -> None:
    job = running().publish(1, stop_request=StopRequest(NOTICE, "spot instance leaves", 5))
    job.coordinate()
    job.publish(1, job_end=JobEnd(job.now_ns + 90 * SECOND, True, (), 7))
    assert job.coordinate().stop.reason == "spot instance leaves"


def test_a_users_request_counts_for_its_attempt() -> None:
    job = running()
    request = StopRequest(USER, "ftslurm stop by ann", 9)
    state = fold(job.state, Observation(job.records, {}, 0.0, 0, stop_file=request), TIMING)
    assert (state.stop.cause, state.stop.reason, state.attempt) == (USER, "ftslurm stop by ann", ATTEMPT)
    assert state.phase == RUNNING


# Whether the script takes notice of a stop


def polls(job: Job, number: int, stepped: bool = False, stoppable: int = 1) -> Job:
    return job.publish(number, vitals=Vitals(job.state.round, Longest(), (), 0, None, stepped, stoppable))


def test_a_rank_that_calls_makes_the_run_one_that_takes_notice() -> None:
    job = running()
    assert job.coordinate().polled is None
    assert polls(job, 2).coordinate().polled == ATTEMPT
    assert polls(job, 2, stoppable=0, stepped=True).coordinate().polled == ATTEMPT


def test_a_restarted_script_takes_notice_before_it_calls() -> None:
    job = polls(running(), 1)
    job.coordinate()
    job.fail(1).coordinate()
    job.ready(1, 2).run()
    job.publish(2, stop_request=REQUEST)
    job.coordinate()
    stop = vote(vote(job, 1, None, polling=False), 2, None, polling=False).coordinate().stop
    assert (stop.proposal, stop.step) == (1, ANY_STEP)
    assert vote(vote(job, 1, None, polling=False), 2, None, polling=False).coordinate().stop.committed


def begun_again() -> Job:
    job = running()
    spec = RunSpec("r", "12.1", tuple(job.names), 2, 2, 3)
    job.state = begin(replace(job.state, polled=ATTEMPT), spec, "n1", "i1", 0)
    for number in (1, 2):
        job.publish(number, attempt="12.1", status=READY, round=0)
    return job.run()


def test_a_requeued_script_takes_notice_until_it_takes_steps_without_a_call() -> None:
    job = polls(begun_again(), 1, stoppable=0)
    assert job.coordinate().polled == ATTEMPT
    assert polls(job, 1, stoppable=0, stepped=True).coordinate().polled is None
    assert polls(job, 1, stoppable=1, stepped=True).coordinate().polled == "12.1"


def test_what_only_an_earlier_attempt_has_called_does_not_keep_a_users_stop_waiting() -> None:
    job = begun_again().publish(1, stop_request=StopRequest(USER, "why", 5))
    job.coordinate()
    vote(vote(job, 1, None, polling=False), 2, None, polling=False).coordinate()
    assert job.closed == (STOPPED, 75)


@pytest.mark.parametrize(
    ("here", "polled", "nodes", "expected"),
    [(True, None, 2, True), (False, ATTEMPT, 2, True), (False, "11.0", 1, True), (False, None, 2, None),
     (False, None, 1, False)],
)  # fmt: skip
def test_an_agent_knows_whether_the_script_takes_notice(
    here: bool, polled: str | None, nodes: int, expected: bool | None
) -> None:
    assert takes_notice(here, replace(running(nodes).state, polled=polled)) is expected


class Node:
    """An agent's machine, the state that it has read, and whether its rank has called `should_stop`."""

    def __init__(self, name: str) -> None:
        self.machine = AgentMachine(name, f"i{name[1:]}", ATTEMPT, 2, 15.0, 1e9)
        self.state: State | None = None
        self.polled = False
        self.stopped = False

    def does(self, actions: list[Action]) -> None:
        self.stopped = self.stopped or any(isinstance(action, act.Signal) for action in actions)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(200))
def test_ranks_of_a_script_that_has_called_anywhere_are_stopped_hard_nowhere(seed: int) -> None:
    rng = random.Random(seed)
    job = running(rng.randint(2, 4))
    nodes = [Node(name) for name in job.names]
    for node in nodes:
        node.machine.on_state(job.state, Moment(0, 0))
        node.machine.on_prepared(act.Prepared(1), Moment(0, 0))
    callers = rng.sample(nodes, rng.randint(0, len(nodes) - 1))
    signals_s = 5.0
    calls = [(rng.choice([1.0, 4.9, 5.0]), rng.random(), node, "call") for node in callers]
    signals = [(signals_s + rng.uniform(0.01, 0.1), rng.random(), node, "signal") for node in nodes]
    reads = [(at / 2 + rng.uniform(0, 0.4), rng.random(), node, "read") for at in range(16) for node in nodes]
    for at_s, _, node, what in sorted((*calls, *signals, *reads), key=lambda one: one[:2]):
        now = Moment(at_s, round(at_s * SECOND))
        if what == "call":
            node.polled = True
            polls(job, nodes.index(node) + 1)
        elif what == "signal":
            node.does(node.machine.on_signal(signal.SIGTERM, now, takes_notice(node.polled, node.state)))
        else:
            node.state = job.coordinate()
            node.does(node.machine.on_state(node.state, now))
            node.does(node.machine.on_time(now))
    assert {node.stopped for node in nodes} == {not callers}
    assert {node.machine.orderly_stop.request is None for node in nodes} == {not callers}


# The pages: ranks and their agent in any order of their loads and stores


class Rank:
    """A rank that calls with each step of a stride; `turn` lets it make one call, or one pause of a waiting call."""

    def __init__(self, words: list[int], stride: int) -> None:
        self.words = words
        self.stride = stride
        self.step = 0
        self.left: int | None = None
        self.side = RankSide(words, clock=lambda: 1, sleep=self._pause)

    def _pause(self, seconds: float) -> None:
        raise Waiting

    def turn(self) -> None:
        if self.left is not None:
            return
        try:
            stops = self.side.call(self.step)
        except Waiting:
            return  # The same call goes on at the next turn.
        if stops:
            self.left = self.step
        else:
            self.step += self.stride


class Waiting(Exception):
    """The rank waits for the decision."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(300))
def test_ranks_in_any_order_leave_at_the_same_step(seed: int) -> None:
    rng = random.Random(seed)
    stride = rng.choice([1, 1, 7])
    nodes = [[Rank([0] * stop_page.WORDS, stride) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 4))]
    ranks = [rank for node in nodes for rank in node]
    job = Job(len(nodes)).join().run().publish(1, stop_request=REQUEST)
    job.coordinate()
    known = [job.state.stop] * len(nodes)
    for _ in range(20_000):
        if all(rank.left is not None for rank in ranks):
            break
        at = rng.randrange(len(nodes) + 2)
        if at >= len(nodes):
            for rank in rng.sample(ranks, rng.randint(1, len(ranks))):
                for _ in range(rng.choice([1, 1, 5])):
                    rank.turn()
            continue
        if known[at] is not job.state.stop or rng.random() < 0.1:
            stop = known[at] = job.state.stop
            for rank in nodes[at]:
                side = AgentSide(rank.words)
                if stop.proposal:
                    side.propose(stop.proposal, stop.step)
                if stop.committed:
                    side.commit(stop.proposal)
            pages = {number: (page_of(rank.words), rank.left is None) for number, rank in enumerate(nodes[at])}
            job.publish(at + 1, stop_vote=stop_page.vote(stop, pages, 0, job.records[f"n{at + 1}"].stop_vote))
        job.coordinate()
    assert len({rank.left for rank in ranks}) == 1, [rank.left for rank in ranks]


def page_of(words: list[int]) -> stop_page.StopPage:
    data = stop_page.MAGIC + stop_page._PAGE.pack(*words)[8:]
    page = stop_page.decode(data)
    assert page is not None
    return page


@pytest.mark.parametrize(
    ("steps_after", "seconds_after", "trains_on"),
    [
        ((21, 22, 23), 0.1, True),
        # The loops around the training loop leave one after the other: they ask again.
        ((20, 20, 20), 0.1, False),
        ((21,), 0.1, False),
        ((21, 22, 23), 0.0001, False),
    ],
)
def test_a_rank_that_takes_further_steps_although_it_was_to_stop_trains_on(
    steps_after: tuple[int, ...], seconds_after: float, trains_on: bool
) -> None:
    words, now = [0] * stop_page.WORDS, [0]
    side = RankSide(words, clock=lambda: now[0])
    for step in range(20):
        now[0] += SECOND // 10
        assert not side.call(step)
    agent = AgentSide(words)
    agent.propose(1, 20)
    agent.commit(1)
    for step in (20, *steps_after):
        assert side.call(step)
        now[0] += int(seconds_after * SECOND)
    vote = stop_page.vote(agreed().state.stop, {0: (page_of(words), False)}, now[0])
    assert (vote.left, vote.trained_on) == (((), (0,)) if trains_on else ((0,), ()))


def test_a_run_whose_ranks_trained_on_to_their_end_has_succeeded() -> None:
    job = agreed()
    for number, ranks in ((1, (0, 1)), (2, (2, 3))):
        vote(job, number, 105, trained_on=ranks).publish(number, status=SUCCEEDED)
    state = job.coordinate()
    assert job.closed == (SUCCEEDED, 0)
    assert state.closed.reason == (
        "all 4 ranks on 2 nodes succeeded, although a stop was requested (SIGTERM from outside)"
    )
