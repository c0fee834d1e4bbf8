"""torch's `elastic_launch` with the backend sharedfs: functions for scripts, values, failures, restarts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

LAUNCH = """
import json, os, sys, time
from pathlib import Path
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

here = Path(__file__).parent

@record
def work(kind, offset):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if kind == "fails":
        raise ValueError(f"rank {rank} is wrong")
    if kind == "once" and not (here / "failed").exists():
        if rank != world - 1:
            (here / "up").touch()
            time.sleep(600)  # A rank that is done is not started again, and neither is its agent.
        while not (here / "up").exists():
            time.sleep(0.02)
        (here / "failed").touch()
        raise ValueError("once")
    return rank + offset, world

if __name__ == "__main__":
    kind, nodes, per_node = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    config = LaunchConfig(
        min_nodes=nodes, max_nodes=nodes, nproc_per_node=per_node, run_id="job", max_restarts=1, monitor_interval=0.1,
        rdzv_backend="sharedfs", rdzv_endpoint=str(here / "shared"), start_method="spawn",
        rdzv_configs=json.loads(os.environ.get("CONF", "{}")),
    )
    try:
        print("returned", json.dumps(elastic_launch(config, work)(kind, 100)))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print("failed", rank, failure.message)
"""


def launch(directory: Path, *arguments: str, agents: int = 1, **environment: str) -> list[tuple[str, str]]:
    """Return what each agent printed to stdout and stderr."""
    (directory / "launch.py").write_text(LAUNCH)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM", "TORCH"))}
    processes = [
        subprocess.Popen(
            [sys.executable, "launch.py", *arguments],
            cwd=directory,
            env={**clean, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(agents)
    ]
    try:
        return [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def returned(output: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = json.loads(output.partition("returned ")[2])
    return found


def test_what_the_function_returns_comes_back_by_rank(tmp_path: Path) -> None:
    [(out, err)] = launch(tmp_path, "returns", "1", "2")
    assert returned(out) == {"0": [100, 2], "1": [101, 2]}, err


def test_an_exception_of_the_function_is_raised_with_its_rank_after_the_restarts(tmp_path: Path) -> None:
    [(out, err)] = launch(tmp_path, "fails", "1", "2")
    assert out.startswith("failed "), out + err
    assert "is wrong" in out
    state = max((tmp_path / "shared" / "job" / "state").glob("0*.json")).read_text()
    assert "is wrong" in json.loads(state)["value"]["closed"]["reason"]


def test_a_function_that_fails_once_is_started_again(tmp_path: Path) -> None:
    [(out, err)] = launch(tmp_path, "once", "1", "2")
    assert returned(out) == {"0": [100, 2], "1": [101, 2]}, err


def test_two_agents_get_the_values_of_their_own_ranks(tmp_path: Path) -> None:
    both = launch(tmp_path, "once", "2", "1", agents=2)
    values: dict[str, list[int]] = {}
    for out, err in both:
        assert len(returned(out)) == 1, err
        values |= returned(out)
    assert values == {"0": [100, 2], "1": [101, 2]}


def test_c10ds_own_keys_are_ignored_with_a_note(tmp_path: Path) -> None:
    [(out, err)] = launch(tmp_path, "returns", "1", "1", CONF='{"is_host": true, "store_type": "tcp"}')
    assert returned(out) == {"0": [100, 1]}, err
    assert err.count("--rdzv-conf is_host, store_type: ignored") == 1
