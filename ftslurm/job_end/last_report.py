"""An agent's report of a run whose directory has vanished, from this node's own data."""

from __future__ import annotations

import os
import time

from ftslurm import __version__
from ftslurm.dataclasses import replace
from ftslurm.records.attempt import Run
from ftslurm.records.codec import BadFile, write_record
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import LEFT, State
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory


def last_report(directory: str, state: State, record: NodeRecord) -> str | None:
    """Return the report as text; None if it cannot be made.

    Args:
        directory: contains the node's records of the newest round, with the layout of a run directory; the other files
            that the report needs are added.
        state: the newest state that the agent has read.
        record: its node record.
    """
    from pathlib import Path

    from ftslurm.report.pipeline import make_report
    from ftslurm.report.text import render

    run, fs = RunDirectory(directory), PosixFileSystem(owner=os.geteuid())
    gone = replace(record, status=LEFT, reason="the run directory has vanished", time_ns=time.time_ns())
    try:
        for folder in (run.state, run.nodes):
            fs.makedirs(folder)
        FencedCell(fs, run.state).set(state.encode(), None)
        publish(fs, run.node_file(record.node), gone.encode())
        publish(fs, run.run_file, write_record(Run(state.run_id, ftslurm=__version__)))
        return render(make_report(Path(directory)))
    except (OSError, BadFile):
        return None
