"""A node that dies is replaced within seconds with the default options; one that is only stopped costs nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest
import test_run
from test_agent_killed import ROUNDS, agent_of, finish, in_round
from test_run import Start, Started, guardian_of

from ftslurm.kernel import descendants

start = test_run.start

WORLD = ("--local-nodes", "3", "--nnodes", "2")
ACQUAINTED_S = 4.0
"""Time until the agents hear each other, and have nothing new to publish."""


def node_of(run: Started, node: str) -> list[int]:
    """Return the processes of a node."""
    guardian = guardian_of(agent_of(run, node))
    return [guardian, *(pid for pid, _ in descendants(guardian))]


def send(pids: list[int], *numbers: int) -> None:
    for number in numbers:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass


def newest_state(run: Started) -> dict[str, Any]:
    newest = max(path for path in (run.run_dir / "state").iterdir() if path.name[0].isdigit())
    value: dict[str, Any] = json.loads(newest.read_bytes())["value"]
    return value


def participants(run: Started) -> list[str]:
    return [one["node"] for one in newest_state(run)["participants"]]


def coordinator(run: Started) -> str:
    return str(newest_state(run)["coordinator"]["node"])


@pytest.mark.parametrize("leads", [False, True])
def test_a_node_that_dies_is_replaced_long_before_its_time_out(start: Start, leads: bool) -> None:
    run = start(ROUNDS, *WORLD)
    in_round(run, 1)
    time.sleep(ACQUAINTED_S)
    both = participants(run)
    victim = next((node for node in both if (node == coordinator(run)) is leads), both[0])
    send(node_of(run, victim), signal.SIGSTOP, signal.SIGKILL)
    in_round(run, 2)
    assert victim not in participants(run)
    state = newest_state(run)
    ((lost, silent_s),) = [(one["node"], one["silent_s"]) for one in state["lost"]]
    assert lost == victim
    # Not by a stopwatch, so that a busy machine does not matter; without datagrams it is 8 s.
    assert silent_s < 6.0, run.err
    assert "nothing listens on its port any more" in state["history"][0]["reason"]
    (run.directory / "done").touch()
    run.until(lambda: newest_state(run)["closed"] is not None)
    run.wait()


@pytest.mark.parametrize("leads", [False, True])
def test_a_node_that_is_stopped_for_five_seconds_costs_no_round(start: Start, leads: bool) -> None:
    run = start(ROUNDS, *WORLD)
    in_round(run, 1)
    time.sleep(ACQUAINTED_S)
    both = participants(run)
    victim = next((node for node in both if (node == coordinator(run)) is leads), both[0])
    frozen = node_of(run, victim)
    try:
        send(frozen, signal.SIGSTOP)
        time.sleep(5.0)
    finally:
        send(frozen, signal.SIGCONT)
    time.sleep(ACQUAINTED_S)
    assert newest_state(run)["round"] == 1, run.err
    finish(run)


def test_agents_that_hear_each_other_leave_the_shared_directory_alone(start: Start) -> None:
    run = start(ROUNDS, *WORLD)
    in_round(run, 1)
    time.sleep(ACQUAINTED_S)
    records = {path.name: path for path in (run.run_dir / "nodes").glob("*.json")}
    del records[f"{coordinator(run)}.json"]

    def counters() -> dict[str, int]:
        return {name: json.loads(path.read_text())["counter"] for name, path in records.items()}

    before = counters()
    # More than two heartbeat intervals.
    time.sleep(7.0)
    assert sum(counters().values()) - sum(before.values()) <= 1, run.err
    finish(run)
