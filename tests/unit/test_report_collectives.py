"""The report of a round whose ranks' collectives are recorded: one culprit, its call, and where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder
from sample_runs.contents import START_NS
from test_collective_judgement import entry
from test_report_hang import DATA, MAIN, REASON, REDUCE, TORCH, report_and_text

from ftslurm.dataclasses import replace
from ftslurm.records.flight import Collective, GroupConfig, Trace
from ftslurm.report import gathering
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.html import render as html
from ftslurm.report.markdown import render as markdown
from ftslurm.report.pipeline import make_report

MAIN_FRAMES = (("/home/ann/lm/train.py", 120, "main", "main()"),)
GATHER = (MAIN, ("/home/ann/lm/train.py", 91, "step"), (f"{TORCH}/distributed/distributed_c10d.py", 4, "all_gather"))
REST = [entry(n, "gloo:all_reduce") for n in range(110, 118)]
WAITS = [*REST, entry(118, "gloo:all_reduce", retired=False)]
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
ODD = [*REST, entry(118, "gloo:all_gather", retired=False)]


def recorded(run: RunBuilder, calls: dict[int, list[Collective] | None], **kwargs: Any) -> RunBuilder:
    """Add the records of these ranks; None: it gave no answer."""
    for rank, entries in calls.items():
        run.collectives(rank, None if entries is None else Trace(tuple(entries), {}, {}), **kwargs)
    return run


def hung(parent: Path, places: dict[int, Any], calls: dict[int, list[Collective] | None]) -> RunBuilder:
    """Build a run of four ranks on two nodes that hang; the time-out is that of rank 0."""
    run = RunBuilder(parent).round().steps(1, 120).wait(200).hang(0, places=places, step=120)
    return recorded(run, calls).stop(killed=(0,)).close("failed", f"{REASON}; no restarts allowed (--max-restarts 0)")


def test_the_rank_with_another_call_is_the_first_line_with_both_calls_and_its_place_follows(tmp_path: Path) -> None:
    """By the stacks alone, all wait: in all_reduce, and one in all_gather; or all in the same helper."""
    places = {0: REDUCE, 1: REDUCE, 2: GATHER, 3: REDUCE}
    report, text = report_and_text(hung(tmp_path, places, {0: WAITS, 1: WAITS, 2: ODD, 3: WAITS}))
    assert text.startswith(
        """\
job-123 FAILED: rank 2 on n2 calls all_gather #118 [4096 float32] where ranks
  0-1, 3 call all_reduce #118 [4096 float32] (group default_pg)
  in all_gather at train.py:91; step 120, round 1; noticed by rank 0
  no restarts allowed (--max-restarts 0); job exit code 1
  hint: All ranks of a group must call the same collectives in the same order:
    see where paths part.

the collectives of round 1
 *rank 2 on n2  waits in all_gather #118 [4096 float32]
  ranks 0-1, 3  wait in all_reduce #118 [4096 float32]

where the ranks of round 1 were
 *rank 2 on n2  in all_gather at train.py:91
  ranks 0-1, 3  in all_reduce at train.py:88
  *: named by the records of the ranks' collectives
