"""An orderly stop: the part of the fold that finds the step at which all ranks leave, and that closes the run then.

The coordinator proposes a step ahead of every rank. Each agent makes its ranks wait at that step and answers whether
one has passed it already; then a higher step is proposed. When no rank has passed it, the step is committed: all ranks
leave there. A rank waits only for this decision, and only if it reaches the step meanwhile. Ranks that have not begun
to call `should_stop` leave there, too; while no rank of the round has, each leaves at its first call.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import replace
from ftslurm.monitor.timeouts import FACTOR
from ftslurm.records import cause
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import EXIT_FAILED, EXIT_INTERRUPTED, FAILED, RUNNING, STOPPED, Failure, State
from ftslurm.records.stop import (
    ANY_STEP,
    DRAIN,
    NOTICE,
    PREEMPTED,
    SIGNAL,
    TIME_LIMIT,
    USER,
    Stop,
    StopRequest,
    StopVote,
)
from ftslurm.rendezvous.closing import close, end_round, stop_cause, stop_code
from ftslurm.rendezvous.leaving import departure, have_all_left, place
from ftslurm.rendezvous.observation import Observation, Timing, record_of
from ftslurm.text import duration

LEAD_S = 0.5
"""The first proposal is ahead by so many seconds' steps, each further one by twice as many: the time until all agents
have made their ranks wait there."""
LEAD_LIMIT = 10
LEAST_WARNING_S, SAVE_FACTOR = 60.0, 2.0
LONGEST_WARNING = 0.5
"""The warning before the end of the job is at most this part of the time from the attempt's first round on."""
CHECKPOINT = "checkpoint"
"""The section whose duration tells how long a save takes."""
_CAUSES_OF_END = {
    TIME_LIMIT: cause.TIME_LIMIT,
    PREEMPTED: cause.PREEMPTED,
    NOTICE: cause.NOTICE,
    USER: cause.CANCELLED,
    DRAIN: cause.NODE,
}


def fold_stop(state: State, observation: Observation, timing: Timing) -> State:
    """Return `state` with a new request to stop, or the agreement's next step; `state` itself if nothing changes."""
    state = _with_polled(_with_job_end(state, observation), observation)
    if state.stop is None:
        request = _request(state, observation, timing)
        if request is None:
            return state
        state = replace(state, stop=request)
    state = _with_preemption(state)
    if state.phase != RUNNING or state.stop is None or state.stop.committed:
        return state
    return _negotiate(state, state.stop, observation)


def _with_job_end(state: State, observation: Observation) -> State:
    """Return `state` with the newest answer of Slurm's on the end of the job."""
    answers = [record.job_end for record in observation.records.values() if record.attempt == state.attempt]
    newest = max((answer for answer in answers if answer is not None), key=lambda one: one.time_ns, default=None)
    if newest is None:
        return state
    known = state.job_end
    if known is not None and replace(newest, time_ns=known.time_ns) == known:
        return state
    return state if known is not None and newest.time_ns <= known.time_ns else replace(state, job_end=newest)


def _with_polled(state: State, observation: Observation) -> State:
    """Return `state` with the attempt in which a rank has called `should_stop`: that is a property of the script.

    That of an earlier attempt is forgotten when ranks take steps without calling: the script was changed meanwhile.
    """
    if state.polled == state.attempt or state.phase != RUNNING:
        return state
    records = [record for record in _participants(state, observation) if record is not None]
    vitals = [one.vitals for one in records if one.vitals is not None and one.vitals.round == state.round]
    if any(one.stoppable for one in vitals) or any(vote.polling for vote in _last_votes(state, observation)):
        return replace(state, polled=state.attempt)
    return replace(state, polled=None) if state.polled is not None and any(one.stepped for one in vitals) else state


def _request(state: State, observation: Observation, timing: Timing) -> Stop | None:
    """Return the first request to stop; None: there is none."""
    requests = [
        (record.stop_request.time_ns, record.node, record.stop_request)
        for record in observation.records.values()
        if record.attempt == state.attempt and record.stop_request is not None
    ]
    if requests:
        _, node, request = min(requests, key=lambda one: one[:2])
        return _stop(state, observation, request, node)
    if observation.stop_file is not None:
        return _stop(state, observation, observation.stop_file, None)
    warning = _warning(state, observation, timing)
    return None if warning is None else _stop(state, observation, warning, None)


