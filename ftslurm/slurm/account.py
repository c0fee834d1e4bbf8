"""Scheduler query: Slurm's data on a job as the record of an attempt; bounded time, never raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ftslurm.dataclasses import replace
from ftslurm.records.attempt import SchedulerView
from ftslurm.slurm.commands import CommandSlurm
from ftslurm.slurm.control import SlurmControl
from ftslurm.slurm.errors import SlurmError, SlurmTimeout
from ftslurm.slurm.facts import JobFacts
from ftslurm.slurm.run_command import Answer, Runner, run_command
from ftslurm.text import duration


def bounded_slurm(env: Mapping[str, str], bound_s: float, clock: Callable[[], float]) -> CommandSlurm:
    """Return a `CommandSlurm` whose commands may take `bound_s` seconds from now in total."""
    end = clock() + bound_s

    def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Answer:
        left_s = end - clock()
        if left_s <= 0:
            raise SlurmTimeout(f"Slurm did not answer within {duration(bound_s)}")
        return run_command(command, environment, min(timeout_s, left_s))

    runner: Runner = run
    return CommandSlurm(env, bound_s, runner)


def account(slurm: SlurmControl, attempt: str, job_id: str, lost: Sequence[str], now_ns: int) -> SchedulerView:
    """Query a job, and the nodes that were lost in it.

    Args:
        slurm: the Slurm interface.
        attempt: the querying attempt.
        job_id: `123` or `123_4`.
        lost: names of nodes.
        now_ns: nanoseconds since the epoch.

    Returns:
        The record; `problem` is the reason if it has no data.
    """
    view = SchedulerView(attempt, now_ns, job_id)
    try:
        facts = slurm.job(job_id)
        if facts is None:
            return replace(view, problem=f"Slurm no longer has a record of job {job_id}")
        view = view_of(facts, attempt, job_id, now_ns)
        if lost:
            view = replace(view, nodes=slurm.node_states(lost[:64]))
        if facts.source == "scontrol" and facts.state in ("COMPLETING", "CANCELLED"):
            # While a job is ending scontrol does not show why, and never the user; the accounting does at once (22.05).
            return _ended(view, slurm.accounted(job_id))
    except (SlurmError, ValueError) as error:
        return replace(view, problem=str(error))
    return view


def view_of(facts: JobFacts, attempt: str, job_id: str, now_ns: int) -> SchedulerView:
    """Return Slurm's data on a job as the record of an attempt."""
    code, signal = facts.exit_code or (None, None)
    return SchedulerView(
        attempt,
        now_ns,
        job_id,
        state=facts.state,
        reason=facts.reason,
        exit_code=code,
        signal=signal,
        restarts=facts.restarts,
        start_ns=facts.start_ns,
        end_ns=facts.end_ns,
        time_limit_s=facts.time_limit_s,
        failed_node=facts.failed_node,
        cancelled_by=facts.cancelled_by,
        preempted_ns=facts.preempted_ns,
        source=facts.source,
        batch=facts.batch,
    )


def _ended(view: SchedulerView, accounted: JobFacts | None) -> SchedulerView:
    if accounted is None or not accounted.ended or (accounted.restarts or 0) != (view.restarts or 0):
        return view
    return replace(view, state=accounted.state, cancelled_by=accounted.cancelled_by, failed_node=accounted.failed_node)
