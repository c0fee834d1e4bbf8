"""Records of an attempt: the start of ftsrun that it belongs to, and the end of its agents."""

from __future__ import annotations

import os

from ftslurm.records.attempt import Attempt, StepEnd
from ftslurm.records.codec import BadFile
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import publish_first, read_published
from ftslurm.sharedfs.rundir import RunDirectory

START = "FTSLURM__START"
"""Environment variable with ftsrun's random name of this start; field `start` of the attempt's record."""


def publish_end(fs: FileSystem, run: RunDirectory, end: StepEnd) -> bool:
    """Write the record unless one exists; return whether the existing record is then this one.

    Raises:
        OSError, BadFile: it cannot be written, or not read back.
    """
    return publish_first(fs, run.step_file(end.attempt), end)


def attempt_of_start(fs: FileSystem, run: RunDirectory, start: str) -> str | None:
    """Return the name of the attempt whose agents have `start`; None: none of them has written a record.

    Raises:
        OSError: the directory of attempts cannot be read.
    """
    attempts = os.path.dirname(run.attempt("x"))
    fs.refresh(attempts)
    for name in sorted(fs.listdir(attempts), reverse=True):
        try:
            record = read_published(fs, run.attempt_file(name), Attempt)
        except (FileNotFoundError, NotADirectoryError, BadFile):
            continue
        if record.start == start:
            return name
    return None
