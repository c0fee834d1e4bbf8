"""Excludes nodes for later jobs: those that failed first again and again, and those whose hardware is broken.

The coordinator writes down the former, each node itself the latter, on a thread of its own: the directory may be on a
filesystem that hangs, and Slurm may take its time. Only files are written, which templates, requeues and people read;
draining a node is opt-in, and done only for what a check of its hardware or its driver reported: two failures, whatever
their ranks wrote, are enough to prefer others, not to take a node from everybody.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from ftslurm.agent.health_gate import HAPPENED
from ftslurm.dataclasses import dataclass
from ftslurm.health.node_health import HealthFinding
from ftslurm.health.verdict import FAIL
from ftslurm.nodes.exclude import Exclusions, why_repeat_offender
from ftslurm.nodes.record import as_line
from ftslurm.rendezvous.exclusion import repeat_offenders
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import BY_NODE, Failure, State
from ftslurm.sharedfs.publish import BadFile
from ftslurm.sharedfs.rundir import RunDirectoryError

HARDWARE = ("gpu-", "amd-", "nic-")
"""Checks of what breaks on one node. A full /scratch is everybody's trouble, and no node is to be avoided for it."""
LEFTOVERS = "gpu-processes"
"""No hardware: whoever is on the GPU today is gone tomorrow."""


@dataclass(frozen=True)
class ExclusionSettings:
    """What the user asked for.

    Attributes:
        after: so many first failures exclude a node; 0: none do.
        for_s: for how long, in seconds.
        drain: asks Slurm to drain a node that is excluded, with a reason; returns what went wrong. None: nobody asks.
    """

    after: int
    for_s: float
    drain: Callable[[str, str], str | None] | None = None


