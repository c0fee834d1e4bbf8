"""How much is shown of a run, by its log level: `--quiet`, `--verbose`, torchrun's `LOGLEVEL`."""

from __future__ import annotations

import re

import pytest
import test_run
from test_run import Start

start = test_run.start
FAILS_ONCE = """
import os
print("rank", os.environ["RANK"], "speaks", flush=True)
if os.environ["FTSLURM_ROUND"] == "1" and os.environ["RANK"] == "1":
    raise ValueError("boom")
"""
NODES = ("--local-nodes", "2", "--health", "off", "--heartbeat", "0.5", "--node-timeout", "4")


def test_quiet_shows_errors_the_ranks_output_and_the_reports_answer(start: Start) -> None:
    run = start(FAILS_ONCE, *NODES, "--quiet", "--tee", "3")
    assert run.wait() == 0, run.err
    own = [line for line in run.err.splitlines() if line.startswith("ftslurm: ")]
    assert own == ["ftslurm: local1: round 1: rank 1 failed: ValueError: boom"]
    shown = [line for line in run.out.splitlines() if not line.startswith("[rank ")]
    assert "[rank 1] rank 1 speaks" in run.out
    assert "succeeded after 1 recovered failure" in " ".join(shown)
    assert len(shown) <= 4
    saved = (run.run_dir / "report.txt").read_text()
    assert len(saved.splitlines()) > len(shown)
    assert saved.startswith(shown[0])


def test_verbose_shows_processes_signals_and_events_too(start: Start) -> None:
    run = start("import os, time\nif os.environ['RANK'] == '1': raise ValueError\ntime.sleep(60)",
                "--nproc-per-node", "2", "--max-restarts", "0", "--health", "off", "-v")  # fmt: skip
    assert run.wait() == 1
    for expected in (r"rank 0: process \d+", r"rank 1: process \d+ has ended: exit code 1", "SIGTERM to local ranks 0",
                     "event: round 1, failure: rank 1 on "):  # fmt: skip
        assert re.search(f"(?m)^ftslurm: [^:]+: {expected}", run.err), (expected, run.err)


@pytest.mark.parametrize(("level", "begins", "fails"), [("WARNING", False, True), ("INFO", True, True)])
def test_torchruns_variable_counts_for_ftslurms_lines(start: Start, level: str, begins: bool, fails: bool) -> None:
    run = start(FAILS_ONCE, *NODES, LOGLEVEL=level)
    assert run.wait() == 0, run.err
    assert ("round 1: 2 ranks on 2 nodes, master" in run.err) == begins
    assert ("round 1 ended: rank 1 on local1 failed: ValueError: boom; restart 1 of 3" in run.err) == fails
    assert ("all output goes to files" in run.err) == begins
