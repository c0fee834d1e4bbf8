"""Looks up several names at once, and does not wait for those that nobody answers."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable

from ftslurm.dataclasses import dataclass

AT_ONCE = 16

Resolver = Callable[[str], "list[str]"]


@dataclass(frozen=True)
class Resolved:
    """What came of one name.

    Attributes:
        addresses: sorted; empty: it does not resolve; None: nobody answered in time.
        took_s: until then, in seconds.
        problem: the resolver's words; empty: none.
    """

    addresses: tuple[str, ...] | None
    took_s: float
    problem: str = ""


def system(name: str) -> list[str]:
    """Look a name up as all programs here do.

    Raises:
        OSError: it does not resolve.
    """
    return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


def look_up(names: Iterable[str], limit_s: float, resolver: Resolver = system) -> dict[str, Resolved]:
    """Look up names, at most so many seconds in all. Look-ups that hang are left to threads that end with us."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Resolved]] = queue.SimpleQueue()
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        todo.put(name)
    began = time.monotonic()
    for _ in range(min(AT_ONCE, len(wanted))):
        threading.Thread(target=_work, args=(todo, done, resolver), daemon=True).start()
    found: dict[str, Resolved] = {}
    while len(found) < len(wanted):
        try:
            name, resolved = done.get(timeout=max(0.0, began + limit_s - time.monotonic()))
        except queue.Empty:
            break
        found[name] = resolved
    late = Resolved(None, limit_s, f"no answer within {limit_s:g} s")
    return {name: found.get(name, late) for name in wanted}


def _work(todo: queue.SimpleQueue[str], done: queue.SimpleQueue[tuple[str, Resolved]], resolver: Resolver) -> None:
    while True:
        try:
            name = todo.get_nowait()
        except queue.Empty:
            return
        began = time.monotonic()
        try:
            resolved = Resolved(tuple(sorted(set(resolver(name)))), time.monotonic() - began)
        except (OSError, UnicodeError) as error:
            words = str(getattr(error, "strerror", None) or error)
            resolved = Resolved((), time.monotonic() - began, words)
        done.put((name, resolved))
