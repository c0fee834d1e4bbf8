"""The set-up of a round: directories and the connection to the master, in any order, and their problems."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from ftslurm.agent.actions import Assignment, Prepared
from ftslurm.agent.round_setup import COMMITS, CONNECTION, PATIENCE_S, RoundSetup, StepDone, reach_master
from ftslurm.records.state import Master


def assignment(round_: int, group_rank: int = 1) -> Assignment:
    return Assignment(round_, "1.0", group_rank, 2, 2, 2, 4, Master("n1", 29400), 0, 3)


class SetUp:
    """A round set-up of one node, whose steps are completed by the test."""

    def __init__(self, log: Callable[[str], None] | None = None, connects: bool = True) -> None:
        self.now = 100.0
        self.made: list[int] = []
        self.posted: list[StepDone] = []
        self.revoking: list[Callable[[str | None], None]] = []
        self.connecting: list[Callable[[str | None], None]] = []
        self.round = RoundSetup(
            lambda part: self.made.append(part.round),
            lambda part, report: self.revoking.append(report),
            (lambda part, report: self.connecting.append(report)) if connects else None,
            self.posted.append,
            lambda: self.now,
            60.0,
            log,
        )

    def connected(self, problem: str | None = None) -> Prepared | None:
        self.connecting[-1](problem)
        return self.round.step_done(self.posted[-1])


def test_the_masters_own_node_needs_directories_alone() -> None:
    setup = SetUp()
    setup.round.begin(assignment(3, group_rank=0))
    assert setup.made == [3] and setup.round.deadline is None
    assert setup.round.made(3, None) == Prepared(3)


@pytest.mark.parametrize("reached_first", [True, False])
def test_a_round_is_set_up_when_both_are_done(reached_first: bool) -> None:
    setup = SetUp()
    setup.round.begin(assignment(1))
    if reached_first:
        assert setup.connected() is None
        assert setup.round.made(1, None) == Prepared(1)
    else:
        assert setup.round.made(1, None) is None
        assert setup.connected() == Prepared(1)
    assert setup.round.deadline is None


def test_a_master_that_cannot_be_reached_is_the_rounds_problem() -> None:
    setup = SetUp()
    setup.round.begin(assignment(1))
    setup.round.made(1, None)
    assert setup.connected("no route") == Prepared(1, "no route", unreachable=True)


def test_without_a_connection_test_the_directories_are_enough() -> None:
    setup = SetUp(connects=False)
    setup.round.begin(assignment(1))
    assert setup.made == [1] and setup.round.deadline is None
    assert setup.round.made(1, None) == Prepared(1)


def test_where_health_only_watches_the_round_begins_although_the_master_cannot_be_reached() -> None:
    lines: list[str] = []
    setup = SetUp(lines.append)
    setup.round.begin(assignment(1))
    setup.round.made(1, None)
    assert setup.connected("no route") == Prepared(1)
    assert lines == ["no route"]


FULL = OSError(28, "No space left on device")


def test_directories_that_cannot_be_made_are_tried_again() -> None:
    setup = SetUp()
    setup.round.begin(assignment(1, group_rank=0))
    for _ in range(20):
        assert setup.round.made(1, FULL) is None
        setup.now += 1.0
        assert setup.round.on_time() is None
    assert len(setup.made) == 21
    assert setup.round.made(1, None) == Prepared(1)
    assert setup.round.deadline is None


def test_directories_that_cannot_be_made_for_long_are_the_rounds_problem() -> None:
    setup = SetUp()
    setup.round.begin(assignment(1, group_rank=0))
    setup.now += 60.0
    problem = "cannot make the round's directories: [Errno 28] No space left on device"
    assert setup.round.made(1, FULL) == Prepared(1, problem)


def with_commits() -> SetUp:
    """A round on the master's node, while three commits of a past round are registered."""
    setup = SetUp()
    setup.round.begin(assignment(5, group_rank=0))
    assert setup.round.made(5, 3) is None
    return setup


