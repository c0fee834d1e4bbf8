"""Whether a script is ready for an event: judged by the records that its rehearsal has left (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ftslurm.dataclasses import dataclass
from ftslurm.records.round import RoundRecord, WorkerRecord
from ftslurm.records.state import EXIT_INTERRUPTED, FAILED, NODE_LOST, RUNNING, RoundHistory, State
from ftslurm.records.stop import ANY_STEP, StopVote
from ftslurm.rehearse.events import HANG, NODE_LOSS, Event
from ftslurm.rendezvous.leaving import departure, place, training_on, unasked_ranks
from ftslurm.text import duration, one_line, plural, ranges

POLL = "add to the training loop: if ftslurm.should_stop(step): save a checkpoint, and leave"
LEAVE = "leave the training loop, and end, when ftslurm.should_stop(step) is true"
REPORT_STEPS = "add to the training loop: ftslurm.progress(step)"
LOAD = "have the script load its newest checkpoint when it starts"


@dataclass(frozen=True)
class Injection:
    """What happened.

    Attributes:
        target: the run, a node or a rank, for the user.
        round: in which it happened.
        time_ns: when.
        step: the highest step of the ranks; None: none was reported.
        grace_s: time to save, seconds; None: the event leaves none.
        is_requeued: whether a job would start again, if the event ends the attempt.
    """

    event: Event
    target: str
    round: int
    time_ns: int
    step: int | None
    grace_s: float | None = None
    is_requeued: bool = True


@dataclass(frozen=True)
class Records:
    """The records of the rehearsed run.

    Attributes:
        ended: the state at the end of the attempt in which the event happened; None: that attempt went on.
        votes: the nodes' last answers on the stop of that attempt.
        last: the state at the end of the rehearsal.
        rounds: the nodes' records of all rounds.
    """

    ended: State | None
    votes: tuple[StopVote, ...]
    last: State
    rounds: tuple[RoundRecord, ...]

    def steps(self, number: int) -> tuple[int, int] | None:
        """Return the first and the highest step of a round; None: none was reported."""
        found = [worker.progress for worker in self._workers(number) if worker.progress is not None]
        if not found:
            return None
        return min(one.first_step for one in found), max(one.last_step for one in found)

    def interval(self, number: int) -> int | None:
        """Return the steps between two reports of a rank in a round; None: unknown."""
        spans = [
            (one.last_step - one.first_step) / (one.marks - 1)
            for worker in self._workers(number)
            if (one := worker.progress) is not None and one.marks > 1
        ]
        return math.ceil(max(spans)) if spans else None

    def killed(self, number: int) -> tuple[int, ...]:
        """Return the ranks that their agents have killed in that round, because they did not leave."""
        return tuple(sorted(one.rank for one in self._workers(number) if one.stop_signal == "SIGKILL"))

    def ended_ns(self, number: int) -> int | None:
        """Return when the last rank of that round ended; None: one has not."""
        ends = [one.ended_ns for one in self._workers(number)]
        return None if None in ends else max((end for end in ends if end is not None), default=None)

    def _workers(self, number: int) -> Iterable[WorkerRecord]:
        return (worker for record in self.rounds if record.round == number for worker in record.workers)


@dataclass(frozen=True)
class Verdict:
    """The result.

    Attributes:
        is_ready: nothing is missing.
        text: one line.
        missing: what to do, one line each.
    """

    is_ready: bool
    text: str
    missing: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return it for the user."""
        return [self.text, *(f"  {line}" for line in self.missing)]


def judge(injection: Injection, records: Records) -> Verdict:
    """Return whether the script was ready for what was injected."""
    facts: list[str] = []
    problems: list[str] = []
    missing: list[str] = []
    if injection.event.stops_run:
        _judge_stop(injection, records, facts, problems, missing)
    else:
        _judge_restart(injection, records, facts, problems)
    if records.ended is not None and not injection.is_requeued:
        problems.append("the job would not start again")
        missing.append("leave the option --requeue at its default, node")
    _judge_resumption(injection, records, facts, problems, missing)
    title = injection.event.title
    if not problems:
        return Verdict(True, f"ready for {title}: {', '.join(facts)}")
    if injection.event.stops_run and not _has_polled(records):
        missing.insert(0, POLL)
    return Verdict(False, f"not ready for {title}: {'; '.join(problems)}", tuple(dict.fromkeys(missing)))


