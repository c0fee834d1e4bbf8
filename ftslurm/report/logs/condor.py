"""Ends of jobs in HTCondor's log of their events: held, or terminated by a code or a signal (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.pattern import pattern
from ftslurm.report.logs.end import End, of_code, with_code
from ftslurm.report.logs.lines import Line

# "012 (20931.000.000) 2026-11-19 21:47:02 Job was held."
_ANY_EVENT = pattern(r"\d{3} \(\d{1,12}\.\d{1,6}\.\d{1,6}\) \d")
_EVENT = pattern(r"(?:005|012) \(\d{1,12}\.\d{1,6}\.\d{1,6}\) \d[\d/:. T-]{8,30} Job (?P<what>was held|terminated)\b")
_RETURNED = pattern(r"\s+\(1\) Normal termination \(return value (?P<code>\d{1,3})\)")
_SIGNALLED = pattern(r"\s+\(0\) Abnormal termination \(signal (?P<number>\d{1,2})\)")
_SLOT = pattern(r"\bfrom slot[\w-]{1,20}@(?P<node>[\w.-]{1,80}):")


def is_log_of_events(lines: Sequence[Line]) -> bool:
    """Whether these lines are HTCondor's log of a job's events."""
    first = next((line.text for line in lines if line.text.strip()), "")
    return _ANY_EVENT.match(first) is not None


def condor_end(lines: Sequence[Line], i: int) -> End | None:
    """Return the end of a job of which line ``i`` begins the event; None: the line begins no such, or it ended well."""
    event = _EVENT.match(lines[i].text)
    below = lines[i + 1].text if i + 1 < len(lines) else ""
    if event is None or not below[:1].isspace():
        return None
    number = lines[i].number
    if event["what"] == "was held":
        slot = _SLOT.search(below)
        return End(
            number, "condor", f"HTCondor held the job: {below.strip()[:400]}", node=slot["node"] if slot else None
        )
    if (killed := _SIGNALLED.match(below)) is not None:
        return with_code(End(number, "script", below.strip()), -int(killed["number"]))
    returned = _RETURNED.match(below)
    code = int(returned["code"]) if returned is not None else 0
    return of_code(End(number, "script", below.strip()), code) if code else None