def _stop(state: State, observation: Observation, request: StopRequest, node: str | None) -> Stop:
    now_ns, grace_s = observation.now_ns, request.grace_s
    return Stop(request.cause, request.reason, node, now_ns, state.round, signal=request.signal, grace_s=grace_s)


def _with_preemption(state: State) -> State:
    """Return `state` with a stop by signal named a preemption if Slurm says so, which is asked after the signal."""
    stop, end = state.stop, state.job_end
    if stop is None or stop.cause != SIGNAL or end is None or not end.preempted:
        return state
    grace_s = stop.grace_s
    if end.end_ns is not None and grace_s is not None:
        grace_s = max(grace_s, (end.end_ns - stop.requested_ns) / 1e9)
    reason = f"the job is being preempted ({stop.signal})"
    return replace(state, stop=replace(stop, cause=PREEMPTED, reason=reason, grace_s=grace_s))


def _warning(state: State, observation: Observation, timing: Timing) -> StopRequest | None:
    """Return a request when Slurm ends the job soon; only for ranks that take notice of a stop."""
    end = state.job_end
    if end is None or end.end_ns is None or state.phase != RUNNING or state.polled != state.attempt:
        return None
    # The job's end is by Slurm's clock, which cluster-wide services keep near this node's.
    left_s = (end.end_ns - observation.now_ns) / 1e9
    if end.preempted:
        return StopRequest(PREEMPTED, f"the job is being preempted, {_left(left_s)}", observation.now_ns)
    if left_s > min(warning_s(state, observation, timing), longest_warning_s(state, end.end_ns)):
        return None
    return StopRequest(TIME_LIMIT, f"the time limit is near, {_left(left_s)}", observation.now_ns)


def _left(left_s: float) -> str:
    return f"{duration(max(left_s, 0.0))} left"


def warning_s(state: State, observation: Observation, timing: Timing) -> float:
    """Return how many seconds before its end the job is stopped: as configured, or twice the longest save so far."""
    if timing.warn_before_end_s is not None:
        return timing.warn_before_end_s
    saves = [
        record.vitals.longest.completed.sections.get(CHECKPOINT, 0.0)
        for record in _participants(state, observation)
        if record is not None and record.vitals is not None
    ]
    if state.learned is not None:
        saves.append(state.learned.timeouts.sections.get(CHECKPOINT, 0.0) / FACTOR)
    return max(LEAST_WARNING_S, SAVE_FACTOR * max(saves, default=0.0) + LEAST_WARNING_S / 2)


def longest_warning_s(state: State, end_ns: int) -> float:
    """Return half of the time that the attempt's ranks have: a limit as short as a save leaves time for steps."""
    began_ns = next((past.formed_ns for past in state.history if past.attempt == state.attempt), end_ns)
    return LONGEST_WARNING * (end_ns - began_ns) / 1e9


def _participants(state: State, observation: Observation) -> list[NodeRecord | None]:
    return [record_of(participant, observation) for participant in state.participants]


def votes(state: State, stop: Stop, observation: Observation) -> list[StopVote | None]:
    """Return each participant's answer to the newest proposal; None: it has not answered."""
    found = []
    for record in _participants(state, observation):
        vote = record.stop_vote if record is not None else None
        answers = vote is not None and vote.round == state.round and vote.proposal == stop.proposal
        found.append(vote if answers else None)
    return found


def _negotiate(state: State, stop: Stop, observation: Observation) -> State:
    if stop.round != state.round:
        return state
    answers = votes(state, stop, observation)
    known = [vote for vote in answers if vote is not None]
    if len(known) < len(answers):
        return state
    if not any(vote.polling for vote in known) and state.polled != state.attempt:
        # Ranks without `should_stop` get SIGTERM and their grace; Slurm sends its own at the end of the job.
        if stop.cause in (USER, NOTICE, DRAIN):
            return _close_at_once(state, stop, observation)
        if state.polled is None:
            return state
        # By an earlier attempt the script takes notice: its ranks leave at their first call, or when their grace ends.
    if stop.proposal and not any(vote.passed for vote in known):
        return replace(state, stop=replace(stop, committed=True))
    proposal = stop.proposal + 1
    return replace(state, stop=replace(stop, proposal=proposal, step=proposed_step(known, proposal)))


