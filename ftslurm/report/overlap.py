"""Many reads of a slow filesystem at once: what a network answers in a millisecond is asked for by many threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

THREADS = 48
# A local filesystem answers in microseconds; threads would only get into each other's way there.
SLOW_S = 0.0003
PROBES = 16
# What is read ahead of its use: bounds the memory.
CHUNK = 192

Item = TypeVar("Item")
Result = TypeVar("Result")


def overlapped(
    read: Callable[[Item], Result], items: Sequence[Item], clock: Callable[[], float] = time.perf_counter
) -> Iterator[Result]:
    """Yield ``read(item)`` for each item, in order; by many threads if the first ones show that it pays.

    Args:
        read: must not raise, and be safe to call from several threads.
        items: what to read.
        clock: monotonic seconds.
    """
    spans: list[float] = []
    done = 0
    # The first calls meet cold caches: the typical one counts, and it is asked for again where nothing was slow.
    while done < len(items):
        before = clock()
        result = read(items[done])
        spans.append(clock() - before)
        done += 1
        yield result
        if len(spans) == PROBES:
            if sorted(spans)[PROBES // 2] > SLOW_S:
                break
            spans.clear()
    for start in range(done, len(items), CHUNK):
        yield from _at_once(read, items[start : start + CHUNK])


def _at_once(read: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    results: dict[int, Result] = {}
    turns = iter(range(len(items)))

    def work() -> None:
        # next() of a range is one step of the interpreter: no two threads get the same number.
        for i in turns:
            results[i] = read(items[i])

    # Daemons: Ctrl-C must not wait for a filesystem that hangs.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(THREADS, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[i] for i in range(len(items))]


__all__ = ["overlapped"]
