"""The watch, tested with histories: what the rank does, what the clock says, what must have expired."""

from __future__ import annotations

import json
import math
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.expiry import Life, describe, intervals, next_expiry
from ftslurm.monitor.heartbeat_page import HeartbeatPage
from ftslurm.monitor.message import ClientMessage, encode
from ftslurm.monitor.section import Book, Section
from ftslurm.monitor.timeouts import Spans, Timeouts
from ftslurm.monitor.watchdog import MAX_TIMERS, Expiry, Note, Watchdog

TICK_NS = 1953125  # 1/512 s: exact in nanoseconds and as a float
START = 1000 * 512
WALL = 1.7e9


class Rank:
    """A rank's real mark, on a clock of ours."""

    def __init__(self, node: Node, pid: int) -> None:
        self.node = node
        self.pid = pid
        self.page = bytearray(heartbeat_page.SIZE)
        self.page[:8] = heartbeat_page.MAGIC
        self.misuses: list[str] = []
        warmup = node.watch.timeouts.warmup_steps
        self.words = heartbeat_page.claim(self.page, pid, 1)
        self.beat = heartbeat_page.beater(self.words, warmup, node.now_ns)
        self.step = heartbeat_page.stepper(self.words, node.now_ns, node.now_ns)
        self.book = Book(self.words, warmup, lambda what, _: self.misuses.append(what), node.now_ns)
        self.sections: dict[str, Section] = {}

    def section(self, name: str) -> Section:
        if name not in self.sections:
            found = self.book.listed(name)
            assert found is not None
            self.sections[name] = found
        return self.sections[name]

    def own(self, name: str, seconds: float) -> None:
        self.words[self.section(name).at + heartbeat_page.OWN_TIMEOUT] = heartbeat_page.encode_timeout(seconds)


class Node:
    """A watch, its ranks, its clock; `pass_time` does what the agent's loop does."""

    def __init__(self, timeouts: Timeouts, ranks: int = 1) -> None:
        self.ticks = START
        self.ranks: dict[int, Rank] = {}
        self.owners: dict[int, int] = {}
        self.lost_marks: set[int] = set()
        self.looks = 0
        self.watch = Watchdog(timeouts, self._read, self.owners.get)
        for local_rank in range(ranks):
            self.begin(local_rank)

    def begin(self, local_rank: int) -> Rank:
        rank = self.ranks[local_rank] = Rank(self, 100 + local_rank)
        self.owners[rank.pid] = local_rank
        self.watch.begin(local_rank, self.now)
        return rank

    def _read(self, local_rank: int) -> HeartbeatPage | None:
        self.looks += 1
        return None if local_rank in self.lost_marks else heartbeat_page.decode(bytes(self.ranks[local_rank].page))

    @property
    def now(self) -> float:
        return self.ticks / 512

    def now_ns(self) -> int:
        return self.ticks * TICK_NS

    def look(self) -> list[Expiry]:
        deadline = self.watch.deadline
        return self.watch.due(self.now) if deadline is not None and deadline <= self.now else []

    def pass_time(self, seconds: float) -> list[Expiry]:
        """Let time pass, waking up exactly when the watch wants it."""
        end = self.ticks + round(seconds * 512)
        expiries: list[Expiry] = []
        while True:
            deadline = self.watch.deadline
            if deadline is None or deadline > end / 512:
                self.ticks = end
                return expiries
            self.ticks = max(self.ticks, math.ceil(deadline * 512))
            expiries += self.watch.due(self.now)

    def hear(self, line: bytes, wall: float | None = None) -> Note | None:
        return self.watch.receive(line, self.now, WALL + self.now if wall is None else wall)

    def timer(self, after: float | None, scope: str = "batch", sig: int = 9, pid: int = 100) -> Note | None:
        expiration = -1 if after is None else WALL + self.now + after
        line = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": expiration, "signal": sig}
        return self.hear(json.dumps(line).encode())

    def send(self, kind: str, local_rank: int = 0, what: str = "", name: str = "") -> Note | None:
        return self.hear(encode(ClientMessage(kind, local_rank, 100 + local_rank, what, name)).strip())


