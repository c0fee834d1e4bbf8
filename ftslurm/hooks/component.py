"""The coordinator's part of `--on-event`: starts `ftslurm.hooks.child` for new events.

Only a leaving agent waits for it (`ftslurm.agent.last_hooks`). The events of the attempt's end are left to the process
that makes the report (`ftslurm.hooks.at_end`).
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Mapping

from ftslurm.hooks.events import COMMAND_S, Event, arguments_of, events_of
from ftslurm.kernel import kill_descendants, pidfd_send_signal, spawn_unawaited
from ftslurm.records.state import State
from ftslurm.text import duration

LIMIT_S = 120.0
"""Time-out of one process: it reads the shared directory, and may run several commands of 30 s each."""
POLL_S = 0.5
SILENT_S = 2.0
"""The wait of a leaving agent is announced after that, in seconds."""


class Hooks:
    """Follows the state's events with the user's command.

    Args:
        command: of `--on-event`.
        run_dir, node: of this agent.
        environment: of the command.
        spared: receives the process's id, so that the sweep at a round's end leaves it alone.
        monotonic: clock, seconds.
        log: writes a line.
    """

    def __init__(
        self,
        command: str,
        run_dir: str,
        node: str,
        environment: Mapping[str, str],
        spared: set[int],
        monotonic: Callable[[], float],
        log: Callable[[str], None],
    ) -> None:
        self._facts = (run_dir, node, command)
        self._environment = environment
        self._spared = spared
        self._monotonic = monotonic
        self._log = log
        self._known: set[tuple[str, str, int]] = set()
        self._pending: list[Event] = []
        self._pid = self._pidfd = -1
        self._until_s = 0.0
        self._names = ""
        self._leaving_s: float | None = None

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `poll` is due; None: no process runs."""
        return self._monotonic() + POLL_S if self._pid >= 0 else None

    def on_state(self, state: State) -> None:
        """Start the command for what is new in the coordinator's state."""
        if state.closed is not None:
            return
        for event in events_of(state):
            key = (event.name, event.attempt, event.round)
            if key not in self._known:
                self._known.add(key)
                self._pending.append(event)
        self.poll()

    def poll(self) -> None:
        """Collect a process that has ended, end one whose time is over, start the next."""
        if self._pid >= 0 and self._has_ended(0):
            self._forget()
        if self._pid >= 0 and self._monotonic() >= self._until_s:
            self._log(f"--on-event: its process has not ended within {duration(LIMIT_S)}, and is killed")
            self._kill()
        if self._pid < 0 and self._pending:
            events, self._pending = self._pending, []
            self._start(events)

    def leave(self) -> None:
        """This agent leaves: start no other process; those events are left to the end of the job."""
        self._pending.clear()
        self._leaving_s = self._monotonic()

    def announce(self) -> None:
        """Log once that this agent waits for the command, if that takes a while."""
        if self._pid >= 0 and self._leaving_s is not None and self._monotonic() >= self._leaving_s + SILENT_S:
            self._leaving_s = None
            self._log(f"--on-event, {self._names}: the run is over, its command may take {duration(COMMAND_S)}")

    def finish(self) -> None:
        """Kill the last process, if it still exists, with its children: this agent leaves."""
        if self._pid >= 0 and not self._has_ended(0):
            self._log(f"--on-event, {self._names}: its command is cut off, as this agent must leave now")
            self._kill()

    def _start(self, events: list[Event]) -> None:
        command = arguments_of(sys.executable, *self._facts, events)
        actions = ((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),)
        self._pid, self._pidfd = spawn_unawaited(command, self._environment, actions)
        self._spared.add(self._pid)
        self._until_s = self._monotonic() + LIMIT_S
        self._names = ", ".join(dict.fromkeys(event.name for event in events))

    def _has_ended(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def _kill(self) -> None:
        kill_descendants(self._pid)
        try:
            pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._forget()

    def _forget(self) -> None:
        os.close(self._pidfd)
        self._pid = self._pidfd = -1
