"""What health checks found stands in the report: as the reason where it explains the failure, else beside it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import FRAMES, RunBuilder

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.html import render as render_html
from ftslurm.report.markdown import render as render_markdown
from ftslurm.report.pipeline import make_report
from ftslurm.report.text import render as render_text

NOW_NS = 1_772_400_000 * 10**9
TORCH = ("/v/site-packages/torch/distributed/distributed_c10d.py", 2501, "all_reduce", "work.wait()")
ECC = "2 uncorrected ECC errors (expected none)"
LAUNCH = RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronous")
GLOO = RuntimeError("[/gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:29500")


class DistBackendError(RuntimeError):
    """Stands in for torch's."""


def nccl(rank: int) -> BaseException:
    return DistBackendError(f"NCCL error in: x.cpp, remote process exited or there was a network error, rank {rank}")


def started(parent: Path, **how: Any) -> RunBuilder:
    return RunBuilder(parent, nodes=3, nproc=4, **how).round().steps(1, 120).wait(60)


def report_of(run: RunBuilder) -> dict[str, Any]:
    return make_report(run.close("failed", "it failed").write(), now_ns=NOW_NS)


def text(report: dict[str, Any]) -> str:
    return render_text(report, zone=time.gmtime)


def flat(lines: str) -> str:
    return " ".join(lines.split())


def test_a_gpus_failed_check_is_the_reason_and_the_rank_stays_named(tmp_path: Path) -> None:
    run = started(tmp_path).find("n2", ECC, subject="GPU 3").wait(40).fail(7, LAUNCH, step=120)
    run.fail(1, GLOO, frames=(*FRAMES, TORCH), after_s=1)
    report = report_of(run.stop())
    cause = report["cause"]
    assert (cause["rank"], cause["node"], cause["cause"], cause["role"]) == (7, "n2", "health", "primary")
    assert cause["restart"] == "other-node"
    proof = f"health: GPU 3: {ECC} (gpu-ecc, first seen 40 s before this failure)"
    assert cause["evidence_lines"][0] == proof
    first = flat("\n".join(text(report).splitlines()[:3]))
    assert first.startswith(
        f"job-123 FAILED: rank 7 on n2: GPU 3: {ECC} (RuntimeError: CUDA error: unspecified launch failure)"
    )
    assert "at train.py:42 in train_step, step 120, round 1" in first
    assert "Drain the node, or exclude it" in text(report)
    (finding,) = report["health"]["findings"]
    assert finding["of_failure"]
    assert finding["relation"] == {"before_s": 40.0, "uncertainty_s": 0.0, "text": "40 s before rank 7 failed"}
    assert f"n2: GPU 3: {ECC} (first seen 03-01 12:01:01, 40 s before rank 7 failed)" in flat(text(report))


EXPLAINED = [
    ("gpu-ecc", "GPU 3", {"exception": LAUNCH}),
    ("gpu-ecc", "GPU 3", {"exception": RuntimeError("CUDA error: an illegal memory access was encountered")}),
    ("gpu-xid", "GPU 3 (0000:3b:00.0)", {"exception": RuntimeError("CUDA error: unknown error")}),
    ("host-kernel-log", "GPU 0000:3b:00", {"exception": RuntimeError("CUDA error: unknown error")}),
    ("amd-ras", "GPU 3", {"signal": "SIGSEGV"}),
    ("gpu-driver", "", {"signal": "SIGABRT"}),
    ("gpu-nvlink", "GPU 0", {"exception": nccl(7)}),
    ("nic-ports", "mlx5_0 port 1", {"exception": nccl(7)}),
]
OTHERWISE = [
    ("gpu-ecc", "GPU 0", {"exception": LAUNCH}, "cuda-launch"),
    ("gpu-ecc", "GPU 3", {"exception": ValueError("boom")}, "exception"),
    ("gpu-ecc", "GPU 3", {"exception": RuntimeError("CUDA error: device-side assert triggered")}, "cuda-assert"),
    ("gpu-ecc", "GPU 3", {"signal": "SIGKILL"}, "sigkill"),
    ("nic-ports", "mlx5_0 port 1", {"signal": "SIGSEGV"}, "segfault"),
    ("storage-paths", "/scratch", {"exception": OSError(28, "No space left on device")}, "disk-full"),
    ("failure", "rank 7", {"exception": LAUNCH}, "cuda-launch"),
]


def failing(parent: Path, check: str, subject: str, how: dict[str, Any], status: str = "fail") -> dict[str, Any]:
    run = started(parent).find("n2", "it is broken", subject=subject, check=check, status=status).wait(9)
    how = {"module": "torch.distributed"} | how if isinstance(how.get("exception"), DistBackendError) else how
    return report_of(run.fail(7, **how, frames=(*FRAMES, TORCH)).stop())