def one(expiries: list[Expiry]) -> Expiry:
    assert len(expiries) == 1, expiries
    return expiries[0]


def test_a_rank_that_never_opted_in_is_not_watched() -> None:
    node = Node(Timeouts(heartbeat_s=10, sections={"data": 5}, out_of_section_s=5))
    node.ranks[0].step(1)
    assert node.pass_time(1e5) == []


def test_a_heartbeat_that_stays_out_expires_to_the_moment_and_once() -> None:
    node = Node(Timeouts(heartbeat_s=10))
    node.pass_time(3)
    node.ranks[0].beat()
    node.pass_time(7)
    node.ranks[0].beat()
    beaten = node.now
    assert node.pass_time(9.5) == []
    expiry = one(node.pass_time(1000))
    assert expiry == Expiry(
        0, "no heartbeat for 10 s (time-out 10 s)", "heartbeat", None, beaten, 10, int(signal.SIGTERM)
    )
    node.ranks[0].beat()
    assert node.pass_time(1000) == []
    assert node.watch.deadline is None


def test_how_long_a_rank_has_given_no_sign_of_life_is_known_of_each_watched_one() -> None:
    node = Node(Timeouts(hang_s=10))
    node.pass_time(4)
    node.ranks[0].beat()
    node.pass_time(2)
    assert node.watch.quiet_s(0, node.now) == 2
    node.watch.sign_of_life(0, node.now)  # its output grew
    node.pass_time(1)
    assert node.watch.quiet_s(0, node.now) == 1
    assert node.watch.quiet_s(7, node.now) is None


def test_beats_do_not_wake_the_agent() -> None:
    node = Node(Timeouts(heartbeat_s=10))
    for _ in range(10000):
        node.ranks[0].beat()
        assert node.pass_time(1 / 64) == []
    assert node.looks < 20


def test_the_first_heartbeat_is_waited_for_only_if_that_was_asked() -> None:
    node = Node(Timeouts(initial_s=60, heartbeat_s=10))
    began = node.now
    expiry = one(node.pass_time(100))
    assert (expiry.kind, expiry.since_s, expiry.allowed_s) == ("initial", began, 60)
    assert expiry.what == "no first heartbeat 1 min after its start (time-out 1 min)"


def test_a_rank_that_died_before_its_first_heartbeat_leaves_no_trace_in_the_next_round() -> None:
    node = Node(Timeouts(initial_s=60, heartbeat_s=10, out_of_section_s=20))
    node.pass_time(50)
    node.watch.end(0)
    assert node.watch.deadline is None
    node.watch.clear()
    node.begin(0)
    assert node.pass_time(59) == []
    node.ranks[0].beat()
    assert one(node.pass_time(60)).kind == "heartbeat"


def test_a_mark_that_an_earlier_worker_left_counts_from_the_start_of_this_one() -> None:
    node = Node(Timeouts(heartbeat_s=10))
    node.ranks[0].beat()
    node.ranks[0].section("data").start()
    node.ranks[0].own("data", 7)
    node.watch.end(0)
    node.pass_time(500)
    node.watch.begin(0, node.now)
    began = node.now
    assert one(node.pass_time(20)).since_s == began


def test_each_open_section_counts_and_the_outer_one_expires() -> None:
    node = Node(Timeouts(sections={"epoch": 60, "data": 5}))
    rank = node.ranks[0]
    rank.section("epoch").start()
    opened = node.now
    while node.now < opened + 59:
        rank.section("data").start()
        assert node.pass_time(1) == []
        rank.section("data").end()
    expiry = one(node.pass_time(5))
    assert (expiry.kind, expiry.name, expiry.since_s) == ("section", "epoch", opened)
    assert expiry.what == "section 'epoch' open for 1 min (time-out 1 min)"


def test_a_section_that_was_closed_and_opened_between_two_reads_counts_from_its_new_opening() -> None:
    node = Node(Timeouts(sections={"data": 60}))
    node.ranks[0].section("data").start()
    node.pass_time(50)
    node.ranks[0].section("data").end()
    node.ranks[0].section("data").start()
    reopened = node.now
    assert node.pass_time(59) == []
    assert one(node.pass_time(2)).since_s == reopened


