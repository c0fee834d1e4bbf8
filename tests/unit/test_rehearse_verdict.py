"""The verdict of a rehearsal, by the records that it leaves."""

from __future__ import annotations

import pytest

from ftslurm.dataclasses import replace
from ftslurm.records.round import Progress, RoundRecord, WorkerRecord
from ftslurm.records.state import FAILED, RUNNING, STOPPED, Closed, Lease, RoundHistory, State
from ftslurm.records.stop import ANY_STEP, SIGNAL, Stop, StopVote
from ftslurm.rehearse.events import EVENTS, HANG, NODE_LOSS, OOM, PREEMPT, RANK_DEATH, TIMEOUT, Event
from ftslurm.rehearse.verdict import Injection, Records, Verdict, judge

S = 10**9
AT = 100 * S
STEP = 120


def entry(number: int, outcome: str, ended_s: float | None, reason: str | None = None) -> RoundHistory:
    ended_ns = None if ended_s is None else AT + int(ended_s * S)
    formed_ns = (50 if number == 1 else 104) * S
    return RoundHistory(number, "a.0", ("n1",), 2, formed_ns, ended_ns, outcome, reason, None)


def state(
    *history: RoundHistory, closed: Closed | None = None, stop: Stop | None = None, polled: str | None = None
) -> State:
    lease = Lease("n1", "i", 1)
    names = ("a.0",)
    made = State("r", "a.0", names, ("n1",), 1, 1, 3, 0, lease, RUNNING, 2, (), 2, None, (), history, closed)
    return replace(made, stop=stop, polled=polled)


