"""Misspelt `FTSLURM_…` and `PET_…` variables, which would be ignored silently (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.agent.option_table import OPTIONS
from ftslurm.agent.torchrun_options import TORCHRUNS_PREFIX, UNUSED_VARIABLES, variable_of
from ftslurm.similar import MOST_EDITS, edits

OWN = (
    *("RUN_ID", "ATTEMPT", "ROUND", "NODE", "RUN_DIR", "RECORD_DIR", "IMPORTS", "LOCAL_RANK", "PIPE", "TIMEOUTS"),
    *("SUPERVISOR", "KILL_WAIT", "AVOID_CHECKPOINT", "HEALTH_BUSY", "COLLECTIVES", "REPORT", "EVENT", "EVENT_TEXT"),
    "LOG_LEVEL",
)
"""Those of ftsrun, and those that ftslurm itself sets for its processes and workers; `docs/options.md` lists them."""
_PREFIX, _INTERNAL = "FTSLURM_", "FTSLURM__"


def misspelt(names: Iterable[str]) -> list[str]:
    """Return a line for each variable that is no option's, ours or torchrun's, but almost.

    Another unknown name is a script's or a plugin's own.
    """
    known = [option.variable for option in OPTIONS]
    theirs = [variable for option in OPTIONS if (variable := variable_of(option)) is not None]
    taken = {*known, *theirs, *UNUSED_VARIABLES, *(f"{_PREFIX}{name}" for name in OWN)}
    lines = []
    for name in sorted({*names} - taken):
        prefix = next((each for each in (_PREFIX, TORCHRUNS_PREFIX) if name.upper().startswith(each)), None)
        if prefix is None or name.startswith(_INTERNAL):
            continue
        number, nearest = min((edits(name.upper(), other), other) for other in (known if prefix == _PREFIX else theirs))
        # Of a short name, two edits make any other one.
        if number <= min(MOST_EDITS, (len(nearest) - len(prefix) - 1) // 2):
            lines.append(f"{name} in the environment is no option and is ignored; did you mean {nearest}?")
    return lines
