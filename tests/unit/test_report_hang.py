"""The report of a round that ended by a hang."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report import gathering
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.pipeline import rendered
from ftslurm.report.text import render

TORCH = "/opt/conda/lib/python3.11/site-packages/torch"
MAIN = ("/home/ann/lm/train.py", 61, "<module>")
REDUCE = (MAIN, ("/home/ann/lm/train.py", 88, "step"), (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"))
DATA = (MAIN, (f"{TORCH}/utils/data/dataloader.py", 725, "__next__"), ("/home/ann/lm/data.py", 40, "__getitem__"))
REASON = "rank 0 on n1 hung at step 120: no heartbeat for 30 s (time-out 30 s)"


def report_and_text(run: RunBuilder, **kwargs: Any) -> tuple[dict[str, Any], str]:
    """Return the report and its text."""
    path = run.write()
    report = analyse(gather(path, now_ns=run.now_ns, **kwargs), **kwargs)
    json.loads(rendered(report, "json"))
    return report, render(report, zone=time.gmtime).replace(str(path), "/shared/runs/job-123")


def hung(parent: Path, places: dict[int, Any] | None = None) -> RunBuilder:
    """Build a run of four ranks on two nodes; the time-out is that of rank 0, whoever is to blame."""
    run = RunBuilder(parent).round().steps(1, 120).wait(200)
    all_places = {0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA} | (places or {})
    return run.hang(0, places=all_places, step=120).log(3, "loading shard 7\n").stop(killed=(0,))


def test_the_suspect_is_the_headline_and_all_places_and_stacks_follow(tmp_path: Path) -> None:
    report, text = report_and_text(hung(tmp_path).close("failed", f"{REASON}; no restarts allowed (--max-restarts 0)"))
    assert text == (
        """\
job-123 FAILED: rank 3 on n2: hung in DataLoader at data.py:40, while 3 ranks
  wait in all_reduce at train.py:88
  step 120, round 1; noticed by rank 0: no heartbeat for 30 s (time-out 30 s)
  no restarts allowed (--max-restarts 0); job exit code 1
  hint: The others wait for it: its stack below shows its own location.

where the ranks of round 1 were
 *rank 3 on n2  in DataLoader at data.py:40
  ranks 0-2     in all_reduce at train.py:88
  *: not where the others wait

their stacks, innermost call last
  ranks 0-3
    File "/home/ann/lm/train.py", line 61, in <module>
    ranks 0-2
      File "/home/ann/lm/train.py", line 88, in step
      File "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
    rank 3
      File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725, in __next__
      File "/home/ann/lm/data.py", line 40, in __getitem__

the end of its stderr (rounds/000001/ranks/00003/stderr.log)
  | loading shard 7

the other ranks of round 1
  ranks 0-2  stopped by ftslurm, 1 of them by SIGKILL: rank 0 on n1 hung

rounds (2026-03-01 GMT)
  round  nodes  ranks  started   took        ended
  1      2      4      12:00:01  3 min 20 s  rank 3 on n2: hung in DataLoader...

  files: /shared/runs/job-123
