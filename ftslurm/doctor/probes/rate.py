"""Operations per second, on all nodes at once, as in a run; and single calls that took far too long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.findings import WARNING, WRONG, Finding, Json, median
from ftslurm.doctor.timed_filesystem import TimedFileSystem
from ftslurm.sharedfs.publish import publish

SIZE = 1000
FEW = 20.0
OUTLIER = 5.0
OUTLIER_S = 0.002
SLOW_CALL_S = 2.0


@dataclass(frozen=True)
class Rate:
    """Per second, by one process.

    Attributes:
        publish: 1000 bytes written and renamed over, as a node's word.
        durable: the same on the disk before the rename, as a generation of the state.
        read: directory opened, file opened and read.
        errors: what failed, to how often; `tries`: of how many.
    """

    publish: float
    durable: float
    read: float
    errors: dict[str, int]
    tries: int


def measure(fs: TimedFileSystem, directory: str, node: str, seconds: float) -> Json:
    """Count each kind for a third of the time."""
    path = os.path.join(directory, f"rate.{node}")
    data = b"x" * SIZE

    def read() -> None:
        fs.refresh(directory)
        fs.read(path, SIZE)

    facts: Json = {"errors": {}, "tries": 0}
    kinds: dict[str, Callable[[], None]] = {
        "publish": lambda: publish(fs, path, data),
        "durable": lambda: publish(fs, path, data, durable=True),
        "read": read,
    }
    for kind, operation in kinds.items():
        facts[kind] = _per_second(operation, seconds / len(kinds), facts)
    return facts


def _per_second(operation: Callable[[], None], seconds: float, facts: Json) -> float:
    began = now = time.monotonic()
    count = 0
    while now - began < seconds:
        facts["tries"] += 1
        try:
            operation()
            count += 1
        except OSError as error:
            name = str(error.strerror)
            facts["errors"][name] = facts["errors"].get(name, 0) + 1
        now = time.monotonic()
    return count / (now - began)


def judge(rates: Mapping[str, Rate]) -> list[Finding]:
    """Name slow filesystems and the nodes that are slower than the rest."""
    found = []
    for what, name in (("publish", "publishes"), ("durable", "publishes to the disk"), ("read", "reads")):
        values: dict[str, float] = {node: getattr(rate, what) for node, rate in rates.items()}
        middle = median(list(values.values())) if values else 0.0
        for node, value in values.items():
            # Below some milliseconds only the scheduler's whims differ.
            if value * OUTLIER < middle and (not value or 1 / value - 1 / middle > OUTLIER_S):
                text = f"{value:.0f} {name} per second, the other nodes {middle:.0f}"
                advice = "look at this node's network and load"
                found.append(Finding(WARNING, "rate", (node,), text, advice))
        if values and middle < FEW:
            text = f"only {middle:.1f} {name} per second"
            advice = "a node publishes about once in a second: it works; recoveries take longer"
            found.append(Finding(WARNING, "rate", (), text, advice))
    return found + _errors(rates)


def _errors(rates: Mapping[str, Rate]) -> list[Finding]:
    found = []
    for node, rate in rates.items():
        for name, count in rate.errors.items():
            severity = WRONG if count > rate.tries / 2 else WARNING
            text = f"{count} of {rate.tries} operations failed: {name}"
            advice = "ftslurm tries again, bounded; programs that do not, fail: ask the filesystem's operators"
            found.append(Finding(severity, "rate", (node,), text, advice))
    return found


def judge_slowest(slowest: Mapping[str, tuple[float, str]]) -> list[Finding]:
    """Name single calls that took seconds, although they returned."""
    advice = "ftslurm lives through stalls; if it comes again, ask the filesystem's operators"
    return [
        Finding(WARNING, "stall", (node,), f"{call} took {seconds:.1f} s", advice)
        for node, (seconds, call) in slowest.items()
        if seconds > SLOW_CALL_S
    ]
