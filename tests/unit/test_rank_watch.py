"""What the watch over a node's ranks makes of several that are late at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.agent.rank_watch import HungRank, Message, RankWatch
from ftslurm.monitor.watchdog import Expiry


class Monitor:
    """Finds some ranks late, all in one turn."""

    def __init__(self, fd: int, late: list[Expiry]) -> None:
        self.pipe = SimpleNamespace(fd=fd)
        self.deadline: float | None = None
        self._late = late

    def hear(self) -> list[str]:
        return []

    def due(self, now: float) -> list[Expiry]:
        late, self._late = self._late, []
        return late

    def step(self, local_rank: int) -> int:
        return 100 + local_rank

    def begin(self, worker: Any) -> None:
        """It watches nobody."""

    def clear(self) -> None:
        """It has nothing to forget."""


@pytest.fixture
def fd() -> Iterator[int]:
    ends = os.pipe()
    yield ends[0]
    for end in ends:
        os.close(end)


def late(local_rank: int, what: str, signal: int = 9, kind: str = "heartbeat") -> Expiry:
    return Expiry(local_rank, what, kind, None, 50.0 + local_rank, 30.0, signal)


def watch(fd: int, *expiries: Expiry) -> RankWatch:
    settings: Any = SimpleNamespace(hang_signal=9, vitals_s=3.0, timeouts=SimpleNamespace(hang_s=None))
    no: Any = None
    monitor: Any = Monitor(fd, list(expiries))
    journal: Any = SimpleNamespace(stacks_collected=lambda showing, word: None)
    return RankWatch(settings, monitor, journal, no, no, lambda: 100.0)


def test_all_ranks_that_are_late_at_once_get_their_why(fd: int) -> None:
    word: Any = None
    ranks = watch(fd, late(0, "no heartbeat for 30.0 s"), late(2, "section 'x' open for 9.0 s"), late(3, "silent"))
    found = []
    for happened in ranks.turn(False, word):
        found.append(happened)
        if len(found) == 1:
            # As the loop does on the first: all ranks are to show where they are, before the next one is told.
            ranks.collect_stacks(1, [0, 1, 2, 3])
    assert ranks._collection is not None
    assert ranks._collection.why == {0: "no heartbeat for 30.0 s", 2: "section 'x' open for 9.0 s", 3: "silent"}
    assert [(each.local_rank, each.step, each.since_s) for each in found if isinstance(each, HungRank)] == [
        (0, 100, 50.0),
        (2, 102, 52.0),
        (3, 103, 53.0),
    ]
    ranks.clear()
    assert ranks._hung == {}


def test_a_timer_that_only_tells_is_nobodys_why(fd: int) -> None:
    word: Any = None
    ranks = watch(fd, late(0, "no heartbeat for 30.0 s"), late(1, "timer 'batch' expired", signal=0, kind="timer"))
    ranks._workers = [SimpleNamespace(local_rank=1, rank=5)]  # type: ignore[list-item]
    found = list(ranks.turn(False, word))
    assert [type(each) for each in found] == [HungRank, Message]
    assert ranks._hung == {0: "no heartbeat for 30.0 s"}
