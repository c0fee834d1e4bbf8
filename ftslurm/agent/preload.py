"""Early import of modules that the loop needs only later: by then the filesystem of Python itself may hang.

An import that hangs in the loop would keep the agent from its signals, its ranks and its heartbeat. Imports on separate
threads (a connection test) and after the end (the report) may hang there.
"""

from __future__ import annotations

MODULES = ("ftslurm.failures.evidence", "ftslurm.report.host_resources")
FOR_SPARES = ("ftslurm.agent.standby",)


def preload(spares: bool) -> None:
    """Import these modules; if there may be standby workers, theirs too."""
    for name in MODULES + (FOR_SPARES if spares else ()):
        __import__(name)
