"""Loads, before anything has happened, what the loop needs only then: later the filesystem of Python itself may hang.

An import in the loop that hangs with it would keep the agent from its signals, its ranks and its heartbeat. What
threads of their own need (a connection test, the report after the end) may hang there.
"""

from __future__ import annotations

MODULES = ("ftslurm.failures.evidence", "ftslurm.report.host_resources")
FOR_SPARES = ("ftslurm.agent.standby",)


def preload(spares: bool) -> None:
    """Import all of these modules, those for standby workers too where there may be some."""
    for name in MODULES + (FOR_SPARES if spares else ()):
        __import__(name)
