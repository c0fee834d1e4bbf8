"""Runs checks: those that may hang each in a process of its own, concurrently and each with its own time-out.

Checks that read the same device share one process, which streams the facts of one check after the other: a driver that
hangs is then one finding, which says in which call, and what was read before. A check that hangs is a finding, unless
the node as a whole was slow. It is killed with its children; a process that hangs in the kernel cannot be killed at
once: it is not waited for, and its pid is part of the result.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence

from ftslurm import user_limits
from ftslurm.dataclasses import replace
from ftslurm.health.check import Absent, Check, Context
from ftslurm.health.children import LATE, REAP_S, SLACK_S, STARVED, Child, run_children
from ftslurm.health.device_time import scheduling, stalled_for, stalled_s
from ftslurm.health.result import RunResult
from ftslurm.health.verdict import Finding, Json, Judgement, Verdict, verdict
from ftslurm.records.health import FAIL, OK, UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.health.children import Send

UNHURRIED = 3.0
"""Factor of the time-outs in `run_unhurried`."""


def run(
    checks: Sequence[Check],
    context: Context,
    before: Mapping[str, Json],
    clock: Callable[[], float] = time.monotonic,
    slow: Callable[[Sequence[str]], None] = lambda names: None,
    slow_s: float = float("inf"),
) -> RunResult:
    """Run the checks and judge their facts. Call it from a process without other threads: it forks.

    Args:
        before: the facts of the previous run, by check.
        clock: monotonic, seconds.
        slow: called once, after `slow_s` seconds, with the names of the checks without an answer; of those that share
            a process only the one that is being read.
    """
    began, stalled = clock(), stalled_s(context.root)
    alone = [_Process(together, context, clock) for together in _by_process(checks, context)]
    names = {check.name for process in alone for check in process.checks}
    here: list[_Here] = []

    def others() -> None:
        # The checks without a process of their own; their duration shows the node's speed.
        here.extend(_Here(check, context, clock) for check in checks if check.name not in names)

    run_children(alone, clock, others, lambda left: slow([one.current.name for one in alone if one in left]), slow_s)
    stall = stalled_for(stalled, stalled_s(context.root), clock() - began)
    why_slow = _why_slow(here, stall)
    ran: list[_Here | _Process] = [*here, *alone]
    by_name = {found.check: found for one in ran for found in one.verdicts(before, context, why_slow)}
    verdicts = tuple(by_name[check.name] for check in checks)
    present = tuple(one.check for one in verdicts if one.facts is not None)
    stuck = tuple(sorted(child.pid for child in alone if not child.reaped))
    return RunResult(verdicts, stuck, clock() - began, present)


def _by_process(checks: Sequence[Check], context: Context) -> list[list[Check]]:
    """Return the checks that may hang here, those of one `Check.device` together."""
    found: dict[str, list[Check]] = {}
    for check in checks:
        if check.may_hang(context):
            found.setdefault(check.device or check.name, []).append(check)
    return list(found.values())


def run_unhurried(
    checks: Sequence[Check],
    context: Context,
    before: Mapping[str, Json],
    clock: Callable[[], float] = time.monotonic,
) -> RunResult:
    """Run the checks one after the other, with `UNHURRIED` times their time-outs; see `run`."""
    began = clock()
    patient = [replace(check, limit_s=UNHURRIED * check.limit_s) for check in checks]
    results = [run([check], context, before, clock) for check in patient]
    return RunResult(
        tuple(one for result in results for one in result.verdicts),
        tuple(pid for result in results for pid in result.stuck),
        clock() - began,
        tuple(name for result in results for name in result.present),
    )


def longest_s(checks: Sequence[Check], unhurried: bool = False) -> float:
    """Return the longest duration of `run`, or `run_unhurried`, in seconds."""
    if unhurried:
        return sum(UNHURRIED * check.limit_s + SLACK_S + REAP_S for check in checks)
    return max((check.limit_s + SLACK_S + REAP_S for check in checks), default=0.0)


def _why_slow(here: Sequence[_Here], stall: str | None) -> str | None:
    """Return why a time-out is no evidence about a device: the whole node was slow; None: it was not."""
    late = [one for one in here if one.took_s > one.check.limit_s]
    if late:
        return f"{late[0].check.name}, which reads nothing that can hang, took {late[0].took_s:.1f} s"
    if stall is not None:
        return stall
    if (own := scheduling(os.getpid())) is None or own.queued_s is not None:
        return None
    # This kernel does not account the time in run queues.
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return f"the load is {load:.0f} on {cpus} CPUs" if load > cpus else None


class _Here:
    """A check that cannot hang, run in this process."""

    def __init__(self, check: Check, context: Context, clock: Callable[[], float]) -> None:
        self.check = check
        began = clock()
        # As it comes from another process: through JSON.
        self._fetched: Json = json.loads(json.dumps(_fetch(check, context, threads=False)))
        self.took_s = clock() - began

    def verdicts(self, before: Mapping[str, Json], context: Context, why_slow: str | None) -> list[Verdict]:
        """Judge the fetched facts."""
        return [_judge(self.check, self._fetched, before, context, self.took_s)]


class _Process(Child):
    """The process of a check that may hang, or of all checks of one device, which it reads one after the other."""

    def __init__(self, checks: Sequence[Check], context: Context, clock: Callable[[], float]) -> None:
        self.checks = checks

        def fetch_all(send: Send) -> None:
            for check in checks:
                send(_fetch(check, context, threads=True))

        super().__init__(fetch_all, max(check.limit_s for check in checks), clock)

    @property
    def current(self) -> Check:
        """The first check without facts."""
        return self.checks[min(len(self.values), len(self.checks) - 1)]

    def verdicts(self, before: Mapping[str, Json], context: Context, why_slow: str | None) -> list[Verdict]:
        """Judge the fetched facts; the first check without any gets the finding, those after it could not be read."""
        read = zip(self.checks, self.values, strict=False)
        found = [_judge(check, fetched, before, context, self.took_s) for check, fetched in read]
        if len(found) < len(self.checks):
            first, *rest = self.checks[len(found) :]
            found.append(self._unread(first, [one.check for one in found], why_slow))
            found += [Verdict(check.name, UNKNOWN, f"not read: see {first.name}", ()) for check in rest]
        return found

    def _unread(self, check: Check, read: Sequence[str], why_slow: str | None) -> Verdict:
        where = f" in {self.call}" if self.in_call else ""
        done = f" ({', '.join(read)}: read before)" if read else ""
        # A device is at fault only if a call of its driver hangs, not the filesystem that its library is imported from.
        if self.outcome == LATE and why_slow is None and (self.in_call or not check.device):
            text = f"{check.late_text}: no answer within {self.limit_s:g} s{where}{done}"
            found = Finding(check.late, "", text, check.late_advice)
            return verdict(check.name, Judgement(text, (found,)), self.took_s)
        if self.outcome in (LATE, STARVED):
            cause = "it got too little CPU time" if self.outcome == STARVED else f"it is in no call of {check.device}"
            why = why_slow or cause
            return _unknown(check, f"no answer within {self.took_s:.0f} s{where}, but {why}", self.took_s)
        return _unknown(check, f"its process was killed{where}", self.took_s)


def _fetch(check: Check, context: Context, threads: bool) -> Json:
    """Fetch the facts.

    Returns:
        {"absent": why there are none, "problem": why they could not be fetched, "facts", "limit": the user's limit
        that was reached; each may be None}.
    """
    fetched: Json = dict.fromkeys(("absent", "problem", "facts", "limit"))
    try:
        fetched["facts"] = check.fetch(context)
    except Absent as absent:
        fetched["absent"] = str(absent)
    except Exception as error:  # any exception of a driver's library is a finding
        fetched["problem"] = f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)
    fetched["limit"] = user_limits.reached(threads)
    return fetched


def _judge(check: Check, fetched: Json, before: Mapping[str, Json], context: Context, took_s: float) -> Verdict:
    if fetched["absent"] is not None:
        return Verdict(check.name, OK, fetched["absent"], (), took_s)
    problem, limit = fetched["problem"], fetched["limit"]
    if problem is None:
        try:
            judgement = check.judge(fetched["facts"], before.get(check.name), context)
            judged = verdict(check.name, judgement, took_s, fetched["facts"])
        except Exception as error:  # unexpected facts must not break the other checks
            problem = f"{type(error).__name__}: {error}"
        else:
            if judged.status != FAIL or limit is None:
                return judged
            # Without free descriptors or processes, libraries and commands fail in various ways.
            problem = f"{limit}; it found: {judged.summary}"
    return _unknown(check, problem, took_s)


def _unknown(check: Check, problem: str, took_s: float) -> Verdict:
    text = f"could not be checked: {problem}"
    advice = f"Run `ftslurm health {check.name}` there by hand."
    return verdict(check.name, Judgement(text, (Finding(UNKNOWN, "", text, advice),)), took_s)
