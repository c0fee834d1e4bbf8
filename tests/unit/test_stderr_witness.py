"""The end of stderr as a witness: what is a program's reason there, behind which prefixes, and what is not."""

from __future__ import annotations

import json
import random
import time

import pytest

from ftslurm.failures.closing_lines import ends_in_flood, last_line, without_floods
from ftslurm.failures.lines_above import line_before
from ftslurm.failures.stderr_witness import dead_threads, logged_error, witness

TRACEBACK = """Traceback (most recent call last):
  File "/home/ann/train.py", line 7, in step
    load(row)
ValueError: row 4711 has no label
"""
LINES = TRACEBACK.splitlines()
BAR = "\r 45%|####      | 45/100 [00:01<00:01, 33.1it/s]"
TABLE = """Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_12:00:00
  host      : n1
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 123)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""  # noqa: W291
CALLED = """Traceback (most recent call last):
  File "launch.py", line 3, in <module>
    subprocess.run(["python", "train.py"], check=True)
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""
IGNORED = """Exception ignored in: <function Loader.__del__ at 0x7f12>
Traceback (most recent call last):
  File "loader.py", line 3, in __del__
TypeError: 'NoneType' object is not callable
"""
LOGGING = """--- Logging error ---
Traceback (most recent call last):
  File "logging/__init__.py", line 1160, in emit
ValueError: I/O operation on closed file.
"""


@pytest.mark.parametrize(("line", "found"), [("cleanup: removing scratch file {}", True), ("processed {} rows", False)])
def test_closing_lines_of_one_form_count_once(line: str, found: bool) -> None:
    flood = "\n".join(line.format(n) for n in range(1, 300))
    line_found = witness(f"{TRACEBACK}{flood}\n")
    assert (line_found is not None) == found
    assert line_found is None or line_found.text == "ValueError: row 4711 has no label"


def test_many_closing_lines_of_different_forms_are_those_of_a_program_that_went_on() -> None:
    lines = [f"closing the connection of {'abc'[n % 3] * n}" for n in range(1, 60)]
    assert witness(TRACEBACK + "\n".join(lines)) is None


def prefixed(*prefixes: str) -> str:
    return "".join(f"{prefixes[i % len(prefixes)]}{line}\n" for i, line in enumerate(LINES))


@pytest.mark.parametrize(
    "text",
    [
        TRACEBACK,
        TRACEBACK.rstrip("\n"),
        TRACEBACK.replace("\n", "\r\n"),
        f"step 4\nstep 5\n{TRACEBACK}",
        BAR * 50 + TRACEBACK,
        TRACEBACK + BAR,
        "\x00\x01\ufffd\x1b[2J" * 400 + TRACEBACK,
        f"\x1b[31mERROR\x1b[0m step failed\n{TRACEBACK}",
        f"ERROR rank=9 step failed {TRACEBACK}",
        prefixed("[rank2]: "),
        prefixed("3: "),
        prefixed("2026-01-01 10:00:00,123 ERROR rank=9 ", "2026-01-01 10:00:01,456 ERROR rank=9 "),
        prefixed("[default3]:"),
        TRACEBACK + IGNORED,
        TRACEBACK + LOGGING,
        TRACEBACK + "ERROR: exiting with code 3\n",
        TRACEBACK + "[watchdog] no step for 5 s after step 4, bye\n",
        TRACEBACK + "INFO cleaning up 8 loader workers\nclosing the log\n",
        TRACEBACK + "ERROR conda.cli.main_run:execute(49): `conda run python train.py` failed. (See above for error)\n",
        TRACEBACK
        + "/x/resource_tracker.py:224: UserWarning: there appear to be 3 leaked semaphores\n  warnings.warn(\n",
        TRACEBACK + "[W1122 ProcessGroupNCCL.cpp:1168] Warning: process group has NOT been destroyed\n",
        TRACEBACK + "train.sh: line 3:    77 Aborted                 (core dumped) python train.py\n",
        TRACEBACK + "srun: error: n1: task 0: Exited with exit code 3\nslurmstepd: error: *** STEP 1.0 CANCELLED ***\n",
        TRACEBACK + "terminate called without an active exception\n",
        TRACEBACK + TABLE,
        TRACEBACK + CALLED,
        prefixed("[rank1]: ") + prefixed("[rank0]: ").replace("ValueError: row", "RuntimeError: gloo/x") + TABLE,
    ],
    ids=lambda text: repr(text[:20] + "..." + text[-20:]),
)
def test_a_traceback_at_the_end_is_the_reason(text: str) -> None:
    found = witness(text)
    assert found is not None
    assert (found.kind, found.text) == ("traceback", "ValueError: row 4711 has no label")
    assert found.frames[-1].place == "/home/ann/train.py:7 in step"
    assert "row 4711 has no label" in found.lines


