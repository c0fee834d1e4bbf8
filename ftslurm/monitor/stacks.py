"""The agent's side of a hang: asks processes for their stacks and collects them, without ever waiting for one.

Driven by the agent's loop: `Collector.start`, then `Collector.poll` at each `Collector.deadline` until it is done. A
signal is sent only to a process that has a handler for it and holds the file that `dumpsignal.install` opened: to any
other one, a real-time signal is death. What cannot answer is described by what /proc says of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ftslurm.monitor import procstate
from ftslurm.monitor.dumpsignal import DUMP_SIGNAL, FIRST_FD, NAME, install
from ftslurm.monitor.pyspy import PySpy
from ftslurm.monitor.stacksfile import RankStacks, Stacks, encode, parse

TIMEOUT_S = 2.0
NATIVE_S = 3.0
STABLE_S, BUSY_STABLE_S = 0.03, 0.15
POLL_S, SLOW_POLL_S, QUICK_S = 0.005, 0.02, 0.1
AGAIN_AT = (0.15, 0.4, 0.7)  # parts of the time-out after which another thread is asked
HEAD_LIMIT, TAIL_LIMIT = 32 * 1024, 96 * 1024

# The main thread is written last, and where it began is this project's own file, or runpy for `-m ftslurm.worker`.
_LAST = re.compile(rb'\n  File "[^"\n]*(/ftslurm/(boot/)?worker\.py|runpy[^"\n]*)", line \d+ in (<module>|_run_\w+)\n$')

Descendants = Callable[[int], Sequence[tuple[int, int]]]


class Target(NamedTuple):
    """One registered worker: its process, which this process must not have reaped, and its record directory.

    ``native``: py-spy is asked for its native frames too, if it is there. Meant for the rank that hung.
    """

    local_rank: int
    pid: int
    pidfd: int
    record_dir: str
    native: bool = False


class Collector:
    """Collects the stacks of some workers, all at once.

    Args:
        targets: the workers.
        descendants: process id to (process id, process group) of its descendants, parents first; asked only for a
            worker that does not answer the signal itself, such as a shell whose child is the Python program.
        timeout_s: how long the processes have for their stacks, in seconds.
        native_s: how long py-spy has after that, in seconds.
        pyspy: the program, by name or path.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        descendants: Descendants,
        *,
        timeout_s: float = TIMEOUT_S,
        native_s: float = NATIVE_S,
        pyspy: str = "py-spy",
    ) -> None:
        self._dumps = [_Dump(target, descendants, timeout_s) for target in targets]
        self._pyspy = [PySpy(d.target.pid, pyspy) for d in self._dumps if d.target.native]
        self._native_at = {d.target.local_rank: s for d, s in zip(self._native(), self._pyspy, strict=True)}
        self._timeout_s, self._native_s = timeout_s, native_s
        self._started_s = 0.0
        self.deadline: float | None = None
        """The monotonic second at which `poll` wants to be called; None before the start and when all is done."""

    def start(self, now_s: float) -> None:
        """Ask all processes. ``now_s``: monotonic seconds, as for `poll`."""
        self._started_s = now_s
        for dump in self._dumps:
            dump.start(now_s)
        self.poll(now_s)

    def poll(self, now_s: float) -> bool:
        """Take what has come; return whether all is there, or the time is over. May be called at any time."""
        ended = self._ended()
        for dump in self._dumps:
            dump.poll(now_s, ended=dump.target.local_rank in ended)
        done = all(dump.done for dump in self._dumps)
        # py-spy stops the process that it looks at, so that one is left to answer first.
        for dump in self._native():
            done &= self._look_deeper(dump, now_s)
        quick = now_s - self._started_s < QUICK_S
        self.deadline = None if done else now_s + (POLL_S if quick else SLOW_POLL_S)
        return done

    def result(self) -> dict[int, Stacks]:
        """Return what there is, by local rank; also before all is done."""
        found = {}
        for dump in self._dumps:
            spy = self._native_at.get(dump.target.local_rank)
            found[dump.target.local_rank] = dump.stacks(spy.text() if spy else "")
        return found

    def close(self) -> None:
        """Let go of everything; for one that is given up before it was done, and harmless twice."""
        for dump in self._dumps:
            dump.close()
        for spy in self._pyspy:
            spy.close()
        self.deadline = None

    def _native(self) -> list[_Dump]:
        return [dump for dump in self._dumps if dump.target.native]

    def _look_deeper(self, dump: _Dump, now_s: float) -> bool:
        spy = self._native_at[dump.target.local_rank]
        if not dump.done:
            return False
        if dump.gone or dump.stopped:
            return True
        return spy.poll(now_s, self._started_s + self._timeout_s + self._native_s)

    def _ended(self) -> set[int]:
        poll = select.poll()
        owners = {d.target.pidfd: d.target.local_rank for d in self._dumps if not d.done}
        for pidfd in owners:
            poll.register(pidfd, select.POLLIN)
        return {owners[pidfd] for pidfd, _ in poll.poll(0)} if owners else set()


