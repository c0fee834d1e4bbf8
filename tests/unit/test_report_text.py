"""What people read: whole reports as they are printed, and what must never reach a terminal."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder
from simulation.training import Training, simulate

from ftslurm.records.arrivals import ArrivalsRecord
from ftslurm.records.codec import write_record
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.layout import EVIDENCE_WIDTH
from ftslurm.report.text import render

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3141"
NO_RESTARTS = "rank 3 on n2 failed at step 120: ValueError: boom; no restarts allowed (--max-restarts 0)"


def text(run: RunBuilder, *, later_s: float = 1.0, colour: bool = False, **kwargs: Any) -> str:
    path = run.write()
    snapshot = gather(path, now_ns=run.now_ns + int(later_s * 1e9), **kwargs)
    report = analyse(snapshot, **kwargs)
    return render(report, zone=time.gmtime, colour=colour).replace(str(path), "/shared/runs/job-123")


def failing_run(parent: Path) -> RunBuilder:
    run = RunBuilder(parent).round().steps(1, 120, over_s=200)
    run.fail(3, ValueError("boom"), step=120, log="step 119 loss 2.31\nstep 120 loss 2.30\n")
    return run.fail(2, RuntimeError(GLOO), after_s=0.05).stop(killed=(0,))


def test_a_failed_run_reads_from_the_answer_to_the_evidence_to_the_rest(tmp_path: Path) -> None:
    assert text(failing_run(tmp_path).close("failed", NO_RESTARTS)) == (
        """\
job-123 FAILED: rank 3 on n2: ValueError: boom
  at train.py:42 in train_step, step 120, round 1
  no restarts allowed (--max-restarts 0); job exit code 1

traceback of rank 3 in round 1
  Traceback (most recent call last):
    File "/home/ann/lm/train.py", line 61, in <module>
      main()
    File "/home/ann/lm/train.py", line 42, in train_step
      loss = model(batch).mean()
  ValueError: boom

the end of its stderr, traceback left out (rounds/000001/ranks/00003/stderr.log)
  | step 119 loss 2.31
  | step 120 loss 2.30

