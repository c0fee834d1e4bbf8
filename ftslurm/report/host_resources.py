"""Decode the host resources observed at a failure from untrusted JSON; invalid values are omitted (pure)."""

from __future__ import annotations

from ftslurm.failures.evidence import HostResources, OomKills, Space
from ftslurm.report.fields import Json, integer, number, objects, text, texts

SHM = "/dev/shm"
_MANY = 16
_TEXT_LIMIT = 300


def host_resources_from(ours: Json) -> HostResources | None:
    """Return the host resources that agent and worker observed at a failure.

    Args:
        ours: the "ftslurm" part of an error record: "host_resources" is the agent's; "shm", the free and all bytes of
            /dev/shm when the worker still held its part, and "memory_limit" (bytes, in a list) are the worker's.
    """
    value, limit = ours.get("host_resources"), ours.get("memory_limit")
    o: Json = value if isinstance(value, dict) else {}
    spaces = [space for space in map(_space, objects(o, "spaces")[:_MANY]) if space is not None]
    shm = _sizes(ours.get("shm"))
    if shm is not None:
        agents = next((space for space in spaces if space.path == SHM), Space(SHM, *shm))
        least = min(shm[0], agents.least)
        own = Space(SHM, agents.free, agents.total, agents.free_inodes, agents.total_inodes, least)
        spaces = [own, *(space for space in spaces if space.path != SHM)]
    own_limit = _count({"n": limit[0]}, "n") if isinstance(limit, list) and len(limit) == 1 else None
    if not o and not spaces and own_limit is None:
        return None
    memory = o.get("memory")
    total, available = memory if isinstance(memory, list) and len(memory) == 2 else (None, None)
    return HostResources(
        oom=_oom(o.get("oom")),
        node_oom_kills=_count(o, "node_oom_kills"),
        spaces=tuple(spaces),
        core_limit=integer(o, "core_limit"),
        core_pattern=(text(o, "core_pattern") or "")[:_TEXT_LIMIT],
        unread=tuple(line[:_TEXT_LIMIT] for line in texts(o, "unread")[:_MANY]),
        memory_total=_count({"n": total}, "n"),
        least_available=_count({"n": available}, "n"),
        own_limit=own_limit,
        cpu_limit_s=_count(o, "cpu_limit_s"),
    )


def sections_from(value: object) -> tuple[tuple[str, float], ...]:
    """Return the record's "sections": pairs of a name and the seconds since it was opened."""
    found: list[tuple[str, float]] = []
    for pair in value[:_MANY] if isinstance(value, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str):
            seconds = number({"s": pair[1]}, "s")
            if seconds is not None and seconds >= 0:
                found.append((pair[0][:_TEXT_LIMIT], seconds))
    return tuple(found)


def cuda_from(value: object) -> tuple[tuple[str, int], ...]:
    """Return the record's "cuda": names of values and their bytes."""
    if not isinstance(value, dict):
        return ()
    pairs = ((name, _count(value, name)) for name in list(value)[:_MANY] if isinstance(name, str))
    return tuple((name[:_TEXT_LIMIT], size) for name, size in pairs if size is not None)


def _oom(value: object) -> OomKills | None:
    if not isinstance(value, dict):
        return None
    recent, in_round = _count(value, "recent"), _count(value, "in_round")
    if recent is None or in_round is None:
        return None
    return OomKills(
        recent,
        in_round,
        number(value, "window_s") or 0.0,
        (text(value, "source") or "memory.events")[:_TEXT_LIMIT],
        _count(value, "limit"),
        _count(value, "peak"),
        _count(value, "limit_hits"),
        value["at_limit"] if isinstance(value.get("at_limit"), bool) else None,
    )


def _space(o: Json) -> Space | None:
    path, free, total = text(o, "path"), _count(o, "free"), _count(o, "total")
    if path is None or free is None or total is None:
        return None
    inodes = _count(o, "free_inodes"), _count(o, "total_inodes")
    return Space(path[:_TEXT_LIMIT], free, total, *inodes, _count(o, "least_free"))


def _sizes(value: object) -> tuple[int, int] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    free, total = (_count({"n": each}, "n") for each in value)
    return None if free is None or total is None else (free, total)


def _count(o: Json, key: str) -> int | None:
    value = integer(o, key)
    return value if value is not None and value >= 0 else None
