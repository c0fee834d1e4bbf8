"""Expiry of a rank's time-outs: which one has expired, and when to check again (pure).

An interval with the time-out T that is idle now, or is re-armed after now, cannot expire before now + T. So heartbeats
need no notification: a check at the earlier of "the running interval's deadline" and "now + T" misses no expiry, and
finds it at the exact time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ftslurm.dataclasses import dataclass, replace
from ftslurm.monitor.heartbeat_page import INF, HeartbeatPage
from ftslurm.monitor.message import shown
from ftslurm.monitor.timeouts import Longest, Spans, Timeouts
from ftslurm.text import duration

INITIAL, HEARTBEAT, SECTION, OUT, SILENCE = "initial", "heartbeat", "section", "out-of-section", "silence"
SHORTEST_S = 0.001  # a shorter time-out would keep the agent busy with checks


@dataclass(frozen=True)
class Interval:
    """One interval of a rank.

    Attributes:
        kind, name: which.
        since_s: it runs since then, monotonic seconds; None: it is idle.
        allowed_s: how long it may run.
        shortest_s: how long it may run when it is re-armed; less than `allowed_s` while warming up.
    """

    kind: str
    name: str | None
    since_s: float | None
    allowed_s: float
    shortest_s: float

    @property
    def deadline_s(self) -> float:
        """When it expires; infinite while idle."""
        return INF if self.since_s is None else self.since_s + self.allowed_s


@dataclass(frozen=True)
class Life:
    """Facts on a rank besides its heartbeat page, monotonic seconds.

    Attributes:
        began_s: when the worker was started.
        floor_s: nothing before it counts (the rank may not have run then).
        sign_s: the last progress that is not in the heartbeat page.
    """

    began_s: float
    floor_s: float
    sign_s: float


def next_expiry(
    page: HeartbeatPage | None, timeouts: Timeouts, life: Life, now_s: float
) -> tuple[Interval | None, float | None]:
    """Return the first expired interval (None: none) and when to check again (None: never)."""
    expired: Interval | None = None
    again = INF
    for interval in intervals(page, timeouts, life, now_s):
        deadline = interval.deadline_s
        if deadline <= now_s and (expired is None or deadline < expired.deadline_s):
            expired = interval
        again = min(again, deadline, now_s + interval.shortest_s)
    return expired, None if again == INF else again


def intervals(page: HeartbeatPage | None, timeouts: Timeouts, life: Life, now_s: float) -> Iterator[Interval]:
    """Yield all intervals of the rank; none once it has called workload_finished()."""
    if page is not None and page.finished:
        return
    if page is not None and page.excused_ns:
        life = replace(life, floor_s=max(life.floor_s, page.excused_ns / 1e9))
    beating = page is not None and page.beats.number > 0
    initial_s = _choose(page.initial_s if page else None, timeouts.initial_s)
    if initial_s is not None and not beating:
        yield Interval(INITIAL, None, max(life.began_s, life.floor_s), initial_s, initial_s)
    yield from _heartbeat(page, timeouts, life, now_s)
    covered = False
    for interval in _sections(page, timeouts, life, now_s):
        covered = covered or interval.since_s is not None
        yield interval
    out_s = _choose(page.out_of_section_s if page else None, timeouts.out_of_section_s)
    if out_s is not None:
        inside = page is None or page.unlisted > 0 or any(section.opened_ns for section in page.sections)
        since = None if page is None or inside or not page.section_ns else _since(page.section_ns, life, now_s)
        yield Interval(OUT, None, since, out_s, out_s)
    hang_s = _choose(None, timeouts.hang_s)
    if hang_s is not None:
        # An open section with a time-out is not subject to this one: it may be meant to take longer.
        since = None if covered else _since(_last_sign(page), life, now_s, life.sign_s)
        yield Interval(SILENCE, None, since, hang_s, hang_s)


def _heartbeat(page: HeartbeatPage | None, timeouts: Timeouts, life: Life, now_s: float) -> Iterator[Interval]:
    allowed = _choose(page.heartbeat_s if page else None, timeouts.heartbeat_s)
    if allowed is None:
        return
    if page is None or not page.beats.number:
        yield Interval(HEARTBEAT, None, None, allowed, allowed)
        return
    last_ns = page.beats.last_ns
    if page.automatic:
        # A section names a phase without steps, and what is watched in it: its own time-out, if it has one.
        last_ns = max(last_ns, page.section_ns)
        if page.unlisted or any(section.opened_ns for section in page.sections):
            yield Interval(HEARTBEAT, None, None, allowed, allowed)
            return
    since = _since(last_ns, life, now_s)
    yield Interval(HEARTBEAT, None, since, _warm(allowed, page.beats.number, timeouts), allowed)


def _sections(page: HeartbeatPage | None, timeouts: Timeouts, life: Life, now_s: float) -> Iterator[Interval]:
    slots = {section.name: section for section in page.sections} if page else {}
    for name in {**timeouts.sections, **slots}:
        section = slots.get(name)
        allowed = _choose(section.timeout_s if section else None, timeouts.sections.get(name))
        if allowed is None:
            continue
        if section is None or not section.opened_ns:
            yield Interval(SECTION, name, None, allowed, allowed)
        else:
            since = _since(section.opened_ns, life, now_s)
            yield Interval(SECTION, name, since, _warm(allowed, section.opens, timeouts), allowed)


def _since(ns: int, life: Life, now_s: float, other_s: float = -INF) -> float:
    # A value before the worker's start is of an earlier worker; one after now is invalid.
    return min(max(ns / 1e9, life.began_s, life.floor_s, other_s), now_s)


def quiet_s(page: HeartbeatPage | None, life: Life, now_s: float) -> float:
    """Return the seconds since a rank's last sign of life: its page's, or output where that is watched."""
    return now_s - _since(_last_sign(page), life, now_s, life.sign_s)


def _last_sign(page: HeartbeatPage | None) -> int:
    return max(page.beats.last_ns, page.section_ns, page.progress_ns) if page else 0


def _warm(allowed_s: float, number: int, timeouts: Timeouts) -> float:
    return max(allowed_s, timeouts.warmup_s) if number <= timeouts.warmup_steps else allowed_s


def _choose(own_s: float | None, common_s: float | None) -> float | None:
    """Return the time-out that holds: the rank's own before that of all; None for none."""
    seconds = common_s if own_s is None else own_s
    return None if seconds is None or not abs(seconds) < INF else max(seconds, SHORTEST_S)


