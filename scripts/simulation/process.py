"""The process of a simulated agent: its clocks, its life, and the courier's thread, which may block in a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ftslurm.testing.clock import START_NS
from ftslurm.testing.memoryfs import Crash
from simulation.coroutine import Coroutine, get_coroutine
from simulation.courier import LATE_S, Alarm, VirtualCourier
from simulation.host import Host


class VirtualProcess:
    """One process; its subclass has the agent's loop and calls `end` at last.

    Args:
        host: the cluster.
        offset_s, offset_ns: what the node's clocks add to true time; the latter may be changed at any time.

    Attributes:
        alive: it has not ended.
        frozen_until: true time until which it is stopped.
        coroutine: of the courier's turn, if a filesystem call may block in it.
    """

    _courier: VirtualCourier

    def __init__(self, host: Host, offset_s: float, offset_ns: int) -> None:
        self.host = host
        self.offset_s = offset_s
        self.offset_ns = offset_ns
        self.alive = True
        self.frozen_until = 0.0
        self.coroutine: Coroutine | None = None
        self._busy = False
        self._loop_alarm = Alarm(host, self._turn)
        self._courier_alarm = Alarm(host, self._courier_turn)

    def _turn(self) -> None:
        """Make the loop's next turn."""
        raise NotImplementedError

    def _leave(self) -> None:
        """The courier has finished."""
        raise NotImplementedError

    def _may_wait(self) -> bool:
        """Return whether a filesystem call of the courier's next turn may block."""
        raise NotImplementedError

    def crash(self) -> None:
        """Kill the process at this point."""
        raise NotImplementedError

    def monotonic(self) -> float:
        """Return the monotonic clock of its node, seconds."""
        return self.host.now() + self.offset_s

    def now_ns(self) -> int:
        """Return the wall clock of its node, nanoseconds since the epoch."""
        return START_NS + round(self.host.now() * 1e9) + self.offset_ns

    def freeze(self, seconds: float) -> None:
        """Stop the process (SIGSTOP) for that time."""
        until = self.host.now() + seconds
        if until > self.frozen_until:
            self.frozen_until = until
            self.host.after(seconds, self._thaw)

    def _thaw(self) -> None:
        if self.alive and not self._frozen():
            self._loop_alarm.set(0.0)
            self._courier_alarm.set(0.0)

    def _frozen(self) -> bool:
        return self.frozen_until > self.host.now()

    def _kill_courier(self) -> None:
        if self.coroutine is not None and self._busy:
            parked, self.coroutine = self.coroutine, None
            parked.kill()

    def _courier_turn(self) -> None:
        """Make the courier's next turn, if it is due and no earlier one is blocked in a call."""
        if not self.alive or self._busy or self._frozen():
            return
        if self._courier.deadline > self.monotonic():
            self._courier_alarm.set(self._courier.deadline - self.offset_s + LATE_S)
            return
        self._busy = True
        if self._may_wait():
            self.coroutine = get_coroutine()
            self._go_on(partial(self.coroutine.run, self._courier.turn))
        else:
            self._go_on(self._whole_turn)

    def _whole_turn(self) -> bool:
        self._courier.turn()
        return True

    def wait_until(self, when: float) -> None:
        """Block inside a filesystem call until then, and at least until the process is no longer frozen."""
        assert self.coroutine is not None
        while (when := max(when, self.frozen_until)) > self.host.now():
            self.host.after(when - self.host.now(), partial(self._resume, self.coroutine))
            self.coroutine.park()

    def _resume(self, parked: Coroutine) -> None:
        if self.alive and self.coroutine is parked:
            self._go_on(parked.resume)

    def _go_on(self, run: Callable[[], bool]) -> None:
        try:
            ended = run()
        except Crash:
            self._busy = False
            self.coroutine = None
            self.crash()
            return
        if not ended:
            return
        self._busy = False
        self.coroutine = None
        if self._courier.finished:
            self._leave()
        else:
            self._courier_alarm.set(self._courier.deadline - self.offset_s + LATE_S)
