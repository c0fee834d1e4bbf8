"""Resources of the workers' host: memory, the kernel's count of out-of-memory kills, free space in local filesystems.

All reads are of /proc, of the cgroup tree and of node-local filesystems: nothing here can hang with the shared
directory. A value that cannot be read is reported as such, never taken for zero.

Sources: the kernel's admin-guide/cgroup-v2 (memory.events counts in the whole subtree, memory.events.local does not;
"oom": a limit was met and nothing was left to reclaim) and cgroup-v1/memory (memory.oom_control counts the victims of
this very cgroup, memory.failcnt each time that a limit was met), proc(5), core(5).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable

from ftslurm.dataclasses import dataclass
from ftslurm.records.codec import to_json
from ftslurm.records.error import SHM, HostResources, OomKills, Space, is_exhausted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WINDOW_S = 10.0
"""Kills within so many seconds before a worker's end are attributed to it; samples are taken every few seconds."""

_READ_LIMIT = 1 << 16


@dataclass(frozen=True)
class Counter:
    """Where a cgroup's memory is counted.

    Attributes:
        directory: of the cgroup.
        level: its last path component, for display ("step_0").
        version: 1 or 2.
    """

    directory: str
    level: str
    version: int

    @property
    def file(self) -> str:
        """The file with the count of kills."""
        return "memory.events" if self.version == 2 else "memory.oom_control"


@dataclass(frozen=True)
class _Sample:
    at_s: float
    kills: int | None
    at_limit: int | None
    node_kills: int | None
    available: int | None
    free: tuple[int, ...]


class ResourceSampler:
    """Samples host resources periodically, so that the values at a failure can be compared with earlier ones.

    Args:
        local_dir: a directory on the filesystem of $TMPDIR, node-local.
        root: where /proc and /sys are, for tests.
        monotonic: clock, seconds.
        statvfs: as `os.statvfs`.
        core_limit: bytes that a core file of a worker may have, -1 for any; None: unknown.
        cpu_limit_s: CPU time that a worker may use (ulimit -t), in seconds, -1: unlimited.
    """

    def __init__(
        self,
        local_dir: str,
        root: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        statvfs: Callable[[str], Any] = os.statvfs,
        core_limit: int | None = None,
        cpu_limit_s: int = -1,
    ) -> None:
        self._root = root
        self._monotonic = monotonic
        self._statvfs = statvfs
        self._core_limit = core_limit
        self._cpu_limit_s = cpu_limit_s
        self._places = ((SHM, SHM), (_display_path(local_dir), local_dir))
        self.unread: list[str] = []
        self.counter = find_counter(root, self.unread)
        self._first = self._sample()
        self._samples: deque[_Sample] = deque((self._first,))
        self._hits = self._limit_hits()

    def begin(self) -> dict[str, Any]:
        """Sample at the beginning of a round; return the values for the round record."""
        self._first = self._sample()
        self._samples = deque((self._first,))
        self._hits = self._limit_hits()
        return {"oom_kills": self._first.kills, "spaces": [to_json(space) for space in self._spaces()[0]]}

    def sample(self) -> None:
        """Take a sample."""
        now = self._sample()
        self._samples.append(now)
        # The newest of those that are old enough stays: kills are counted from there.
        while len(self._samples) > 1 and self._samples[1].at_s <= now.at_s - WINDOW_S:
            self._samples.popleft()

    def at_a_failure(self) -> HostResources:
        """Return the resources at a worker's failure, for its error record."""
        self.sample()
        spaces, unread = self._spaces()
        newest, oldest = self._samples[-1], self._samples[0]
        return HostResources(
            oom=self._oom(),
            node_oom_kills=_difference(newest.node_kills, oldest.node_kills),
            spaces=spaces,
            core_limit=self._core_limit,
            core_pattern=_read(f"{self._root}/proc/sys/kernel/core_pattern").strip()[:200],
            unread=(*self.unread, *unread),
            memory_total=_kib(f"{self._root}/proc/meminfo", "MemTotal"),
            least_available=self._least_available(),
            cpu_limit_s=self._cpu_limit_s if self._cpu_limit_s >= 0 else None,
        )

    def _oom(self) -> OomKills | None:
        counter, now, before = self.counter, self._samples[-1], self._samples[0]
        recent, in_round = _difference(now.kills, before.kills), _difference(now.kills, self._first.kills)
        if counter is None or recent is None or in_round is None:
            return None
        limit, peak = _limits(counter)
        return OomKills(
            recent=recent,
            in_round=in_round,
            window_s=round(now.at_s - before.at_s, 3),
            source=f"{counter.file} of {counter.level}",
            limit=limit,
            peak=peak,
            limit_hits=_difference(self._limit_hits(), self._hits),
            at_limit=self._at_limit(counter, before.at_limit, now.at_limit),
        )

    def _at_limit(self, counter: Counter, before: int | None, now: int | None) -> bool | None:
        if before is None or now is None:
            return None
        # Version 1 counts each time that a limit was met, also where dropping caches was enough.
        total = _kib(f"{self._root}/proc/meminfo", "MemTotal")
        return now > before and (counter.version == 2 or not is_exhausted(total, self._least_available()))

    def _least_available(self) -> int | None:
        return min((sample.available for sample in self._samples if sample.available is not None), default=None)

    def _sample(self) -> _Sample:
        return _Sample(
            self._monotonic(),
            None if self.counter is None else kills(self.counter),
            None if self.counter is None else times_at_limit(self.counter),
            _field(_read(f"{self._root}/proc/vmstat"), "oom_kill"),
            _kib(f"{self._root}/proc/meminfo", "MemAvailable"),
            tuple(self._free(path) for _, path in self._places),
        )

    def _free(self, path: str) -> int:
        try:
            space = self._statvfs(path)
        except OSError:
            return -1
        return int(space.f_bavail * space.f_frsize)

    def _limit_hits(self) -> int | None:
        counter = self.counter
        if counter is None:
            return None
        if counter.version == 2:
            return _field(_read(f"{counter.directory}/memory.events"), "max")
        return _number(_read(f"{counter.directory}/memory.failcnt"))

    def _spaces(self) -> tuple[tuple[Space, ...], list[str]]:
        spaces: list[Space] = []
        unread: list[str] = []
        for place, (shown, path) in enumerate(self._places):
            try:
                space = self._statvfs(path)
            except OSError as error:
                unread.append(f"{shown}: {error.strerror or error}")
                continue
            free = [sample.free[place] for sample in self._samples if sample.free[place] >= 0]
            sizes = (space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize)
            spaces.append(Space(shown, *sizes, space.f_favail, space.f_files, min(free, default=None)))
        return tuple(spaces), unread


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(0, now - before)


