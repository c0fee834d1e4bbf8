"""Which processes are left over, on a real Slurm: those of steps and jobs that are over, and none of those that run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Lab

LOOK = """
import json, os, sys
from dataclasses import asdict
from ftslurm.health.check import Context
from ftslurm.health.checks.host_processes import CHECK
from ftslurm.health.run import run
(verdict,) = run([CHECK], Context("n", environ=dict(os.environ), own_pid=os.getpid()), {}).verdicts
open(sys.argv[1], "w").write(json.dumps(asdict(verdict)))
"""


# Slurm kills what is in the step's freezer; root can leave it, as what a broken prolog or a container's daemon starts.
ESCAPE = "echo 0 > /sys/fs/cgroup/freezer/tasks"


def looked(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def left(verdict: dict[str, Any]) -> list[str]:
    return sorted(one["text"].partition(";")[0] for one in verdict["findings"] if "left over from" in one["text"])


def test_a_running_job_has_no_leftovers_and_an_escaped_process_is_one(lab: Lab, work: Path) -> None:
    (work / "look.py").write_text(LOOK)
    look = f"{sys.executable} {work}/look.py {work}"
    root = Path(__file__).parents[2]
    one = lab.submit(
        work,
        f"export PYTHONPATH={root}\n"
        "tail -f /dev/null & setsid tail -f /dev/null &\n"
        f"srun -n1 sh -c '(({ESCAPE}; exec setsid sleep 991 <&- >&- 2>&-) &); {look}/first.json'\n"
        f"srun -n1 {look}/second.json\n",
        nodes=1,
    )
    assert one.wait() == "COMPLETED", one.output
    facts = looked(work / "first.json")["facts"]
    assert facts["slurmd"] and f"{one.id}.0" in facts["steps"], facts
    assert left(looked(work / "first.json")) == []
    node = one.facts()["NodeList"]
    if not [line for line in lab.processes(f"SLURM_JOB_ID={one.id}") if line.endswith("sleep 991")]:
        pytest.skip("this Slurm kills whatever leaves its step")
    assert left(looked(work / "second.json")) == [f"left over from step {one.id}.0, which is over"]
    two = lab.submit(work, f"export PYTHONPATH={root}\nsrun -n1 {look}/third.json\n", f"--nodelist={node}", nodes=1)
    assert two.wait() == "COMPLETED", two.output
    assert f"left over from job {one.id}, which is over on this node" in left(looked(work / "third.json"))
