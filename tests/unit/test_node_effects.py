"""The agent's effects when its process was stopped (SIGSTOP, a suspended job): at whatever place of its loop."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.agent.node_effects import NodeEffects


class Agent:
    """NodeEffects of which only the monitor and the waiting do anything, on a clock set by the test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.stopped_s: dict[str, float] = {}
        self.calls: list[tuple[str, float]] = []
        idle: Any = SimpleNamespace(deadline=None, waiting=lambda: None, working=lambda: None, on_time=lambda *_: None)
        idle.add = lambda reaped, record: None
        idle.take = lambda record: []
        idle.events = lambda *arguments: iter(())
        monitor = SimpleNamespace(forgive=lambda: self.calls.append(("forgive", self.now_s)), turn=self.turn)
        parts: Any = SimpleNamespace(monitor=monitor, hooks=None, workers=SimpleNamespace(all=[]))
        for name in ("guard", "bell", "health", "stop", "exits", "build_locks", "arrivals"):
            setattr(parts, name, idle)
        waiting: Any = SimpleNamespace(ready=set(), wait=self.sleep, signals=lambda: self.stop_here("signals"))
        unused: Any = SimpleNamespace()
        self.effects = NodeEffects(
            unused, parts, waiting, 1, unused, unused, unused, lambda: unused, unused, unused, unused,
            lambda: self.now_s, lambda: 0,
        )  # fmt: skip

    def sleep(self, timeout: float | None) -> None:
        self.now_s += 0.5 if timeout is None else timeout
        self.stop_here("wait")

    def stop_here(self, place: str) -> tuple[int, ...]:
        self.now_s += self.stopped_s.pop(place, 0.0)
        return ()

    def turn(self, readable: bool, record: object, now: float) -> Iterator[object]:
        self.calls.append(("judge", now))
        self.stop_here("judging")
        return iter(())

    def loop_once(self) -> None:
        self.effects.wait(self.now_s + 1)
        list(self.effects.events(SimpleNamespace()))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["wait", "signals", "judging"])
def test_time_during_which_the_process_was_stopped_is_given_back_before_any_rank_is_judged(place: str) -> None:
    agent = Agent()
    agent.loop_once()
    assert [what for what, _ in agent.calls] == ["judge"]
    agent.stopped_s[place] = 600.0
    agent.loop_once()
    agent.loop_once()
    forgiven = [at for what, at in agent.calls if what == "forgive"]
    assert len(forgiven) == 1
    before = agent.calls[: agent.calls.index(("forgive", forgiven[0]))]
    assert all(at < 600 for _, at in before), "a rank was judged by a time at which this process had been stopped"


def test_a_loop_that_is_on_time_gives_nothing_back() -> None:
    agent = Agent()
    for _ in range(100):
        agent.loop_once()
    assert all(what == "judge" for what, _ in agent.calls)