@pytest.mark.parametrize(("check", "subject", "how"), EXPLAINED)
def test_a_failed_check_explains(check: str, subject: str, how: dict[str, Any], tmp_path: Path) -> None:
    report = failing(tmp_path, check, subject, how)
    assert (report["cause"]["cause"], report["cause"]["rank"]) == ("health", 7)
    assert "it is broken" in flat("\n".join(text(report).splitlines()[:3]))


@pytest.mark.parametrize(("check", "subject", "how", "cause"), OTHERWISE)
def test_a_failed_check_does_not_explain(
    check: str, subject: str, how: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    report = failing(tmp_path, check, subject, how)
    assert (report["cause"]["cause"], report["cause"]["rank"]) == (cause, 7)
    proofs = "\n".join(report["cause"]["evidence_lines"])
    assert ("health: " in proofs) == (check != "failure"), "but people should know of it"
    assert len(report["health"]["findings"]) == (check != "failure"), "the failure itself is no finding about it"


def test_a_warning_explains_nothing(tmp_path: Path) -> None:
    report = failing(tmp_path, "gpu-clocks", "GPU 3", {"exception": LAUNCH}, status="warn")
    assert report["cause"]["cause"] == "cuda-launch"
    assert "n2: warning: GPU 3: it is broken" in text(report)


def test_a_rank_that_has_the_node_to_itself_may_use_any_gpu(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2, nproc=1).round().find("n2", ECC, subject="GPU 5").fail(1, LAUNCH)
    assert report_of(run.stop())["cause"]["cause"] == "health"


def test_a_finding_of_the_check_after_the_failure_counts_and_is_marked_as_such(tmp_path: Path) -> None:
    run = started(tmp_path).fail(7, LAUNCH).stop()
    run.find("n2", ECC, subject="GPU 3", after_s=3)
    report = report_of(run)
    assert report["cause"]["cause"] == "health"
    assert "first seen 3.2 s after this failure" in report["cause"]["evidence_lines"][0]
    assert report["health"]["findings"][0]["round"] is None, "it stands in the node's own file only"
    assert "3.2 s after rank 7 failed" in flat(text(report))


def test_what_is_found_long_after_is_another_story(tmp_path: Path) -> None:
    run = started(tmp_path).fail(7, LAUNCH).stop()
    run.find("n2", ECC, subject="GPU 3", after_s=3600)
    assert report_of(run)["cause"]["cause"] == "cuda-launch"


def test_findings_of_the_first_failures_node_stand_first_then_the_worst(tmp_path: Path) -> None:
    run = started(tmp_path).find("n1", "HCA down", subject="mlx5_0", check="nic-ports")
    run.find("n3", "the swap is in use", check="host-memory", status="warn", advice="")
    run.find("n2", "nearly full", subject="/tmp", check="storage-paths", status="warn").wait(5).fail(7, ValueError("x"))
    found = report_of(run.stop())["health"]["findings"]
    assert [(each["node"], each["status"]) for each in found] == [("n2", "warn"), ("n1", "fail"), ("n3", "warn")]


def test_another_nodes_finding_is_put_in_order_only_as_far_as_the_clocks_allow(tmp_path: Path) -> None:
    run = started(tmp_path).clock("n1", 0.0, error_s=0.01).clock("n2", 0.0, error_s=0.02)
    run.find("n1", "HCA down", subject="mlx5_0", check="nic-ports").wait(0.02).fail(7, ValueError("boom")).stop()
    relation = report_of(run)["health"]["findings"][0]["relation"]
    assert relation["text"] == "at about the same time as rank 7 failed"
    assert 0.03 <= relation["uncertainty_s"] < 0.04


def test_the_times_of_a_node_whose_clock_is_minutes_off_are_corrected(tmp_path: Path) -> None:
    run = started(tmp_path).clock("n1", 0.0).clock("n2", 300.0).clock("n3", 0.0)
    run.find("n2", ECC, subject="GPU 3").wait(40).fail(7, ValueError("boom"), step=120)
    report = report_of(run.find("n1", "HCA down", check="nic-ports", after_s=2).stop())
    relations = {each["node"]: each["relation"]["text"] for each in report["health"]["findings"]}
    assert relations == {"n2": "40 s before rank 7 failed", "n1": "2 s after rank 7 failed"}
    assert "GPU 3: 2 uncorrected ECC errors (expected none) (first seen 03-01 12:01:01, " in flat(text(report))


def test_many_nodes_with_the_same_finding_are_one_line(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=40, nproc=1).round()
    for node in run.node_names:
        run.find(node, "the limit of locked memory is 64 KiB", check="host-limits", status="warn", advice="")
    report = report_of(run.fail(3, ValueError("boom")).stop())
    assert [each["node_count"] for each in report["health"]["findings"]] == [1, 39]
    assert "39 nodes (n1, n10, n11, ...): warning: the limit of locked memory is 64 KiB" in flat(text(report))


def test_the_report_of_ranks_that_only_waited_names_the_unhealthy_node(tmp_path: Path) -> None:
    run = started(tmp_path).find("n3", "it has fallen off the bus", subject="GPU 1", check="gpu-count").wait(30)
    for rank in range(4):
        run.fail(rank, nccl(rank), module="torch.distributed", frames=(*FRAMES, TORCH), after_s=0.1)
    report = report_of(run.stop())
    assert (report["cause"]["role"], report["cause"]["rank"]) == ("cascade", 0)
    lines = flat("\n".join(text(report).splitlines()[:7]))
    assert "possible reason: n3: GPU 1: it has fallen off the bus (first seen" in lines


def test_a_hang_is_reported_with_what_was_found_on_its_node(tmp_path: Path) -> None:
    waits = [("/w/train.py", 9, "main"), TORCH[:3]]
    places: dict[int, Any] = {rank: list(waits) for rank in range(12)} | {7: "in uninterruptible sleep (D) in nfs"}
    run = started(tmp_path).find("n2", "no answer within 2 s", subject="/scratch", check="storage-paths").wait(20)
    report = report_of(run.hang(7, places=places).stop())
    assert report["cause"]["cause"] == "hang"
    assert report["cause"]["evidence_lines"][0].startswith("health: /scratch: no answer within 2 s (storage-paths, ")
    assert "20 s before rank 7 hung" in flat(text(report))


def test_a_lost_node_is_reported_with_what_was_found_on_it(tmp_path: Path) -> None:
    run = started(tmp_path).find("n2", "it has fallen off the bus", subject="GPU 1", check="gpu-count").wait(5)
    report = report_of(run.lose("n2"))
    assert report["cause"]["cause"] == "node-lost"
    assert report["cause"]["evidence_lines"] == ["health: GPU 1: it has fallen off the bus (gpu-count)"]


def test_a_node_that_was_left_out_is_named_with_its_reason(tmp_path: Path) -> None:
    run = (
        started(tmp_path)
        .fail(7, LAUNCH)
        .stop()
        .find("n2", ECC, subject="GPU 3")
        .exclude("n2", unhealthy=f"GPU 3: {ECC}")
    )
    run.round(nodes=["n1", "n3"]).steps(100, 150).wait(30).fail(0, ValueError("x")).stop()
    report = report_of(run.round(nodes=["n1", "n3"]).wait(1).fail(0, ValueError("x")).stop())
    assert report["health"]["left_out"] == [
        {
            "node": "n2",
            "kind": "unhealthy",
            "rounds": [2, 3],
            "why": f"GPU 3: {ECC}",
            "text": f"n2 was left out of rounds 2-3: GPU 3: {ECC}",
        }
    ]
    assert f"n2 was left out of rounds 2-3: GPU 3: {ECC}" in flat(text(report))


def test_a_node_that_was_excluded_before_the_run_is_named(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).exclude("n3", excluded="twice in the first failure's place (by ann)")
    run.round(nodes=["n1", "n2"]).wait(3).fail(0, ValueError("x")).stop()
    (out,) = report_of(run)["health"]["left_out"]
    assert out["text"] == ("n3 was left out of round 1: excluded before: twice in the first failure's place (by ann)")


def test_a_node_that_failed_first_again_and_again_is_named_where_it_was_not_used_any_more(tmp_path: Path) -> None:
    run = started(tmp_path)
    for _ in range(2):
        run.fail(7, signal="SIGSEGV").stop()
        run.history[-1]["failure"]["blame"] = "perhaps"
        run.round(nodes=["n1", "n2", "n3"] if len(run.history) == 1 else ["n1", "n3"]).wait(9)
    report = make_report(run.succeed().close("succeeded", "x").write(), now_ns=NOW_NS)
    (out,) = report["health"]["left_out"]
    assert out["kind"] == "excluded-in-run"
    assert (
        out["text"]
        == "n2 was left out of round 3: excluded: first to fail in 2 rounds, last: rank 7 on n2 failed: SIGSEGV"
    )


@pytest.mark.parametrize("why", ["switched off", "follows its rank"])
def test_a_node_that_the_run_did_not_exclude_is_not_reported_as_excluded(tmp_path: Path, why: str) -> None:
    run = started(tmp_path)
    if why == "switched off":
        run.attempts[-1]["options"]["exclude_after"] = 0
    for _ in range(2):
        run.fail(7, signal="SIGSEGV").stop()
        run.history[-1]["failure"]["blame"] = "perhaps"
        run.round(nodes=["n1", "n2", "n3"] if len(run.history) == 1 else ["n1", "n3"]).wait(9)
    if why == "follows its rank":
        run.fail(7, signal="SIGSEGV").stop()
        run.history[-1]["failure"] |= {"blame": "perhaps", "node": "n3"}
        run.round(nodes=["n1", "n3"]).wait(9)
    report = make_report(run.succeed().close("succeeded", "x").write(), now_ns=NOW_NS)
    assert report["health"]["left_out"] == []


def test_a_node_that_is_there_for_spare_is_not_reported_as_left_out(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round(nodes=["n1", "n2"]).wait(3).fail(0, ValueError("x")).stop()
    assert report_of(run)["health"]["left_out"] == []


@pytest.mark.parametrize("rounds", [0, 1])
def test_the_report_of_a_run_with_too_few_healthy_nodes_names_the_refused_one(rounds: int, tmp_path: Path) -> None:
    run = (
        RunBuilder(tmp_path, nodes=2).find("n2", ECC, subject="GPU 3") if not rounds else RunBuilder(tmp_path, nodes=2)
    )
    if rounds:
        run.round().wait(9).stop(reason="the spare came back", outcome="stopped").find("n2", ECC, subject="GPU 3")
    run.exclude("n2", unhealthy=f"GPU 3: {ECC}")
    reason = f"n2 is unhealthy: GPU 3: {ECC}; 1 node fit, at least 2 needed, after waiting 300 s"
    report = make_report(run.close("failed", reason).write(), now_ns=NOW_NS)
    cause = report["cause"]
    assert (cause["cause"], cause["rank"], cause["node"], cause["nodes"]) == ("health-check", None, "n2", ["n2"])
    shown = flat(text(report))
    assert shown.startswith(f"job-123 FAILED: node n2 was refused by its health check: GPU 3: {ECC}")
    assert ("after round 1" if rounds else "before the first round") in shown
    assert "at least 2 needed" in shown
    assert report["summary"].startswith("job-123 failed: node n2 was refused by its health check")
    for form in (render_markdown, render_html):
        assert "was refused by its health check" in form(report, zone=time.gmtime)


def test_the_page_and_the_markdown_show_findings_and_the_nodes_left_out(tmp_path: Path) -> None:
    run = started(tmp_path).find("n2", "<b>2</b> `errors`", subject="GPU 3").wait(40).fail(7, LAUNCH).stop()
    run.exclude("n2", unhealthy="GPU 3: <i>bad</i>").round(nodes=["n1", "n3"]).wait(3).fail(0, LAUNCH).stop()
    path = run.close("failed", "x").write()
    report = make_report(path, now_ns=NOW_NS, round_number=1)
    page = render_html(report, zone=time.gmtime)
    assert "Health of the nodes" in page
    assert "GPU 3: &lt;b&gt;2&lt;/b&gt; `errors`" in page
    assert "n2 was left out of round 2: GPU 3: &lt;i&gt;bad&lt;/i&gt;" in page
    assert "40 s before rank 7 failed" in page
    markdown = render_markdown(report, zone=time.gmtime)
    assert "health of the nodes:" in markdown
    assert "- ``n2: GPU 3: <b>2</b> `errors` (first seen 03-01 12:01:01, 40 s before rank 7 failed)``" in markdown


def test_slow_ranks_stand_on_the_page_and_in_the_markdown_too(tmp_path: Path) -> None:
    run = started(tmp_path)
    for rank in range(12):
        run.pace(rank, 24 if rank == 5 else 16)
    report = report_of(run.wait(9).fail(7, ValueError("x")).stop())
    assert [each["rank"] for each in report["rounds"][0]["slow"]] == [5]
    title = "lower than the others in round 1"
    assert title in text(report)
    assert title in render_html(report, zone=time.gmtime)
    assert title in render_markdown(report, zone=time.gmtime)
    assert "rank 5 on n2" in render_html(report, zone=time.gmtime)


@pytest.mark.parametrize(
    "health",
    [7, [], {"findings": 7}, {"findings": [7, {}]}, {"findings": [{"status": "worst", "text": "x", "since_ns": 1}]}]
    + [
        {"findings": [{"status": "fail", "text": "x", "since_ns": 2**80}]},
        {"status": [], "findings": [{"status": []}]},
    ],
)
def test_broken_health_costs_nothing_but_itself(health: Any, tmp_path: Path) -> None:
    run = started(tmp_path).fail(7, LAUNCH).stop()
    run.damaged = True
    for node in run.round_nodes.values():
        node["health"] = health
    path = run.close("failed", "x").write()
    record = json.loads((path / "nodes/n2.json").read_text())
    (path / "nodes/n2.json").write_text(json.dumps(record | {"health": health, "unhealthy": 7, "excluded": []}))
    report = analyse(gather(path, now_ns=NOW_NS))
    assert (report["cause"]["cause"], report["health"]["findings"]) == ("cuda-launch", [])
    assert report["health"]["left_out"] == []
