"""What a C or C++ runtime prints before it aborts stands in the first line of the report, and no other text does."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.failures.abort_message import LIMIT, abort_message
from ftslurm.report.pipeline import make_report

THROWN = "terminate called after throwing an instance of"


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (f"{THROWN} 'std::runtime_error'\n  what():  boom\n", "std::runtime_error: boom"),
        (f"{THROWN} 'c10::Error'\n  what():  CUDA error: x\nmore of it\nframe #0\n", "c10::Error: CUDA error: x"),
        (f"{THROWN} 'int'\n", "int"),
        (f"{THROWN} 'std::__cxx11::string'\r\n", "std::string"),
        ("terminate called without an active exception\n", "terminate called without an active exception"),
        ("terminate called recursively\n", "terminate called recursively"),
        ("libc++abi: terminating due to uncaught exception of type E: boom\n", "E: boom"),
        ("libc++abi.dylib: terminating with uncaught exception of type E: boom\n", "E: boom"),
        ("a.out: a.c:12: f: Assertion `x > 0' failed.\n", "a.out: a.c:12: f: Assertion `x > 0' failed."),
        ("free(): invalid pointer\n", "free(): invalid pointer"),
        ("malloc(): unaligned tcache chunk detected\n", "malloc(): unaligned tcache chunk detected"),
        ("double free or corruption (out)\n", "double free or corruption (out)"),
        ("corrupted size vs. prev_size\n", "corrupted size vs. prev_size"),
        ("*** stack smashing detected ***: terminated\n", "*** stack smashing detected ***: terminated"),
        (f"{THROWN} 'A'\n  what():  one\n{THROWN} 'B'\n  what():  two\n", "B: two"),
        ("F0929 17:42:48.594200 1044507 client.h:77] another task died\n", "another task died"),
        ("2024-04-30 21:07:47.013728: F ./torch_xla/x.h:20] Non-OK-status: bad\n", "Non-OK-status: bad"),
        ("I0929 17:42:48.594200 1044507 client.h:77] another task died\n", ""),
        (f"log: {THROWN} 'A'\n", ""),
        ("free() is called twice\n", ""),
        ("Fatal Python error: Aborted\n", ""),
        ("", ""),
    ],
)
def test_a_runtimes_abort_message_is_found_at_the_starts_of_lines(tail: str, expected: str) -> None:
    assert abort_message(f"step 1\n{tail}") == expected


def test_a_long_message_is_cut_and_long_output_costs_no_time() -> None:
    assert len(abort_message(f"{THROWN} 'E'\n  what():  {'x' * 10_000}\n")) == LIMIT
    assert abort_message(f"{THROWN} 'A'\n" + "noise\n" * 100_000) == ""
    assert abort_message("a: " * 400_000) == ""


def test_the_first_line_has_them_for_an_abort_and_for_nothing_else(tmp_path: Path) -> None:
    log = f"{THROWN} 'std::runtime_error'\n  what():  kernel image is not valid\n"
    for signal, expected in (
        ("SIGABRT", "aborted (SIGABRT): std::runtime_error: kernel image is not valid"),
        ("SIGSEGV", "segmentation fault (SIGSEGV)"),
    ):
        run = RunBuilder(tmp_path / signal).round().wait(9).fail(1, signal=signal, log=log, core_dumped=True).stop()
        cause = make_report(run.close("failed", "x").write(), now_ns=1)["cause"]
        assert (cause["what"], cause["rank"]) == (expected, 1)
        assert "last lines of stderr" not in cause["advice"], "they are quoted"
