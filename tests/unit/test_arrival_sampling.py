"""When the arrivals of a node's ranks are sampled, and what is published."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_flight_client import Serve, reply, serve  # noqa: F401

from ftslurm.agent import arrival_sampling
from ftslurm.agent.arrival_sampling import FIRST_STEPS, SOON_S, STEPS, USUAL_S, ArrivalSampler
from ftslurm.monitor import heartbeat_page
from ftslurm.records.arrivals import ArrivalsRecord
from ftslurm.records.codec import read_record
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.rundir import RunDirectory

MS = 10**6
START_NS = 1_700_000_003 * 10**9


def document(steps: int) -> bytes:
    """A recorder with one collective in each step, 30 ms after the step before, of 100 ms."""
    entries = [
        {"process_group": ["0", ""], "collective_seq_id": n, "time_created_ns": START_NS + (100 * n + 30) * MS}
        for n in range(steps)
    ]
    return json.dumps({"entries": entries}).encode()


def train(directory: str, steps: int) -> None:
    words = heartbeat_page.open_writer(directory)
    assert words is not None
    ends = iter([START_NS + 100 * n * MS for n in range(steps) for _ in range(1 + (n == 0))])
    step = heartbeat_page.stepper(words, wall=lambda: next(ends))
    for number in range(steps):
        step(number)


class Node:
    """A sampler on a clock of the test's own."""

    def __init__(self, tmp_path: Path) -> None:
        self.now_s = 50.0
        self.workers: Any = SimpleNamespace(all=[])
        self.run = RunDirectory(str(tmp_path / "run"))
        fs = PosixFileSystem()
        fs.makedirs(self.run.root)
        self.sampler = ArrivalSampler(
            "n1", self.workers, fs, self.run, lambda task: task(), lambda: self.now_s, self.now_ns
        )

    def now_ns(self) -> int:
        return START_NS + round((self.now_s - 50) * 1e9)

    def add(self, rank: int, directory: str) -> None:
        self.workers.all.append(SimpleNamespace(rank=rank, record_dir=directory, ended_ns=None))

    def turn(self) -> None:
        """Advance to the deadline, and wait for the sample."""
        assert self.sampler.deadline is not None
        self.now_s = self.sampler.deadline
        self.sampler.on_time()
        if self.sampler._thread is not None:
            self.sampler._thread.join()

    def published(self, round_: int = 3) -> ArrivalsRecord | None:
        path = Path(self.run.arrivals_file(round_, "n1"))
        return read_record(ArrivalsRecord, path.read_bytes(), "it") if path.exists() else None


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_ranks_are_sampled_at_times_of_day_that_all_nodes_share(node: Node) -> None:
    node.sampler.begin(3, 8)
    assert node.sampler.deadline == 50 + 7
    node.turn()
    assert node.sampler.deadline == 50 + 17
    node.sampler.over()
    assert node.sampler.deadline is None


def test_a_rank_alone_or_without_a_recorder_is_not_sampled(node: Node, tmp_path: Path) -> None:
    node.sampler.begin(3, 1)
    assert node.sampler.deadline is None
    arguments = ("n1", node.workers, PosixFileSystem(), node.run, print, time.monotonic, time.time_ns)
    off = ArrivalSampler(*arguments, recorded=False)  # type: ignore[arg-type]
    off.begin(3, 8)
    assert off.deadline is None


def test_the_newest_steps_of_all_ranks_are_published_once_one_has_trained(
    node: Node,
    serve: Serve,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrival_sampling, "FETCH_S", 0.2)
    directory = serve("a", reply(document(FIRST_STEPS + 10)))
    train(directory, FIRST_STEPS - 1)
    node.add(5, directory)
    node.add(6, serve("b"))
    node.sampler.begin(3, 8)
    node.turn()
    assert node.published() is None
    (Path(directory) / "progress").unlink()
    train(directory, FIRST_STEPS + 5)
    node.turn()
    record = node.published()
    assert record is not None
    assert (record.round, record.node, [one.rank for one in record.ranks]) == (3, "n1", [5])
    (group,) = record.ranks[0].groups
    assert (len(group.steps), record.ranks[0].step_us) == (STEPS, 100_000)
    assert group.steps[-1] == (FIRST_STEPS + 3, FIRST_STEPS + 3, 30_000)


@pytest.mark.parametrize("answer", [b"", reply(b"{"), reply(b"[]"), reply(b'{"entries": [7]}')])
def test_a_rank_whose_recorder_gives_nothing_costs_only_its_sample(
    node: Node,
    serve: Serve,  # noqa: F811
    answer: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrival_sampling, "FETCH_S", 0.2)
    for rank, reply_ in enumerate((answer, reply(document(60)))):
        directory = serve(f"r{rank}", reply_)
        train(directory, 50)
        node.add(rank, directory)
    node.sampler.begin(3, 8)
    node.turn()
    record = node.published()
    assert record is not None and [one.rank for one in record.ranks] == [1]


def test_later_samples_are_rarer_and_the_rarer_the_longer_they_take(
    node: Node,
    serve: Serve,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = serve("a", *[reply(document(60))] * 5)
    train(directory, 50)
    node.add(0, directory)
    node.sampler.begin(3, 8)

    def due_s() -> float:
        """Take the next sample; return the time of day of the one after it."""
        node.turn()
        assert node.sampler.deadline is not None
        return node.sampler.deadline - 50 + START_NS / 1e9

    took_s = [0.0]
    real: Callable[..., Any] = arrival_sampling.ask
    monkeypatch.setattr(
        arrival_sampling, "ask", lambda *given: {0: SimpleNamespace(data=real(*given)[0].data, took_s=took_s[0])}
    )
    first_s = due_s()
    assert due_s() == first_s + SOON_S
    third_s = due_s()
    assert third_s % USUAL_S == pytest.approx(0)
    assert due_s() == pytest.approx(third_s + USUAL_S)
    took_s[0] = 0.1
    due_s()
    # 0.1 s are 0.05 % of 200 s.
    assert due_s() % (4 * USUAL_S) == pytest.approx(0)


def test_a_sample_of_a_round_that_is_over_is_not_published(
    node: Node,
    serve: Serve,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = serve("a", reply(document(60)))
    train(directory, 50)
    node.add(0, directory)
    node.sampler.begin(3, 8)
    real: Callable[..., Any] = arrival_sampling.ask

    def ask_late(*given: Any) -> Any:
        node.sampler.over()
        return real(*given)

    monkeypatch.setattr(arrival_sampling, "ask", ask_late)
    node.turn()
    assert node.published() is None
