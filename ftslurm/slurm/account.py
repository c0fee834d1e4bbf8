"""What Slurm says of a job, as one JSON object for the run directory: asked within a bounded time, and never fatal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.slurm.control import Answer, CommandSlurm, Runner, SlurmControl, run_command
from ftslurm.slurm.errors import SlurmError, SlurmTimeout
from ftslurm.slurm.facts import JobFacts

SCHEMA, VERSION = "ftslurm/scheduler", 1


def bounded_slurm(env: Mapping[str, str], bound_s: float, clock: Callable[[], float]) -> CommandSlurm:
    """Return Slurm's commands, all of which together may take `bound_s` seconds from now."""
    end = clock() + bound_s

    def run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Answer:
        left_s = end - clock()
        if left_s <= 0:
            raise SlurmTimeout(f"Slurm gave no answer in {bound_s:g} s")
        return run_command(command, environment, min(timeout_s, left_s))

    runner: Runner = run
    return CommandSlurm(env, bound_s, runner)


def account(slurm: SlurmControl, attempt: str, job_id: str, lost: Sequence[str], now_ns: int) -> dict[str, Any]:
    """Ask Slurm about a job, and about nodes that were lost in it.

    Args:
        slurm: whom to ask.
        attempt: the attempt that wants to know.
        job_id: `123` or `123_4`.
        lost: names of nodes.
        now_ns: nanoseconds since the epoch.

    Returns:
        The object; "problem" says why there is nothing else in it.
    """
    said: dict[str, Any] = {"schema": SCHEMA, "version": VERSION, "attempt": attempt, "asked_ns": now_ns}
    said |= {"job_id": job_id, "problem": None, "nodes": {}}
    try:
        facts = slurm.job(job_id)
        if facts is None:
            return said | {"problem": f"Slurm knows no job {job_id} any more"}
        said |= _said(facts)
        if lost:
            said["nodes"] = slurm.node_states(lost[:64])
        if facts.source == "scontrol" and facts.state in ("COMPLETING", "CANCELLED"):
            # While a job is ended scontrol does not say why, and never by whom; the accounting does at once (22.05).
            said |= _more(slurm.accounted(job_id), facts)
    except (SlurmError, ValueError) as error:
        said["problem"] = str(error)
    return said


def _more(accounted: JobFacts | None, facts: JobFacts) -> dict[str, Any]:
    if accounted is None or not accounted.ended or (accounted.restarts or 0) != (facts.restarts or 0):
        return {}
    return {"state": accounted.state, "cancelled_by": accounted.cancelled_by, "failed_node": accounted.failed_node}


def _said(facts: JobFacts) -> dict[str, Any]:
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
