"""A shared directory that refuses calls for a while, and goes on: no node is lost for it, no round ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_hanging_directory
import test_run
from test_hanging_directory import Directory, marks
from test_run import Start, Started

start = test_run.start
shared = test_hanging_directory.shared

NODE_TIMEOUT_S = 2.0
STEPPING = """
import os, time
log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for step in range(6000):
    os.write(log, f"{time.monotonic()} step {os.environ['FTSLURM_ROUND']}\\n".encode())
    time.sleep(0.05)
    if os.path.exists("done"):
        break
    if os.path.exists("fail") and os.environ["RANK"] == "1" and os.environ["FTSLURM_ROUND"] == "1":
        raise SystemExit("asked to fail")
"""


def going(start: Start, shared: Directory) -> Started:
    """Return a run of three nodes under way."""
    nodes = ("--local-nodes", "3", "--heartbeat", "0.3", "--node-timeout", f"{NODE_TIMEOUT_S}", "--max-restarts", "1")
    run = start(STEPPING, *nodes, "--redirects", "0", FTSLURM_SHARED_DIR=str(shared.path))
    run.until(lambda: len(marks(run, "step 1")) > 20)
    return run


@pytest.mark.parametrize("fault", ["full", "write-errors", "read-only", "errors", "away"])
def test_a_directory_that_refuses_for_longer_than_the_node_timeout_and_recovers_costs_nothing(
    start: Start, shared: Directory, fault: str
) -> None:
    run = going(start, shared)
    place = next(path for path in shared.path.iterdir() if not path.name.startswith("excluded"))
    if fault == "away":
        place.rename(shared.path / "away")
    else:
        shared.fault(fault)
    time.sleep(3 * NODE_TIMEOUT_S)
    if fault == "away":
        (shared.path / "away").rename(place)
    else:
        shared.answer()
    time.sleep(2 * NODE_TIMEOUT_S)
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    assert "works again" in run.err
    assert {line.split()[-1] for line in (run.directory / "log").read_text().splitlines()} == {"1"}, run.err


def test_a_rank_that_fails_while_the_directory_is_full_is_restarted_when_it_recovers(
    start: Start, shared: Directory
) -> None:
    run = going(start, shared)
    shared.fault("full")
    (run.directory / "fail").touch()
    time.sleep(2 * NODE_TIMEOUT_S)
    shared.answer()
    run.until(lambda: len(marks(run, "step 2")) > 20)
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err


# Saves


@pytest.fixture
def saves(tmp_path: Path) -> Iterator[Path]:
    """Return the directory of the checkpoints."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


SAVE_ON_SIGTERM = """
import json, os, signal, sys, time
import ftslurm
step = 0
def save(*_):
    with ftslurm.commit(f"checkpoints/rank{os.environ['RANK']}.json") as temporary:
        with open(temporary, "w") as file:
            json.dump({"step": step, "round": os.environ["FTSLURM_ROUND"]}, file)
        time.sleep(1.0)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(f"up{os.environ['RANK']}", "w").close()
while True:
    step += 1
    ftslurm.progress(step)
    time.sleep(0.05)
    if os.path.exists("fail") and os.environ["RANK"] == "0":
        os._exit(3)
"""


def test_a_script_saves_by_commit_in_its_grace_when_the_job_is_requested_to_stop(start: Start, saves: Path) -> None:
    run = start(SAVE_ON_SIGTERM, "--local-nodes", "2", "--nproc-per-node", "2")
    test_run.up(run, 4)
    run.process.terminate()
    assert run.wait() == 143, run.err
    assert sorted(path.name for path in saves.iterdir()) == [f"rank{rank}.json" for rank in range(4)], run.err
    assert all(json.loads(path.read_text())["step"] > 0 for path in saves.iterdir())
    assert list((run.run_dir / "commits").iterdir()) == []


def test_the_peers_of_a_rank_that_failed_may_still_save_before_the_next_round(start: Start, saves: Path) -> None:
    run = start(SAVE_ON_SIGTERM, "--local-nodes", "2", "--max-restarts", "0")
    test_run.up(run, 2)
    (run.directory / "fail").touch()
    assert run.wait() == 1, run.err
    assert [path.name for path in saves.iterdir()] == ["rank1.json"], run.err


SAVE_UNDER_WATCH = """
import os, time
import ftslurm
ftslurm.heartbeat()
ftslurm.start_section("save")
open("up", "w").close()
while not os.path.exists("go"):
    ftslurm.heartbeat()
    time.sleep(0.05)
with ftslurm.commit("checkpoints/last.txt") as temporary:
    open(temporary, "w").write(os.environ["FTSLURM_ROUND"])
ftslurm.workload_finished()
"""


