"""Records of an attempt: the start of ftsrun that it belongs to, and the end of its agents."""

from __future__ import annotations

import os

from ftslurm.dataclasses import asdict, dataclass
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import BadFile, encode, publish_once, read_object
from ftslurm.sharedfs.rundir import RunDirectory

ATTEMPT_SCHEMA, ATTEMPT_VERSION = "ftslurm/attempt", 1
STEP_SCHEMA, STEP_VERSION = "ftslurm/step", 1
START = "FTSLURM__START"
"""Environment variable with ftsrun's random name of this start; field `start` of the attempt's record."""


@dataclass(frozen=True)
class StepEnd:
    """The end of an attempt's agents, recorded by their launcher: no process of the attempt is left.

    Attributes:
        ended_ns: nanoseconds since the epoch, by the launcher's clock.
        exit_code: srun's; None: there was no srun, or it did not end.
        signal: the name of the signal that stopped the launcher, if any.
    """

    attempt: str
    ended_ns: int
    exit_code: int | None
    signal: str | None


def publish_end(fs: FileSystem, run: RunDirectory, end: StepEnd) -> bool:
    """Write the record unless one exists; return whether the existing record is then this one.

    Raises:
        OSError, BadFile: it cannot be written, or not read back.
    """
    path, data = run.step_file(end.attempt), {"schema": STEP_SCHEMA, "version": STEP_VERSION, **asdict(end)}
    publish_once(fs, path, encode(data))
    return read_object(fs, path, STEP_SCHEMA, STEP_VERSION) == data


def attempt_of_start(fs: FileSystem, run: RunDirectory, start: str) -> str | None:
    """Return the name of the attempt whose agents have `start`; None: none of them has written a record.

    Raises:
        OSError: the directory of attempts cannot be read.
    """
    attempts = os.path.dirname(run.attempt("x"))
    fs.refresh(attempts)
    for name in sorted(fs.listdir(attempts), reverse=True):
        try:
            record = read_object(fs, run.attempt_file(name), ATTEMPT_SCHEMA, ATTEMPT_VERSION)
        except (FileNotFoundError, NotADirectoryError, BadFile):
            continue
        if record.get("start") == start:
            return name
    return None
