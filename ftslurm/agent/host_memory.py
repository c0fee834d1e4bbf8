"""The memory that this host, or the cgroup of this process, has left.

Sources: proc(5) on meminfo; the kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

from ftslurm.agent.host_resources import find_counter, read_field, read_kib, read_number

_V2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")
_NO_LIMIT = 1 << 60  # version 1 represents "none" by its largest number


def available_memory(root: str = "") -> tuple[int, int] | None:
    """Return the bytes that are available and those that there are, of the host or of the narrowest cgroup.

    Args:
        root: where /proc and /sys are, for tests.

    Returns:
        None: unknown.
    """
    total, available = (read_kib(f"{root}/proc/meminfo", name) for name in ("MemTotal", "MemAvailable"))
    if total is None or available is None:
        return None
    counter = find_counter(root, [])
    if counter is None:
        return available, total
    limit_file, usage_file, stat_file, cache = _V2 if counter.version == 2 else _V1
    directory = counter.directory
    while directory and directory.startswith(f"{root}/sys/fs/cgroup"):
        limit, usage = (read_number(f"{directory}/{name}") for name in (limit_file, usage_file))
        if limit is not None and usage is not None and limit < _NO_LIMIT:
            # Cached files make room, as those of MemAvailable.
            left = max(0, limit - usage + (read_field(f"{directory}/{stat_file}", cache) or 0))
            if left < available:
                available, total = left, limit
        directory = directory.rpartition("/")[0]
    return available, total
