"""The first three lines are true and enough, whatever the message and the other ranks are like."""

from __future__ import annotations

import time
from pathlib import Path

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.text import render
from ftslurm.testing.runs import RunBuilder

LATE = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms")
SAVE = "Caught OSError in thread saver-3 while it wrote shard 17 of the checkpoint of step 7 to /data/checkpoints/run"


def first_lines(run: RunBuilder) -> str:
    path = run.close("failed", "no restarts").write()
    report = analyse(gather(path, now_ns=run.now_ns + 10**9))
    return " ".join(" ".join(render(report, zone=time.gmtime).splitlines()[:3]).split())


def test_a_message_that_is_too_long_does_not_hide_the_cause(tmp_path: Path) -> None:
    error = RuntimeError(f"{SAVE}/17: No space left on device")
    text = first_lines(RunBuilder(tmp_path).round().fail(3, error, step=7).stop())
    assert "rank 3 on n2: disk full (RuntimeError: Caught OSError in thread" in text
    assert "train.py:42 in train_step, step 7, round 1" in text


def test_a_long_message_of_a_cause_that_says_nothing_more_stands_alone(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("a long story " * 20), step=7).stop()
    assert "rank 3 on n2: ValueError: a long story" in first_lines(run)


def test_the_rank_that_the_others_waited_for_is_named_though_it_did_not_fail(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (0, 1, 3):
        run.fail(rank, LATE, step=7)
    text = first_lines(run.stop())
    assert "Timed out waiting 1800000ms" in text
    assert "rank 2 did not fail: the others may have waited for it" in text


def test_who_was_stopped_is_not_suspected_where_most_ranks_had_not_timed_out_yet(tmp_path: Path) -> None:
    text = first_lines(RunBuilder(tmp_path, nodes=4).round().fail(0, LATE, step=7).stop())
    assert "did not fail" not in text
    assert "this follows from another rank's end" in text


def test_a_node_whose_guardian_outlived_its_agent_is_not_called_lost(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().lose("n2", silent_s=0.0)
    run.history[-1]["reason"] = "n2 left: its agent was killed by SIGKILL"
    report = analyse(gather(run.close("failed", "x").write(), now_ns=run.now_ns))
    assert report["cause"]["cause"] == "agent-lost"
