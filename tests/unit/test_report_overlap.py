"""Many reads at once: in order, bounded, and only where that pays."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ftslurm.report import overlap
from ftslurm.report.overlap import CHUNK, PROBES, THREADS, overlapped


def ticks(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


@pytest.mark.parametrize("count", [0, 1, PROBES - 1, PROBES, PROBES + 1, 1000])
@pytest.mark.parametrize("slow", [0.0, 0.001])
def test_results_come_in_the_order_of_the_items(count: int, slow: float) -> None:
    clock = ticks(slow)
    found = list(overlapped(lambda i: i * i, range(count), clock=lambda: next(clock)))
    assert found == [i * i for i in range(count)]


def test_a_quick_filesystem_is_read_by_one_thread_and_a_slow_one_by_many() -> None:
    def readers(slow: float) -> set[str]:
        clock = ticks(slow)
        wait = threading.Barrier(4)
        names = set()

        def read(i: int) -> None:
            names.add(threading.current_thread().name)
            if slow and i >= PROBES:
                wait.wait(10)

        list(overlapped(read, range(PROBES + 8), clock=lambda: next(clock)))
        return names

    assert readers(0.0) == {threading.current_thread().name}
    assert len(readers(0.001)) >= 4


def test_no_more_is_read_ahead_than_two_chunks() -> None:
    clock = ticks(0.001)
    begun: list[int] = []
    results = overlapped(begun.append, range(10 * CHUNK), clock=lambda: next(clock))
    for _ in range(PROBES + 1):
        next(results)
    assert len(begun) <= PROBES + 2 * CHUNK
    assert THREADS <= CHUNK
    assert overlap.SLOW_S < 0.001


def test_who_stops_taking_results_leaves_no_thread_waiting() -> None:
    clock = ticks(0.001)
    before = threading.active_count()
    results = overlapped(lambda i: i, range(10 * CHUNK), clock=lambda: next(clock))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
