"""The Slurm step that this process really is in, by the title of its slurmstepd.

Variables do not prove it: a batch script that was submitted inside a step inherits that step's.
"""

from __future__ import annotations

import os
import re

from ftslurm.kernel import parent_of

_TITLE = re.compile(rb"slurmstepd: \[\d+\.(\w+)")
ANCESTORS = 64


def own_step() -> str | None:
    """Return the step's name, "0" or "batch"; None where no slurmstepd is visible above this process."""
    pid: int | None = os.getpid()
    for _ in range(ANCESTORS):
        pid = parent_of(pid) if pid else None
        if not pid:
            return None
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                title = _TITLE.match(file.read(200))
        except OSError:
            return None
        if title is not None:
            return title[1].decode()
    return None
