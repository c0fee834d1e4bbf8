"""Stack collection of one process: request by a signal, wait for the output, description if there is none."""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.kernel import pidfd_open, pidfd_send_signal, schedstat
from ftslurm.monitor import process_state
from ftslurm.monitor.dump_signal import DUMP_SIGNAL, FIRST_FD, NAME
from ftslurm.monitor.stacks_file import Stacks
from ftslurm.text import duration

STABLE_S, QUIET_S, RAN_S = 0.03, 0.5, 0.02
"""Time without a further line after which a dump is complete: of a process that sleeps; of any other one; and of one
that runs or waits for a core, in time on a core."""
AGAIN_AT = (0.15, 0.4, 0.7)  # parts of the time-out after which another thread gets the signal
HEAD_LIMIT, TAIL_LIMIT = 32 * 1024, 96 * 1024

# The main thread is written last, and where it began is this project's own file, or runpy for `-m ftslurm.worker`.
_LAST = re.compile(rb'\n  File "[^"\n]*(/ftslurm/(boot/)?worker\.py|runpy[^"\n]*)", line \d+ in (<module>|_run_\w+)\n$')

Descendants = Callable[[int], Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Target:
    """One registered worker: its process, which this process must not have reaped, and its record directory.

    ``native``: py-spy collects its native frames too, if installed. Meant for the rank that hung.
    """

    local_rank: int
    pid: int
    pidfd: int
    record_dir: str
    native: bool = False


class Dump:
    """The pending stack collection of one process; see `ftslurm.monitor.stacks.Collector` for the arguments.

    Attributes:
        done: the collection is finished.
        gone: the process has ended.
        stopped: it is stopped.
        pidfd: a duplicate, so that it means this process for as long as this lives; -1 after `close`.
    """

    def __init__(self, target: Target, descendants: Descendants, timeout_s: float) -> None:
        self.target = target
        self.pidfd = -1
        self.done = self.gone = self.stopped = False
        self._descendants = descendants
        self._timeout_s = timeout_s
        self._process = f"/proc/{target.pid}"
        self._path = os.path.join(target.record_dir, NAME)
        self._fd = self._asked = -1
        self._start_s = self._changed_s = 0.0
        self._base = self._size = 0
        self._ran_s = 0.0  # its time on a core when it last wrote
        self._again = list(AGAIN_AT)
        self._others: Iterator[int] | None = None
        self._problem: str | None = "not collected in time"
        self._facts: tuple[tuple[str, str], ...] = ()
        self._text = ""

    def start(self, now_s: float) -> None:
        """Request the stacks; `now_s` in monotonic seconds."""
        self._start_s = self._changed_s = now_s
        problem = self._ask()
        if problem is not None:
            self._finish(problem)

    def poll(self, now_s: float, *, ended: bool) -> None:
        """Read the output so far; `ended`: the process has ended."""
        if self.done:
            return
        size = os.fstat(self._fd).st_size
        if size != self._size:
            self._base = min(self._base, size)
            self._size, self._changed_s = size, now_s
            self._ran_s = _ran_s(self._process)
        since_s = now_s - self._start_s
        if ended:
            self.gone = True
            self._finish("ended while its stacks were collected")
        elif self._size > self._base and self._complete(now_s):
            self._finish(self._held() if self._others is not None else None)
        elif since_s >= self._timeout_s:
            self._finish(self._no_answer_reason())
        elif self._again and self._size == self._base and since_s >= self._again[0] * self._timeout_s:
            self._again.pop(0)
            self._ask_another_thread()

    def stacks(self, native: str) -> Stacks:
        """Return the stacks collected so far."""
        return Stacks(self.target.local_rank, self._text, self._facts, self._problem, native)

    def close(self) -> None:
        """Release all resources; idempotent."""
        for fd in {self._fd, self._asked, self.pidfd} - {-1}:
            os.close(fd)
        self._fd = self._asked = self.pidfd = -1
        self.done = True

    def _ask(self) -> str | None:
        """Send the signal to the process that handles it; else return why there is none."""
        try:
            self.pidfd = os.dup(self.target.pidfd)
        except OSError:
            self.gone = True
            return "had ended"
        state = process_state.status(self._process)
        if state is None or process_state.letter(state) in "ZX":
            self.gone = True
            return "had ended"
        self.stopped = process_state.letter(state) in "Tt"
        if self.stopped:
            return _stopped(state)
        if not self._open():
            return "no answer to the dump signal: no Python script that ftslurm started"
        if self._answers(self._process, state):
            self._asked = self.pidfd
        elif not self._find_descendant():
            return "no answer to the dump signal, or the file for its stacks is closed"
        self._base = self._size = os.fstat(self._fd).st_size
        try:
            pidfd_send_signal(self._asked, DUMP_SIGNAL)
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
        return process_state.has(state, "SigCgt", DUMP_SIGNAL) and process_state.holds(process, self._path, guess)

    def _find_descendant(self) -> bool:
        for pid, _ in self._descendants(self.target.pid):
            try:
                # Opened before the check, so that the signalled process is the checked one.
                pidfd = pidfd_open(pid)
            except OSError:
                continue
            process = f"/proc/{pid}"
            state = process_state.status(process)
            if state is not None and self._answers(process, state):
                self._asked, self._process = pidfd, process
                return True
            os.close(pidfd)
        return False

    def _ask_another_thread(self) -> None:
        """Signal a thread that can handle it: the first one gets the signal, but cannot handle it in D state.

        Safe without a pidfd: `poll` has just checked that the process has not ended, only the caller could reap it
            since,
        and the kernel checks that the thread belongs to it.
        """
        if self._asked != self.pidfd:
            return
        if self._others is None:
            self._others = process_state.threads_that_take(self._process, DUMP_SIGNAL)
        tid = next(self._others, None)
        if tid is not None:
            _tgkill(self.target.pid, tid)

    def _complete(self, now_s: float) -> bool:
        quiet_s = now_s - self._changed_s
        # No byte behind the size: the text ends there, and the process may have written on since.
        start = max(self._base, self._size - 1024)
        end = os.pread(self._fd, self._size - start, start)
        if _LAST.search(end):
            return True
        if quiet_s < STABLE_S:
            return False
        state, ran_s = process_state.status(self._process), _ran_s(self._process)
        if os.fstat(self._fd).st_size != self._size:
            return False  # it has written since: its state says nothing about the text read before
        letter = process_state.letter(state or {})
        if letter in ("T", "t"):
            self._changed_s = now_s  # a debugger that stops it for a moment: it writes on afterwards
            return False
        if letter == "S" and end.endswith(b"\n"):
            return True  # in the middle of a line, it waits for its file
        if letter == "R" and ran_s:
            # Where many processes share few cores, one that still writes may be off its core for long.
            return ran_s - self._ran_s >= RAN_S
        return state is None or quiet_s >= QUIET_S

    def _no_answer_reason(self) -> str | None:
        late = f"no answer within {duration(self._timeout_s)}"
        if self._size > self._base:
            return f"not complete: still writing after {duration(self._timeout_s)}"
        state = process_state.status(self._process)
        if state is None or process_state.letter(state) in "ZX":
            self.gone = True
            return "ended while its stacks were collected"
        if process_state.letter(state) in "Tt":
            self.stopped = True
            return _stopped(state)
        if held := self._held():
            return held
        if any(process_state.has(state, pending, DUMP_SIGNAL) for pending in ("SigPnd", "ShdPnd")):
            return f"{late}: it blocks the signal, or waits where it cannot be interrupted"
        return late

    def _held(self) -> str | None:
        """Return the problem of a main thread in D state, whose stacks another thread may have written."""
        if process_state.letter(process_state.status(self._process) or {}) != "D":
            return None
        place = process_state.waits_in(self._process)
        return f"in uninterruptible sleep (D){f' in {place}' if place else ''}"

    def _finish(self, problem: str | None) -> None:
        if self._fd >= 0 and self._size > self._base:
            self._text = _read(self._fd, self._base, self._size)
        self._problem = problem
        self._facts = process_state.facts(self._process, waiting=problem is not None and not self.gone)
        self.close()


def _ran_s(process: str) -> float:
    """Return the seconds that the main thread spent on a core; 0 where the kernel does not count them."""
    return (schedstat(process) or (0.0, 0.0))[0]


def _stopped(state: dict[str, str]) -> str:
    return "stopped by a debugger (t)" if process_state.letter(state) == "t" else "stopped (SIGSTOP)"


def _read(fd: int, start: int, end: int) -> str:
    """Return the text between two offsets; of a long one the beginning and the end, where the main thread is."""
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