"""
    )
    cause = report["cause"]
    assert (cause["kind"], cause["cause"], cause["rank"], cause["node"]) == ("hang", "hang", 3, "n2")
    assert cause["where"]["shown"] == "data.py"
    assert cause["hang"] == {
        "rank": 0,
        "node": "n1",
        "message": "no heartbeat for 30 s (time-out 30 s)",
        "since_ns": cause["time_ns"] - 30 * 10**9,
        "verdict": "odd",
        "where": None,
    }


def test_a_stopped_rank_is_named_with_why_it_gave_no_stacks(tmp_path: Path) -> None:
    report, text = report_and_text(hung(tmp_path, {3: "stopped (SIGSTOP)"}).close("failed", REASON))
    assert report["cause"]["what"] == "hung: stopped (SIGSTOP), while 3 ranks wait in all_reduce at train.py:88"
    assert " *rank 3 on n2  stopped (SIGSTOP)\n    State: ?\n" in text
    assert "kill -STOP" in text


def test_a_rank_in_the_kernel_is_named_with_the_place_there(tmp_path: Path) -> None:
    run = hung(tmp_path, {3: "in uninterruptible sleep (D) in rpc_wait_bit_killable"})
    _, text = report_and_text(run.close("failed", REASON))
    assert "in uninterruptible sleep (D) in rpc_wait_bit_killable" in text
    assert "check dmesg there" in " ".join(text.split())


def test_ranks_that_wait_for_threads_of_their_own_are_not_sent_to_the_network(tmp_path: Path) -> None:
    queue = (MAIN, ("/usr/lib/python3.11/queue.py", 171, "get"), ("/usr/lib/python3.11/threading.py", 327, "wait"))
    _, text = report_and_text(hung(tmp_path, dict.fromkeys(range(4), queue)).close("failed", REASON))
    assert "It waits for a thread of its own process" in text
    assert "network" not in text


def test_ranks_that_all_create_a_group_are_to_be_compared_by_the_groups_that_they_create(tmp_path: Path) -> None:
    group = (MAIN, (f"{TORCH}/distributed/distributed_c10d.py", 5863, "new_group"))
    _, text = report_and_text(hung(tmp_path, dict.fromkeys(range(4), group)).close("failed", REASON))
    assert "Each rank must create all groups, in the same order" in " ".join(text.split())
    assert "network" not in text


def test_where_no_rank_stands_out_the_report_names_the_rank_whose_time_out_expired(tmp_path: Path) -> None:
    report, text = report_and_text(hung(tmp_path, {3: REDUCE}).close("failed", REASON))
    lines = text.splitlines()
    assert lines[0] == "job-123 FAILED: ranks 0-3 on n1, n2: hung in all_reduce at train.py:88"
    assert lines[1].strip() == "step 120, round 1; rank 0 on n1: no heartbeat for 30 s (time-out 30 s)"
    assert "  none of them is a suspect\n" in text
    assert "check the network" in " ".join(text.split())
    assert report["rounds"][0]["whereabouts"]["verdict"] == "none"


def test_the_report_of_ranks_that_wait_for_the_lock_of_a_dead_builder_names_what_to_remove(tmp_path: Path) -> None:
    wait = (
        MAIN,
        (f"{TORCH}/utils/cpp_extension.py", 2400, "_jit_compile"),
        (f"{TORCH}/utils/file_baton.py", 4, "wait"),
    )
    _, text = report_and_text(hung(tmp_path, dict.fromkeys(range(4), wait)).close("failed", REASON))
    assert "find ${TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions} -name lock -delete" in " ".join(text.split())


def test_the_traceback_at_the_end_of_the_only_suspects_stderr_is_shown(tmp_path: Path) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/home/ann/lm/data.py", line 17, in load\nValueError: no tokens\n'
    )
    expected = "the stderr of rank 3 ends with a traceback: ValueError: no tokens at data.py:17"
    for number, text in enumerate((raised, f"{raised}step 120\n")):
        run = RunBuilder(tmp_path / str(number)).round().steps(1, 120).wait(200)
        run.hang(0, places={0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA}, step=120).log(3, text)
        shown = report_and_text(run.stop(killed=(0,)).close("failed", REASON))[1]
        assert (expected in " ".join(shown.split())) == (text is raised)


def test_a_long_message_of_a_thread_that_died_is_below_the_headline_which_has_its_type(tmp_path: Path) -> None:
    message = "'utf-8' codec can't decode byte 0xe9 in position 1699: invalid continuation byte"
    frames = '  File "/w/reader.py", line 12, in read\n  File "<frozen codecs>", line 322, in decode\n'
    died = f"Exception in thread prefetch:\nTraceback (most recent call last):\n{frames}"
    queue = {3: [("/w/train.py", 18, "batch"), ("/usr/lib/python3.11/queue.py", 171, "get")]}
    _, text = report_and_text(
        hung(tmp_path, queue).log(3, f"{died}UnicodeDecodeError: {message}\n").close("failed", REASON)
    )
    flat = " ".join(text.split())
    assert "rank 3 on n2: hung in queue.get at train.py:18 in batch: thread prefetch died: UnicodeDecodeError" in flat
    assert f"thread prefetch of rank 3 died at reader.py:12: UnicodeDecodeError: {message}" in flat


def test_several_suspects_are_counted_in_the_headline(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4).round().steps(1, 120).wait(9)
    places = {rank: DATA if rank in (5, 6) else REDUCE for rank in range(8)}
    _, text = report_and_text(run.hang(0, places=places).stop().close("failed", REASON))
    assert text.startswith("job-123 FAILED: ranks 5-6 on n3, n4: hung in DataLoader at data.py:40, while 6\n")


def test_ranks_without_a_file_are_named_as_missing(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().wait(9).hang(1, places={0: REDUCE, 1: REDUCE}).stop()
    report, text = report_and_text(run.close("failed", REASON))
    assert report["rounds"][0]["whereabouts"]["missing"] == {"ranks": "2-3", "count": 2}
    assert "  no stacks were collected of 2 ranks (2-3)\n" in text


def test_without_any_stacks_the_rank_whose_time_out_expired_is_all_there_is(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().wait(9).hang(1, places={}, step=4).stop().close("failed", REASON)
    report, text = report_and_text(run)
    assert (report["cause"]["rank"], report["rounds"][0]["whereabouts"]) == (1, None)
    assert "where the ranks" not in text
    assert "hint: No stacks were collected" in text


def test_an_exception_that_made_the_others_hang_stays_the_cause(tmp_path: Path) -> None:
    """The rank raised, wrote its record, and then did not end: its own teardown waits."""
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(9).fail(3, ValueError("boom"), step=120)
    run.history[-1]["failure"] = None
    run.hang(0, places=dict.fromkeys(range(3), REDUCE), after_s=30).stop().close("failed", REASON)
    report, text = report_and_text(run)
    assert (report["cause"]["rank"], report["cause"]["kind"]) == (3, "exception")
    assert "where the ranks of round 1 were" in text


def test_ranks_whose_scripts_had_ended_are_not_sent_to_the_network(tmp_path: Path) -> None:
    report, text = report_and_text(hung(tmp_path, dict.fromkeys(range(4), ())).close("failed", REASON))
    assert report["cause"]["ranks"] == "0-3"
    assert "ranks 0-3 on n1, n2: hung at the end of Python (the script had ended)" in " ".join(text.split())
    assert "destroy_process_group()" in text and "network" not in text


def test_one_whose_script_had_ended_is_what_the_others_wait_for(tmp_path: Path) -> None:
    report, text = report_and_text(hung(tmp_path, {3: ()}).close("failed", REASON))
    first = "rank 3 on n2: at the end of Python (the script had ended), and is waited for"
    assert (report["cause"]["rank"], first in " ".join(text.split())) == (3, True)
    assert "equally many collectives" in text


RAISED = (("/home/ann/lm/train.py", 41, "<module>", "dist.barrier()"),)
RECORDER = (("/shared/ftslurm/failures/recorder.py", 67, "exception"), ("/shared/ftslurm/records/error.py", 44, "f"))


@pytest.mark.parametrize("at", [(), RECORDER, "no answer to the dump signal"])
def test_ranks_that_had_raised_are_shown_with_their_exception_and_the_line_of_the_script(
    tmp_path: Path, at: Any
) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 9).wait(9)
    for rank in (0, 1):
        run.fail(rank, RuntimeError("[gloo/transport/tcp/pair.cc:5] Connection closed by peer"), frames=RAISED)
    run.history[-1]["failure"] = None
    places = {0: at, 1: at, 2: DATA, 3: DATA}
    report, text = report_and_text(run.hang(0, places=places, after_s=5).stop().close("failed", REASON))
    groups = {group["ranks"]: group["text"] for group in report["rounds"][0]["whereabouts"]["groups"]}
    assert groups == {"2-3": "in DataLoader at data.py:40", "0-1": "ending after RuntimeError at train.py:41"}
    assert "ftslurm/failures" not in text


def test_an_error_record_outranks_the_time_that_the_end_of_its_rank_takes(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 9).wait(9)
    for rank in range(4):
        run.fail(rank, RuntimeError("[gloo/transport/tcp/pair.cc:5] Connection closed by peer"), frames=RAISED)
    run.history[-1]["failure"] = None
    report, text = report_and_text(
        run.hang(0, places=dict.fromkeys(range(4), ()), after_s=5).stop().close("failed", REASON)
    )
    assert (report["cause"]["kind"], "hung" in text.splitlines()[0]) == ("exception", False)


def test_connections_that_break_when_the_hung_round_is_stopped_are_no_first_failure(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 9).wait(9)
    run.hang(0, places={0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA})
    run.fail(2, RuntimeError("[gloo/transport/tcp/pair.cc:5] Connection closed by peer"), after_s=3)
    report, _ = report_and_text(run.stop().close("failed", REASON))
    assert (report["cause"]["kind"], report["cause"]["rank"]) == ("hang", 3)
    assert [group["ranks"] for group in report["rounds"][0]["groups"]] == ["2"]


def test_the_same_hang_in_two_rounds_is_recognized(tmp_path: Path) -> None:
    run = hung(tmp_path).round().steps(120, 130).wait(9)
    run.hang(1, places={0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA}, step=130).stop().close("failed", REASON)
    report, _ = report_and_text(run)
    assert report["cause"]["same_as_rounds"] == [1]


def test_hostile_and_broken_files_cost_only_themselves(tmp_path: Path) -> None:
    run = hung(tmp_path).close("failed", REASON)
    path = run.write()
    ranks = path / "rounds" / "000001" / "ranks"
    (ranks / "00000" / "stacks.txt").write_bytes(b"\x00" * (2 << 20))
    (ranks / "00001" / "stacks.txt").unlink()
    (ranks / "00001" / "stacks.txt").symlink_to("/etc/passwd")
    wrong = (ranks / "00003" / "stacks.txt").read_bytes()
    (ranks / "00002" / "stacks.txt").write_bytes(wrong)  # says that it is rank 3's
    text = (ranks / "00003" / "stacks.txt").read_text()
    (ranks / "00003" / "stacks.txt").write_text(text.replace("data.py", "da\x1b[2Jta.py\u202e"))
    report = analyse(gather(path, now_ns=run.now_ns))
    assert report["rounds"][0]["whereabouts"]["missing"]["ranks"] == "0-2"
    shown = render(report)
    assert [c for c in shown if c != "\n" and not c.isprintable()] == []
    assert len(report["problems"]) == 2


def test_no_more_is_read_than_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "STACKS_IN_ALL", 600)
    report, _ = report_and_text(hung(tmp_path).close("failed", REASON))
    assert "not read" in report["problems"][0]["reason"]
    assert report["rounds"][0]["whereabouts"]["missing"] is not None


def test_stacks_of_old_hangs_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    for _ in range(12):
        run.round().wait(9).hang(0, places={0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA}).stop()
    run.close("failed", REASON)
    report, _ = report_and_text(run)
    assert [bool(entry["whereabouts"]) for entry in report["rounds"]] == [False] * 4 + [True] * 8
    report, text = report_and_text(run, round_number=2)
    assert report["rounds"][1]["whereabouts"]
    assert "where the ranks of round 2 were" in text


def test_our_own_lines_keep_within_the_width(tmp_path: Path) -> None:
    long = (MAIN, (f"/home/{'x' * 90}.py", 88, "f" * 90))
    _, text = report_and_text(hung(tmp_path, {0: long, 1: "p " * 100, 2: REDUCE}).close("failed", REASON))
    lines = [line for line in text.splitlines() if "File " not in line]
    assert max(len(line) for line in lines) <= 80
