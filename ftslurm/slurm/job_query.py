"""A program that asks Slurm once about the end of a job, and prints the answer as one line of JSON.

``python <ftslurm>/boot/module.py ftslurm.slurm.job_query JOB NODES``. The agent runs it rather than import what it
needs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from ftslurm.records.stop import JobEnd
from ftslurm.slurm.commands import CommandSlurm
from ftslurm.slurm.control import SlurmControl
from ftslurm.slurm.errors import SlurmError

DRAINED = "DRAIN"


def query(slurm: SlurmControl, job_id: str, nodes: Sequence[str], now_ns: int) -> JobEnd | None:
    """Return when the job ends and which of these nodes are being drained; None: Slurm does not know the job.

    Raises:
        SlurmError: Slurm does not answer.
    """
    job = slurm.job(job_id)
    if job is None:
        return None
    try:
        states = slurm.node_states(nodes)
    except (SlurmError, ValueError):
        # The end of the job is worth more than the nodes' states.
        states = {}
    draining = tuple(sorted(node for node, state in states.items() if DRAINED in state))
    preempted = job.preempted_ns is not None
    return JobEnd(job.end_ns, preempted, draining, now_ns)


def main(arguments: Sequence[str]) -> int:
    """Print the answer; 1 without one."""
    job_id, *nodes = arguments
    try:
        answer = query(CommandSlurm(), job_id, nodes, time.time_ns())
    except (SlurmError, ValueError):
        return 1
    if answer is None:
        return 1
    fields = {"end_ns": answer.end_ns, "preempted": answer.preempted, "draining": answer.draining}
    print(json.dumps(fields), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
