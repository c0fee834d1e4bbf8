"""The courier's newest events, read without access to the shared filesystem, so that no caller blocks on it."""

from __future__ import annotations

import logging
import os
import select
import threading

from ftslurm.agent.courier import CourierThread, Evicted, Notice, StorageProblem, TaskResult
from ftslurm.records.state import State
from ftslurm.rendezvous.member import View

LOG = logging.getLogger("ftslurm.torchrun")


class Link:
    """The newest events of a courier; usable from any thread.

    Args:
        courier: not yet started; this link must be the only consumer of its events.
    """

    def __init__(self, courier: CourierThread) -> None:
        self._courier = courier
        self._lock = threading.Lock()
        self._state: State | None = None
        self._evicted: str | None = None
        self._storage_problem: str | None = None

    @property
    def state(self) -> State | None:
        """The newest state, None before the first."""
        self._take_events()
        return self._state

    @property
    def evicted(self) -> str | None:
        """Why this agent must not continue; None: it may."""
        self._take_events()
        return self._evicted

    @property
    def storage_problem(self) -> str | None:
        """The current error of the shared directory; None without one."""
        self._take_events()
        return self._storage_problem

    def wait(self, seconds: float) -> None:
        """Wait for an event; an exception of a signal handler propagates."""
        select.select([self._courier.wake_r], [], [], seconds)
        self._take_events()

    def _take_events(self) -> None:
        with self._lock:
            try:
                os.read(self._courier.wake_r, 4096)
            except BlockingIOError:
                pass
            while self._courier.events:
                self._apply(self._courier.events.popleft())

    def _apply(self, event: object) -> None:
        if isinstance(event, View):
            self._state = event.state
        elif isinstance(event, Evicted):
            self._evicted = event.reason
        elif isinstance(event, Notice):
            LOG.warning("%s", event.text)
        elif isinstance(event, StorageProblem):
            self._storage_problem = event.problem
            if event.problem is None:
                LOG.warning("the shared directory works again")
            else:
                LOG.warning("the shared directory: %s; trying again", event.problem)
        elif isinstance(event, TaskResult):
            event.handle(event.result)