def test_a_long_section_is_not_ended_while_it_is_allowed() -> None:
    node = Node(Timeouts(sections={"checkpoint": 3600}, hang_s=60, out_of_section_s=30))
    node.ranks[0].section("checkpoint").start()
    assert node.pass_time(3599) == []
    node.ranks[0].section("checkpoint").end()
    assert one(node.pass_time(100)).kind == "out-of-section"


def test_out_of_section_counts_only_after_the_first_and_with_none_open() -> None:
    node = Node(Timeouts(out_of_section_s=30))
    rank = node.ranks[0]
    assert node.pass_time(100) == []
    rank.section("a").start()
    rank.section("b").start()
    assert node.pass_time(100) == []
    rank.section("a").end()
    assert node.pass_time(100) == []
    rank.section("b").end()
    closed = node.now
    expiry = one(node.pass_time(100))
    assert (expiry.what, expiry.since_s) == ("out of any section for 30 s (time-out 30 s)", closed)


def test_a_section_without_a_slot_still_is_one() -> None:
    node = Node(Timeouts(out_of_section_s=30))
    rank = node.ranks[0]
    with rank.section("a"):
        pass
    unlisted = rank.book.unlisted("the 45th")
    with unlisted:
        assert node.pass_time(100) == []
    assert one(node.pass_time(100)).kind == "out-of-section"


def test_a_section_has_its_own_timeout_from_when_the_agent_reads_it() -> None:
    node = Node(Timeouts(heartbeat_s=1000))
    node.pass_time(10)
    node.ranks[0].own("data", 2)
    node.send("timeouts")
    node.ranks[0].section("data").start()
    opened = node.now
    expiry = one(node.pass_time(10))
    assert (expiry.name, expiry.since_s, expiry.allowed_s) == ("data", opened, 2)


def test_own_timeouts_hold_before_those_of_all_ranks() -> None:
    node = Node(Timeouts(heartbeat_s=10, sections={"data": 5}, out_of_section_s=5, initial_s=7))
    rank = node.ranks[0]
    rank.words[heartbeat_page.OWN_HEARTBEAT] = heartbeat_page.encode_timeout(100)
    rank.words[heartbeat_page.OWN_OUT] = rank.words[heartbeat_page.OWN_INITIAL] = heartbeat_page.OFF
    rank.own("data", math.inf)
    assert node.pass_time(50) == []
    rank.beat()
    rank.section("data").start()
    node.pass_time(90)
    rank.section("data").end()
    assert one(node.pass_time(100)).allowed_s == 100


@pytest.mark.parametrize(("first", "then", "expected"), [(100, 10, 40), (100, 60, 60), (100, 1000, 1000), (60, 60, 60)])
def test_timeouts_change_while_they_run(first: float, then: float, expected: float) -> None:
    node = Node(Timeouts(heartbeat_s=first))
    node.ranks[0].beat()
    beaten = node.now
    node.pass_time(40)
    node.watch.update(Timeouts(heartbeat_s=then))
    one(node.pass_time(0) or node.pass_time(expected - 40))
    assert node.now - beaten == expected


def test_a_watch_that_was_switched_on_later_counts_what_runs_already() -> None:
    node = Node(Timeouts())
    node.ranks[0].section("data").start()
    opened = node.now
    assert node.watch.deadline is not None  # the first look
    assert node.pass_time(50) == []
    assert node.watch.deadline is None
    node.watch.update(Timeouts(sections={"data": 60}))
    expiry = one(node.pass_time(100))
    assert expiry.since_s == opened
    assert "1 min" in expiry.what


def test_warming_up_the_first_steps_get_longer() -> None:
    node = Node(Timeouts(heartbeat_s=5, sections={"data": 5}, warmup_steps=2, warmup_s=60))
    rank = node.ranks[0]
    for _ in range(2):
        rank.beat()
        rank.section("data").start()
        assert node.pass_time(50) == []
        rank.section("data").end()
    rank.beat()
    last = node.now
    assert one(node.pass_time(100)).since_s == last
    assert node.watch.longest().completed == Spans(0.0)


