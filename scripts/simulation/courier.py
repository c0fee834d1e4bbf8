"""The real courier on virtual time, and the alarms by which the turns of courier and loop are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ftslurm.agent.courier import Courier
from ftslurm.rendezvous.member import Member
from simulation.host import NEVER, Host

LATE_S = 1e-6
"""An alarm rings so much later than requested, in seconds: the sum of two times is not exact."""


class Alarm:
    """Calls a function once, at the earliest of the true times that it was set to."""

    def __init__(self, host: Host, call: Callable[[], None]) -> None:
        self._host = host
        self._call = call
        self._at = NEVER

    def set(self, at: float) -> None:
        """Call it at that time, or at once if the time is past."""
        if at < self._at:
            self._at = at
            self._host.after(max(0.0, at - self._host.now()), partial(self._ring, at))

    def _ring(self, at: float) -> None:
        if at == self._at:
            self._at = NEVER
            self._call()


class VirtualCourier(Courier):
    """The real courier, whose turns its agent makes."""

    def __init__(self, member: Member, monotonic: Callable[[], float], turn: Alarm, loop: Alarm) -> None:
        super().__init__(member, monotonic)
        self._turn = turn
        self._loop = loop

    def _notify(self) -> None:
        self._turn.set(0.0)

    def _notify_loop(self) -> None:
        self._loop.set(0.0)
