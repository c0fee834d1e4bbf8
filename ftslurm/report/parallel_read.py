"""Parallel reads of a slow filesystem: many threads hide the network's latency of a millisecond per read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

THREADS = 48
# A local filesystem answers in microseconds; threads would only contend for the interpreter there.
SLOW_S = 0.0003
PROBES = 16
# Number of items read ahead: bounds the memory.
CHUNK = 192

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_in_parallel(
    read: Callable[[Item], Result], items: Sequence[Item], clock: Callable[[], float] = time.perf_counter
) -> Iterator[Result]:
    """Yield ``read(item)`` for each item, in order; by many threads if the first reads are slow.

    Args:
        read: must not raise, and must be thread-safe.
        items: arguments of the reads.
        clock: monotonic seconds.
    """
    spans: list[float] = []
    done = 0
    # The first calls have cold caches: the median decides, and is measured again later if it was fast.
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
    chunks = [items[start : start + CHUNK] for start in range(done, len(items), CHUNK)]
    ahead = [_Chunk(read, chunk) for chunk in chunks[:1]]
    for i in range(len(chunks)):
        # The next items are read while these are used.
        ahead += [_Chunk(read, chunk) for chunk in chunks[i + 1 : i + 2]]
        yield from ahead.pop(0).results()


class _Chunk(Generic[Item, Result]):
    """Items read by many threads."""

    def __init__(self, read: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self._read, self._items = read, items
        self._results: dict[int, Result] = {}
        self._turns = iter(range(len(items)))
        # Daemons: Ctrl-C must not wait for a filesystem that hangs.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(THREADS, len(items)))]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        # next() of a range is one step of the interpreter: no two threads get the same number.
        for i in self._turns:
            self._results[i] = self._read(self._items[i])

    def results(self) -> list[Result]:
        for thread in self._threads:
            thread.join()
        return [self._results[i] for i in range(len(self._items))]


__all__ = ["read_in_parallel"]