def test_after_the_warm_up_the_short_timeout_holds_at_once() -> None:
    node = Node(Timeouts(heartbeat_s=1, warmup_steps=3, warmup_s=600))
    for _ in range(4):
        node.ranks[0].beat()
        node.pass_time(0.5)
    assert one(node.pass_time(0.5)).allowed_s == 1


def test_silence_is_broken_by_any_sign_of_life() -> None:
    node = Node(Timeouts(hang_s=60))
    rank = node.ranks[0]
    signs: list[Callable[[], object]] = [
        lambda: rank.step(1),
        rank.beat,
        rank.section("a").start,
        rank.section("a").end,
        lambda: node.watch.sign_of_life(0, node.now),
        lambda: node.timer(1000),
        lambda: node.timer(None),
    ]
    for sign in signs:
        assert node.pass_time(59) == []
        sign()
    silent = node.now
    expiry = one(node.pass_time(1000))
    assert (expiry.kind, expiry.since_s, expiry.what) == (
        "silence",
        silent,
        "no sign of life for 1 min (time-out 1 min)",
    )


def test_a_rank_that_does_nothing_from_its_start_is_silent() -> None:
    node = Node(Timeouts(hang_s=60))
    node.lost_marks.add(0)
    began = node.now
    assert one(node.pass_time(100)).since_s == began


def test_a_finished_rank_is_watched_no_more_but_its_timers_are() -> None:
    node = Node(Timeouts(initial_s=10, heartbeat_s=10, out_of_section_s=10, sections={"data": 10}, hang_s=10))
    rank = node.ranks[0]
    rank.beat()
    rank.section("data").start()
    rank.words[heartbeat_page.FINISHED] = 1
    assert node.send("finished") == Note(0, "has finished")
    assert node.pass_time(1000) == []
    node.timer(5)
    assert one(node.pass_time(10)).kind == "timer"


def test_of_several_that_expire_the_first_is_given() -> None:
    node = Node(Timeouts(heartbeat_s=10, sections={"data": 4}, hang_s=20), ranks=2)
    node.ranks[0].beat()
    node.ranks[0].section("data").start()
    node.timer(3, pid=101)
    node.ticks += 100 * 512  # the agent was late
    expiries = node.look()
    assert [(e.local_rank, e.kind) for e in expiries] == [(1, "timer"), (0, "section")]


def test_a_mark_that_vanishes_ends_no_rank() -> None:
    node = Node(Timeouts(heartbeat_s=10, hang_s=10))
    node.ranks[0].beat()
    node.pass_time(5)
    node.lost_marks.add(0)
    assert node.pass_time(100) == []
    assert node.watch.counts["unreadable"] == 1
    node.lost_marks.clear()
    assert one(node.pass_time(20)).kind in ("heartbeat", "silence")


def test_impossible_times_in_a_page_have_no_effect() -> None:
    node = Node(Timeouts(heartbeat_s=10, out_of_section_s=10, sections={"data": 10}, hang_s=10))
    rank = node.ranks[0]
    rank.section("data")
    for at in (
        heartbeat_page.BEAT_LAST,
        heartbeat_page.SECTION_NS,
        heartbeat_page.SLOT_0 + heartbeat_page.OPENED,
        heartbeat_page.STEP_NS,
    ):
        rank.words[at] = 2**62
    rank.words[heartbeat_page.BEATS] = 1
    assert node.pass_time(100) == []


def test_after_the_agent_itself_was_stopped_the_ranks_begin_anew() -> None:
    node = Node(Timeouts(heartbeat_s=10, sections={"data": 20}, out_of_section_s=10, initial_s=10, hang_s=30), ranks=2)
    node.ranks[0].beat()
    node.ranks[0].section("data").start()
    node.timer(15)
    node.ticks += 3600 * 512
    node.watch.forgive(node.now)
    assert node.pass_time(9.5) == []
    node.ranks[0].beat()
    node.ranks[1].beat()
    resumed = node.now
    expiry = node.pass_time(6)[0]
    assert (expiry.kind, expiry.since_s) == ("timer", resumed - 9.5)


# torch's timers


