"""The contended checks: processes of all nodes at once on one shared directory, one check after the other.

A contended check has no judgement of a node alone: its facts of all nodes are judged together (`diagnose`). Each of its
processes is a child (`health.children`); this process itself does not access the directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ftslurm.dataclasses import dataclass, field
from ftslurm.health.barrier import Session, pass_barrier
from ftslurm.health.multi_node import CALL_LIMIT_S, SLACK_S
from ftslurm.health.timed_filesystem import Outcome, TimedFileSystem, Work, run_all
from ftslurm.health.verdict import Finding, Json, Judgement, Verdict, verdict
from ftslurm.records.health import FAIL, WARN

HANGS = 2
"""Number of checks with a hanging call after which the others are skipped."""
SLOW_CALL_S = 2.0
BARRIER_TIMEOUT = "BarrierTimeout"


@dataclass(frozen=True)
class Meeting:
    """The nodes that check a directory together.

    Attributes:
        directory: the directory under test, absolute.
        nodes: those that take part, in order.
        seconds: for all measurements.
        real_names: the nodes' names are those of hosts, so that they should resolve.
    """

    directory: str
    session: Session
    nodes: tuple[str, ...]
    seconds: float
    real_names: bool = True

    def neighbours(self) -> tuple[str, str, str]:
        """Return the node before this one in the ring, this one, and the one after it."""
        place = self.nodes.index(self.session.node)
        return self.nodes[place - 1], self.session.node, self.nodes[(place + 1) % len(self.nodes)]

    def wait(self, fs: TimedFileSystem, step: str, post: bool = True) -> None:
        """Wait at the barrier `step`; see `pass_barrier`."""
        pass_barrier(fs, self.session, self.nodes, step, CALL_LIMIT_S + SLACK_S, post)

    def after(self, step: str, action: Callable[[TimedFileSystem], Any]) -> Work:
        """Return `action` after that barrier, for a process that does not publish for its node."""

        def work(fs: TimedFileSystem) -> Any:
            self.wait(fs, step, post=False)
            return action(fs)

        return work


@dataclass(frozen=True)
class ContendedCheck:
    """One contended check.

    Attributes:
        name: unique.
        works: returns the node's processes, given the seconds for which they measure.
        facts: from the values of these, None for a process that failed, to the facts; None: there are none.
        share: of the time of all measurements.
        extra_s: seconds that it takes in addition, at most.
        barriers: the number of barriers that it passes.
    """

    name: str
    works: Callable[[Meeting, float], Sequence[Work]]
    facts: Callable[[Sequence[Any]], Json | None]
    share: float = 0.0
    extra_s: float = 0.0
    barriers: int = 1

    def limit_s(self, seconds: float) -> float:
        """Return the time-out of its processes."""
        return (self.barriers + 1) * (CALL_LIMIT_S + SLACK_S) + self.barriers + self.share * seconds + self.extra_s


def last_value(values: Sequence[Any]) -> Json | None:
    """Return the value of the last process: the facts of most checks."""
    facts: Json | None = values[-1]
    return facts


@dataclass
class Progress:
    """The checks on this node so far.

    Attributes:
        verdicts: of the checks that ran; their findings are calls that hang, and failures of a check.
        hangs: number of checks in which a call hung.
        left: the first node missed a barrier: further checks would only wait for it again.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    hangs: int = 0
    left: bool = False
    slowest: tuple[float, str] = (0.0, "")

    def add(self, name: str, outcomes: Sequence[Outcome], facts: Json | None, took_s: float = 0.0) -> None:
        """Add the verdict of one check from the outcomes of its processes."""
        problems = {one.problem: one for one in outcomes if one.problem is not None}
        findings = tuple(_finding(one) for one in problems.values())
        summary = findings[0].text if findings else "done"
        self.verdicts.append(verdict(name, Judgement(summary, findings), took_s, facts))
        self.hangs += any(one.hung for one in outcomes)
        self.left = self.left or any(problem.startswith(BARRIER_TIMEOUT) for problem in problems)
        self.slowest = max(self.slowest, *(one.slowest for one in outcomes))


def run_checks(meeting: Meeting, checks: Sequence[ContendedCheck], progress: Progress) -> None:
    """Run the checks on this node, together with the other nodes."""
    for check in checks:
        if progress.hangs >= HANGS or progress.left:
            break
        began = time.monotonic()
        works = check.works(meeting, check.share * meeting.seconds)
        outcomes = run_all(works, check.limit_s(meeting.seconds), CALL_LIMIT_S)
        facts = check.facts([one.value for one in outcomes])
        progress.add(check.name, outcomes, facts, time.monotonic() - began)
    progress.verdicts.append(verdict("stall", Judgement("done", judge_slowest(*progress.slowest))))


def _finding(outcome: Outcome) -> Finding:
    assert outcome.problem is not None
    if outcome.hung is not None:
        text = f"the filesystem hangs: {outcome.problem}"
        advice = "a run survives that only if it ends; check the server, and the kernel's log (dmesg) there"
        return Finding(FAIL, "", text, advice)
    missed = outcome.problem.startswith(BARRIER_TIMEOUT)
    text = f"could not be checked: {outcome.problem.removeprefix(f'{BARRIER_TIMEOUT}: ')}"
    return Finding(WARN if missed else FAIL, "", text, "see the other findings first")


def judge_slowest(seconds: float, call: str) -> tuple[Finding, ...]:
    """Name a single call that took seconds, although it returned."""
    if seconds <= SLOW_CALL_S:
        return ()
    advice = "ftslurm lives through stalls; if it comes again, ask the filesystem's operators"
    return (Finding(WARN, "", f"{call} took {seconds:.1f} s", advice),)
