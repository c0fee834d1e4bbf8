"""Ordinary lines of a log that a rule of the reading once took for something else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.pipeline import report_of_logs
from ftslurm.report.text import render

STEPS = "".join(f"step {i} loss 2.5\n" for i in range(9))
RAISED = """Traceback (most recent call last):
  File "/w/train.py", line 130, in main
    loss = model(batch)
ValueError: bad batch 42
"""
SRUN = "srun: error: n1: task 0: Exited with exit code 1\n"


def behind(label: str, text: str) -> str:
    return "".join(f"{label}{line}\n" for line in text.splitlines())


TEXTS = {
    "a counter of a program is no process of JAX": (
        f"Preprocessing process 3/8\n{STEPS}{RAISED}{SRUN}",
        "rank 0 on n1: ValueError: bad batch 42",
    ),
    "a process of JAX that states its index": (
        f"jax process 2/4 on host t1v-n-2\n{STEPS}{RAISED}",
        "rank 2: ValueError: bad batch 42",
    ),
    "a logger's levels are no programs": (
        behind("[INFO] ", STEPS * 2) + behind("[ERROR] ", RAISED) + "[WARNING] skipping bad batch\n"
        + behind("[INFO] ", STEPS * 2) + "[INFO] training finished successfully\n",
        "no failure found",
    ),
    "a program that shows its own failure as Markdown": (
        f"{STEPS}```\n{RAISED}```\n",
        "some rank: ValueError: bad batch 42",
    ),
    "a traceback below the end of a block of Markdown": (
        f"{STEPS}```\nprint(1)\n```\n{RAISED}\n```\n",
        "some rank: ValueError: bad batch 42",
    ),
    "a success of one part": (
        f"{STEPS}{RAISED}Finished successfully 3 of 4 folds\n",
        "some rank: ValueError: bad batch 42",
    ),
    "phases of a program are no nodes": (
        "".join(f"[{i % 4}:{'train' if i % 4 < 2 else 'val'}] loss {i}\n" for i in range(16))
        + behind("[3:val] ", RAISED) + SRUN,
        "rank 0 on n1: ValueError: bad batch 42",
    ),
    "a job that begins again after PBS ended it for memory": (
        f"{STEPS}=>> PBS: job killed: mem 5000kb exceeded limit 1000kb\nResuming from checkpoint at step 30\n"
        f"{STEPS * 3}Training finished. Best loss 1.8\nDone.\n",
        "no failure found",
    ),
    "LSF's signals before it kills for memory": (
        f"{STEPS}{RAISED.replace('ValueError: bad batch 42', 'KeyboardInterrupt')}"
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n",
        "some rank: killed by the batch system: its memory limit was exceeded",
    ),
    "a failure before LSF ends the job for memory": (
        f"{STEPS}{RAISED}TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n",
        "ValueError: bad batch 42 at /w/train.py:130 in main later: the batch system ended the job: TERM_MEMLIMIT",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_it_is_read_as_what_it_is(name: str, tmp_path: Path) -> None:
    text, says = TEXTS[name]
    log = tmp_path / "slurm-1.out"
    log.write_text(text)
    assert says in " ".join(render(report_of_logs(log)).split())


def test_the_source_of_a_warning_above_a_traceback_does_not_say_that_it_was_ignored(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    warning = (
        "/e/torch/cuda/__init__.py:61: FutureWarning: pynvml is deprecated\n  import pynvml  # type: ignore[import]\n"
    )
    log.write_text(f"{STEPS}{warning}{RAISED}")
    assert "some rank: ValueError: bad batch 42" in render(report_of_logs(log))


def test_another_node_of_the_job_is_no_other_program(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    survived = behind("node1: ", f"{STEPS}{RAISED}{STEPS}")
    log.write_text(
        f"{survived}{behind('node2: ', STEPS + RAISED)}srun: error: node2: task 1: Exited with exit code 1\n"
    )
    shown = " ".join(render(report_of_logs(log)).split())
    assert "rank 1 on node2: ValueError: bad batch 42" in shown
    assert "another program" not in shown


def test_a_broken_line_of_a_script_is_not_told_beside_an_exception(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(f"/home/ann/.bashrc: line 3: --color: command not found\n{STEPS}{RAISED}")
    assert "for a command" not in render(report_of_logs(log))


def test_a_rank_that_counts_its_steps_anew_is_not_behind(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    steps = "".join(f"{r}: 02:1{s}:00 epoch 1 step {s}\n" for s in range(9) for r in range(4))
    end = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-10-27T10:00:12 DUE TO TIME LIMIT ***\n"
    log.write_text(f"{steps}0: 02:19:30 epoch 2 step 0\n{end}")
    shown = " ".join(render(report_of_logs(log)).split())
    assert "nothing was printed for the last" in shown
    assert "had printed no step" not in shown


@pytest.mark.parametrize("text", ["a" * 8000, "a " * 4000, "[a] " * 2000, "/" * 8000])
def test_aftermath_is_recognized_in_linear_time(text: str) -> None:
    start = time.process_time()
    is_aftermath(text)
    assert time.process_time() - start < 0.5  # was 1.8 s


SAMPLE = """Traceback (most recent call last):
  File "{file}", line 20, in <module>
    check(candidate)
  File "{file}", line 8, in check
    assert candidate([1, 2]) == 6
{error}
"""
ERRORS = ("AssertionError", "TypeError: 'int' object is not iterable", "NameError: name 'x' is not defined")


@pytest.mark.parametrize("end", ["pass@1 = 0.61\n", '{"pass@1": 0.6, "total": 30}\n'])
@pytest.mark.parametrize("file", ["/tmp/tmpab{i}/solution.py", "<string>"])
def test_a_program_that_goes_on_after_the_failures_of_generated_code_has_not_failed(
    tmp_path: Path, file: str, end: str
) -> None:
    log = tmp_path / "slurm-1.out"
    samples = (f"problem {i}\n" + SAMPLE.format(file=file.format(i=i), error=ERRORS[i % 3]) for i in range(30))
    log.write_text("".join(samples) + end)
    assert "no failure found" in render(report_of_logs(log))


def test_the_last_of_many_exceptions_of_one_place_with_nothing_below_it_is_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    skipped = (f"step {i} loss 2\n{RAISED}" for i in range(9))
    log.write_text("".join(skipped))
    assert "some rank: ValueError: bad batch 42" in render(report_of_logs(log))


@pytest.mark.parametrize(
    "line", ["failed utterances: 3", "ERROR shard 17: checksum mismatch (repaired)", "failed predictions: 31 of 1000"]
)
def test_what_a_program_counts_or_has_repaired_is_no_failure(tmp_path: Path, line: str) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(f"{STEPS}{line}\nbye\n")
    assert "no failure found" in render(report_of_logs(log))
