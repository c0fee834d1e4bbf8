"""The corpus's failures and cascades on nodes whose clocks differ by up to minutes: the primary one wins all the same.

Real processes of one machine have one clock; here the story is built, and each node writes it down by its own clock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather

# Seconds by which the clocks of n1, n2, ... are ahead.
SKEWS = (
    (0.0, 0.0, 0.0, 0.0),
    (0.0, 0.3, -0.3, 0.0),
    (0.0, 45.0, 0.0, -45.0),
    (300.0, 0.0, 0.0, 0.0),
    (-240.0, 180.0, 7.0, -0.05),
)
PEER = RuntimeError(
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.3]:99"
)
LATE = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms")
STORE = RuntimeError("failed to recv, got 0 bytes. Exception raised from recvBytes at TCPStore.cpp")

Fail = Callable[[RunBuilder, int], RunBuilder]
PRIMARIES: dict[str, Fail] = {
    "exception": lambda run, rank: run.fail(rank, ValueError("row 4711 has no label"), step=7),
    "system-exit": lambda run, rank: run.fail(rank, SystemExit(3), exit_code=3, step=7),
    "disk-full": lambda run, rank: run.fail(rank, OSError(28, "No space left on device"), step=7),
    "missing-file": lambda run, rank: run.fail(rank, FileNotFoundError(2, "No such file", "shard"), step=7),
    "nan": lambda run, rank: run.fail(rank, FloatingPointError("loss is nan"), step=7),
    "cuda-oom": lambda run, rank: run.fail(rank, RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), step=7),
    "segfault": lambda run, rank: run.fail(rank, signal="SIGSEGV", step=7),
    "sigkill": lambda run, rank: run.fail(rank, signal="SIGKILL", record=False, step=7),
    "abort": lambda run, rank: run.fail(rank, signal="SIGABRT", record=False, step=7),
    "exit": lambda run, rank: run.fail(rank, exit_code=5, record=False, step=7),
}


def run_with_clocks(tmp_path: Path, nodes: int, skew: tuple[float, ...], *, measured: bool) -> RunBuilder:
    run = RunBuilder(tmp_path, nodes=nodes).round().steps(0, 7, over_s=60)
    for node, ahead_s in zip(run.node_names, skew, strict=False):
        run.clock(node, ahead_s, error_s=0.003 if measured else None)
    return run


def judged(run: RunBuilder) -> dict[str, Any]:
    result = analyse(gather(run.stop().close("failed", "x").write(), now_ns=run.now_ns + 10**9))
    entry: dict[str, Any] = result["rounds"][0]
    return entry


@pytest.mark.exhaustive
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "unmeasured"])
@pytest.mark.parametrize("skew", SKEWS, ids=lambda skew: "/".join(f"{s:g}" for s in skew))
@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("cause", PRIMARIES)
def test_the_primary_failure_wins_over_its_cascade_whatever_the_clocks(
    tmp_path: Path, cause: str, nodes: int, skew: tuple[float, ...], measured: bool
) -> None:
    run = run_with_clocks(tmp_path, nodes, skew, measured=measured)
    world = 2 * nodes
    culprit = world - 1 if len(cause) % 2 else 1
    others = [rank for rank in range(world) if rank != culprit]
    # Peers notice a broken connection before the agent has reaped the rank that broke it.
    early, late = others[::2], others[1::2]
    for rank in early:
        run.fail(rank, PEER, step=7, after_s=0.001)
    PRIMARIES[cause](run.wait(0.002), culprit)
    for rank in late:
        run.fail(rank, STORE if rank % 3 else LATE, step=7, after_s=0.3)
    entry = judged(run)
    first = entry["first_failure"]
    assert (first["cause"], first["role"]) == (cause, "primary")
    assert (first["rank"], first["node"], first["step"]) == (culprit, f"n{culprit // 2 + 1}", 7)
    assert entry["same_time"] == []
    assert {group["role"] for group in entry["groups"]} == {"cascade"}
    assert sum(group["count"] for group in entry["groups"]) == world - 1


@pytest.mark.parametrize("skew", SKEWS, ids=lambda skew: "/".join(f"{s:g}" for s in skew))
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_of_two_primary_failures_the_first_one_wins_or_both_are_listed(
    tmp_path: Path, nodes: int, skew: tuple[float, ...]
) -> None:
    run = run_with_clocks(tmp_path, nodes, skew, measured=True)
    run.fail(2, ValueError("first"), step=7).fail(0, KeyError("second"), step=7, after_s=0.5)
    for rank in range(4, 2 * nodes):
        run.fail(rank, PEER, step=7)
    entry = judged(run)
    assert (entry["first_failure"]["rank"], entry["same_time"]) == (2, [])


@pytest.mark.parametrize("skew", SKEWS, ids=lambda skew: "/".join(f"{s:g}" for s in skew))
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "unmeasured"])
def test_a_lost_node_wins_over_the_peers_that_noticed_it_first(
    tmp_path: Path, skew: tuple[float, ...], measured: bool
) -> None:
    run = run_with_clocks(tmp_path, 4, skew, measured=measured)
    for rank in (0, 1, 2, 3, 6, 7):
        run.fail(rank, PEER if rank % 2 else STORE, step=7, after_s=0.01)
    run.lose("n3", silent_s=8.0)
    result = analyse(gather(run.close("failed", "x").write(), now_ns=run.now_ns + 10**9))
    first = result["cause"]
    assert (first["cause"], first["rank"], first["node"], first["ranks"]) == ("node-lost", None, "n3", "4-5")


@pytest.mark.parametrize("skew", SKEWS, ids=lambda skew: "/".join(f"{s:g}" for s in skew))
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "unmeasured"])
def test_a_hang_is_the_sleepers_although_others_ran_into_their_time_outs(
    tmp_path: Path, skew: tuple[float, ...], measured: bool
) -> None:
    run = run_with_clocks(tmp_path, 2, skew, measured=measured)
    waits = (
        ("/home/ann/lm/train.py", 40, "train"),
        ("/venv/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    )
    asleep = (("/home/ann/lm/train.py", 40, "train"), ("/home/ann/lm/data.py", 12, "fetch"))
    places = {rank: asleep if rank == 3 else waits for rank in range(4)}
    run.hang(0, places=places, step=7)
    entry = judged(run)
    assert (entry["first_failure"]["cause"], entry["first_failure"]["rank"]) == ("hang", 3)
    assert entry["first_failure"]["node"] == "n2"
