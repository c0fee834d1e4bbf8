"""Failures of nodes whose clocks differ: put in order only as far as the clocks are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.text import render


def report(run: RunBuilder) -> dict[str, Any]:
    run.close("failed", "x")
    result = analyse(gather(run.write(), now_ns=run.now_ns + 10**9))
    assert run.damaged or not result["problems"], result["problems"]
    return result


def two_failures(tmp_path: Path, apart_s: float) -> RunBuilder:
    """Rank 3 on n2 fails first, rank 0 on n1 so much later."""
    run = RunBuilder(tmp_path, nodes=3).round().steps(1, 9, over_s=60)
    return run.fail(3, ValueError("a")).fail(0, KeyError("b"), after_s=apart_s).stop()


@pytest.mark.parametrize("ahead_s", [0.0, 0.2, 3.0, 300.0, -300.0, 86_400.0])
def test_clocks_that_are_off_by_minutes_still_give_the_right_order(tmp_path: Path, ahead_s: float) -> None:
    run = two_failures(tmp_path, 0.01).clock("n1").clock("n2", ahead_s).clock("n3", -ahead_s / 3)
    entry = report(run)["rounds"][0]
    assert (entry["first_failure"]["rank"], entry["same_time"]) == (3, [])
    assert (entry["first_failure"]["clock"], entry["first_failure"]["uncertainty_s"] < 0.003) == ("measured", True)


@pytest.mark.parametrize("ahead_s", [300.0, -300.0])
def test_the_times_and_spans_of_a_node_whose_clock_is_off_are_corrected_and_marked_as_such(
    tmp_path: Path, ahead_s: float
) -> None:
    run = two_failures(tmp_path, 0.01).round(after_s=2.0).steps(5, 6).fail(2, ValueError("a")).stop()
    times = [{k: v for k, v in r.items() if k.endswith(("_ns", "_s")) or k == "cost"} for r in report(run)["rounds"]]
    for node in ("n1", "n3"):
        run.clock(node)
    result = report(run.clock("n2", ahead_s))
    skewed = [{k: v for k, v in r.items() if k.endswith(("_ns", "_s")) or k == "cost"} for r in result["rounds"]]
    assert skewed == times
    assert result["clocks"] == [{"node": "n2", "ahead_s": ahead_s}]
    assert f"n2 5 min {'ahead' if ahead_s > 0 else 'behind'}" in render(result)


def test_the_coordinators_own_clock_may_be_the_one_that_is_off(tmp_path: Path) -> None:
    run = two_failures(tmp_path, 0.01).clock("n1", 240.0).clock("n2").clock("n3")
    result = report(run)
    assert result["cause"]["rank"] == 3
    assert result["rounds"][0]["duration_s"] == pytest.approx(60.21)


@pytest.mark.parametrize("apart_s", [0.0, 0.005])
def test_within_the_measured_uncertainty_all_candidates_are_listed(tmp_path: Path, apart_s: float) -> None:
    run = two_failures(tmp_path, apart_s)
    for node, ahead_s in (("n1", 0.0), ("n2", 60.0), ("n3", 0.0)):
        run.clock(node, ahead_s, error_s=0.003)
    result = report(run)
    (other,) = result["rounds"][0]["same_time"]
    assert {other["node"], result["cause"]["node"]} == {"n1", "n2"}
    assert (other["uncertainty_s"], other["clock"]) == (pytest.approx(0.006, abs=1e-4), "measured")
    assert "  at the same time (±6 ms): rank" in render(result)


def test_beyond_the_uncertainty_it_is_an_order(tmp_path: Path) -> None:
    run = two_failures(tmp_path, 0.008)
    for node in ("n1", "n2", "n3"):
        run.clock(node, error_s=0.003)
    entry = report(run)["rounds"][0]
    assert (entry["first_failure"]["rank"], entry["same_time"]) == (3, [])


def test_clocks_without_a_measurement_get_a_usual_uncertainty_that_is_reported_as_one(tmp_path: Path) -> None:
    result = report(two_failures(tmp_path, 0.04).clock("n2"))
    (other,) = result["rounds"][0]["same_time"]
    assert (other["rank"], other["clock"], result["cause"]["clock"]) == (0, "assumed", "measured")
    assert "clocks not measured" in " ".join(render(result).split())


def test_unmeasured_clocks_that_disagree_about_the_rounds_start_put_nothing_in_order(tmp_path: Path) -> None:
    result = report(two_failures(tmp_path, 1.0).clock("n2", 120.0, error_s=None))
    (other,) = result["rounds"][0]["same_time"]
    assert {other["rank"], result["cause"]["rank"]} == {0, 3}
    assert other["uncertainty_s"] == pytest.approx(120.0)


def test_a_filesystem_whose_clients_stamp_is_found_out_by_the_rounds_start(tmp_path: Path) -> None:
    run = two_failures(tmp_path, 1.0).clock("n1").clock("n2", 90.0).clock("n3")
    path = run.close("failed", "x").write()
    for file in (*path.glob("nodes/*.json"), *path.glob("rounds/*/nodes/*.json")):
        file.write_text(file.read_text().replace('"offset_ns":-90000000000', '"offset_ns":0'))
    (other,) = analyse(gather(path, now_ns=run.now_ns))["rounds"][0]["same_time"]
    assert other["clock"] == "assumed"


def test_on_one_node_the_order_is_exact_and_only_its_first_failure_is_a_candidate(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("a")).fail(2, KeyError("b"), after_s=0.0001)
    run.fail(1, OSError("c"), after_s=0.0001).fail(0, OSError("d"), after_s=0.0001).stop().clock("n1").clock("n2")
    entry = report(run)["rounds"][0]
    assert (entry["first_failure"]["rank"], [s["rank"] for s in entry["same_time"]]) == (3, [1])


def test_an_old_measurement_is_trusted_less(tmp_path: Path) -> None:
    run = two_failures(tmp_path, 0.01).wait(600)
    entry = report(run.clock("n1").clock("n2").clock("n3"))["rounds"][0]
    assert entry["first_failure"]["uncertainty_s"] == pytest.approx(0.002 + 600 * 20e-6, abs=1e-3)
    assert [other["rank"] for other in entry["same_time"]] == [0]


@pytest.mark.parametrize("clock", [None, 7, {}, {"offset_ns": "x", "error_ns": 1, "at_ns": 2},
                                   {"offset_ns": 2**62, "error_ns": 1, "at_ns": 2},
                                   {"offset_ns": 1, "error_ns": -1, "at_ns": 2}])  # fmt: skip
def test_a_clock_that_is_no_clock_is_one_without_a_measurement(tmp_path: Path, clock: object) -> None:
    run = two_failures(tmp_path, 5.0)
    run.damaged = True
    run.round_nodes[1, "n2"]["clock"] = clock
    assert report(run)["cause"]["clock"] == "assumed"
