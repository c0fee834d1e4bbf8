"""The examples as jobs of a real Slurm: a rank is killed, and the job goes on from the checkpoint."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.process.test_frameworks import EXAMPLES, PLAIN, Example, excuse_torch, need
from tests.slurm.conftest import Lab


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_goes_on_after_a_killed_rank(lab: Lab, work: Path, example: Example) -> None:
    need(example.needs, example.compiles)
    program_arguments = " ".join(example.arguments(400))
    exports = " ".join(f"{name}='{value}'" for name, value in PLAIN.items())
    body = f"export {exports}\nexec ftsrun --nproc-per-node 1 --health off {example.path} {program_arguments}"
    job = lab.submit(work, body)
    lab.until(lambda: any(work.glob(example.first)), 180, job.explain)
    os.kill(rank(work, 1), signal.SIGKILL)
    state = job.wait(240)
    excuse_torch(job.output)
    assert state == "COMPLETED", job.explain()
    begun = [int(step) for step in re.findall(r"^\[rank 0\] begins after step (\d+)", job.output, re.MULTILINE)]
    assert len(begun) == 2, job.output
    assert begun[0] == 0
    assert begun[1] > 0
    assert "ends after step 400" in job.output
    assert "succeeded after 1 recovered failure" in job.output


def rank(work: Path, number: int) -> int:
    """Return the pid of that rank of the job in that directory."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for entry in Path("/proc").iterdir():
            try:
                names = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                is_rank = b"boot/worker.py" in (entry / "cmdline").read_bytes() if names else False
            except OSError:
                continue
            if is_rank and f"RANK={number}".encode() in names and any(str(work).encode() in name for name in names):
                return int(entry.name)
    raise AssertionError(f"no rank {number} below {work}")
