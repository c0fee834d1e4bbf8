"""Histories: which nodes take part when some are unhealthy, are being looked at, or were excluded."""

from __future__ import annotations

from dataclasses import replace

from fold_histories import TIMING, Job

from ftslurm.records.state import FAILED, FORMING, LEFT, RUNNING, State
from ftslurm.rendezvous.exclusion import failed_repeatedly, last_resort_line
from ftslurm.rendezvous.fold import fold
from ftslurm.rendezvous.observation import AT_ONCE, NEVER, Observation, Timing


def nodes_of(job: Job) -> list[str]:
    return [p.node for p in job.state.participants]


def blamed(job: Job, number: int, blame: str | None = "perhaps") -> Job:
    """Let a rank of that node fail first, everybody get ready again, and the next round form."""
    job.run().fail(number, signal="SIGSEGV", code=None)
    failure = job.records[f"n{number}"].failure
    assert failure is not None
    job.publish(number, failure=replace(failure, blame=blame)).coordinate()
    return job.ready(*(int(p.node[1:]) for p in job.state.participants))


def test_an_unhealthy_node_does_not_join_and_a_spare_takes_its_place() -> None:
    job = Job(3, low=2, high=2).join().publish(1, unhealthy="GPU 3: gone")
    assert job.coordinate().phase == RUNNING
    assert nodes_of(job) == ["n2", "n3"]


def test_without_a_spare_an_unhealthy_node_is_waited_for_until_it_is_mended() -> None:
    job = Job(2).join().publish(2, unhealthy="/scratch: no space left")
    assert job.coordinate(forming_s=300).phase == FORMING
    assert job.publish(2, unhealthy=None).coordinate(forming_s=301).phase == RUNNING
    assert nodes_of(job) == ["n1", "n2"]


def test_a_node_that_stays_unhealthy_until_the_join_timeout_closes_the_run_with_the_reason() -> None:
    job = Job(2).join().publish(2, unhealthy="GPU 3: gone")
    job.coordinate(forming_s=600)
    assert job.closed == (FAILED, 1)
    assert job.state.closed.reason == (
        "n2 is unhealthy: GPU 3: gone; 1 node healthy, at least 2 needed, after waiting 10 min"
    )


def test_a_node_that_is_being_checked_keeps_its_place() -> None:
    job = Job(3, low=2, high=2).join().publish(1, health_pending=True)
    assert job.coordinate(forming_s=1).phase == FORMING
    assert job.publish(1, health_pending=False).coordinate(forming_s=1.5).phase == RUNNING
    assert nodes_of(job) == ["n1", "n2"]


def test_a_health_check_that_never_ends_is_not_waited_for_without_end() -> None:
    job = Job(3, low=2, high=2).join().publish(1, health_pending=True)
    assert job.coordinate(forming_s=600).phase == RUNNING
    assert nodes_of(job) == ["n2", "n3"]


def test_an_unhealthy_node_that_is_mended_waits_as_a_spare() -> None:
    job = Job(3, low=2, high=2).join().publish(1, unhealthy="x").run()
    assert job.publish(1, unhealthy=None).coordinate() == job.state
    job.fail(2).coordinate()
    job.ready(2, 3).coordinate()
    assert nodes_of(job) == ["n2", "n3"]


def test_an_unhealthy_node_ends_no_round_for_its_sake() -> None:
    job = Job(3, low=2, high=3)
    job.join(1, 2).coordinate(forming_s=30)
    job.publish(1, status=RUNNING, round=1).publish(2, status=RUNNING, round=1)
    job.join(3).publish(3, unhealthy="x")
    timing = replace(TIMING, rejoin=AT_ONCE)
    from ftslurm.rendezvous.fold import fold

    assert fold(job.state, Observation(job.records, {}, 0.0, 0, joining_for_s=99.0), timing) is job.state


def test_a_node_that_was_excluded_ends_no_round_for_its_sake() -> None:
    from ftslurm.rendezvous.fold import fold

    job = Job(3, low=2, high=3).join().publish(3, excluded="failed twice in job 7")
    job.coordinate(forming_s=30)
    assert nodes_of(job) == ["n1", "n2"]
    job.publish(1, status=RUNNING, round=1).publish(2, status=RUNNING, round=1)
    seen = Observation(job.records, {}, 0.0, 0, joining_for_s=99.0)
    assert fold(job.state, seen, replace(TIMING, rejoin=AT_ONCE)) is job.state


