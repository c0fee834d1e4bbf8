"""`--numa-binding`: the CPUs of this node's ranks, chosen once, in a process of its own with a time limit."""

from __future__ import annotations

import json
import os
import select
import sys
import time

from ftslurm.agent.helper_process import HelperProcess
from ftslurm.boot import module_command
from ftslurm.text import duration, ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LIMIT_S = 30.0
"""A driver without its persistence daemon initialises the GPUs one after the other."""


def cpus_of_ranks(mode: str, slots: int) -> tuple[tuple[frozenset[int] | None, ...], str | None]:
    """Return the CPUs of each local rank, None: it is not bound; and a line that says why not, None if all are.

    Args:
        mode: one of `ftslurm.numa.choice.MODES`.
        slots: number of workers on this node.
    """
    answer = _ask(module_command(sys.executable, "ftslurm.numa.program", mode, str(slots)))
    chosen = [answer] * slots if isinstance(answer, str) else answer
    cpus = tuple(None if isinstance(one, str) else frozenset(one) for one in chosen)
    unbound: dict[str, list[int]] = {}
    for local_rank, one in enumerate(chosen):
        if isinstance(one, str):
            unbound.setdefault(one, []).append(local_rank)
    if not unbound:
        return cpus, None
    lines = [f"local {'ranks' if len(of) > 1 else 'rank'} {ranges(of)}: {reason}" for reason, of in unbound.items()]
    return cpus, f"--numa-binding {mode}: not bound: {'; '.join(lines)}"


def _ask(command: Sequence[str]) -> list[list[int] | str] | str:
    """Return the answer of `ftslurm.numa.program`, or why there is none."""
    with select.epoll() as poll:
        try:
            helper = HelperProcess.start(command, os.environ, poll)
        except OSError as error:
            return f"{command[0]}: {error.strerror or error}"
        end = time.monotonic() + LIMIT_S
        while not (over := helper.receive()) and (left := end - time.monotonic()) > 0:
            poll.poll(left)
        helper.drop(poll)
    if not over:
        return f"the CUDA driver did not respond within {duration(LIMIT_S)}"
    lines = bytes(helper.data).split(b"\n")
    try:
        # A driver may print, too, before it.
        answer: list[list[int] | str] | str = json.loads(lines[-2])
    except (IndexError, ValueError):
        return "the process that asks the CUDA driver ended without an answer"
    return answer