"""
    ), text
    cause, found = report["cause"], report["rounds"][0]["collectives"]
    assert (cause["rank"], cause["node"], cause["ranks"], cause["hang"]["verdict"]) == (2, "n2", "2", "collectives")
    assert report["rounds"][0]["whereabouts"]["verdict"] == "collectives"
    assert (found["verdict"], found["used"], found["certain"]) == ("operation", True, True)
    assert (found["group"], found["group_description"], found["group_size"]) == ("0", "default_pg", 4)
    assert (found["operation"], found["number"], found["culprits"]["ranks"]) == ("all_reduce", 118, "2")
    assert [(party["ranks"], party["calls"]) for party in found["parties"]] == [
        ("0-1, 3", "all_reduce #118 [4096 float32]"),
        ("2", "all_gather #118 [4096 float32]"),
    ]


def test_a_dead_thread_of_the_rank_that_the_others_wait_for_is_named_in_the_first_lines(tmp_path: Path) -> None:
    queue = (MAIN, ("/w/train.py", 18, "batch"), ("/usr/lib/python3.11/queue.py", 171, "get"))
    run = hung(tmp_path, {0: REDUCE, 1: REDUCE, 2: queue, 3: REDUCE}, {0: WAITS, 1: WAITS, 2: REST, 3: WAITS})
    died = (
        'Exception in thread prefetch:\nTraceback (most recent call last):\n  File "/w/train.py", line 12, in parse\n'
    )
    _, text = report_and_text(run.log(2, f"{died}ValueError: row 7\n"))
    assert "rank 2 on n2 has not joined all_reduce #118" in " ".join(text.split())
    assert "thread prefetch of rank 2 died at train.py:12: ValueError: row 7" in "".join(text.splitlines()[:6])


def test_ranks_in_a_cycle_that_timed_out_are_shown_with_the_cycle_though_one_was_asked_after_its_failure(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path).round().wait(60)
    members = {"1": (0, 1), "2": (1, 3), "3": (2, 3), "4": (0, 2)}
    late = RuntimeError("[/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation")
    frames = (("/w/train.py", 10, "sync", None), (f"{TORCH}/distributed/distributed_c10d.py", 9, "all_reduce", None))
    for rank, name in ((2, "4"), (3, "3"), (0, "1"), (1, "2")):
        run.fail(rank, late, frames=frames, after_s=0.01)
        # Gloo counts a call that failed as done.
        calls = (entry(1, "gloo:barrier"), entry(1, "gloo:all_reduce", process_group=(name, "undefined")))
        config = {each: GroupConfig("", of) for each, of in members.items() if rank in of and rank != 1}
        run.collectives(rank, Trace(calls, config, {}), left=rank != 1)
    run.history[-1]["failure"]["by_peers"] = True
    report, text = report_and_text(run.stop().close("failed", REASON))
    assert (
        "FAILED: ranks 0, 1, 3, 2 wait for each other in a cycle: groups are used in different orders at"
        in " ".join(text.split())
    )
    assert report["cause"]["hang"]["verdict"] == "collectives-parties"
    assert "not joined" not in text
    assert "rank 1 waits in all_reduce #1 (group 2) for rank 3" in text
    path = run.write()
    for file in path.glob("rounds/*/nodes/*.json"):
        node = json.loads(file.read_text())
        workers = [{key: value for key, value in worker.items() if key != "error"} for worker in node["workers"]]
        file.write_text(json.dumps(node | {"workers": workers}))
    again = make_report(path)
    assert again["cause"]["what"] == report["cause"]["what"], "the failures' times are in the error records, too"


def test_the_records_find_the_odd_rank_where_all_stacks_are_alike(tmp_path: Path) -> None:
    report, text = report_and_text(
        hung(tmp_path, dict.fromkeys(range(4), REDUCE), {0: WAITS, 1: WAITS, 2: ODD, 3: WAITS})
    )
    assert (report["cause"]["rank"], report["cause"]["node"]) == (2, "n2")
    assert " *rank 2 on n2  in all_reduce at train.py:88\n  ranks 0-1, 3  in all_reduce at train.py:88\n" in text
    assert "none of them" not in text


def test_a_rank_that_has_not_joined_is_shown_with_its_place_and_its_last_call(tmp_path: Path) -> None:
    places = {0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA}
    report, text = report_and_text(hung(tmp_path, places, {0: WAITS, 1: WAITS, 2: WAITS, 3: REST}))
    assert " ".join(text.split()).startswith(
        "job-123 FAILED: rank 3 on n2 has not joined all_reduce #118 [4096 float32], in which ranks 0-2 wait"
        " (group default_pg) in DataLoader at data.py:40; step 120, round 1; noticed by rank 0"
    ), text
    assert "\n *rank 3 on n2  has not joined; last completed all_reduce #117\n" in text
    assert report["cause"]["where"]["line"] == 40


def test_a_rank_whose_stacks_are_missing_is_named_all_the_same(tmp_path: Path) -> None:
    report, text = report_and_text(hung(tmp_path, {0: REDUCE, 1: REDUCE}, {0: WAITS, 1: WAITS, 2: WAITS, 3: REST}))
    assert (report["cause"]["rank"], report["cause"]["node"]) == (3, "n2")
    assert "no stacks were collected of 2 ranks (2-3)" in text
    report, _ = report_and_text(hung(tmp_path / "b", {}, {0: WAITS, 1: WAITS, 2: WAITS, 3: REST}))
    assert (report["cause"]["rank"], report["rounds"][0]["whereabouts"]) == (3, None)


def test_the_stacks_show_that_a_rank_is_stopped_and_the_records_what_the_others_wait_in(tmp_path: Path) -> None:
    places = {0: REDUCE, 1: REDUCE, 2: REDUCE, 3: "stopped (SIGSTOP)"}
    report, text = report_and_text(hung(tmp_path, places, {0: WAITS, 1: WAITS, 2: WAITS, 3: None}))
    assert report["cause"]["what"] == "hung: stopped (SIGSTOP), while 3 ranks wait in all_reduce at train.py:88"
    assert report["rounds"][0]["collectives"]["used"] is False
    assert "ranks 0-2 wait in all_reduce #118 [4096 float32] (group default_pg); of rank 3" in " ".join(text.split())
    assert "no record of rank 3 on n2 (no answer within 2 s)" in text


def test_a_rank_that_waits_perhaps_for_a_stopped_one_is_not_blamed(tmp_path: Path) -> None:
    """Rank 2 has not joined, as it waits in something that is not recorded, perhaps for rank 3."""
    places = {0: REDUCE, 1: REDUCE, 2: DATA, 3: "stopped (SIGSTOP)"}
    report, _ = report_and_text(hung(tmp_path, places, {0: WAITS, 1: WAITS, 2: REST, 3: None}))
    assert report["rounds"][0]["collectives"]["culprits"]["ranks"] == "2"
    assert (report["cause"]["rank"], report["rounds"][0]["collectives"]["used"]) == (3, False)


def test_the_first_lines_are_whole_also_with_a_long_name_of_the_run_and_a_time_out_of_its_own(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, run_id="local-20261123-113031-13965").round().steps(1, 120).wait(200)
    run.hang(2, "no optimizer step for 600 s (time-out 600 s)", places={0: REDUCE, 1: REDUCE, 2: GATHER, 3: REDUCE})
    recorded(run, {0: WAITS, 1: WAITS, 2: ODD, 3: WAITS}).stop(killed=(2,)).close("failed", REASON)
    _, text = report_and_text(run)
    assert text.splitlines()[:4] == [
        "local-20261123-113031-13965 FAILED: rank 2 on n2 calls all_gather #118 [4096",
        "  float32] where ranks 0-1, 3 call all_reduce #118 [4096 float32] (group",
        "  default_pg)",
        "  in all_gather at train.py:91; step 120, round 1; no optimizer step for 600 s",
    ]


def test_two_against_two_are_both_in_the_first_line_and_no_rank_is_a_suspect(tmp_path: Path) -> None:
    places = {0: REDUCE, 1: REDUCE, 2: GATHER, 3: GATHER}
    report, text = report_and_text(hung(tmp_path, places, {0: WAITS, 1: WAITS, 2: ODD, 3: ODD}))
    assert " ".join(text.split()).startswith(
        "job-123 FAILED: ranks 0-1 call all_reduce #118 [4096 float32] where ranks 2-3 call"
        " all_gather #118 [4096 float32] (group default_pg)"
    ), text
    assert "  none of them is a suspect\n" in text
    # Where these calls are is the third line.
    assert "at train.py:88 (ranks 0-1), train.py:91 (ranks 2-3)" in text
    assert report["rounds"][0]["collectives"]["culprits"] is None


def test_of_two_calls_the_one_in_the_handler_of_an_exception_is_pointed_to(tmp_path: Path) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/home/ann/lm/data.py", line 13, in read\nValueError: bad row\n'
    )
    run = RunBuilder(tmp_path, nodes=1).round().steps(1, 120).log(1, raised).wait(200)
    run.hang(0, places={0: REDUCE, 1: GATHER}, step=120)
    recorded(run, {0: WAITS, 1: ODD})
    text = " ".join(report_and_text(run.stop(killed=(0, 1)).close("failed", REASON))[1].split())
    assert "the stderr of rank 1 ends with a traceback: ValueError: bad row" in text.partition(" hint:")[0]
    assert "hint: See that failure first" in text
    assert "stopped by ftslurm by SIGKILL" in text


def test_all_in_one_call_is_no_rank_s_fault_even_if_one_is_elsewhere(tmp_path: Path) -> None:
    """Rank 3 has made the call without waiting for it: the transport does the rest."""
    report, text = report_and_text(
        hung(tmp_path, {0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA}, dict.fromkeys(range(4), WAITS))
    )
    assert "job-123 FAILED: all 4 ranks have called all_reduce #118 [4096 float32] alike" in " ".join(text.split())
    assert "the transport is more likely at fault than the script" in " ".join(text.split())
    assert not any(group["suspect"] for group in report["rounds"][0]["whereabouts"]["groups"])


def test_records_that_do_not_decide_change_nothing_but_are_shown(tmp_path: Path) -> None:
    places = {0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA}
    report, text = report_and_text(hung(tmp_path, places, {0: WAITS, 1: WAITS}))
    assert (
        report["cause"]["what"] == "hung in DataLoader at data.py:40, while 3 ranks wait in all_reduce at train.py:88"
    )
    assert report["rounds"][0]["collectives"]["verdict"] == "unknown"
    assert "the collectives of round 1\n" in text
    report, text = report_and_text(hung(tmp_path / "b", places, dict.fromkeys(range(4), REST)))
    assert report["cause"]["what"].startswith("hung in DataLoader")
    assert report["rounds"][0]["collectives"]["verdict"] == "nothing"
    assert "the collectives of" not in text


def test_two_groups_in_another_order_are_both_in_the_first_line_and_the_network_is_not_suspected(
    tmp_path: Path,
) -> None:
    waits = {name: [*REST, entry(1, "gloo:all_reduce", retired=False, process_group=(name, ""))] for name in "12"}
    calls = {0: waits["2"], 1: waits["1"], 2: waits["1"], 3: waits["1"]}
    report, text = report_and_text(hung(tmp_path, dict.fromkeys(range(4), REDUCE), calls))
    assert " ".join(text.split()).startswith(
        "job-123 FAILED: ranks wait apart, in several groups: ranks 1-3 in all_reduce #1 (group 1),"
        " rank 0 in all_reduce #1 (group 2)"
    ), text
    assert "network" not in text and "without a record" not in text
    assert [party["ranks"] for party in report["rounds"][0]["collectives"]["parties"]] == ["1-3", "0"]


def test_ranks_that_called_collectives_within_the_time_out_are_silent_and_not_hung(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().wait(200)
    run.hang(0, places=dict.fromkeys(range(4), (MAIN, ("/home/ann/lm/train.py", 9, "pause"))))
    made = replace(entry(117, "gloo:all_reduce"), time_created_ns=run.now_ns - 10**8)
    recorded(run, {rank: [made] for rank in range(4)})
    text = " ".join(report_and_text(run.stop(killed=(0,)).close("failed", REASON))[1].split())
    assert "silent, though it called collectives, in pause at train.py:9" in text.partition(" hint:")[0]
    assert "ftslurm.heartbeat() in the loop" in text


def test_a_run_without_records_has_none(tmp_path: Path) -> None:
    report, _ = report_and_text(hung(tmp_path, {0: REDUCE, 3: DATA}, {}))
    assert report["rounds"][0]["collectives"] is None
    report, _ = report_and_text(hung(tmp_path / "b", {0: REDUCE, 3: DATA}, {0: None, 1: None}))
    assert report["rounds"][0]["collectives"] is None


def timed_out(parent: Path, absent: list[Collective] | None, **finish: Any) -> RunBuilder:
    """Build a run of ranks whose all-reduce ended by a time-out, or a broken connection, and of rank 2."""
    run = RunBuilder(parent).round().steps(1, 120).wait(200)
    if finish:
        run.finish(2).wait(1)
    for rank in (0, 1, 3):
        run.fail(rank, RuntimeError(TIMED_OUT), step=120)
    run.history[-1]["failure"]["by_peers"] = True
    done = [*REST, entry(118, "gloo:all_reduce")]
    recorded(run, {0: done, 1: done, 3: done}, left=True)
    if absent is not None:
        recorded(run, {2: absent})
    return run.stop().close("failed", "rank 0 on n1 failed")


def test_when_a_collective_times_out_the_rank_that_did_not_come_is_the_headline(tmp_path: Path) -> None:
    report, text = report_and_text(timed_out(tmp_path, REST))
    cause = report["cause"]
    assert (cause["rank"], cause["node"], cause["kind"]) == (2, "n2", "hang"), text
    assert " ".join(text.split()).startswith(
        "job-123 FAILED: rank 2 on n2 has not joined all_reduce #118 [4096 float32], in which ranks 0-1, 3"
    ), text
    assert cause["hang"]["rank"] == 0 and "time-out waiting" in cause["hang"]["message"]
    assert [group["ranks"] for group in report["rounds"][0]["groups"]] == ["0-1, 3"]


def test_a_call_that_was_made_after_the_others_had_given_up_came_too_late(tmp_path: Path) -> None:
    """The process of a rank whose time is over may end, and the others be asked, only when the late one has come."""
    calls = [*REST, entry(118, "gloo:all_reduce", time_created_ns=START_NS + 900 * 10**9)]
    _, text = report_and_text(timed_out(tmp_path, calls))
    assert " ".join(text.split()).startswith(
        "job-123 FAILED: rank 2 on n2 came to all_reduce #118 [4096 float32] only when the time of ranks 0-1, 3 was"
    ), text
    assert "hint: It came when the others had given up" in text


def test_a_rank_of_the_same_node_that_came_when_a_script_had_freed_what_it_waited_for_came_too_late(
    tmp_path: Path,
) -> None:
    """What the rank whose time was over held, as a lock, it frees before its exception is recorded."""
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(200)
    run.fail(0, RuntimeError(TIMED_OUT), step=120)
    run.fail(1, RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"), step=120, after_s=0.01)
    run.history[-1]["failure"]["by_peers"] = True
    over_ns = START_NS + 199 * 10**9
    calls = {0: over_ns - 30 * 10**9, 1: over_ns + 4 * 10**6}
    for rank, created_ns in calls.items():
        recorded(run, {rank: [*REST, entry(118, "gloo:barrier", time_created_ns=created_ns)]}, left=True)
    _, text = report_and_text(run.stop().close("failed", "rank 0 on n1 failed"))
    assert " ".join(text.split()).startswith("job-123 FAILED: rank 1 on n1 came to barrier #118"), text


def test_a_call_before_an_unrecorded_one_that_timed_out_is_not_taken_for_that(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(200)
    run.fail(0, RuntimeError(TIMED_OUT), step=120)
    run.history[-1]["failure"]["by_peers"] = True
    before = entry(117, "gloo:all_reduce", time_created_ns=START_NS + 100 * 10**9)
    recorded(run, {0: [*REST[:-1], before]}, left=True)
    waits = entry(118, "gloo:all_reduce", retired=False, time_created_ns=START_NS + 150 * 10**9)
    recorded(run, {rank: [*REST, waits] for rank in (1, 2, 3)})
    report, text = report_and_text(run.stop().close("failed", "rank 0 on n1 failed"))
    assert "ranks 1-3 wait" in report["rounds"][0]["collectives"]["text"], text


def test_a_rank_that_called_a_collective_of_a_group_of_others_is_named(tmp_path: Path) -> None:
    run = timed_out(tmp_path, REST)
    run.log(
        3, "x.py:3222: UserWarning: Running all_reduce on global rank 3 which does not belong to the given group.\n"
    )
    _, text = report_and_text(run)
    assert "rank 3 called all_reduce of a group of which it is no member" in " ".join(text.split())
    assert "hint: Leave the call to the members of the group" in text


def test_what_one_of_the_ranks_that_waited_had_caught_before_is_named(tmp_path: Path) -> None:
    caught = (
        "ERROR cannot read ckpt_rank1.pt, starting from scratch\nTraceback (most recent call last):\n"
        '  File "/w/ckpt.py", line 9, in resume\nOSError: central directory not found\nstep 0\nstep 1\n'
    )
    own = f'Traceback (most recent call last):\n  File "/w/train.py", line 27, in main\nRuntimeError: {TIMED_OUT}\n'
    run = timed_out(tmp_path, None, finish=True)
    for rank in (0, 1, 3):
        run.log(rank, (caught if rank == 1 else "") + own)
    _, text = report_and_text(run)
    assert "rank 1 had caught OSError: central directory not found at ckpt.py:9 in resume" in " ".join(text.split())


def test_a_rank_that_makes_a_group_alone_is_told_who_must_call_it(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(200)
    for rank in (1, 2, 3):
        run.fail(rank, RuntimeError(TIMED_OUT), step=120)
    frames = (*MAIN_FRAMES, (f"{TORCH}/distributed/distributed_c10d.py", 5900, "new_group", None))
    run.fail(0, RuntimeError("wait timeout after 6000ms, keys: /default_pg/0//1//cpu//0/1"), frames=frames)
    run.history[-1]["failure"]["by_peers"] = True
    recorded(run, {rank: [*REST, entry(118, "gloo:all_reduce")] for rank in (1, 2, 3)}, left=True)
    recorded(run, {0: REST}, left=True)
    _, text = report_and_text(run.stop().close("failed", "rank 1 on n1 failed"))
    assert "hint: All ranks of the job must call new_group" in text, text


def test_when_a_rank_has_ended_the_call_that_waited_for_it_is_named(tmp_path: Path) -> None:
    report, text = report_and_text(timed_out(tmp_path, None, finish=True))
    assert (report["cause"]["rank"], report["cause"]["cause"]) == (2, "hang"), text
    assert " ".join(text.split()).startswith(
        "job-123 FAILED: rank 2 on n2 ended with exit code 0 while ranks 0-1, 3 wait in all_reduce #118"
    ), text


def test_a_completed_call_is_not_named_where_ranks_waited_in_a_transfer_that_gloo_does_not_record(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(200).finish(1).wait(1)
    for rank, function in ((0, "send"), (2, "recv"), (3, "recv")):
        frames = (*MAIN_FRAMES, (f"{TORCH}/distributed/distributed_c10d.py", 2753, function, None))
        run.fail(rank, RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer"), frames=frames)
    run.history[-1]["failure"]["by_peers"] = True
    recorded(run, {0: REST, 2: REST, 3: REST}, left=True)
    report, text = report_and_text(run.stop().close("failed", "rank 0 on n1 failed"))
    assert report["rounds"][0]["collectives"]["verdict"] == "nothing", text
    assert "rank 1 had finished" in text.split("traceback")[0] and "#117" not in text


def test_a_rank_that_gloo_aborted_is_no_culprit_alone_and_its_partners_call_is_shown(tmp_path: Path) -> None:
    output = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at x.cc:4] "
        "op.preamble.length <= op.nbytes. 12 vs 10. Received data size doesn't match expected size. "
        "Is there a distributed collective mismatch in your code?\n"
    )
    stacks = (
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
        f'  File "{TORCH}/distributed/distributed_c10d.py", line 4287 in all_gather\n'
        '  File "/home/ann/lm/train.py", line 6 in exchange\n'
    )
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(200).fail(2, signal="SIGABRT", log=output, step=120)
    run.errors[1, 2] = replace(run.errors[1, 2], stacks=stacks)
    run.history[-1]["failure"]["by_peers"] = True
    for rank in (1, 3):
        run.fail(rank, RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"), step=120)
    wide = entry(1, "gloo:all_gather", input_sizes=((6,),), process_group=("2", "undefined"))
    recorded(run, {0: WAITS, 1: WAITS, 3: [*REST, wide]})
    report, text = report_and_text(run.stop().close("failed", "rank 2 on n2 failed: SIGABRT (abort)"))
    assert " ".join(text.split()).startswith(
        "job-123 FAILED: rank 3 calls all_gather #1 [6 float32] where rank 2 calls a shorter one (group 2)"
    ), text
    found = report["rounds"][0]["collectives"]
    assert (found["verdict"], found["culprits"], found["missing"]["reason"]) == ("aborted", None, "gloo aborted it")
    assert [party["state"] for party in found["parties"]][1:] == ["aborted"]
    assert "no more work" not in text and "where the sizes come from" in " ".join(text.split())


def test_an_exception_of_its_own_stays_the_cause(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(9).fail(3, ValueError("boom"), step=120)
    run.history[-1]["failure"] = None
    run.hang(0, places=dict.fromkeys(range(3), REDUCE), after_s=30)
    recorded(run, {0: WAITS, 1: WAITS, 2: WAITS, 3: REST}).stop().close("failed", REASON)
    report, text = report_and_text(run)
    assert (report["cause"]["rank"], report["cause"]["kind"]) == (3, "exception")
    assert "the collectives of round 1\n" in text


def test_a_job_that_was_stopped_while_no_rank_moved_names_the_call(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(200)
    run.hang(0, places={0: REDUCE, 1: REDUCE, 2: REDUCE, 3: DATA})
    run.history[-1]["failure"] = None
    for key, text in run.outputs.items():
        why = "# stop: SIGTERM from outside\n# still: 99.0 s, before at most 1.0 s\n"
        head, _, rest = text.partition("\n")
        run.outputs[key] = f"{head}\n{why}{rest.removeprefix('# why: no heartbeat for 30 s (time-out 30 s)' + chr(10))}"
    recorded(run, {0: WAITS, 1: WAITS, 2: WAITS, 3: REST})
    run.stop(outcome="stopped").close("stopped", "SIGTERM from outside")
    report, text = report_and_text(run)
    assert report["rounds"][0]["standstill"]["text"] == (
        "no rank had moved for 1 min 39 s: rank 3 on n2 has not joined all_reduce #118 [4096 float32],"
        " in which ranks 0-2 wait (group default_pg); it is in DataLoader at data.py:40"
    ), text
    assert report["rounds"][0]["collectives"]["used"]


def test_a_script_that_has_ended_waits_in_no_call_though_its_rank_was_asked_after_a_signal(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1).round().wait(200)
    ended = [("/usr/lib/python3.11/threading.py", 1590, "_shutdown")]
    run.hang(1, places={1: ended}, after_s=30)
    run.history[-1]["failure"] = None
    (key, text), *_ = [(key, text) for key, text in run.outputs.items() if key[2] == "stacks"]
    head, _, rest = text.partition("\n")
    why = "# stop: SIGTERM from outside\n# still: 99.0 s, before at most 1.0 s\n"
    run.outputs[key] = f"{head}\n{why}{rest.removeprefix('# why: no heartbeat for 30 s (time-out 30 s)' + chr(10))}"
    run.finish(0)
    recorded(run, {1: REST})
    record = json.loads(run.outputs[1, 1, "collectives"])
    run.outputs[1, 1, "collectives"] = json.dumps({**record, "after": "SIGTERM from outside"})
    run.stop(outcome="stopped").close("stopped", "SIGTERM from outside")
    text = report_and_text(run)[1]
    assert "rank 1 at the end of Python (the script had ended)" in " ".join(text.split())
    assert "waits in" not in text


def test_the_page_and_the_markdown_show_the_calls(tmp_path: Path) -> None:
    places = {0: REDUCE, 1: REDUCE, 2: GATHER, 3: REDUCE}
    report, _ = report_and_text(hung(tmp_path, places, {0: WAITS, 1: WAITS, 2: ODD, 3: WAITS}))
    page = html(report)
    assert "The collectives of round 1" in page
    assert "waits in all_gather #118 [4096 float32]" in page
    assert "waits in all_gather #118 [4096 float32]" in markdown(report)


def test_hostile_and_broken_records_cost_only_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = [entry(118, "gloo:all\x1b[2J_gather", process_group=("0\u202e", "d\x1b[31m"), retired=False)]
    run = hung(tmp_path, {0: REDUCE}, {0: evil, 1: WAITS, 2: WAITS, 3: REST})
    path = run.write()
    ranks = path / "rounds" / "000001" / "ranks"
    (ranks / "00001" / "collectives.json").write_bytes(b"{")
    (ranks / "00002" / "collectives.json").write_bytes((ranks / "00003" / "collectives.json").read_bytes())
    report, text = report_and_text_at(path, run)
    assert [c for c in text if c != "\n" and not c.isprintable()] == []
    assert len(report["problems"]) == 2
    monkeypatch.setattr(gathering, "COLLECTIVES_IN_ALL", 10)
    report, _ = report_and_text_at(path, run)
    assert "the rest is not read" in report["problems"][0]["reason"]


def report_and_text_at(path: Path, run: RunBuilder) -> tuple[dict[str, Any], str]:
    from ftslurm.report.text import render

    report = analyse(gather(path, now_ns=run.now_ns))
    html(report), markdown(report)
    return report, render(report)


def test_the_lines_about_collectives_keep_within_the_width(tmp_path: Path) -> None:
    long = [entry(118, "gloo:" + "x" * 150, process_group=("g" * 150, "d" * 150), retired=False)]
    far = [entry(118, "gloo:" + "y" * 150, process_group=("g" * 150, "d" * 150), retired=False)]
    _, text = report_and_text(hung(tmp_path, dict.fromkeys(range(4), REDUCE), {0: long, 1: long, 2: far, 3: long}))
    assert max(len(line) for line in text.splitlines() if "File " not in line) <= 80


def test_a_traceback_that_the_rank_that_left_had_logged_to_stdout_is_shown(tmp_path: Path) -> None:
    logged = 'Traceback (most recent call last):\n  File "/w/eval.py", line 11, in metrics\nTypeError: no metrics\n'
    run = timed_out(tmp_path, None, finish=True).log(2, f"[ERROR] evaluation failed, stopping\n{logged}", "stdout")
    assert "the stdout of rank 2 ends with a traceback: TypeError: no metrics at eval.py:11" in " ".join(
        report_and_text(run)[1].split()
    )
