"""Bounded reads of files that another user may have written: never through a link, never without a limit.

Many files are read in parallel: threads hide the latency of a network filesystem, a millisecond per read.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

from ftslurm import user_limits
from ftslurm.records import codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any, TypeVar

    Item = TypeVar("Item")
    Result = TypeVar("Result")

MAX_ENTRIES = 100_000
THREADS = 48
# A local filesystem answers in microseconds; threads would only contend for the interpreter there.
SLOW_S = 0.0003
PROBES = 16
# Number of items read ahead: bounds the memory.
CHUNK = 192

_STALE_RETRIES = 3
_PART = 1 << 20


class Malformed(ValueError):
    """A file's content does not match its format; the text is for the user."""


def list_directory(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of the regular files and of the real directories in ``path``, each sorted.

    Symbolic links and special files are in neither list. A missing directory counts as empty.

    Raises:
        Malformed: it cannot be read; the text is the reason.
    """
    files: list[str] = []
    folders: list[str] = []
    try:
        if path.is_symlink():
            raise Malformed("is a symbolic link; not followed")
        with os.scandir(path) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_ENTRIES:
                    break
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise Malformed(f"cannot be listed: {_reason(error)}") from None
    return sorted(files), sorted(folders)


def read_file(path: Path | str, limit: int, owners: frozenset[int], dir_fd: int | None = None) -> bytes | None:
    """Return the whole content of a plain file, None if there is no such file.

    Args:
        path: the file.
        limit: the maximal size, bytes.
        owners: the trusted user ids.
        dir_fd: an open directory that the path is relative to: on a network filesystem each folder of a path may cost
            a call to the server.

    Raises:
        Malformed: it is a link, special, another user's, too large or unreadable; the text is the reason.
    """
    opened = open_plain(path, owners, dir_fd)
    if opened is None:
        return None
    fd, size = opened
    try:
        if size > limit:
            raise Malformed(f"too large ({size} bytes; expected at most {limit})")
        data = _read_up_to(fd, limit + 1, size)
    except OSError as error:
        raise Malformed(f"cannot be read: {_reason(error)}") from None
    finally:
        os.close(fd)
    if len(data) > limit:
        raise Malformed(f"too large (more than {limit} bytes)")
    return data


def read_tail(path: Path, limit: int, owners: frozenset[int]) -> tuple[str, int, int] | None:
    """Return the last ``limit`` bytes of a plain file as text, its size, and when it was written last; None: no file.

    The time is that of the filesystem, nanoseconds since the epoch.

    Bytes that are not UTF-8 become U+FFFD. Raises as `read_file` does.
    """
    opened = open_plain(path, owners)
    if opened is None:
        return None
    fd, size = opened
    try:
        written_ns = os.fstat(fd).st_mtime_ns
        os.lseek(fd, max(0, size - limit), os.SEEK_SET)
        data = _read_up_to(fd, limit, size)
    except OSError as error:
        raise Malformed(f"cannot be read: {_reason(error)}") from None
    finally:
        os.close(fd)
    if size > limit:
        # The cut may have split a line; part of a line would mislead.
        data = data.partition(b"\n")[2] or data
    return data.decode("utf-8", "replace"), size, written_ns


def parse_json(data: bytes) -> object:
    """Decode JSON text.

    Raises:
        Malformed: it is empty, torn or no JSON; the text is the reason.
    """
    try:
        return codec.parse_json(data)
    except codec.Mismatch as error:
        raise Malformed(str(error)) from None


def open_folder(path: Path) -> int | None:
    """Open a real directory for `read_file`; None if it does not exist. Raises `Malformed` if it cannot be opened."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Malformed(f"cannot be opened: {_reason(error)}") from None


def open_plain(path: Path | str, owners: frozenset[int], dir_fd: int | None = None) -> tuple[int, int] | None:
    """Open a plain file; return its descriptor and size, None if there is no such file. Raises as `read_file` does."""
    # O_NONBLOCK: opening a named pipe must not hang the report.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    for attempt in range(_STALE_RETRIES):
        try:
            fd = os.open(path, flags, dir_fd=dir_fd)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # NFS: the file was renamed over between lookup and open.
            if error.errno == errno.ESTALE and attempt + 1 < _STALE_RETRIES:
                continue
            raise Malformed(f"cannot be opened: {_reason(error)}") from None
        break
    try:
        info = os.fstat(fd)
        _check(info, owners)
    except (OSError, Malformed) as error:
        os.close(fd)
        raise error if isinstance(error, Malformed) else Malformed(_reason(error)) from None
    return fd, info.st_size


def _check(info: os.stat_result, owners: frozenset[int]) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise Malformed("not a plain file")
    if info.st_uid not in owners:
        raise Malformed(f"belongs to another user (user id {info.st_uid}); not read")


def _read_up_to(fd: int, limit: int, size: int) -> bytes:
    # One byte more than the size: a short read is the end of the file, without a second call.
    wanted = min(limit, size + 1, _PART)
    data = os.read(fd, wanted)
    if len(data) < wanted:
        return data
    parts = [data]
    left = limit - len(data)
    while left > 0 and (part := os.read(fd, min(left, _PART))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a symbolic link; not followed"
    return user_limits.ERRNOS.get(error.errno or 0) or error.strerror or str(error)


def read_in_parallel(
    read: Callable[[Item], Result], items: Sequence[Item], clock: Callable[[], float] = time.perf_counter
) -> Iterator[Result]:
    """Yield ``read(item)`` for each item, in order; by many threads if the first reads are slow.

    Args:
        read: must not raise, and must be thread-safe.
        items: arguments of the reads.
        clock: monotonic seconds.
    """
    spans: list[float] = []
    done = 0
    # The first calls have cold caches: the median decides, and is measured again later if it was fast.
    while done < len(items):
        before = clock()
        result = read(items[done])
        spans.append(clock() - before)
        done += 1
        yield result
        if len(spans) == PROBES:
            if sorted(spans)[PROBES // 2] > SLOW_S:
                break
            spans.clear()
    chunks = [items[start : start + CHUNK] for start in range(done, len(items), CHUNK)]
    ahead = [_Chunk(read, chunk) for chunk in chunks[:1]]
    for i in range(len(chunks)):
        # The next items are read while these are used.
        ahead += [_Chunk(read, chunk) for chunk in chunks[i + 1 : i + 2]]
        yield from ahead.pop(0).results()


class _Chunk:
    """Items read by many threads."""

    def __init__(self, read: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self._read, self._items = read, items
        self._results: dict[int, Any] = {}
        self._turns = iter(range(len(items)))
        # Daemons: Ctrl-C must not wait for a filesystem that hangs.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(THREADS, len(items)))]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        # next() of a range is one step of the interpreter: no two threads get the same number.
        for i in self._turns:
            self._results[i] = self._read(self._items[i])

    def results(self) -> list[Any]:
        for thread in self._threads:
            thread.join()
        return [self._results[i] for i in range(len(self._items))]
