"""The load of a run on its shared directory, as `ftslurm doctor --nodes N` prints it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftslurm.doctor.load import HOUR_S, lines, load_of, measure, to_json
from ftslurm.rendezvous.pace import Pace

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


@pytest.mark.parametrize("nodes", [3, 32])
def test_the_load_of_a_size_is_what_is_measured_at_that_size(nodes: int) -> None:
    coordinator, node = measure(nodes, Pace())
    load = load_of(nodes, 8)
    assert load.coordinator.all == pytest.approx(coordinator.all, rel=0.03)
    assert load.node.all == pytest.approx(node.all, rel=0.03)


def test_a_longer_heartbeat_lowers_the_nodes_load() -> None:
    assert load_of(16, 8, Pace(heartbeat_s=10.0)).node.writes < load_of(16, 8).node.writes / 3


def test_the_administrators_page_has_the_same_figures() -> None:
    page = " ".join(OPERATIONS.read_text().split())
    for nodes in (64, 1024):
        load = load_of(nodes, 8)
        row = (
            f"| {nodes} | {8 * nodes:,} | {load.node.all * HOUR_S:,.0f} | {load.coordinator.all:,.0f} "
            f"| {load.total:,.0f} | {load.files_running:,} | {load.files_per_round:,} | {load.files_silent:,} |"
        )
        assert row in page
    (text, *_) = re.findall(r"ftslurm doctor --nodes 1024 --nproc-per-node 8", page)
    assert text


def test_text_and_json_have_the_same_numbers() -> None:
    load = load_of(1024, 8)
    text, document = "\n".join(lines(load)), to_json(load)
    for key in ("calls_per_node_hour", "writes_per_node_hour", "files_running", "files_per_round"):
        assert f"{document[key]:,}" in text
