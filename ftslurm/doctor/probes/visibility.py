"""How long until node B sees what node A did: a new file, a renamed-over file; as the product looks, and by plain stat.

The product opens the directory, then the file; a plain stat may believe for half a minute what it cached (NFS). Each
node asks the next one in a ring. An exchange there and back is timed by one clock: half of it is the way there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.barrier import look, make, tell
from ftslurm.doctor.findings import WARNING, WRONG, Finding, Json, median
from ftslurm.doctor.probes.clock import Offset
from ftslurm.doctor.timed_filesystem import TimedFileSystem

MOST = 50
POLL_S = 0.002
STAT_POLL_S = 0.01
LATE_S = 1.0
LEAST_S = 10.0
"""The first exchange is waited for that long, or a short measurement would take a slow filesystem for a broken one."""
DONE, WORD = "done.json", "word.json"
NEW, OLD = "new", "old"


@dataclass(frozen=True)
class Asked:
    """What the asking node measured.

    Attributes:
        peer: the node that answers.
        new, renamed: exchanges [asked, seen, answered, back], nanoseconds, first and last by this node's clock; by a
            file that was not there before, and by one that was renamed over.
        plain_new_ns, plain_old_ns: when this node had made the files for the plain stat, by its clock.
    """

    peer: str
    new: list[list[int]]
    renamed: list[list[int]]
    plain_new_ns: int
    plain_old_ns: int


@dataclass(frozen=True)
class Looked:
    """When a plain stat saw `maker`'s files, by this node's clock; None: never until `until_ns`."""

    maker: str
    new_ns: int | None
    old_ns: int | None
    until_ns: int


def prepare(fs: TimedFileSystem, directory: str) -> None:
    """Create the files needed before any observation."""
    for name in ("there", "back", "plain"):
        make(fs, os.path.join(directory, name))
    tell(fs, os.path.join(directory, "plain", OLD))
    for name in ("there", "back"):
        tell(fs, os.path.join(directory, name, WORD), counter=0)


def ask(fs: TimedFileSystem, directory: str, peer: str, seconds: float) -> Json:
    """Make the files for the plain stat, then exchange words with `peer` until the time is over."""
    began = time.monotonic()
    plain = os.path.join(directory, "plain")
    tell(fs, os.path.join(plain, NEW))
    new_ns = time.time_ns()
    tell(fs, os.path.join(plain, OLD), longer="so that the size tells")
    facts: Json = {"peer": peer, "new": [], "renamed": [], "plain_new_ns": new_ns, "plain_old_ns": time.time_ns()}
    _exchange(fs, directory, facts, began, seconds)
    tell(fs, os.path.join(directory, "there", DONE))
    return facts


def _exchange(fs: TimedFileSystem, directory: str, facts: Json, began: float, seconds: float) -> None:
    # Read once before it changes: what was read is what caches keep.
    look(fs, os.path.join(directory, "back", WORD))
    for counter in range(1, MOST + 1):
        end = began + (max(seconds, LEAST_S) if counter == 1 else seconds)
        for kind, name in (("new", f"{counter}.json"), ("renamed", WORD)):
            asked = time.time_ns()
            tell(fs, os.path.join(directory, "there", name), counter=counter)
            answer = _await(fs, os.path.join(directory, "back", name), counter, end)
            if answer is not None:
                facts[kind].append([asked, answer["seen_ns"], answer["answered_ns"], time.time_ns()])
            elif counter > 1:
                return


def answer(fs: TimedFileSystem, directory: str, seconds: float) -> Json:
    """Answer the asking node until it says that it has done."""
    patience = time.monotonic() + seconds
    end = patience + LEAST_S
    done = os.path.join(directory, "there", DONE)
    look(fs, os.path.join(directory, "there", WORD))
    for counter in range(1, MOST + 1):
        for name in (f"{counter}.json", WORD):
            path = os.path.join(directory, "there", name)
            if (
                _await(fs, path, counter, end, lambda: time.monotonic() > patience and look(fs, done) is not None)
                is None
            ):
                return {}
            seen = time.time_ns()
            back = os.path.join(directory, "back", name)
            tell(fs, back, counter=counter, seen_ns=seen, answered_ns=time.time_ns())
    return {}


def _await(fs: TimedFileSystem, path: str, counter: int, end: float, stop: Callable[[], bool] = bool) -> Json | None:
    while time.monotonic() < end and not stop():
        found = look(fs, path)
        if found is not None and found["counter"] == counter:
            return found
        time.sleep(POLL_S)
    return None


def first_stat(fs: TimedFileSystem, directory: str) -> int:
    """Look at the plain files before the change, as a program does that waits for them; return the old size."""
    _size(fs, os.path.join(directory, "plain", NEW))
    return _size(fs, os.path.join(directory, "plain", OLD)) or 0


def stat_until(fs: TimedFileSystem, directory: str, maker: str, size: int, seconds: float) -> Json:
    """Repeat plain stats until both files are seen or the time is over."""
    end = time.monotonic() + seconds
    new_ns: int | None = None
    old_ns: int | None = None
    while (new_ns is None or old_ns is None) and time.monotonic() < end:
        if new_ns is None and _size(fs, os.path.join(directory, "plain", NEW)) is not None:
            new_ns = time.time_ns()
        if old_ns is None and _size(fs, os.path.join(directory, "plain", OLD)) != size:
            old_ns = time.time_ns()
        time.sleep(STAT_POLL_S)
    return {"maker": maker, "new_ns": new_ns, "old_ns": old_ns, "until_ns": time.time_ns()}


def _size(fs: TimedFileSystem, path: str) -> int | None:
    try:
        return fs.during(f"stat {path}", lambda: os.stat(path)).st_size
    except OSError:
        return None


@dataclass(frozen=True)
class Delays:
    """How long node `at` waits for what `maker` did, seconds; None: not measured.

    Attributes:
        new, renamed: the product's way, the median; `worst`: the longest of all.
        stat_new, stat_renamed: by plain stat; negative: not seen for that long.
    """

    maker: str
    at: str
    new: float | None
    renamed: float | None
    worst: float | None
    stat_new: float | None
    stat_renamed: float | None


def delays(maker: str, asked: Asked, looked: Looked | None, offset: Offset | None) -> Delays:
    """Compute them.

    Args:
        maker: the node that asked.
        asked: what it measured.
        looked: what its peer saw by plain stat.
        offset: the peer's clock minus the maker's.
    """
    new, renamed = _halves(asked.new), _halves(asked.renamed)
    worst = max((*new, *renamed), default=None)
    return Delays(
        maker,
        asked.peer,
        median(new) if new else None,
        median(renamed) if renamed else None,
        worst,
        _plain(looked.new_ns, asked.plain_new_ns, looked.until_ns, offset) if looked else None,
        _plain(looked.old_ns, asked.plain_old_ns, looked.until_ns, offset) if looked else None,
    )


def _halves(exchanges: list[list[int]]) -> list[float]:
    return [max(0, (t3 - t0) - (s2 - s1)) / 2e9 for t0, s1, s2, t3 in exchanges]


def _plain(seen_ns: int | None, made_ns: int, until_ns: int, offset: Offset | None) -> float | None:
    if offset is None:
        return None
    end = until_ns if seen_ns is None else seen_ns
    seconds = max(1e-4, (end - made_ns) / 1e9 - offset.middle)
    return -seconds if seen_ns is None else seconds


def judge(all_delays: Iterable[Delays]) -> list[Finding]:
    """Judge the product's way; the plain stat is there for contrast only."""
    found = []
    for facts in all_delays:
        for value, what in ((facts.new, "new"), (facts.renamed, "renamed-over")):
            if value is None:
                text = f"{facts.maker}'s {what} file was never seen here, or the answer not there"
                advice = "nodes that do not see each other's files cannot meet: look at the mounts and their caches"
                found.append(Finding(WRONG, "seen", (facts.at,), text, advice))
            elif value > LATE_S:
                text = f"{facts.maker}'s {what} file is seen {value:.1f} s late"
                advice = "use a --node-timeout well above that; look for long caches in the mount options"
                found.append(Finding(WARNING, "seen", (facts.at,), text, advice))
        if facts.worst is not None and facts.worst > 5 * LATE_S:
            text = f"one file of {facts.maker}'s was seen {facts.worst:.1f} s late"
            found.append(Finding(WARNING, "seen", (facts.at,), text, "use a --node-timeout well above that"))
    return found