def test_a_node_that_was_unhealthy_at_the_start_may_come_later_even_where_no_other_may() -> None:
    from ftslurm.rendezvous.fold import fold

    job = Job(3, low=2, high=3).join().publish(3, unhealthy="x")
    job.coordinate(forming_s=30)
    assert nodes_of(job) == ["n1", "n2"] and "n3" in job.state.admitted
    job.publish(1, status=RUNNING, round=1).publish(2, status=RUNNING, round=1).fail(1).coordinate()
    job.ready(1, 2).publish(3, unhealthy=None)
    again = fold(job.state, Observation(job.records, {}, 0.0, 0), replace(TIMING, rejoin=NEVER))
    assert [p.node for p in again.participants] == ["n1", "n2", "n3"]


def test_a_node_that_was_excluded_before_takes_part_only_where_others_do_not_suffice() -> None:
    job = Job(3, low=2, high=2).join().publish(1, excluded="failed twice in job 7")
    job.coordinate()
    assert nodes_of(job) == ["n2", "n3"]
    needed = Job(3).join().publish(1, excluded="failed twice in job 7")
    needed.coordinate()
    assert nodes_of(needed) == ["n1", "n2", "n3"]


def excluded_first(nodes: int = 3, low: int = 2, last_call_s: float = 30) -> Job:
    """Return a job whose n1, excluded before, and n2 have joined; the further nodes have not."""
    job = Job(nodes, low=low, high=low).join(1, 2).publish(1, excluded="failed twice in job 7")
    job.timing = replace(TIMING, last_call_s=last_call_s)
    return job


def test_a_spare_that_joins_later_replaces_a_node_that_was_excluded_before() -> None:
    job = excluded_first()
    assert job.coordinate(forming_s=0).phase == FORMING
    assert job.coordinate(forming_s=2.1).phase == FORMING
    assert job.join(3).coordinate(forming_s=2.2).phase == RUNNING
    assert nodes_of(job) == ["n2", "n3"]


def test_a_spare_that_never_joins_delays_an_excluded_node_by_the_last_call_at_most() -> None:
    job = excluded_first()
    assert job.coordinate(forming_s=29.9).phase == FORMING
    assert job.coordinate(forming_s=30).phase == RUNNING
    assert nodes_of(job) == ["n1", "n2"]
    assert excluded_first(last_call_s=0).coordinate().phase == RUNNING
    # The join time-out ends every wait, also where it is the shorter one.
    short = excluded_first()
    short.timing = replace(TIMING, join_timeout_s=5)
    assert short.coordinate(forming_s=4.9).phase == FORMING
    assert short.coordinate(forming_s=5).phase == RUNNING


def test_of_several_missing_nodes_only_as_many_are_waited_for_as_replace_the_excluded_ones() -> None:
    job = excluded_first(nodes=5, low=3)
    job.join(3).publish(3, excluded="failed twice in job 7").join(4)
    assert job.coordinate(forming_s=3).phase == FORMING, "n5 can replace n1 or n3"
    job = excluded_first(nodes=5, low=3).join(3, 4)
    assert job.coordinate(forming_s=3).phase == RUNNING, "n5 is not needed"
    assert nodes_of(job) == ["n2", "n3", "n4"]


def test_a_spare_that_cannot_replace_an_excluded_node_is_not_waited_for() -> None:
    for number, changes in enumerate(({"unhealthy": "x"}, {"status": LEFT, "reason": "x"}, {"excluded": "x"}, {})):
        job = excluded_first().join(3).publish(3, **changes)
        if not changes:
            job.silent = {"n3": TIMING.node_timeout_s}
        assert job.coordinate().phase == RUNNING, number
        assert nodes_of(job) == ["n1", "n2"], number


def test_without_a_node_list_an_excluded_node_takes_part_at_once() -> None:
    job = Job(2).join().publish(1, excluded="failed twice in job 7")
    job.state = replace(job.state, expected=())
    assert job.coordinate().phase == RUNNING


def test_a_missing_spare_delays_no_restart_of_an_excluded_node() -> None:
    job = excluded_first()
    job.coordinate(forming_s=30)
    job.publish(1, status=RUNNING, round=1).publish(2, status=RUNNING, round=1).fail(2).coordinate()
    assert job.ready(1, 2).coordinate().phase == RUNNING
    assert (job.state.round, nodes_of(job)) == (2, ["n1", "n2"])


