"""Child processes for every access to the shared filesystem: a call that hangs costs only a child, and is named."""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ftslurm.dataclasses import dataclass
from ftslurm.sharedfs.filesystem import DEFAULT_READ_LIMIT, PosixFileSystem

T = TypeVar("T")
_SLOT = 512
_HEAD = struct.Struct("<qH")
LOOK_S = 0.1
REAP_S = 0.5


class CallSlot:
    """Memory shared with the parent: the child's present call, and its start."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLOT)

    def begin(self, what: str) -> None:
        """Record the start of the call `what`."""
        text = what.encode("utf-8", "backslashreplace")[: _SLOT - _HEAD.size]
        self._memory[_HEAD.size : _HEAD.size + len(text)] = text
        self._memory[: _HEAD.size] = _HEAD.pack(time.monotonic_ns(), len(text))

    def end(self) -> None:
        """Record that the child is in no call."""
        self._memory[: _HEAD.size] = _HEAD.pack(0, 0)

    def current(self) -> tuple[float, str] | None:
        """Return the duration of the child's present call, in seconds, and the call."""
        began_ns, length = _HEAD.unpack(self._memory[: _HEAD.size])
        if not began_ns:
            return None
        text = self._memory[_HEAD.size : _HEAD.size + length]
        return (time.monotonic_ns() - began_ns) / 1e9, text.decode("utf-8", "replace")


class TimedFileSystem(PosixFileSystem):
    """The real filesystem; every operation is recorded in the slot, and the slowest one is kept.

    Other users' files are refused.
    """

    def __init__(self, slot: CallSlot) -> None:
        super().__init__(owner=os.geteuid())
        self._slot = slot
        self.slowest: tuple[float, str] = (0.0, "")

    def during(self, what: str, function: Callable[[], T]) -> T:
        """Call `function`, recorded as `what`."""
        began = time.monotonic()
        self._slot.begin(what)
        try:
            return function()
        finally:
            self._slot.end()
            took = time.monotonic() - began
            if took > self.slowest[0]:
                self.slowest = (took, what)

    def create(self, path: str, data: bytes, durable: bool) -> None:
        """See `FileSystem.create`."""
        self.during(f"create {path}", lambda: PosixFileSystem.create(self, path, data, durable))

    def link(self, source: str, target: str) -> None:
        """See `FileSystem.link`."""
        self.during(f"link {target}", lambda: PosixFileSystem.link(self, source, target))

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`."""
        self.during(f"rename {target}", lambda: PosixFileSystem.rename(self, source, target))

    def unlink(self, path: str) -> None:
        """See `FileSystem.unlink`."""
        self.during(f"unlink {path}", lambda: PosixFileSystem.unlink(self, path))

    def read(self, path: str, limit: int = DEFAULT_READ_LIMIT) -> bytes:
        """See `FileSystem.read`."""
        return self.during(f"open and read {path}", lambda: PosixFileSystem.read(self, path, limit))

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`."""
        return self.during(f"list {path}", lambda: PosixFileSystem.listdir(self, path))

    def refresh(self, path: str) -> None:
        """See `FileSystem.refresh`."""
        self.during(f"open directory {path}", lambda: PosixFileSystem.refresh(self, path))

    def makedirs(self, path: str) -> None:
        """See `FileSystem.makedirs`."""
        self.during(f"mkdir {path}", lambda: PosixFileSystem.makedirs(self, path))


Work = Callable[[TimedFileSystem], Any]


@dataclass(frozen=True)
class Outcome:
    """Result of a child's work.

    Attributes:
        value: the return value (after JSON); None without one.
        problem: why there is none, one line.
        hung: the call that had not returned at the time-out.
        slowest: the slowest call: seconds and name.
    """

    value: Any = None
    problem: str | None = None
    hung: str | None = None
    slowest: tuple[float, str] = (0.0, "")


def run_all(works: Sequence[Work], limit_s: float, call_limit_s: float) -> list[Outcome]:
    """Run each work in a child process of its own, concurrently.

    Args:
        works: the functions; each returns a JSON-serialisable value.
        limit_s: seconds until all are killed.
        call_limit_s: longest duration of one filesystem call before the child is killed, seconds.
    """
    children: list[_Child] = []
    try:
        for work in works:
            children.append(_Child(work))
        _collect(children, time.monotonic() + limit_s, call_limit_s)
    finally:
        for child in children:
            child.end()
    return [child.outcome() for child in children]


def _collect(children: Sequence[_Child], deadline: float, call_limit_s: float) -> None:
    poll = select.poll()
    running = {child.fd: child for child in children}
    for fd in running:
        poll.register(fd, select.POLLIN)
    while running:
        for fd, _ in poll.poll(LOOK_S * 1000):
            if not running[fd].receive():
                poll.unregister(fd)
                del running[fd]
        late = time.monotonic() > deadline
        for fd, child in list(running.items()):
            call = child.slot.current()
            if (call is not None and call[0] > call_limit_s) or late:
                child.hung = call[1] if call is not None else None
                child.late = True
                poll.unregister(fd)
                del running[fd]


class _Child:
    def __init__(self, work: Work) -> None:
        self.slot = CallSlot()
        self.hung: str | None = None
        self.late = False
        self._data = bytearray()
        self.fd, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.fd)
            _work(work, self.slot, write)
        os.close(write)

    def receive(self) -> bool:
        """Read the child's output; False at its end."""
        chunk = os.read(self.fd, 1 << 16)
        self._data += chunk
        return bool(chunk)

    def end(self) -> None:
        """Kill it. A child that hangs in the kernel cannot be killed: it is not waited for."""
        os.close(self.fd)
        deadline = time.monotonic() + REAP_S
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.005)

    def outcome(self) -> Outcome:
        """Return its outcome."""
        import json

        if self.late:
            return Outcome(problem=f"{self.hung} did not return" if self.hung else "not done in time", hung=self.hung)
        try:
            fields = json.loads(self._data)
        except ValueError:
            return Outcome(problem="its process was killed")
        return Outcome(fields["value"], fields["problem"], None, (fields["slowest"][0], fields["slowest"][1]))


def _work(work: Work, slot: CallSlot, write: int) -> None:
    """Run the work and report; never returns."""
    import json

    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        fs = TimedFileSystem(slot)
        value, problem = None, None
        try:
            value = work(fs)
        except OSError as error:
            problem = f"{fs.slowest[1]}: {error}" if error.filename is None else str(error)
        except Exception as error:  # a bug must be a finding on one node, not abort all nodes
            problem = f"{type(error).__name__}: {error}"
        data = memoryview(json.dumps({"value": value, "problem": problem, "slowest": fs.slowest}).encode())
        while data:
            data = data[os.write(write, data) :]
        code = 0
    finally:
        os._exit(code)