def describe(interval: Interval, now_s: float, *, automatic: bool = False) -> str:
    """Return the description of the expiry; `automatic`: its heartbeats are the steps of the optimizer."""
    if interval.since_s is None:
        raise ValueError(f"{interval} is idle and cannot have expired")
    taken, allowed = duration(now_s - interval.since_s), f"(time-out {duration(interval.allowed_s)})"
    if interval.kind == INITIAL:
        return f"no first heartbeat {taken} after its start {allowed}"
    if interval.kind == HEARTBEAT:
        return f"no {'optimizer step' if automatic else 'heartbeat'} for {taken} {allowed}"
    if interval.kind == SECTION:
        return f"section {shown(interval.name or '')} open for {taken} {allowed}"
    if interval.kind == OUT:
        return f"out of any section for {taken} {allowed}"
    return f"no sign of life for {taken} {allowed}"


def longest(page: HeartbeatPage | None, began_s: float, cut: Spans) -> Longest:
    """Return the longest intervals of one rank; `cut` is the time-out that ended it."""
    beating = page is not None and page.beats.number > 0
    if page is None or not beating or page.automatic:
        initial = None
    else:
        initial = max(page.beats.first_ns / 1e9 - began_s, 0.0)
    completed: Mapping[tuple[str, str | None], float | None] = {
        (INITIAL, None): initial,
        (HEARTBEAT, None): _positive(page.beats.longest_ns if page else 0),
        (OUT, None): _positive(page.out_longest_ns if page else 0),
        **{(SECTION, section.name): _positive(section.longest_ns) for section in (page.sections if page else ())},
    }
    return Longest(spans(completed), cut, silent=int(not beating), automatic=int(beating and initial is None))


def _positive(ns: int) -> float | None:
    return ns / 1e9 if ns else None


def spans(values: Mapping[tuple[str, str | None], float | None]) -> Spans:
    """Return `values`, by kind and name, as `Spans`."""
    sections = {name: s for (kind, name), s in values.items() if kind == SECTION and name and s is not None}
    get = values.get
    return Spans(get((INITIAL, None)), get((HEARTBEAT, None)), sections, get((OUT, None)))