RUST = """\
thread '<unnamed>' panicked at tokenizers-lib/src/models/bpe/trainer.rs:517:66:
called `Option::unwrap()` on a `None` value
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
"""
JAVA = """\
Exception in thread "main" java.lang.OutOfMemoryError: Java heap space
\tat org.apache.arrow.Foo.bar(Foo.java:12)
"""
CAUSED = """\
Exception in thread "main" java.lang.IllegalStateException: vocab not sorted
\tat com.acme.tok.Vocab.load(Vocab.java:88)
Caused by: java.util.NoSuchElementException: token 'then'
\tat com.acme.tok.Vocab.next(Vocab.java:40)
\t... 1 more
"""
TIME_OVER = """\
Timeout (0:00:06)!
Thread 0x00007f4c918b9b80 (most recent call first):
  File "/home/ann/train.py", line 26 in wait_for_cache
  File "/home/ann/train.py", line 31 in <module>
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            RUST,
            "panicked at tokenizers-lib/src/models/bpe/trainer.rs:517:66: called `Option::unwrap()` on a `None` value",
        ),
        (JAVA, "java.lang.OutOfMemoryError: Java heap space"),
        (
            CAUSED,
            "java.lang.IllegalStateException: vocab not sorted (from java.util.NoSuchElementException: token 'then')",
        ),
        (TIME_OVER, "faulthandler's time-out: Timeout (0:00:06)!"),
    ],
)
def test_the_last_message_of_other_runtimes_is_a_reason(text: str, expected: str) -> None:
    found = witness(text)
    assert found is not None
    assert (found.kind, found.text) == ("runtime", expected)


def test_the_time_out_of_faulthandler_has_its_place() -> None:
    found = witness(TIME_OVER)
    assert found is not None
    assert found.frames[-1].place == "/home/ann/train.py:26 in wait_for_cache"


def test_a_traceback_of_loguru_has_its_place() -> None:
    text = """\
2026-11-23 03:00:01.112 | ERROR    | __main__:<module>:41 - An error has been caught in function '<module>':
Traceback (most recent call last):

> File "/home/ann/train.py", line 41, in <module>
    main()
    \u2514 <function main at 0x7f0a>

  File "/home/ann/train.py", line 33, in main
    scale = batch["scale"]
            \u2514 {'x': 1}

KeyError: 'scale'
"""
    found = witness(text)
    assert found is not None
    assert found.frames[-1].place == "/home/ann/train.py:33 in main"


WEIGHTS = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 7, in load
    torch.load(path)
_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options:
\t(1) In PyTorch 2.6, we changed the default value of the `weights_only` argument in `torch.load`.
\tWeightsUnpickler error: Unsupported global: GLOBAL argparse.Namespace was not an allowed global by default.

Check the documentation of torch.load to learn more about types accepted by default with weights_only.
"""
GATED = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 7, in load
    load(name)
OSError: You are trying to access a gated repo.
Make sure to have access to it at https://example.org/model.
401 Client Error. (Request ID: Root=1-66)

