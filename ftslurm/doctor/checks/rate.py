"""Operations per second, on all nodes at once, as in a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from statistics import median_low

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.contended import ContendedCheck, Meeting, last_value
from ftslurm.health.barrier import make_directory
from ftslurm.health.timed_filesystem import TimedFileSystem, Work
from ftslurm.health.verdict import Json, NodeFinding, node_finding, node_findings
from ftslurm.records.health import FAIL, WARN
from ftslurm.sharedfs.publish import publish

SIZE = 1000
FEW = 20.0
OUTLIER = 5.0
OUTLIER_S = 0.002


@dataclass(frozen=True)
class Rate:
    """Per second, by one process.

    Attributes:
        publish: 1000 bytes written and renamed over, as a node record.
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


def _works(meeting: Meeting, seconds: float) -> list[Work]:
    directory, node = meeting.session.path("rate"), meeting.session.node

    def work(fs: TimedFileSystem) -> Json:
        make_directory(fs, directory)
        meeting.wait(fs, "rate")
        return measure(fs, directory, node, seconds)

    return [work]


CHECK = ContendedCheck("rate", _works, last_value, share=0.2)


def judge(rates: Mapping[str, Rate]) -> list[NodeFinding]:
    """Name slow filesystems and the nodes that are slower than the rest."""
    found = []
    for what, name in (("publish", "publishes"), ("durable", "publishes to the disk"), ("read", "reads")):
        values: dict[str, float] = {node: getattr(rate, what) for node, rate in rates.items()}
        middle = median_low(list(values.values())) if values else 0.0
        for node, value in values.items():
            # Below some milliseconds only the scheduling differs.
            if value * OUTLIER < middle and (not value or 1 / value - 1 / middle > OUTLIER_S):
                text = f"{value:.0f} {name} per second, the other nodes {middle:.0f}"
                advice = "look at this node's network and load"
                found.append(node_finding(WARN, CHECK.name, (node,), text, advice))
        if values and middle < FEW:
            text = f"only {middle:.1f} {name} per second"
            advice = "a node publishes about once in a second: it works; recoveries take longer"
            found.append(node_finding(WARN, CHECK.name, (), text, advice))
    return found + node_findings(CHECK.name, rates, _errors)


def _errors(rate: Rate) -> list[tuple[str, str, str]]:
    advice = "ftslurm tries again, bounded; programs that do not, fail: ask the filesystem's operators"
    return [
        (FAIL if count > rate.tries / 2 else WARN, f"{count} of {rate.tries} operations failed: {name}", advice)
        for name, count in rate.errors.items()
    ]
