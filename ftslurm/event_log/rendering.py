"""A run's events as one dictionary, and as text (pure).

=============== =======================================================================================================
key             meaning
=============== =======================================================================================================
schema, version "ftslurm/event-history", 1
run, directory  the run's name, and its directory
events          the earliest first, as `ftslurm.records.event.LoggedEvent`, without what is None
problems        lines on what cannot be read
=============== =======================================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ftslurm.event_log.reading import EventHistory
from ftslurm.records.codec import to_json
from ftslurm.report.layout import Style
from ftslurm.text import plural, safe

SCHEMA, VERSION = "ftslurm/event-history", 1
SHOWN, WIDTH = 100, 160


def event_history(found: EventHistory, directory: str, since_ns: int | None) -> dict[str, Any]:
    """Return the dictionary; `since_ns`: only later events."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "run": found.run,
        "directory": directory,
        "events": [to_json(event) for event in found.events if (event.time_ns or 0) >= (since_ns or 0)],
        "problems": list(found.problems),
    }


def render(found: Mapping[str, Any], *, everything: bool = False, zone: Callable[[float], Any] = time.localtime) -> str:
    """Return a line for each event, the newest `SHOWN` ones or all."""
    style = Style(False, WIDTH, zone)
    events = found["events"] if everything else found["events"][-SHOWN:]
    earlier = len(found["events"]) - len(events)
    lines = [f"{plural(len(found['events']), 'event')} of {safe(found['run'])}"]
    lines += [f"  {plural(earlier, 'earlier event')} left out (--all)"] if earlier else []
    kinds = max((len(event["event"]) for event in events), default=0)
    for event in events:
        when = style.date(event["time_ns"], "%Y-%m-%d %H:%M:%S")
        where = "" if event.get("round") is None else f"round {event['round']}"
        lines.append(f"{when}  {where:<9} {safe(event['event']):<{kinds}}  {safe(event['text'])}")
    return "\n".join([*lines, *(safe(problem) for problem in found["problems"])]) + "\n"
