"""A failure is a consequence only of what the records have: the text of its message is no proof."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.dataclasses import replace
from ftslurm.records.error import ExceptionRecord, Frame
from ftslurm.report.consequence import is_own_statement
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.pipeline import make_report
from ftslurm.report.text import render

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3141"
BARRIER = "[Rank 0]: Rank 3 failed to pass monitoredBarrier in 2000 ms"
TORCH = (("/w/train.py", 42, "main"), ("/lib/site-packages/torch/distributed/distributed_c10d.py", 9, "wait"))
C10D = "/lib/site-packages/torch/distributed/distributed_c10d.py"
CALLED = '  File "/usr/lib/python3.11/subprocess.py", line 571, in run\nsubprocess.CalledProcessError: '
SHAPE = "shape '[3, 3]' is invalid for input of size 4"
OWN = "feature service: the ProcessGroup cache timed out"


def cause_and_text(run: RunBuilder) -> tuple[dict[str, Any], str]:
    report = make_report(run.close("failed", "no restarts").write(), now_ns=run.now_ns + 10**9)
    return report["cause"], " ".join(render(report, zone=time.gmtime).split())


def test_a_broken_connection_without_any_other_end_is_a_failure_with_a_reason_of_its_own(tmp_path: Path) -> None:
    cause, text = cause_and_text(RunBuilder(tmp_path, nodes=4).round().fail(5, RuntimeError(CLOSED)).stop())
    assert (cause["rank"], cause["role"], cause["follows"]) == (5, "primary", None)
    assert "follows from" not in text
    assert "check the network between the nodes" in text
    assert "ended first" not in text


def test_a_message_that_the_program_itself_raised_is_its_own_reason(tmp_path: Path) -> None:
    frames = (("/w/train.py", 42, "fetch", f'raise RuntimeError("{OWN}")'),)
    cause, text = cause_and_text(RunBuilder(tmp_path, nodes=4).round().fail(2, RuntimeError(OWN), frames=frames).stop())
    assert (cause["cause"], cause["role"]) == ("exception", "primary")
    assert f"rank 2 on n2: RuntimeError: {OWN}" in text
    assert "waited" not in text


def test_a_rank_that_a_barrier_names_and_that_did_not_fail_is_what_the_others_waited_for(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    run.fail(1, RuntimeError(f"Rank 1 reached monitoredBarrier, but received errors: {CLOSED}"))
    run.fail(0, RuntimeError(BARRIER), frames=TORCH, after_s=0.05)
    cause, text = cause_and_text(run.stop())
    # The rank that gave up names the culprit; the other one's connection broke because of that.
    assert (cause["rank"], cause["role"], cause["follows"]) == (0, "cascade", "rank 3 had not failed")
    assert "FAILED: rank 3 has not come to a monitored barrier, where rank 0 on n1 gave up" in text
    assert "rank 3 had not failed: the others waited for it" in text


def test_a_rank_that_a_programs_own_message_names_is_shown_with_its_place_if_it_had_not_failed(
    tmp_path: Path,
) -> None:
    class WorkerLost(RuntimeError):
        pass

    run = RunBuilder(tmp_path, nodes=2).round().fail(0, WorkerLost("workers 2 and 3 disconnected"))
    run.history[-1]["failure"]["by_peers"] = True
    places = {rank: [("/w/train.py", 7, "main"), ("/w/data.py", 40, "load")] for rank in (1, 2)}
    _, text = cause_and_text(run.hang(1, places=places).stop())
    assert "rank 2 had not failed: it was in load at data.py:40" in text
    assert "rank 1 had not failed" not in text


def test_the_rank_that_ran_on_is_shown_where_another_one_reports_a_failure_without_its_rank(tmp_path: Path) -> None:
    report = RuntimeError("another rank failed, see its log")
    frames = (("/w/train.py", 14, "main", f'raise RuntimeError("{report}")'),)
    run = RunBuilder(tmp_path, nodes=2).round().fail(0, report, frames=frames).fail(3, report, frames=frames)
    run.history[-1]["failure"]["by_peers"] = True
    _, text = cause_and_text(run.hang(1, places={rank: [("/w/train.py", 15, "main")] for rank in (1, 2)}).stop())
    assert "rank 2 had not failed: it was in main at train.py:15" in text


@pytest.mark.parametrize("function", ["monitored_barrier", "init_process_group", "all_reduce"])
def test_a_rank_that_did_not_come_is_the_headline_with_its_place_if_the_stacks_show_it(
    tmp_path: Path, function: str
) -> None:
    class DistStoreError(RuntimeError):
        pass

    frames = (("/w/train.py", 42, "main", None), (C10D, 1892, function, None))
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (1, 0, 2):
        late = BARRIER if rank == 0 else f"Rank {rank} reached monitoredBarrier, but received errors: {CLOSED}"
        store = DistStoreError("wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0")
        error = store if function == "init_process_group" else RuntimeError(late)
        module = "torch.distributed" if error is store else None
        run.fail(rank, error, frames=frames, after_s=0.01, module=module)
    run.history[-1]["failure"]["by_peers"] = True
    run.hang(3, places={3: [("/w/train.py", 7, "main"), ("/w/data.py", 40, "load")]})
    cause, text = cause_and_text(run.stop())
    if function == "all_reduce":
        assert cause["rank"] != 3, "whether it has made that call is not known"
        return
    assert (cause["rank"], cause["node"], cause["hang"]["verdict"]) == (3, "n2", "missing")
    assert f"FAILED: rank 3 on n2 has not come to {function} in load at data.py:40; in round 1; noticed by" in text
    assert "*rank 3 on n2 in load at data.py:40" in text
    assert "rank" in text.split("the other ranks of round 1")[1].split("rounds (")[0]


@pytest.mark.parametrize(
    ("source", "shown_size"),
    [("init_process_group(world_size=5)", " (its world_size is 5)"), ("init_process_group(world_size=size)", "")],
)
def test_where_all_ranks_are_in_the_set_up_of_a_larger_group_none_is_missing(
    tmp_path: Path, source: str, shown_size: str
) -> None:
    class DistStoreError(RuntimeError):
        pass

    frames = (("/w/train.py", 42, "main", source), (C10D, 1892, "init_process_group", None))
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (1, 0, 2):
        late = DistStoreError("wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0")
        run.fail(rank, late, frames=frames, after_s=0.01, module="torch.distributed")
    run.history[-1]["failure"]["by_peers"] = True
    run.hang(3, places={3: [("/w/train.py", 42, "main"), (C10D, 1892, "init_process_group")]})
    cause, text = cause_and_text(run.stop())
    assert "not come" not in text and "*rank 3" not in text
    subject = f"all 4 ranks are in init_process_group, and wait for more than the job has{shown_size}"
    assert f"FAILED: {subject} at train.py:42; in round 1" in text
    assert "Compare the script's world_size with WORLD_SIZE, 4 here" in text
    assert ("came too late" in text) == (not shown_size)
    assert cause["hang"]["verdict"] == "too-few"


def test_where_the_scripts_world_size_is_that_of_the_job_no_more_ranks_are_waited_for(tmp_path: Path) -> None:
    frames = (("/w/train.py", 42, "main", "init_process_group(world_size=2)"), (C10D, 9, "init_process_group", None))
    run = RunBuilder(tmp_path, nodes=1).round().fail(1, RuntimeError(CLOSED), frames=frames)
    run.history[-1]["failure"]["by_peers"] = True
    run.hang(0, places={0: [("/w/train.py", 42, "main"), (C10D, 9, "init_process_group")]})
    assert "more than the job has" not in cause_and_text(run.stop())[1]


def test_a_rank_that_ended_later_than_the_failure_is_not_what_it_follows_from(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4).round().fail(5, RuntimeError(CLOSED)).wait(30).finish(1)
    assert cause_and_text(run.stop())[0]["role"] == "primary"
    run = RunBuilder(tmp_path, nodes=4, run_id="b").round().finish(1).wait(30).fail(5, RuntimeError(CLOSED))
    cause, text = cause_and_text(run.stop())
    assert (cause["role"], cause["follows"]) == ("cascade", "rank 1 had finished")
    assert "rank 1 had finished with exit code 0" in text


def test_a_group_that_is_larger_than_the_job_is_compared_with_it(tmp_path: Path) -> None:
    class DistStoreError(RuntimeError):
        pass

    error = DistStoreError("wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0")
    run = RunBuilder(tmp_path, nodes=2).round().fail(1, error, module="torch.distributed")
    assert "compare its world_size with the ranks, of which there are 4 here" in cause_and_text(run.stop())[1]


def test_what_all_ranks_have_in_common_is_not_reported_of_an_arbitrary_one(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (2, 0, 3, 1):
        run.fail(rank, ImportError("No module named 'flash'"), after_s=0.01)
    cause, text = cause_and_text(run.stop())
    assert (cause["alike"]["scope"], cause["alike"]["ranks"]) == ("all", "0-3")
    assert "FAILED: all 4 ranks: ImportError: No module named 'flash'" in text
    assert "at the same time" not in text


def test_all_ranks_of_a_node_and_only_these(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round()
    run.fail(3, FileNotFoundError(2, "No such file or directory"), after_s=0.1)
    run.fail(2, FileNotFoundError(2, "No such file or directory"), after_s=0.01)
    cause, text = cause_and_text(run.stop(after_s=2.0))
    assert (cause["alike"]["scope"], cause["node"]) == ("nodes", "n2")
    assert "all ranks of n2, and only these: FileNotFoundError" in text


def test_all_ranks_of_a_node_while_the_others_were_stopped(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round().fail(3, KeyError("lr")).fail(2, KeyError("lr"), after_s=0.01)
    text = cause_and_text(run.stop())[1]
    assert "all ranks of n2: KeyError: 'lr'" in text
    assert "whether the other nodes' ranks would have failed so is not known" in text


def test_ranks_of_all_nodes_while_the_others_were_stopped(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().fail(0, KeyError("lr")).fail(3, KeyError("lr"), after_s=0.01)
    text = cause_and_text(run.stop())[1]
    assert "ranks 0, 3 of 4, on both nodes: KeyError: 'lr'" in text
    assert "the other 2 had not failed so when ftslurm stopped them" in text


def test_failures_of_different_places_or_codes_are_not_alike(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1).round().fail(0, exit_code=3).fail(1, exit_code=4, after_s=0.01)
    assert cause_and_text(run.stop())[0]["alike"] is None
    places = [(("/w/train.py", line, "main"),) for line in (4, 9)]
    run = RunBuilder(tmp_path, nodes=1, run_id="b").round().fail(0, KeyError("lr"), frames=places[0])
    assert cause_and_text(run.fail(1, KeyError("lr"), frames=places[1], after_s=0.01).stop())[0]["alike"] is None


def test_ranks_whose_child_process_failed_are_alike_though_the_output_of_only_some_is_read(tmp_path: Path) -> None:
    failed = subprocess.CalledProcessError(128, ["git", "rev-parse"])
    run = RunBuilder(tmp_path).round()
    for rank in (2, 0, 3, 1):
        # What the process ended by after its exception is no part of the failure.
        run.fail(rank, failed, signal="SIGTERM" if rank == 1 else None, after_s=0.01)
        run.log(rank, f"fatal: not a git repository\nTraceback (most recent call last):\n{CALLED}{failed}\n")
    cause, text = cause_and_text(run.stop())
    assert (cause["alike"]["scope"], cause["alike"]["ranks"]) == ("all", "0-3")
    assert "all 4 ranks: CalledProcessError: exit status 128 (fatal: not a git repository, from the line" in text


def test_ranks_whose_child_processes_failed_for_different_reasons_are_not_alike(tmp_path: Path) -> None:
    failed = subprocess.CalledProcessError(128, ["git", "rev-parse"])
    run = RunBuilder(tmp_path, nodes=1).round()
    for rank, why in enumerate(("fatal: not a git repository", "fatal: bad object HEAD")):
        run.fail(rank, failed, signal="SIGTERM" if rank == 1 else None, after_s=0.01)
        run.log(rank, f"{why}\nTraceback (most recent call last):\n{CALLED}{failed}\n")
    assert cause_and_text(run.stop())[0]["alike"] is None


@pytest.mark.parametrize(
    ("code", "line", "subject"),
    [
        (12, "found 3 devices, expected 4: refusing to start", "all ranks of n2"),
        (12, "stopping", "rank 3 on n2"),
        (1, "found 3 devices, expected 4: refusing to start", "rank 3 on n2"),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_rank_that_ended_as_the_first_one_just_when_it_was_stopped_is_alike(
    tmp_path: Path, code: int, line: str, subject: str, stream: str
) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().fail(3, exit_code=12)
    run.log(3, "found 3 devices, expected 4: refusing to start\n", stream).log(2, f"{line}\n", stream).stop()
    _, worker = run.worker_of(2)
    worker |= {"exit_code": code, "signal": None}
    cause, text = cause_and_text(run)
    assert f"FAILED: {subject}: exit code 12" in text
    assert "refusing to start" in cause["what"] + "".join(cause["remarks"])


@pytest.mark.parametrize("handled", [False, True])
def test_a_traceback_after_which_other_ranks_went_on_until_a_collective_failed_is_no_reason(
    tmp_path: Path, handled: bool
) -> None:
    frame = '  File "/w/train.py", line 9, in push\n'
    printed = f"Traceback (most recent call last):\n{frame}ConnectionError: no answer in 7 s\n"
    closed = RuntimeError(CLOSED)
    if handled:
        # Its handler called the collective: it had not gone on.
        closed.__context__ = ConnectionError("no answer in 7 s")
    run = RunBuilder(tmp_path).round().fail(3, exit_code=9, log=f"{printed}shutting down: no tokens left\n")
    run.fail(2, closed, frames=TORCH, after_s=0.01)
    run.log(2, f"{printed}Traceback (most recent call last):\n{frame}RuntimeError: {CLOSED}\n")
    cause, text = cause_and_text(run.stop(after_s=0.01))
    assert cause["rank"] == 3
    if handled:
        assert cause["what"].startswith("ConnectionError: no answer in 7 s")
        return
    assert cause["what"] == "exit code 9"
    assert 'its stderr ends with "shutting down: no tokens left"' in text


@pytest.mark.parametrize(
    ("named", "subject"), [("2", "rank 2 on n2"), ("1, 2", "ranks 1-2"), ("0, 1, 2, 3", "all 4 ranks")]
)
def test_a_failure_that_all_ranks_raise_is_that_of_the_ranks_that_it_names(
    tmp_path: Path, named: str, subject: str
) -> None:
    class CheckpointException(Exception):
        pass

    inner = "Traceback (most recent call last): (RANK 2)\n" + CALLED.partition("\n")[0]
    why = "RuntimeError: Missing key in checkpoint state_dict: head.bias."
    run = RunBuilder(tmp_path).round()
    for rank in (1, 0, 3, 2):
        error = CheckpointException(f"CheckpointException ranks:dict_keys([{named}])\n{inner}\n{why}\n")
        run.fail(rank, error, after_s=0.01)
    cause, text = cause_and_text(run.stop())
    assert f"FAILED: {subject}" in text
    assert "head.bias" in cause["what"]
    assert cause["rank"] in map(int, named.split(", "))


def test_messages_that_differ_in_numbers_only_are_alike_and_reported_to_differ(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1).round().fail(0, ValueError("shard 0 has 3 columns"))
    text = cause_and_text(run.fail(1, ValueError("shard 17 has 4 columns"), after_s=0.01).stop())[1]
    assert "both ranks: ValueError: shard 0 has 3 columns" in text
    assert "their messages differ in numbers" in text


def test_a_broken_socket_of_the_program_after_a_time_out_of_another_rank_is_not_the_first_failure(
    tmp_path: Path,
) -> None:
    late = RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms"
    )
    for name, after_s, rank in (("a", 0.5, 0), ("b", -0.5, 3)):
        run = RunBuilder(tmp_path, nodes=4, run_id=name).round().wait(5).fail(0, late)
        run.fail(3, ConnectionResetError(104, "Connection reset by peer"), after_s=after_s)
        assert cause_and_text(run.stop())[0]["rank"] == rank


def test_a_programs_own_error_after_a_time_out_of_another_rank_may_be_what_that_waited_for(tmp_path: Path) -> None:
    late = RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms"
    )
    run = RunBuilder(tmp_path, nodes=4).round().fail(0, late).fail(3, ValueError("row 7"), after_s=0.5)
    assert cause_and_text(run.stop())[0]["rank"] == 3


def test_a_rank_that_still_waits_where_the_others_gave_up_is_not_the_missing_one(tmp_path: Path) -> None:
    class DistStoreError(RuntimeError):
        pass

    frames = (("/w/train.py", 42, "main", None), (C10D, 1892, "init_process_group", None))
    waiting = [("/w/train.py", 42, "main"), (C10D, 1892, "init_process_group")]
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (1, 2):
        error = DistStoreError("wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0")
        run.fail(rank, error, frames=frames, after_s=0.01, module="torch.distributed")
    run.history[-1]["failure"]["by_peers"] = True
    run.hang(3, places={3: [("/w/data.py", 40, "load")], 0: waiting})
    cause, text = cause_and_text(run.stop())
    assert (cause["rank"], cause["hang"]["verdict"]) == (3, "missing")
    assert "rank 3 on n2 has not come to init_process_group in load at data.py:40" in text


@pytest.mark.parametrize("odd", [0, 2])
def test_the_rank_whose_model_differs_is_found_from_all_messages_together(tmp_path: Path, odd: int) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (1, 0, 3, 2):
        other = odd if rank != odd else 1
        own, seen = (6, 4) if rank == odd else (4, 6)
        text = f"Rank {rank} has {own} params, while rank {other} has inconsistent {seen} params."
        run.fail(rank, RuntimeError(f"DDP expects same model across all ranks, but {text}"), frames=TORCH)
    cause, text = cause_and_text(run.stop())
    assert (cause["rank"], cause["cause"]) == (odd, "model-mismatch")
    assert f"rank {odd} has 6 parameters, the others have 4" in text


def hiding(text: str, behind: BaseException) -> Exception:
    """Return an exception that was raised while handling another one, ``from None``."""
    error = Exception(text)
    error.__context__, error.__suppress_context__ = behind, True
    return error


def test_what_from_none_hides_separates_a_framework_s_reason_from_its_reactions(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (2, 0, 1, 3):
        behind = RuntimeError(SHAPE if rank == 2 else CLOSED)
        run.fail(rank, hiding("fit failed in stage train", behind), after_s=0.01)
    cause, text = cause_and_text(run.stop())
    assert (cause["rank"], cause["role"]) == (2, "primary")
    assert "FAILED: rank 2 on n2: Exception: fit failed in stage train (after RuntimeError: shape" in text


def test_a_lookup_that_from_none_hides_is_no_reason_of_its_own(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1).round().fail(0, hiding("no option lr", KeyError("lr")))
    assert "KeyError" not in cause_and_text(run.stop())[1]


def test_the_round_before_is_shown_where_it_failed_otherwise(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().fail(1, ValueError("learning rate became negative")).stop()
    run.round().fail(0, FileExistsError(17, "File exists")).stop()
    text = cause_and_text(run)[1]
    assert "round 1 failed otherwise: rank 1 on n1: ValueError: learning rate became negative at " in text
    again = RunBuilder(tmp_path, nodes=2, run_id="b").round().fail(1, ValueError("boom")).stop()
    assert "failed otherwise" not in cause_and_text(again.round().fail(1, ValueError("boom")).stop())[1]


HELPER = "Traceback (most recent call last):\n  File \"/w/prep.py\", line 2, in <module>\nKeyError: 'columns'\n"
OWN_ENDS = {
    BrokenPipeError: 'Traceback (most recent call last):\n  File "/w/train.py", line 42, in main\nBrokenPipeError: x\n',
    ValueError: 'Traceback (most recent call last):\n  File "/w/train.py", line 42, in main\nValueError: x\n',
}


@pytest.mark.parametrize(
    ("kind", "between", "is_shown"),
    [(BrokenPipeError, "closing\n", True), (ValueError, "", True), (ValueError, "closing\n", False)],
)
def test_what_a_helper_printed_is_shown_with_a_failure_that_may_follow_from_it_if_nothing_is_between(
    tmp_path: Path, kind: type[Exception], between: str, is_shown: bool
) -> None:
    run = RunBuilder(tmp_path, nodes=1).round().fail(0, kind("x"), log=HELPER + between + OWN_ENDS[kind])
    text = cause_and_text(run.stop())[1]
    assert ("it had printed before: KeyError: 'columns' at prep.py:2" in text) == is_shown


def test_the_address_of_the_store_that_a_rank_could_not_connect_to_is_shown(tmp_path: Path) -> None:
    class DistStoreError(RuntimeError):
        pass

    late = DistStoreError("Timed out after 8 seconds waiting for clients. 1/2 clients joined.")
    run = RunBuilder(tmp_path, nodes=2, nproc=1).round().fail(0, late, module="torch.distributed")
    tried = "The client socket has timed out after 7000ms while trying to connect to (127.0.0.1, 23999)."
    run.log(1, f"[E1126 00:05:08.748 socket.cpp:1028] [c10d] {tried}\n")
    assert "rank 1 tried to connect to 127.0.0.1:23999 in vain, and not to the run's" in cause_and_text(run.stop())[1]


def test_a_rank_that_was_stopped_while_the_others_waited_for_it_is_the_headline(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    late = "Timed out waiting 6000ms for recv operation to complete"
    frames = (("/w/train.py", 42, "main"), (C10D, 9, "all_reduce"))
    for rank in (0, 2, 3):
        run.fail(rank, RuntimeError(late), frames=frames, after_s=0.01)
    run.history[-1]["failure"]["by_peers"] = True
    run.hang(1, places={1: "stopped (SIGSTOP)"})
    cause, text = cause_and_text(run.stop())
    assert cause["rank"] == 1
    assert "FAILED: rank 1 on n1 was stopped (SIGSTOP) while the others waited for it" in text
    assert "A signal stopped it" in text


@pytest.mark.parametrize("by_rank_3", ["rank 2", "rank 0", "ranks 0-2"])
def test_a_stopped_rank_that_the_peer_heartbeat_names_is_the_headline_though_others_had_not_failed_either(
    tmp_path: Path, by_rank_3: str
) -> None:
    class PeerLostError(RuntimeError):
        pass

    run = RunBuilder(tmp_path, nodes=2).round()
    for rank, lost in ((1, "rank 2"), (3, by_rank_3)):
        text = f"{lost} did not answer the peer heartbeat 3 times in a row (time-out 1 s): ended, hung, or out of reach"
        run.fail(rank, PeerLostError(text), frames=(("/w/train.py", 42, "main"), (C10D, 9, "all_reduce")), after_s=0.01)
    run.history[-1]["failure"]["by_peers"] = True
    run.hang(1, places={2: "stopped (SIGSTOP)", 0: [("/w/train.py", 42, "main"), (C10D, 9, "all_reduce")]})
    cause, text = cause_and_text(run.stop())
    assert cause["rank"] == 2
    assert "FAILED: rank 2 on n2 was stopped (SIGSTOP) while the others waited for it" in text


@pytest.mark.parametrize(("function", "is_said"), [("recv", True), ("all_reduce", False)])
def test_ranks_that_all_wait_to_receive_are_told_that_none_sends(tmp_path: Path, function: str, is_said: bool) -> None:
    run = RunBuilder(tmp_path, nodes=1).round()
    frames = (("/w/ring.py", 8, "rotate"), (C10D, 2753, function))
    for rank in range(2):
        late = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation")
        run.fail(rank, late, frames=frames, after_s=0.01)
    text = cause_and_text(run.stop())[1]
    assert ("All ranks wait to receive, and none of them sends" in text) is is_said


def test_of_ranks_that_agree_on_a_failure_the_one_that_printed_why_is_named(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (2, 0, 1, 3):
        run.fail(rank, ValueError("x"), after_s=0.01, log=(HELPER if rank == 0 else "") + OWN_ENDS[ValueError])
    text = cause_and_text(run.stop())[1]
    assert "all 4 ranks: ValueError: x" in text
    assert "rank 0 alone had printed before: KeyError: 'columns' at prep.py:2" in text


FATAL = """Fatal Python error: tokenizer cache is inconsistent
Python runtime state: initialized

