"""When the end of a rank's output decides about the reason of its end, and when the end by itself does."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.failures.causes import ROWS, Cause, Evidence, find
from ftslurm.failures.message_line import message_line
from ftslurm.failures.stderr_witness import witness
from ftslurm.records.error import ExceptionRecord, Frame
from ftslurm.report.layout import shortened
from ftslurm.report.pipeline import make_report
from ftslurm.report.stderr_evidence import OutputEvidence, output_evidence

TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/train.py", line 7, in step
ValueError: row 4711 has no label
"""
LMOD = """\
Lmod has detected the following error:  The following module(s) are unknown: "cuda/99.1"

Please check the spelling or version number. Also try "module spider ..."
It is also possible your cache file is out-of-date; it may help to try:
  $ module --ignore_cache load "cuda/99.1"
"""
HANDLED = ExceptionRecord(
    "ValueError", "builtins", "row 4711 has no label", frames=(Frame("/home/ann/train.py", 7, "step"),)
)
EXITS = ExceptionRecord("SystemExit", "builtins", "1", frames=(Frame("/home/ann/log.py", 3, "die"),), context=HANDLED)


def row(name: str) -> Cause:
    return next(each for each in ROWS if each.name == name)


def evidence_for(
    cause: str,
    stderr: str,
    stdout: str = "",
    healthy: tuple[str, ...] = (),
    stale: tuple[str, ...] = (),
    **more: object,
) -> OutputEvidence | None:
    exception, signal = more.get("exception"), more.get("signal")
    assert exception is None or isinstance(exception, ExceptionRecord)
    assert signal is None or isinstance(signal, str)
    return output_evidence(row(cause), exception, signal, {"stderr": stderr, "stdout": stdout}, healthy, stale)


def test_a_helper_that_logs_and_exits_is_judged_by_the_exception_that_was_handled() -> None:
    found = evidence_for("system-exit", "step 3\nERROR:root:training failed: row 4711 has no label\n", exception=EXITS)
    assert found is not None
    assert found.exception == HANDLED
    assert found.certain


@pytest.mark.parametrize("stderr", ["", "step 3\n", "ERROR:root:no such shard\n"])
def test_an_exception_that_the_output_does_not_name_was_dealt_with(stderr: str) -> None:
    found = evidence_for("system-exit", stderr, exception=EXITS)
    assert found is None or found.exception is None or found.exception.type != "ValueError"


def test_a_crash_has_its_own_reason_whatever_was_printed_before() -> None:
    assert evidence_for("segfault", TRACEBACK, signal="SIGSEGV") is None
    assert evidence_for("memory-limit", TRACEBACK, signal="SIGKILL") is None


def test_a_kill_is_explained_by_a_traceback_but_not_by_a_logged_line() -> None:
    assert evidence_for("sigkill", TRACEBACK, signal="SIGKILL") is not None
    assert evidence_for("sigkill", "ERROR: no label\n", signal="SIGKILL") is None


def test_stdout_counts_where_stderr_is_empty() -> None:
    found = evidence_for("exit", "\n", TRACEBACK)
    assert found is not None
    assert found.source == "its stdout"
    assert evidence_for("exit", "all is well\n", TRACEBACK) is None


def test_stdout_counts_where_stderr_has_only_warnings() -> None:
    found = evidence_for(
        "exit", "/venv/torch/cuda.py:7: UserWarning: no GPU\n  return n\n", "ERROR: no shard matches\n"
    )
    assert found is not None
    assert (found.found.text, found.source) == ("no shard matches", "its stdout")


@pytest.mark.parametrize("healthy", [TRACEBACK, TRACEBACK.replace("4711", "12") + "step 7\n"])
def test_what_a_rank_that_did_not_fail_has_printed_too_is_no_reason(healthy: str) -> None:
    assert evidence_for("sigkill", TRACEBACK, healthy=(healthy,), signal="SIGKILL") is None
    assert evidence_for("exit", TRACEBACK, healthy=(healthy,)) is None
    assert evidence_for("exit", TRACEBACK, healthy=("step 7\n", "")) is not None


