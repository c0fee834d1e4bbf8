"""Read a run's event log: all its files, what the state and the verdicts prove besides, each event once, by time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from ftslurm.dataclasses import dataclass, replace
from ftslurm.event_log.entries import KINDS, REQUEUE, VERDICT, events_of, identity
from ftslurm.event_log.writer import FILE_LIMIT
from ftslurm.records.codec import BadFile, read_record, record_in
from ftslurm.records.event import LoggedEvent
from ftslurm.records.verdict import AttemptVerdict, Requeued
from ftslurm.sharedfs.bounded_read import Malformed, list_directory, parse_json, read_file
from ftslurm.status.snapshot import read
from ftslurm.text import plural

RECORD_LIMIT = 1 << 20


@dataclass(frozen=True)
class EventHistory:
    """The events of a run.

    Attributes:
        run: its name.
        events: the earliest first.
        problems: lines on files, or parts of them, that cannot be read.
    """

    run: str
    events: tuple[LoggedEvent, ...]
    problems: tuple[str, ...]


def read_events(directory: Path) -> EventHistory:
    """Return the events of the run in a directory.

    Events may be missing: they were not written while the filesystem refused that.

    Raises:
        OSError: the directory cannot be read.
    """
    owners = frozenset((os.stat(directory).st_uid, 0))
    found: list[LoggedEvent] = []
    problems: list[str] = []
    try:
        names, _ = list_directory(directory / "events")
    except Malformed as error:
        names, problems = [], [f"events: {error}"]
    for name in names:
        try:
            # A line that begins within the limit may end beyond it.
            data = read_file(directory / "events" / name, 2 * FILE_LIMIT, owners) if name.endswith(".jsonl") else None
        except Malformed as error:
            problems.append(f"events/{name}: {error}")
            continue
        events, bad = parse_lines(data or b"")
        found += events
        problems += [f"events/{name}: {plural(bad, 'line')} that cannot be read"] if bad else []
    now = read(directory, wall_ns=time.time_ns, monotonic_ns=time.monotonic_ns, nodes=False)
    if now.state is not None:
        found += events_of(now.state)
    found += _verdicts(directory, owners)
    return EventHistory(directory.name, tuple(merged(found)), tuple(problems))


def parse_lines(data: bytes) -> tuple[list[LoggedEvent], int]:
    """Return the events of a file, and the number of its lines that are none (pure).

    The last line may have been cut by its writer's end, and is left out then; so is an empty one.
    """
    *lines, _ = data.split(b"\n")
    found, bad = [], 0
    for line in lines:
        if not line.strip(b"\0 "):
            continue
        try:
            event = record_in(LoggedEvent, parse_json(line), "it", lenient=True)
        except (Malformed, BadFile):
            bad += 1
            continue
        found.append(event)
    return found, bad


def merged(events: Iterable[LoggedEvent]) -> list[LoggedEvent]:
    """Return each event once, as it was written first, by time; those without a time are left out (pure)."""
    first: dict[tuple[object, ...], LoggedEvent] = {}
    for event in events:
        if event.time_ns is not None:
            first.setdefault(identity(event), event)
    order = {kind: number for number, kind in enumerate(KINDS)}
    return sorted(first.values(), key=lambda event: (event.time_ns or 0, order.get(event.event, len(order))))


def _verdicts(directory: Path, owners: frozenset[int]) -> list[LoggedEvent]:
    """Return what followed from the attempts' ends: decided by an agent or ftsrun, when no coordinator is left."""
    try:
        _, attempts = list_directory(directory / "attempts")
    except Malformed:
        return []
    found = []
    for attempt in attempts:
        try:
            if data := read_file(directory / "attempts" / attempt / "verdict.json", RECORD_LIMIT, owners):
                verdict = read_record(AttemptVerdict, data, "it", lenient=True)
                text = verdict.text or verdict.action
                end = LoggedEvent(VERDICT, attempt, text, verdict.time_ns, node=verdict.node, outcome=verdict.action)
                found.append(replace(end, cause=verdict.cause, exit_code=verdict.exit_code))
            if data := read_file(directory / "attempts" / attempt / "requeue.json", RECORD_LIMIT, owners):
                done = read_record(Requeued, data, "it", lenient=True)
                text = done.outcome + (f" as job {done.job_id}" if done.job_id else "")
                text += f": {done.problem}" if done.problem else ""
                found.append(LoggedEvent(REQUEUE, attempt, text, done.time_ns, outcome=done.outcome))
        except (Malformed, BadFile):
            # The report says what is wrong with them.
            continue
    return found