the other ranks of round 1
  rank 2     connection to another rank broke (RuntimeError: Connection close...
  ranks 0-1  stopped by ftslurm, 1 of them by SIGKILL: rank 3 on n2 failed

rounds (2026-03-01 GMT)
  round  nodes  ranks  started   took        ended
  1      2      4      12:00:01  3 min 20 s  rank 3 on n2: ValueError: boom

  files: /shared/runs/job-123
"""
    )


def test_a_run_without_failures_takes_three_lines(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 500).succeed().close("succeeded", "all 4 ranks succeeded")
    assert text(run) == (
        """\
job-123 succeeded: 1 round, 2 nodes, 4 ranks, 1 min, no failure
  started 2026-03-01 12:00:01, last step 500
  files: /shared/runs/job-123
"""
    )


def test_a_recovered_failure_stands_under_the_success_with_its_cost(tmp_path: Path) -> None:
    run = failing_run(tmp_path).round().steps(100, 500).succeed().close("succeeded", "all succeeded")
    lines = text(run).splitlines()
    assert lines[:7] == [
        "job-123 succeeded after 1 recovered failure: 2 rounds, 2 nodes, 4 ranks, 4 min",
        "  21 s",
        "  round 1: rank 3 on n2: ValueError: boom",
        "    at train.py:42 in train_step, step 120",
        "    next round 1.25 s later, 20 steps repeated",
        "  started 2026-03-01 12:00:01, last step 500",
        "",
    ]
    assert lines[-8:] == [
        "  round  nodes  ranks  started   took        ended",
        "  1      2      4      12:00:01  3 min 20 s  rank 3 on n2: ValueError: boom",
        "         next round 1.25 s later, 20 steps repeated",
        "  2      2      4      12:03:22  1 min       succeeded at step 500",
        "  in all: 86.7 % of 4 min 21 s was training; lost: 34 s of work (20 steps),",
        "    250 ms detection, 1 s restarting; 2.3 rank-minutes",
        "",
        "  files: /shared/runs/job-123",
    ]


def test_a_lost_node_with_one_rank_had_that_rank(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3, nproc=1).round().steps(1, 120).wait(100).lose("n2")
    assert "it had rank 1\n" in text(run.close("failed", "n2 was lost: no heartbeat of its agent for 30 s"))


def test_a_lost_node_is_named_with_the_ranks_it_had(tmp_path: Path) -> None:
    reason = "n2 was lost: no heartbeat of its agent for 30 s"
    run = RunBuilder(tmp_path, nodes=3).round().steps(1, 120).wait(100).lose("n2")
    run.close("failed", f"{reason}; 2 of at least 3 nodes are there, and nothing can replace it")
    assert text(run) == (
        """\
job-123 FAILED: node n2 was lost: no heartbeat of its agent for 30 s
  step 120, round 1; it had ranks 2-3
  2 of at least 3 nodes are there, and nothing can replace it; job exit code 1
  hint: See Slurm's view of the node: sacct, sinfo -R.

the other ranks of round 1
  ranks 0-1, 4-5  stopped by ftslurm: n2 was lost: no heartbeat of its agent...
  ranks 2-3       no end recorded (on n2)

rounds (2026-03-01 GMT)
  round  nodes  ranks  started   took        ended
  1      3      6      12:00:01  2 min 10 s  node n2 was lost: no heartbeat o...

  files: /shared/runs/job-123
"""
    )


def test_the_report_of_a_running_job_has_its_round_step_and_last_sign_of_life(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 340).wait(720)
    assert text(run, later_s=2) == (
        """\
job-123 is still running: round 1, 2 nodes, 4 ranks, for 12 min 2 s, step 340
  last activity 2 s ago (n2, 03-01 12:12:01)
  files: /shared/runs/job-123
"""
    )


def test_the_report_of_a_run_without_an_end_has_the_age_of_its_last_sign_of_life(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 340).wait(720)
    assert text(run, later_s=7200) == (
        """\
job-123: no end was recorded; last activity 2 h ago (n2, 03-01 12:12:01)
  it was in round 1, 2 nodes, 4 ranks, step 340
  all processes were killed at once, or the shared directory became unavailable:
    see sacct -j 123
  files: /shared/runs/job-123
"""
    )


def test_a_stopped_run_gives_the_reason_and_blames_no_rank(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(100).stop(reason="SIGTERM", outcome="stopped")
    assert text(run.close("stopped", "SIGTERM from outside (scancel or a time limit)")) == (
        """\
job-123 was stopped: SIGTERM from outside (scancel or a time limit)
  in round 1, step 120, after 1 min 40 s; job exit code 143; no rank is to blame
  files: /shared/runs/job-123
"""
    )


def test_doubts_about_the_first_failure_stand_near_it_but_below_the_exit_if_they_are_long(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("a")).fail(0, KeyError("b"), after_s=0.05).stop()
    lines = text(run.close("failed", "x")).splitlines()
    assert lines[2] == "  x; job exit code 1"
    assert lines[3].startswith("  at about the same time: rank 0 on n1: KeyError: 'b' (±100 ms")
    run = RunBuilder(tmp_path, run_id="b").round().fail(3, RuntimeError(GLOO * 3)).stop().close("failed", "x")
    assert "another rank's end" not in text(run)
    run = RunBuilder(tmp_path, run_id="c").round().finish(1).fail(3, RuntimeError(GLOO)).stop().close("failed", "x")
    assert "rank 1 had finished with exit code 0" in text(run).splitlines()[2]


def test_a_long_message_leaves_the_place_in_the_third_line(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("many words " * 50), step=7).stop().close("failed", "x")
    assert text(run).splitlines()[2] == "  at train.py:42 in train_step, step 7, round 1"


@pytest.mark.parametrize(("more", "number"), [("", True), (" of /scratch" * 12, False)])
def test_a_headline_loses_the_number_of_an_error_only_if_it_is_too_long(
    tmp_path: Path, more: str, number: bool
) -> None:
    run = RunBuilder(tmp_path).round().fail(3, OSError(28, f"No space left on device{more}"), step=7).stop()
    answer = " ".join(text(run.close("failed", NO_RESTARTS)).split("traceback")[0].split())
    assert ("[Errno 28] No space left" in answer) is number, answer
    assert "No space left on device" in answer


def test_another_round_can_be_shown(tmp_path: Path) -> None:
    run = failing_run(tmp_path).round().fail(0, signal="SIGSEGV", core_dumped=True).stop().close("failed", "x")
    assert "traceback of rank 3 in round 1" in text(run, round_number=1)
    assert text(run).startswith("job-123 FAILED: rank 0 on n1: segmentation fault (SIGSEGV, core dumped)\n")


def test_many_rounds_are_reported_in_few_lines_and_the_same_failure_once(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    for i in range(40):
        run.round().steps(i, i + 1).fail(3, ValueError(f"row {i}")).stop()
    shown = text(run.round().succeed().close("succeeded", "x"))
    assert "  40 rounds (1-40), the last: rank 3 on n2: ValueError: row 39\n" in shown
    assert "... 29 rounds left out (see --json)" in shown
    assert len(shown.splitlines()) < 60


def test_a_requeue_is_shown_with_its_attempts(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 50).wait(33).stop(reason="no word", outcome="stopped").attempt()
    shown = text(run.wait(300).round().steps(40, 90).succeed().close("succeeded", "all"))
    assert shown.startswith("job-123 succeeded after 1 interruption: ")
    assert "  1      123.0    2 " in shown
    assert "next round 5 min 1 s later, in another attempt, 10 steps repeated" in shown


def test_files_that_could_not_be_used_are_named(tmp_path: Path) -> None:
    run = failing_run(tmp_path).close("failed", "x")
    (run.write() / "nodes" / "n1.json").write_text("")
    report = analyse(gather(run.path, now_ns=run.now_ns))
    assert "files that could not be used\n  nodes/n1.json: empty\n" in render(report)


HOSTILE = "\x1b]0;title\x07\x1b[2Jred\x1b[31m\x9b1m \x07\x08\u202e\u2028 \ud800 \x00 end\r\n"


@pytest.mark.parametrize("colour", [False, True])
def test_nothing_in_any_file_can_act_on_the_terminal(tmp_path: Path, colour: bool) -> None:
    run = RunBuilder(tmp_path).round()
    frames = ((f"/x/{HOSTILE}.py", 1, HOSTILE, HOSTILE),)
    run.fail(3, ValueError(HOSTILE), frames=frames).log(3, HOSTILE.replace("\ud800", ""))
    run.fail(2, RuntimeError(HOSTILE), after_s=0.5).stop(reason=HOSTILE).round().lose("n1").close("failed", HOSTILE)
    run.history[0]["attempt"] = run.history[1]["outcome"] = HOSTILE
    run.reasons["n1"] = HOSTILE
    (run.write() / "nodes" / "x\x1b[2J.json").write_text("")
    for number in (None, 1, 2):
        shown = text(run, colour=colour, round_number=number)
        shown = shown.replace("\x1b[1m", "").replace("\x1b[1;31m", "").replace("\x1b[0m", "")
        assert [c for c in shown if c != "\n" and not c.isprintable()] == []
        shown.encode()


def test_colour_is_there_only_if_asked_for(tmp_path: Path) -> None:
    run = failing_run(tmp_path).close("failed", "x")
    assert "\x1b" not in text(run)
    assert text(run, colour=True).startswith("\x1b[1;31mjob-123 FAILED\x1b[0m: rank 3")


def test_our_own_lines_keep_within_80_columns_and_quoted_ones_are_bounded(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=9, run_id="job-" + "9" * 90, nproc=1).round(nodes=[f"n{i}" for i in range(1, 10)])
    run.fail(3, ValueError("x" * 5000), log="y" * 5000).fail(5, KeyError("z" * 500), after_s=0.01)
    shown = text(run.stop(reason="r" * 300).close("failed", "s" * 300)).splitlines()
    quoted = [line for line in shown if line.startswith(("  |", "  ValueError", "  files:", "    ", "the end of"))]
    assert max(len(line) for line in shown if line not in quoted) <= 80
    assert max(len(line) for line in quoted) <= EVIDENCE_WIDTH + 4


def test_a_traceback_of_a_million_lines_is_shown_by_its_ends(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("a\n" * 100_000)).stop().close("failed", "x")
    shown = text(run)
    assert "lines left out" in shown
    assert len(shown.splitlines()) < 80


def test_a_rank_that_was_slower_than_the_others_all_the_time_is_named(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 500)
    for rank in range(4):
        run.pace(rank, 24 if rank == 2 else 16)
    run.succeed().close("succeeded", "all 4 ranks succeeded")
    shown = text(run)
    assert "slower than the others in round 1\n  rank 2 on n2: " in shown


def test_a_rank_that_kept_the_others_waiting_is_named(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 500).succeed().close("succeeded", "all 4 ranks succeeded")
    directory = run.write()
    place = directory / "rounds" / "000001" / "arrivals"
    place.mkdir()
    arrivals = simulate(random.Random(1), Training([range(4)], slow={2: 0.1}), 46)
    for each in arrivals:
        record = ArrivalsRecord(1, f"n{each.rank // 2 + 1}", 5, tuple(arrivals[each.rank // 2 * 2 :][:2]))
        (place / f"{record.node}.json").write_bytes(write_record(record))
    (place / "n9.json").write_text("of no node of the round")
    report = analyse(gather(directory, now_ns=run.now_ns))
    assert report["problems"] == []
    shown = " ".join(render(report, zone=time.gmtime).split())
    assert "slower than the others in round 1 rank 2 on n2: arrives 10" in shown
    (place / "n2.json").write_text("{")
    report = analyse(gather(directory, now_ns=run.now_ns))
    assert [each["file"] for each in report["problems"]] == ["rounds/000001/arrivals/n2.json"]
    assert report["rounds"][0]["late"] == []


def test_what_is_no_pace_names_no_rank(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 500).pace(2, -1).pace(3, 10**6).pace(1, 3, -5)
    run.succeed().close("succeeded", "all 4 ranks succeeded")
    assert analyse(gather(run.write(), now_ns=run.now_ns))["rounds"][0]["slow"] == []


def test_attempts_with_long_names_are_distinguished_in_the_table_of_rounds(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, job_id="local-20261122-140540-28591").round().fail(1, ValueError("x")).stop()
    run.job_id = "local-20261122-140541-28614"
    run.attempt().round().succeed().close("succeeded", "all ranks succeeded")
    for number, (entry, record) in enumerate(zip(run.history, run.attempts, strict=True)):
        assert entry["attempt"] == record["attempt"], number
    lines = render(analyse(gather(run.write(), now_ns=run.now_ns))).splitlines()
    rows = [line.split() for line in lines[lines.index(next(x for x in lines if x.startswith("rounds ("))) :]]
    assert [row[1] for row in rows if row and row[0] in ("1", "2")] == ["...0-28591.0", "...1-28614.1"]