def test_a_save_that_waits_for_a_full_run_directory_is_no_hang_and_names_what_it_waits_for(
    start: Start, saves: Path, shared: Directory
) -> None:
    times = ("--heartbeat-timeout", "2", "--section-timeouts", "save=60", "--hang-timeout", "2")
    run = start(SAVE_UNDER_WATCH, *times, "--redirects", "0", FTSLURM_SHARED_DIR=str(shared.path))
    run.until((run.directory / "up").exists)
    shared.fault("full")
    (run.directory / "go").touch()
    # It says so only after more than the time-out.
    run.until(lambda: "last.txt waits for the run directory" in run.err + run.out)
    shared.answer()
    assert run.wait() == 0, run.err
    assert "No space left on device" in run.err + run.out
    assert (saves / "last.txt").read_text() == "1", run.err


LATE = """
import os, sys, time
import ftslurm
rename = os.rename

def freeze(source, target):
    if target.endswith("last.txt"):
        open("looked", "w").close()
        while not os.path.exists("thaw"):
            time.sleep(0.02)
    rename(source, target)

os.rename = freeze
try:
    with ftslurm.commit("checkpoints/last.txt") as temporary:
        open(temporary, "w").write("of round 1")
    end = "committed"
except ftslurm.RoundIsOver:
    end = "kept out"
with open("thawed.tmp", "w") as file:
    file.write(end)
rename("thawed.tmp", "thawed")
"""
ROUNDS = """
import json, os, sys, time
import ftslurm
if os.environ["FTSLURM_ROUND"] == "1":
    with open("environment.tmp", "w") as file:
        json.dump({k: v for k, v in os.environ.items() if k.startswith("FTSLURM_")}, file)
    os.rename("environment.tmp", "environment")
    while not os.path.exists("looked"):
        time.sleep(0.02)
    sys.exit(1)
with ftslurm.commit("checkpoints/last.txt") as temporary:
    open(temporary, "w").write("of round 2")
open("thaw", "w").close()
while not os.path.exists("thawed"):
    time.sleep(0.02)
"""


def test_a_rank_frozen_between_its_check_and_its_rename_cannot_put_old_data_over_new(start: Start, saves: Path) -> None:
    run = start(ROUNDS)
    directory = run.directory
    run.until((directory / "environment").exists)
    # A rank of round 1 that no agent reaches, as on a node that is cut off.
    (directory / "late.py").write_text(LATE)
    environment = {**os.environ, **json.loads((directory / "environment").read_text())}
    late = subprocess.Popen([sys.executable, "late.py"], cwd=directory, env=environment)
    try:
        assert run.wait() == 0, run.err
    finally:
        late.kill()
        late.wait()
    assert (directory / "thawed").read_text() == "kept out"
    assert [(path.name, path.read_text()) for path in saves.iterdir()] == [("last.txt", "of round 2")]


KILLED = """
import os, signal
import ftslurm
if os.environ["FTSLURM_ROUND"] == "1":
    with ftslurm.commit("checkpoints/step-1") as temporary:
        os.mkdir(temporary)
        open(os.path.join(temporary, "shard"), "w").write("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("restarts", ["1", "0"])
def test_what_a_killed_rank_had_written_by_halves_is_removed(start: Start, saves: Path, restarts: str) -> None:
    run = start(KILLED, "--max-restarts", restarts)
    run.wait()
    run.until(lambda: list(saves.iterdir()) == [])


# Health checks that fail alike on all nodes


def test_a_storage_check_that_fails_on_all_nodes_leaves_none_of_them_out(start: Start, shared: Directory) -> None:
    shared.fault("read-only")
    checked = ("--health", "act", "--health-paths", str(shared.path), "--join-timeout", "20")
    run = start("print('trained')", "--local-nodes", "2", *checked)
    assert run.wait() == 0, run.err
    assert "health: unhealthy" in run.err, run.err
    assert run.err.count("takes part anyway: the same storage checks fail on all nodes") == 2, run.err


def test_a_link_that_is_changed_while_a_run_goes_on_leads_into_no_other_run(start: Start, tmp_path: Path) -> None:
    """As `current -> /scratch/a` that a script of the site points to the other filesystem."""
    first, second = tmp_path / "a", tmp_path / "b"
    link = tmp_path / "current"
    for place in (first, second):
        place.mkdir()
    link.symlink_to(second)
    options = ("--rdzv-id", "same", "--heartbeat", "0.3", "--node-timeout", f"{NODE_TIMEOUT_S}", "--redirects", "0")
    other = start("pass", *options, FTSLURM_SHARED_DIR=str(link))
    assert other.wait() == 0, other.err
    before = {path: path.read_bytes() for path in second.rglob("*") if path.is_file()}
    link.unlink()
    link.symlink_to(first)
    run = start(STEPPING, *options, FTSLURM_SHARED_DIR=str(link))
    run.until(lambda: len(marks(run, "step 1")) > 5)
    link.unlink()
    link.symlink_to(second)
    steps = len(marks(run, "step 1"))
    run.until(lambda: len(marks(run, "step 1")) > steps + NODE_TIMEOUT_S / 0.05)
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    assert {path: path.read_bytes() for path in second.rglob("*") if path.is_file()} == before
    assert (first / "same" / "state").is_dir()