def test_a_timer_expires_with_its_signal_and_ends_all_else() -> None:
    node = Node(Timeouts(heartbeat_s=10))
    node.ranks[0].beat()
    node.timer(4, sig=15)
    expiry = one(node.pass_time(100))
    assert expiry == Expiry(0, "timer 'batch' expired, 4 s after it was armed", "timer", "batch", START / 512, 4.0, 15)
    assert node.watch.deadline is None


def test_a_released_timer_never_expires() -> None:
    node = Node(Timeouts())
    node.timer(4)
    node.pass_time(3)
    node.timer(None)
    assert node.pass_time(100) == []


def test_a_release_that_was_written_in_time_counts_before_the_timer_expires() -> None:
    node = Node(Timeouts())
    node.timer(4)
    node.ticks += 10 * 512  # the agent is late, but hears before it asks what is due
    node.timer(None)
    assert node.look() == []


def test_nested_scopes_expire_each_for_itself() -> None:
    node = Node(Timeouts())
    node.timer(10, "outer")
    node.timer(2, "inner")
    node.pass_time(1)
    node.timer(None, "inner")
    assert one(node.pass_time(100)).name == "outer"


@pytest.mark.parametrize(("again", "expected"), [(20, 25), (1, 6)])
def test_a_timer_that_is_armed_again_counts_anew(again: float, expected: float) -> None:
    node = Node(Timeouts())
    node.timer(10)
    node.pass_time(5)
    node.timer(again)
    one(node.pass_time(again))
    assert node.now - START / 512 == expected


def test_a_timer_without_a_signal_only_reports_once() -> None:
    node = Node(Timeouts(heartbeat_s=10))
    node.ranks[0].beat()
    node.timer(4, sig=0)
    node.timer(5, "b", sig=-1)
    assert [(e.kind, e.signal) for e in node.pass_time(100)] == [("timer", 0), ("timer", 0), ("heartbeat", 15)]


def test_a_clock_that_is_set_after_arming_does_not_matter() -> None:
    node = Node(Timeouts())
    node.timer(10)
    node.timer(20, "other")
    release = {"version": 1, "pid": 100, "scope_id": "other", "expiration_time": -1, "signal": 0}
    node.hear(json.dumps(release).encode(), wall=1.0)
    assert node.pass_time(9.9) == []
    one(node.pass_time(0.1))


def test_a_timer_that_has_expired_already_expires_at_once() -> None:
    node = Node(Timeouts())
    node.timer(-100)
    assert one(node.pass_time(0)).allowed_s == 0


def test_a_timer_of_a_process_below_the_worker_is_the_ranks() -> None:
    node = Node(Timeouts())
    node.owners[777] = 0
    node.timer(4, pid=777)
    assert one(node.pass_time(10)).local_rank == 0


def test_a_timer_of_a_process_that_is_gone_ends_no_rank() -> None:
    node = Node(Timeouts())
    node.owners[777] = 0
    node.timer(4, pid=777)
    del node.owners[777]
    assert node.pass_time(10) == []
    assert node.watch.counts["gone"] == 1


def test_strangers_are_counted_ignored_and_named_once() -> None:
    node = Node(Timeouts())
    note = node.timer(1, pid=31337)
    assert note is not None
    assert note.text.startswith("process 31337 is no worker")
    assert node.timer(1, pid=31338) is None
    assert node.hear(encode(ClientMessage("misuse", 1, 100, "x", "y")).strip()) is None  # another rank's name on it
    assert node.pass_time(10) == []
    assert node.watch.counts["stranger"] == 3


def test_lines_for_a_rank_that_has_ended_are_counted_only() -> None:
    node = Node(Timeouts())
    node.watch.end(0)
    assert node.timer(1) is None
    assert node.pass_time(10) == []
    assert node.watch.counts["late"] == 1


def test_timers_do_not_outlive_their_round() -> None:
    node = Node(Timeouts())
    node.timer(10)
    node.watch.clear()
    node.begin(0)
    assert node.pass_time(100) == []


def test_timers_without_end_do_not_fill_the_memory() -> None:
    node = Node(Timeouts(), ranks=2)
    notes = [node.timer(1000, f"scope {i}") for i in range(MAX_TIMERS + 5)]
    assert sum(note is not None for note in notes) == 1
    assert node.watch.counts["timers"] == 5
    node.timer(5, pid=101)
    assert one(node.pass_time(10)).local_rank == 1


