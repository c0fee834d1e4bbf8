"""Histories of runs, and what the report must say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.dataclasses import replace
from ftslurm.failures.causes import CASCADE, PRIMARY, Evidence, classify, describe
from ftslurm.report.analysis import analyse
from ftslurm.report.facts import LostNode, RoundFiles, Snapshot
from ftslurm.report.gathering import gather
from ftslurm.text import ranges

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3141"


def report(run: RunBuilder, *, later_s: float = 1.0, round_number: int | None = None) -> dict[str, Any]:
    path = run.write()
    now_ns = run.now_ns + int(later_s * 1e9)
    result = analyse(gather(path, now_ns=now_ns, round_number=round_number), round_number=round_number)
    assert not result["problems"], result["problems"]
    json.dumps(result)
    return result


def reset() -> RuntimeError:
    return RuntimeError(GLOO)


def test_an_exception_is_the_cause_with_its_rank_node_place_step_and_round(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(60).fail(3, ValueError("boom"), step=120).stop()
    cause = report(run.close("failed", "no restarts"))["cause"]
    assert (cause["rank"], cause["node"], cause["round"], cause["step"]) == (3, "n2", 1, 120)
    assert (cause["what"], cause["kind"], cause["cause"]) == ("ValueError: boom", "exception", "exception")
    assert (cause["where"]["shown"], cause["where"]["line"]) == ("train.py", 42)
    assert "ValueError: boom" in cause["traceback"]


def test_a_cascade_that_came_first_does_not_hide_the_primary_failure(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, reset()).fail(3, ValueError("boom"), after_s=0.5).stop()
    result = report(run.close("failed", "no restarts"))
    assert result["cause"]["rank"] == 3
    (group,) = result["rounds"][0]["groups"]
    assert (group["ranks"], group["role"], group["cause"]) == ("0", CASCADE, "peer-reset")


def test_a_cascade_wrapped_in_the_trainers_own_exception_stays_a_cascade(tmp_path: Path) -> None:
    wrapped = ValueError("training failed")
    wrapped.__cause__ = reset()
    run = RunBuilder(tmp_path).round().fail(0, wrapped).fail(3, signal="SIGSEGV", after_s=0.5).stop()
    assert report(run.close("failed", "x"))["cause"]["rank"] == 3


def test_of_two_primary_failures_the_earlier_one_is_the_cause(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("a")).fail(0, KeyError("b"), after_s=0.3).stop()
    result = report(run.close("failed", "x"))
    assert result["cause"]["rank"] == 3
    assert result["rounds"][0]["same_time"] == []


def test_primary_failures_of_two_nodes_within_100_ms_are_reported_as_simultaneous(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("a")).fail(0, KeyError("b"), after_s=0.05).stop()
    (other,) = report(run.close("failed", "x"))["rounds"][0]["same_time"]
    assert (other["rank"], other["node"]) == (0, "n1")


def test_primary_failures_of_one_node_are_put_in_order_by_its_one_clock(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("a")).fail(2, KeyError("b"), after_s=0.05).stop()
    result = report(run.close("failed", "x"))
    assert result["cause"]["rank"] == 3
    assert result["rounds"][0]["same_time"] == []


def test_a_rank_that_ftslurm_stopped_is_never_a_failure_even_with_an_error_record(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("boom")).stop(killed=(1,))
    run.errors[1, 0] = replace(run.errors[1, 3], rank=0, node="n1", time_ns=run.now_ns - 10**10)
    entry = report(run.close("failed", "x"))["rounds"][0]
    assert entry["first_failure"]["rank"] == 3
    assert entry["groups"] == []
    assert (entry["stopped"]["ranks"], entry["stopped"]["killed_ranks"]) == ("0-2", "1")


def test_an_exception_before_the_stop_began_counts_even_if_its_process_ended_late(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("boom")).fail(2, reset(), after_s=0.2).stop()
    worker = next(w for w in run.round_nodes[1, "n2"]["workers"] if w["rank"] == 3)
    worker |= {"failed": False, "stopped_by_ftslurm": True, "stop_signal": "SIGTERM", "ended_ns": run.now_ns}
    assert report(run.close("failed", "x"))["cause"]["rank"] == 3


def test_a_bare_sigkill_is_never_called_out_of_memory(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(1, signal="SIGKILL", log="Killed\nOOM? out of memory\n").stop()
    cause = report(run.close("failed", "x"))["cause"]
    assert cause["what"] == "killed by SIGKILL, sender unknown"
    assert cause["cause"] == "sigkill"


def test_a_recovered_failure_costs_the_time_to_the_next_round_and_the_steps_repeated(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 120).wait(60).fail(3, ValueError("boom"), step=120)
    run.stop(after_s=0.5).round(after_s=1.5).steps(100, 500).succeed().close("succeeded", "all succeeded")
    result = report(run)
    assert (result["status"], result["recovered"], result["cause"], result["focus"]) == (
        "succeeded",
        [1],
        None,
        1,
    )
    assert result["rounds"][0]["cost"] == {"until_next_round_s": 2.0, "steps_repeated": 20, "requeued": False}
    assert result["last_step"] == 500


def test_the_cause_of_the_job_is_the_last_rounds_and_recurring_failures_are_reported(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("row 7")).stop().round().fail(0, KeyError("k")).stop()
    run.round().fail(3, ValueError("row 9")).stop().close("failed", "x")
    result = report(run)
    assert (result["cause"]["round"], result["cause"]["same_as_rounds"]) == (3, [1])
    assert result["recovered"] == [1, 2]


def test_a_run_stopped_from_outside_blames_no_rank(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, signal="SIGTERM").stop(reason="SIGTERM", outcome="stopped")
    result = report(run.close("stopped", "SIGTERM from outside"))
    assert (result["status"], result["exit_code"], result["cause"]) == ("stopped", 143, None)
    assert result["rounds"][0]["first_failure"] is None


def test_a_lost_node_is_the_cause_when_only_cascades_are_left(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round().fail(0, reset()).lose("n2").close("failed", "n2 was lost")
    cause = report(run)["cause"]
    assert (cause["kind"], cause["node"], cause["rank"], cause["ranks"]) == ("node-lost", "n2", None, "2-3")


def test_a_job_that_ended_for_want_of_a_node_is_advised_to_ask_for_a_spare(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round().lose("n2")
    enough = "n2 was lost; 2 nodes left, at least 3 needed, after waiting 600 s"
    assert (
        "request one node more from Slurm and set --nnodes 3" in report(run.close("failed", enough))["cause"]["advice"]
    )
    other = RunBuilder(tmp_path / "other", nodes=3).round().lose("n2").close("failed", "all 3 restarts are used up")
    assert "spare" not in report(other)["cause"]["advice"]


def test_a_worker_that_failed_before_the_node_fell_silent_is_the_cause(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round().fail(0, ValueError("boom")).lose("n2").close("failed", "x")
    assert report(run)["cause"]["rank"] == 0


def test_a_worker_that_failed_after_the_node_fell_silent_is_not_the_cause(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round().lose("n2", silent_s=30)
    worker = run.round_nodes[1, "n1"]["workers"][0]
    worker |= {
        "failed": True,
        "stopped_by_ftslurm": False,
        "ended_ns": run.now_ns - 10**10,
        "signal": "SIGABRT",
    }
    assert report(run.close("failed", "x"))["cause"]["kind"] == "node-lost"


def test_a_killed_agent_is_named_though_the_state_only_saw_its_peers_break(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, reset())
    run.round_nodes[1, "n2"]["outcome"] = "gone"
    run.stop().wait(40).close("failed", "1 of at least 2 nodes is there")
    run.round_nodes[1, "n2"]["outcome"] = "running"
    cause = report(run)["cause"]
    assert (cause["kind"], cause["node"]) == ("node-lost", "n2")


@pytest.mark.parametrize(
    ("error", "after_s", "blamed"),
    [
        (reset(), 0.01, None),
        (ConnectionResetError(104, "Connection reset by peer"), 0.01, None),
        (ConnectionResetError(104, "Connection reset by peer"), -0.01, None),
        (ValueError("boom"), 0.01, None),
        (ValueError("boom"), -0.01, 0),
        (None, -0.01, 0),
    ],
    ids=[
        "torch's connection",
        "an own one",
        "before its guardian's notice",
        "follows",
        "fails before",
        "is killed before",
    ],
)
def test_an_agent_whose_guardian_wrote_a_death_notice_is_blamed_for_what_follows(
    tmp_path: Path, error: BaseException | None, after_s: float, blamed: int | None
) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 9).wait(10)
    fails = {"signal": "SIGSEGV"} if error is None else {}
    if after_s < 0:
        run.fail(0, error, **fails)
        run.kill_agent("n2", after_s=-after_s)
    else:
        run.kill_agent("n2").fail(0, error, after_s=after_s, **fails)
    cause = report(run.stop().close("failed", "x"))["cause"]
    assert cause["rank"] == blamed
    assert blamed is not None or (cause["cause"], cause["node"]) == ("agent-lost", "n2")


def test_a_killed_agent_is_blamed_though_another_one_has_taken_its_place(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 9).wait(10)
    run.kill_agent("n2").fail(0, ConnectionResetError(104, "Connection reset by peer"), after_s=0.01).stop()
    run.replace_agent("n2").round().steps(1, 9).succeed()
    (first, second) = report(run.close("succeeded", "all 4 ranks on 2 nodes succeeded"))["rounds"]
    assert (first["first_failure"]["cause"], first["first_failure"]["node"]) == ("agent-lost", "n2")
    assert "its agent was killed by SIGKILL" in first["first_failure"]["what"]
    assert second["first_failure"] is None


def test_an_agent_that_left_in_good_order_without_a_record_of_its_end_is_not_blamed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, reset())
    run.round_nodes[1, "n2"]["outcome"] = "gone"
    run.stop().leave("n2", "SIGTERM from outside").close("failed", "x")
    assert report(run)["cause"]["rank"] == 0


@pytest.mark.parametrize(("silent_s", "blamed"), [(40.0, None), (20.0, None), (10.0, 0)])
def test_a_rank_is_not_blamed_for_waiting_for_those_of_a_node_that_was_silent_before(
    tmp_path: Path, silent_s: float, blamed: int | None
) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 9, over_s=60).hang(0, places={}, silent_s=30)
    run.round_nodes[1, "n2"]["outcome"] = "gone"
    run.last_record_ns["n2"] = run.now_ns - int(silent_s * 1e9)
    run.stop().close("failed", "rank 0 on n1 hung")
    run.round_nodes[1, "n2"]["outcome"] = "running"
    cause = report(run)["cause"]
    assert (cause["kind"], cause["rank"]) == ("hang" if blamed == 0 else "node-lost", blamed)
    assert blamed == 0 or (cause["node"], cause["ranks"]) == ("n2", "2-3")


def test_a_rank_that_hung_while_a_node_was_being_lost_is_not_the_cause(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 9, over_s=60).hang(0, places={}, silent_s=2)
    hang = run.history[-1]["failure"]
    run.history[-1]["failure"] = None
    run.lose("n2", silent_s=8).close("failed", "n2 was lost")
    run.exclusions["n1"] = {"failure": hang}
    assert (report(run)["cause"]["kind"], report(run)["cause"]["node"]) == ("node-lost", "n2")


def test_a_node_lost_in_an_earlier_attempt_is_still_reported(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().lose("n2").attempt().round().succeed().close("succeeded", "all")
    run.lost.clear()
    result = report(run)
    assert result["rounds"][0]["first_failure"]["nodes"] == ["n2"]
    assert result["rounds"][0]["cost"]["requeued"] is True


def test_a_requeue_after_a_stop_is_an_interruption_not_a_failure(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 50).stop(reason="ended without a word", outcome="stopped")
    run.attempt().wait(300).round().steps(40, 90).succeed().close("succeeded", "all")
    result = report(run)
    assert (result["recovered"], result["interrupted"]) == ([], [1])
    assert result["rounds"][0]["cost"]["steps_repeated"] == 10


def test_without_an_end_a_recent_sign_of_life_means_running_and_an_old_one_unfinished(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 50).wait(60)
    assert report(run, later_s=5)["status"] == "running"
    result = report(run, later_s=7200)
    assert (result["status"], result["exit_code"], result["alive"]["age_s"]) == ("unfinished", None, 7200.0)


def test_nodes_that_all_left_are_not_taken_for_running(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().leave("n1", "SIGTERM").leave("n2", "SIGTERM")
    assert report(run, later_s=5)["status"] == "unfinished"


def test_a_sign_of_life_far_in_the_future_is_not_believed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round()
    run.last_record_ns = {"n1": run.now_ns + 10**18, "n2": run.now_ns}
    assert report(run, later_s=7200)["alive"]["node"] == "n2"


def test_ranks_whose_end_is_not_recorded_are_named(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, ValueError("boom")).stop()
    del run.round_nodes[1, "n2"]
    entry = report(run.close("failed", "x"))["rounds"][0]
    assert (entry["silent"]["ranks"], entry["silent"]["nodes"]) == ("2-3", ["n2"])


def test_a_hostile_world_size_costs_nothing(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, ValueError("boom")).stop().close("failed", "x")
    run.history[0]["world_size"] = 2**60
    assert report(run)["rounds"][0]["world_size"] == 4


def test_other_ranks_are_grouped_by_what_they_have_in_common(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4, nproc=4).round().fail(5, ValueError("boom"))
    for rank in (0, 1, 2, 3, 7):
        run.fail(rank, RuntimeError(GLOO.replace("3141", str(40000 + rank))), after_s=0.01)
    entry = report(run.stop().close("failed", "x"))["rounds"][0]
    (group,) = entry["groups"]
    assert (group["ranks"], group["count"], group["nodes"]) == ("0-3, 7", 5, ["n1", "n2"])
    assert entry["stopped"]["ranks"] == "4, 6, 8-15"


def test_a_rank_that_had_finished_is_neither_failed_nor_stopped(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().finish(1).fail(0, ValueError("boom")).stop().close("failed", "x")
    assert report(run)["rounds"][0]["finished"] == {"ranks": "1", "count": 1}


def test_the_users_own_line_is_named_when_a_library_raised(tmp_path: Path) -> None:
    frames = (
        ("/home/ann/lm/train.py", 42, "step", "out = model(x)"),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward", None),
    )
    run = RunBuilder(tmp_path).round().fail(0, RuntimeError("shape"), frames=frames).stop()
    cause = report(run.close("failed", "x"))["cause"]
    assert (cause["where"]["shown"], cause["raised_in"]["line"]) == ("train.py", 125)


def test_only_a_summary_is_left_of_a_failure_when_the_rounds_are_gone(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("boom"), step=7).stop().close("failed", "x")
    run.round_nodes.clear()
    run.errors.clear()
    cause = report(run)["cause"]
    assert (cause["rank"], cause["what"], cause["step"]) == (3, "ValueError: boom", 7)


def test_the_log_shown_beside_a_traceback_leaves_the_traceback_out(tmp_path: Path) -> None:
    log = "loading\nTraceback (most recent call last):\n  ...\nValueError: boom\nat exit\n"
    run = RunBuilder(tmp_path).round().fail(0, ValueError("boom"), log=log).stop().close("failed", "x")
    shown = report(run)["cause"]["log"]
    assert (shown["stream"], shown["lines"]) == ("stderr", ["loading", "at exit"])


def test_stdout_is_shown_when_stderr_has_nothing_else(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, signal="SIGABRT", log="\n \n").log(0, "step 1\n", "stdout").stop()
    shown = report(run.close("failed", "x"))["cause"]["log"]
    assert (shown["stream"], shown["lines"]) == ("stdout", ["step 1"])


def test_an_nccl_watchdogs_abort_is_a_cascade_by_its_own_message(tmp_path: Path) -> None:
    watchdog = "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout\n"
    run = RunBuilder(tmp_path).round().fail(0, signal="SIGABRT", log=watchdog).fail(3, exit_code=7, after_s=1)
    result = report(run.stop().close("failed", "x"))
    assert (result["cause"]["rank"], result["cause"]["what"]) == (3, "exit code 7")
    assert result["rounds"][0]["groups"][0]["cause"] == "nccl-abort"


STACKS = """Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1 in wait

