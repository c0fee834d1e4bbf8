"""Processes that ranks leave behind when they have succeeded: these are killed, and the user may have meant them."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ftslurm.monitor import process_state
from ftslurm.text import plural, safe

NAMED = 4


def left_behind(pids: Sequence[int]) -> str | None:
    """Return the line that names the processes among these which still run; None: there are none."""
    found = [(pid, name) for pid in pids if (name := _name(pid)) is not None]
    if not found:
        return None
    listed = ", ".join(f"{safe(name)} (process {pid})" for pid, name in found[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    are = "is" if len(found) == 1 else "are"
    return f"the ranks have ended; {plural(len(found), 'process')} that they left behind {are} killed: {listed}{more}"


def _name(pid: int) -> str | None:
    """Return the name of a process; None: it has ended, or is no program of the user's.

    Its command line would tell more, but reading that may block: on a process that hangs in the kernel.
    """
    state = process_state.status(f"/proc/{pid}")
    if state is None or process_state.letter(state) in "ZX":
        return None
    name = state.get("Name", "?")
    # The helpers of multiprocessing (resource_tracker, forkserver) and of torch's compiler ignore Ctrl-C, and end by
    # themselves a moment after their rank.
    is_helper = name.startswith("py") and process_state.has(state, "SigIgn", signal.SIGINT)
    return None if is_helper else name
