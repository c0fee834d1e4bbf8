"""Whether the job starts again after the end of an attempt (pure).

The rules, in their order:

1. What has succeeded, would fail again, or was stopped by a user ends. A job that Slurm has requeued is left to it.
2. `--requeue` names the causes for which the job starts again; each value includes those before it:

   =============== =======================================================================================
   ``never``       none
   ``interrupted`` preemption, time limit, a notice of `--stop-when`
   ``node``        lost nodes or agents, unhealthy nodes, an unreachable master (the default)
   ``any``         also failures and hangs of ranks, once `--max-restarts` is used up
   =============== =======================================================================================

3. After the time limit it starts again only if this attempt has got further than the run had before: otherwise the
   next one would end in the same way.
4. Two attempts in a row that ended by the same cause, and of which neither gained a step, end the job with
   `EXIT_DO_NOT_REQUEUE`. A preemption proves nothing about the job, so it is not counted; nor are attempts of scripts
   that report no steps.
5. Each cause has a budget of requeues, which is renewed when an attempt gains a step. The notice of a file that nothing
   removes stops each attempt anew, so it has one, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.records.cause import (
    ANY,
    FAILURE,
    HANG,
    IF_INTERRUPTED,
    IF_NODE,
    NETWORK,
    NEVER,
    NODE,
    NON_RETRYABLE,
    NOTICE,
    PREEMPTED,
    REQUEUE_POLICIES,
    REQUEUED,
    SUCCEEDED,
    TIME_LIMIT,
    UNHEALTHY,
)
from ftslurm.records.state import EXIT_DO_NOT_REQUEUE
from ftslurm.records.verdict import BY_SLURM, END, REQUEUE, AttemptVerdict
from ftslurm.text import plural

_INTERRUPTIONS = (PREEMPTED, TIME_LIMIT, NOTICE)
_NODES = (NODE, UNHEALTHY, NETWORK)
_FAILURES = (FAILURE, HANG)
_CAUSES: Mapping[str, tuple[str, ...]] = {
    NEVER: (),
    IF_INTERRUPTED: _INTERRUPTIONS,
    IF_NODE: (*_INTERRUPTIONS, *_NODES),
    ANY: (*_INTERRUPTIONS, *_NODES, *_FAILURES),
}
BUDGET = 3
_UNLIMITED = (PREEMPTED, TIME_LIMIT)


@dataclass(frozen=True)
class AttemptEnd:
    """The end of an attempt.

    Attributes:
        cause: one of `ftslurm.records.cause`, with Slurm's data considered.
        what: the same as text: "node n2 was lost".
        exit_code: of the attempt.
        gained: whether it got further than the run had before; None: no step was ever reported.
        reached: the highest step of the run.
    """

    cause: str
    what: str
    exit_code: int
    gained: bool | None = None
    reached: int | None = None


@dataclass(frozen=True)
class Decision:
    """What follows; fields as of `AttemptVerdict`."""

    action: str
    text: str
    exit_code: int
    number: int = 0
    budget: int | None = None


def decide(
    policy: str, end: AttemptEnd, lineage: Sequence[AttemptVerdict], chained: bool = False, has_script: bool = True
) -> Decision:
    """Return what follows from the end of an attempt.

    Args:
        policy: one of REQUEUE_POLICIES.
        end: of this attempt.
        lineage: the verdicts of the run's earlier attempts, oldest first.
        chained: the job belongs to a chain, whose next job goes on after the time limit.
        has_script: it has a batch script that Slurm can start again; False for a job of salloc.
    """
    if end.cause == REQUEUED:
        return Decision(BY_SLURM, f"requeued by Slurm: {end.what}", end.exit_code)
    if end.cause not in _CAUSES[ANY]:
        return Decision(END, "", end.exit_code)
    if end.cause not in _CAUSES[policy]:
        wanted = next(name for name in REQUEUE_POLICIES if end.cause in _CAUSES[name])
        return Decision(END, f"not requeued: {end.what} (--requeue {policy}; see --requeue {wanted})", end.exit_code)
    if not has_script:
        return Decision(END, f"not requeued: {end.what}, and the job has no batch script (salloc)", end.exit_code)
    if chained and end.cause == TIME_LIMIT and end.gained is not False:
        return Decision(END, f"left to the next job of the chain, if there is one: {end.what}", end.exit_code)
    if end.cause == TIME_LIMIT and end.gained is None:
        why = "the script reports no steps (ftslurm.progress), so it is unknown whether a further start would get on"
        return Decision(END, f"not requeued: {end.what}, and {why}", end.exit_code)
    if end.gained is False and (end.cause == TIME_LIMIT or _is_repeated(end, lineage)):
        step = "" if end.reached is None else f" beyond {end.reached}"
        again = "" if end.cause == TIME_LIMIT else " again"
        text = f"not requeued, it would fail again: {end.what}{again}, without a step gained{step}"
        return Decision(END, text, EXIT_DO_NOT_REQUEUE)
    if end.cause in _UNLIMITED:
        return Decision(REQUEUE, f"requeued: {end.what}", end.exit_code)
    number = 1 + (0 if end.gained else _requeues(end.cause, lineage))
    if number > BUDGET:
        used = f"the {plural(BUDGET, 'requeue')} for this cause are used up"
        return Decision(END, f"not requeued: {end.what}; {used}", end.exit_code, number - 1, BUDGET)
    return Decision(REQUEUE, f"requeued: {end.what} ({number} of {BUDGET})", end.exit_code, number, BUDGET)


def ends_chain(cause: str, decision: str, exit_code: int) -> bool:
    """Return whether the other jobs of a chain have nothing to do after an attempt.

    Args:
        cause, exit_code: of its verdict.
        decision: the verdict's action.
    """
    return decision == END and (cause in (SUCCEEDED, NON_RETRYABLE, *_FAILURES) or exit_code == EXIT_DO_NOT_REQUEUE)


def _is_repeated(end: AttemptEnd, lineage: Sequence[AttemptVerdict]) -> bool:
    """Return whether the previous attempt ended by the same cause and had not gained a step either."""
    last = lineage[-1] if lineage else None
    return end.cause != PREEMPTED and last is not None and last.cause == end.cause and last.gained is False


def _requeues(cause: str, lineage: Sequence[AttemptVerdict]) -> int:
    """Return the number of requeues for a cause since the last attempt that gained a step, that one included."""
    count = 0
    for past in reversed(lineage):
        count += past.cause == cause and past.action == REQUEUE
        if past.gained:
            break
    return count
