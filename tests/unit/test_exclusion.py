"""Histories: who takes part when nodes are unhealthy, are being looked at, or were excluded."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.rendezvous.exclusion import failed_repeatedly
from ftslurm.rendezvous.fold import fold
from ftslurm.rendezvous.observation import AT_ONCE, NEVER, Observation, Timing
from ftslurm.rendezvous.state import FAILED, FORMING, RUNNING, State
from tests.unit.test_fold import TIMING, Story


def nodes_of(story: Story) -> list[str]:
    return [p.node for p in story.state.participants]


def blamed(story: Story, number: int, blame: str | None = "perhaps") -> Story:
    """Let a rank of that node fail first, everybody get ready again, and the next round form."""
    story.run().fail(number, signal="SIGSEGV", code=None)
    failure = story.words[f"n{number}"].failure
    assert failure is not None
    story.say(number, failure=replace(failure, blame=blame)).look()
    return story.ready(*(int(p.node[1:]) for p in story.state.participants))


def test_an_unhealthy_node_does_not_join_and_a_spare_takes_its_place() -> None:
    story = Story(3, low=2, high=2).join().say(1, unhealthy="GPU 3: gone")
    assert story.look().phase == RUNNING
    assert nodes_of(story) == ["n2", "n3"]


def test_without_a_spare_an_unhealthy_node_is_waited_for_until_it_is_mended() -> None:
    story = Story(2).join().say(2, unhealthy="/scratch: no space left")
    assert story.look(forming_s=300).phase == FORMING
    assert story.say(2, unhealthy=None).look(forming_s=301).phase == RUNNING
    assert nodes_of(story) == ["n1", "n2"]


def test_a_node_that_stays_unhealthy_until_the_join_timeout_closes_the_run_with_the_reason() -> None:
    story = Story(2).join().say(2, unhealthy="GPU 3: gone")
    story.look(forming_s=600)
    assert story.closed == (FAILED, 1)
    assert story.state.closed.reason == (
        "n2 is unhealthy: GPU 3: gone; 1 node healthy, at least 2 needed, after waiting 600 s"
    )


def test_a_node_that_is_being_looked_at_keeps_its_place() -> None:
    story = Story(3, low=2, high=2).join().say(1, health_pending=True)
    assert story.look(forming_s=1).phase == FORMING
    assert story.say(1, health_pending=False).look(forming_s=1.5).phase == RUNNING
    assert nodes_of(story) == ["n1", "n2"]


def test_a_look_that_never_ends_is_not_waited_for_without_end() -> None:
    story = Story(3, low=2, high=2).join().say(1, health_pending=True)
    assert story.look(forming_s=600).phase == RUNNING
    assert nodes_of(story) == ["n2", "n3"]


def test_an_unhealthy_node_that_is_mended_waits_as_a_spare() -> None:
    story = Story(3, low=2, high=2).join().say(1, unhealthy="x").run()
    assert story.say(1, unhealthy=None).look() == story.state
    story.fail(2).look()
    story.ready(2, 3).look()
    assert nodes_of(story) == ["n2", "n3"]


def test_an_unhealthy_node_ends_no_round_for_its_sake() -> None:
    story = Story(3, low=2, high=3)
    story.join(1, 2).look(forming_s=30)
    story.say(1, status=RUNNING, round=1).say(2, status=RUNNING, round=1)
    story.join(3).say(3, unhealthy="x")
    timing = replace(TIMING, rejoin=AT_ONCE)
    from ftslurm.rendezvous.fold import fold

    assert fold(story.state, Observation(story.words, {}, 0.0, 0, joining_for_s=99.0), timing) is story.state


def test_a_node_that_was_set_aside_ends_no_round_for_its_sake() -> None:
    from ftslurm.rendezvous.fold import fold

    story = Story(3, low=2, high=3).join().say(3, excluded="failed twice in job 7")
    story.look(forming_s=30)
    assert nodes_of(story) == ["n1", "n2"]
    story.say(1, status=RUNNING, round=1).say(2, status=RUNNING, round=1)
    seen = Observation(story.words, {}, 0.0, 0, joining_for_s=99.0)
    assert fold(story.state, seen, replace(TIMING, rejoin=AT_ONCE)) is story.state


def test_a_node_that_was_unhealthy_at_the_start_may_come_later_even_where_nobody_else_may() -> None:
    from ftslurm.rendezvous.fold import fold

    story = Story(3, low=2, high=3).join().say(3, unhealthy="x")
    story.look(forming_s=30)
    assert nodes_of(story) == ["n1", "n2"] and "n3" in story.state.admitted
    story.say(1, status=RUNNING, round=1).say(2, status=RUNNING, round=1).fail(1).look()
    story.ready(1, 2).say(3, unhealthy=None)
    again = fold(story.state, Observation(story.words, {}, 0.0, 0), replace(TIMING, rejoin=NEVER))
    assert [p.node for p in again.participants] == ["n1", "n2", "n3"]


def test_a_node_that_was_set_aside_before_takes_part_only_where_others_do_not_suffice() -> None:
    story = Story(3, low=2, high=2).join().say(1, excluded="failed twice in job 7")
    story.look()
    assert nodes_of(story) == ["n2", "n3"]
    needed = Story(3).join().say(1, excluded="failed twice in job 7")
    needed.look()
    assert nodes_of(needed) == ["n1", "n2", "n3"]


def test_a_node_twice_in_the_first_failures_place_is_excluded_for_a_spare() -> None:
    story = Story(3, low=2, high=2).join()
    blamed(story, 2)
    story.look()
    assert nodes_of(story) == ["n1", "n2"]
    blamed(story, 2)
    story.look()
    assert nodes_of(story) == ["n1", "n3"]
    assert list(failed_repeatedly(story.state, 2)) == ["n2"]
    assert "first to fail in 2 rounds, last: rank 2 on n2 failed" in failed_repeatedly(story.state, 2)["n2"]


def test_what_fails_alike_on_all_nodes_sets_none_of_them_aside() -> None:
    story = Story(3, low=2, high=2).join()
    for _ in range(3):
        story.run()
        for number in (1, 2):
            story.fail(number, signal="SIGSEGV", code=None)
            failure = story.words[f"n{number}"].failure
            assert failure is not None
            story.say(number, failure=replace(failure, blame="perhaps", message="cannot start a worker"))
            story.look()
        story.ready(1, 2).look()
    assert failed_repeatedly(story.state, 2) == {}
    assert nodes_of(story) == ["n1", "n2"]


def test_a_repeat_offender_is_not_taken_because_the_spare_has_not_shown_yet_that_it_lives() -> None:
    story = Story(3, low=2, high=2).join()
    blamed(story, 2)
    blamed(story, 2)

    def fold_now(unproven: set[str]) -> State:
        return fold(story.state, Observation(story.words, {}, 0.0, 5, unproven=frozenset(unproven)), TIMING)

    assert fold_now({"n3"}).phase == FORMING
    assert [one.node for one in fold_now(set()).participants] == ["n1", "n3"]


def test_a_repeat_offender_is_better_than_no_node() -> None:
    story = Story(2).join()
    for _ in range(3):
        blamed(story, 2)
    story.look()
    assert nodes_of(story) == ["n1", "n2"]


def test_the_programs_own_failures_set_no_node_aside() -> None:
    story = Story(3, low=2, high=2).join()
    for _ in range(3):
        blamed(story, 2, blame=None)
        story.look()
    assert nodes_of(story) == ["n1", "n2"]


def test_a_failure_that_follows_its_rank_to_another_node_is_not_the_nodes() -> None:
    story = Story(3, low=2, high=2, restarts=9).join()
    for _ in range(2):
        blamed(story, 2)
    story.look()
    assert nodes_of(story) == ["n1", "n3"]
    blamed(story, 3)
    assert failed_repeatedly(story.state, 2) == {}


def test_nobody_is_set_aside_where_that_is_switched_off() -> None:
    story = Story(2).join()
    for _ in range(2):
        blamed(story, 2)
    assert failed_repeatedly(story.state, 0) == {} and list(failed_repeatedly(story.state, 2)) == ["n2"]


def test_the_default_sets_aside_after_two() -> None:
    assert Timing(1, 1, 1).exclude_after == 2


def test_a_failure_at_start_that_a_spare_may_not_share_is_tried_there() -> None:
    for nodes, expected in ((3, FORMING), (2, "closed")):
        story = Story(nodes, low=2, high=2).join()
        for _ in range(2):
            story.run().fail(2, signal="SIGSEGV", code=None)
            failure = story.words["n2"].failure
            assert failure is not None
            story.say(2, failure=replace(failure, blame="perhaps", at_start=True, step=None, signature="x")).look()
            story.ready(1, 2)
        assert story.state.phase == expected, nodes
