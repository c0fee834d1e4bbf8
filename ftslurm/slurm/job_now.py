"""What Slurm has on the job of a run at this moment: time left, a changed limit, a hold, nodes that are being drained.

The commands ask when they are run, within a deadline; agents do not poll for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from ftslurm.dataclasses import dataclass, field
from ftslurm.slurm.facts import ENDED
from ftslurm.text import clip, duration, names, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts
    from ftslurm.slurm.run_command import Runner

LIMIT_S = 2.0
"""Time-out of all of Slurm's commands together, in seconds."""
PENDING, SUSPENDED, COMPLETING = "PENDING", "SUSPENDED", "COMPLETING"
NO_CLUSTER = "establish a configuration source"
REASON_WIDTH = 80


@dataclass(frozen=True)
class JobNow:
    """The job at one time.

    Attributes:
        job_id: as requested.
        state, reason: squeue(1), JOB STATE CODES and JOB REASON CODES; None: Slurm gave no answer, or has no such job.
        end_ns: the end of its time limit, by Slurm's clock; None: it does not run, or has no limit.
        time_limit_s: seconds; None: no limit, or unknown.
        held: it is not started, or not started again, until it is released.
        nodes_out: its nodes that Slurm gives no further job, or that are down: name to state and reason.
        asked_ns: when, by this machine's clock.
        problem: why there is no answer.
    """

    job_id: str
    asked_ns: int
    state: str | None = None
    reason: str | None = None
    end_ns: int | None = None
    time_limit_s: int | None = None
    held: bool = False
    nodes_out: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    facts: JobFacts | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds until the end of its time limit."""
        if self.end_ns is None or self.state is None or self.state in (PENDING, COMPLETING, *ENDED):
            return None
        return max(0.0, (self.end_ns - self.asked_ns) / 1e9)


def ask(
    job_id: str,
    env: Mapping[str, str] | None = None,
    now_ns: Callable[[], int] = time.time_ns,
    run: Runner | None = None,
) -> JobNow:
    """Ask Slurm's controller about a job; never raises.

    Args:
        job_id: a number, or `123_4`.
        env: the commands' environment; default: this process's.
        now_ns: wall clock.
        run: runs a command (replaced in tests).
    """
    from ftslurm.slurm.account import bounded_slurm
    from ftslurm.slurm.commands import CommandSlurm
    from ftslurm.slurm.errors import SlurmError, in_short

    environ = os.environ if env is None else env
    slurm = CommandSlurm(environ, LIMIT_S, run) if run else bounded_slurm(environ, LIMIT_S, time.monotonic)
    asked_ns = now_ns()
    try:
        facts = slurm.live_job(job_id)
    except (SlurmError, ValueError) as error:
        # Slurm's programs are here, but no cluster is: a copy of the run on another machine.
        problem = None if NO_CLUSTER in str(error) else in_short(error)
        return JobNow(job_id, asked_ns, problem=problem)
    if facts is None:
        return JobNow(job_id, asked_ns)
    out: dict[str, str] = {}
    if not facts.ended and facts.node_list:
        try:
            out = {node.name: _state(node.state, node.reason) for node in slurm.nodes_out(facts.node_list)}
        except (SlurmError, ValueError):
            # The job's own data are worth more.
            pass
    return JobNow(
        job_id,
        asked_ns,
        facts.state,
        facts.reason,
        facts.end_ns,
        facts.time_limit_s,
        facts.held and not facts.ended and facts.state != SUSPENDED,  # scontrol shows both with priority 0
        out,
        facts=facts,
    )


def _state(state: str, reason: str | None) -> str:
    return f"{state} ({clip(safe(reason), REASON_WIDTH)})" if reason else state


def lines(now: JobNow, limit_was_s: int | None) -> list[str]:
    """Return what the user should know, one line each; `limit_was_s`: the time limit when the attempt began (pure)."""
    if now.problem is not None:
        return [clip(safe(now.problem), 160)]
    if now.state is None:
        return []
    job = f"job {safe(now.job_id)}"
    found = []
    if now.state == PENDING:
        why = f" ({safe(now.reason)})" if now.reason else ""
        found.append(f"Slurm: {job} is pending{why}")
    elif now.left_s is not None:
        running = "" if now.state == "RUNNING" else f" ({safe(now.state)})"
        found.append(
            f"Slurm: {job}{running} has {duration(now.left_s)} left{changed_limit(now.time_limit_s, limit_was_s)}"
        )
    elif now.state != "RUNNING":
        found.append(f"Slurm: {job} is {safe(now.state)}")
    elif changed := changed_limit(now.time_limit_s, limit_was_s):
        found.append(f"Slurm: {job} has no time limit{changed}")
    if now.state == SUSPENDED:
        found.append(f"Slurm: {job} goes on with: scontrol resume {safe(now.job_id)}")
    if now.held:
        again = "" if now.state == PENDING else " again"
        found.append(f"Slurm: {job} is held and does not start{again} before: scontrol release {safe(now.job_id)}")
    by_state: dict[str, list[str]] = {}
    for node, state in now.nodes_out.items():
        by_state.setdefault(state, []).append(node)
    found += [f"Slurm: {names(nodes)} {'is' if len(nodes) == 1 else 'are'} {s}" for s, nodes in by_state.items()]
    return found


def changed_limit(limit_s: int | None, was_s: int | None) -> str:
    """``, its time limit was changed from 1 h to 2 h``; empty if it is as it was, or that is unknown (pure)."""
    if was_s is None or was_s == limit_s:
        return ""
    return f", its time limit was changed from {duration(was_s)} to {'none' if limit_s is None else duration(limit_s)}"
