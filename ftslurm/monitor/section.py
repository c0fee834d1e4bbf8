"""Named stretches of a script: opened and closed by a few stores into the rank's heartbeat page."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.heartbeat_page import LONGEST, OPENED, OPENS, OUT_LONGEST, SECTION_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftslurm.monitor.mapping import Words

F = TypeVar("F", bound="Callable[..., Any]")
_SPARE = 66  # words of the page that are never read: where a section without a slot puts its times
LEFT, LEFT_KEPT = "__ftslurm_sections__", 8  # an exception's attribute: (name, seconds since opened), innermost first
OPENED_TWICE = "a section was opened that is open already"
NOT_OPEN = "a section was closed that is not open"


class Book:
    """Shared data of the sections of one process.

    Args:
        words: the heartbeat page.
        warmup_steps: number of initial entries per section that do not count as its longest.
        report: called with a misuse and the section's name.
        clock: CLOCK_MONOTONIC in nanoseconds.
    """

    def __init__(
        self,
        words: Words,
        warmup_steps: int,
        report: Callable[[str, str], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.words = words
        self.warmup_steps = warmup_steps
        self.report = report
        self.clock = clock
        self.lock = threading.RLock()  # a signal handler may come in the middle
        self.opened: dict[Section, int] = {}  # setdefault and pop are atomic, also between threads
        self.closed_ns = words[SECTION_NS]
        self.out_longest = words[OUT_LONGEST]
        self.unsent = False  # a section's own time-out is not sent to the agent yet

    def listed(self, name: str) -> Section | None:
        """Return a new section with a slot in the page, None if there is none left."""
        with self.lock:
            at = heartbeat_page.new_slot(self.words, name)
        return None if at is None else Section(self, name, at)

    def unlisted(self, name: str) -> Section:
        """Return the open section of that name which has no slot, or a new one."""
        found = (section for section in list(self.opened) if isinstance(section, Unlisted) and section.name == name)
        return next(found, None) or Unlisted(self, name, _SPARE)

    def close_all(self) -> None:
        """Close what is open."""
        for section in list(self.opened):
            section.end()


class Section:
    """A named stretch of the script: use it with `with`, again and again, or as a decorator."""

    __slots__ = ("_longest", "_nested", "_opens", "at", "book", "name", "timeout")

    def __init__(self, book: Book, name: str, at: int) -> None:
        self.book = book
        self.name = name
        self.at = at
        self._opens = book.words[at + OPENS]
        self._longest = book.words[at + LONGEST]
        self._nested = 0
        self.timeout: float | None = None  # its own, as the script gave it last

    def start(self) -> bool:
        """Open it; False, and reported, if it was open."""
        book = self.book
        now = book.clock()
        opened = book.opened
        # The very object: of two threads with the same reading of the clock, one has not opened it.
        if opened.setdefault(self, now) is not now:
            book.report(OPENED_TWICE, self.name)
            return False
        words, at = book.words, self.at
        self._opens += 1
        words[at + OPENS] = self._opens
        words[at + OPENED] = now
        words[SECTION_NS] = now
        if book.closed_ns and len(opened) == 1 and now - book.closed_ns > book.out_longest:
            words[OUT_LONGEST] = book.out_longest = now - book.closed_ns
        return True

    def end(self) -> bool:
        """Close it; False, and reported, if it was not open."""
        book = self.book
        started = book.opened.pop(self, None)
        if started is None:
            book.report(NOT_OPEN, self.name)
            return False
        now = book.clock()
        words, at = book.words, self.at
        words[at + OPENED] = 0
        words[SECTION_NS] = now
        if now - started > self._longest and self._opens > book.warmup_steps:
            words[at + LONGEST] = self._longest = now - started
        if not book.opened:
            book.closed_ns = now
        return True

    def __enter__(self) -> Section:
        try:
            if not self.start():
                self._nest(1)
        except Exception:
            pass  # A monitoring error must not end the training run.
        return self

    def __exit__(self, _kind: object = None, error: object = None, _trace: object = None) -> None:
        try:
            if error is not None:
                self._left_by(error)
            # Inside itself, or in two threads at once: open until the last of them leaves.
            if not (self._nested and self._nest(-1)):
                self.end()
        except Exception:
            pass

    def _left_by(self, error: Any) -> None:
        """Store in the exception its open sections: when it is recorded they are closed again."""
        opened = self.book.opened.get(self)
        if opened is not None:
            left = error.__dict__.setdefault(LEFT, [])
            if len(left) < LEFT_KEPT:
                left.append((self.name, (self.book.clock() - opened) / 1e9))

    def _nest(self, change: int) -> bool:
        with self.book.lock:
            if self._nested + change < 0:
                return False
            self._nested += change
            return True

    def __call__(self, function: F) -> F:
        """Return `function`, run inside this section; a coroutine function until it has returned."""
        return cast("F", _wrap(self, function))


class Unlisted(Section):
    """A section that found no slot, or has an impossible name: not watched, but no "out of section" either."""

    __slots__ = ()

    def start(self) -> bool:
        """As `Section.start`."""
        return super().start() and self._count()

    def end(self) -> bool:
        """As `Section.end`."""
        return super().end() and self._count()

    def _count(self) -> bool:
        book = self.book
        book.words[heartbeat_page.UNLISTED] = sum(isinstance(section, Unlisted) for section in list(book.opened))
        return True


class NoSection:
    """A section of a process without an agent."""

    def __enter__(self) -> NoSection:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        """Return `function` itself."""
        return function


def _wrap(section: Section, function: Callable[..., Any]) -> Callable[..., Any]:
    import functools
    import inspect

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with section:
                return await function(*args, **kwargs)

        return run_async

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Any:
            with section:
                return (yield from function(*args, **kwargs))

        return generate

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with section:
            return function(*args, **kwargs)

    return run