@pytest.mark.parametrize(
    ("exception", "stderr", "expected"),
    [
        (
            ExceptionRecord("BrokenProcessPool", message="A process in the process pool was terminated abruptly while"),
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
            '  File "/home/ann/data.py", line 25 in work\n\n[rank2]: '
            + TRACEBACK.replace("ValueError", "BrokenProcessPool"),
            "Fatal Python error: Segmentation fault",
        ),
        (
            ExceptionRecord("RuntimeError", message="DataLoader worker (pid 7) exited unexpectedly with exit code 4."),
            "libdecoder: FATAL: unsupported codec 'av1'\n" + TRACEBACK.replace("ValueError", "RuntimeError"),
            "unsupported codec 'av1'",
        ),
    ],
)
def test_a_worker_process_that_ended_is_explained_by_what_stands_before(
    exception: ExceptionRecord, stderr: str, expected: str
) -> None:
    found = evidence_for("exception", stderr, exception=exception)
    assert found is not None and found.of_child
    assert found.found.text == expected


def test_a_programs_own_last_message_is_kept() -> None:
    exits = ExceptionRecord("SystemExit", "builtins", "giving up: see the log")
    found = evidence_for("system-exit", f"{TRACEBACK}giving up: see the log\n", exception=exits)
    assert found is not None
    assert found.exception is not None
    assert evidence_for("system-exit", "ERROR: no label\ngiving up: see the log\n", exception=exits) is None


def test_a_child_process_is_explained_by_what_the_exception_has_of_its_output_first() -> None:
    message = "Command '['convert']' returned non-zero exit status 1."
    failed = ExceptionRecord("CalledProcessError", "subprocess", message, output="row 7\nno such shard\n")
    found = evidence_for("exception", TRACEBACK, exception=failed)
    assert found is not None
    assert (found.found.text, found.of_child, found.exception) == ("no such shard", True, None)


def test_the_first_line_of_a_tool_is_the_reason_of_its_others() -> None:
    output = "tar: Unexpected EOF in archive\ntar: rmtlseek not stopped at a record boundary\n"
    closing = "tar: Error is not recoverable: exiting now\n"
    message = "Command '['tar', '-xf', 's.tar']' returned non-zero exit status 2."
    for printed, stderr in ((f"{output}{closing}", ""), ("", f"{output}{closing}")):
        failed = ExceptionRecord("CalledProcessError", "subprocess", message, output=printed)
        found = evidence_for("exception", stderr, exception=failed)
        assert found is not None and found.found.text == "tar: Unexpected EOF in archive"


@pytest.mark.parametrize(
    "closing", ["tar: Error is not recoverable: exiting now", "make: *** [Makefile:3: all] Error 1"]
)
def test_the_line_that_a_tool_prints_behind_its_reason_is_none(closing: str) -> None:
    output = f"tar: shard-3.tar: Cannot open: No such file or directory\n{closing}\n"
    message = "Command '['bash']' returned non-zero exit status 2."
    failed = ExceptionRecord("CalledProcessError", "subprocess", message, output=output)
    found = evidence_for("exception", TRACEBACK, exception=failed)
    assert found is not None
    assert found.found.text == "tar: shard-3.tar: Cannot open: No such file or directory"


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("shard 3: checksum mismatch", "shard 3: checksum mismatch"),
        ("step 300 loss 2.5", None),
        ("2026-03-01 09:00:00 starting the export", None),
        ("/x/y.py:3: UserWarning: slow", None),
        ("shard 3 is broken, skipping it", None),
        ("", None),
    ],
)
def test_a_child_process_without_a_recorded_output_is_explained_by_the_line_above_the_traceback(
    line: str, quoted: str | None
) -> None:
    message = "Command '['convert']' returned non-zero exit status 4."
    failed = ExceptionRecord("CalledProcessError", "subprocess", message)
    header, frame = "Traceback (most recent call last):", '  File "/r/train.py", line 3, in <module>'
    found = evidence_for(
        "exception", f"{line}\n{header}\n{frame}\nsubprocess.CalledProcessError: {message}\n", exception=failed
    )
    assert (found.found.text if found is not None else None) == quoted


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("watchdog: the step took longer than 90 s, interrupting the main thread", True),
        ("sampled 40 batches", False),
        ("", False),
    ],
)
def test_an_interruption_is_shown_with_the_line_above_its_traceback_that_mentions_it(line: str, quoted: bool) -> None:
    stderr = f"{line}\n{TRACEBACK.rpartition('ValueError')[0]}KeyboardInterrupt\n"
    found = evidence_for("interrupt", stderr, exception=ExceptionRecord("KeyboardInterrupt", "builtins", ""))
    assert (found.found.text if found is not None else None) == (line if quoted else None)


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        ("Host key verification failed.\nrsync error: unexplained error (code 255)\n", "Host key verification failed."),
        ("tar: short read: error is not recoverable\n", "tar: short read: error is not recoverable"),
        ("copied 7 files\n", None),
        ("ERROR-free so far, retrying\n", None),
        ("mount: permission denied\nstep 7 loss 2.5\n", None),
    ],
)
def test_a_programs_own_message_on_an_exit_code_is_explained_by_an_error_right_above(
    lines: str, quoted: str | None
) -> None:
    failed = ExceptionRecord("RuntimeError", message="staging of nas:/data failed with status 255")
    found = evidence_for("exception", lines + TRACEBACK.replace("ValueError", "RuntimeError"), exception=failed)
    assert (found.found.text if found is not None else None) == quoted


