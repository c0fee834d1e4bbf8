"""A failing worker's context besides its exception: open sections, CUDA's memory, /dev/shm.

Runs in a failing process: it imports nothing large, initialises nothing, waits for no device, and omits
unavailable values.
"""

from __future__ import annotations

import os
import sys
import time

from ftslurm.records.error import SHM, HostResources, Space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, TypeAlias

    Sections: TypeAlias = tuple[tuple[str, float], ...]

LINKS, SECTIONS = 8, 8
_FIGURES = (
    ("allocated", "memory_allocated"),
    ("reserved", "memory_reserved"),
    ("most allocated", "max_memory_allocated"),
)


def context(error: BaseException, record_dir: str | None) -> dict[str, Any]:
    """Return the error record's values that only the worker has: "sections", "cuda", "host_resources"."""
    found = _known(sections=lambda: sections(error, record_dir), cuda=lambda: cuda_memory(error))
    resources = _known(spaces=spaces, own_limit=memory_limit, file_limit=file_limit)
    return {**found, "host_resources": HostResources(**resources)} if resources else found


def _known(**readers: Callable[[], object]) -> dict[str, Any]:
    """Return the values that can be read, and that are not empty."""
    found: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            value = read()
        except BaseException:
            continue
        if value:
            found[name] = value
    return found


def sections(error: BaseException | None, record_dir: str | None) -> Sections:
    """Return the sections that are open, or that the exception has left, with the seconds since their opening."""
    from ftslurm.monitor import heartbeat_page
    from ftslurm.monitor.section import LEFT

    left: dict[str, float] = {}
    link, depth = error, 0
    while link is not None and depth < LINKS:
        for name, seconds in link.__dict__.get(LEFT, ()):
            left.setdefault(str(name), float(seconds))
        link, depth = link.__cause__ or link.__context__, depth + 1
    page = heartbeat_page.read(record_dir) if record_dir else None
    return (*tuple(left.items())[:SECTIONS], *open_sections(page, set(left)))


def open_sections(page: Any, but: Collection[str] = ()) -> Sections:
    """Return the sections that are open on a `HeartbeatPage` (or None), the oldest first."""
    if page is None:
        return ()
    now = time.monotonic_ns()
    opened = sorted((slot.opened_ns, slot.name) for slot in page.sections if slot.opened_ns and slot.name not in but)
    return tuple((name, max(0, now - opened_ns) / 1e9) for opened_ns, name in opened[:SECTIONS])


def cuda_memory(error: BaseException) -> dict[str, int]:
    """Return torch's memory statistics of the current device, in bytes; empty if torch or CUDA is not in use here.

    They are counters of the allocator on the host. The device itself is queried only after an out-of-memory error:
    a broken one may never answer.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    found: dict[str, int] = {}
    for name, function in _FIGURES:
        try:
            found[name] = int(getattr(cuda, function)())
        except Exception:
            continue
    if "out of memory" in str(error)[:2000]:
        try:
            free, total = cuda.mem_get_info()
            found.update({"free on the device": int(free), "size of the device": int(total)})
        except Exception:
            pass
    return found


def memory_limit() -> int | None:
    """Return the limit of this process's address space or data in bytes; None: it has none."""
    import resource

    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def file_limit() -> int | None:
    """Return the limit of the size of a file that this process writes, in bytes; None: it has none."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return limit if limit != resource.RLIM_INFINITY else None


def spaces() -> tuple[Space, ...]:
    """Return the space of /dev/shm while this process still holds its part."""
    space = os.statvfs(SHM)
    return (Space(SHM, space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize),)