# Notes, counts and what is learned


def test_garbage_is_counted_and_reported_once() -> None:
    node = Node(Timeouts())
    assert node.hear(b"hello") == Note(
        None, "no message: expected a JSON object, found b'hello'; more such lines are only counted"
    )
    assert node.hear(b"{}") is None
    assert node.watch.counts["garbage"] == 2


def test_a_misuse_is_reported_once_for_each_section_and_round() -> None:
    node = Node(Timeouts())
    assert node.send("misuse", what="opened twice", name="da\nta") == Note(0, "opened twice: 'da\\nta'")
    assert node.send("misuse", what="opened twice", name="da\nta") is None
    assert node.send("misuse", what="too many") == Note(0, "too many")
    assert node.watch.counts["misuse"] == 3
    node.watch.clear()
    node.begin(0)
    assert node.send("misuse", what="too many") is not None


def test_dropped_messages_are_counted_in_the_page() -> None:
    node = Node(Timeouts(heartbeat_s=10))
    node.ranks[0].words[heartbeat_page.DROPPED] = 3
    node.pass_time(15)
    node.ranks[0].words[heartbeat_page.DROPPED] = 4
    node.pass_time(15)
    assert node.watch.counts["dropped"] == 4


def test_the_longest_intervals_are_those_of_all_ranks_that_ended_or_run() -> None:
    node = Node(Timeouts(heartbeat_s=50), ranks=2)
    for wait in (10, 20, 5):
        node.pass_time(wait)
        node.ranks[0].beat()
    with node.ranks[1].section("data"):
        node.pass_time(7)
    node.pass_time(3)
    with node.ranks[1].section("data"):
        node.pass_time(1)
    node.watch.end(0)
    longest = node.watch.longest()
    assert longest.completed == Spans(10.0, 20.0, {"data": 7.0}, 3.0)
    assert (longest.cut, longest.silent) == (Spans(), 1)
    node.watch.clear()
    assert node.watch.longest().completed == Spans()


def test_an_expired_timeout_is_known_as_cut() -> None:
    node = Node(Timeouts(heartbeat_s=30))
    node.ranks[0].beat()
    one(node.pass_time(100))
    longest = node.watch.longest()
    assert (longest.completed, longest.cut) == (Spans(0.0), Spans(heartbeat_s=30))


def test_a_rank_without_a_page_has_nothing_to_read() -> None:
    assert next_expiry(None, Timeouts(), Life(0, 0, 0), 5) == (None, None)
    assert next_expiry(None, Timeouts(heartbeat_s=3), Life(0, 0, 0), 5) == (None, 8)
    idle = next(intervals(None, Timeouts(heartbeat_s=3), Life(0, 0, 0), 5))
    with pytest.raises(ValueError, match="idle"):
        describe(idle, 5)


# Random histories against a naive oracle


class Oracle:
    """Knows a rank's history as it happened, and checks every tick."""

    def __init__(self, timeouts: Timeouts, now: float) -> None:
        self.timeouts = timeouts
        self.began = now
        self.sign = now
        self.beats: list[float] = []
        self.open: dict[str, float] = {}
        self.opens: dict[str, int] = {}
        self.own: dict[str, float] = {}
        self.closed: float | None = None
        self.timers: dict[str, tuple[float, int]] = {}
        self.finished = self.over = False

    def running(self) -> Iterator[tuple[float, str, str | None, int]]:
        t = self.timeouts
        for scope, (deadline, sig) in self.timers.items():
            yield deadline, "timer", scope, sig
        if self.finished:
            return
        if t.initial_s is not None and not self.beats:
            yield self.began + t.initial_s, "initial", None, 15
        if t.heartbeat_s is not None and self.beats:
            warm = len(self.beats) <= t.warmup_steps
            yield self.beats[-1] + max(t.heartbeat_s, t.warmup_s if warm else 0), "heartbeat", None, 15
        covered = False
        for name, opened in self.open.items():
            allowed = self.own.get(name, t.sections.get(name))
            if allowed is not None:
                covered = True
                warm = self.opens[name] <= t.warmup_steps
                yield opened + max(allowed, t.warmup_s if warm else 0), "section", name, 15
        if t.out_of_section_s is not None and not self.open and self.closed is not None:
            yield self.closed + t.out_of_section_s, "out-of-section", None, 15
        if t.hang_s is not None and not covered:
            yield self.sign + t.hang_s, "silence", None, 15

    def due(self, now: float) -> set[tuple[float, str, str | None, int]]:
        """All that has expired, up to the first that ends the rank."""
        if self.over:
            return set()
        expired = {item for item in self.running() if item[0] <= now}
        ends = min((item[0] for item in expired if item[3]), default=math.inf)
        self.over = ends < math.inf
        for item in expired:
            if item[1] == "timer":
                del self.timers[str(item[2])]
        return {item for item in expired if item[0] <= ends}


