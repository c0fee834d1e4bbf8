"""Reads of many small files at a time: on a network filesystem each one waits for a server that could serve more."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from ftslurm.sharedfs.filesystem import FileSystem

AT_ONCE = 8
"""Reads at a time."""
CHUNK = 64
"""Files between two of which a caller can notice that time has passed."""


def chunks_of(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the paths in parts that are read together."""
    for first in range(0, len(paths), CHUNK):
        yield paths[first : first + CHUNK]


def read_all(fs: FileSystem, paths: Sequence[str], limit: int) -> list[bytes | OSError]:
    """Return each file's content, at most `limit` bytes, or the error that it cannot be read with."""
    found: list[bytes | OSError] = [OSError()] * len(paths)
    places = iter(range(len(paths)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            found[place] = read_or_error(fs, paths[place], limit)

    threads = [threading.Thread(target=work, name="reader", daemon=True) for _ in range(min(AT_ONCE, len(paths)) - 1)]
    started = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:
            # No further thread may be started here (`ulimit -u`): those that are there, and this one, do the work.
            break
        started.append(thread)
    work()
    for thread in started:
        thread.join()
    return found


def read_or_error(fs: FileSystem, path: str, limit: int) -> bytes | OSError:
    """Return a file's content, or the error that it cannot be read with."""
    try:
        return fs.read(path, limit)
    except OSError as error:
        return error