class Excluder:
    """What the coordinator of a run does about its failing nodes.

    Args:
        exclusions: where it is written down; used by this one's thread alone.
        run_id: of this run.
        now_ns: wall clock, nanoseconds since the epoch.
        tell: tells the user a line, from any thread.
        start: has a function run elsewhere, while nothing waits for it.
    """

    def __init__(
        self,
        settings: ExclusionSettings,
        exclusions: Exclusions,
        run_id: str,
        now_ns: Callable[[], int],
        tell: Callable[[str], None],
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._settings = settings
        self._exclusions = exclusions
        self._run_id = run_id
        self._now_ns = now_ns
        self._tell = tell
        self._known: dict[str, str] = {}
        self._struck: set[tuple[int, str]] = set()
        self._broken: HealthFinding | None = None
        self._errands: deque[Callable[[], None]] = deque()
        self._working = threading.Lock()
        self._start = start or _on_a_thread

    def on_state(self, state: State) -> None:
        """Have written down what follows from the newest state; the coordinator calls this."""
        self._send(self._of_state(state))

    def on_health(self, record: NodeRecord) -> None:
        """Have written down what follows from this node's own health."""
        self._send(self._of_health(record))

    def finish(self, timeout_s: float) -> bool:
        """Wait until all is written; False when that took longer than `timeout_s` seconds."""
        done = self._working.acquire(timeout=timeout_s)
        if done:
            self._working.release()
        return done

    def _send(self, errands: Iterable[Callable[[], None]]) -> None:
        self._errands += errands
        if self._errands and self._working.acquire(blocking=False):
            self._start(self._work)

    def _work(self) -> None:
        while True:
            try:
                while self._errands:
                    self._run(self._errands.popleft())
            finally:
                self._working.release()
            # One that came just before the release found nobody to start.
            if not self._errands or not self._working.acquire(blocking=False):
                return

    def _run(self, errand: Callable[[], None]) -> None:
        try:
            errand()
        except (OSError, BadFile, RunDirectoryError) as error:
            self._tell(f"what is known of a node cannot be noted in {self._exclusions.directory}: {error}")

    def _of_state(self, state: State) -> list[Callable[[], None]]:
        if not self._settings.after:
            return []
        found: list[Callable[[], None]] = []
        blamed: set[str] = set()
        for past in state.history:
            failure = past.failure
            # Earlier attempts' coordinators have written down theirs, and people may have allowed the node since.
            if failure is None or past.attempt != state.attempt or failure.blame is None:
                continue
            blamed.add(failure.node)
            if failure.blame == BY_NODE and (past.round, failure.node) not in self._struck:
                self._struck.add((past.round, failure.node))
                found.append(lambda failure=failure: self._strike(failure))  # type: ignore[misc]
        now = repeat_offenders(state, self._settings.after)
        for node, reason in now.items():
            if node in blamed and node not in self._known:
                self._known[node] = reason
                found.append(lambda node=node, reason=reason: self._exclude(node, reason))  # type: ignore[misc]
        # The failure has followed its rank to another node: it was the program's.
        for node in [node for node in self._known if node not in now]:
            reason = self._known.pop(node)
            found.append(lambda node=node, reason=reason: self._take_back(node, reason))  # type: ignore[misc]
        return found

    def _of_health(self, record: NodeRecord) -> list[Callable[[], None]]:
        if not self._settings.after:
            return []
        node, broken = record.node, _broken(record)
        if broken is not None and self._broken is None:
            self._broken = broken
            return [lambda: self._exclude(node, broken.line(), drain=True)]
        if broken is None and self._broken is not None and record.unhealthy is None:
            over, self._broken = self._broken, None
            # That a GPU is well while it idles does not undo what it said of itself under load.
            return [] if over.check in HAPPENED else [lambda: self._take_back(node, over.line())]
        return []

    def _take_back(self, node: str, reason: str) -> None:
        # Not what people, or other runs, have against it.
        if self._is_ours(node, reason):
            self._exclusions.end(node, self._now_ns())

    def _is_ours(self, node: str, reason: str) -> bool:
        known = self._exclusions.of(node, self._now_ns())
        return known is not None and known.reason == as_line(reason) and known.by == f"run {self._run_id}"

    def _strike(self, failure: Failure) -> None:
        known = self._exclusions.add_strike(failure.node, self._run_id, failure.message, failure.time_ns)
        reason = why_repeat_offender(known, self._now_ns())
        if reason is not None and not known.holds(self._now_ns()):
            # No drain: what names the hardware is a rank's own text.
            self._exclude(failure.node, reason)

    def _exclude(self, node: str, reason: str, drain: bool = False) -> None:
        if self._is_ours(node, reason):
            # The coordinator before this one has done so.
            return
        now_ns = self._now_ns()
        until_ns = now_ns + round(self._settings.for_s * 1e9)
        self._exclusions.exclude(node, reason, f"run {self._run_id}", until_ns, now_ns)
        self._tell(f"{node} is excluded for {_span(self._settings.for_s)}: {reason} (`ftslurm nodes allow {node}`)")
        if drain and self._settings.drain is not None:
            problem = self._settings.drain(node, f"ftslurm: {reason}")
            self._tell(f"{node} could not be drained: {problem}" if problem else f"{node} is drained")


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="exclusion", daemon=True).start()


def _broken(record: NodeRecord) -> HealthFinding | None:
    found = record.health.findings if record.health is not None and record.unhealthy is not None else ()
    # What happened was not looked for, and need not be seen twice; a look may be deceived by a node that is busy.
    sure = [one for one in found if one.status == FAIL and (one.confirmed or one.check in HAPPENED)]
    return next((one for one in sure if one.check.startswith(HARDWARE) and one.check != LEFTOVERS), None)


def exclusion_of(exclusions: Exclusions, node: str, now_ns: int) -> tuple[str | None, Iterable[str]]:
    """Return why this node was excluded before, None if it was not, and what is wrong with the files."""
    known = exclusions.of(node, now_ns)
    return (known.reason or "excluded") if known is not None else None, exclusions.problems


def _span(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.0f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