Cannot access gated repo for url https://example.org/model/resolve/main/config.json.
Access to model ann/model is restricted. You must have access to it and be authenticated.
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WEIGHTS, "UnpicklingError: Weights only load failed."),
        (GATED, "OSError: You are trying to access a gated repo."),
        (
            GATED + "srun: error: n1: task 0: Exited with exit code 1\n",
            "OSError: You are trying to access a gated repo.",
        ),
    ],
)
def test_the_text_of_an_exception_may_have_many_lines(text: str, expected: str) -> None:
    found = witness(text)
    assert found is not None and found.text.startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "hello\n",
        TRACEBACK + "step 6 loss 2.5\n",
        TRACEBACK + "INFO falling back to the slow path\n",
        TRACEBACK + "retrying in 5 s\n" * 3,
        WEIGHTS + "skipping this file\n",
        "ERROR:root:skipping sample 5\n" + TRACEBACK,
        TRACEBACK + "ERROR:root:read of shard 3 failed, retrying\n",
        WEIGHTS + "2026-03-01 12:00:00 resumed at step 6\n",
        GATED + "step 7: loss 2.5\n",
        TRACEBACK + "".join(f"closing shard {i}\n" for i in range(20)),
        IGNORED,
        LOGGING,
        "Killed\nslurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n",
        "[W] ProcessGroupNCCL: Watchdog caught collective operation timeout\n",
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):\n  File \"x.py\", line 3, in f\n    x\n",
        "errors so far: 0\n",
        "INFO ERROR_RATE is 3\n",
    ],
)  # fmt: skip
def test_what_was_survived_or_says_nothing_is_no_reason(text: str) -> None:
    assert witness(text) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("ERROR:root:no label in row 4711", "no label in row 4711"),
        ("CRITICAL trainer: no label", "no label"),
        ("2024-01-01 12:00:00,123 - trainer - ERROR - no label", "no label"),
        ("[2024-01-01 12:00:00][ERROR] no label", "no label"),
        ("2024-05-01 12:00:00.123 | ERROR    | train:main:12 - no label", "no label"),
        ("E0101 12:00:00.000000 123 model.cc:12] no label", "no label"),
        ("[rank3]:[E1122 12:00:00.123456789 model.cpp:12] no label", "no label"),
        ('{"time": 3, "level": "error", "msg": "no label"}', "no label"),
        ('time=3 level=error msg="no label"', "no label"),
        ("train.py: error: no label", "no label"),
        ("FATAL:   no label", "no label"),
        ("./wrap.sh: line 3: DATA_ROOT: unbound variable", "./wrap.sh: line 3: DATA_ROOT: unbound variable"),
        ("/bin/sh: 1: ffmpeg: not found", "/bin/sh: 1: ffmpeg: not found"),
        ("OSError: [Errno 28] No space left on device", "OSError: [Errno 28] No space left on device"),
        ("INFO:root:no label", None),
        ("WARNING ERROR_RATE high", None),
        ("[1, 2, 3]", None),
        ("{broken", None),
    ],
)
def test_a_line_of_level_error_is_known_in_the_usual_formats(line: str, text: str | None) -> None:
    assert logged_error(line) == text


def test_a_traceback_within_a_line_of_a_structured_logger_has_its_place() -> None:
    text = (
        "Traceback (most recent call last):\n  File \"/w/train.py\", line 19, in parse\nValueError: no float: 'n/a'\n"
    )
    line = json.dumps({"ts": 7.5, "lvl": "ERROR", "msg": "training crashed", "exc": "no float", "traceback": text})
    found = witness(f"step 3\n{line}\n")
    assert found is not None
    assert found.text == "ValueError: no float: 'n/a'"
    assert (found.frames[-1].file, found.frames[-1].line) == ("/w/train.py", 19)


def test_a_logged_error_at_the_end_is_the_reason_and_may_name_an_exception() -> None:
    found = witness("step 4\nERROR:root:OSError: [Errno 28] No space left on device: '/ckpt'\n")
    assert found is not None
    assert found.kind == "logged"
    assert found.exception is not None
    assert found.exception.type == "OSError"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad image\nAborted\n",
            "std::runtime_error: bad image",
        ),
        (
            "python: a.cc:12: void f(int): Assertion `x > 0' failed.\n",
            "python: a.cc:12: void f(int): Assertion `x > 0' failed.",
        ),
        ("malloc(): unaligned tcache chunk detected\n", "malloc(): unaligned tcache chunk detected"),
        (
            "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
            '  File "a.py", line 3 in f\n',
            "Fatal Python error: Segmentation fault",
        ),
    ],
)  # fmt: skip
def test_a_runtimes_last_message_is_the_reason(text: str, reason: str) -> None:
    found = witness(f"step 4\n{text}")
    assert found is not None
    assert (found.kind, found.text) == ("runtime", reason)


