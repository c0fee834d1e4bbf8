"""Looks up several names concurrently, with a time-out for names without an answer."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable

from ftslurm.dataclasses import dataclass
from ftslurm.health.device_time import own_clock
from ftslurm.observed_time import ObservedTime

AT_ONCE = 16
TICK_S = 0.1

Resolver = Callable[[str], "list[str]"]


@dataclass(frozen=True)
class Resolved:
    """Result of one look-up.

    Attributes:
        addresses: sorted; empty: it does not resolve; None: no answer in time.
        took_s: duration, in seconds.
        problem: the resolver's error; empty: none.
    """

    addresses: tuple[str, ...] | None
    took_s: float
    problem: str = ""


def system(name: str) -> list[str]:
    """Look up a name by the system's resolver.

    Raises:
        OSError: it does not resolve.
    """
    # Given as text, Python would first import the encoder for international names.
    host = name.encode() if name.isascii() else name
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def look_up(names: Iterable[str], limit_s: float, resolver: Resolver = system) -> dict[str, Resolved]:
    """Look up names within a total time-out in seconds, without the time in which this process got no CPU.

    Look-ups that hang are left to daemon threads.
    """
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Resolved]] = queue.SimpleQueue()
    names_once = list(dict.fromkeys(names))
    for name in names_once:
        todo.put(name)
    attention = ObservedTime(time.monotonic, 2 * TICK_S)
    for _ in range(min(AT_ONCE, len(names_once))):
        threading.Thread(target=_work, args=(todo, done, resolver), daemon=True).start()
    found: dict[str, Resolved] = {}
    while len(found) < len(names_once) and attention.note() < limit_s:
        try:
            name, resolved = done.get(timeout=TICK_S)
        except queue.Empty:
            continue
        found[name] = resolved
    late = Resolved(None, limit_s, f"no answer within {limit_s:g} s")
    return {name: found.get(name, late) for name in names_once}


def _work(todo: queue.SimpleQueue[str], done: queue.SimpleQueue[tuple[str, Resolved]], resolver: Resolver) -> None:
    while True:
        try:
            name = todo.get_nowait()
        except queue.Empty:
            return
        began = own_clock()
        try:
            resolved = Resolved(tuple(sorted(set(resolver(name)))), own_clock() - began)
        except (OSError, UnicodeError) as error:
            problem = str(getattr(error, "strerror", None) or error)
            resolved = Resolved((), own_clock() - began, problem)
        done.put((name, resolved))
