"""Every kind of failure of the corpus in every wrapping: rank, place and cause stay the same.

FTSLURM_CORPUS=all runs all pairs (some 20 minutes on two cores), else a sample; FTSLURM_CORPUS=N chooses another one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from test_corpus import CORPUS, _line, _skip_without, _within
from test_run import Started

from ftslurm.report.pipeline import make_report, report_of_logs

sys.path.insert(0, str(CORPUS))

from cases import ALL, DECOYS, KINDS, Case
from wrappings import WRAPPINGS

CHOICE = os.environ.get("FTSLURM_CORPUS", "1")
SAMPLE = 30
VICTIM = 1

# What has no reason but its end: a wrapping that acts on exceptions has none to act on.
SIGNALS = (
    "killed", "terminated", "segfault", "abort", "cpp_exception", "machine_code-SIGILL", "machine_code-SIGFPE",
    "cpu_limit", "bus_error-devshm", "bus_error-small", "host_oom", "nccl_stuck", "library-heap",
    "last_output-signal", "last_output-assertion", "decoy_caught_crash",
)  # fmt: skip
EXITS = (
    "exit_code", "exit_text", "exit_silent", "exit_78", "interrupt", "hidden-code", "hidden-another-code",
    "hidden-text", "hidden_device-gpu", "hidden_device-network", "hidden_device-storage", "last_output-prefix",
    "last_output-ranks", "last_output-returned", "last_output-child", "last_output-bar", "last_output-logged",
    "decoy_survived-exit", "decoy_survived-os", "decoy_fallback", "decoy_nccl", "decoy_killed",
)  # fmt: skip
NOT_IN_A_STEP = ("sleeper", "stopped", "lost", "shell", "gloo", "models", "loader_late", "of_another_process")
CHAINS = ("chained", "deep_chain", "disk_behind", "child_failed", "masked")
# What stands for the title of the cause where the reason is quoted, and for an exception known only by its frames.
REASONS = {
    "child_failed-disk": ("No space left on device",),
    "child_failed-crashed": ("died with",),
    "disk_behind": ("No space left on device",),
    "checkpoint-empty": ("EOFError",),
    "masked-finally": ("OSError: cannot close",),
}
UNSEEN_LIMIT = ("hard-exit", "process-pool", "child", "captured-child", "passed-code")
PLAIN = ("progress-bar", "noise-before", "noise-after")


def _applies(case: Case, wrapping: str) -> bool:
    if ALL in case.ways or case.name.startswith(NOT_IN_A_STEP):
        return False
    if case.name in SIGNALS:
        return wrapping in (*PLAIN, "future")
    if case.name.startswith("hidden_device") and wrapping == "passed-code":
        return False  # it prints nothing
    if case.name == "service-busy" and wrapping == "process-pool":
        return False  # it cannot be pickled: that is the failure then
    if case.name in EXITS:
        return wrapping in (*PLAIN, "logged-exit", "hard-exit", "raised-from", "raised-anew", "group", "passed-code")
    return wrapping != "group" or sys.version_info >= (3, 11)


PAIRS = [(case, wrapping) for case in (*KINDS, *DECOYS) for wrapping in WRAPPINGS if _applies(case, wrapping)]


def _chosen() -> list[Any]:
    chosen = PAIRS if CHOICE == "all" else random.Random(int(CHOICE)).sample(PAIRS, SAMPLE)
    return [pytest.param(case, wrapping, id=f"{case.name}-in-{wrapping}") for case, wrapping in chosen]


@pytest.mark.parametrize(("case", "wrapping"), _chosen())
def test_the_wrapping_changes_neither_rank_nor_place_nor_cause_of(case: Case, wrapping: str, tmp_path: Path) -> None:
    for need in case.needs:
        _skip_without(need)
    run = _happen(case, wrapping, tmp_path)
    report = make_report(run.run_dir, now_ns=1)
    text = (run.run_dir / "report.txt").read_text()
    failure = report["rounds"][0]["first_failure"]
    # What a handler raises is judged by itself: that it handled another failure need not be the reason.
    causes = {case.cause, "exception"} if wrapping == "raised-anew" else {case.cause}
    causes |= {"exit", "system-exit"} if causes & {"exit", "system-exit"} else set()
    never = set(case.never)
    if case.name == "memory_error" and wrapping in UNSEEN_LIMIT:
        # Only the process that fails can read its limit, and it leaves no record: the refusal alone is known.
        causes, never = {"host-memory"}, set()
    assert (failure["rank"], failure["role"]) == (VICTIM, "primary"), text
    assert failure["cause"] in causes - never, text
    if case.here and not (case.name in EXITS and wrapping == "passed-code"):
        # In a chain of the failure's own, its root and the wrapping take the first places; the traceback has the rest.
        places = f"{case.program}:{_line(case)}", f'{case.program}", line {_line(case)}'
        assert any(place in text for place in places[: 1 + case.name.startswith(CHAINS)]), text
    if case.name not in SIGNALS + EXITS:
        expected = {case.expected[0], *REASONS.get(case.name, ())} if case.expected else {""}
        expected |= {"memory could not be allocated"} if "host-memory" in causes else set()
        assert any(each in " ".join(text.split()) for each in expected), text
    _check_logs(run, tmp_path, text, never)


def _happen(case: Case, wrapping: str, directory: Path) -> Started:
    for file in (case.program, "ranks.py", "wrappings.py"):
        shutil.copy(CORPUS / file, directory)
    (directory / "small").mkdir()
    options = ("--local-nodes", "1", "--nproc-per-node", "2", "--max-restarts", "0", "--grace", "5", "--health", "off")
    environment = {"PWD_MARK": str(directory), "CORPUS_RANK": str(VICTIM), "CORPUS_WRAPPING": wrapping}
    with _within(case) as before:
        more = () if "--max-restarts" in case.options else case.options
        run = Started(directory, *options, *more, case.program, *case.arguments, before=before, **environment)
        try:
            assert run.wait(120) != 0, run.err
        finally:
            for pid, _ in run.marked():
                os.kill(pid, 9)
            run.process.wait()
    return run


def _check_logs(run: Started, directory: Path, text: str, never: Collection[str]) -> None:
    """The same output as one file of a job that ftslurm never saw must not blame another rank, nor another cause."""
    output = directory / "slurm-4711.out"
    lines = []
    for rank in range(2):
        for stream in ("stdout", "stderr"):
            for file in sorted((run.run_dir).rglob(f"*{rank}*{stream}*")):
                found = file.read_text(errors="replace").splitlines()
                lines += [f"{rank}: {line}" for line in found]
    end = json.loads((run.run_dir / "report.json").read_text())["rounds"][0]["first_failure"]
    number = end.get("exit_code")
    if number:
        lines.append(f"srun: error: local0: task {VICTIM}: Exited with exit code {number}")
    output.write_text("\n".join(lines) + "\n")
    cause = report_of_logs(output)["cause"]
    if cause is not None:
        assert cause["rank"] in (VICTIM, None), (text, output.read_text()[-3000:])
        assert cause["cause"] not in never, (text, output.read_text()[-3000:])