def ranks(
    number: int,
    first: int | None,
    last: int | None,
    ended_s: float | None = 3.1,
    signal: str | None = None,
    interval: int = 1,
) -> RoundRecord:
    steps = None if first is None or last is None else Progress(first, None, last, None, (last - first) // interval + 1)
    ended_ns = None if ended_s is None else AT + int(ended_s * S)
    workers = tuple(WorkerRecord(rank, ended_ns=ended_ns, stop_signal=signal, progress=steps) for rank in (0, 1))
    return RoundRecord(number, "a.0", "n1", "i", "n1", 1, 0, 2, None, 0, ended_ns, STOPPED, None, None, workers)


AGAIN = entry(2, STOPPED, 20.0)
SAVED = StopVote(1, 1, step=STEP, left=(0, 1), saved=(0, 1))
UNASKED = StopVote(1, 0)
STOP = Stop(SIGNAL, "SIGTERM from outside", "n1", AT, 1, "SIGTERM", 30.0, 1, STEP, True)


def stopped(
    event: Event = PREEMPT,
    *,
    first: int | None = STEP,
    began: int = 0,
    stop: Stop | None = STOP,
    polled: str | None = "a.0",
    vote: StopVote = SAVED,
    took_s: float | None = 3.1,
    code: int = 75,
    signal: str | None = None,
    is_requeued: bool = True,
    again: RoundHistory | None = AGAIN,
    interval: int = 1,
) -> Verdict:
    closed = Closed(STOPPED, "interrupted: SIGTERM", code, AT + 4 * S)
    one = entry(1, STOPPED, 3.2)
    ended = state(one, closed=closed, stop=stop, polled=polled)
    last = state(one, *([again] if again else []))
    steps = None if first is None else first + 10
    rounds = (ranks(1, began, STEP, took_s, signal, interval), ranks(2, first, steps, 20.0))
    injection = Injection(event, "the run", 1, AT, 115, 30.0, is_requeued)
    return judge(injection, Records(ended, (vote,), last, rounds))


def test_a_script_that_saves_at_the_stop_and_resumes_there_is_ready() -> None:
    expected = "ready for preemption: saved at step 120, 3.1 s of 30 s grace, resumed at 120, 0 steps repeated"
    assert stopped() == Verdict(True, expected)
    assert stopped(TIMEOUT).text.startswith("ready for the time limit: saved at step 120")


def test_a_script_that_resumes_beyond_the_step_repeats_none() -> None:
    assert stopped(first=121).text.endswith("resumed at 121, 0 steps repeated")


def test_a_script_that_skips_steps_is_not_ready() -> None:
    verdict = stopped(first=131)
    assert not verdict.is_ready
    assert "resumed at 131, 10 steps skipped: step 120 was the last one before the event" in verdict.text
    assert verdict.missing == ("save the step with the checkpoint, and go on with the next one",)


def test_steps_that_are_reported_at_intervals_are_not_skipped() -> None:
    assert stopped(first=130, interval=10).is_ready


def test_a_script_that_trains_on_after_the_stop_is_not_ready() -> None:
    verdict = stopped(vote=replace(SAVED, left=(), trained_on=(0, 1)), code=0)
    assert not verdict.is_ready
    assert "ranks 0-1 trained on after should_stop had returned True at step 120" in verdict.text
    assert verdict.missing[0] == "leave the training loop, and end, when ftslurm.should_stop(step) is true"


def test_ranks_that_leave_without_a_step_need_none_in_the_verdict() -> None:
    text = stopped(stop=replace(STOP, step=ANY_STEP), vote=replace(SAVED, step=None, saved=())).text
    assert text.startswith("ready for preemption: all ranks left, 3.1 s of 30 s grace, resumed at 120")


def test_a_script_that_does_not_load_its_checkpoint_is_not_ready() -> None:
    found = stopped(first=0)
    assert not found.is_ready
    problem = "resumed at 0: 120 steps repeated: the script did not load its checkpoint"
    assert found.text == f"not ready for preemption: {problem}"
    assert "load" in found.missing[0]


def test_a_script_that_goes_on_from_an_older_checkpoint_is_not_ready_for_a_stop() -> None:
    found = stopped(first=100)
    assert "resumed at 100: 20 steps repeated: no checkpoint was saved at the stop" in found.text


def test_a_script_that_does_not_poll_is_not_ready_for_a_stop() -> None:
    found = stopped(first=100, stop=None, polled=None, vote=UNASKED)
    assert (
        found.text == "not ready for preemption: no rank calls ftslurm.should_stop; resumed at 100: 20 steps repeated"
    )
    assert "ftslurm.should_stop(step)" in found.missing[0]


def test_a_script_that_polls_is_not_reported_as_one_that_does_not_when_its_ranks_were_stopped_early() -> None:
    found = stopped(first=100, stop=None, vote=UNASKED, code=143)
    assert "no rank calls" not in found.text
    assert "the ranks did not leave in order: interrupted: SIGTERM" in found.text
    assert not any("add to the training loop" in line for line in found.missing)


def test_a_script_that_saves_in_its_own_handler_of_sigterm_is_ready() -> None:
    found = stopped(stop=None, polled=None, vote=UNASKED)
    assert found.is_ready
    assert "its ranks ended by SIGTERM, 3.1 s of 30 s grace, resumed at 120" in found.text


def test_a_save_that_exceeds_the_grace_is_named_with_its_place() -> None:
    late = replace(SAVED, left=(), saved=(), late="stop requested 30 s ago: rank 1 was in section checkpoint")
    found = stopped(took_s=30.2, code=143, signal="SIGKILL", vote=late, first=100)
    assert "not all ranks left within 30 s grace: stop requested 30 s ago: rank 1 was in section" in found.text
    assert any("save faster" in line for line in found.missing)


def test_ranks_that_have_not_ended_at_all_have_exceeded_the_grace() -> None:
    assert "not all ranks left within 30 s grace" in stopped(took_s=None).text


def test_ranks_that_leave_in_disorder_are_not_ready() -> None:
    assert "the ranks did not leave in order: interrupted: SIGTERM" in stopped(code=143).text


def test_a_job_that_is_not_requeued_does_not_start_again() -> None:
    found = stopped(is_requeued=False)
    assert "the job would not start again" in found.text
    assert "--requeue" in found.missing[0]


def test_a_run_that_does_not_start_again_is_not_ready() -> None:
    assert "it did not start again: interrupted: SIGTERM" in stopped(again=None).text


def test_a_run_that_fails_when_it_starts_again_is_not_ready() -> None:
    found = stopped(again=entry(2, FAILED, 5.0, "rank 0 on n1 failed: KeyError: 'model'"))
    assert "it started again, and failed: rank 0 on n1 failed: KeyError" in found.text


@pytest.mark.parametrize("event", EVENTS.values())
def test_without_steps_it_is_unknown_where_it_resumed_which_is_not_ready(event: Event) -> None:
    rounds = (ranks(1, None, None), ranks(2, None, None))
    history = (entry(1, FAILED, 1.0), entry(2, STOPPED, 20.0))
    closed = Closed(STOPPED, "interrupted", 75, AT)
    ended = state(entry(1, STOPPED, 1.0), closed=closed, stop=STOP) if event.stops_run else None
    found = judge(Injection(event, "rank 1", 1, AT, None, 30.0), Records(ended, (SAVED,), state(*history), rounds))
    assert not found.is_ready
    assert "from which step is unknown: no rank reports steps" in found.text
    assert any("ftslurm.progress(step)" in line for line in found.missing)


def restarted(event: Event, *history: RoundHistory, first: int = 100, ended: State | None = None) -> Verdict:
    rounds = (ranks(1, 0, STEP), ranks(2, first, first + 10))
    return judge(Injection(event, "rank 1 on n1", 1, AT, STEP), Records(ended, (), state(*history), rounds))


@pytest.mark.parametrize("event", [OOM, HANG, RANK_DEATH, NODE_LOSS])
def test_a_restart_from_an_older_checkpoint_is_ready_for_a_failure(event: Event) -> None:
    found = restarted(event, entry(1, FAILED, 1.0), entry(2, STOPPED, 20.0))
    assert found == Verdict(
        True,
        f"ready for {event.title}: noticed after 1 s, round 2 began 4 s after it, resumed at 100, 20 steps repeated",
    )


def test_a_restart_from_the_first_step_is_not_ready() -> None:
    found = restarted(RANK_DEATH, entry(1, FAILED, 1.0), entry(2, STOPPED, 20.0), first=0)
    assert "resumed at 0: 120 steps repeated: the script did not load its checkpoint" in found.text
    assert "a later --at-step" in found.missing[0]


def test_a_hang_that_is_not_detected_is_not_ready() -> None:
    found = restarted(HANG, entry(1, RUNNING, None))
    assert "the hang was not detected" in found.text


def test_a_round_that_ended_otherwise_proves_nothing() -> None:
    found = restarted(RANK_DEATH, entry(1, STOPPED, 1.0, "maintenance"))
    assert "round 1 ended otherwise: maintenance" in found.text


def test_a_run_without_a_restart_left_is_not_ready() -> None:
    closed = Closed(FAILED, "no restarts allowed (--max-restarts 0)", 1, AT)
    ended = state(entry(1, FAILED, 1.0), closed=closed)
    found = restarted(RANK_DEATH, entry(1, FAILED, 1.0), ended=ended)
    assert "it did not start again: no restarts allowed (--max-restarts 0)" in found.text


def test_text_of_the_records_is_printed_safely() -> None:
    found = stopped(again=entry(2, FAILED, 5.0, "rank 0 failed: \x1b[31mred"))
    assert "\x1b" not in found.text