def test_a_failed_module_load_is_explained_by_lmods_own_line() -> None:
    found = evidence_for("exit", LMOD)
    assert found is not None
    assert found.found.text == 'Lmod: The following module(s) are unknown: "cuda/99.1"'


def test_a_compiler_is_quoted_with_its_first_error() -> None:
    output = "fused.c: In function 'f':\nfused.c:3:9: error: expected ';' before '}' token\n    3 | x = 1\n      |  ~\n"
    message = "Command '['gcc']' returned non-zero exit status 1."
    failed = ExceptionRecord("CalledProcessError", "subprocess", message, output=output)
    found = evidence_for("exception", "", exception=failed)
    assert found is not None
    assert found.found.text == "fused.c:3:9: error: expected ';' before '}' token"


def test_a_traceback_after_which_the_rank_went_on_is_no_reason() -> None:
    assert evidence_for("exit", TRACEBACK, "leaving\n", stale=("stderr",)) is None
    assert evidence_for("exit", TRACEBACK, "leaving\n") is not None


def launcher(error_file: str, code: int) -> ExceptionRecord:
    rule = "=" * 60
    table = (
        f"\n{rule}\ntrain.py FAILED\n{'-' * 60}\nFailures:\n  <NO_OTHER_FAILURES>\n{'-' * 60}\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-01_00:00:00\n  host      : n1\n"
        f"  rank      : 2 (local_rank: 2)\n  exitcode  : {code} (pid: 7)\n  error_file: {error_file}\n{rule}"
    )
    return ExceptionRecord("ChildFailedError", "torch.distributed.elastic.multiprocessing.errors", table)


def test_a_nested_launch_whose_rank_left_no_record_is_judged_by_the_ranks_output() -> None:
    exception = launcher("<N/A>", 1)
    stderr = f"{TRACEBACK}Traceback (most recent call last):\nChildFailedError: {exception.message}\n"
    found = evidence_for("exception", stderr, exception=exception)
    assert found is not None
    assert found.exception is not None
    assert (found.exception.type, found.source) == ("ValueError", "its child's stderr")


def test_a_traceback_of_a_nested_launchs_rank_is_shown_with_its_own_number(tmp_path: Path) -> None:
    stderr = "".join(f"[rank3]: {line}\n" for line in TRACEBACK.splitlines())
    run = RunBuilder(tmp_path).round().fail(1, exit_code=1, log=stderr).stop().close("failed", "no restarts")
    cause = make_report(run.write(), now_ns=run.now_ns + 10**9)["cause"]
    assert (cause["rank"], cause["what"]) == (
        1,
        "ValueError: row 4711 has no label (rank 3 of its own launch, from its stderr)",
    )


def test_a_nested_launch_whose_ranks_printed_nothing_is_named_by_its_table() -> None:
    exception = launcher("<N/A>", -9)
    assert evidence_for("exception", "", exception=exception) is None
    assert message_line(exception.message) == "train.py: rank 2 was killed by signal 9"
    assert message_line(launcher("<N/A>", 3).message) == "train.py: rank 2 ended with code 3"


