"""A job that is stopped from outside while it hangs: which ranks have not moved, and what the report makes of that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.monitor.movement import Movement
from ftslurm.monitor.stacks_file import RankStacks, Stacks, encode, parse
from ftslurm.report.standstill import standstill

C10D = "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REDUCE = (("/home/ann/train.py", 44, "<module>"), (C10D, 3252, "all_reduce"))
SLEEP = (("/home/ann/train.py", 40, "<module>"), ("/home/ann/train.py", 9, "fetch"))
BARRIER = (("/home/ann/train.py", 50, "<module>"), (C10D, 4000, "barrier"))


class Node:
    """Workers of a node, their CPU time and outputs, on a clock of the test."""

    def __init__(self, ranks: int = 2) -> None:
        self.now_s = 100.0
        self.cpu_s = dict.fromkeys(range(ranks), 0.0)
        self.below_s = dict.fromkeys(range(ranks), 0.0)
        self.signs: dict[int, object] = dict.fromkeys(range(ranks), 0)
        self.movement = Movement(lambda: self.now_s, self.cpu_s.get, self.sessions)
        self.passes = 0
        self.workers: list[Any] = [SimpleNamespace(local_rank=rank, pid=rank) for rank in range(ranks)]
        for rank in range(ranks):
            self.movement.begin(rank)

    def sessions(self, pids: Any) -> dict[int, float]:
        self.passes += 1
        return {pid: self.cpu_s[pid] + self.below_s[pid] for pid in pids}

    def run(self, seconds: float, *, cpu: tuple[int, ...] = (), below: tuple[int, ...] = ()) -> None:
        for _ in range(int(seconds / 3)):
            self.now_s += 3
            for rank in cpu:
                self.cpu_s[rank] += 1
            for rank in below:
                self.below_s[rank] += 1
            self.movement.sample(self.workers, dict(self.signs))

    def stop(self) -> list[float]:
        self.movement.sample(self.workers, dict(self.signs), at_once=True)
        return [round(self.movement.still_s(worker.local_rank)[0]) for worker in self.workers]


def test_a_rank_that_uses_no_cpu_time_and_does_not_print_is_still() -> None:
    node = Node()
    node.run(30, cpu=(0, 1))
    assert node.passes == 0
    node.run(60, cpu=(0,))
    assert node.stop() == [0, 60]
    assert node.movement.still_s(1)[1] <= 3


def test_what_its_children_use_its_pages_and_its_output_are_movements_of_the_rank() -> None:
    node = Node(3)
    node.run(30, below=(0,))
    assert node.stop()[0] <= 6
    node.signs[1] = 7
    assert node.movement.sample(node.workers, dict(node.signs), at_once=True)
    node.movement.on_outputs({2: (100, 4.0)})
    assert node.stop()[1:] == [0, 4]
    assert node.movement.still_s(2)[1] == 23
    node.movement.on_outputs({2: (100, 4.0)})
    assert node.stop()[2] == 4


def stopped(*ranks: tuple[float, float, Any], problem: str | None = None) -> dict[int, RankStacks]:
    found = {}
    for number, (still_s, before_s, calls) in enumerate(ranks):
        lines = [f'  File "{file}", line {line} in {function}' for file, line, function in reversed(calls)]
        text = "Current thread 0x00007f2b1c3ff640 (most recent call first):\n" + "\n".join(lines) + "\n"
        still = (still_s, before_s)
        found[number] = RankStacks(number, f"n{number}", 7, Stacks(0, text), None, "SIGTERM from outside", still)
    return found


def test_ranks_that_had_not_moved_are_named_with_their_places() -> None:
    found = standstill(stopped((58, 3, REDUCE), (59, 3, REDUCE), (61, 3, REDUCE), (60, 3, SLEEP)))
    assert found is not None
    assert found.text == (
        "no rank had moved for 58 s: rank 3 on n3 in fetch at train.py:9, the others in all_reduce at train.py:44"
    )


def test_one_that_computes_while_all_others_wait_for_it_is_named_as_such() -> None:
    found = standstill(stopped((58, 3, REDUCE), (58, 3, REDUCE), (0, 3, SLEEP)))
    assert found is not None
    assert found.text.startswith("only rank 2 had moved for 58 s: rank 2 on n2 in fetch")
    assert found.moving == (2,)


def test_a_rank_that_called_a_collective_has_moved() -> None:
    sleeping = stopped((58, 3, SLEEP), (58, 3, SLEEP))
    assert standstill(sleeping, idle_s={0: 0.03, 1: 0.04}) is None
    assert standstill(sleeping, idle_s={0: 57.0, 1: None}) is not None


@pytest.mark.parametrize(
    "ranks",
    [
        [(0.5, 3, REDUCE), (0.5, 3, SLEEP)],
        [(5, 2, REDUCE), (5, 2, SLEEP)],
        # It waited as long before, and went on.
        [(40, 25, REDUCE), (40, 25, REDUCE)],
        # Most of them compute: that is no wait for a few.
        [(58, 3, REDUCE), (0.5, 3, SLEEP), (0.5, 3, SLEEP)],
    ],
)
def test_a_job_that_moved_is_not_called_hung(ranks: list[tuple[float, float, Any]]) -> None:
    assert standstill(stopped(*ranks)) is None


def test_one_rank_alone_and_ranks_in_several_places() -> None:
    alone = standstill(stopped((20, 1, SLEEP)))
    assert alone is not None
    assert alone.text == "rank 0 had not moved for 20 s: rank 0 in fetch at train.py:9"
    parties = standstill(stopped((20, 1, REDUCE), (20, 1, REDUCE), (20, 1, BARRIER), (20, 1, BARRIER)))
    assert parties is not None
    assert "ranks 0-1 in all_reduce at train.py:44, ranks 2-3 in barrier at train.py:50" in parties.text


def test_what_was_measured_goes_to_the_file_and_back() -> None:
    data = encode(Stacks(1, "x"), rank=3, node="n1", time_ns=7, stop="SIGTERM from outside", still=(58.23, 3.1))
    read = parse(data)
    assert read is not None
    assert (read.why, read.stop, read.still) == (None, "SIGTERM from outside", (58.2, 3.1))
    assert parse(data.replace(b"58.2 s", b"long")).still is None  # type: ignore[union-attr]
