"""What the courier has brought last: read without touching the shared filesystem, so that nobody waits for it."""

from __future__ import annotations

import logging
import os
import select
import threading

from ftslurm.agent.courier import Courier, Evicted, Notice, StorageProblem
from ftslurm.rendezvous.member import View
from ftslurm.rendezvous.state import State

LOG = logging.getLogger("ftslurm.torchrun")


class Link:
    """The newest news of a courier; any thread may ask.

    Args:
        courier: not yet started; nobody else may take its news.
    """

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._lock = threading.Lock()
        self._state: State | None = None
        self._lost: str | None = None
        self._trouble: str | None = None
        self._answers: set[object] = set()

    @property
    def state(self) -> State | None:
        """The newest state, None before one was read."""
        self._take()
        return self._state

    @property
    def evicted(self) -> str | None:
        """Why this agent may not go on, if so."""
        self._take()
        return self._lost

    @property
    def trouble(self) -> str | None:
        """What is wrong with the shared directory right now."""
        self._take()
        return self._trouble

    def answered(self, question: object) -> bool:
        """Tell whether the errand with this answer has been done."""
        self._take()
        return question in self._answers

    def wait(self, seconds: float) -> None:
        """Wait for news; a signal handler's exception gets through."""
        select.select([self._courier.wake_r], [], [], seconds)
        self._take()

    def _take(self) -> None:
        with self._lock:
            try:
                os.read(self._courier.wake_r, 4096)
            except BlockingIOError:
                pass
            while self._courier.events:
                self._learn(self._courier.events.popleft())

    def _learn(self, news: object) -> None:
        if isinstance(news, View):
            self._state = news.state
        elif isinstance(news, Evicted):
            self._lost = news.reason
        elif isinstance(news, Notice):
            LOG.warning("%s", news.text)
        elif isinstance(news, StorageProblem):
            self._trouble = news.problem
            if news.problem is None:
                LOG.warning("the shared directory works again")
            else:
                LOG.warning("the shared directory: %s; trying again", news.problem)
        elif isinstance(news, tuple):
            self._answers.add(news[0])
