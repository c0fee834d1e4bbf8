"""Programs that hide what they fail by behind an exit code: restarted for another reason, ended for the same one."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import test_run
from test_run import Start, Started

start = test_run.start

# Each round's reason is its own line of the environment; `fail` is how the program reports it.
SCRIPT = """
import logging, os, sys, traceback
round_ = int(os.environ["FTSLURM_ROUND"])
why = os.environ["WHY"].split("|")[round_ - 1 :][:1]

def work():
    if why:
        raise RuntimeError(f"{why[0]} at {id(object()):#x} of {os.getpid()}")
"""
HIDING = {
    "logged, then exit": """
try:
    work()
except Exception:
    logging.exception("training failed")
    sys.exit(1)
""",
    "hydra": """
def run_and_report(function):
    try:
        return function()
    except Exception as error:
        try:
            traceback.print_exception(None, value=error, tb=error.__traceback__)
            sys.stderr.write("\\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\\n")
        except Exception as problem:
            raise problem
        sys.exit(1)
run_and_report(work)
""",
    "from None": """
try:
    work()
except Exception:
    raise SystemExit(1) from None
""",
    "wrapped": """
try:
    work()
except Exception:
    raise ValueError("training failed")
""",
    "wrapped from None": """
try:
    work()
except Exception:
    raise ValueError("training failed") from None
""",
    "main returns a code": """
def main():
    try:
        work()
    except Exception:
        logging.exception("training failed")
        return 1
    return 0
sys.exit(main())
""",
    "os._exit": """
try:
    work()
except Exception as error:
    print("failed:", error, file=sys.stderr, flush=True)
    os._exit(1)
""",
}
WRAPPED = """#!/bin/sh
"$PYTHON" -c "$SCRIPT" || exit 1
"""
SILENT = """
try:
    work()
except Exception:
    os._exit(1)
"""
TWICE = "it would fail again: the same at start in rounds 1 and 2"


def rounds(run: Started) -> int:
    return len(list(run.run_dir.glob("rounds/*")))


def failures(run: Started) -> list[dict[str, Any]]:
    report = json.loads((run.run_dir / "report.json").read_text())
    return [entry["first_failure"] for entry in report["rounds"] if entry["first_failure"] is not None]


@pytest.mark.parametrize("way", HIDING)
def test_two_different_hidden_reasons_near_the_start_are_no_reason_to_end_the_job(start: Start, way: str) -> None:
    run = start(SCRIPT + HIDING[way], "--max-restarts", "3", WHY="no lease|no route")
    assert run.wait() == 0, run.out + run.err
    assert rounds(run) == 3


@pytest.mark.parametrize("way", HIDING)
def test_the_same_hidden_reason_twice_near_the_start_ends_the_job(start: Start, way: str) -> None:
    run = start(SCRIPT + HIDING[way], "--max-restarts", "5", WHY="|".join(6 * ["no such model"]))
    assert run.wait() == 1, run.out + run.err
    assert TWICE in run.err
    assert rounds(run) == 2


def wrapped(start: Start, why: str) -> Started:
    program = {"PYTHON": sys.executable, "SCRIPT": SCRIPT + "work()"}
    return start(WRAPPED, "--no-python", "--max-restarts", "3", "sh", WHY=why, **program)


def test_two_different_reasons_behind_a_shell_are_no_reason_to_end_the_job(start: Start) -> None:
    run = wrapped(start, "no lease|no route")
    assert run.wait() == 0, run.out + run.err


def test_the_same_reason_behind_a_shell_ends_the_job(start: Start) -> None:
    run = wrapped(start, "no such model|no such model|no such model|no such model")
    assert run.wait() == 1, run.out + run.err
    assert TWICE in run.err


def test_a_failure_without_evidence_of_its_reason_uses_the_budget_of_restarts(start: Start) -> None:
    run = start(SCRIPT + SILENT, "--max-restarts", "2", WHY="a|a|a")
    assert run.wait() == 1, run.out + run.err
    assert rounds(run) == 3
    assert "all 2 restarts are used up" in run.err


def test_an_interrupt_from_the_keyboard_or_by_kill_is_never_the_same_twice(start: Start) -> None:
    run = start(SCRIPT + "if why: raise KeyboardInterrupt", "--max-restarts", "3", WHY="a|a")
    assert run.wait() == 0, run.out + run.err
    assert rounds(run) == 3


def test_a_module_that_python_cannot_run_ends_the_job_at_once(start: Start) -> None:
    run = start("", "--local-nodes", "2", "-m", "no_such_module_at_all")
    assert run.wait() == 78, run.out + run.err
    assert "it would fail again: Python cannot run the module" in run.err
    assert failures(run)[0]["cause"] == "import-error"


def test_without_a_file_for_stderr_there_is_nothing_to_compare(start: Start) -> None:
    run = start(SCRIPT + HIDING["os._exit"], "--max-restarts", "2", "--redirects", "0", WHY="a|a|a")
    assert run.wait() == 1, run.out + run.err
    assert rounds(run) == 3


def test_ranks_of_other_nodes_that_hide_the_same_reason_end_the_job_too(start: Start) -> None:
    options = ("--local-nodes", "2", "--nproc-per-node", "2", "--max-restarts", "5")
    run = start(SCRIPT + "if os.environ['RANK'] != '3': import time; time.sleep(600)\n" + HIDING["os._exit"], *options,
                WHY="|".join(6 * ["no such model"]))  # fmt: skip
    assert run.wait() == 1, run.out + run.err
    assert TWICE in run.err


BROKEN = """
import errno, ftslurm, os, sys
ftslurm.progress(1)
try:
    if os.environ["RANK"] == "1":
        raise {}
except Exception:
    sys.exit(1)
import time; time.sleep(600)
"""
DEVICES = {
    "gpu": "RuntimeError('CUDA error: uncorrectable ECC error encountered')",
    "network": "OSError(errno.EHOSTUNREACH, 'No route to host')",
    "storage": "OSError(errno.EIO, 'Input/output error', '/data/shard-7')",
}


@pytest.mark.parametrize("device", DEVICES)
def test_a_node_whose_device_failed_twice_behind_an_exit_is_excluded(start: Start, device: str) -> None:
    options = ("--local-nodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--health", "report")
    run = start(BROKEN.format(DEVICES[device]), *options)
    assert run.wait() == 1, run.out + run.err
    assert "local1 is excluded for 1 d" in run.err


def test_a_node_is_not_excluded_for_what_a_program_fails_by_itself(start: Start) -> None:
    options = ("--local-nodes", "2", "--nproc-per-node", "1", "--max-restarts", "1", "--health", "report")
    run = start(BROKEN.format("ValueError('row 7 has no label')"), *options)
    assert run.wait() == 1, run.out + run.err
    assert "is excluded" not in run.err


def test_the_report_shows_a_hidden_failure_and_the_rounds_that_failed_by_the_same(start: Start) -> None:
    run = start(SCRIPT + HIDING["hydra"], "--max-restarts", "5", WHY="|".join(6 * ["no such model"]))
    assert run.wait() == 1
    first, second = failures(run)
    assert first["what"].startswith("RuntimeError: no such model at 0x")
    assert (first["where"]["function"], first["kind"]) == ("work", "exception")
    assert second["same_as_rounds"] == [1]


def test_the_report_takes_no_two_failures_for_the_same_one_by_their_exit_code(start: Start) -> None:
    run = start(SCRIPT + HIDING["os._exit"], "--max-restarts", "3", WHY="no lease|no route|no lease")
    assert run.wait() == 0, run.out + run.err
    assert [each["same_as_rounds"] for each in failures(run)] == [[], [], [1]]
