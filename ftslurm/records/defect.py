"""The record of a defect of ftslurm itself: ``defects/<node>.<incarnation>.<n>.json``."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class DefectRecord:
    """An unexpected exception in an agent.

    Attributes:
        time_ns: nanoseconds since the epoch, by the node's clock.
        part: the component that it disabled; None: it ended the agent.
        meaning: the consequence for the job.
        error: the exception, one line.
        place: its location in ftslurm.
        ftslurm, python, system: versions.
    """

    node: str
    incarnation: str | None
    attempt: str | None
    round: int | None
    time_ns: int | None
    part: str | None
    meaning: str | None
    error: str
    place: str | None
    traceback: str | None = None
    ftslurm: str | None = None
    python: str | None = None
    system: str | None = None

    SCHEMA, VERSION = "ftslurm/defect", 1
