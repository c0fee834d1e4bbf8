"""What the coordinator says of a round that does not begin."""

from __future__ import annotations

import pytest
from fold_histories import TIMING, Job

from ftslurm.records.state import FAILED, FORMING, LEFT, RUNNING
from ftslurm.rendezvous.observation import Observation
from ftslurm.rendezvous.waiting_lines import FIRST_S, LONGEST_S, WaitingLines


class Wait:
    """A job of four nodes of which only n1 has come, and the lines of its coordinator."""

    def __init__(self) -> None:
        self.job = Job(4).join(1)
        self.lines = WaitingLines()

    def line(self, forming_s: float) -> str | None:
        return self.lines.line(self.job.state, Observation(self.job.records, self.job.silent, forming_s, 0), TIMING)


@pytest.fixture
def wait() -> Wait:
    return Wait()


def test_nothing_is_reported_before_5_s(wait: Wait) -> None:
    assert wait.line(FIRST_S - 0.1) is None
    assert wait.line(FIRST_S) == ("round 1 waits: 1 of 4 nodes are ready after 5 s; n2, n3, n4: no node record yet")


def test_the_same_line_is_repeated_at_long_intervals(wait: Wait) -> None:
    shown = [second for second in range(500) if wait.line(float(second)) is not None]
    assert shown == [5, 15, 35, 75, 155, 155 + LONGEST_S, 155 + 2 * LONGEST_S]


def test_a_change_is_logged_soon_but_not_node_by_node(wait: Wait) -> None:
    assert wait.line(5.0) is not None
    wait.job.join(2)
    assert wait.line(7.0) is None
    wait.job.join(3)
    assert wait.line(10.0) == "round 1 waits: 3 of 4 nodes are ready after 10 s; n4: no node record yet"


def test_each_node_has_its_reason(wait: Wait) -> None:
    job = wait.job
    job.join(2, 3, 4)
    job.publish(2, health_pending=True).publish(3, unhealthy="GPU 3: gone").publish(4, status=FAILED, round=6)
    assert wait.line(5.0) == (
        "round 1 waits: 1 of 4 nodes are ready after 5 s; n2: health pending; "
        "n3: unhealthy (GPU 3: gone); n4: workers of round 6 have not ended"
    )
    job.silent = {"n2": TIMING.node_timeout_s}
    job.publish(3, status=LEFT, reason="SIGTERM from outside")
    line = wait.line(10.0)
    assert line is not None and "n2: silent; n3: left (SIGTERM from outside)" in line


def test_a_wait_for_nodes_that_replace_an_excluded_one_names_both() -> None:
    job = Job(3, low=2, high=2).join(1, 2).publish(1, excluded="failed twice in job 7")
    assert job.coordinate(forming_s=5.0).phase == FORMING
    assert WaitingLines().line(job.state, Observation(job.records, {}, 5.0, 0), TIMING) == (
        "round 1 waits: 2 of 2 nodes are ready after 5 s; n3: no node record yet; "
        "n1: excluded, takes part only if others do not suffice"
    )


def test_of_a_thousand_nodes_a_few_are_named() -> None:
    job = Job(1000).join(1)
    line = WaitingLines().line(job.state, Observation(job.records, {}, 5.0, 0), TIMING)
    assert line == (
        "round 1 waits: 1 of 1000 nodes are ready after 5 s; n2, n3, n4, n5 and 995 more: no node record yet"
    )


def test_a_round_that_runs_is_not_waited_for_and_the_next_one_begins_anew(wait: Wait) -> None:
    wait.line(5.0)
    wait.job.join(2, 3, 4).run()
    assert wait.job.state.phase == RUNNING and wait.line(0.0) is None
    wait.job.fail(2)
    assert wait.job.coordinate().phase != RUNNING
    assert wait.line(1.0) is None
    line = wait.line(5.0)
    assert line is not None and line.startswith("round 2 waits: ")