class _Dump:
    """One process's stacks on their way."""

    def __init__(self, target: Target, descendants: Descendants, timeout_s: float) -> None:
        self.target = target
        self.done = self.gone = self.stopped = False
        self._descendants = descendants
        self._timeout_s = timeout_s
        self._process = f"/proc/{target.pid}"
        self._path = os.path.join(target.record_dir, NAME)
        self._fd = self._pidfd = -1
        self._start_s = self._changed_s = 0.0
        self._base = self._size = 0
        self._again = list(AGAIN_AT)
        self._others: Iterator[int] | None = None
        self._problem: str | None = None
        self._facts: tuple[tuple[str, str], ...] = ()
        self._text = ""

    def start(self, now_s: float) -> None:
        self._start_s = self._changed_s = now_s
        problem = self._ask()
        if problem is not None:
            self._finish(problem)

    def poll(self, now_s: float, *, ended: bool) -> None:
        if self.done:
            return
        size = os.fstat(self._fd).st_size
        if size != self._size:
            self._base = min(self._base, size)
            self._size, self._changed_s = size, now_s
        since_s = now_s - self._start_s
        if ended:
            self.gone = True
            self._finish("ended while its stacks were collected")
        elif self._size > self._base and self._complete(now_s):
            self._finish(self._held() if self._others is not None else None)
        elif since_s >= self._timeout_s:
            self._finish(self._why_no_answer())
        elif self._again and self._size == self._base and since_s >= self._again[0] * self._timeout_s:
            self._again.pop(0)
            self._ask_another_thread()

    def stacks(self, native: str) -> Stacks:
        return Stacks(self.target.local_rank, self._text, self._facts, self._problem, native)

    def close(self) -> None:
        for fd in {self._fd, self._pidfd} - {-1, self.target.pidfd}:
            os.close(fd)
        self._fd = self._pidfd = -1
        self.done = True

    def _ask(self) -> str | None:
        """Send the signal to the process that will answer it; else return why there is none."""
        state = procstate.status(self._process)
        if state is None or procstate.letter(state) in "ZX":
            self.gone = True
            return "had ended"
        self.stopped = procstate.letter(state) in "Tt"
        if self.stopped:
            return _stopped(state)
        if not self._open():
            return "does not catch the dump signal: it is not a Python script that ftslurm started"
        if self._answers(self._process, state):
            self._pidfd = self.target.pidfd
        elif not self._find_descendant():
            return "does not catch the dump signal, or has closed the file for its stacks"
        self._base = self._size = os.fstat(self._fd).st_size
        try:
            signal.pidfd_send_signal(self._pidfd, DUMP_SIGNAL)
        except OSError as problem:
            self.gone = isinstance(problem, ProcessLookupError)
            return "had ended" if self.gone else f"cannot be signalled: {problem.strerror}"
        return None

    def _open(self) -> bool:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        self._fd = fd
        return stat.S_ISREG(os.fstat(fd).st_mode)

    def _answers(self, process: str, state: dict[str, str]) -> bool:
        guess = range(FIRST_FD, FIRST_FD + 4)
        return procstate.has(state, "SigCgt", DUMP_SIGNAL) and procstate.holds(process, self._path, guess)

    def _find_descendant(self) -> bool:
        for pid, _ in self._descendants(self.target.pid):
            try:
                # Opened before the look, so that what is signalled is what was looked at.
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            process = f"/proc/{pid}"
            state = procstate.status(process)
            if state is not None and self._answers(process, state):
                self._pidfd, self._process = pidfd, process
                return True
            os.close(pidfd)
        return False

    def _ask_another_thread(self) -> None:
        """Have a thread answer that can: the first one gets the signal, but in D state it does not come to handle it.

        Safe without a pidfd: the process is not reaped while its pidfd does not say that it has ended, and the
        kernel checks that the thread is one of the process.
        """
        if self._pidfd != self.target.pidfd:
            return
        if self._others is None:
            self._others = procstate.threads_that_take(self._process, DUMP_SIGNAL)
        tid = next(self._others, None)
        if tid is not None:
            _tgkill(self.target.pid, tid)

    def _complete(self, now_s: float) -> bool:
        quiet_s = now_s - self._changed_s
        if _LAST.search(os.pread(self._fd, 1024, max(self._base, self._size - 1024))):
            return True
        if quiet_s < STABLE_S:
            return False
        # Where many processes share few cores, one that still writes may be off its core for long.
        state = procstate.status(self._process)
        return quiet_s >= BUSY_STABLE_S or state is None or procstate.letter(state) == "S"

    def _why_no_answer(self) -> str | None:
        late = f"no answer within {self._timeout_s:.1f} s"
        if self._size > self._base:
            return f"not complete: still writing after {self._timeout_s:.1f} s"
        state = procstate.status(self._process)
        if state is None or procstate.letter(state) in "ZX":
            self.gone = True
            return "ended while its stacks were collected"
        if procstate.letter(state) in "Tt":
            self.stopped = True
            return _stopped(state)
        if held := self._held():
            return held
        if any(procstate.has(state, pending, DUMP_SIGNAL) for pending in ("SigPnd", "ShdPnd")):
            return f"{late}: it blocks the signal, or waits where it cannot be interrupted"
        return late

    def _held(self) -> str | None:
        """Return what is to be said of a main thread in D state, which may have its stacks written by another one."""
        if procstate.letter(procstate.status(self._process) or {}) != "D":
            return None
        place = procstate.waits_in(self._process)
        return f"in uninterruptible sleep (D){f' in {place}' if place else ''}"

    def _finish(self, problem: str | None) -> None:
        if self._fd >= 0 and self._size > self._base:
            self._text = _read(self._fd, self._base, self._size)
        self._problem = problem
        self._facts = procstate.facts(self._process, waiting=problem is not None and not self.gone)
        self.close()


def _stopped(state: dict[str, str]) -> str:
    return "stopped by a debugger (t)" if procstate.letter(state) == "t" else "stopped (SIGSTOP)"


def _read(fd: int, start: int, end: int) -> str:
    """Return what stands between two offsets; of very much, its beginning and its end, where the main thread is."""
    size = end - start
    if size <= HEAD_LIMIT + TAIL_LIMIT:
        data = os.pread(fd, size, start)
    else:
        left_out = f"\n\n... {size - HEAD_LIMIT - TAIL_LIMIT} bytes left out ...\n\n".encode()
        data = os.pread(fd, HEAD_LIMIT, start) + left_out + os.pread(fd, TAIL_LIMIT, end - TAIL_LIMIT)
    return data.decode("utf-8", "replace")


def _tgkill(pid: int, tid: int) -> None:
    try:
        ctypes.CDLL(None).tgkill(pid, tid, DUMP_SIGNAL)
    except AttributeError:
        pass  # A C library without it: the first thread's answer is all there is.


__all__ = ["DUMP_SIGNAL", "Collector", "RankStacks", "Stacks", "Target", "encode", "install", "parse"]
