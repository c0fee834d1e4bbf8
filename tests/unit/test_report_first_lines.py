"""The first three lines are true and enough, whatever the message and the other ranks are like."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.dataclasses import replace
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.report.layout import shortened
from ftslurm.report.swallowed import RANKS_READ
from ftslurm.report.text import render

LATE = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms")
SAVE = "Caught OSError in thread saver-3 while it wrote shard 17 of the checkpoint of step 7 to /data/checkpoints/run"


def first_lines(run: RunBuilder) -> str:
    path = run.close("failed", "no restarts").write()
    report = analyse(gather(path, now_ns=run.now_ns + 10**9))
    return " ".join(" ".join(render(report, zone=time.gmtime).splitlines()[:3]).split())


def test_a_message_that_is_too_long_does_not_hide_the_cause(tmp_path: Path) -> None:
    error = RuntimeError(f"{SAVE}/17: No space left on device")
    text = first_lines(RunBuilder(tmp_path).round().fail(3, error, step=7).stop())
    assert "rank 3 on n2: disk full (Caught" in text
    assert "No space left on device)" in text
    assert "train.py:42 in train_step, step 7, round 1" in text


@pytest.mark.parametrize("more", [0, 2, 4, 12])
def test_what_a_cleanup_raised_is_cut_before_the_failure_itself(tmp_path: Path, more: int) -> None:
    message = f"accumulate must be at least 1, got 0{' in this configuration' * more}"
    error = RuntimeError("Connection closed by peer: typically caused by a remote worker. Check its logs. " * 3)
    error.__context__ = ValueError(message)
    run = RunBuilder(tmp_path).round().fail(3, error, exit_code=3)
    raised = run.errors[1, 3].exception
    assert raised is not None
    run.errors[1, 3] = replace(run.errors[1, 3], exception=replace(raised, masks=True))
    headline = first_lines(run.stop()).partition(" at train.py")[0]
    assert "rank 3 on n2: ValueError: accumulate must be at least 1" in headline
    assert headline.endswith("; exit code 3")
    assert more > 2 or f"ValueError: {message}" in headline
    assert more or "(its cleanup raised" in headline


def test_a_long_message_of_a_cause_without_more_to_add_stands_alone(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(3, ValueError("a long story " * 20), step=7).stop()
    assert "rank 3 on n2: ValueError: a long story" in first_lines(run)


def test_the_rank_that_the_others_waited_for_is_named_though_it_did_not_fail(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in (0, 1, 3):
        run.fail(rank, LATE, step=7)
    text = first_lines(run.stop())
    assert "ranks 0-1, 3 of 4: time-out waiting for other ranks (rank 2 had not failed)" in text


def test_a_time_out_that_follows_from_nothing_recorded_is_the_first_failure_by_itself(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=4).round().fail(0, LATE, step=7).stop()
    text = first_lines(run)
    assert "rank 0 on n1: RuntimeError: Timed out waiting 1800000ms" in text
    assert "had not failed" not in text
    assert "another rank's end" not in text


def test_a_node_whose_guardian_outlived_its_agent_is_not_called_lost(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().lose("n2", silent_s=0.0)
    run.history[-1]["reason"] = "n2 left: its agent was killed by SIGKILL"
    report = analyse(gather(run.close("failed", "x").write(), now_ns=run.now_ns))
    assert report["cause"]["cause"] == "agent-lost"


@pytest.mark.parametrize("flood", [200, 5000])
def test_a_traceback_is_found_above_lines_of_one_form_however_many_they_are(tmp_path: Path, flood: int) -> None:
    printed = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in mask\nValueError: 4097 columns\n'
    lines = "".join(f"cleanup: removing scratch file {n}\n" for n in range(1, flood))
    run = RunBuilder(tmp_path).round().fail(1, exit_code=1, log=f"a warning\n{printed}{lines}").stop()
    text = first_lines(run)
    assert "FAILED: rank 1 on n1: ValueError: 4097 columns (from its stderr) at /w/train.py:9 in mask" in text


@pytest.mark.parametrize(
    "before", ["step 7/30 loss=0.1", "", " 7%|7 | 7/99 [00:01<00:01, 3.1it/s]", "[rank3]: step\r7"]
)
def test_the_reason_of_an_abort_is_found_behind_a_counter_in_its_line(tmp_path: Path, before: str) -> None:
    log = f"{before}terminate called after throwing an instance of 'std::out_of_range'\n  what():  record 8812\n"
    text = first_lines(RunBuilder(tmp_path).round().fail(3, signal="SIGABRT", log=log).stop())
    assert "rank 3 on n2: aborted (SIGABRT): std::out_of_range: record 8812" in text


def test_frames_that_a_hook_of_the_program_printed_before_it_aborted_are_the_place(tmp_path: Path) -> None:
    log = (
        "thread meter died, aborting the process: ZeroDivisionError: division by zero\n"
        '  File "/w/meter.py", line 16, in rate\n    return sum(self.window) / len(self.window)\n'
        "           ~~~~^~~~\n"
    )
    text = first_lines(RunBuilder(tmp_path).round().fail(3, signal="SIGABRT", log=log).stop())
    assert "rank 3 on n2: ZeroDivisionError: division by zero (from its stderr); then SIGABRT at " in text
    assert "meter.py:16 in rate" in text


def test_a_negative_number_of_sys_exit_is_shown_as_the_signal_that_ended_a_child(tmp_path: Path) -> None:
    text = first_lines(RunBuilder(tmp_path).round().fail(3, SystemExit("-6"), exit_code=250).stop())
    assert "rank 3 on n2: exit code 250: sys.exit(-6), as of a child process that SIGABRT ended" in text
    text = first_lines(RunBuilder(tmp_path, run_id="b").round().fail(3, SystemExit("-99"), exit_code=157).stop())
    assert "exit code 157 at" in text


@pytest.mark.parametrize(
    ("called", "function", "place"),
    [
        ("time.sleep(6)", "on_alarm", "train.py:14 in load"),
        ("time.sleep(6)", "Watchdog.timeout_handler", "train.py:14 in load"),
        ("time.sleep(6)", "on_xcpu", "train.py:14 in load"),
        ("on_alarm(14, None)", "on_alarm", "train.py:11 in on_alarm"),
        ("batch.to(device)", "fetch", "train.py:11 in fetch"),
    ],
)
def test_an_exception_of_a_signals_handler_is_where_the_code_was_interrupted(
    tmp_path: Path, called: str, function: str, place: str
) -> None:
    frames = (("/w/train.py", 14, "load", called), ("/w/train.py", 11, function, "raise StepTimeout('over')"))
    text = first_lines(RunBuilder(tmp_path).round().fail(3, TimeoutError("over"), frames=frames).stop())
    assert f"at /w/{place.replace('on_alarm', function)}, round 1" in text


def test_an_alarms_exception_is_where_the_code_was_interrupted_whatever_its_handler_is_called(tmp_path: Path) -> None:
    frames = (("/w/train.py", 14, "load", "pipe.read(4)"), ("/w/alarm.py", 11, "ring", "raise StepTimeout(text)"))
    error = TimeoutError("step 3 took longer than 3 s")
    text = first_lines(RunBuilder(tmp_path).round().fail(3, error, frames=frames).stop())
    assert "at /w/train.py:14 in load, round 1 (raised in alarm.py:11)" in text


SWALLOWED = """Traceback (most recent call last):
  File "/w/train.py", line 30, in <module>
  File "/w/train.py", line 9, in sample
