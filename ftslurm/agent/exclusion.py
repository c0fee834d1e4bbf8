"""Exclusion of nodes for later jobs: those that repeatedly failed first, and those with broken hardware.

The coordinator records the former, each node itself the latter, on a separate thread: the directory may be on a
filesystem that hangs, and Slurm may be slow. Only files are written, which templates, requeues and people read;
draining a node is opt-in, and done only for a finding of a hardware check or of the driver: two failures, whatever
their ranks wrote, justify preferring other nodes, not taking a node from all users.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from ftslurm.agent.health_gate import HAPPENED
from ftslurm.agent.option_groups import ExclusionOptions
from ftslurm.nodes.exclude import Exclusions, why_repeat_offender
from ftslurm.nodes.record import as_line
from ftslurm.records.codec import BadFile
from ftslurm.records.health import FAIL, HealthFinding
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import BY_NODE, Failure, State
from ftslurm.rendezvous.exclusion import failed_repeatedly
from ftslurm.sharedfs.rundir import RunDirectoryError
from ftslurm.text import duration

HARDWARE = ("gpu-", "amd-", "nic-")
"""Checks of hardware of one node. A full /scratch affects all nodes, and no node is avoided for it."""
LEFTOVERS = "gpu-processes"
"""Not hardware: leftover processes on a GPU do not last."""


class Excluder:
    """Records strikes and exclusions of a run's nodes.

    Args:
        options: see `ExclusionOptions`.
        exclusions: the files; used by this object's thread alone.
        run_id: of this run.
        now_ns: wall clock, nanoseconds since the epoch.
        log: logs a line, from any thread.
        drain: asks Slurm to drain a node that is excluded, with a reason; returns the problem, if any. None: no
            draining.
        start: runs a function in the background.
        changed: gets a node that was excluded, why, and until when (None: it is no longer), from any thread.
    """

    def __init__(
        self,
        options: ExclusionOptions,
        exclusions: Exclusions,
        run_id: str,
        now_ns: Callable[[], int],
        log: Callable[[str], None],
        drain: Callable[[str, str], str | None] | None = None,
        start: Callable[[Callable[[], None]], None] | None = None,
        changed: Callable[[str, str, int | None], None] | None = None,
    ) -> None:
        self._options = options
        self._drain = drain
        self._exclusions = exclusions
        self._run_id = run_id
        self._now_ns = now_ns
        self._log = log
        self._known: dict[str, str] = {}
        self._struck: set[tuple[int, str]] = set()
        self._broken: HealthFinding | None = None
        self._tasks: deque[Callable[[], None]] = deque()
        self._working = threading.Lock()
        self._start = start or _on_a_thread
        self._changed = changed or (lambda node, reason, until_ns: None)

    def on_state(self, state: State) -> None:
        """Record the consequences of the newest state; only the coordinator calls this."""
        self._send(self._of_state(state))

    def on_health(self, record: NodeRecord) -> None:
        """Record the consequences of this node's own health."""
        self._send(self._of_health(record))

    def finish(self, timeout_s: float) -> bool:
        """Wait until all is written; False when that took longer than `timeout_s` seconds."""
        done = self._working.acquire(timeout=timeout_s)
        if done:
            self._working.release()
        return done

    def _send(self, tasks: Iterable[Callable[[], None]]) -> None:
        self._tasks += tasks
        if self._tasks and self._working.acquire(blocking=False):
            self._start(self._work)

    def _work(self) -> None:
        while True:
            try:
                while self._tasks:
                    self._run(self._tasks.popleft())
            finally:
                self._working.release()
            # A task added just before the release started no thread.
            if not self._tasks or not self._working.acquire(blocking=False):
                return

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except (OSError, BadFile, RunDirectoryError) as error:
            self._log(f"exclusions cannot be recorded in {self._exclusions.directory}: {error}")

    def _of_state(self, state: State) -> list[Callable[[], None]]:
        if not self._options.after:
            return []
        found: list[Callable[[], None]] = []
        blamed: set[str] = set()
        for past in state.history:
            failure = past.failure
            # Coordinators of earlier attempts have recorded theirs, and users may have allowed the node since.
            if failure is None or past.attempt != state.attempt or failure.blame is None:
                continue
            blamed.add(failure.node)
            if failure.blame == BY_NODE and (past.round, failure.node) not in self._struck:
                self._struck.add((past.round, failure.node))
                found.append(lambda failure=failure: self._strike(failure))  # type: ignore[misc]
        now = failed_repeatedly(state.history, self._options.after)
        for node, reason in now.items():
            if node in blamed and node not in self._known:
                self._known[node] = reason
                found.append(lambda node=node, reason=reason: self._exclude(node, reason))  # type: ignore[misc]
        # The failure has followed its rank to another node: its cause is the program.
        for node in [node for node in self._known if node not in now]:
            reason = self._known.pop(node)
            found.append(lambda node=node, reason=reason: self._take_back(node, reason))  # type: ignore[misc]
        return found

    def _of_health(self, record: NodeRecord) -> list[Callable[[], None]]:
        if not self._options.after:
            return []
        node, broken = record.node, _broken(record)
        if broken is not None and self._broken is None:
            self._broken = broken
            return [lambda: self._exclude(node, broken.line(), drain=True)]
        if broken is None and self._broken is not None and record.unhealthy is None:
            over, self._broken = self._broken, None
            # A healthy result of an idle GPU does not revoke an error that it reported under load.
            return [] if over.check in HAPPENED else [lambda: self._take_back(node, over.line())]
        return []

    def _take_back(self, node: str, reason: str) -> None:
        # Exclusions by users or other runs stay.
        if self._is_ours(node, reason):
            self._exclusions.end(node, self._now_ns())
            self._changed(node, reason, None)

    def _is_ours(self, node: str, reason: str) -> bool:
        known = self._exclusions.of(node, self._now_ns())
        return known is not None and known.reason == as_line(reason) and known.by == f"run {self._run_id}"

    def _strike(self, failure: Failure) -> None:
        known = self._exclusions.add_strike(failure.node, self._run_id, failure.message, failure.time_ns)
        reason = why_repeat_offender(known, self._now_ns())
        if reason is not None and not known.holds(self._now_ns()):
            # No drain: the hardware is named only by a rank's own text.
            self._exclude(failure.node, reason)

    def _exclude(self, node: str, reason: str, drain: bool = False) -> None:
        if self._is_ours(node, reason):
            # The previous coordinator has excluded it.
            return
        now_ns = self._now_ns()
        until_ns = now_ns + round(self._options.for_s * 1e9)
        self._exclusions.exclude(node, reason, f"run {self._run_id}", until_ns, now_ns)
        self._changed(node, reason, until_ns)
        self._log(f"{node} is excluded for {duration(self._options.for_s)}: {reason} (`ftslurm nodes allow {node}`)")
        if drain and self._drain is not None:
            problem = self._drain(node, f"ftslurm: {reason}")
            self._log(f"{node} could not be drained: {problem}" if problem else f"{node} is drained")


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="exclusion", daemon=True).start()


def _broken(record: NodeRecord) -> HealthFinding | None:
    found = record.health.findings if record.health is not None and record.unhealthy is not None else ()
    # Events are not results of checks and need no confirmation; a check may fail on a node that is only busy.
    sure = [one for one in found if one.status == FAIL and (one.confirmed or one.check in HAPPENED)]
    return next((one for one in sure if one.check.startswith(HARDWARE) and one.check != LEFTOVERS), None)


def exclusion_of(exclusions: Exclusions, node: str, now_ns: int) -> tuple[str | None, Iterable[str]]:
    """Return why this node was excluded earlier, None if it was not, and problems with the files."""
    known = exclusions.of(node, now_ns)
    return (known.reason or "excluded") if known is not None else None, exclusions.problems
