"""Many reads at once: in order, bounded, and only where that pays."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from ftslurm.sharedfs.bounded_read import CHUNK, PROBES, SLOW_S, read_in_parallel


def ticks(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


@pytest.mark.parametrize("count", [0, 1, PROBES - 1, PROBES, PROBES + 1, 1000])
@pytest.mark.parametrize("slow", [0.0, 0.001])
def test_results_come_in_the_order_of_the_items(count: int, slow: float) -> None:
    clock = ticks(slow)
    found = list(read_in_parallel(lambda i: i * i, range(count), clock=lambda: next(clock)))
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

        list(read_in_parallel(read, range(PROBES + 8), clock=lambda: next(clock)))
        return names

    assert readers(0.0) == {threading.current_thread().name}
    assert len(readers(0.001)) >= 4


def until_no_reader_is_left(before: int) -> None:
    """Wait until all threads that read have done so."""
    deadline = time.monotonic() + 30
    while threading.active_count() > before:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.001)


def test_no_more_is_read_ahead_than_two_chunks() -> None:
    clock = ticks(2 * SLOW_S)
    begun: list[int] = []
    before = threading.active_count()
    results = read_in_parallel(begun.append, range(10 * CHUNK), clock=lambda: next(clock))
    for taken, ahead in ((PROBES + 1, 2), (CHUNK, 3)):
        for _ in range(taken):
            next(results)
        until_no_reader_is_left(before)
        assert len(begun) == PROBES + ahead * CHUNK


def test_a_caller_that_stops_taking_results_leaves_no_thread_waiting() -> None:
    clock = ticks(2 * SLOW_S)
    before = threading.active_count()
    held = threading.Event()
    results = read_in_parallel(
        lambda i: i < PROBES + CHUNK or held.wait(30), range(10 * CHUNK), clock=lambda: next(clock)
    )
    for _ in range(PROBES + 1):
        next(results)
    assert threading.active_count() > before, "the next ones are being read"
    results.close()  # type: ignore[attr-defined]
    held.set()
    until_no_reader_is_left(before)