Current thread 0x00007f480e1bfb80 (most recent call first):
  File "/home/ann/lm/tokens.py", line 13 in load
  File "/home/ann/lm/train.py", line 40 in <module>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def test_the_dump_of_the_programs_own_faulthandler_has_the_reason_and_the_place(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1).round().fail(1, signal="SIGABRT", log=FATAL)
    cause, text = cause_and_text(run.stop())
    assert (cause["where"]["file"], cause["where"]["line"]) == ("/home/ann/lm/tokens.py", 13)
    assert "aborted (SIGABRT): Fatal Python error: tokenizer cache is inconsistent" in text
    assert "Extension modules" not in text.partition("stacks of rank")[0]


def test_an_exception_that_the_program_raised_from_a_time_out_has_not_only_its_own_words() -> None:
    own = Frame("/w/train.py", 20, "step", 'raise TrainingError("step 4 failed") from error')
    wait = Frame("/x/torch/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()")
    behind = ExceptionRecord("RuntimeError", "builtins", "Timed out waiting 5000ms", frames=(own, wait))
    plain = ExceptionRecord("TrainingError", "__main__", "timed out", frames=(own,))
    for exception, expected in ((plain, True), (replace(plain, cause=behind), False)):
        failed = cast("FailedWorker", SimpleNamespace(exception=exception))
        assert is_own_statement(failed) == expected
