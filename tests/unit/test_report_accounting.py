"""Where the time of a run went: training that was kept, and what failures cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import SECOND_NS, RunBuilder

from ftslurm.dataclasses import replace
from ftslurm.report.accounting import PARTS, percent, sentence
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather


def accounted(run: RunBuilder, *, later_s: float = 1.0) -> dict[str, Any]:
    path = run.write()
    return analyse(gather(path, now_ns=run.now_ns + int(later_s * SECOND_NS)))


def parts(accounting: dict[str, Any]) -> dict[str, Any]:
    """Return the parts that are known and not zero, without their ``_s``."""
    return {key[:-2]: round(accounting[key], 6) for key in PARTS if accounting[key]}


def recovering(parent: Path, **kwargs: Any) -> RunBuilder:
    """Build a run of 2 rounds: steps 1-101 in 100 s, failure, then steps 81-181 in 100 s."""
    run = RunBuilder(parent, **kwargs).round().steps(1, 101, startup_s=10, over_s=100)
    run.fail(3, ValueError("boom"), step=None, after_s=2).stop(after_s=0.5)
    return run.round(after_s=1).steps(81, 181, startup_s=10, over_s=100).succeed(after_s=5)


def test_each_second_of_a_recovered_run_is_accounted_for(tmp_path: Path) -> None:
    report = accounted(recovering(tmp_path).close("succeeded", "all ranks succeeded"))
    first, second = (r["accounting"] for r in report["rounds"])
    # 20 of 100 steps were made again, and 2 s passed between the last step and the failure.
    assert parts(first) == {"startup": 10, "productive": 80, "lost": 22, "detection": 0.5, "restart": 11}
    # The end of a round that succeeded is its last checkpoint.
    assert parts(second) == {"startup": 10, "productive": 105}
    sums = report["accounting"]
    assert parts(sums) == {"startup": 10, "productive": 185, "lost": 22, "detection": 0.5, "restart": 11}
    assert sums["elapsed_s"] == pytest.approx(report["duration_s"]) == pytest.approx(228.5)
    assert sums["ratio"] == pytest.approx(185 / 228.5)
    assert (sums["rounds"], sums["first_round"]) == (2, 1)


def test_the_text_has_it_in_one_line_under_the_rounds(tmp_path: Path) -> None:
    report = accounted(recovering(tmp_path).close("succeeded", "all ranks succeeded"))
    assert sentence(report) == (
        "81.0 % of 3 min 48 s was training; lost: 22 s of work (20 steps), 500 ms detection, 11 s restarting; "
        "2.2 rank-minutes"
    )


def test_devices_are_counted_when_each_rank_was_given_its_own(tmp_path: Path) -> None:
    run = recovering(tmp_path).close("succeeded", "all ranks succeeded")
    run.attempts[0]["options"]["nproc_per_node"] = "gpu"
    sums = accounted(run)["accounting"]
    assert sums["unit"] == "GPU"
    assert sums["rank_hours_lost"] == pytest.approx(4 * 33.5 / 3600)


def test_a_step_that_is_made_a_third_time_was_lost_in_both_rounds_before(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    for first, last in ((0, 100), (90, 190), (50, 150)):
        run.round(after_s=0).steps(first, last, over_s=100)
        run.fail(0, exit_code=1).stop(after_s=0)
    report = accounted(run.close("failed", "no restarts left"))
    assert [r["accounting"]["lost_s"] for r in report["rounds"]] == [50, 100, 0]
    assert [r["accounting"]["productive_s"] for r in report["rounds"]] == [50, 0, 100]


def test_of_a_hang_the_time_is_lost_since_the_rank_last_moved(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 101, over_s=100)
    run.hang(0, "no heartbeat for 30 s (time-out 30 s)", places={}, after_s=31).stop(after_s=10)
    report = accounted(run.close("failed", "rank 0 on n1 hung"))
    assert parts(report["rounds"][0]["accounting"]) == {"productive": 100, "lost": 1, "detection": 40}


def test_ranks_that_take_their_time_to_end_after_the_order_to_stop_are_not_detection(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 101, over_s=100).fail(0, exit_code=1).stop(after_s=0.5, stopping_s=10)
    run.round(after_s=1).steps(101, 201, over_s=100).succeed(after_s=0)
    report = accounted(run.close("succeeded", "all ranks succeeded"))
    spent = parts(report["rounds"][0]["accounting"])
    assert (spent["detection"], spent["stopping"]) == (0.5, 10)
    assert "500 ms detection, 10 s stopping, " in sentence(report)


def test_of_a_hang_without_its_beginning_the_time_is_lost_since_it_was_noticed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 101, over_s=100)
    run.hang(0, "for 99 s (time-out 30 s)", places={}, after_s=31).history[0]["failure"]["since_ns"] = None
    report = accounted(run.stop(after_s=10))
    assert parts(report["rounds"][0]["accounting"])["detection"] == 10


def test_a_lost_node_was_noticed_as_late_as_it_was_silent(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round().steps(1, 101, over_s=100).lose("n2", silent_s=30)
    run.round(nodes=["n1", "n3"], after_s=4).steps(101, 201, startup_s=6, over_s=100).succeed(after_s=0)
    report = accounted(run.close("succeeded", "all ranks succeeded"))
    assert parts(report["rounds"][0]["accounting"]) == {"productive": 100, "detection": 30, "restart": 10}
    assert report["rounds"][0]["accounting"]["rank_hours_lost"] == pytest.approx(6 * 40 / 3600)


def test_a_requeue_is_queue_until_the_next_round_forms_and_then_restart(tmp_path: Path) -> None:
    run = (
        RunBuilder(tmp_path).round().steps(1, 101, over_s=100).stop(reason="time limit", after_s=20, outcome="stopped")
    )
    run.attempt().round(after_s=3600).steps(101, 201, startup_s=30, over_s=100).succeed(after_s=0)
    report = accounted(run.close("succeeded", "all ranks succeeded"))
    assert parts(report["rounds"][0]["accounting"]) == {
        "productive": 100, "other": 20, "queue": 3600, "restart": 30,
    }  # fmt: skip
    # No rank held a device in the queue.
    assert report["accounting"]["rank_hours_lost"] == pytest.approx(4 * 30 / 3600)
    assert "1 h between attempts" in sentence(report)


def test_a_round_that_made_no_step_is_all_restart(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 101, over_s=100).fail(0, exit_code=1).stop(after_s=0)
    run.round(after_s=1).fail(0, exit_code=1, after_s=9).stop(after_s=0)
    run.round(after_s=1).steps(101, 201, startup_s=9, over_s=100).succeed(after_s=0)
    report = accounted(run.close("succeeded", "all ranks succeeded"))
    assert [parts(r["accounting"]).get("restart") for r in report["rounds"]] == [10, 10, None]
    assert parts(report["accounting"]) == {"productive": 200, "restart": 20}
    assert report["accounting"]["ratio"] == pytest.approx(200 / 220)


def test_a_run_that_reports_no_steps_has_no_ratio_but_the_time_between_rounds(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, exit_code=1, after_s=100).stop(after_s=0.5).round(after_s=2).succeed()
    report = accounted(run.close("succeeded", "all ranks succeeded"))
    sums = report["accounting"]
    assert (sums["ratio"], sums["productive_s"], sums["lost_s"]) == (None, None, None)
    assert parts(sums) == {"detection": 0.5, "restart": 2}
    assert sentence(report) == "lost: 500 ms detection, 2 s restarting; 0.17 rank-minutes"


def test_a_running_round_has_no_productive_time_yet(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 101, over_s=100).fail(0, exit_code=1).stop(after_s=0).round(after_s=2)
    report = accounted(run.wait(50), later_s=10)
    assert report["rounds"][1]["accounting"]["took_s"] == 60
    assert report["rounds"][1]["accounting"]["productive_s"] is None
    assert (report["accounting"]["elapsed_s"], report["accounting"]["ratio"]) == (162, None)


def test_clocks_minutes_apart_change_nothing(tmp_path: Path) -> None:
    straight = accounted(recovering(tmp_path / "a").close("succeeded", "all ranks succeeded"))
    run = recovering(tmp_path / "b").close("succeeded", "all ranks succeeded")
    for (_, name), node in run.round_nodes.items():
        ahead = {"n1": 0, "n2": 300 * SECOND_NS}[name]
        for each in (node, *node["workers"], *(w["progress"] for w in node["workers"])):
            each.update({k: v + ahead for k, v in each.items() if k.endswith("_ns") and v is not None})
    for key, error in run.errors.items():
        run.errors[key] = replace(error, time_ns=error.time_ns + 300 * SECOND_NS)
    skewed = accounted(run)
    assert skewed["accounting"] == straight["accounting"]
    assert [r["accounting"] for r in skewed["rounds"]] == [r["accounting"] for r in straight["rounds"]]


def test_a_round_that_only_the_next_attempt_closed_did_not_last_through_the_queue(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().wait(7200)
    run.history[-1] |= {"ended_ns": run.now_ns, "outcome": "stopped", "reason": "ended without a word"}
    run.attempt().round(after_s=0).steps(1, 101, over_s=100).succeed()
    report = accounted(run.close("succeeded", "all ranks succeeded"))
    assert report["rounds"][0]["accounting"]["took_s"] is None
    assert (report["accounting"]["elapsed_s"], report["accounting"]["ratio"]) == (None, None)


@pytest.mark.parametrize("value", [-(2**62), 0, 2**62, None])
@pytest.mark.parametrize("key", ["started_ns", "ended_ns", "first_ns", "last_ns", "first_step", "last_step"])
def test_times_that_cannot_be_give_no_part_below_zero(tmp_path: Path, key: str, value: int | None) -> None:
    run = recovering(tmp_path).close("succeeded", "all ranks succeeded")
    run.damaged = True
    node = run.round_nodes[1, "n1"]
    (node if key in node else node["workers"][0]["progress"])[key] = value
    report = accounted(run)
    json.dumps(report, allow_nan=False)
    for accounting in (report["accounting"], *(r["accounting"] for r in report["rounds"])):
        assert all(accounting[k] is None or accounting[k] >= 0 for k in PARTS)
        assert isinstance(sentence(report), str)


def test_old_rounds_that_were_not_read_are_left_out_of_the_sums(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1, nproc=1)
    for number in range(66):
        run.round().steps(10 * number, 10 * number + 10, over_s=10).fail(0, exit_code=1).stop(after_s=0)
    report = accounted(run.close("failed", "no restarts left"))
    assert (report["skipped_rounds"], report["accounting"]["rounds"], report["accounting"]["first_round"]) == (2, 64, 3)
    assert report["rounds"][1]["accounting"] is None
    assert report["accounting"]["ratio"] == pytest.approx(640 / (640 + 63))


def test_an_empty_run_directory_has_sums_of_nothing(tmp_path: Path) -> None:
    report = analyse(gather(tmp_path, now_ns=1))
    assert set(PARTS) < set(report["accounting"])
    assert sentence(report) == ""


def test_nearly_all_is_not_all() -> None:
    assert [percent(x) for x in (1.0, 0.99999, 0.9214, 0.00001, 0.0)] == [
        "100.0 %", "99.9 %", "92.1 %", "0.1 %", "0.0 %",
    ]  # fmt: skip


def unmodified(parent: Path, again: int) -> dict[str, Any]:
    """Judge a run whose script reports nothing: steps 1-101 of its optimizer, a failure, then steps from `again` on."""
    run = RunBuilder(parent).round().steps(1, 101, startup_s=10, over_s=100, reported=False)
    run.fail(3, ValueError("boom"), step=None, after_s=2).stop(after_s=0.5)
    run.round(after_s=1).steps(again, again + 100, startup_s=10, over_s=100, reported=False).succeed(after_s=5)
    return accounted(run.close("succeeded", "all ranks succeeded"))


def test_steps_that_an_optimizer_repeats_by_its_own_count_are_lost(tmp_path: Path) -> None:
    report = unmodified(tmp_path, 81)
    first, second = (r["accounting"] for r in report["rounds"])
    assert parts(first) == {"startup": 10, "productive": 80, "lost": 22, "detection": 0.5, "restart": 11}
    assert parts(second) == {"startup": 10, "productive": 105}
    assert report["rounds"][0]["cost"]["steps_repeated"] == 20
    assert report["last_step"] is None and report["last_optimizer_step"] == 181


def test_which_steps_were_repeated_is_unknown_where_an_optimizer_counts_from_one_again(tmp_path: Path) -> None:
    report = unmodified(tmp_path, 1)
    first, second = (r["accounting"] for r in report["rounds"])
    assert parts(first) == {"startup": 10, "detection": 0.5, "restart": 11}
    assert (first["productive_s"], first["lost_s"]) == (None, None)
    assert parts(second) == {"startup": 10, "productive": 105}
    assert report["accounting"]["ratio"] is None
    assert report["rounds"][0]["cost"]["steps_repeated"] is None


def test_of_a_run_in_one_round_all_steps_of_the_optimizer_were_kept(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 101, startup_s=10, over_s=100, reported=False).succeed(after_s=5)
    report = accounted(run.close("succeeded", "all ranks succeeded"))
    assert parts(report["accounting"]) == {"startup": 10, "productive": 105}
    assert report["accounting"]["ratio"] == pytest.approx(105 / 115)
    assert report["rounds"][0]["optimizer_steps"] == {"first": 1, "last": 101}