def test_a_round_begins_only_when_the_commits_of_past_rounds_are_revoked() -> None:
    setup = with_commits()
    setup.revoking[0](None)
    assert setup.posted == [StepDone(5, COMMITS, None)]
    assert setup.round.step_done(setup.posted[0]) == Prepared(5)


def test_commits_that_cannot_be_revoked_are_the_rounds_problem_and_no_unreachable_master() -> None:
    setup = with_commits()
    setup.revoking[0]("cannot revoke: Input/output error")
    assert setup.round.step_done(setup.posted[0]) == Prepared(5, "cannot revoke: Input/output error")


def test_the_wait_for_a_directory_of_checkpoints_that_hangs_is_bounded() -> None:
    setup = with_commits()
    setup.now += 60.0
    done = setup.round.on_time()
    assert done is not None and "their directory has not responded for 1 min" in str(done.problem)
    setup.revoking[0](None)
    assert setup.round.step_done(setup.posted[0]) is None


def test_a_dropped_set_up_is_not_tried_again() -> None:
    setup = SetUp()
    setup.round.begin(assignment(1, group_rank=0))
    assert setup.round.made(1, FULL) is None
    setup.round.drop()
    setup.now += 5.0
    assert setup.round.deadline is None and setup.round.on_time() is None
    assert setup.made == [1]


def test_the_wait_for_a_name_server_that_does_not_answer_is_bounded() -> None:
    setup = SetUp()
    setup.round.begin(assignment(1))
    setup.round.made(1, None)
    setup.now += PATIENCE_S - 0.1
    assert setup.round.on_time() is None
    setup.now += 0.2
    done = setup.round.on_time()
    assert done is not None and done.unreachable
    assert "no response from the name server within 20 s" in str(done.problem)


def test_results_for_an_earlier_round_are_ignored() -> None:
    setup = SetUp()
    setup.round.begin(assignment(1))
    setup.round.begin(assignment(2, group_rank=0))
    assert setup.round.made(1, None) is None
    assert setup.round.step_done(StepDone(1, CONNECTION, "x")) is None
    assert setup.round.made(2, None) == Prepared(2)


def test_the_time_limit_of_an_earlier_round_does_not_hold_for_this_one() -> None:
    setup = SetUp()
    setup.round.begin(assignment(1))
    setup.round.begin(assignment(2, group_rank=0))
    setup.now += PATIENCE_S + 1
    assert setup.round.on_time() is None
    assert setup.round.made(2, None) == Prepared(2)


Answer = list[tuple[Any, ...]]


def resolver(monkeypatch: pytest.MonkeyPatch, *answers: list[str] | int) -> None:
    """Let look-ups give these addresses, or that error, one after the other."""
    left = list(answers)

    def look_up(name: str, port: int, type: int) -> Answer:
        answer = left.pop(0)
        if isinstance(answer, int):
            raise socket.gaierror(answer, "no")
        return [(socket.AF_INET, type, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_one_of_a_names_addresses_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        # TEST-NET-1 leads nowhere; the last is good on one link alone.
        resolver(monkeypatch, ["192.0.2.1", "127.0.0.1", "fe80::1%eth0"])
        began = time.monotonic()
        assert reach_master(Master("n1", taken.getsockname()[1])) is None
        assert time.monotonic() - began < 2


def test_a_name_server_that_cannot_answer_just_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        resolver(monkeypatch, socket.EAI_AGAIN, socket.EAI_AGAIN, ["127.0.0.1"])
        assert reach_master(Master("n1", taken.getsockname()[1])) is None
    resolver(monkeypatch, socket.EAI_NONAME)
    assert "its name does not resolve" in (reach_master(Master("n1", 29400)) or "")


def test_a_machine_that_refuses_is_reached() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert reach_master(Master("127.0.0.1", taken.getsockname()[1])) is None
