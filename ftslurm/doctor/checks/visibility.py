"""Delay until one node reads what another one wrote: a new file, a renamed file; as ftslurm reads, and by plain stat.

ftslurm opens the directory, then the file; a plain stat may return cached attributes for half a minute (NFS). Each node
exchanges files with the next one in a ring. A round trip is timed by one clock: half of it is the delay.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median_low

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.checks.clock import Offset
from ftslurm.doctor.contended import ContendedCheck, Meeting
from ftslurm.health.barrier import make_directory, read_file, write_file
from ftslurm.health.timed_filesystem import TimedFileSystem, Work
from ftslurm.health.verdict import Json, NodeFinding, node_finding
from ftslurm.records.health import FAIL, WARN

MOST = 50
POLL_S = 0.002
STAT_POLL_S = 0.01
LATE_S = 1.0
LEAST_S = 10.0
"""The first exchange is waited for that long, or a short measurement would take a slow filesystem for a broken one."""
DONE, COUNTER = "done.json", "counter.json"
NEW, OLD = "new", "old"


@dataclass(frozen=True)
class Exchanges:
    """Measurements of the node that begins the exchanges.

    Attributes:
        peer: the node that replies.
        new, renamed: exchanges [sent, received, replied, returned], nanoseconds, first and last by this node's clock;
            by a file that did not exist before, and by one that was renamed over.
        plain_new_ns, plain_old_ns: when this node had created the files for the plain stat, by its clock.
    """

    peer: str
    new: list[list[int]]
    renamed: list[list[int]]
    plain_new_ns: int
    plain_old_ns: int


@dataclass(frozen=True)
class StatTimes:
    """When a plain stat found `writer`'s files, by this node's clock; None: not until `until_ns`."""

    writer: str
    new_ns: int | None
    old_ns: int | None
    until_ns: int


def prepare(fs: TimedFileSystem, directory: str) -> None:
    """Create the files needed before any observation."""
    for name in ("there", "back", "plain"):
        make_directory(fs, os.path.join(directory, name))
    write_file(fs, os.path.join(directory, "plain", OLD))
    for name in ("there", "back"):
        write_file(fs, os.path.join(directory, name, COUNTER), counter=0)


def exchange(fs: TimedFileSystem, directory: str, peer: str, seconds: float) -> Json:
    """Create the files for the plain stat, then exchange files with `peer` until the time is over."""
    began = time.monotonic()
    plain = os.path.join(directory, "plain")
    write_file(fs, os.path.join(plain, NEW))
    new_ns = time.time_ns()
    write_file(fs, os.path.join(plain, OLD), longer="so that the size differs")
    facts: Json = {"peer": peer, "new": [], "renamed": [], "plain_new_ns": new_ns, "plain_old_ns": time.time_ns()}
    _exchange(fs, directory, facts, began, seconds)
    write_file(fs, os.path.join(directory, "there", DONE))
    return facts


def _exchange(fs: TimedFileSystem, directory: str, facts: Json, began: float, seconds: float) -> None:
    # Read once before it changes: what was read is what caches keep.
    read_file(fs, os.path.join(directory, "back", COUNTER))
    for counter in range(1, MOST + 1):
        end = began + (max(seconds, LEAST_S) if counter == 1 else seconds)
        for kind, name in (("new", f"{counter}.json"), ("renamed", COUNTER)):
            sent = time.time_ns()
            write_file(fs, os.path.join(directory, "there", name), counter=counter)
            reply = _await(fs, os.path.join(directory, "back", name), counter, end)
            if reply is not None:
                facts[kind].append([sent, reply["received_ns"], reply["replied_ns"], time.time_ns()])
            elif counter > 1:
                return


def reply_until_done(fs: TimedFileSystem, directory: str, seconds: float) -> Json:
    """Reply to the other node's files until it has finished."""
    patience = time.monotonic() + seconds
    end = patience + LEAST_S
    done = os.path.join(directory, "there", DONE)
    read_file(fs, os.path.join(directory, "there", COUNTER))
    for counter in range(1, MOST + 1):
        for name in (f"{counter}.json", COUNTER):
            path = os.path.join(directory, "there", name)
            if (
                _await(fs, path, counter, end, lambda: time.monotonic() > patience and read_file(fs, done) is not None)
                is None
            ):
                return {}
            received = time.time_ns()
            back = os.path.join(directory, "back", name)
            write_file(fs, back, counter=counter, received_ns=received, replied_ns=time.time_ns())
    return {}


def _await(fs: TimedFileSystem, path: str, counter: int, end: float, stop: Callable[[], bool] = bool) -> Json | None:
    while time.monotonic() < end and not stop():
        found = read_file(fs, path)
        if found is not None and found["counter"] == counter:
            return found
        time.sleep(POLL_S)
    return None


def first_stat(fs: TimedFileSystem, directory: str) -> int:
    """Read the attributes of the plain files before the change, as a waiting program does; return the old size."""
    _size(fs, os.path.join(directory, "plain", NEW))
    return _size(fs, os.path.join(directory, "plain", OLD)) or 0