def random_timeouts(rng: random.Random) -> Timeouts:
    def some(low: int = 3) -> float | None:
        return rng.randint(low, 60) / 512 if rng.random() < 0.6 else None

    names = rng.sample(["a", "b", "c"], rng.randint(0, 3))
    return Timeouts(
        initial_s=some(20),
        heartbeat_s=some(),
        sections={name: rng.randint(3, 60) / 512 for name in names},
        out_of_section_s=some(),
        warmup_steps=rng.choice([0, 0, 1, 3]),
        warmup_s=rng.choice([0, 40 / 512]),
        hang_s=some(30),
    )


def act(rng: random.Random, node: Node, local_rank: int, oracle: Oracle, rate: float) -> None:
    rank, now = node.ranks[local_rank], node.now
    if rng.random() > rate:
        return
    choice = rng.choice(
        ["beat", "beat", "step", "open", "open", "close", "close", "timer", "timer", "own", "sign", "end"]
    )
    name = rng.choice("abcd")
    misused = (choice == "open" and name in oracle.open) or (choice == "close" and name not in oracle.open)
    if choice != "end" and not misused:
        oracle.sign = now
    if choice == "beat":
        rank.beat()
        oracle.beats.append(now)
    elif choice == "step":
        rank.step(1)
    elif choice == "open":
        rank.section(name).start()
        if name not in oracle.open:
            oracle.open[name] = now
            oracle.opens[name] = oracle.opens.get(name, 0) + 1
    elif choice == "close":
        rank.section(name).end()
        if oracle.open.pop(name, None) is not None and not oracle.open:
            oracle.closed = now
    elif choice == "timer":
        after, sig = rng.choice([(None, 0), (rng.randint(0, 40), 9), (rng.randint(0, 40), 0)])
        node.timer(None if after is None else after / 512, name, sig, rank.pid)
        if after is None:
            oracle.timers.pop(name, None)
        elif not oracle.over:
            oracle.timers[name] = (now + after / 512, sig)
    elif choice == "own":
        seconds = rng.randint(3, 60) / 512
        rank.own(name, seconds)
        node.send("timeouts", local_rank)
        oracle.own[name] = heartbeat_page.encode_timeout(seconds) / 1e9
    elif choice == "sign":
        node.watch.sign_of_life(local_rank, now)
    elif rng.random() < 0.05:
        rank.words[heartbeat_page.FINISHED] = 1
        oracle.finished = True


def history(seed: str) -> int:
    """Play one random history; return how many expired."""
    rng = random.Random(seed)
    timeouts = random_timeouts(rng)
    node = Node(timeouts, ranks=2)
    oracles = {local_rank: Oracle(timeouts, node.now) for local_rank in node.ranks}
    rate, expired = rng.choice([0.02, 0.1, 0.4]), 0
    for _ in range(400):
        node.ticks += 1
        for local_rank, oracle in oracles.items():
            act(rng, node, local_rank, oracle, rate)
        if rng.random() < 0.01:
            timeouts = replace(random_timeouts(rng), warmup_steps=timeouts.warmup_steps)
            node.watch.update(timeouts)
            for oracle in oracles.values():
                oracle.timeouts = timeouts
        given = node.look()
        expired += len(given)
        for local_rank, oracle in oracles.items():
            expected = oracle.due(node.now)
            mine = [e for e in given if e.local_rank == local_rank]
            found = {(e.since_s + e.allowed_s, e.kind, e.name, e.signal) for e in mine}
            # Of those with one deadline the watch gives one that ends the rank.
            assert found <= expected, (seed, node.ticks - START, found, expected)
            last = max((i[0] for i in expected), default=None)
            assert max((i[0] for i in found), default=None) == last, (seed, node.ticks - START, found, expected)
            assert any(i[3] for i in found) == any(i[3] for i in expected), (seed, found, expected)
            assert len({(e.kind, e.name) for e in mine}) == len(mine)
        if rng.random() < 0.005:
            local_rank = rng.choice([0, 1])
            node.watch.end(local_rank)
            node.begin(local_rank)
            oracles[local_rank] = Oracle(timeouts, node.now)
    return expired


