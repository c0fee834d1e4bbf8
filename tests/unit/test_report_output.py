"""What the output of a rank adds to the headline: an exit code that hides a failure, a thread, a line at its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.records.error import Frame
from ftslurm.report.pipeline import make_report
from ftslurm.report.text import render

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3141"
TRACEBACK = """\
Traceback (most recent call last):
  File "/w/train.py", line 7, in <module>
    tok(line)
  File "/w/train.py", line 6, in tok
    return d["bos"]
KeyError: 'bos'
"""
BY_HOOK = "".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines())
FRAME = ("/w/train.py", 14, "main", "sys.exit(1)")


def report_of(run: RunBuilder) -> tuple[dict[str, Any], str]:
    report = make_report(run.close("failed", "no restarts").write(), now_ns=run.now_ns + 10**9)
    return report["cause"], " ".join(render(report, zone=time.gmtime).split())


@pytest.mark.parametrize("printed", [BY_HOOK, TRACEBACK])
def test_the_failure_behind_an_exit_code_0_is_the_first_one(tmp_path: Path, printed: str) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().log(1, printed).finish(1)
    cause, text = report_of(run.fail(0, RuntimeError(CLOSED), after_s=0.5).stop())
    assert (cause["rank"], cause["where"]["line"]) == (1, 6)
    assert "FAILED: rank 1 on n1: KeyError: 'bos' (from its stderr); exit code 0" in text
    assert "it ended with exit code 0: a pipe or || hides exit codes" in text


def test_a_rank_that_finished_with_other_output_is_only_what_the_others_missed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().log(1, f"{TRACEBACK}retrying\nstep 9\n").finish(1)
    cause, _ = report_of(run.fail(0, RuntimeError(CLOSED), after_s=0.5).stop())
    assert (cause["rank"], cause["follows"]) == (0, "rank 1 had finished")


def test_what_a_wrapper_prints_below_a_traceback_by_torchs_hook_is_not_the_reason(tmp_path: Path) -> None:
    noise = "rm: cannot remove '/s/lock': No such file or directory\numount: /mnt: not mounted\n"
    run = RunBuilder(tmp_path, nodes=2).round().fail(1, record=False, log=f"{BY_HOOK}{noise}ERROR: failed, see above\n")
    cause, text = report_of(run.stop())
    assert "rank 1 on n1: KeyError: 'bos' (from its stderr)" in text and cause["where"]["line"] == 6


def test_a_stack_full_of_one_call_is_a_recursion_without_end(tmp_path: Path) -> None:
    stack = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007fe2dac22b80 (most recent call first):\n"
    stack += '  File "/w/config.py", line 11 in __getattr__\n' * 99 + "  ...\n"
    run = RunBuilder(tmp_path, nodes=2).round().fail(1, signal="SIGSEGV", record=False, log=stack)
    _, text = report_of(run.stop())
    assert "its stack is full of calls of config.py:11 in __getattr__: an endless recursion" in text


def hung(tmp_path: Path, place: tuple[str, int, str], printed: str, others: str = "") -> str:
    run = RunBuilder(tmp_path, nodes=2).round().log(1, printed).log(0, others)
    waits = [("/w/train.py", 20, "main"), ("/lib/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")]
    return report_of(run.hang(1, places={0: waits, 1: [place], 2: waits, 3: waits}).stop())[1]


def test_the_last_line_of_a_hung_ranks_stderr_is_quoted_if_it_reports_trouble(tmp_path: Path) -> None:
    line = "pump ended: ValueError('bad frame header 0x00')"
    quoted = f'the stderr of rank 1 ends with "{line}"'
    assert quoted in hung(tmp_path, ("/w/train.py", 18, "main"), f"{line}\n")
    assert quoted not in hung(tmp_path / "b", ("/w/train.py", 18, "main"), f"{line}\n", f"{line}\nstep 4\n")
    assert "ends with" not in hung(tmp_path / "c", ("/w/train.py", 18, "main"), "loaded 7 shards\n")


def test_a_traceback_that_others_printed_and_lived_on_after_is_no_reason_of_a_hang(tmp_path: Path) -> None:
    place = ("/w/train.py", 18, "main")
    assert "ends with a traceback: KeyError: 'bos'" in hung(tmp_path, place, TRACEBACK)
    assert "ends with a traceback" not in hung(tmp_path / "b", place, TRACEBACK, f"{TRACEBACK}mirror 1 ok\n")


def test_the_tracebacks_of_two_parties_that_wait_for_each_other_are_both_looked_at(tmp_path: Path) -> None:
    inner = "/lib/site-packages/torch/distributed/distributed_c10d.py"
    here, there = [
        [("/w/train.py", line, "main"), (inner, 9, name)] for line, name in ((20, "all_reduce"), (30, "barrier"))
    ]
    run = RunBuilder(tmp_path, nodes=2).round().log(2, TRACEBACK)
    _, text = report_of(run.hang(0, places={0: here, 1: here, 2: there, 3: there}).stop())
    assert "the stderr of rank 2 ends with a traceback: KeyError: 'bos' at train.py:6" in text
    closed = TRACEBACK.replace("KeyError: 'bos'", f"RuntimeError: {CLOSED}")
    run = RunBuilder(tmp_path / "b", nodes=2).round().log(2, closed)
    _, text = report_of(run.hang(0, places={0: here, 1: here, 2: there, 3: there}).stop())
    assert "ends with a traceback" not in text, "what follows from the others explains nothing"


def test_the_users_other_threads_are_named_where_one_may_hold_what_a_rank_waits_for(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    waits = [("/w/train.py", 20, "main"), ("/lib/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")]
    run.hang(1, places={0: waits, 1: [("/w/train.py", 17, "step")], 2: waits, 3: waits})
    key = next(key for key in run.outputs if key[1:] == (1, "stacks"))
    thread = 'Thread 0x00007f0000000001 (most recent call first):\n  File "/w/train.py", line 11 in saver\n\n'
    begin = min(at for at in map(run.outputs[key].find, ("Current thread", "Thread 0x")) if at >= 0)
    run.outputs[key] = run.outputs[key][:begin] + thread + run.outputs[key][begin:]
    assert "rank 1 has another thread at train.py:11 in saver" in report_of(run.stop())[1]


@pytest.mark.parametrize("late_s", [-0.5, 0.5])
def test_the_traceback_of_a_rank_that_ran_on_may_be_why_the_one_that_it_served_failed(
    tmp_path: Path, late_s: float
) -> None:
    gone = RuntimeError("server closed the connection")
    run = RunBuilder(tmp_path, nodes=2).round().log(0, f"{TRACEBACK}{'-' * 40}\n").fail(1, gone)
    failed_ns = run.now_ns
    path = run.stop().close("failed", "no restarts").write()
    (log,) = path.rglob("ranks/00000/stderr.log")
    os.utime(log, ns=(failed_ns, failed_ns + int(late_s * 1e9)))
    report = make_report(path, now_ns=run.now_ns + 10**9)
    line = "the stderr of rank 0 ends with a traceback: KeyError: 'bos' at train.py:6"
    assert report["cause"]["rank"] == 1
    assert (line in " ".join(render(report).split())) is (late_s < 0), "what it prints as it is stopped is no reason"


@pytest.mark.parametrize(
    "message",
    [
        "upstream job 881 failed: torch.AcceleratorError: CUDA error: device-side assert triggered",
        "policy.yaml: keys 'on_ecc: uncorrectable ECC error' need an action",
        "label 'No space left on device' is reserved",
    ],
)
def test_what_a_programs_own_message_quotes_is_no_cause(tmp_path: Path, message: str) -> None:
    quoted = (("/w/train.py", 4, "check", f'raise RuntimeError("{message}")'),)
    cause, _ = report_of(RunBuilder(tmp_path, nodes=2).round().fail(1, RuntimeError(message), frames=quoted).stop())
    assert cause["cause"] == "exception"
    inner = (
        ("/w/train.py", 4, "check", "model(x)"),
        ("/lib/site-packages/torch/nn/modules/module.py", 9, "call", None),
    )
    run = RunBuilder(tmp_path / "b", nodes=2).round().fail(1, RuntimeError(message), frames=inner).stop()
    assert report_of(run)[0]["cause"] != "exception"


def test_a_servers_page_in_a_message_is_no_traceback_of_the_rank(tmp_path: Path) -> None:
    page = f"registry answered: <html><pre>\n{TRACEBACK}</pre></html>"
    _, text = report_of(RunBuilder(tmp_path, nodes=2).round().fail(1, RuntimeError(page)).stop())
    assert "FAILED: rank 1 on n1: RuntimeError: registry answered" in text


@pytest.mark.parametrize("below", ["2026-11-26 17:14:02.123 | INFO | data:verify:61 - bye", "| metric 3 | 84.0 |"])
def test_what_a_logger_or_a_table_prints_below_an_error_does_not_hide_it(tmp_path: Path, below: str) -> None:
    error = "2026-11-26 17:14:01.120 | ERROR | data:verify:60 - Tokenizer fingerprint mismatch"
    run = RunBuilder(tmp_path, nodes=2).round().fail(1, record=False, exit_code=4, log=f"{error}\n{below}\n" * 1)
    assert "rank 1 on n1: exit code 4: Tokenizer fingerprint mismatch (from its stderr)" in report_of(run.stop())[1]


def test_ranks_that_end_themselves_at_one_place_fail_alike_whatever_each_has_printed(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    for rank in range(4):
        line = f"2026-11-26 15:30:04|ERROR|r{rank}|loss is NaN at step 3, giving up\n"
        run.fail(rank, SystemExit(1), frames=(FRAME,), after_s=0.01, log=line)
    _, text = report_of(run.stop())
    assert "FAILED: all 4 ranks: r0|loss is NaN at step 3, giving up (from its stderr)" in text


def test_where_an_exception_was_raised_that_own_code_passed_on_is_shown(tmp_path: Path) -> None:
    class TrainerError(Exception):
        pass

    raised = TrainerError("callback failed")
    raised.__cause__ = AttributeError("no attribute 'norm'")
    run = RunBuilder(tmp_path, nodes=2).round()
    run.fail(1, raised, frames=(("/w/trainer.py", 13, "call", "raise TrainerError(...) from e"),))
    (key, error), *_ = run.errors.items()
    assert error.exception is not None and error.exception.cause is not None
    cause = replace(error.exception.cause, frames=(Frame("/w/train.py", 10, "on_step_end"),))
    run.errors[key] = replace(error, exception=replace(error.exception, cause=cause))
    found, text = report_of(run.stop())
    assert found["raised_in"]["function"] == "on_step_end"
    assert "at /w/trainer.py:13 in call, round 1 (raised in train.py:10)" in text


def test_a_report_on_an_exception_loads_neither_what_reads_output_nor_what_judges_hangs(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().fail(1, ValueError("boom"), log="step 120\n").stop()
    path = run.close("failed", "no restarts").write()
    script = "import sys; from ftslurm.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, "report", str(path)], capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert "ftslurm.report.verdict" in loaded, done.stderr
    slow = ("ftslurm.failures.stderr_witness", "ftslurm.failures.closing_lines", "ftslurm.report.hang")
    assert not loaded.intersection(slow)


def test_what_a_hung_rank_prints_as_it_is_stopped_is_no_reason(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round()
    waits = [("/w/train.py", 20, "main"), ("/lib/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")]
    run.hang(1, places={0: waits, 1: [("/w/train.py", 18, "main")], 2: waits, 3: waits}).wait(0.1)
    text = report_of(run.log(1, TRACEBACK.replace("KeyError", "BrokenPipeError")).stop())[1]
    assert "ends with" not in text.partition("where the ranks")[0]


def test_a_failure_that_all_ranks_only_report_is_that_of_the_rank_that_logged_why(tmp_path: Path) -> None:
    common = RuntimeError("1 rank(s) failed at step 2, leaving")
    own = f'Traceback (most recent call last):\n  File "/w/train.py", line 44, in guarded\nRuntimeError: {common}\n'
    run = RunBuilder(tmp_path, nodes=2, nproc=1).round().fail(0, common, log=own)
    _, text = report_of(run.fail(1, common, log=TRACEBACK + own).stop())
    assert "rank 1 on n2: KeyError: 'bos' (from its stderr) at /w/train.py:6 in tok" in text
    assert "it and the others then raised RuntimeError: 1 rank(s) failed at step 2" in text
    assert "at the same time" not in text


def test_the_child_process_that_an_exception_ended_is_named_where_its_queue_stays_empty(tmp_path: Path) -> None:
    log = f"Process producer:\n{TRACEBACK}INFO step 5 loss 4.290\n"
    run = RunBuilder(tmp_path).round().fail(1, Empty(), log=log)
    assert "process producer of rank 1 died at train.py:6: KeyError: 'bos'" in report_of(run.stop())[1]


def test_of_a_progress_bar_the_last_version_is_shown(tmp_path: Path) -> None:
    bar = "\r".join(f"train: {i:3d}/400 [{'=' * 60}]" for i in range(1, 26))
    run = RunBuilder(tmp_path).round().fail(1, exit_code=3, record=False, log=f"{bar}\n")
    assert "25/400" in report_of(run.stop())[1].partition("the end of its stderr")[2]


def test_what_the_server_of_a_failed_client_printed_is_shown_though_it_then_lost_that(tmp_path: Path) -> None:
    class RemoteDisconnected(ConnectionError):
        pass

    lost = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4")
    own = f'Traceback (most recent call last):\n  File "/w/train.py", line 22, in main\nRuntimeError: {lost}\n'
    place = [("/w/train.py", 22, "main"), ("/lib/site-packages/torch/distributed/distributed_c10d.py", 9, "barrier")]
    run = RunBuilder(tmp_path, nodes=2, nproc=1).round().fail(1, RemoteDisconnected("Remote end closed connection"))
    text = report_of(run.fail(0, lost, frames=place, log=TRACEBACK + own, after_s=0.1).stop())[1]
    assert "rank 1 on n2: RemoteDisconnected" in text.partition(" rank 0 had printed before: KeyError: 'bos'")[0]
    assert "rank 0 had printed before: KeyError: 'bos' at train.py:6" in text


def test_ranks_whose_record_could_not_be_written_failed_alike_by_their_output(tmp_path: Path) -> None:
    log = TRACEBACK.replace("KeyError: 'bos'", "OSError: [Errno 24] Too many open files: '/w/{}.bin'")
    run = RunBuilder(tmp_path, nodes=2, nproc=1).round().fail(0, exit_code=1, record=False, log=log.format(41))
    report, _ = report_of(run.log(1, log.format(52)).stop())
    assert report["alike"]["subject"] == "both ranks"


def test_the_last_line_of_stdout_is_quoted_beside_an_interrupt_which_has_no_reason_itself(tmp_path: Path) -> None:
    line = "plateau: loss has not improved for 20 steps, stopping"
    run = RunBuilder(tmp_path, nodes=2).round().log(1, f"{line}\n", "stdout").fail(1, KeyboardInterrupt())
    assert f'its stdout ends with "{line}"' in report_of(run.stop())[1]


@pytest.mark.parametrize(("last", "quoted"), [("OOM at micro batch 1, retrying with 0", True), ("batch 3 read", False)])
def test_trouble_that_a_rank_printed_to_stdout_just_before_it_failed_is_quoted(
    tmp_path: Path, last: str, quoted: bool
) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().log(1, f"{last}\n", "stdout")
    _, text = report_of(run.fail(1, RuntimeError("batch 3 does not fit"), after_s=0.1, log=BY_HOOK).stop())
    assert (f'its stdout ends with "{last}"' in text) is quoted


def test_trouble_of_long_before_is_not_quoted(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().log(1, "OOM at micro batch 1, retrying with 0\n", "stdout")
    assert "its stdout ends" not in report_of(run.fail(1, RuntimeError("x"), after_s=60, log=BY_HOOK).stop())[1]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("killing stale trainer pid 1001", True),
        ("killing stale trainer pid 10011", False),
        ("early stopping at step 1001", False),
        ("worker 1001 was killed by signal 15", False),
    ],
)
def test_the_rank_that_ended_another_ones_process_is_named(tmp_path: Path, line: str, named: bool) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().log(0, f"{line}\n", "stdout")
    _, text = report_of(run.fail(1, signal="SIGTERM", record=False).stop())
    assert (f'rank 0 had printed "{line}", of this rank\'s process' in text) is named


def test_a_rank_that_ended_itself_is_no_riddle(tmp_path: Path) -> None:
    line = "[dog] main thread made no progress for 4 s, shooting pid 1001"
    run = RunBuilder(tmp_path, nodes=2).round()
    text = " ".join(report_of(run.fail(1, signal="SIGKILL", record=False, log=f"{line}\n").stop())[1].split())
    assert "FAILED: rank 1 on n1: killed by SIGKILL in round 1" in text
    assert f'rank 1 had printed "{line}", of its own process' in text
    assert "sender unknown" not in text.split("rounds")[0] and "look for users or tools" not in text


def test_an_equal_number_of_a_process_on_another_node_is_another_process(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().log(2, "killing stale trainer pid 1001\n", "stdout")
    assert "of this rank's process" not in report_of(run.fail(1, signal="SIGTERM", record=False).stop())[1]


def test_a_measure_is_no_trouble(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2).round().log(1, "unknown words: 3 found\n", "stdout")
    _, text = report_of(run.fail(1, RuntimeError("batch 3 does not fit"), after_s=0.1, log=BY_HOOK).stop())
    assert "its stdout ends" not in text


def test_the_forward_call_of_a_gradient_ends_before_the_errors_own_traceback(tmp_path: Path) -> None:
    forward = (
        "UserWarning: Error detected in DivBackward0. Traceback of forward call that caused the error:\n"
        '  File "/w/train.py", line 9, in step\n    y = norm(x)\n'
        '  File "/w/train.py", line 6, in forward\n    return x / (x * 0).sum().sqrt()\n'
        '  return engine.run_backward(\nTraceback (most recent call last):\n  File "/w/train.py", line 10, in step\n'
        "    y.sum().backward()\n"
    )
    error = RuntimeError("Function 'DivBackward0' returned nan values in its 0th output.")
    cause, text = report_of(
        RunBuilder(tmp_path, nodes=2).round().fail(1, error, log=f"{forward}RuntimeError: x\n").stop()
    )
    assert "its forward call: train.py:6 in forward" in text
    assert cause["advice"].startswith("That function has no finite gradient at its input")


def test_the_exception_in_a_loggers_box_right_above_a_failure_is_quoted(tmp_path: Path) -> None:
    box = (
        "2026-11-27 07:56:36 | ERROR | An error has been caught in function 'load_vocab':\n"
        '  │ File "/w/vocab.py", line 18, in read\n  │   with open(path) as f:\n'
        "  └ FileNotFoundError: [Errno 2] No such file or directory: 'vocab/merges-1.txt'\n"
    )
    own = TRACEBACK.replace("KeyError: 'bos'", "TypeError: cannot unpack non-iterable NoneType object")
    run = RunBuilder(tmp_path, nodes=2).round()
    run.fail(1, TypeError("cannot unpack non-iterable NoneType object"), log=f"{box}{own}")
    assert 'right above: "FileNotFoundError: [Errno 2] No such file' in " ".join(report_of(run.stop())[1].split())


def test_what_python_ignored_right_above_a_failure_is_no_reason(tmp_path: Path) -> None:
    ignored = (
        "Exception ignored in: <function Shard.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        '  File "/w/train.py", line 3, in __del__\n    self.close()\nOSError: shard 1: already closed\n'
    )
    run = RunBuilder(tmp_path, nodes=2).round().fail(1, KeyError("bos"), log=f"{ignored}{TRACEBACK}")
    assert "right above" not in report_of(run.stop())[1]
