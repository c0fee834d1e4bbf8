"""Scheduler query: Slurm's data on a job as one JSON object for the run directory; bounded time, never raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.slurm.control import Answer, CommandSlurm, Runner, SlurmControl, run_command
from ftslurm.slurm.errors import SlurmError, SlurmTimeout
from ftslurm.slurm.facts import JobFacts

SCHEMA, VERSION = "ftslurm/scheduler", 1


def bounded_slurm(env: Mapping[str, str], bound_s: float, clock: Callable[[], float]) -> CommandSlurm:
    """Return a `CommandSlurm` whose commands may take `bound_s` seconds from now in total."""
    end = clock() + bound_s

    def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Answer:
        left_s = end - clock()
        if left_s <= 0:
            raise SlurmTimeout(f"Slurm did not answer within {bound_s:g} s")
        return run_command(command, environment, min(timeout_s, left_s))

    runner: Runner = run
    return CommandSlurm(env, bound_s, runner)


def account(slurm: SlurmControl, attempt: str, job_id: str, lost: Sequence[str], now_ns: int) -> dict[str, Any]:
    """Query a job, and the nodes that were lost in it.

    Args:
        slurm: the Slurm interface.
        attempt: the querying attempt.
        job_id: `123` or `123_4`.
        lost: names of nodes.
        now_ns: nanoseconds since the epoch.

    Returns:
        The object; "problem" is the reason if it has no data.
    """
    record: dict[str, Any] = {"schema": SCHEMA, "version": VERSION, "attempt": attempt, "asked_ns": now_ns}
    record |= {"job_id": job_id, "problem": None, "nodes": {}}
    try:
        facts = slurm.job(job_id)
        if facts is None:
            return record | {"problem": f"Slurm no longer has a record of job {job_id}"}
        record |= _job_fields(facts)
        if lost:
            record["nodes"] = slurm.node_states(lost[:64])
        if facts.source == "scontrol" and facts.state in ("COMPLETING", "CANCELLED"):
            # While a job is ending scontrol does not show why, and never the user; the accounting does at once (22.05).
            record |= _end_fields(slurm.accounted(job_id), facts)
    except (SlurmError, ValueError) as error:
        record["problem"] = str(error)
    return record


def _end_fields(accounted: JobFacts | None, facts: JobFacts) -> dict[str, Any]:
    if accounted is None or not accounted.ended or (accounted.restarts or 0) != (facts.restarts or 0):
        return {}
    return {"state": accounted.state, "cancelled_by": accounted.cancelled_by, "failed_node": accounted.failed_node}


def _job_fields(facts: JobFacts) -> dict[str, Any]:
    code, signal = facts.exit_code or (None, None)
    return {
        "state": facts.state,
        "reason": facts.reason,
        "exit_code": code,
        "signal": signal,
        "restarts": facts.restarts,
        "start_ns": facts.start_ns,
        "end_ns": facts.end_ns,
        "time_limit_s": facts.time_limit_s,
        "failed_node": facts.failed_node,
        "cancelled_by": facts.cancelled_by,
        "preempted_ns": facts.preempted_ns,
        "source": facts.source,
    }
