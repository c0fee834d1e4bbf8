"""`bench requeue`: from a preemption to the first step after the requeue, beside a plain `srun python`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

BAR_S = 1.0
GRACE_S, NODES = 20, 2
SETTINGS = ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE")
"""Lines of slurm.conf."""
TRAIN = """\
import os, signal, sys, time
ours = os.environ["WAY"] == "ftsrun"
rank = int(os.environ["RANK" if ours else "SLURM_PROCID"])
first = int(open("save").read()) + 1 if os.path.exists("save") else 0
asked = []
if ours:
    import ftslurm
else:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
for step in range(first, 100000):
    time.sleep(0.02)
    if rank == 0 and step == first:
        print(time.time(), file=open("first-steps", "a"))
    if ftslurm.should_stop(step) if ours else asked:
        if rank == 0:
            open("save", "w").write(str(step))
        sys.exit(0 if ours else 75)
    if os.path.exists("finish"):
        break
"""
SCRIPTS = {
    "ftsrun": "exec ftsrun --requeue interrupted train.py",
    # As users script it: the program saves on SIGTERM, and the batch script requeues the job.
    "srun": "trap : TERM\nsrun python train.py\ncode=$?\n[ $code = 75 ] && scontrol requeue $SLURM_JOB_ID\nexit $code",
}


class Slurm(Protocol):
    """What the tries need of a cluster."""

    def command(self, *argv: str, cwd: Path | None = None) -> str:
        """Run a command; return what it printed."""

    def facts(self, job: str) -> dict[str, str]:
        """Return Slurm's record of a job."""


class Preemption(NamedTuple):
    """The times of one preemption in seconds, without the time in the queue.

    Attributes:
        left_s: from the submission of the preempting job until the preempted one is back in the queue.
        began_s: from the begin of its second start, by its batch script, to its first step.
    """

    left_s: float
    began_s: float


def prepare(slurm: Slurm) -> None:
    """Add a partition whose jobs preempt those of the lab's own."""
    slurm.command("scontrol", "update", "PartitionName=lab", "PreemptMode=REQUEUE", f"GraceTime={GRACE_S}")
    slurm.command("scontrol", "create", "PartitionName=high", "Nodes=ALL", "PriorityTier=10", "PreemptMode=OFF")


def preempt(slurm: Slurm, work: Path, way: str, until: Callable[[Callable[[], bool]], bool]) -> Preemption | None:
    """Preempt a job; return its times, None if it did not train again.

    Args:
        way: a key of SCRIPTS.
        until: waits; returns whether the condition became true in time.
    """
    (work / "train.py").write_text(TRAIN)
    (work / "job.sbatch").write_text(f"#!/bin/bash\ndate +%s.%N >> begins\nexport WAY={way}\n{SCRIPTS[way]}\n")
    argv = ("sbatch", "--parsable", f"--nodes={NODES}", "--ntasks-per-node=1", "--requeue", "--open-mode=append")
    job = slurm.command(*argv, "job.sbatch", cwd=work)
    first_steps, begins = work / "first-steps", work / "begins"
    if not until(lambda: len(_times(first_steps)) == 1):
        return None
    time.sleep(2)
    at = time.time()
    argv = ("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true")
    slurm.command(*argv, cwd=work)
    if not until(lambda: slurm.facts(job).get("Restarts") == "1"):
        return None
    left_s = time.time() - at
    resumed = until(lambda: len(_times(first_steps)) == 2)
    (work / "finish").touch()
    ended = until(lambda: slurm.facts(job)["JobState"] == "COMPLETED")
    return Preemption(left_s, _times(first_steps)[1] - _times(begins)[1]) if resumed and ended else None


def lines(found: dict[str, list[Preemption]]) -> tuple[list[str], bool]:
    """Return the table of the tries, and whether the bar is kept."""
    text = []
    sums = {}
    for way, tries in found.items():
        left, began = median(one.left_s for one in tries), median(one.began_s for one in tries)
        sums[way] = left + began
        text.append(f"{way:7} preempted to requeued {left:5.2f} s, batch script to first step {began:5.2f} s")
    more = sums["ftsrun"] - sums["srun"]
    text.append(f"ftsrun takes {more:+.2f} s (bar: {BAR_S:+.1f} s){'  MISSED' if more > BAR_S else ''}")
    return text, more <= BAR_S


def _times(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()] if path.exists() else []
