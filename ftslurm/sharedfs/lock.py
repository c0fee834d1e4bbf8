"""A lock that keeps rivals from working in vain; nothing's safety rests on it (the fenced cell's does on `link`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rivals_lock(path: str, timeout_s: float) -> Iterator[bool]:
    """Hold the lock file `path` if it can be had within `timeout_s` seconds.

    Yields:
        Whether it is held. Go on either way: a lock that cannot be had (a dead holder's lease, a filesystem without
        locks) must cost time, never progress.
    """
    # Imported here: filelock brings asyncio along, 4 MB and 40 ms that an agent without rivals never needs.
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=timeout_s, mode=0o600)
    held = False
    try:
        try:
            lock.acquire()
            held = True
        except (Timeout, OSError, NotImplementedError):
            pass
        yield held
    finally:
        if held:
            lock.release()
