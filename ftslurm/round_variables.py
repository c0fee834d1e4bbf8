"""The variables that a worker has for its round only, and those that its script has changed.

A module that reads such a variable when it is imported must not be imported ahead.
"""

from __future__ import annotations

import os

from ftslurm.monitor import flight_server

OF_THE_ROUND = frozenset(
    (
        *("RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        "TORCHELASTIC_ERROR_FILE",
    )
)
OURS = "FTSLURM_"
"""Beginning of further names, most of which are the round's, too."""


ordered: dict[str, str] | None = None
"""In a worker that was a standby worker: the environment that its agent has ordered."""


def changed_variables() -> dict[str, str]:
    """Return a checksum of the value of each variable that this process has changed since it was started.

    Those of the round are left out. The checksum of one that is not set any more is empty.
    """
    from binascii import crc32

    first = dict(_environment_at_start() if ordered is None else ordered)
    # What reads these is not imported ahead: torch's recorder begins with the first process group.
    first |= flight_server.variables
    names = (name for name in {*first, *os.environ} if first.get(name) != os.environ.get(name))
    return {
        name: f"{crc32(os.fsencode(os.environ[name])):08x}" if name in os.environ else ""
        for name in names
        if not is_of_the_round(name)
    }


def _environment_at_start() -> dict[str, str]:
    with open("/proc/self/environ", "rb") as file:
        pairs = (item.partition(b"=") for item in file.read().split(b"\0"))
        return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}


def is_of_the_round(name: str) -> bool:
    """Return whether a standby worker does not have that variable as its rank will have it."""
    return name in OF_THE_ROUND or name.startswith(OURS)