def stat_until(fs: TimedFileSystem, directory: str, writer: str, size: int, seconds: float) -> Json:
    """Repeat plain stats until both files have changed or the time is over."""
    end = time.monotonic() + seconds
    new_ns: int | None = None
    old_ns: int | None = None
    while (new_ns is None or old_ns is None) and time.monotonic() < end:
        if new_ns is None and _size(fs, os.path.join(directory, "plain", NEW)) is not None:
            new_ns = time.time_ns()
        if old_ns is None and _size(fs, os.path.join(directory, "plain", OLD)) != size:
            old_ns = time.time_ns()
        time.sleep(STAT_POLL_S)
    return {"writer": writer, "new_ns": new_ns, "old_ns": old_ns, "until_ns": time.time_ns()}


def _size(fs: TimedFileSystem, path: str) -> int | None:
    try:
        return fs.during(f"stat {path}", lambda: os.stat(path)).st_size
    except OSError:
        return None


def _works(meeting: Meeting, seconds: float) -> list[Work]:
    root = meeting.session.path("visibility")
    before, own, after = meeting.neighbours()

    def begin(fs: TimedFileSystem) -> Json:
        prepare(fs, f"{root}/{own}")
        meeting.wait(fs, "visibility")
        meeting.wait(fs, "visibility-cached", post=False)
        return exchange(fs, f"{root}/{own}", after, seconds)

    def stat(fs: TimedFileSystem) -> Json:
        meeting.wait(fs, "visibility", post=False)
        size = first_stat(fs, f"{root}/{before}")
        meeting.wait(fs, "visibility-cached")
        return stat_until(fs, f"{root}/{before}", before, size, seconds)

    reply = meeting.after("visibility-cached", lambda fs: reply_until_done(fs, f"{root}/{before}", seconds))
    return [begin, stat, reply]


def _facts(values: Sequence[Json | None]) -> Json:
    return {"exchanges": values[0], "stats": values[1]}


CHECK = ContendedCheck("visibility", _works, _facts, share=0.35, extra_s=LEAST_S, barriers=2)


@dataclass(frozen=True)
class Delays:
    """Seconds until node `reader` reads what `writer` wrote; None: not measured.

    Attributes:
        new, renamed: as ftslurm reads, the median; `worst`: the longest of all.
        stat_new, stat_renamed: by plain stat; negative: not within that time.
    """

    writer: str
    reader: str
    new: float | None
    renamed: float | None
    worst: float | None
    stat_new: float | None
    stat_renamed: float | None


def delays(writer: str, exchanges: Exchanges, stats: StatTimes | None, offset: Offset | None) -> Delays:
    """Compute them.

    Args:
        writer: the node that began the exchanges.
        exchanges: its measurements.
        stats: its peer's plain stats.
        offset: the peer's clock minus the writer's.
    """
    new, renamed = _halves(exchanges.new), _halves(exchanges.renamed)
    worst = max((*new, *renamed), default=None)
    return Delays(
        writer,
        exchanges.peer,
        median_low(new) if new else None,
        median_low(renamed) if renamed else None,
        worst,
        _plain(stats.new_ns, exchanges.plain_new_ns, stats.until_ns, offset) if stats else None,
        _plain(stats.old_ns, exchanges.plain_old_ns, stats.until_ns, offset) if stats else None,
    )


def _halves(exchanges: list[list[int]]) -> list[float]:
    return [max(0, (t3 - t0) - (s2 - s1)) / 2e9 for t0, s1, s2, t3 in exchanges]


def _plain(found_ns: int | None, written_ns: int, until_ns: int, offset: Offset | None) -> float | None:
    if offset is None:
        return None
    end = until_ns if found_ns is None else found_ns
    seconds = max(1e-4, (end - written_ns) / 1e9 - offset.middle)
    return -seconds if found_ns is None else seconds


def judge(all_delays: Iterable[Delays]) -> list[NodeFinding]:
    """Judge the delays of ftslurm's own reads; the plain stat is only measured for comparison."""
    found = []
    for facts in all_delays:
        for value, what in ((facts.new, "new"), (facts.renamed, "renamed-over")):
            if value is None:
                text = f"{facts.writer}'s {what} file was never visible here, or the reply not there"
                advice = "nodes that cannot read each other's files cannot run together: check mounts and caches"
                found.append(node_finding(FAIL, CHECK.name, (facts.reader,), text, advice))
            elif value > LATE_S:
                text = f"{facts.writer}'s {what} file is visible {value:.1f} s late"
                advice = "use a --node-timeout well above that; look for long caches in the mount options"
                found.append(node_finding(WARN, CHECK.name, (facts.reader,), text, advice))
        if facts.worst is not None and facts.worst > 5 * LATE_S:
            text = f"one file of {facts.writer}'s was visible {facts.worst:.1f} s late"
            found.append(node_finding(WARN, CHECK.name, (facts.reader,), text, "use a --node-timeout well above that"))
    return found
