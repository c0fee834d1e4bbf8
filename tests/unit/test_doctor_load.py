"""The load of a run on its shared directory, as `ftslurm doctor --nodes N` prints it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftslurm.doctor.load import HOUR_S, lines, load_of, measure, to_json
from ftslurm.rendezvous.pace import Pace

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


@pytest.mark.exhaustive
@pytest.mark.parametrize("nodes", [3, 32])
def test_the_load_of_a_size_is_what_is_measured_at_that_size(nodes: int) -> None:
    load = load_of(nodes, 8)
    for datagrams, found in (
        (True, (load.coordinator, load.node)),
        (False, (load.coordinator_blocked, load.node_blocked)),
    ):
        coordinator, node = measure(nodes, Pace(), datagrams)
        # A node's few calls do not fill the time evenly.
        tolerance = 0.1 if datagrams else 0.03
        assert found[0].all == pytest.approx(coordinator.all, rel=tolerance)
        assert found[1].all == pytest.approx(node.all, rel=tolerance)


@pytest.mark.exhaustive
def test_a_longer_heartbeat_lowers_the_nodes_load() -> None:
    long = Pace(heartbeat_s=10.0, quiet_s=100.0)
    assert load_of(16, 8, long).node_blocked.writes < load_of(16, 8).node_blocked.writes / 3
    assert load_of(16, 8, long).node.writes < load_of(16, 8).node.writes / 2
    assert load_of(16, 8, long).coordinator.writes < load_of(16, 8).coordinator.writes / 3


def test_a_quiet_round_costs_few_calls_while_the_nodes_hear_each_other() -> None:
    for nodes, most in ((4, 5), (1024, 50)):
        load = load_of(nodes, 8)
        assert load.coordinator.all <= most
        assert load.node.all <= 0.2


def test_the_administrators_page_has_the_same_figures() -> None:
    page = " ".join(OPERATIONS.read_text().split())
    for nodes in (64, 1024):
        load = load_of(nodes, 8)
        row = (
            f"| {nodes} | {8 * nodes:,} | {load.node.all * HOUR_S:,.0f} / {load.node_blocked.all * HOUR_S:,.0f} "
            f"| {load.coordinator.all:,.1f} / {load.coordinator_blocked.all:,.0f} | {load.total:,.0f} "
            f"| {load.files_running:,} | {load.files_per_round:,} | {load.files_silent:,} |"
        )
        assert row in page
    (text, *_) = re.findall(r"ftslurm doctor --nodes 1024 --nproc-per-node 8", page)
    assert text


def test_text_and_json_have_the_same_numbers() -> None:
    load = load_of(1024, 8)
    text, document = "\n".join(lines(load)), to_json(load)
    for key in ("calls_per_node_hour", "writes_per_node_hour", "files_running", "files_per_round"):
        assert f"{document[key]:,}" in text
