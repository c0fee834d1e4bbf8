"""Writes the run's event log: a component of the agent, which the job can do without.

Each file has one writer: the coordinator of a term, or an agent that has not coordinated. A line costs one append,
which is not synced: an event is no decision, and readers take what the state still has from there.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter

from ftslurm.event_log.entries import EXCLUDED, NO_LONGER_EXCLUDED, TEXT_LIMIT, identity, new_events
from ftslurm.records.codec import write_record
from ftslurm.records.event import LoggedEvent
from ftslurm.records.state import State
from ftslurm.sharedfs.ownership import open_own_log
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.text import duration, one_line

FILE_LIMIT = 1 << 20
"""Bytes of one file: some 3,000 events."""
WAITING_LIMIT = 1000
"""Lines that wait while nothing can be written; further ones are dropped."""


class EventLog:
    """Writes events.

    Args:
        send: runs a task where the filesystem may hang.
        run: where the log is.
        node, incarnation, attempt: of this agent.
        now_ns: wall clock, nanoseconds since the epoch.
        log: logs a line.
        debug: logs each event.
    """

    def __init__(
        self,
        send: Callable[[Callable[[], object]], None],
        run: RunDirectory,
        node: str,
        incarnation: str,
        attempt: str,
        now_ns: Callable[[], int],
        log: Callable[[str], None],
        debug: Callable[[str], None],
    ) -> None:
        self._send = send
        self._run = run
        self._attempt = attempt
        self._now_ns = now_ns
        self._log = log
        self._debug = debug
        self._node_file = run.node_events_file(node, incarnation)
        self._term: int | None = None
        self._known: set[tuple[object, ...]] = set()
        # Appended by the loop and the thread of exclusions, taken by the courier's; each operation is atomic.
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._torn: set[str] = set()
        self._has_complained = False

    def on_state(self, state: State) -> None:
        """Write what is new in a state of which this agent is the coordinator."""
        self._term = state.coordinator.term
        events = new_events(state, self._known, self._now_ns())
        self._known.update(identity(event) for event in events)
        self._write(events)

    def excluded(self, node: str, reason: str, until_ns: int | None) -> None:
        """Write that this agent has excluded a node until a time; None: that it has ended the exclusion."""
        now_ns = self._now_ns()
        if until_ns is None:
            kind, text = NO_LONGER_EXCLUDED, f"{node} is no longer excluded: {reason}"
        else:
            kind, text = EXCLUDED, f"{node} is excluded for {duration((until_ns - now_ns) / 1e9)}: {reason}"
        facts = (kind, self._attempt, one_line(text, TEXT_LIMIT), now_ns)
        self._write([LoggedEvent(*facts, term=self._term, node=node, until_ns=until_ns)])

    def _write(self, events: list[LoggedEvent]) -> None:
        if not events:
            return
        path = self._node_file if self._term is None else self._run.term_events_file(self._term)
        for event in events:
            if len(self._waiting) < WAITING_LIMIT:
                self._waiting.append((path, write_record(event)))
            where = f"round {event.round}, " if event.round is not None else ""
            self._debug(f"event: {where}{event.event}: {event.text}")
        self._send(self._flush)

    # On the courier's thread

    def _flush(self) -> None:
        """Append what waits; a failure keeps it for the next time, and is no trouble of the run's state."""
        while self._waiting:
            path, group = next(groupby(tuple(self._waiting), itemgetter(0)))
            lines = [line for _, line in group]
            try:
                self._append(path, lines)
            except OSError as error:
                self._complain(f"events cannot be logged in {path}: {error.strerror or error}; the run goes on")
                return
            for _ in lines:
                self._waiting.popleft()

    def _append(self, path: str, lines: list[bytes]) -> None:
        try:
            # Without its parents: a run directory that is gone must stay gone.
            os.mkdir(self._run.events, 0o700)
        except FileExistsError:
            pass
        fd = open_own_log(path, self._run.root)
        try:
            # What a failed write has left has no end; a reader drops it.
            data = b"\n" * (path in self._torn) + b"".join(lines)
            if os.fstat(fd).st_size + len(data) > FILE_LIMIT:
                self._complain(f"{path} has its full size: no more events are logged in it; the run goes on")
                return
            self._torn.add(path)
            if os.write(fd, data) < len(data):
                raise OSError("only a part was written")
            self._torn.discard(path)
        finally:
            os.close(fd)

    def _complain(self, text: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._log(text)
