"""A node that is fit only later makes the world larger: at once or with the next round, as --rejoin says."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import test_run
from hang_story import RANK, history, pid_of, state
from test_run import Start, Started

start = test_run.start

WORK = (
    RANK
    + """
open(f"size{rank}.{round_}", "w").write(os.environ["WORLD_SIZE"])
up()
while not os.path.exists("done"):
    time.sleep(0.02)
"""
)
# Node local1 is unhealthy until there is a file of that name.
LATE = (
    *("--local-nodes", "2", "--nnodes", "1:2", "--last-call", "1", "--heartbeat", "0.5", "--max-restarts", "2"),
    *("--health", "act", "--health-skip", "gpu,nic,storage,host,network,amd", "--health-every", "1"),
    *("--health-command", 'test "$FTSLURM_NODE" = local0 || test -e well || exit 2'),
)


def begin(start: Start, *arguments: str) -> Started:
    """Start it, and have the second node fit once the first one's round runs."""
    run = start(WORK, *LATE, *arguments)
    pid_of(run, 0)
    (run.directory / "well").touch()
    run.until(lambda: not unhealthy(run))
    return run


def unhealthy(run: Started) -> bool:
    record = json.loads((run.run_dir / "nodes/local1.json").read_text())
    return record["unhealthy"] is not None or record["health_pending"]


def sizes(run: Started) -> dict[str, str]:
    return {path.name: path.read_text() for path in run.directory.glob("size*")}


def test_a_late_node_ends_the_round_at_once_where_that_is_asked_for_and_no_restart_is_used_up(start: Start) -> None:
    run = begin(start, "--rejoin", "at-once")
    pid_of(run, 1, round_=2)
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    assert sizes(run) == {"size0.1": "1", "size0.2": "2", "size1.2": "2"}
    assert state(run)["restarts_used"] == 0
    assert "local1 joined" in history(run)[0]["reason"]


def test_a_late_node_waits_for_the_next_round_by_default(start: Start) -> None:
    run = begin(start)
    assert len(history(run)) == 1
    os.kill(pid_of(run, 0), signal.SIGKILL)
    pid_of(run, 1, round_=2)
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    assert sizes(run) == {"size0.1": "1", "size0.2": "2", "size1.2": "2"}
    assert state(run)["restarts_used"] == 1


# The agent of node local1 starts once there is a file of that name.
STARTS_LATE = """
import os, sys, time
if "ftslurm.cli" in sys.orig_argv and (os.environ.get("FTSLURM__LOCAL_NODE") or "").startswith("1/"):
    while not os.path.exists("well"):
        time.sleep(0.02)
"""
NODES = ("--local-nodes", "2", "--nnodes", "1:2", "--last-call", "0.5", "--heartbeat", "0.5", "--health", "off")


@pytest.mark.parametrize(("rejoin", "world"), [("never", 1), ("next-round", 2)])
def test_a_node_that_starts_late_gets_into_the_next_round_unless_none_may(
    start: Start, tmp_path: Path, rejoin: str, world: int
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(STARTS_LATE)
    path = os.pathsep.join((str(tmp_path / "site"), str(Path(__file__).parents[2])))
    run = start(WORK, *NODES, "--rejoin", rejoin, PYTHONPATH=path)
    pid_of(run, 0)
    (run.directory / "well").touch()
    run.until((run.run_dir / "nodes" / "local1.json").exists)
    os.kill(pid_of(run, 0), signal.SIGKILL)
    pid_of(run, world - 1, round_=2)
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    assert sizes(run) == {"size0.1": "1"} | {f"size{rank}.2": str(world) for rank in range(world)}
