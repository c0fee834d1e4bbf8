"""The rank's mark: what is written is read, and no page of bytes is too strange to be read."""

from __future__ import annotations

import math
import os
import random
import struct
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.heartbeat_page import EDGES_S, SLOTS, Beats, HeartbeatPage, Progress, SectionSlot

if TYPE_CHECKING:
    from ftslurm.monitor.mapping import Words


def blank() -> tuple[bytearray, Words]:
    page = bytearray(heartbeat_page.SIZE)
    page[:8] = heartbeat_page.MAGIC
    return page, heartbeat_page.claim(page, 7, 70)


def decoded(page: bytearray) -> HeartbeatPage:
    found = heartbeat_page.decode(bytes(page))
    assert found is not None
    return found


def test_a_new_page_is_empty() -> None:
    page, _ = blank()
    found = decoded(page)
    assert found.progress is None
    assert (found.pid, found.finished, found.opted_in, found.sections) == (7, False, False, ())
    assert (found.initial_s, found.heartbeat_s, found.out_of_section_s) == (None, None, None)


def test_heartbeats_are_counted_and_the_longest_interval_is_kept() -> None:
    page, words = blank()
    times = iter([100, 250, 300, 1000])
    beat = heartbeat_page.beater(words, 0, lambda: next(times))
    for _ in range(4):
        beat()
    assert decoded(page).beats == Beats(100, 1000, 4, 700)
    assert decoded(page).opted_in


def test_the_intervals_of_the_warm_up_do_not_count_as_longest() -> None:
    page, words = blank()
    times = iter([100, 10_000, 20_000, 20_005, 20_012])
    beat = heartbeat_page.beater(words, 2, lambda: next(times))
    for _ in range(5):
        beat()
    assert decoded(page).beats.longest_ns == 7


def test_steps_keep_their_first_their_last_and_a_histogram() -> None:
    page, words = blank()
    clock, wall = iter([1, 1 + 2**20, 2 + 2**21]), iter([10, 11, 20, 30])
    step = heartbeat_page.stepper(words, lambda: next(clock), lambda: next(wall))
    for number in (-5, 2**62, 3):
        step(number)
    found = decoded(page)
    assert found.progress == Progress(-5, 10, 3, 30, 3)
    assert found.progress_ns == 2 + 2**21
    assert (found.pace.intervals, found.pace.sum_ns) == (2, 1 + 2**21)
    assert found.pace.buckets[1] == 2
    assert sum(found.pace.buckets) == 2


def test_the_ends_of_the_newest_steps_are_kept_in_order() -> None:
    page, words = blank()
    wall = iter(range(1000, 1000 + 200))
    step = heartbeat_page.stepper(words, wall=lambda: next(wall))
    for number in range(5):
        step(number)
    # The first step asks for the time twice.
    assert decoded(page).step_ends == (1001, 1002, 1003, 1004, 1005)
    for number in range(heartbeat_page.ENDS_KEPT):
        step(number)
    assert decoded(page).step_ends == tuple(range(1006, 1006 + heartbeat_page.ENDS_KEPT))
    heartbeat_page.withdraw_automatic(words)
    assert decoded(page).step_ends == ()


def test_buckets_begin_at_their_edges() -> None:
    assert len(EDGES_S) == heartbeat_page.BUCKETS
    for number, edge in enumerate(EDGES_S):
        assert heartbeat_page.bucket(round(edge * 1e9)) == number
        assert number == 0 or heartbeat_page.bucket(round(edge * 1e9) - 1) == number - 1
    assert heartbeat_page.bucket(2**62) == heartbeat_page.BUCKETS - 1


def test_every_section_has_a_slot_until_there_is_none_left() -> None:
    page, words = blank()
    places = [heartbeat_page.new_slot(words, f"section {i}") for i in range(SLOTS + 1)]
    assert places[-1] is None
    assert places[:-1] == [heartbeat_page.SLOT_0 + 10 * i for i in range(SLOTS)]
    assert heartbeat_page.new_slot(words, "section 7") == places[7]
    assert [section.name for section in decoded(page).sections] == [f"section {i}" for i in range(SLOTS)]


@pytest.mark.parametrize("name", ["a", "ü" * 20, "x" * 40, "with space", "日本"])
def test_a_sections_name_is_read_as_it_was_written(name: str) -> None:
    page, words = blank()
    at = heartbeat_page.new_slot(words, name)
    assert at is not None
    words[at + heartbeat_page.OPENED], words[at + heartbeat_page.OPENS], words[at + heartbeat_page.LONGEST] = 5, 6, 7
    words[at + heartbeat_page.OWN_TIMEOUT] = heartbeat_page.encode_timeout(1.5)
    assert decoded(page).sections == (SectionSlot(name, 5, 6, 7, 1.5),)


