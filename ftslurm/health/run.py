"""Runs checks: those that may hang each in a process of its own, concurrently and each with its own time-out.

A check that hangs is a finding, unless the node as a whole was slow. It is killed with its children; a process that
hangs in the kernel cannot be killed at once: it is not waited for, and its pid is part of the result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from ftslurm import user_limits
from ftslurm.dataclasses import replace
from ftslurm.health import pressure
from ftslurm.health.check import Absent, Check, Context
from ftslurm.health.children import BEGIN, ENDED, LATE, REAP_S, SLACK_S, STARVED, Child, collect, send, stop
from ftslurm.health.device_time import scheduling
from ftslurm.health.result import RunResult
from ftslurm.health.verdict import FAIL, OK, UNKNOWN, Finding, Json, Judgement, Verdict, verdict

UNHURRIED = 3.0
"""Factor of the time-outs in `run_unhurried`."""
_LIMIT = 4 << 20
"""Bytes of facts read from one check; more counts as broken."""


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
        slow: called once, after `slow_s` seconds, with the names of the checks still running.
    """
    began, stalled = clock(), pressure.stalled_s(context.root)
    alone: list[_Alone] = []
    try:
        for check in checks:
            if check.may_hang(context):
                alone.append(_Alone(check, context, clock))
    except OSError:
        stop(alone, clock)
        raise
    # Meanwhile the checks without a process of their own; their duration shows the node's speed.
    names = {one.check.name for one in alone}
    here = [_Here(check, context, clock) for check in checks if check.name not in names]
    collect(alone, clock, lambda left: slow([one.check.name for one in alone if one in left]), slow_s)
    stall = pressure.stalled_for(stalled, pressure.stalled_s(context.root), clock() - began)
    why_slow = _why_slow(here, stall)
    by_name: dict[str, _Alone | _Here] = {one.check.name: one for one in alone}
    by_name.update({one.check.name: one for one in here})
    verdicts = tuple(by_name[check.name].verdict(before.get(check.name), context, why_slow) for check in checks)
    present = tuple(one.check for one in verdicts if one.facts is not None)
    stuck = tuple(sorted(child.pid for child in alone if not child.reaped))
    return RunResult(verdicts, stuck, clock() - began, present)


def run_unhurried(
    checks: Sequence[Check],
    context: Context,
    before: Mapping[str, Json],
    clock: Callable[[], float] = time.monotonic,
) -> RunResult:
    """Run the checks one after the other, with `UNHURRIED` times their time-outs; see `run`."""
    began = clock()
    patient = [replace(check, limit_s=UNHURRIED * check.limit_s) for check in checks]
    looks = [run([check], context, before, clock) for check in patient]
    return RunResult(
        tuple(one for looked in looks for one in looked.verdicts),
        tuple(pid for looked in looks for pid in looked.stuck),
        clock() - began,
        tuple(name for looked in looks for name in looked.present),
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
        self._fetched: Json = json.loads(_fetch(check, context, threads=False))
        self.took_s = clock() - began

    def verdict(self, before: Json | None, context: Context, why_slow: str | None) -> Verdict:
        """Judge the fetched facts."""
        return _judge(self.check, self._fetched, before, context, self.took_s)


class _Alone(Child):
    """A check that may hang, in a process of its own."""

    def __init__(self, check: Check, context: Context, clock: Callable[[], float]) -> None:
        self.check = check

        def work(write: int) -> None:
            send(write, BEGIN)
            send(write, _fetch(check, context, threads=True))
            sys.stderr.flush()

        super().__init__(work, check.limit_s, clock)

    def receive(self, attentive_s: float, now: float) -> bool:
        """Read the available data; return False at the end, see `Child.receive`."""
        more = super().receive(attentive_s, now)
        if more and len(self.data) > _LIMIT:
            self.end(ENDED, now)
        return more

    def verdict(self, before: Json | None, context: Context, why_slow: str | None) -> Verdict:
        """Judge the fetched facts, or the time-out."""
        check = self.check
        if self.outcome == LATE and why_slow is None:
            text = f"{check.late_text}: no answer within {check.limit_s:g} s"
            found = Finding(check.late, "", text, check.late_advice)
            return verdict(check.name, Judgement(text, (found,)), self.took_s)
        if self.outcome in (LATE, STARVED):
            why = why_slow or "it got too little CPU time"
            return _unknown(check, f"no answer within {self.took_s:.0f} s, but {why}", self.took_s)
        try:
            fetched = json.loads(self.data)
        except ValueError:
            return _unknown(check, "its process was killed", self.took_s)
        return _judge(check, fetched, before, context, self.took_s)


def _fetch(check: Check, context: Context, threads: bool) -> bytes:
    """Return the facts as JSON.

    Returns:
        {"absent": why there are none, "problem": why they could not be fetched, "facts", "limit": the user's limit
        that was reached; each may be None}.
    """
    fetched = dict.fromkeys(("absent", "problem", "facts", "limit"))
    try:
        fetched["facts"] = check.fetch(context)
    except Absent as absent:
        fetched["absent"] = str(absent)
    except Exception as error:  # any exception of a driver's library is a finding
        fetched["problem"] = f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)
    fetched["limit"] = user_limits.reached(threads)
    return json.dumps(fetched).encode("utf-8", "backslashreplace")


def _judge(check: Check, fetched: Json, before: Json | None, context: Context, took_s: float) -> Verdict:
    if fetched["absent"] is not None:
        return Verdict(check.name, OK, fetched["absent"], (), took_s)
    problem, limit = fetched["problem"], fetched["limit"]
    if problem is None:
        try:
            judged = verdict(check.name, check.judge(fetched["facts"], before, context), took_s, fetched["facts"])
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
