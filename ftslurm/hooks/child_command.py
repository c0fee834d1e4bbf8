"""Command line of `ftslurm.hooks.child`; agents import only this of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ftslurm.boot import module_command
from ftslurm.hooks.events import Event

COMMAND_S = 30.0
"""Time-out of the command for one event, in seconds."""


def arguments_of(python: str, run_dir: str, node: str, command: str, events: Sequence[Event]) -> tuple[str, ...]:
    """Return the command line that runs the user's command for these events."""
    listed = json.dumps([[one.name, one.attempt, one.round, one.time_ns, one.text] for one in events])
    return module_command(python, "ftslurm.hooks.child", run_dir, node, command, listed)