def test_a_record_that_torch_copied_counts_more_than_the_output() -> None:
    found = evidence_for("exception", TRACEBACK, exception=launcher("/tmp/error.json", 1))
    assert found is None or found.source != "its child's stderr"


INTERRUPTED = ExceptionRecord("KeyboardInterrupt", frames=(Frame("/home/ann/train.py", 29, "main"),))
BROKEN = """Traceback (most recent call last):
  File "/home/ann/train.py", line 29, in main
    time.sleep(1)
KeyboardInterrupt
"""


def test_a_program_that_interrupts_itself_is_explained_by_what_it_logged_just_before() -> None:
    found = evidence_for("interrupt", f"ERROR:root:heartbeat failed\n{TRACEBACK}{BROKEN}", exception=INTERRUPTED)
    assert found is not None
    assert found.exception is not None
    assert found.exception.type == "ValueError"
    assert evidence_for("interrupt", f"loading\n{BROKEN}", exception=INTERRUPTED) is None


def test_of_a_tools_lines_the_first_one_counts_and_not_what_follows_from_it() -> None:
    lines = (
        "gzip: stdin: not in gzip format\ntar: Child returned status 1\ntar: Error is not recoverable: exiting now\n"
    )
    error = ExceptionRecord("CalledProcessError", "subprocess", "Command '['tar', '-xzf', 'd.tgz']' returned non-zero"
                            " exit status 2.")  # fmt: skip
    found = evidence_for("exception", f"\n{lines}{CALLED}", exception=error)
    assert found is not None
    assert found.found.text == "gzip: stdin: not in gzip format"


CALLED = """Traceback (most recent call last):
  File "/usr/lib/python3.11/subprocess.py", line 571, in run
    raise CalledProcessError(retcode, process.args,
subprocess.CalledProcessError: Command '['tar', '-xzf', 'd.tgz']' returned non-zero exit status 2.
"""


def test_the_driver_that_torch_only_warned_of_is_why_there_is_no_gpu() -> None:
    warning = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n"
    error = ExceptionRecord("ValueError", message="ProcessGroupNCCL is only supported with GPUs, no GPUs found!")
    found = evidence_for("gpu-missing", warning, exception=error)
    assert found is not None
    assert found.exception is not None
    assert "driver on your system is too old" in found.exception.message
    assert evidence_for("gpu-missing", "", exception=error) is None


def test_the_command_that_a_shell_could_not_run_is_found_above_what_its_trap_prints() -> None:
    missing = "./train.sh: line 4: evn_check: command not found"
    found = evidence_for("shell-missing", f"starting\n{missing}\ncleanup done\nremoving scratch\n")
    assert found is not None and found.found.text == missing
    assert evidence_for("shell-missing", "starting\ncleanup done\nremoving scratch\n") is None