BOX = """╭──── Traceback (most recent call last) ────╮
│ /home/ann/train.py:12 in main             │
│                                           │
│    11 def main():                         │
│ ❱  12 │   step()                          │
│                                           │
│ /home/ann/train.py:7 in step              │
│                                           │
│ ❱   7 │   load(row)                       │
╰───────────────────────╯
ValueError: row 4711 has no label
"""


def test_a_traceback_in_a_box_is_read_too() -> None:
    found = witness(f"step 4\n{BOX}")
    assert found is not None
    assert (found.kind, found.text) == ("traceback", "ValueError: row 4711 has no label")
    assert (found.frames[-1].place, found.frames[-1].source) == ("/home/ann/train.py:7 in step", "load(row)")


def test_a_nested_launchers_table_names_the_rank_where_nothing_else_does() -> None:
    found = witness(TABLE)
    assert found is not None
    assert (found.kind, found.text) == ("child", "rank 1 of a nested launcher: signal 9")


def test_what_precedes_a_known_exceptions_traceback_can_be_asked_for() -> None:
    found = witness(f"ERROR: child: no label\n{CALLED}", before="CalledProcessError")
    assert found is not None
    assert found.text == "no label" or "no label" in found.text
    assert witness(f"step 3\n{CALLED}", before="CalledProcessError") is None


def test_known_lines_are_passed_over() -> None:
    text = f"{TRACEBACK}giving up: see row\n"
    found = witness(text, apart_from=["giving up: see row"])
    assert found is not None
    assert found.exception is not None


def test_threads_that_an_exception_ended_are_found_anywhere() -> None:
    text = f"step 1\nException in thread Thread-3 (loader):\n{TRACEBACK}step 2\nstep 3\n{TRACEBACK}step 4\n"
    (thread,) = dead_threads(text)
    assert (thread.thread, thread.text) == ("thread Thread-3 (loader)", "ValueError: row 4711 has no label")
    assert dead_threads(TRACEBACK + IGNORED) == []


def test_any_bytes_are_read_without_an_error() -> None:
    pick = random.Random(7)
    parts = [
        *(line + "\n" for line in (TRACEBACK + TABLE + CALLED + IGNORED + LOGGING).splitlines()),
        BAR,
        "\x1b[",
        "\x00",
    ]
    parts += [
        "[rank3]: ",
        "ERROR",
        "level=error msg=",
        "{",
        '{"level": "error"',
        "Exception in thread x:\n",
        "terminate called",
    ]
    for _ in range(1500):
        noise = bytes(pick.randrange(256) for _ in range(pick.randrange(200))).decode("utf-8", "replace")
        text = "".join([*pick.choices(parts, k=pick.randrange(30)), noise, *pick.choices(parts, k=pick.randrange(10))])
        for found in (witness(text), *dead_threads(text)):
            assert found is None or found.text


@pytest.mark.parametrize(
    "unit",
    [
        "x",
        " ",
        "\n",
        "\r",
        "\x1b[",
        "[",
        "a:",
        "ERROR ",
        "level=error ",
        "closing\n",
        "{",
        "A.",
        "E1111 ",
        "'",
        "Traceback ",
    ],
)
def test_the_time_is_bounded_and_linear(unit: str) -> None:
    begin = time.process_time()
    witness(unit * (4 << 20))
    assert time.process_time() - begin < 3.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step 3\nlibtok: id 50300 out of 50257\n\n", "libtok: id 50300 out of 50257"),
        (
            "[watchdog] no batch, killing myself\nsrun: error: n1: task 0: Killed\n",
            "[watchdog] no batch, killing myself",
        ),
        ("/venv/x.py:7: UserWarning: no GPU\n  return n\n", ""),
        ("no GPU\nstep 7: loss 2.5\n", ""),
        (
            "Validation loss diverged: 1.0e+06\nW1123 07:01:59.1 7 torch/distributed/elastic/multiprocessing/api.py:10]"
            " Sending process 8 closing signal SIGTERM\n",
            "Validation loss diverged: 1.0e+06",
        ),
        ("", ""),
    ],
)
def test_the_last_line_that_says_something(text: str, expected: str) -> None:
    assert last_line(text) == expected