def _close_at_once(state: State, stop: Stop, observation: Observation) -> State:
    state = end_round(state, observation, STOPPED, stop.reason, None)
    return close(state, STOPPED, stop.reason, EXIT_INTERRUPTED, observation.now_ns, cause_of(stop))


def proposed_step(known: list[StopVote], proposal: int) -> int:
    """Return a step ahead of every rank, given the nodes' answers."""
    steps = [vote.step for vote in known if vote.step is not None]
    if not steps:
        return ANY_STEP
    lead_s = LEAD_S * 2 ** min(proposal - 1, LEAD_LIMIT)
    intervals = [vote.step_s for vote in known if vote.step_s]
    lead = int(lead_s / min(intervals)) + 1 if intervals else 1
    return max(steps) + min(max(lead, proposal), 10**9)


def lets_others_save(state: State, failures: Sequence[Failure], observation: Observation, timing: Timing) -> bool:
    """Return whether ranks that failed after they had left for the stop do not end the round yet: others may save.

    The agents end the grace of a signal. Without one the others have the time that a save is thought to take.
    """
    stop = state.stop
    if stop is None or stop.round != state.round or not all(failure.leaving for failure in failures):
        return False
    records = [record for record in _participants(state, observation) if record is not None]
    if not any(one.round == state.round and one.status in (RUNNING, FAILED) for one in records):
        return False
    return observation.failing_for_s < max(warning_s(state, observation, timing), stop.grace_s or 0.0)


def is_orderly(state: State, observation: Observation) -> bool:
    """Return whether the ranks have ended because they were to stop, and not because they were done."""
    return state.stop is not None and any(vote.left for vote in _last_votes(state, observation))


def _last_votes(state: State, observation: Observation) -> list[StopVote]:
    found = (record.stop_vote for record in _participants(state, observation) if record is not None)
    return [vote for vote in found if vote is not None and vote.round == state.round]


def cause_of(stop: Stop) -> str:
    """Return the cause of an attempt's end that the stop stands for."""
    if stop.cause == SIGNAL:
        return stop_cause(stop.signal)
    return _CAUSES_OF_END[stop.cause]


def close_orderly(state: State, observation: Observation) -> State:
    """Close a run whose ranks have all ended with success, and some of them by an orderly stop."""
    stop = state.stop
    assert stop is not None
    last = _last_votes(state, observation)
    took_s = (observation.now_ns - stop.requested_ns) / 1e9
    # It includes what the agents need after the ranks have ended.
    grace_s = stop.grace_s if stop.grace_s is not None and took_s <= stop.grace_s else None
    within = f" of {duration(grace_s)} grace" if grace_s is not None else ""
    # Which ranks have to save is the script's choice: it is called saved when each has left, and one has saved.
    complete = have_all_left(last, state.world_size) and any(vote.saved for vote in last)
    done = f"saved{place(last)}" if complete else departure(last, state.world_size)
    result = f"{done} ({duration(took_s)}{within})"
    reason = f"interrupted: {stop.reason}; {result}"
    state = replace(state, stop=replace(stop, orderly=True, result=result))
    state = end_round(state, observation, STOPPED, reason, None)
    return close(state, STOPPED, reason, EXIT_INTERRUPTED, observation.now_ns, cause_of(stop))


def close_stopped(state: State, observation: Observation) -> State:
    """Close a run that is to stop and whose round is over, whatever ended it: no further round is formed."""
    stop = state.stop
    assert stop is not None
    past = state.past(state.round)
    left = departure(_last_votes(state, observation), state.world_size)
    if left:
        state = replace(state, stop=replace(stop, result=left))
    reason = f"{stop.reason}{f'; {left}' if left else ''}"
    code = stop_code(stop.signal) if stop.signal is not None else EXIT_INTERRUPTED
    if past is not None and past.failure is not None and past.failure.leaving:
        code = code if stop.signal is not None else EXIT_FAILED
        return close(state, STOPPED, f"{past.reason}; {reason}", code, observation.now_ns, cause_of(stop))
    if past is not None and past.reason:
        reason += f"; round {past.round} had ended: {past.reason}"
    return close(state, STOPPED, reason, code, observation.now_ns, cause_of(stop))
