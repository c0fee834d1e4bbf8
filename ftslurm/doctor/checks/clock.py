"""The clocks: offsets of each node's from the server's, and from the others', as intervals (pure).

Two methods. A server's time stamp of a change lies between this node's times before and after the call. And if two
nodes reply to each other through files, each reads the other's file after its write. The second needs no clock of the
server: on some filesystems (GlusterFS, CephFS, Lustre) the client stamps, which makes the first one useless.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from statistics import median_low

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.contended import ContendedCheck, last_value
from ftslurm.health.barrier import make_directory
from ftslurm.health.timed_filesystem import TimedFileSystem
from ftslurm.health.verdict import Json, NodeFinding, node_finding
from ftslurm.records.health import NOTE, WARN

SAMPLES = 20
TICK_NS = 10_000_000
FAR_S = 1.0


@dataclass(frozen=True)
class Stamps:
    """Samples [before, stamp, after]: local clock, the filesystem's time stamp, local clock; nanoseconds."""

    samples: list[list[int]]


@dataclass(frozen=True)
class Offset:
    """A clock minus another clock, in seconds: within `error` of `middle`."""

    middle: float
    error: float


def stamp(fs: TimedFileSystem, directory: str) -> Json:
    """Touch a directory of this process's own and record the stamps."""
    path = os.path.join(directory, f"clock.{os.uname().nodename}.{os.getpid()}")
    make_directory(fs, path)
    samples = []
    for _ in range(SAMPLES):
        try:
            before = time.time_ns()
            # With None the server uses its own clock, if the server stamps.
            fs.during(f"utime {path}", lambda: os.utime(path, None))
            after = time.time_ns()
            samples.append([before, fs.during(f"stat {path}", lambda: os.stat(path)).st_mtime_ns, after])
        except OSError:
            continue
    return {"samples": samples}


CHECK = ContendedCheck(
    "clock", lambda meeting, seconds: [lambda fs: stamp(fs, meeting.session.root)], last_value, barriers=0
)


def from_stamps(samples: Sequence[Sequence[int]]) -> Offset | None:
    """Return the local clock minus the stamping one; None when a clock jumped meanwhile, or there is no sample."""
    whole_seconds = all(stamp % 10**9 == 0 for _, stamp, _ in samples)
    # A stamp is the beginning of the server's tick (or second), so the truth may be that much later.
    tick = 10**9 if whole_seconds else TICK_NS
    return _interval([before - stamp - tick for before, stamp, _ in samples], [a - s for _, s, a in samples])


def from_exchanges(exchanges: Sequence[Sequence[int]]) -> Offset | None:
    """Return the replying node's clock minus the sender's.

    Args:
        exchanges: [sent, received, replied, returned]: first and last by the sender's clock, nanoseconds.
    """
    return _interval([s2 - t3 for _, _, s2, t3 in exchanges], [s1 - t0 for t0, s1, _, _ in exchanges])


def _interval(lower: Sequence[int], upper: Sequence[int]) -> Offset | None:
    if not lower or max(lower) > min(upper):
        return None
    return Offset((max(lower) + min(upper)) / 2e9, (min(upper) - max(lower)) / 2e9)


def offsets(
    stamps: Mapping[str, Stamps], exchanges: Mapping[tuple[str, str], Offset]
) -> tuple[dict[str, Offset], bool]:
    """Return each node's offset from the first one's clock or from the server's, and whether it is the server's.

    Args:
        stamps: node to samples.
        exchanges: (sender, replier) to the replying node's clock minus the sender's.
    """
    by_server = {node: offset for node, facts in stamps.items() if (offset := from_stamps(facts.samples)) is not None}
    for (a, b), pair in exchanges.items():
        if a in by_server and b in by_server:
            difference = by_server[b].middle - by_server[a].middle
            if abs(difference - pair.middle) > pair.error + by_server[a].error + by_server[b].error:
                return _chained(exchanges), False
    return by_server, True


def _chained(exchanges: Mapping[tuple[str, str], Offset]) -> dict[str, Offset]:
    """Add up the pairs from the first node on."""
    known: dict[str, Offset] = {}
    for (a, b), pair in exchanges.items():
        start = known.setdefault(a, Offset(0.0, 0.0)) if not known else known.get(a)
        if start is not None and b not in known:
            known[b] = Offset(start.middle + pair.middle, start.error + pair.error)
    return known


def judge(by_node: Mapping[str, Offset], server: bool) -> list[NodeFinding]:
    """Findings for nodes whose clock is off; ftslurm itself never compares clocks to detect dead nodes."""
    if not by_node:
        return []
    middle = median_low([offset.middle for offset in by_node.values()])
    found = []
    for node, offset in by_node.items():
        if abs(offset.middle - middle) - offset.error > FAR_S:
            difference = offset.middle - middle
            text = f"clock is {abs(difference):.1f} s {'ahead of' if difference > 0 else 'behind'} the others'"
            advice = "check NTP there (chronyc tracking): times of different nodes in logs and reports do not compare"
            found.append(node_finding(WARN, "clock", (node,), text, advice))
    if server and abs(middle) > FAR_S:
        text = f"the filesystem's clock differs from the nodes' by {middle:.1f} s"
        advice = "check NTP on the server; make and similar tools mistake old files for new ones"
        found.append(node_finding(NOTE, "clock", (), text, advice))
    return found
