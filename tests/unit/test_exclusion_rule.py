"""One rule excludes nodes: fold, status and report agree about every history."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.rendezvous.exclusion import excluded_nodes
from ftslurm.report.analysis import analyse
from ftslurm.report.gathering import gather
from ftslurm.status.snapshot import read
from ftslurm.status.summary import summarise

SEED = int(os.environ.get("FTSLURM_PROPERTY_SEED", str(random.SystemRandom().randrange(10**9))))
HISTORIES = 40
SIGNALS = ("SIGSEGV", "SIGBUS", "SIGKILL")


def history(folder: Path, rng: random.Random, after: int) -> RunBuilder:
    """Build rounds on changing nodes that end by failures of nodes, of the program, by losses and hangs."""
    run = RunBuilder(folder, nodes=4)
    run.attempts[-1]["options"]["exclude_after"] = after
    for _ in range(rng.randrange(1, 7)):
        nodes = rng.sample(run.node_names, rng.randrange(1, 4))
        run.round(nodes=nodes).wait(5)
        # Few ranks, so that failures repeat.
        rank = rng.randrange(min(3, 2 * len(nodes)))
        kind = rng.choice(["signal", "signal", "signal", "program", "lost", "hang"])
        if kind == "signal":
            run.fail(rank, signal=rng.choice(SIGNALS)).stop()
        elif kind == "program":
            run.fail(rank, ValueError("x")).stop()
        elif kind == "hang":
            run.hang(rank, places={}).stop()
        else:
            run.lose(rng.choice(nodes))
    return run.close("failed", "no restarts left")


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_fold_status_and_report_name_the_same_excluded_nodes_for_the_same_reasons(tmp_path: Path, after: int) -> None:
    named = 0
    for number in range(HISTORIES):
        rng = random.Random(SEED + number)
        run = history(tmp_path / str(number), rng, after)
        directory = run.write()
        snapshot = gather(directory, now_ns=run.now_ns + 10**9)
        report = analyse(snapshot)
        shot = read(directory, wall_ns=lambda: run.now_ns, monotonic_ns=lambda: 0)  # noqa: B023
        status = {row["node"]: row["excluded"] for row in summarise(shot)["nodes"] if row["excluded"]}
        assert shot.state is not None
        fold = excluded_nodes(shot.state, {}, after)
        assert status == fold, SEED + number
        left_out = {each["node"]: each["why"] for each in report["health"]["left_out"]}
        assert left_out.items() <= fold.items(), SEED + number
        lost = {each["node"] for each in report["repeats"] if "was lost" in each["text"]}
        suspected = {
            each["node"] for each in report["repeats"] if each["node"] and "suspect the" in each["text"]
        } - lost
        repeated = {node for node in excluded_nodes(shot.state, {}, max(after, 2)) if node not in lost}
        assert suspected == repeated, SEED + number
        named += len(repeated)
    assert named or after > 2, SEED  # three failures of one node are rare in so short histories
