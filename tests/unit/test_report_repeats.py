"""Failures that come back: which node or rank is suspected, and when neither is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.text import render

HOMES = ["n1", "n2", "n3", "n4"]


def report(run: RunBuilder) -> dict[str, Any]:
    run.close("failed", "no restarts left")
    return analyse(gather(run.write(), now_ns=run.now_ns + 10**9))


def suspicions(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["kind"], each["text"]) for each in result["repeats"] if each["kind"] != "signature"]


def test_one_failure_suspects_no_node(tmp_path: Path) -> None:
    assert report(RunBuilder(tmp_path, nodes=8).round().fail(5, signal="SIGSEGV").stop())["repeats"] == []


def test_different_ranks_that_fail_on_one_node_make_the_node_suspect(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4)
    for rank, error in ((4, "SIGSEGV"), (5, "SIGBUS"), (0, "SIGABRT"), (4, "SIGILL")):
        run.round().fail(rank, signal=error).stop()
    result = report(run)
    text = "ranks 4-5 on n3 failed first in 3 of 4 rounds: suspect the node"
    assert suspicions(result) == [("node", text)]
    assert (result["repeats"][0]["rounds"], result["repeats"][0]["of"]) == ([1, 2, 4], 4)
    assert text in render(result)


def test_a_rank_that_fails_on_different_nodes_makes_its_data_or_the_code_suspect(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4)
    for i in range(3):
        run.round(nodes=HOMES[i:] + HOMES[:i]).fail(5, ValueError(f"row {i}")).stop()
    result = report(run)
    ((kind, text),) = suspicions(result)
    assert (kind, result["repeats"][0]["nodes"]) == ("rank", ["n3", "n4", "n1"])
    assert text.startswith("rank 5 fails wherever it runs (on n3, n4, n1, in 3 of 3 rounds): suspect its data or the")


def test_one_rank_on_one_node_is_reported_with_both_explanations(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4)
    for rank in (5, 5, 2, 5):
        run.round().fail(rank, signal="SIGSEGV").stop()
    ((kind, text),) = suspicions(report(run))
    assert (kind, text) == (
        "place",
        "rank 5 on n3 failed in 3 of 4 rounds: suspect the node, or what only this rank does",
    )


def test_a_node_that_is_lost_again_and_again_is_suspected_over_attempts_too(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4).round().lose("n2").attempt().round().lose("n2")
    assert suspicions(report(run)) == [("node", "n2 was lost in 2 of 2 rounds, over 2 attempts: suspect the node")]


def test_the_same_failure_anywhere_is_reported_as_the_same(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4)
    for rank in (0, 3, 5, 6):
        run.round().fail(rank, ValueError(f"loss is nan at row {rank}")).stop()
    result = report(run)
    (each,) = result["repeats"]
    assert (each["kind"], each["rounds"], each["ranks"]) == ("signature", [1, 2, 3, 4], "0, 3, 5-6")
    assert each["text"] == "the same failure in rounds 1-4: ValueError: loss is nan at row 6"


@pytest.mark.parametrize("apart_s", [0.0, 2.0])
def test_no_rank_is_suspected_when_all_ranks_fail_alike_in_every_round(tmp_path: Path, apart_s: float) -> None:
    run = RunBuilder(tmp_path, nodes=4)
    for _ in range(4):
        run.round()
        for rank in (5, 0, 1, 2, 3, 4, 6, 7):
            run.fail(rank, KeyError("lr"), after_s=apart_s)
        run.stop()
    assert suspicions(report(run)) == []


def test_no_rank_is_suspected_when_several_failed_at_the_same_time(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4)
    for _ in range(4):
        run.round().fail(5, KeyError("lr")).fail(0, OSError("x"), after_s=0.01).stop()
    assert suspicions(report(run)) == []


def test_no_rank_is_suspected_where_it_may_well_be_chance(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2, nproc=1).round().fail(1, KeyError("lr")).stop()
    assert suspicions(report(run.round().fail(1, KeyError("step")).stop())) == []


def test_a_node_is_suspected_as_soon_as_the_run_excludes_it(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2, nproc=8).round().fail(3, signal="SIGSEGV").stop()
    text = "ranks 1, 3 on n1 failed first in 2 of 2 rounds: suspect the node"
    assert suspicions(report(run.round().fail(1, signal="SIGBUS").stop())) == [("node", text)]


def test_a_node_is_not_suspected_for_errors_of_the_program(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4)
    for rank in (4, 5, 4, 4):
        run.round().fail(rank, ValueError(f"row {rank}")).stop()
    assert suspicions(report(run)) == [("place", "rank 4 on n3 failed in 3 of 4 rounds: suspect its data or the code")]


def test_a_node_is_not_suspected_for_ranks_that_only_followed(tmp_path: Path) -> None:
    reset = RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3141")
    run = RunBuilder(tmp_path, nodes=4)
    for _ in range(3):
        run.round().fail(5, reset).stop()
    assert suspicions(report(run)) == []


def test_of_a_single_node_the_program_is_suspected_too(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1, nproc=8)
    for rank in (0, 3, 5):
        run.round().fail(rank, signal="SIGSEGV").stop()
    text = "ranks 0, 3, 5 on n1 failed first in 3 of 3 rounds: suspect the program, or the node, the only one"
    assert suspicions(report(run)) == [("node", text)]


def test_names_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4)
    for rank in (4, 5, 4):
        run.round().fail(rank, signal="SIGSEGV").stop()
    for node in run.round_nodes.values():
        node["node"] = node["node"].replace("n3", "n3\x1b[2J\u202e")
    assert "\x1b" not in report(run)["repeats"][0]["text"]
