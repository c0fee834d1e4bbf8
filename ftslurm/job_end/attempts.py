"""An attempt's own records: which start of ftsrun it came from, and that its agents have ended."""

from __future__ import annotations

import os

from ftslurm.dataclasses import asdict, dataclass
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import BadFile, encode, publish_once, read_object
from ftslurm.sharedfs.rundir import RunDirectory

ATTEMPT_SCHEMA, ATTEMPT_VERSION = "ftslurm/attempt", 1
STEP_SCHEMA, STEP_VERSION = "ftslurm/step", 1
START = "FTSLURM__START"
"""By this variable ftsrun gives its agents a random name for this start; the attempt's record has it as `start`."""


@dataclass(frozen=True)
class StepEnd:
    """The end of an attempt's agents, as their launcher saw it: nothing of the attempt runs any more.

    Attributes:
        ended_ns: nanoseconds since the epoch, by the launcher's clock.
        exit_code: srun's; None: there was no srun, or it did not end.
        signal: the name of the signal that told the launcher to stop, if one did.
    """

    attempt: str
    ended_ns: int
    exit_code: int | None
    signal: str | None


def publish_end(fs: FileSystem, run: RunDirectory, end: StepEnd) -> bool:
    """Write the record unless there is one; tell whether it is this one that stands.

    Raises:
        OSError, BadFile: it cannot be written, or not be read again.
    """
    path, data = run.step_file(end.attempt), {"schema": STEP_SCHEMA, "version": STEP_VERSION, **asdict(end)}
    publish_once(fs, path, encode(data))
    return read_object(fs, path, STEP_SCHEMA, STEP_VERSION) == data


def attempt_of_start(fs: FileSystem, run: RunDirectory, start: str) -> str | None:
    """Return the name of the attempt whose agents were given `start`; None: none of them has written anything.

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
