"""A rank's connection to its agent: frequent data go into the heartbeat page, rare messages into the node's pipe."""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.section import Book, Section

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ftslurm.monitor.mapping import Words
    from ftslurm.monitor.timeouts import Learned, Timeouts

MAX_REPORTS = 32  # different misuses that are sent; all are counted


class AgentLink:
    """The connection of a rank's process to its agent.

    Args:
        words: its heartbeat page.
        environment: `LOCAL_RANK` (`FTSLURM_LOCAL_RANK` where that is virtual); `FTSLURM_PIPE`, the node's pipe;
            `FTSLURM_TIMEOUTS`, see `timeouts.to_env`.
    """

    def __init__(self, words: Words, environment: Mapping[str, str]) -> None:
        self.words = words
        self.rank = int(environment.get("FTSLURM_LOCAL_RANK") or environment.get("LOCAL_RANK", "0"))
        self.pid = os.getpid()
        self.pipe: str | None = environment.get("FTSLURM_PIPE")
        self.asked, self.learned = _from_environment(environment)
        warmup_steps = self.asked.warmup_steps if self.asked else 0
        self.book = Book(words, warmup_steps, self.misuse)
        self.beat = heartbeat_page.beater(words, warmup_steps)
        self.step = heartbeat_page.stepper(words)
        self.known: dict[str, Section] = {}
        self._reported: set[tuple[str, str]] = set()
        self._own: set[str] = set()  # set by the script itself: a loaded state does not change these

    def misuse(self, what: str, name: str = "") -> None:
        """Count a wrong call, and send the first of its kind to the agent."""
        self.words[heartbeat_page.MISUSED] += 1
        if (what, name) not in self._reported and len(self._reported) < MAX_REPORTS:
            self._reported.add((what, name))
            self.send("misuse", what, name)

    def send(self, kind: str, what: str = "", name: str = "") -> bool:
        """Write one line into the pipe; False, and counted, if that is not possible now."""
        if self.pipe is None:
            return True  # There is no reader.
        from ftslurm.monitor.message import ClientMessage, encode

        try:
            # Opened each time: the agent restores a removed pipe, and a script may close all descriptors.
            fd = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                # Nothing is written into another file in its place.
                if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                    raise OSError(f"{self.pipe} is no pipe")
                os.write(fd, encode(ClientMessage(kind, self.rank, self.pid, what, name)))
            finally:
                os.close(fd)
        except OSError:
            self.words[heartbeat_page.DROPPED] += 1
            return False
        return True

    def notify_timeouts(self) -> None:
        """Have the agent read the heartbeat page, now or when the pipe can be written."""
        self.book.unsent = not self.send("timeouts")

    def finish(self) -> None:
        """See `workload_finished`."""
        self.words[heartbeat_page.FINISHED] = 1
        self.send("finished")

    def disown(self) -> None:
        """Turn this into a dummy: for a forked child, whose parent's script holds sections of it."""
        scratch: Any = [0] * (heartbeat_page.SIZE // 8)
        self.words = self.book.words = scratch
        self.book.lock = threading.RLock()
        self.pipe = None

    def find_section(self, name: str) -> Section:
        """Return the section of that name; one without a slot in the heartbeat page is not watched."""
        found = self.known.get(name) if isinstance(name, str) else None
        if found is not None:
            return found
        from ftslurm.monitor.timeouts import is_name

        if not is_name(name):
            self.misuse("a section's name must be text of 1 to 40 bytes", str(name))
            return self.book.unlisted(str(name))
        listed = self.book.listed(name)
        if listed is None:
            # Reported without the name: a script that numbers its sections has endlessly many.
            self.misuse(f"more than {heartbeat_page.SLOTS} names of sections: further ones are not watched")
            return self.book.unlisted(name)
        # Two concurrent threads get the same object.
        return self.known.setdefault(name, listed)

    def set_section(self, name: str, seconds: float) -> bool:
        """Set the section's own time-out; True if it was another one."""
        found = self.find_section(name)
        if not _is_timeout(seconds):
            self.misuse("a time-out must be seconds above 0", name)
            return False
        self._own.add(f"section {name}")
        found.timeout = seconds
        return type(found) is Section and self._store(found.at + heartbeat_page.OWN_TIMEOUT, seconds)

    def set_own(
        self, heartbeat: float | None, initial: float | None, sections: Mapping[str, float], out: float | None
    ) -> None:
        """See `set_timeouts`."""
        changed = [self.set_section(name, seconds) for name, seconds in sections.items()]
        for name, at, seconds in (
            ("heartbeat", heartbeat_page.OWN_HEARTBEAT, heartbeat),
            ("initial", heartbeat_page.OWN_INITIAL, initial),
            ("out_of_section", heartbeat_page.OWN_OUT, out),
        ):
            if seconds is None:
                continue
            if _is_timeout(seconds):
                self._own.add(name)
                changed.append(self._store(at, seconds))
            else:
                self.misuse("a time-out must be seconds above 0", name)
        if any(changed):
            self.notify_timeouts()

    def set_loaded(self, loaded: Learned) -> None:
        """Apply the loaded time-outs, except where configured by the script or the command line."""
        from ftslurm.monitor.timeouts import NOTHING, Spans, widest

        asked = self.asked or NOTHING
        known = widest(loaded.timeouts, self.learned.timeouts if self.learned else Spans())
        changed = []
        for name, at, seconds, already in (
            ("heartbeat", heartbeat_page.OWN_HEARTBEAT, known.heartbeat_s, asked.heartbeat_s),
            ("initial", heartbeat_page.OWN_INITIAL, known.initial_s, asked.initial_s),
            ("out_of_section", heartbeat_page.OWN_OUT, known.out_of_section_s, asked.out_of_section_s),
        ):
            if seconds is not None and already is None and name not in self._own:
                changed.append(self._store(at, seconds))
        for name, seconds in known.sections.items():
            if name not in asked.sections and f"section {name}" not in self._own:
                found = self.find_section(name)
                changed.append(type(found) is Section and self._store(found.at + heartbeat_page.OWN_TIMEOUT, seconds))
        if any(changed):
            self.notify_timeouts()

    def _store(self, at: int, seconds: float) -> bool:
        word = heartbeat_page.encode_timeout(seconds)
        if self.words[at] == word:
            return False
        self.words[at] = word
        return True


def _is_timeout(seconds: object) -> bool:
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    return number and seconds > 0  # type: ignore[operator]  # also: no NaN


def _from_environment(environment: Mapping[str, str]) -> tuple[Timeouts | None, Learned | None]:
    text = environment.get("FTSLURM_TIMEOUTS")
    if not text:
        return None, None
    from ftslurm.monitor.timeouts import from_env

    try:
        return from_env(text)
    except ValueError as problem:
        write_line(str(problem)[:300])
        return None, None


def write_line(text: str) -> bool:
    """Write one line to the standard error, if there is one; return whether that was possible."""
    try:
        os.write(2, f"ftslurm: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return False
    return True