def test_of_several_processes_whose_time_was_over_the_one_that_did_not_wait_is_shown() -> None:
    waiting = TIME_OVER.replace(
        '"/home/ann/train.py", line 26 in wait_for_cache',
        '"/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce',
    )
    for text in (waiting + TIME_OVER + waiting, TIME_OVER + waiting + waiting):
        found = witness(text)
        assert found is not None
        assert found.frames[-1].place == "/home/ann/train.py:26 in wait_for_cache"
        assert "2 other processes in torch.distributed" in found.text


def test_of_ranks_that_share_an_output_the_failure_that_the_others_follow_from_is_the_reason() -> None:
    own = '[rank2]: Traceback (most recent call last):\n[rank2]:   File "/w/train.py", line 19, in crop\n'
    own += "[rank2]: ValueError: too small\n"
    lost = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/w/train.py", line 28, in main\n'
    lost += "[rank3]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:31929\n"
    for end in ("", "launcher: children ended with [1, 1]\n"):
        found = witness(own + lost + end)
        assert found is not None and found.text == "ValueError: too small"
    survived = witness(f"{own}step 3 loss 0.1\n{lost}")
    assert survived is not None and survived.exception is not None and survived.exception.type == "RuntimeError"


def test_a_tools_last_line_that_only_sums_up_is_no_reason() -> None:
    text = "tar: /data/a.tar: Cannot open: No such file or directory\ntar: Error is not recoverable: exiting now\n"
    text += 'Traceback (most recent call last):\n  File "/w/train.py", line 2, in <module>\nCalledProcessError: x\n'
    assert line_before(text, "CalledProcessError").endswith("No such file or directory")


@pytest.mark.parametrize(
    ("above", "below"),
    [
        (
            "2026-11-26 19:36:40 ERROR job: fetch failed, trying again",
            "2026-11-26 19:36:43 INFO job: leaving with code 5",
        ),
        ("2026-11-26 19:41:15 WARNING job: no cache", "2026-11-26 19:41:21 INFO job: nothing to continue, exiting"),
        ("loading", "cache is rebuilt\npreflight: no scratch mount"),
        ("loading", "cache rebuild needed, second try\npreflight: no scratch mount, giving up"),
        ("loading", "optional check failed, going on"),
        ("loading", "no cached plan, making one\nall done"),
    ],
)
def test_a_traceback_that_the_program_went_on_after_is_no_reason(above: str, below: str) -> None:
    assert witness(f"{above}\n{TRACEBACK}{below}\n") is None


def test_an_error_above_a_flood_of_warnings_of_two_lines_is_kept() -> None:
    warnings = "".join(f"/w/x.py:{i}: UserWarning: slow path {i}\n  warnings.warn(text)\n" for i in range(500))
    text = f"CRITICAL guard: wrong device\n{warnings}"
    assert ends_in_flood(text)
    assert witness(without_floods(text)) is not None


def test_the_last_line_is_none_of_a_trap_that_only_names_a_line_of_its_script() -> None:
    missing = "cp: cannot stat '/w/tok.model': No such file or directory"
    assert last_line(f"{missing}\nrun.sh: line 5 failed\n") == missing


def test_the_place_of_a_time_out_is_the_main_threads_in_whatever_order_faulthandler_dumps_them() -> None:
    stacks = (
        'Thread 0x7f1 (most recent call first):\n  File "/w/cache.py", line 31 in get_index\n'
        '  File "/w/train.py", line 9 in <module>\n\n',
        'Thread 0x7f2 (most recent call first):\n  File "/w/logsink.py", line 22 in run\n'
        '  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap\n\n',
    )
    for order in (stacks, stacks[::-1]):
        found = witness("Timeout (0:30:00)!\n" + "".join(order))
        assert found is not None and found.frames[-1].place == "/w/cache.py:31 in get_index"