def test_random_histories_expire_to_the_tick_as_by_a_naive_oracle() -> None:
    base = os.environ.get("FTSLURM_WATCH_SEED") or str(random.randrange(10**9))
    print(f"FTSLURM_WATCH_SEED={base}")
    number = int(os.environ.get("FTSLURM_WATCH_HISTORIES", "150"))
    assert sum(history(f"{base}.{i}") for i in range(number)) > number // 2


def test_time_that_a_rank_waited_within_ftslurm_counts_for_nothing_that_is_watched() -> None:
    times = Timeouts(initial_s=50, heartbeat_s=10, sections={"save": 10}, out_of_section_s=10, hang_s=10)
    rank = Rank(Node(times), 1)
    for prepare in (lambda: None, rank.beat, rank.section("save").start, rank.section("save").end):
        prepare()
        rank.words[heartbeat_page.EXCUSED_NS] = 0
        before = heartbeat_page.decode(bytes(rank.page))
        rank.words[heartbeat_page.EXCUSED_NS] = (START // 512 + 60) * 10**9
        waited = heartbeat_page.decode(bytes(rank.page))
        life = Life(START / 512, START / 512, START / 512)
        assert next_expiry(before, times, life, START / 512 + 60)[0] is not None
        assert next_expiry(waited, times, life, START / 512 + 60)[0] is None
        assert next_expiry(waited, times, life, START / 512 + 120)[0] is not None


def test_an_optimizer_that_stops_stepping_expires_like_heartbeats_but_not_in_a_section() -> None:
    node = Node(Timeouts(heartbeat_s=10))
    rank = node.ranks[0]
    rank.words[heartbeat_page.AUTOMATIC] = 1
    rank.step(1)
    rank.beat()
    # The script says that this takes time, and for how long is not known.
    rank.section("evaluation").start()
    assert node.pass_time(1000) == []
    rank.section("evaluation").end()
    ended = node.now
    assert node.pass_time(9.5) == []
    expiry = one(node.pass_time(1))
    assert (expiry.what, expiry.since_s) == ("no optimizer step for 10 s (time-out 10 s)", ended)


def test_steps_of_an_optimizer_teach_how_long_one_takes_but_not_how_long_a_start_does() -> None:
    node = Node(Timeouts(heartbeat_s=100))
    rank = node.ranks[0]
    rank.words[heartbeat_page.AUTOMATIC] = 1
    for pause in (5, 40):
        rank.step(1)
        rank.beat()
        node.pass_time(pause)
    rank.beat()
    found = node.watch.longest()
    assert (found.completed.initial_s, found.completed.heartbeat_s) == (None, 40)
    assert (found.silent, found.automatic) == (0, 1)


def test_what_is_withdrawn_leaves_a_page_of_a_rank_that_never_reported() -> None:
    node = Node(Timeouts(heartbeat_s=10))
    rank, fresh = node.ranks[0], Rank(node, 100)
    rank.words[heartbeat_page.AUTOMATIC] = 1
    for number in range(5):
        rank.step(number)
        rank.beat()
        node.pass_time(1)
    heartbeat_page.withdraw_automatic(rank.words)
    found, expected = (heartbeat_page.decode(bytes(each.page)) for each in (rank, fresh))
    assert found is not None and found == expected
    assert node.pass_time(1000) == []