def test_a_round_of_excluded_nodes_names_them_and_why() -> None:
    job = excluded_first()
    before = job.state
    formed = job.coordinate(forming_s=30)
    assert last_resort_line(before, formed, job.records, 2) == (
        "round 1: not enough other nodes are ready, so excluded ones take part: n1 (failed twice in job 7)"
    )
    assert last_resort_line(formed, formed, job.records, 2) is None
    job = excluded_first().join(3)
    before = job.state
    assert last_resort_line(before, job.coordinate(), job.records, 2) is None
    job = Job(9).join()
    for number in range(1, 10):
        job.publish(number, excluded="x")
    before = job.state
    line = last_resort_line(before, job.coordinate(), job.records, 2)
    assert line is not None and line.endswith(": n1 (x), n2 (x), n3 (x), n4 (x) and 5 more")


def test_a_node_twice_in_the_first_failures_place_is_excluded_for_a_spare() -> None:
    job = Job(3, low=2, high=2).join()
    blamed(job, 2)
    job.coordinate()
    assert nodes_of(job) == ["n1", "n2"]
    blamed(job, 2)
    job.coordinate()
    assert nodes_of(job) == ["n1", "n3"]
    assert list(failed_repeatedly(job.state.history, 2)) == ["n2"]
    assert "first to fail in 2 rounds, last: rank 2 on n2 failed" in failed_repeatedly(job.state.history, 2)["n2"]


def test_what_fails_alike_on_all_nodes_excludes_none_of_them() -> None:
    job = Job(3, low=2, high=2).join()
    for _ in range(3):
        job.run()
        for number in (1, 2):
            job.fail(number, signal="SIGSEGV", code=None)
            failure = job.records[f"n{number}"].failure
            assert failure is not None
            job.publish(number, failure=replace(failure, blame="perhaps", message="cannot start a worker"))
            job.coordinate()
        job.ready(1, 2).coordinate()
    assert failed_repeatedly(job.state.history, 2) == {}
    assert nodes_of(job) == ["n1", "n2"]


def test_a_repeat_offender_is_not_taken_because_the_spare_has_not_shown_yet_that_it_lives() -> None:
    job = Job(3, low=2, high=2).join()
    blamed(job, 2)
    blamed(job, 2)

    def fold_now(unproven: set[str]) -> State:
        return fold(job.state, Observation(job.records, {}, 0.0, 5, unproven=frozenset(unproven)), TIMING)

    assert fold_now({"n3"}).phase == FORMING
    assert [one.node for one in fold_now(set()).participants] == ["n1", "n3"]


def test_a_repeat_offender_is_better_than_no_node() -> None:
    job = Job(2).join()
    for _ in range(3):
        blamed(job, 2)
    job.coordinate()
    assert nodes_of(job) == ["n1", "n2"]


def test_the_programs_own_failures_exclude_no_node() -> None:
    job = Job(3, low=2, high=2).join()
    for _ in range(3):
        blamed(job, 2, blame=None)
        job.coordinate()
    assert nodes_of(job) == ["n1", "n2"]


def test_a_failure_that_follows_its_rank_to_another_node_is_not_the_nodes() -> None:
    job = Job(3, low=2, high=2, restarts=9).join()
    for _ in range(2):
        blamed(job, 2)
    job.coordinate()
    assert nodes_of(job) == ["n1", "n3"]
    blamed(job, 3)
    assert failed_repeatedly(job.state.history, 2) == {}


def test_no_node_is_excluded_where_that_is_switched_off() -> None:
    job = Job(2).join()
    for _ in range(2):
        blamed(job, 2)
    assert failed_repeatedly(job.state.history, 0) == {} and list(failed_repeatedly(job.state.history, 2)) == ["n2"]


def test_the_default_sets_aside_after_two() -> None:
    assert Timing(1, 1, 1).exclude_after == 2


def test_a_failure_at_start_that_a_spare_may_not_share_is_tried_there() -> None:
    for nodes, expected in ((3, FORMING), (2, "closed")):
        job = Job(nodes, low=2, high=2).join()
        for _ in range(2):
            job.run().fail(2, signal="SIGSEGV", code=None)
            failure = job.records["n2"].failure
            assert failure is not None
            job.publish(
                2, failure=replace(failure, blame="perhaps", at_start=True, step=None, signature="x")
            ).coordinate()
            job.ready(1, 2)
        assert job.state.phase == expected, nodes