def _judge_stop(
    injection: Injection, records: Records, facts: list[str], problems: list[str], missing: list[str]
) -> None:
    """Judge whether all ranks left in time."""
    state = records.ended
    stop = state.stop if state is not None else None
    closed = state.closed if state is not None else None
    ended_ns = records.ended_ns(injection.round)
    took_s = (ended_ns - injection.time_ns) / 1e9 if ended_ns is not None else None
    killed = records.killed(injection.round)
    grace = f"{duration(injection.grace_s)} grace"
    has_polled = _has_polled(records)
    late = next((vote.late for vote in records.votes if vote.late), None)
    if not has_polled:
        problem = "no rank calls ftslurm.should_stop"
        facts.append(f"its ranks ended by SIGTERM, {duration(took_s)} of {grace}")
    else:
        problem = "not all ranks left"
        step = stop.step if stop is not None and stop.step != ANY_STEP else None
        done = "saved" if any(vote.saved for vote in records.votes) else "all ranks left"
        done += "" if step is None else f" at step {step}"
        if unasked_ranks(records.votes):
            done = departure(records.votes, state.world_size if state is not None else 0)
        facts += [done, f"{duration(took_s)} of {grace}"]
    if took_s is None or (injection.grace_s is not None and took_s >= injection.grace_s):
        where = (
            f": {one_line(late)}" if late and has_polled else f": ranks {ranges(killed)} were killed" if killed else ""
        )
        problems.append(f"{problem} within {grace}{where}" if has_polled else f"{problem}{where} after {grace}")
        missing.append("save faster, or let the job have more time (#SBATCH --signal, --warn-before-end)")
    elif has_polled and (closed is None or closed.exit_code != EXIT_INTERRUPTED):
        if going_on := training_on(records.votes):
            problems.append(f"{going_on}{place(records.votes)}")
            missing.append(LEAVE)
            return
        problems.append(f"the ranks did not leave in order: {one_line(closed.reason if closed is not None else '?')}")
        missing.append("let all ranks call ftslurm.should_stop(step) with the same steps, and leave when it is true")


def _judge_restart(injection: Injection, records: Records, facts: list[str], problems: list[str]) -> None:
    """Judge whether the event was noticed, and how long it took until ranks ran again."""
    entry = records.last.past(injection.round)
    if entry is None or entry.outcome == RUNNING or entry.ended_ns is None:
        undetected = "the hang was not detected" if injection.event is HANG else f"round {injection.round} went on"
        problems.append(undetected)
        return
    if entry.outcome not in (FAILED, NODE_LOST) and injection.event is not NODE_LOSS:
        problems.append(f"round {injection.round} ended otherwise: {one_line(entry.reason or entry.outcome)}")
        return
    facts.append(f"noticed after {duration((entry.ended_ns - injection.time_ns) / 1e9)}")
    after = _next_round(injection, records)
    if after is not None:
        facts.append(f"round {after.round} began {duration((after.formed_ns - injection.time_ns) / 1e9)} after it")


def _judge_resumption(
    injection: Injection, records: Records, facts: list[str], problems: list[str], missing: list[str]
) -> None:
    """Judge from which step training went on."""
    after = _next_round(injection, records)
    if after is None:
        state = records.ended or records.last
        why = one_line(state.closed.reason) if state.closed is not None else "its agents have not ended"
        problems.append(f"it did not start again: {why}")
        return
    if after.outcome in (FAILED, NODE_LOST):
        problems.append(f"it started again, and failed: {one_line(after.reason or after.outcome)}")
        return
    steps, before = records.steps(after.round), records.steps(injection.round)
    reached = _reached(injection, records)
    if steps is None or reached is None:
        problems.append("it started again, from which step is unknown: no rank reports steps")
        missing.append(REPORT_STEPS)
        return
    resumed = steps[0]
    repeated = max(0, reached - resumed)
    began = before[0] if before is not None else None
    text = f"resumed at {resumed}"
    interval = records.interval(injection.round)
    skipped = resumed - reached - interval if interval is not None else 0
    if skipped > 0:
        problems.append(f"{text}, {plural(skipped, 'step')} skipped: step {reached} was the last one before the event")
        missing.append("save the step with the checkpoint, and go on with the next one")
    elif repeated and injection.event.stops_run and not _has_polled(records):
        problems.append(f"no rank calls ftslurm.should_stop; {text}: {plural(repeated, 'step')} repeated")
    elif repeated and began is not None and resumed <= began:
        problems.append(f"{text}: {plural(repeated, 'step')} repeated: the script did not load its checkpoint")
        missing.append(f"{LOAD}; if it had not saved one before step {reached}, rehearse with a later --at-step")
    elif repeated and injection.event.stops_run:
        problems.append(f"{text}: {plural(repeated, 'step')} repeated: no checkpoint was saved at the stop, or loaded")
        missing.append("save when ftslurm.should_stop(step) is true, and load that checkpoint at the start")
    else:
        facts += [text, f"{plural(repeated, 'step')} repeated"]


def _has_polled(records: Records) -> bool:
    ended = records.ended
    return ended is not None and (ended.polled is not None or any(vote.polling for vote in records.votes))


def _next_round(injection: Injection, records: Records) -> RoundHistory | None:
    later = [entry for entry in records.last.history if entry.round > injection.round]
    return min(later, key=lambda entry: entry.round, default=None)


def _reached(injection: Injection, records: Records) -> int | None:
    """Return the highest step of the round in which it happened."""
    found = [injection.step]
    steps = records.steps(injection.round)
    if steps is not None:
        found.append(steps[1])
    entry = records.last.past(injection.round)
    if entry is not None and entry.failure is not None:
        found.append(entry.failure.step)
    found += [vote.step for vote in records.votes]
    return max((step for step in found if step is not None), default=None)