KeyError: 'image'
"""
FINALIZER = SWALLOWED.replace("<module>", "_exitfunc").replace("Traceback", "[rank2]: Traceback")
BROKEN = SWALLOWED.replace("KeyError: 'image'", f"RuntimeError: {LATE}")


def succeeded(
    run: RunBuilder, *, written_s: float = 0.0, command: tuple[str, ...] = ("bash", "train.sh")
) -> tuple[dict[str, Any], str]:
    """Report a run that succeeded; its outputs were written so many seconds before its end."""
    run.attempts[-1]["command"] = list(command)
    path = run.succeed().close("succeeded", "").write()
    for log in path.rglob("*.log"):
        os.utime(log, ns=(run.now_ns, run.now_ns - int(written_s * 1e9)))
    report = analyse(gather(path, now_ns=run.now_ns + 10**9))
    return report, " ".join(render(report, zone=time.gmtime).split())


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_report_of_a_run_that_succeeded_names_a_rank_whose_output_ends_with_a_traceback(
    tmp_path: Path, stream: str
) -> None:
    run = RunBuilder(tmp_path).round().log(1, BROKEN, stream).log(2, f"step 3\n{SWALLOWED}", stream)
    report, text = succeeded(run)
    assert (report["status"], report["exit_code"], report["cause"]) == ("succeeded", 0, None)
    assert "rank 2 ended with exit code 0, though its output ends with a traceback" in text
    assert "KeyError: 'image' at train.py:9 in sample; a pipe or || hides exit codes: set -e, set -o pipefail" in text
    assert "of 1 more rank" in text
    assert "no failure" not in text


@pytest.mark.parametrize(
    ("output", "written_s"),
    [(f"{SWALLOWED}step 4 loss 2.5\n", 0.0), (SWALLOWED, 60.0), (FINALIZER, 0.0), ("all is well\n", 0.0)],
)
def test_the_report_of_a_run_that_succeeded_omits_what_its_ranks_survived(
    tmp_path: Path, output: str, written_s: float
) -> None:
    report, text = succeeded(RunBuilder(tmp_path).round().log(2, output), written_s=written_s)
    assert (report["notes"], "no failure" in text) == ([], True)


@pytest.mark.parametrize("command", [("/usr/bin/python3", "train.py"), ("train.py",), ("-m", "train")])
def test_a_traceback_that_a_python_script_survived_is_not_mentioned(tmp_path: Path, command: tuple[str, ...]) -> None:
    report, _ = succeeded(RunBuilder(tmp_path).round().log(2, SWALLOWED), command=command)
    assert report["notes"] == []


def test_of_a_large_run_that_succeeded_no_output_is_read(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=RANKS_READ).round().log(2, SWALLOWED)
    assert succeeded(run)[0]["notes"] == []


def test_a_silent_node_is_in_line_two_whatever_the_first_failure_is(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=3).round().fail(0, RuntimeError("the parameter server went away"), step=7)
    run.stop()
    run.round_nodes[1, "n2"]["ended_ns"] = None
    for worker in run.round_nodes[1, "n2"]["workers"]:
        worker |= {"ended_ns": None, "stopped_by_ftslurm": False}
    report = analyse(gather(run.close("failed", "no restarts").write(), now_ns=run.now_ns + 10**9))
    lines = render(report, zone=time.gmtime).splitlines()
    assert lines[0] == "job-123 FAILED: rank 0 on n1: RuntimeError: the parameter server went away"
    assert lines[1] == "  node n2 fell silent in this round: that may be the reason"
    assert lines[3] == "  no restarts; job exit code 1"


def test_the_exit_line_is_the_fourth_at_the_latest_however_long_the_rest_is(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=8).round()
    for rank in range(0, 16, 2):
        error = ValueError(f"worker {'abcdefghijklmnop'[rank]} " + "has a long story to tell " * 9)
        run.fail(rank, error, step=7, after_s=0.001, frames=(("/w/train.py", 42, "a_function_of_a_long_name" * 4),))
    report = analyse(gather(run.stop().close("failed", "no restarts").write(), now_ns=run.now_ns + 10**9))
    lines = render(report, zone=time.gmtime).splitlines()
    assert lines[3] == "  no restarts; job exit code 1"
    assert lines[2].endswith("step 7, round 1")
    assert lines[4].startswith("  at about the same time: rank 2 on n2: ValueError")


def test_a_crash_in_a_thread_of_a_library_has_no_place_but_shows_where_the_main_thread_was(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(1, signal="SIGABRT", log="terminate called after throwing\n")
    frame = '  File "/w/train.py", line 16 in main\n'
    run.outputs[1, 1, "stacks"] = f"Fatal Python error: Aborted\n\nThread 0x7f2 (most recent call first):\n{frame}"
    text = first_lines(run)
    assert " at train.py:16" not in text.partition("main thread was")[0]
    assert "a thread of a library crashed; the main thread was at train.py:16 in main" in " ".join(text.split())


def test_a_few_ranks_that_failed_alike_are_shown_together_if_the_others_follow_or_were_stopped(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round()
    for rank in (1, 3):
        run.fail(rank, OSError(98, "Address already in use"), after_s=0.01)
    run.fail(
        0, RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3141"), after_s=0.1
    )
    assert "FAILED: ranks 1, 3: " in first_lines(run.stop())


def test_a_rank_that_was_stopped_while_it_refused_the_same_arguments_is_alike(tmp_path: Path) -> None:
    usage = "usage: train.py [-h]\ntrain.py: error: argument --precision: invalid choice: 'bf61'\n"
    run = RunBuilder(tmp_path, nodes=1).round().fail(0, exit_code=2, log=usage).log(1, usage).stop()
    assert "FAILED: both ranks: exit code 2: argument --precision: invalid choice" in first_lines(run)


def test_ranks_that_were_stopped_while_they_ended_with_the_same_message_are_alike(tmp_path: Path) -> None:
    why = "config error: global_batch 100 is not divisible by 3 ranks"
    run = RunBuilder(tmp_path, nodes=1).round().fail(0, SystemExit(why), exit_code=1, log=f"{why}\n")
    text = first_lines(run.log(1, f"{why}\n").stop())
    assert f"FAILED: both ranks: exit code 1: {why}" in text


def test_a_round_that_the_quickest_rank_ended_refers_to_the_one_in_which_all_failed_so(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1).round()
    for rank in (0, 1):
        run.fail(rank, ValueError("bad config"), after_s=0.001)
    text = first_lines(run.stop().wait(1).round().fail(1, ValueError("bad config")).stop())
    assert "FAILED: rank 1 on n1: ValueError: bad config" in text
    assert "in round 1, both ranks failed so" in text


def test_choices_and_the_loaders_process_are_left_out_before_the_middle_of_a_message(tmp_path: Path) -> None:
    text = "stack expects each tensor to be equal size, but got [158] at entry 0 and [160] at entry 1"
    error = RuntimeError(f"{text} (in DataLoader worker process 0)")
    run = RunBuilder(tmp_path, run_id="local-20261126-010513-16664").round().fail(1, error)
    assert "[158] at entry 0 and [160] at entry 1" in first_lines(run.stop())


def test_a_size_that_does_not_fit_keeps_the_name_of_its_parameter(tmp_path: Path) -> None:
    sizes = [
        f"size mismatch for {name}: copying a param with shape torch.Size([10, 8]) from checkpoint,"
        " the shape in current model is torch.Size([12, 8])."
        for name in ("head.weight", "head.bias")
    ]
    error = RuntimeError("Error(s) in loading state_dict for Net:\n\t" + "\n\t".join(sizes))
    run = RunBuilder(tmp_path, run_id="local-20261126-010513-16664").round().fail(1, error)
    assert "(head.weight: [10, 8] saved, [12, 8] in the model and 1 more)" in first_lines(run.stop())


def test_what_a_cleanup_raised_is_left_out_where_nothing_of_it_would_be_understood() -> None:
    second = "its cleanup raised AttributeError: 'Profiler' object has no attribute 'trace'"
    text = f"rank 1 on n1: a number is not finite (FloatingPointError: loss is nan at step 3 ({second}))"
    assert shortened(text, 115) == "rank 1 on n1: a number is not finite (FloatingPointError: loss is nan at step 3)"
    assert " (its cleanup ... " in shortened(text, 125)


def test_the_place_of_a_recursion_is_the_line_that_it_repeats(tmp_path: Path) -> None:
    frames = [("/w/train.py", 19, "freeze")] * 40 + [("/w/train.py", 20, "freeze")]
    run = RunBuilder(tmp_path).round().fail(1, RecursionError("maximum recursion depth exceeded"), frames=frames)
    assert "/train.py:19 in freeze" in first_lines(run.stop())


def test_the_forward_call_of_a_gradient_that_is_nan_is_shown(tmp_path: Path) -> None:
    title = "UserWarning: Error detected in PowBackward0. Traceback of forward call that caused the error:\n"
    forward = f'{title}  File "/w/train.py", line 18, in distance\n    return (a - b) ** p\n'
    error = RuntimeError("Function 'PowBackward0' returned nan values in its 0th output.")
    path = RunBuilder(tmp_path).round().fail(1, error, log=forward).stop().close("failed", "no restarts").write()
    text = " ".join(render(analyse(gather(path, now_ns=10**19)), zone=time.gmtime).split())
    assert "its forward call: train.py:18 in distance" in text


def test_a_path_of_windows_is_shortened_as_any_other(tmp_path: Path) -> None:
    frames = [("C:\\Users\\User\\Downloads\\SD\\kohya_ss\\library\\train_util.py", 3860, "_load_target_model_of_it")]
    run = RunBuilder(tmp_path).round().fail(1, OSError("no model of this name " * 5), frames=frames)
    assert "at .../library/train_util.py:3860 in" in first_lines(run.stop())


def test_ranks_that_ended_with_different_exit_codes_did_not_fail_alike(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1).round()
    run.fail(1, SystemExit(17), exit_code=17, log="fatal error, see logs/rank1.log\n")
    run.fail(0, SystemExit(1), exit_code=1, after_s=0.1, log="fatal error, see logs/rank0.log\n")
    assert "FAILED: rank 1 on n1: exit code 17" in first_lines(run.stop())
