"""What the coordinator says of a round that does not begin."""

from __future__ import annotations

import pytest

from ftslurm.rendezvous.observation import Observation
from ftslurm.rendezvous.state import FAILED, LEFT, RUNNING
from ftslurm.rendezvous.waiting_lines import FIRST_S, LONGEST_S, WaitingLines
from tests.unit.test_fold import TIMING, Story


class Wait:
    """A story of four nodes of which nobody has come but n1, and the lines of its coordinator."""

    def __init__(self) -> None:
        self.story = Story(4).join(1)
        self.lines = WaitingLines()

    def line(self, forming_s: float) -> str | None:
        return self.lines.line(self.story.state, Observation(self.story.words, self.story.silent, forming_s, 0), TIMING)


@pytest.fixture
def wait() -> Wait:
    return Wait()


def test_nothing_is_said_before_5_s(wait: Wait) -> None:
    assert wait.line(FIRST_S - 0.1) is None
    assert wait.line(FIRST_S) == ("round 1 waits: 1 of 4 nodes are ready after 5 s; n2, n3, n4: no node record yet")


def test_the_same_is_said_again_now_and_then(wait: Wait) -> None:
    told = [second for second in range(500) if wait.line(float(second)) is not None]
    assert told == [5, 15, 35, 75, 155, 155 + LONGEST_S, 155 + 2 * LONGEST_S]


def test_what_changes_is_said_soon_but_not_node_by_node(wait: Wait) -> None:
    assert wait.line(5.0) is not None
    wait.story.join(2)
    assert wait.line(7.0) is None
    wait.story.join(3)
    assert wait.line(10.0) == "round 1 waits: 3 of 4 nodes are ready after 10 s; n4: no node record yet"


def test_each_node_has_its_reason(wait: Wait) -> None:
    story = wait.story
    story.join(2, 3, 4)
    story.say(2, health_pending=True).say(3, unhealthy="GPU 3: gone").say(4, status=FAILED, round=6)
    assert wait.line(5.0) == (
        "round 1 waits: 1 of 4 nodes are ready after 5 s; n2: health pending; "
        "n3: unhealthy (GPU 3: gone); n4: workers of round 6 have not ended"
    )
    story.silent = {"n2": TIMING.node_timeout_s}
    story.say(3, status=LEFT, reason="SIGTERM from outside")
    line = wait.line(10.0)
    assert line is not None and "n2: silent; n3: left (SIGTERM from outside)" in line


def test_of_a_thousand_nodes_a_few_are_named() -> None:
    story = Story(1000).join(1)
    line = WaitingLines().line(story.state, Observation(story.words, {}, 5.0, 0), TIMING)
    assert line == (
        "round 1 waits: 1 of 1000 nodes are ready after 5 s; n2, n3, n4, n5 and 995 more: no node record yet"
    )


def test_a_round_that_runs_is_not_waited_for_and_the_next_one_begins_anew(wait: Wait) -> None:
    wait.line(5.0)
    wait.story.join(2, 3, 4).run()
    assert wait.story.state.phase == RUNNING and wait.line(0.0) is None
    wait.story.fail(2)
    assert wait.story.look().phase != RUNNING
    assert wait.line(1.0) is None
    line = wait.line(5.0)
    assert line is not None and line.startswith("round 2 waits: ")
