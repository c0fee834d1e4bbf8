"""How long a leaving agent waits for the command of `--on-event`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ftslurm.agent.last_hooks import await_hooks

GUARDIAN = "guardian"


class Agent:
    """The hooks and the waiting of an agent, whose command takes that long; signals arrive at their second."""

    def __init__(self, takes_s: float, signals: dict[float, int] | None = None, guardian_ends_s: float = 1e9) -> None:
        self.now = 100.0
        self._ends_s = 100 + takes_s
        self._arrive = {100 + at: number for at, number in (signals or {}).items()}
        self._guardian_ends_s = 100 + guardian_ends_s
        self.ready: list[str] = []
        self.cut_off: bool | None = None

    @property
    def deadline(self) -> float | None:
        return self.now + 0.5 if self.now < self._ends_s else None

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.ready = [GUARDIAN] if self.now >= self._guardian_ends_s else []

    def signals(self) -> Iterator[int]:
        for at in sorted(at for at in self._arrive if at <= self.now):
            yield self._arrive.pop(at)

    def finish(self) -> None:
        self.cut_off = self.now < self._ends_s

    def leave(self) -> None:
        pass

    poll = announce = collect = leave

    def leaves(self, kill_wait_s: float | None, terminated_s: float | None = None) -> tuple[float, bool | None]:
        """Return after how many seconds it leaves, and whether the command is cut off."""
        it: Any = self
        at = None if terminated_s is None else 100 + terminated_s
        await_hooks(it, it, GUARDIAN, self.collect, lambda: self.now, kill_wait_s, at)
        return self.now - 100, self.cut_off


def test_it_leaves_when_the_command_has_ended() -> None:
    assert Agent(takes_s=20, signals={3: signal.SIGCHLD}).leaves(kill_wait_s=22) == (20, False)


def test_slurm_that_has_sent_its_sigterm_before_leaves_the_rest_of_kill_wait() -> None:
    assert Agent(takes_s=29).leaves(kill_wait_s=22, terminated_s=-10) == (12, True)


def test_slurm_that_sends_its_sigterm_meanwhile_leaves_all_of_kill_wait_however_often() -> None:
    signals = {5: signal.SIGTERM, 8: signal.SIGTERM}
    assert Agent(takes_s=29, signals=signals).leaves(kill_wait_s=22) == (27, True)


@pytest.mark.parametrize("kill_wait_s", [None, 22.0])
def test_ctrl_c_stops_the_wait(kill_wait_s: float | None) -> None:
    assert Agent(takes_s=29, signals={5: signal.SIGINT}).leaves(kill_wait_s) == (5, True)


def test_any_signal_to_stop_ends_the_wait_without_slurm() -> None:
    assert Agent(takes_s=29, signals={5: signal.SIGTERM}).leaves(None) == (5, True)


def test_no_agent_waits_without_its_guardian() -> None:
    assert Agent(takes_s=29, guardian_ends_s=7).leaves(None) == (7, True)