Current thread 0x2 (most recent call first):
  File "/home/ann/lm/train.py", line 8 in inner
  File "/home/ann/lm/train.py", line 99 in <module>

Extension modules: numpy
"""


def test_a_crash_is_placed_at_the_innermost_line_of_the_thread_that_crashed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(0, signal="SIGSEGV").stop().close("failed", "x")
    run.errors[1, 0] = replace(run.errors[1, 0], stacks=STACKS, traceback=STACKS)
    cause = report(run)["cause"]
    assert (cause["where"]["line"], cause["where"]["function"]) == (8, "inner")
    assert (cause["traceback"], cause["stacks"]) == (None, STACKS)


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_without_its_agents_record_a_signalled_rank_may_have_been_stopped_by_ftslurm(
    tmp_path: Path, signal: str
) -> None:
    run = RunBuilder(tmp_path).round().fail(2, signal=signal).fail(0, ValueError("boom"), after_s=1).stop()
    run.history[0]["failure"] = None
    run.status = dict.fromkeys(run.node_names, "running")
    del run.round_nodes[1, "n2"]
    run.write()
    (run.path / "nodes" / "n2.json").unlink()
    entry = analyse(gather(run.path, now_ns=run.now_ns))["rounds"][0]
    assert (entry["first_failure"]["rank"], entry["groups"]) == (0, [])
    assert entry["silent"]["ranks"] == "2-3"


def test_nothing_at_all_is_an_unfinished_run_without_rounds() -> None:
    result = analyse(Snapshot(directory="/runs/job-9", now_ns=1))
    assert (result["status"], result["rounds"], result["run"]["id"]) == ("unfinished", [], "job-9")


def test_rounds_are_reported_from_their_files_alone_when_the_state_is_gone(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("boom")).stop().round().succeed()
    path = run.write()
    for file in (path / "state").iterdir():
        file.unlink()
    result = analyse(gather(path, now_ns=run.now_ns + 10**13))
    assert [r["outcome"] for r in result["rounds"]] == ["failed", "succeeded"]
    assert result["rounds"][0]["first_failure"]["rank"] == 3


def test_a_thousand_rounds_and_ten_thousand_ranks_are_no_trouble() -> None:
    rounds = tuple(RoundFiles(n, (), {}) for n in range(1, 1001))
    assert len(analyse(Snapshot(directory="/r", now_ns=1, rounds=rounds))["rounds"]) == 1000
    assert ranges(range(0, 20000, 2)).count(",") == 9999
    assert LostNode("n", 1, None, None).silent_s is None


@pytest.mark.parametrize(
    ("evidence", "name", "role"),
    [
        (Evidence("exception", "ValueError", "builtins", "boom"), "exception", PRIMARY),
        (Evidence("exception", "ValueError", "builtins", "NCCL must not be used here"), "exception", PRIMARY),
        (
            Evidence("exception", "RuntimeError", "builtins", "CUDA out of memory. Tried 2 GiB"),
            "cuda-oom",
            PRIMARY,
        ),
        (Evidence("exception", "OutOfMemoryError", "torch", "CUDA out of memory."), "cuda-oom", PRIMARY),
        (
            Evidence("exception", "RuntimeError", "builtins", "CUDA error: an illegal access"),
            "cuda-error",
            PRIMARY,
        ),
        (Evidence("exception", "ModuleNotFoundError", "builtins", "No module named 'x'"), "import-error", PRIMARY),
        (Evidence("exception", "ImportError", "builtins", "late", step=5), "exception", PRIMARY),
        (Evidence("exception", "SyntaxError", "builtins", "invalid syntax"), "syntax-error", PRIMARY),
        (
            Evidence("exception", "OSError", "builtins", "[Errno 28] No space left on device"),
            "disk-full",
            PRIMARY,
        ),
        (Evidence("exception", "RuntimeError", "builtins", GLOO), "peer-reset", CASCADE),
        (
            Evidence("exception", "ConnectionResetError", "builtins", "Connection reset by peer"),
            "exception",
            PRIMARY,
        ),
        (
            Evidence("exception", "BrokenPipeError", "builtins", "[Errno 32] Broken pipe"),
            "exception",
            PRIMARY,
        ),
        (
            Evidence("exception", "DistBackendError", "torch.distributed", "NCCL error: remote process exited"),
            "peer-reset",
            CASCADE,
        ),
        (
            Evidence("exception", "DistNetworkError", "torch.distributed", "failed to recv, got 0 bytes"),
            "peer-reset",
            CASCADE,
        ),
        (
            Evidence("exception", "DistStoreError", "torch.distributed", "wait timeout after 300000ms, keys: /x"),
            "collective-timeout",
            CASCADE,
        ),
        (
            Evidence("exception", "RuntimeError", "builtins", "[c10d] recvValue failed: TCPStore"),
            "peer-reset",
            CASCADE,
        ),
        (
            Evidence("exception", "DistNetworkError", "torch.distributed", "bind failed: EADDRINUSE"),
            "port-in-use",
            PRIMARY,
        ),
        (Evidence("exit", "SystemExit", "builtins", "2", exit_code=2), "system-exit", PRIMARY),
        (Evidence("signal", signal="SIGKILL"), "sigkill", PRIMARY),
        (Evidence("signal", signal="SIGSEGV"), "segfault", PRIMARY),
        (Evidence("signal", signal="SIGBUS"), "bus-error", PRIMARY),
        (Evidence("signal", signal="SIGABRT", tail="NCCL error printed by the user"), "abort", PRIMARY),
        (Evidence("signal", signal="SIGTERM"), "terminated", PRIMARY),
        (Evidence("signal", signal="SIGUSR1"), "signal", PRIMARY),
        (Evidence("exit", exit_code=137), "shell-killed", PRIMARY),
        (Evidence("exit", exit_code=3), "exit", PRIMARY),
        (Evidence("spawn", message="No such file or directory: 'train'"), "spawn", PRIMARY),
    ],
    ids=lambda value: value.message[:30] or value.signal if isinstance(value, Evidence) else str(value),
)
def test_each_cause_is_reported_by_its_proof_and_not_by_lookalikes(evidence: Evidence, name: str, role: str) -> None:
    cause = classify(evidence)
    assert (cause.name, cause.role) == (name, role)
    assert describe(evidence, cause)


@pytest.mark.parametrize(("before_s", "lost"), [(0.03, True), (30.0, False)])
def test_connections_that_break_just_before_a_guardian_notices_its_agents_end_are_not_the_first_failure(
    tmp_path: Path, before_s: float, lost: bool
) -> None:
    run = RunBuilder(tmp_path).round().steps(1, 9).wait(10)
    run.fail(0, ConnectionResetError(104, "Connection reset by peer")).wait(before_s).lose("n2", silent_s=0.0)
    cause = report(run.close("failed", "n2 left: its agent was killed by SIGKILL; no restarts allowed"))["cause"]
    assert (cause["kind"] == "node-lost") is lost


def test_of_equal_failures_the_one_that_ended_the_round_is_the_first(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round()
    for rank in (3, 0, 2):
        run.fail(rank, ImportError("no module named x"), after_s=0.002)
    run.stop()
    # The coordinator read the record of rank 0's node first, and log and status name that.
    run.history[0]["failure"] = {**run.history[0]["failure"], "rank": 0, "node": "n1", "local_rank": 0}
    result = analyse(gather(run.close("failed", "rank 0 on n1 failed").write(), now_ns=run.now_ns))
    assert (result["cause"]["rank"], bool(result["cause"]["traceback"])) == (0, True)


@pytest.mark.parametrize("apart_s", [0.002, 30.0])
def test_of_different_failures_or_ones_far_apart_the_earliest_is_the_first(tmp_path: Path, apart_s: float) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ImportError("a"), after_s=1)
    other = ImportError("a") if apart_s > 1 else ValueError("a")
    run.fail(0, other, after_s=apart_s).stop()
    run.history[0]["failure"] = {**run.history[0]["failure"], "rank": 0, "node": "n1", "local_rank": 0}
    result = analyse(gather(run.close("failed", "rank 0 on n1 failed").write(), now_ns=run.now_ns))
    assert result["cause"]["rank"] == 3
