"""Stock torchrun with `--rdzv-backend=sharedfs` as a step of a real Slurm job."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.slurm.conftest import Lab

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

WORKER = """\
import os, sys, time
from pathlib import Path
what = " ".join(os.environ[n] for n in ("RANK", "WORLD_SIZE", "SLURMD_NODENAME", "MASTER_ADDR"))
print("worker", what, os.environ["SLURM_STEP_ID"], flush=True)
first = Path("failed")
if os.environ["RANK"] == "1" and len(sys.argv) > 1 and not first.exists():
    first.touch()
    sys.exit(5)
time.sleep(0.5)
"""
TORCHRUN = (
    f"srun -l {sys.executable} -m torch.distributed.run --nnodes=$SLURM_NNODES --max-restarts=1 "
    "--rdzv-backend=sharedfs --rdzv-endpoint=$PWD/shared --rdzv-id=$SLURM_JOB_ID train.py"
)


def workers(output: str) -> list[str]:
    return sorted(line.partition("worker ")[2] for line in output.splitlines() if "worker " in line)


def test_ranks_follow_slurms_order_and_each_step_is_an_attempt(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(WORKER)
    # The first node is started last: its rank is 0 all the same.
    late = TORCHRUN.replace("srun -l ", "srun -l bash -c '[ $SLURM_NODEID = 0 ] && sleep 1; exec \"$@\"' - ")
    job = lab.submit(work, f"{late}\n{TORCHRUN}")
    assert job.wait(120) == "COMPLETED", job.explain()
    assert workers(job.output) == [f"{rank} 2 t{rank + 1} t1 {step}" for rank in (0, 1) for step in (0, 1)]
    state = max((work / "shared" / job.id / "state").glob("0*.json")).read_text()
    assert json.loads(state)["value"]["attempts"] == [f"{job.id}.0.0", f"{job.id}.1.0"]


def test_a_failed_rank_restarts_both_nodes(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(WORKER)
    job = lab.submit(work, f"{TORCHRUN} fail-once")
    assert job.wait(120) == "COMPLETED", job.explain()
    assert workers(job.output).count("0 2 t1 t1 0") == 2, job.output
