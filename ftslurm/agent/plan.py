"""`--dry-run`: what would be started, from the checked options; nothing is started or written."""

from __future__ import annotations

import os
import shlex

from ftslurm.agent.devices import Slots
from ftslurm.agent.environment import program_argv
from ftslurm.agent.option_groups import RunOptions
from ftslurm.agent.placement import local_environment
from ftslurm.agent.preflight import CheckedRun, check, unique_name
from ftslurm.terminal import show
from ftslurm.text import plural, safe


def plan(checked: CheckedRun, run_dir: str) -> str:
    """Return what would be started, one fact in each line."""
    place = checked.placement
    nodes = f"{place.min_nodes}" if place.min_nodes == place.max_nodes else f"{place.min_nodes} to {place.max_nodes}"
    spares = len(place.expected) - place.max_nodes
    facts = (
        ("run directory", f"{run_dir}{' (exists: the run is continued)' if os.path.isdir(run_dir) else ''}"),
        ("nodes", f"{nodes} of {len(place.expected)}" + (f", {plural(spares, 'spare')}" if spares > 0 else "")),
        ("workers", _workers(Slots(checked.slots, checked.choice))),
        ("program", shlex.join(program_argv(checked.program))),
        ("restarts", f"at most {checked.options.placement.max_restarts}"),
    )
    return "\n".join(f"{f'{name}:':<15}{safe(text)}" for name, text in facts)


def _workers(slots: Slots) -> str:
    if slots.choice is not None:
        return f"{slots.choice} (auto)"
    return f"{slots.count} per node" if slots.count else "counted on the nodes"


def show_plan(options: RunOptions) -> int:
    """Print what `ftslurm run` would start here; return its exit code.

    Raises:
        UsageError, RunDirectoryError: with one line.
    """
    local = options.placement.local_nodes
    if local:
        # As the launcher does for its agents.
        os.environ.update(local_environment(f"local-{unique_name()}", local, os.environ))
    checked = check(options, unique_name())
    where = f"{plural(local, 'agent')} on this machine" if local else "one agent, here"
    text = f"{plan(checked, checked.placement.run_dir)}\n{'agents:':<15}{where}\n"
    show(text)
    return 0
