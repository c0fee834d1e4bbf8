"""The watchdog of the agent's loop."""

from __future__ import annotations

import threading

import pytest

from ftslurm.monitor.loop_watchdog import LoopWatchdog
from ftslurm.testing.clock import VirtualClock


class Loop:
    """A guard on a virtual clock, and what it reported."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.reported: list[float] = []
        self.guard = LoopWatchdog(10.0, self.clock.now, self.reported.append)

    def look_after(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        return self.guard.check()


def test_a_stuck_turn_is_counted_and_reported_once() -> None:
    loop = Loop()
    loop.guard.working()
    assert not loop.look_after(9)
    assert loop.look_after(2)
    assert loop.look_after(30)
    assert (loop.guard.stuck, loop.reported, loop.guard.longest_s) == (1, [11.0], 41.0)


def test_the_next_turn_is_a_new_one() -> None:
    loop = Loop()
    for _ in range(3):
        loop.guard.working()
        assert loop.look_after(12)
        loop.guard.waiting()
    assert (loop.guard.stuck, loop.reported) == (3, [12.0] * 3)


def test_a_loop_that_waits_is_not_stuck_however_long() -> None:
    loop = Loop()
    assert not loop.look_after(1000)
    loop.guard.working()
    loop.guard.waiting()
    assert not loop.look_after(10**6)
    assert loop.guard.stuck == 0


def test_many_short_turns_are_not_a_long_one() -> None:
    loop = Loop()
    for _ in range(100):
        loop.guard.working()
        assert not loop.look_after(9)
    assert loop.guard.stuck == 0


def test_the_thread_notices_by_itself_writes_the_stack_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    looked = threading.Event()

    class Watched(LoopWatchdog):
        def check(self) -> bool:
            stuck = super().check()
            if stuck:
                looked.set()
            return stuck

    def the_call_that_hangs() -> None:
        assert looked.wait(30)

    guard = Watched(0.02)
    guard.start()
    guard.working()
    the_call_that_hangs()
    guard.stop()
    assert guard.stuck == 1
    assert "in the_call_that_hangs\n" in capsys.readouterr().err
    assert not any(thread.name == "ftslurm-guard" for thread in threading.enumerate())


def test_a_report_that_fails_does_not_end_the_watch() -> None:
    twice = threading.Semaphore(0)

    def report(_: float) -> None:
        twice.release()
        raise BrokenPipeError

    guard = LoopWatchdog(0.01, report=report)
    guard.start()
    for _ in range(2):
        guard.working()
        assert twice.acquire(timeout=30)
    guard.stop()
    assert guard.stuck >= 2
