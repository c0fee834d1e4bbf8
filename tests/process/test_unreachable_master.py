"""Rounds that cannot begin because the master is out of reach, in a network of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_run

UNSHARE = shutil.which("unshare")


@pytest.fixture
def no_route() -> tuple[str, ...]:
    """Return what to put before a command to take its routes away, but for loopback."""
    up = ("sh", "-c", 'ip link set lo up && exec "$0" "$@"')
    if UNSHARE is None or subprocess.run([UNSHARE, "-n", *up, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a network of its own needs root, unshare and ip")
    return (UNSHARE, "-n", *up)


def test_a_master_that_cannot_be_reached_costs_no_restart_and_is_tried_until_the_join_timeout(
    tmp_path: Path, no_route: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text("")
    arguments = ("--local-nodes", "2", "--health", "act", "--local-addr", "192.0.2.1", "--join-timeout", "3")
    run = test_run.Started(tmp_path, *arguments, "--max-restarts", "1", "train.py", before=no_route)
    assert run.wait() == 1, run.err
    assert "would fail again" not in run.err
    assert "trying again in 500 ms" in run.err
    command = [sys.executable, "-m", "ftslurm.cli", "report", "--json", str(run.run_dir)]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    cause = report["cause"]
    assert (cause["cause"], cause["rank"], sorted(cause["nodes"])) == ("unreachable", None, ["local0", "local1"])
    assert "rounds in a row could not begin (--join-timeout 3)" in report["reason"]
    assert "suspect" not in run.out, "neither rank nor node is to blame"
    masters = [entry["nodes"][0] for entry in report["rounds"]]
    assert {"local0", "local1"} == set(masters)
