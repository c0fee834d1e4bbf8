"""What the rank monitor reports of ranks that are late, with real pipes and heartbeat pages, on a clock of the test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ftslurm.agent.environment import Program, RunFacts
from ftslurm.agent.options import parse_run
from ftslurm.agent.rank_monitor import HungRank, Message, RankMonitor, StacksCollected, VitalsChanged
from ftslurm.agent.settings import AgentSettings
from ftslurm.agent.workers import Worker, Workers
from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.timeouts import Learned, Spans
from ftslurm.records.stacks import StacksFile

NO_RECORD: Any = type("Record", (), {"round": 1})()


class Node:
    """A monitor, its workers (all of them this process), and what it asks others to do."""

    def __init__(self, directory: Path, *options: str, ranks: int = 4) -> None:
        self.now_s = 1000.0
        self.tasks: list[Any] = []
        self.stacks: list[dict[int, str]] = []
        self.samples = 0
        self.answers: list[tuple[int, tuple[int, ...]]] = []
        self.workers = Workers(lambda: 0)
        settings = AgentSettings(
            parse_run([*options, "train.py"], {}),
            RunFacts("run", str(directory), "n1", "default"),
            Program("script", "train.py", (), "python"),
            str(directory),
            str(directory / "local"),
            {},
            -1,
        )
        me: Any = self
        self.monitor = RankMonitor(settings, self.workers, me, me, self.tasks.append, lambda: self.now_s, lambda: 0.0)
        for local_rank in range(ranks):
            (directory / str(local_rank)).mkdir()
            worker = Worker(local_rank, 10 + local_rank, os.getpid(), -1, str(directory / str(local_rank)), 0)
            self.workers.all.append(worker)
            self.monitor.begin(worker, (str(directory / f"{local_rank}.log"),))
        self.directory = directory

    def stacks_collected(self, collection: Any, record: object) -> None:
        """Be the journal."""
        self.stacks.append(collection.why)

    def stacks_answer(self, collection: Any, request_ns: int, record: object) -> None:
        """Be the journal."""
        self.answers.append((request_ns, tuple(worker.local_rank for worker in collection.workers)))

    def sample(self) -> None:
        """Be the host resources."""
        self.samples += 1

    def beat(self, *local_ranks: int) -> None:
        for local_rank in local_ranks:
            words = heartbeat_page.open_writer(self.directory / str(local_rank))
            assert words is not None
            heartbeat_page.beater(words, 0, lambda: int(self.now_s * 1e9))()
            heartbeat_page.stepper(words)(100 + local_rank)

    def turn(self, readable: bool = False) -> list[Any]:
        return list(self.monitor.turn(readable, NO_RECORD, self.now_s))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def test_all_ranks_that_are_late_at_once_get_their_reason(place: Path) -> None:
    node = Node(place, "--heartbeat-timeout", "30")
    node.beat(0, 2, 3)
    node.turn()
    node.now_s += 40
    found = []
    for event in node.monitor.turn(False, NO_RECORD, node.now_s):
        found.append(event)
        if len(found) == 1:
            # As the loop does on the first: the stacks of all ranks are collected before the next one is handled.
            for worker in node.workers.all:
                worker.ended_ns = 1
            node.monitor.collect_stacks(1, [0, 1, 2, 3])
    hung = [each for each in found if isinstance(each, HungRank)]
    assert [(each.local_rank, each.step, each.since_s) for each in hung] == [
        (0, 100, 1000.0),
        (2, 102, 1000.0),
        (3, 103, 1000.0),
    ]
    assert all("no heartbeat for 40 s" in each.what for each in hung)
    assert StacksCollected() in found
    assert sorted(node.stacks[0]) == [0, 2, 3]


def test_a_request_for_stacks_is_answered_once_by_the_ranks_that_are_alive_unless_others_are_collected(
    place: Path,
) -> None:
    node = Node(place)
    for worker in node.workers.all[1:]:
        worker.ended_ns = 1
    node.monitor.request_stacks(StacksFile("1.0", 1, 7))
    node.monitor.request_stacks(StacksFile("1.0", 1, 7))
    while not node.answers:
        node.now_s += 0.5
        node.turn()
    node.monitor.request_stacks(StacksFile("1.0", 1, 7))
    node.turn()
    assert node.answers == [(7, (0,))] and node.stacks == []
    # Before a stop, the ranks are asked once, not twice at the same time.
    node.monitor.collect_stacks(1, [0], stop="SIGTERM from outside")
    node.monitor.request_stacks(StacksFile("1.0", 1, 8))
    node.turn()
    assert node.answers == [(7, (0,)), (8, ())]
    node.workers.all = []
    node.monitor.request_stacks(StacksFile("1.0", 2, 9))
    node.turn()
    assert len(node.answers) == 2


def test_the_first_step_of_a_round_is_published_at_once_and_only_that(place: Path) -> None:
    node = Node(place, ranks=2)

    def hurried() -> list[list[int | None]]:
        found = [each for each in node.turn() if isinstance(each, VitalsChanged) and each.at_once]
        return [[rank.step for rank in each.vitals.ranks] for each in found]

    node.now_s += 1.1
    assert hurried() == []
    node.beat(1)
    assert node.monitor.deadline is not None
    assert node.monitor.deadline - node.now_s <= 1
    node.now_s += 1
    assert hurried() == [[None, 101]]
    for _ in range(10):
        node.now_s += 1
        node.beat(0, 1)
        assert hurried() == []


def test_a_record_that_denies_heartbeats_is_published_anew_when_a_rank_has_sent_its_first(place: Path) -> None:
    node = Node(place, ranks=3)

    def hurried() -> list[int]:
        node.now_s += 3
        found = [each for each in node.turn() if isinstance(each, VitalsChanged) and each.first_heartbeat]
        return [each.vitals.longest.silent for each in found]

    assert [hurried(), hurried()] == [[], []]
    node.beat(1)
    hurried()  # With the first step; its vitals may be those of either.
    node.beat(0, 2)
    assert hurried() == [0]
    for _ in range(5):
        node.beat(0, 1, 2)
        assert hurried() == []


def test_each_rank_hangs_once_and_a_cleared_round_is_forgotten(place: Path) -> None:
    node = Node(place, "--hang-timeout", "20", ranks=1)
    node.now_s += 21
    assert [type(each) for each in node.turn() if isinstance(each, HungRank)] == [HungRank]
    node.now_s += 100
    assert [each for each in node.turn() if isinstance(each, HungRank)] == []
    node.monitor.over(NO_RECORD)
    node.workers.all.clear()
    node.monitor.clear()
    assert (node.monitor.deadline, node.monitor.vitals(1)) == (None, None)


def test_time_during_which_the_agent_did_not_run_counts_for_no_rank(place: Path) -> None:
    node = Node(place, "--hang-timeout", "20", ranks=1)
    node.now_s += 500
    node.monitor.forgive()
    assert not any(isinstance(each, HungRank) for each in node.turn())
    node.now_s += 21
    assert any(isinstance(each, HungRank) for each in node.turn())


def test_a_learned_time_out_replaces_the_default(place: Path) -> None:
    node = Node(place, ranks=1)
    node.beat(0)
    node.monitor.learn(Learned(Spans(heartbeat_s=700.0), 1))
    node.now_s += 701
    (hung,) = [each for each in node.turn() if isinstance(each, HungRank)]
    assert "time-out 11 min 40 s" in hung.what


def test_a_timer_that_requests_no_signal_is_only_a_message(place: Path) -> None:
    node = Node(place, ranks=1)
    line = f'{{"version": 1, "pid": {os.getpid()}, "scope_id": "batch", "expiration_time": 5.0, "signal": 0}}\n'
    pipe = os.open(node.monitor.environment(0)["FTSLURM_PIPE"], os.O_WRONLY | os.O_NONBLOCK)
    os.write(pipe, line.encode())
    os.close(pipe)
    assert [each for each in node.turn(readable=True) if not isinstance(each, VitalsChanged)] == []
    node.now_s += 6
    (message,) = [each for each in node.turn() if isinstance(each, Message)]
    assert message.text.startswith("rank 10: timer 'batch' expired")
    assert message.text.endswith("its timer requests no signal")


def test_output_is_progress_and_so_is_a_directory_that_does_not_respond(place: Path) -> None:
    node = Node(place, "--hang-timeout", "20", ranks=1)
    log = place / "0.log"
    for size in (1, 2, 3):
        log.write_text("x" * size)
        node.now_s += 15
        assert not any(isinstance(each, HungRank) for each in node.turn())
        node.monitor.on_log_sizes(node.tasks.pop()())
    node.now_s += 3
    node.turn()
    for _ in range(20):
        # The task hangs: without an answer, no rank is taken for silent.
        node.now_s += 3
        assert not any(isinstance(each, HungRank) for each in node.turn())
    # The second one asks when the rank printed last, as it does not move.
    assert (len(node.tasks), node.samples) == (2, 24)
    node.monitor.on_log_sizes(node.tasks.pop()())
    node.now_s += 21
    assert any(isinstance(each, HungRank) for each in node.turn())
