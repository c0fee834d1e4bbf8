"""A node's clock against the shared filesystem's server."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.records.node import NodeRecord, first_record
from ftslurm.rendezvous.member import Member
from ftslurm.rendezvous.observation import RunSpec, Timing
from ftslurm.rendezvous.pace import Pace
from ftslurm.sharedfs.clock import (
    EVERY_S,
    SAMPLES,
    Sample,
    ServerClock,
    filesystem_of,
    modified_ns,
    offset_of,
    server_clock,
)
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.testing.memoryfs import MemoryFileSystem

MS = 1_000_000
NOW = 1_772_366_400 * 10**9


def samples(skew_ns: int, tick_ns: int, trip_ns: int, count: int, seed: int) -> list[Sample]:
    rng = random.Random(seed)
    found = []
    for i in range(count):
        truth = NOW + i * 3 * 10**9 + rng.randrange(10**9)
        there = rng.randrange(trip_ns)
        stamp = truth // tick_ns * tick_ns
        found.append(Sample(truth - there - skew_ns, stamp, truth - there - skew_ns + trip_ns))
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("tick_ns", [1000, 4 * MS, 10 * MS, 1000 * MS])
def test_the_true_offset_lies_within_the_error_whatever_the_servers_ticks(tick_ns: int, seed: int) -> None:
    skew_ns = random.Random(seed).randrange(-300 * 10**9, 300 * 10**9)
    offset = offset_of(samples(skew_ns, tick_ns, 2 * MS, SAMPLES, seed))
    assert offset is not None
    assert abs(offset.offset_ns - skew_ns) <= offset.error_ns
    assert offset.error_ns <= (6 * MS if tick_ns < 10**9 else 501 * MS)


def test_a_clock_that_jumped_between_two_samples_is_not_averaged() -> None:
    assert offset_of([Sample(NOW, NOW + 2, NOW + 4), Sample(NOW + 10**9, NOW + 90 * 10**9, NOW + 10**9 + 4)]) is None
    assert offset_of([Sample(NOW + 5, NOW, NOW)]) is None
    assert offset_of([]) is None


def test_it_asks_a_few_times_at_the_start_and_then_every_ten_minutes() -> None:
    now, asked = [0.0], []

    def stamp(path: str) -> int:
        asked.append(path)
        return NOW + int(now[0] * 1e9) + 1

    clock = ServerClock(lambda: now[0], stamp)
    for _ in range(1200):
        if clock.due():
            clock.published("n1.json", NOW + int(now[0] * 1e9), NOW + int(now[0] * 1e9) + 2 * MS)
        now[0] += 3
    assert len(asked) == SAMPLES * (3600 // EVERY_S)
    assert clock.offset is not None
    assert clock.offset.error_ns <= 6 * MS


def test_a_clock_that_was_set_is_measured_again_at_once() -> None:
    stamps = iter([NOW + 1, NOW + 3 * 10**9])
    clock = ServerClock(lambda: 0.0, lambda path: next(stamps))
    clock.published("x", NOW, NOW + 2)
    clock.published("x", NOW - 60 * 10**9, NOW - 60 * 10**9 + 2)
    assert clock.offset is not None
    assert round(clock.offset.offset_ns / 1e9) == 63


def test_a_file_that_is_gone_costs_nothing() -> None:
    def stamp(path: str) -> int:
        raise FileNotFoundError(path)

    clock = ServerClock(lambda: 0.0, stamp)
    clock.published("x", 1, 2)
    assert clock.offset is None


def test_a_real_files_stamp_gives_an_offset_of_about_nothing(tmp_path: Path) -> None:
    import time

    clock = ServerClock(time.monotonic, modified_ns)
    for i in range(SAMPLES):
        before = time.time_ns()
        (tmp_path / f"{i}").touch()
        clock.published(str(tmp_path / f"{i}"), before, time.time_ns())
    assert clock.offset is not None
    assert abs(clock.offset.offset_ns) <= clock.offset.error_ns


MOUNTS = """\
22 1 0:20 / / rw - overlay overlay rw
23 22 0:21 / /work rw shared:1 - lustre mgs:/work rw
24 23 0:22 / /work/with\\040space rw - nfs4 srv:/x rw
25 22 0:23 / /old rw - nfs srv:/old rw
26 25 0:24 / /old rw - ceph mon:/ rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/x", "overlay"), ("/work", "lustre"), ("/workers", "overlay"), ("/work/with space/r", "nfs4"),
     ("/old/r", "ceph")],
)  # fmt: skip
def test_the_filesystem_is_that_of_the_nearest_newest_mount(path: str, kind: str) -> None:
    assert filesystem_of(MOUNTS, path) == kind


def test_nothing_is_measured_on_filesystems_whose_clients_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftslurm.sharedfs.clock.filesystem_of", lambda text, path: "lustre")
    assert server_clock(os.getcwd(), lambda: 0.0) is None
    monkeypatch.setattr("ftslurm.sharedfs.clock.filesystem_of", lambda text, path: "nfs4")
    assert server_clock(os.getcwd(), lambda: 0.0) is not None


def test_a_member_publishes_its_clock_in_its_record_and_records_without_one_are_readable() -> None:
    fs = MemoryFileSystem()
    for directory in ("/run/nodes", "/run/state"):
        fs.makedirs(directory)
    now = [100.0]

    def now_ns() -> int:
        now[0] += 0.001
        return NOW + int(now[0] * 1e9)

    clock = ServerClock(lambda: now[0], lambda path: NOW + int((now[0] + 90) * 1e9) + 1)
    record = first_record("n1", "a", "7.0", 0, 1)
    shape = RunSpec("r", "7.0", ("n1",), 1, 1, 3)
    member = Member(
        fs, RunDirectory("/run"), shape, record, Timing(8, 600, 30), Pace(), lambda: now[0], now_ns, clock=clock
    )
    for _ in range(3):
        member.tick()
        member.publish(replace(member.record, clock=None, reason=None))
        now[0] += 4
    published = NodeRecord.decode(fs.content("/run/nodes/n1.json"), "n1.json")
    assert published.clock is not None
    assert abs(published.clock.offset_ns - 90 * 10**9) <= published.clock.error_ns + 1000
    old = json.loads(published.encode())
    del old["clock"]
    assert NodeRecord.decode(json.dumps(old).encode(), "n1.json").clock is None
