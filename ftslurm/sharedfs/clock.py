"""Offset of this node's clock from the shared filesystem's server, measured with files that are published anyway.

The server stamps a file (mtime) between this node's times before and after its publication. Times of two nodes can be
compared through that, within the errors of both. On some filesystems the client sets the stamp; then there is no
measurement.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ftslurm.dataclasses import dataclass
from ftslurm.records.state import ClockOffset
from ftslurm.sharedfs.mounts import mount_of

SAMPLES = 4
EVERY_S = 600.0
TICK_NS = 10_000_000
"""Kernels stamp files with the time of their last tick: up to 10 ms ago (HZ=100; 4 ms with HZ=250)."""
SERVER_STAMPS = frozenset(("nfs", "nfs4", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay"))
"""On NFS the server stamps; on a local filesystem there is only one kernel. Lustre, CephFS, GlusterFS and GPFS use the
client's time (measured on GlusterFS): there a wrong clock would appear correct."""


@dataclass(frozen=True)
class Sample:
    """One file: this node's time before and after its publication, and the server's stamp; nanoseconds."""

    before_ns: int
    stamp_ns: int
    after_ns: int


def offset_of(samples: list[Sample]) -> ClockOffset | None:
    """Return the offset from samples, oldest first; None if a clock jumped between them, or without samples (pure)."""
    if not samples or any(sample.after_ns < sample.before_ns for sample in samples):
        return None
    # If all stamps are whole seconds, the server's granularity is one second.
    tick_ns = 10**9 if all(sample.stamp_ns % 10**9 == 0 for sample in samples) else TICK_NS
    lowest = max(sample.stamp_ns - sample.after_ns for sample in samples)
    highest = min(sample.stamp_ns + tick_ns - sample.before_ns for sample in samples)
    if lowest > highest:
        return None
    return ClockOffset((lowest + highest) // 2, (highest - lowest + 1) // 2, samples[-1].after_ns)


class ServerClock:
    """Measures the offset periodically: a few samples at the start, and again every ten minutes.

    Args:
        monotonic: seconds.
        modified_ns: returns a file's time stamp by the server; may raise `OSError`.
    """

    def __init__(self, monotonic: Callable[[], float], modified_ns: Callable[[str], int]) -> None:
        self._monotonic = monotonic
        self._modified_ns = modified_ns
        self._samples: list[Sample] = []
        self._next_at = float("-inf")
        self.offset: ClockOffset | None = None

    def due(self) -> bool:
        """Return whether the next publication should be measured."""
        return self._monotonic() >= self._next_at

    def published(self, path: str, before_ns: int, after_ns: int) -> None:
        """Take a sample with a file published between these local times; costs one open, fstat and close."""
        try:
            sample = Sample(before_ns, self._modified_ns(path), after_ns)
        except OSError:
            return
        offset = offset_of([*self._samples, sample])
        if offset is None:
            # A clock was set: discard the earlier samples.
            self._samples = []
            offset = offset_of([sample])
        self._samples.append(sample)
        self.offset = offset
        if len(self._samples) >= SAMPLES:
            self._samples = []
            self._next_at = self._monotonic() + EVERY_S


def modified_ns(path: str) -> int:
    """Return a file's time stamp from the server: an open makes an NFS client revalidate."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)


def server_clock(directory: str, monotonic: Callable[[], float]) -> ServerClock | None:
    """Return a clock that measures with files in `directory`; None if the stamps may not be the server's."""
    try:
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            kind = filesystem_of(file.read(), os.path.realpath(directory))
    except OSError:
        return None
    return ServerClock(monotonic, modified_ns) if kind in SERVER_STAMPS else None


def filesystem_of(mountinfo: str, path: str) -> str:
    """Return the type of the filesystem of `path` (pure)."""
    return mount_of(mountinfo, path).fs_type