def test_a_reason_that_is_quoted_needs_no_advice_to_look_for_it(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().fail(1, SystemExit(1), log="2026-11-24 [ERROR] 校验失败: 分片 42 不匹配\n")
    cause = make_report(run.stop().close("failed", "x").write(), now_ns=1)["cause"]
    assert "校验失败: 分片 42 不匹配" in cause["what"], "a logger's name has no such letters"
    assert not cause["advice"]


def test_the_last_line_of_a_message_is_kept_below_a_value_that_fills_the_first_one() -> None:
    values = ", ".join(f"{i / 7}" for i in range(300))
    assert message_line(f"tensor([{values}])\nhas 3 NaN rows").endswith("]) ... has 3 NaN rows")


def test_a_failure_that_was_collected_under_a_name_is_shown_with_the_exception_that_has_the_name(
    tmp_path: Path,
) -> None:
    log = f"WARNING callback Checkpointer.on_step raised, continuing\n{TRACEBACK}step 8 loss 1.5\n"
    own = 'Traceback (most recent call last):\n  File "/home/ann/train.py", line 42, in train_step\n'
    for name, shown in (("Checkpointer", True), ("Profiler", False)):
        error = RuntimeError(f"1 callback(s) failed: {name}")
        run = RunBuilder(tmp_path / name).round().fail(1, error, log=f"{log}{own}RuntimeError: {error}\n")
        cause = make_report(run.stop().close("failed", "x").write(), now_ns=1)["cause"]
        assert any("had printed before: ValueError: row 4711" in line for line in cause["remarks"]) == shown


def test_ranks_fail_alike_if_one_was_stopped_while_it_ended(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=1).round().fail(0, SystemExit(1), log=TRACEBACK)
    run.fail(1, SystemExit(1), log=TRACEBACK, signal="SIGTERM")
    report = make_report(run.stop().close("failed", "x").write(), now_ns=1)
    assert report["cause"]["alike"]["subject"] == "both ranks"


def test_what_a_child_process_died_of_is_kept_without_its_command() -> None:
    text = "PreprocessError: failed (after CalledProcessError: died with SIGSEGV of the command ['/usr/bin/spm', '-x'])"
    assert shortened(text, 90) == "PreprocessError: failed (after CalledProcessError: died with SIGSEGV)"


def test_a_refused_secure_connection_is_not_waited_for() -> None:
    evidence = Evidence(
        "exception", exception="URLError", module="urllib.error", message="<[SSL: WRONG_VERSION_NUMBER]>"
    )
    assert find(evidence, ROWS)[0].name == "service-tls"


def test_the_crash_of_a_program_below_a_shell_has_its_place(tmp_path: Path) -> None:
    dump = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    dump += '  File "/w/t.py", line 5 in crash\n'
    run = (
        RunBuilder(tmp_path)
        .round()
        .fail(1, exit_code=139, record=False, log=f"{dump}run.sh: ended with 139 at 19:42\n")
    )
    cause = make_report(run.stop().close("failed", "x").write(), now_ns=1)["cause"]
    assert (cause["cause"], cause["where"]["file"], cause["where"]["line"]) == ("shell-crashed", "/w/t.py", 5)


def test_a_spawned_child_is_explained_by_what_it_printed_before_torch_stopped_the_others() -> None:
    printed = "libvdec: assertion `frame != NULL' failed\n"
    printed += "[rank1]:W1126 19:37:25.1 20566 torch/x.py:165] Terminating process 7\n"
    raised = 'Traceback (most recent call last):\n  File "/w/t.py", line 22, in main\n'
    raised += "ProcessExitedException: process 1 terminated with signal SIGABRT\n"
    ended = ExceptionRecord("ProcessExitedException", "torch", "process 1 terminated with signal SIGABRT")
    found = evidence_for("exception", printed + raised, exception=ended)
    assert found is not None and found.found.text == "libvdec: assertion `frame != NULL' failed"


def test_an_exit_is_explained_by_the_error_above_its_traceback() -> None:
    log = "ERROR:rerun:found NaN in a gradient\n[rank3]: Traceback (most recent call last):\n"
    log += '[rank3]:   File "/w/t.py", line 9, in train\n[rank3]: SystemExit: 16\n'
    found = witness(log)
    assert found is not None and (found.kind, found.text) == ("logged", "found NaN in a gradient")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Failed to import transformers.models.x because of the following error (look up to see its traceback):\n"
            "/env/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
            "/env/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        ),
        (
            "TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading."
            " It is likely due to unexpected failures (e.g., OOM) or a slow node.",
            "TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading.",
        ),
    ],
)
def test_a_message_has_its_subject_without_what_introduces_or_guesses(message: str, expected: str) -> None:
    assert message_line(message) == expected


@pytest.mark.parametrize(("reserved", "others"), [("4.68", True), ("21.10", False)])
def test_a_gpu_that_others_fill_is_known_by_an_older_torchs_message(
    tmp_path: Path, reserved: str, others: bool
) -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    message = (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 23.64 GiB total capacity; 4.58 GiB already allocated;"
        f" 18.50 MiB free; {reserved} GiB reserved in total by PyTorch)"
    )
    run = RunBuilder(tmp_path).round().fail(1, OutOfMemoryError(message), module="torch.cuda")
    cause = make_report(run.stop().close("failed", "x").write(), now_ns=1)["cause"]
    assert ("Others have most of this GPU's memory" in cause["advice"]) == others