def test_own_timeouts_are_unset_off_or_seconds() -> None:
    page, words = blank()
    for seconds, expected in ((1.5, 1.5), (math.inf, math.inf), (None, math.inf), (1e300, math.inf), (1e-12, 1e-9)):
        words[heartbeat_page.OWN_HEARTBEAT] = heartbeat_page.encode_timeout(seconds)
        assert decoded(page).heartbeat_s == expected


def test_the_next_program_of_a_rank_goes_on_with_its_sections_closed() -> None:
    page, words = blank()
    heartbeat_page.beater(words, 0, lambda: 5)()
    at = heartbeat_page.new_slot(words, "data")
    assert at is not None
    words[at + heartbeat_page.OPENED] = 5
    words[heartbeat_page.UNLISTED] = 1
    again = heartbeat_page.claim(page, 8, 80)
    heartbeat_page.beater(again, 0, lambda: 9)()
    found = decoded(page)
    assert found.beats == Beats(5, 9, 2, 4)
    assert (found.sections[0].opened_ns, found.unlisted, found.pid) == (0, 0, 8)
    assert found.section_ns > 0


@pytest.mark.parametrize("size", [0, 1, 8, 64, heartbeat_page.SIZE - 1])
def test_a_short_page_is_no_mark(size: int) -> None:
    page, _ = blank()
    assert heartbeat_page.decode(bytes(page[:size])) is None


def test_any_page_of_bytes_gives_nothing_or_sane_values() -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rng = random.Random(seed)
    good, words = blank()
    for i in range(SLOTS):
        heartbeat_page.new_slot(words, f"section {i}")
    extremes = [0, -1, 1, 2**63 - 1, -(2**63), 44, 45]
    for _ in range(300):
        page = (
            bytearray(good)
            if rng.random() < 0.5
            else bytearray(heartbeat_page.MAGIC + rng.randbytes(heartbeat_page.SIZE - 8))
        )
        for _ in range(rng.randrange(40)):
            struct.pack_into("<q", page, 8 * rng.randrange(1, 512), rng.choice(extremes))
        found = decoded(page)
        assert len(found.sections) <= SLOTS
        assert min(asdict(found.beats).values()) >= 0 and min(found.pace.buckets) >= 0 and found.section_ns >= 0
        assert all(s.opened_ns >= 0 and s.name and (s.timeout_s is None or s.timeout_s > 0) for s in found.sections)
    assert heartbeat_page.decode(rng.randbytes(heartbeat_page.SIZE)) is None


def test_the_file_is_one_page_and_is_read_at_any_time(tmp_path: Path) -> None:
    assert heartbeat_page.read(tmp_path) is None
    words = heartbeat_page.open_writer(tmp_path)
    assert words is not None
    assert (tmp_path / "progress").stat().st_size == heartbeat_page.SIZE
    assert (tmp_path / "progress").stat().st_mode & 0o777 == 0o600
    heartbeat_page.beater(words, 0, lambda: 5)()
    found = heartbeat_page.read(tmp_path)
    assert found is not None
    assert (found.beats.number, found.pid) == (1, os.getpid())


def test_two_living_processes_do_not_write_one_mark(tmp_path: Path) -> None:
    first = heartbeat_page.open_writer(tmp_path)
    assert first is not None
    with subprocess.Popen(["sleep", "60"]) as other:
        first[heartbeat_page.PID], first[heartbeat_page.PID_STARTED] = other.pid, heartbeat_page._started(other.pid)
        assert heartbeat_page.open_writer(tmp_path) is None
        first[heartbeat_page.PID_STARTED] -= 1  # the pid is another process's by now
        assert heartbeat_page.open_writer(tmp_path) is not None
        first[heartbeat_page.PID], first[heartbeat_page.PID_STARTED] = other.pid, heartbeat_page._started(other.pid)
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert heartbeat_page.open_writer(tmp_path) is not None  # a zombie writes no more


def test_what_is_no_file_is_neither_read_nor_written(tmp_path: Path) -> None:
    place = tmp_path / "progress"
    place.mkdir()
    assert heartbeat_page.read(tmp_path) is None
    with pytest.raises(OSError):
        heartbeat_page.open_writer(tmp_path)
    place.rmdir()
    (tmp_path / "elsewhere").write_bytes(b"precious")
    place.symlink_to("elsewhere")
    assert heartbeat_page.read(tmp_path) is None
    with pytest.raises(OSError):
        heartbeat_page.open_writer(tmp_path)
    place.unlink()
    os.mkfifo(place)
    assert heartbeat_page.read(tmp_path) is None
    with pytest.raises(OSError):
        heartbeat_page.open_writer(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"
