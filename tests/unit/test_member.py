"""Members on one filesystem in memory, with a clock that stands still: they form rounds, and survive each other."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from member_cluster import PACE, RUN, TIMING, Cluster, side_by_side, three

from ftslurm.monitor.timeouts import Longest
from ftslurm.records.node import RankVitals, Vitals
from ftslurm.records.state import CLOSED, FAILED, FORMING, LEFT, READY, RUNNING, SUCCEEDED, Failure
from ftslurm.rendezvous.abandonment import RunInUse
from ftslurm.rendezvous.member import FencedOut, NodeRefused
from ftslurm.rendezvous.pace import WAKE_S, Pace
from ftslurm.testing.memoryfs import AFTER, BEFORE, Hook, Operation


@pytest.mark.parametrize("count", [1, 2, 3])
def test_members_form_a_round_as_soon_as_the_last_one_has_come(count: int) -> None:
    names = tuple(f"n{i + 1}" for i in range(count))
    cluster = Cluster().add(*names)
    state = cluster.running(1)
    assert [p.node for p in state.participants] == list(names)
    assert all(view.state == state for view in cluster.views.values())
    assert [view.coordinating for view in cluster.views.values()].count(True) == 1
    assert state.coordinator.term == 1


def test_a_member_that_starts_late_follows_what_is_there() -> None:
    cluster = Cluster().add("n1", "n2", low=2, expected=("n1", "n2", "n3"))
    cluster.go(31)
    assert cluster.state().round == 1
    cluster.add("n3", low=2, expected=("n1", "n2", "n3"))
    cluster.go(5)
    assert cluster.state().round == 1
    assert cluster.views["n3"].state == cluster.state()


def test_a_round_ends_in_success_and_all_members_read_it() -> None:
    cluster = three()
    for name in cluster.members:
        cluster.publish(name, status=SUCCEEDED)
    cluster.until(lambda state: state.phase == CLOSED)
    cluster.tick()
    assert all(view.state.closed.exit_code == 0 for view in cluster.views.values())


def test_a_failure_leads_to_the_next_round_on_all_nodes() -> None:
    cluster = three()
    cluster.publish("n2", status=FAILED, failure=Failure(1, "n2", 2, 0, 5, "exit", 1, None, "exit code 1", None))
    state = cluster.running(2)
    assert (state.restarts_used, state.history[0].failure.rank) == (1, 2)


def test_a_records_counter_grows_with_every_write() -> None:
    cluster = Cluster().add("n1")
    base = cluster.members["n1"].record
    counters = []
    for round_ in range(5):
        cluster.members["n1"].publish(replace(base, round=round_))
        cluster.members["n1"].tick()
        counters.append(cluster.record("n1").counter)
        cluster.clock.advance(1.0)
        cluster.members["n1"].tick()
        counters.append(cluster.record("n1").counter)
    assert counters == sorted(set(counters))


def test_a_record_is_written_only_when_it_changes_and_with_every_heartbeat() -> None:
    writings = []
    hook: Hook = lambda when, op: writings.append(op.path) if (when, op.name) == (BEFORE, "rename") else None  # noqa: E731
    cluster = Cluster().add("n1", hook=hook)
    cluster.go(10, step=0.1)
    written = [path for path in writings if path == RUN.node_file("n1")]
    assert 10 <= len(written) <= 13


# The lease


def test_when_the_coordinator_dies_the_next_in_line_takes_the_lease_and_the_job_goes_on() -> None:
    cluster = three()
    dead = cluster.coordinator()
    rest = [name for name in cluster.members if name != dead]
    cluster.go(7.5, *rest)
    assert cluster.coordinator() == dead
    state = cluster.running(2, *rest)
    assert state.coordinator.node == rest[0]
    assert state.coordinator.term == 2
    assert [gone.node for gone in state.lost] == [dead]
    assert [p.node for p in state.participants] == rest


def test_a_coordinator_that_leaves_hands_over_before_it_goes() -> None:
    cluster = three()
    gone = cluster.coordinator()
    rest = [name for name in cluster.members if name != gone]
    cluster.publish(gone, status=LEFT, reason="SIGTERM from outside")
    cluster.members[gone].tick()
    assert cluster.coordinator() in rest


def test_a_dead_coordinator_that_its_guardian_marks_as_left_is_succeeded_after_one_heartbeat() -> None:
    cluster = three()
    gone = cluster.coordinator()
    rest = [name for name in cluster.members if name != gone]
    cluster.publish(gone, status=LEFT, reason="its agent was killed by SIGKILL")
    cluster.members[gone]._publish_record()
    cluster.go(1.1, *rest)
    assert cluster.coordinator() in rest


def test_a_node_that_asks_for_something_else_than_the_run_is_refused_with_both_values() -> None:
    cluster = Cluster().add("n1", "n2")
    cluster.running(1)
    cluster.add("n3", expected=("n1", "n2", "n3"))
    with pytest.raises(NodeRefused, match="--nnodes 3:3 here, 2:2 in the run"):
        cluster.members["n3"].tick()
    assert cluster.record("n3").status == LEFT
    assert "3:3" in (cluster.record("n3").reason or "")


def test_a_sleeping_coordinator_that_wakes_up_can_change_nothing() -> None:
    cluster = three()
    sleeper = cluster.coordinator()
    rest = [name for name in cluster.members if name != sleeper]
    cluster.running(2, *rest)
    before = cluster.state()
    # It acts at once on what it believed when it fell asleep: everybody has left.
    member = cluster.members[sleeper]
    assert member._coordinating()
    member._set(replace(member._state, phase=CLOSED))  # type: ignore[type-var]
    assert cluster.state() == before
    view = member.tick()
    assert view.coordinating is False
    assert f"lost the coordinator lease to {cluster.coordinator()}" in view.notes[0]
    assert cluster.views[rest[0]].state == before


def test_a_coordinator_that_sleeps_between_reading_and_writing_loses_to_its_successor() -> None:
    asleep: list[Callable[[], None]] = []

    def hook(when: str, operation: Operation) -> None:
        if asleep and when == BEFORE and operation.name == "link":
            asleep.pop()()

    cluster = Cluster().add("n1", low=2, expected=("n1", "n2", "n3"), hook=hook)
    cluster.add("n2", "n3", low=2, expected=("n1", "n2", "n3"))
    cluster.running(1)
    assert cluster.coordinator() == "n1"
    asleep.append(partial(cluster.running, 2, "n2", "n3"))
    cluster.publish("n1", status=FAILED, failure=Failure(1, "n1", 0, 0, 5, "exit", 1, None, "exit code 1", None))
    view = cluster.tick("n1")
    assert view.coordinating is False
    assert view.state == cluster.state()
    assert (cluster.coordinator(), cluster.state().round) == ("n2", 2)


def test_members_that_all_see_a_dead_coordinator_give_the_lease_to_one() -> None:
    cluster = Cluster().add("n1", "n2", "n3", expected=("n1", "n2", "n3", "n4"))
    cluster.tick()
    cluster.go(12, "n2", "n3")
    assert cluster.state().coordinator.term == 2
    assert [cluster.views[name].coordinating for name in ("n2", "n3")].count(True) == 1


def test_a_new_holder_of_the_lease_is_not_silent_because_of_its_earlier_silence() -> None:
    unreadable: list[str] = []

    def hook(when: str, operation: Operation) -> None:
        if operation.name == "read" and operation.path in unreadable and when == BEFORE:
            raise OSError(errno.EIO, "cannot be read", operation.path)

    cluster = Cluster().add("n1", low=1, expected=("n1", "n2"), hook=hook)
    cluster.add("n2", low=1, expected=("n1", "n2"))
    cluster.running(1)
    assert cluster.coordinator() == "n1"
    cluster.running(2, "n1")
    cluster.go(60, "n1")
    cluster.go(20, "n2")
    assert cluster.coordinator() == "n2", "n1 is stopped now, and n2 runs again"
    unreadable.append(RUN.node_file("n2"))
    cluster.tick("n1")
    assert cluster.coordinator() == "n2"


def test_a_node_that_has_left_takes_no_lease() -> None:
    cluster = Cluster().add("n1", "n2")
    cluster.running(1)
    cluster.publish("n2", status=LEFT, reason="SIGTERM from outside", stop_signal="SIGTERM")
    cluster.go(20, "n2")
    assert cluster.coordinator() == "n1"


def test_a_node_stopped_long_ago_does_not_shorten_the_wait_for_another() -> None:
    cluster = Cluster().add("n1", "n2", "n3", "n4", low=2)
    cluster.running(1)
    cluster.publish("n4", status=LEFT, reason="SIGTERM from outside", stop_signal="SIGTERM")
    cluster.running(2, "n1", "n2", "n3")
    cluster.publish("n3", reason="SIGTERM from outside", stop_signal="SIGTERM")
    cluster.go(1.5, "n1", "n2", "n3")
    assert cluster.state().phase == RUNNING, "the others may get the signal too"
    cluster.publish("n1", reason="SIGTERM from outside", stop_signal="SIGTERM")
    cluster.publish("n2", reason="SIGTERM from outside", stop_signal="SIGTERM")
    cluster.go(1, "n1", "n2", "n3")
    assert cluster.state().closed.outcome == "stopped"


# A filesystem that does not do its part


def test_a_filesystem_that_stalls_on_all_nodes_makes_no_node_lost() -> None:
    stalled: list[float] = []
    cluster = Cluster()

    def hook(when: str, operation: Operation) -> None:
        if stalled and when == BEFORE:
            cluster.clock.advance(stalled.pop())

    cluster.add("n1", "n2", "n3", low=2, hook=hook)
    cluster.running(1)
    for position in range(12):
        # Every call of the tick hangs once, for longer than the timeout, and no node can write meanwhile.
        stalled[:] = [0.0] * position + [120.0]
        cluster.tick()
        stalled.clear()
        cluster.go(2)
    assert (cluster.state().round, cluster.state().phase, cluster.state().lost) == (1, RUNNING, ())
    assert cluster.state().coordinator.term == 1


def test_a_member_whose_every_call_is_slow_is_not_lost_while_it_gets_through() -> None:
    cluster = Cluster()

    def slow(when: str, operation: Operation) -> None:
        if when == BEFORE:
            cluster.clock.advance(0.3)

    cluster.add("n1", "n2", low=2, hook=slow)
    cluster.running(1)
    cluster.go(60)
    assert (cluster.state().round, cluster.state().lost) == (1, ())


def test_with_sporadic_errors_the_round_forms_and_no_node_is_lost() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        cluster = Cluster()

        def hook(when: str, operation: Operation, rng: random.Random = rng) -> None:
            if rng.random() < 0.03:
                raise OSError(rng.choice([errno.EIO, errno.ESTALE, errno.ETIMEDOUT]), when)

        cluster.add("n1", "n2", "n3", hook=hook)
        for _ in range(200):
            for name in cluster.members:
                try:
                    cluster.tick(name)
                except OSError:
                    pass
            cluster.clock.advance(0.25)
        state = cluster.state()
        assert (state.phase, state.round, state.lost) == (RUNNING, 1, ()), f"seed {seed}: {state}"
        assert state.coordinator.term == 1, f"seed {seed}"


def test_a_lost_reply_to_the_coordinators_writing_is_noticed_at_the_next_tick() -> None:
    def lose(when: str, operation: Operation) -> None:
        if operation.name == "link" and when == AFTER:
            left.append(1)
        if left and len(left) < 5:
            left.append(1)
            raise OSError(errno.EIO, "the reply was lost")

    left: list[int] = []
    cluster = Cluster().add("n1", hook=lose)
    with pytest.raises(OSError, match="lost"):
        cluster.tick()
    assert cluster.tick().coordinating is True
    assert cluster.state().coordinator.term == 1


@pytest.mark.parametrize("data", [b"", b"{", b"\xff" * 10, b'{"schema":"ftslurm/node","version":9}', b"x" * (2 << 20)])
def test_a_broken_file_among_the_nodes_is_named_and_stops_nothing(data: bytes) -> None:
    cluster = Cluster()
    cluster.fs.create(RUN.node_file("odd"), data, durable=False)
    cluster.add("n1", "n2")
    cluster.running(1)
    coordinator = cluster.coordinator()
    assert "odd.json" in "".join(cluster.views[coordinator].notes)


def test_a_node_that_a_stale_listing_lacks_is_found_by_its_name() -> None:
    cluster = Cluster().add("n1", "n2")
    cluster.tick("n1")
    coordinator = cluster.members["n1"]
    coordinator._fs.listdir = lambda path: ["n1.json"]  # type: ignore[method-assign]
    assert cluster.running(1).world_size == 4


def test_a_record_that_was_damaged_and_rewritten_counts_again() -> None:
    cluster = Cluster().add("n1", "n2")
    cluster.running(1)
    good = cluster.fs.files()[RUN.node_file("n2")]
    cluster.fs.unlink(RUN.node_file("n2"))
    cluster.fs.create(RUN.node_file("n2"), b"torn", durable=False)
    cluster.go(3, "n1")
    assert "n2.json" in "".join(cluster.views["n1"].notes)
    cluster.fs.unlink(RUN.node_file("n2"))
    cluster.fs.create(RUN.node_file("n2"), good, durable=False)
    cluster.go(3)
    assert cluster.views["n1"].notes == ()
    assert cluster.state().lost == ()


@pytest.mark.parametrize(("error", "reported"), [(errno.ESTALE, False), (errno.EIO, True)])
def test_an_unreadable_record_is_reported_except_for_a_stale_handle(error: int, reported: bool) -> None:
    def fail(when: str, operation: Operation) -> None:
        if when == BEFORE and operation.name == "read" and operation.path == RUN.node_file("n2"):
            raise OSError(error, "cannot be read", operation.path)

    cluster = Cluster().add("n1", "n2")
    cluster.running(1)
    cluster.members[cluster.coordinator()]._fs.hook = fail
    cluster.go(3, cluster.coordinator())
    assert ("n2.json" in "".join(cluster.views[cluster.coordinator()].notes)) == reported


def test_an_old_record_that_nfs_serves_late_is_not_used() -> None:
    cluster = Cluster().add("n1", "n2")
    old = None
    cluster.tick()
    old = cluster.fs.files()[RUN.node_file("n2")]
    cluster.running(1)
    cluster.fs.unlink(RUN.node_file("n2"))
    cluster.fs.create(RUN.node_file("n2"), old, durable=False)
    member = cluster.members["n1"]
    known = member._observer.records["n2"]
    member._observer.read_record("n2")
    assert member._observer.records["n2"] == known


def test_another_nodes_record_under_a_nodes_name_is_not_used() -> None:
    cluster = Cluster().add("n1", "n2", expected=("n1", "n2", "n3"))
    cluster.tick()
    cluster.fs.link(RUN.node_file("n2"), RUN.node_file("n3"))
    cluster.go(5)
    assert cluster.state().phase == FORMING


# Attempts


def test_a_requeued_job_takes_over_at_once_and_goes_on_counting_rounds() -> None:
    cluster = three()
    old = cluster.members
    cluster.members = {}
    cluster.add("n1", "n2", "n3", attempt="12.1", low=2)
    state = cluster.running(2)
    assert (state.attempt, state.attempts) == ("12.1", ("12.0", "12.1"))
    for member in old.values():
        with pytest.raises(FencedOut, match=r"attempt 12\.1 has taken over"):
            member.tick()


def test_a_superseded_member_writes_nothing_more() -> None:
    cluster = three()
    old = cluster.members["n2"]
    cluster.members = {}
    cluster.add("n1", "n2", "n3", attempt="12.1")
    cluster.running(2)
    before = cluster.fs.files()
    for status in (READY, LEFT):
        with pytest.raises(FencedOut):
            old.tick()
        old.publish(replace(old.record, status=status))
        cluster.clock.advance(5)
    assert cluster.fs.files() == before


def test_what_a_requeue_left_behind_cannot_take_the_run_back() -> None:
    cluster = Cluster().add("n1", attempt="12.3")
    cluster.running(1)
    cluster.add("n2", attempt="12.2", expected=("n1", "n2"))
    with pytest.raises(FencedOut):
        cluster.tick("n2")
    cluster.add("n2", attempt="12.10", expected=("n1", "n2"))
    cluster.tick("n2")
    assert cluster.state().attempt == "12.10"


def test_another_job_may_go_on_with_a_closed_run() -> None:
    cluster = Cluster().add("n1")
    cluster.running(1)
    cluster.publish("n1", status=SUCCEEDED)
    cluster.until(lambda state: state.phase == CLOSED)
    cluster.members = {}
    cluster.add("n1", attempt="13.0")
    assert cluster.running(2).attempt == "13.0"


@pytest.mark.parametrize("node", ["n1", "n2", "n3", "elsewhere"])
def test_a_run_in_which_another_job_is_alive_is_refused_and_left_alone(node: str) -> None:
    cluster = three()
    intruder = Cluster()
    intruder.fs, intruder.clock = cluster.fs, cluster.clock
    intruder.add(node, attempt="13.0", incarnation="intruder")
    with pytest.raises(
        RunInUse, match="the run /runs/r is held by job 12, which runs already; wait for it, stop it, or"
    ):
        side_by_side(intruder, cluster)
    with pytest.raises(RunInUse):
        intruder.tick()
    cluster.go(10)
    assert (cluster.state().attempt, cluster.state().round, cluster.state().lost) == ("12.0", 1, ())
    assert "intruder" not in str(cluster.fs.files())


def test_a_job_that_has_lost_its_coordinator_is_alive_all_the_same() -> None:
    cluster = three()
    dead = cluster.coordinator()
    rest = [name for name in cluster.members if name != dead]
    cluster.tick(*rest)
    intruder = Cluster()
    intruder.fs, intruder.clock = cluster.fs, cluster.clock
    intruder.add("n9", attempt="13.0")
    with pytest.raises(RunInUse):
        side_by_side(intruder, cluster, *rest)


@pytest.mark.parametrize("node", ["n1", "n9"])
def test_a_run_whose_job_was_killed_is_taken_over_after_the_node_timeout(node: str) -> None:
    cluster = three()
    cluster.members = {}
    cluster.add(node, attempt="13.0")
    cluster.go(7.5)
    assert cluster.state().attempt == "12.0"
    assert cluster.state().coordinator.term == 1
    cluster.go(2)
    assert cluster.running(2).attempt == "13.0"


def test_a_run_whose_agents_have_all_left_is_taken_over_at_once() -> None:
    cluster = three()
    for name in cluster.members:
        cluster.publish(name, status=LEFT, reason="its agent was killed by SIGKILL")
        cluster.members[name]._publish_record()
    cluster.members = {}
    cluster.add("n1", attempt="13.0")
    cluster.tick()
    assert cluster.state().attempt == "13.0"


def test_two_reads_at_the_same_moment_are_no_sign_of_life() -> None:
    cluster = three()
    cluster.members = {}
    cluster.add("n9", attempt="13.0")
    for _ in range(3):
        cluster.tick()
    assert cluster.state().attempt == "12.0"


# The pace


def test_members_tick_fast_while_a_round_forms_and_slowly_while_it_runs() -> None:
    cluster = Cluster().add("n1", "n2")
    assert cluster.members["n1"].next_tick_s() < 0.05
    cluster.running(1)
    looks = {name: cluster.members[name].next_tick_s() for name in cluster.members}
    follower = next(name for name in looks if name != cluster.coordinator())
    assert looks[cluster.coordinator()] < 0.2
    assert looks[follower] == PACE.follow_s
    cluster.publish(follower, status=SUCCEEDED)
    assert cluster.members[follower].next_tick_s() < 0.05


def test_any_member_can_close_the_run_and_the_coordinator_obeys() -> None:
    cluster = three()
    cluster.running(1)
    other = next(name for name in cluster.members if name != cluster.coordinator())
    cluster.members[other].close(FAILED, "no restarts left", 1)
    state = cluster.tick().state
    assert state is not None
    assert state.closed is not None
    assert (state.closed.reason, state.history[-1].outcome) == ("no restarts left", FAILED)
    cluster.members[other].close(SUCCEEDED, "too late", 0)
    assert cluster.state() == state


def test_a_run_is_closed_before_any_node_took_part() -> None:
    cluster = Cluster().add("n1")
    cluster.members["n1"].close(FAILED, "given up", 1)
    assert cluster.state().phase == CLOSED


@pytest.mark.parametrize("call_s", [0.0, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("heartbeat_s", [0.5, 1.0, 3.0, 4.0])
def test_a_dead_coordinator_is_noticed_at_every_pace_that_the_options_allow(heartbeat_s: float, call_s: float) -> None:
    cluster = Cluster()

    def slow(when: str, operation: Operation) -> None:
        if when == BEFORE:
            cluster.clock.advance(call_s)

    cluster.add("n1", "n2", low=1, hook=slow)
    for member in cluster.members.values():
        member._pace = Pace(heartbeat_s=heartbeat_s, follow_s=min(1.0, heartbeat_s))
    cluster.running(1)
    assert cluster.coordinator() == "n1"
    died_at = cluster.clock.now()
    while cluster.coordinator() == "n1":
        cluster.tick("n2")
        cluster.clock.advance(cluster.members["n2"].next_tick_s())
        assert cluster.clock.now() - died_at < 3 * TIMING.node_timeout_s


def test_a_follower_asks_the_filesystem_less_than_twice_a_second_however_many_there_are() -> None:
    for count in (2, 12):
        cluster, calls = Cluster(), []
        hook: Hook = lambda when, op, calls=calls: calls.append(op.name) if when == BEFORE else None  # noqa: E731
        names = [f"n{i}" for i in range(count)]
        cluster.add(*names[:-1], expected=tuple(names))
        cluster.add(names[-1], expected=tuple(names), hook=hook)
        for member in cluster.members.values():
            member._pace = Pace()
        cluster.running(1)
        calls.clear()
        cluster.go(60, step=1.0)
        assert len(calls) <= 2 * 60, f"{count} nodes: {len(calls)} calls in a minute"


def test_followers_read_a_rounds_end_at_their_next_tick() -> None:
    cluster = three()
    follower = next(name for name in cluster.members if name != cluster.coordinator())
    cluster.clock.advance(0.5)
    cluster.tick(follower)
    cluster.publish(follower, status=READY)
    cluster.tick(follower, cluster.coordinator())
    other = next(name for name in cluster.members if name not in (follower, cluster.coordinator()))
    assert cluster.tick(other).state == cluster.state()
    assert cluster.state().phase == FORMING


def test_a_coordinators_last_publication_is_read_when_it_misses_its_heartbeats() -> None:
    cluster = three()
    dead = cluster.coordinator()
    rest = [name for name in cluster.members if name != dead]
    cluster.members[dead]._notify_followers = lambda: None  # type: ignore[method-assign]
    cluster.publish(rest[0], status=READY)
    cluster.tick(rest[0], dead)
    assert cluster.state().phase == FORMING
    cluster.go(2 * PACE.heartbeat_s + 1, rest[1])
    assert cluster.views[rest[1]].state == cluster.state()


def test_a_changed_record_wakes_the_coordinator_which_wakes_all_agents_after_a_new_state() -> None:
    cluster = Cluster().add("n1", "n2", "n3")
    cluster.running(1)
    leader = cluster.coordinator()
    follower, other = (name for name in cluster.members if name != leader)
    cluster.woken.clear()
    cluster.publish(
        follower, status=FAILED, failure=Failure(1, follower, 2, 0, 5, "exit", 1, None, "exit code 1", None)
    )
    cluster.tick(follower)
    assert cluster.woken == {leader}
    cluster.tick(leader)
    assert cluster.woken == {leader, follower, other}


def test_a_heartbeat_wakes_no_agent() -> None:
    cluster = Cluster().add("n1", "n2", "n3")
    cluster.running(1)
    cluster.go(3)
    cluster.woken.clear()
    cluster.go(20)
    assert not cluster.woken


def test_a_woken_follower_bypasses_its_caches_for_a_while_and_then_ticks_slowly_again() -> None:
    cluster = Cluster().add("n1", "n2")
    cluster.running(1)
    cluster.go(3)
    follower = next(name for name in cluster.members if name != cluster.coordinator())
    member = cluster.members[follower]
    assert member.next_tick_s() == PACE.follow_s
    member.wake()
    assert member.next_tick_s() < PACE.follow_s / 4
    cluster.clock.advance(WAKE_S)
    assert member.next_tick_s() == PACE.follow_s


def test_permanent_wake_ups_without_a_change_make_a_node_tick_a_few_times_a_second() -> None:
    cluster = Cluster().add("n1", "n2")
    cluster.running(1)
    cluster.go(3)
    follower = next(name for name in cluster.members if name != cluster.coordinator())
    member = cluster.members[follower]
    looks = []
    for _ in range(3):
        looks.append(0)
        end = cluster.clock.now() + 60.0
        while cluster.clock.now() < end:
            member.wake()
            cluster.clock.advance(min(member.next_tick_s(), 0.5))
            looks[-1] += member.next_tick_s() < PACE.follow_s
    assert looks[1] < 60 * 0.2 / PACE.transition_s and looks[2] < 60 * 0.2 / PACE.transition_s, looks
    cluster.clock.advance(60.0)
    member.wake()
    assert member.next_tick_s() < PACE.follow_s / 4, "once there was peace it is heard again"


def test_a_round_with_an_excluded_node_is_one_line_of_the_coordinator() -> None:
    cluster = Cluster().add("n1", "n2")
    cluster.members["n2"].publish(replace(cluster.members["n2"].record, excluded="failed twice in job 7"))
    notes: list[str] = []
    for _ in range(8):
        cluster.tick()
        notes += [note for view in cluster.views.values() for note in view.notes]
    assert [note for note in notes if "excluded" in note] == [
        "round 1: not enough other nodes are ready, so excluded ones take part: n2 (failed twice in job 7)"
    ]


def test_hurried_vitals_are_published_with_the_next_tick_and_wake_no_agent() -> None:
    cluster = three()
    vitals = Vitals(1, Longest(), (RankVitals(0, 7, ()),), 0)
    cluster.clock.advance(0.1)
    cluster.woken.clear()
    cluster.members["n2"].update_vitals(vitals)
    cluster.tick("n2")
    assert cluster.record("n2").vitals is None
    cluster.members["n2"].update_vitals(vitals, at_once=True)
    cluster.tick("n2")
    assert cluster.record("n2").vitals == vitals
    assert cluster.woken == set()
