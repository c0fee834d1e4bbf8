"""The rank's progress mark: 64 memory-mapped bytes that say which step was reached, even after SIGKILL.

A step costs one store of 24 bytes: no system call, no lock, nothing that can block. What was stored is in the
page cache at once, so the agent reads it after any kind of death but the machine's.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "progress"
MAGIC = b"ftsprog1"
SIZE = 64
_LAYOUT = struct.Struct("<8sqqqqq")
_FIRST = struct.Struct("<qq")  # at 8
_LAST = struct.Struct("<qqq")  # at 24, the count behind the step that it counts
_PROT_READ_WRITE, _MAP_SHARED = 3, 1


class Progress(NamedTuple):
    """What a mark says: steps as the script counts them, times in nanoseconds since the epoch."""

    first_step: int
    first_ns: int
    last_step: int
    last_ns: int
    marks: int


class ProgressMark:
    """The writing end. Keeps no file descriptor, so that scripts which close all of theirs harm nothing."""

    def __init__(self, memory: Any, marks: int) -> None:
        self._memory = memory  # any writable buffer of SIZE bytes
        self._marks = marks

    @classmethod
    def open_writer(cls, directory: str | os.PathLike[str]) -> ProgressMark:
        """Map the mark in ``directory``, creating it if needed; a valid one goes on from what it says.

        Raises:
            OSError: the file cannot be made, written or mapped (also: it is not a regular file).
            ImportError: this Python has no ctypes.
        """
        import ctypes

        path = os.path.join(os.fspath(directory), NAME)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            data = os.pread(fd, SIZE, 0)
            old = _decode(data) if len(data) == SIZE else None
            if old is None:
                # Written, not only truncated to size: a store into a hole of a full filesystem is a SIGBUS.
                os.pwrite(fd, MAGIC.ljust(SIZE, b"\0"), 0)
            # Not the mmap module: before 3.13 it keeps a descriptor, and closes that number at exit.
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            address = libc.mmap(None, SIZE, _PROT_READ_WRITE, _MAP_SHARED, fd, 0)
            if address in (None, ctypes.c_void_p(-1).value):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)
        return cls((ctypes.c_char * SIZE).from_address(address), old.marks if old else 0)

    def set(self, step: int) -> None:
        """Store that ``step`` has been reached, now. With two threads at once, one of the two steps stays."""
        now = time.time_ns()
        if not self._marks:
            _FIRST.pack_into(self._memory, 8, step, now)
        self._marks += 1
        _LAST.pack_into(self._memory, 24, step, now, self._marks)


def read(directory: str | os.PathLike[str]) -> Progress | None:
    """What the mark in ``directory`` says; None for no mark, no step yet, not a mark, not readable."""
    path = os.path.join(os.fspath(directory), NAME)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.read(fd, SIZE)
    except OSError:
        return None
    finally:
        os.close(fd)
    progress = _decode(data)
    return progress if progress is not None and progress.marks > 0 else None


def _decode(data: bytes) -> Progress | None:
    if len(data) < _LAYOUT.size:
        return None
    magic, *fields = _LAYOUT.unpack_from(data)
    progress = Progress(*fields)
    return progress if magic == MAGIC and progress.marks >= 0 else None


def progress(step: int) -> None:
    """Say that this rank has reached ``step``: for the report ("failed at step 1200") and the hang watch.

    Does nothing outside an ftslurm worker and in forked children; never raises, never blocks, costs about a
    microsecond after the first call.
    """
    try:
        _set(int(step))
    except Exception:
        return  # A mark is never worth the training run.


def _ignore(step: int) -> None:
    """What ``_set`` is where there is nothing to tell."""


def _open_and_set(step: int) -> None:
    """What ``_set`` is until the first call: finds out where this process stands."""
    global _set
    _set = _ignore
    directory = os.environ.get("FTSLURM_RECORD_DIR")
    if directory:
        _set = ProgressMark.open_writer(directory).set
        _set(step)


def _forget() -> None:
    global _set
    _set = _ignore


_set: Callable[[int], None] = _open_and_set
# A data-loader process is not its rank; and a fork before the first call must not become the one who writes.
os.register_at_fork(after_in_child=_forget)