def find_counter(root: str, unread: list[str]) -> Counter | None:
    """Return where this process's memory is counted: its own cgroup, or the nearest above it that counts.

    The nearest will do: a kill is counted for the victim's cgroup, and in version 2 for all above it.

    Args:
        root: where /proc and /sys are.
        unread: gets the reason if there is none.
    """
    text = _read(f"{root}/proc/self/cgroup")
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return _nearest(f"{root}/sys/fs/cgroup/memory", path, 1, unread)
        if number == "0" and not controllers:
            unified = path
            for mount in (f"{root}/sys/fs/cgroup", f"{root}/sys/fs/cgroup/unified"):
                if os.path.exists(f"{mount}/cgroup.controllers") and not _has_v1_memory(text):
                    return _nearest(mount, unified, 2, unread)
    unread.append("the memory cgroup: /proc/self/cgroup names none")
    return None


def _has_v1_memory(text: str) -> bool:
    return any("memory" in line.split(":", 2)[1].split(",") for line in text.splitlines() if line.count(":") >= 2)


def _nearest(mount: str, path: str, version: int, unread: list[str]) -> Counter | None:
    parts = [part for part in path.split("/") if part and part != ".."]
    # In a container the path may be the host's, and the container's own cgroup is what is mounted.
    tries = ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]
    for below in tries:
        directory = f"{mount}/{below}".rstrip("/")
        counter = Counter(directory, below.rpartition("/")[2] or "the root cgroup", version)
        if kills(counter) is not None:
            return counter
    unread.append(f"the memory cgroup: no count of out-of-memory kills in {mount}{path} or above it")
    return None


def kills(counter: Counter) -> int | None:
    """Return how many processes of that cgroup the kernel has killed for memory; None: unknown."""
    return _field(_read(f"{counter.directory}/{counter.file}"), "oom_kill")


def times_at_limit(counter: Counter) -> int | None:
    """Return how often a limit of that cgroup, of one below or above it, left no memory; None: unknown.

    In version 2 the own file counts for those below too; of those above only what they met themselves is of interest.
    """
    names = ("memory.events", "memory.events.local") if counter.version == 2 else ("memory.failcnt",) * 2
    counts: list[int] = []
    directory = counter.directory
    while directory and (text := _read(f"{directory}/{names[1 if counts else 0]}")):
        count = _field(text, "oom") if counter.version == 2 else _number(text)
        if count is not None:
            counts.append(count)
        directory = directory.rpartition("/")[0]
    return sum(counts) if counts else None


def _limits(counter: Counter) -> tuple[int | None, int | None]:
    """The smallest limit that holds for the cgroup, and the most memory that it had."""
    names = ("memory.max", "memory.peak") if counter.version == 2 else _PEAK_V1
    limit: int | None = None
    directory = counter.directory
    while directory and (text := _read(f"{directory}/{names[0]}")):
        own = _number(text)
        if own is not None and own < _NO_LIMIT:
            limit = own if limit is None else min(limit, own)
        directory = directory.rpartition("/")[0]
    return limit, _number(_read(f"{counter.directory}/{names[1]}"))


def available_memory(root: str = "") -> tuple[int, int] | None:
    """Return the bytes that are available and those that there are, of the host or of the narrowest cgroup.

    Args:
        root: where /proc and /sys are, for tests.

    Returns:
        None: unknown.
    """
    total, available = (_kib(f"{root}/proc/meminfo", name) for name in ("MemTotal", "MemAvailable"))
    if total is None or available is None:
        return None
    counter = find_counter(root, [])
    if counter is None:
        return available, total
    limit_file, usage_file, stat_file, cache = _USED_V2 if counter.version == 2 else _USED_V1
    directory = counter.directory
    while directory and directory.startswith(f"{root}/sys/fs/cgroup"):
        limit, usage = (_number(_read(f"{directory}/{name}")) for name in (limit_file, usage_file))
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            # Cached files make room, as those of MemAvailable.
            left = max(0, limit - usage + (_field(_read(f"{directory}/{stat_file}"), cache) or 0))
            if left < available:
                available, total = left, limit
        directory = directory.rpartition("/")[0]
    return available, total


_PEAK_V1 = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
_USED_V2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")
_USED_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")
_NO_LIMIT = 1 << 60  # version 1 represents "none" by its largest number


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, _READ_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _field(text: str, name: str) -> int | None:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value)
    return None


def _kib(path: str, name: str) -> int | None:
    """Return a field of /proc/meminfo, in bytes; None: there is none."""
    for line in _read(path).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            kib = _number(value.removesuffix("kB"))
            return None if kib is None else kib * 1024
    return None


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _display_path(local_dir: str) -> str:
    return os.path.dirname(local_dir) or local_dir
