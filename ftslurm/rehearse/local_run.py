"""One start of `ftslurm run` below this process, of which nothing is left when it is over."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence

from ftslurm.boot import module_command
from ftslurm.kernel import die_with_parent, end_descendants
from ftslurm.rehearse.events import HANG, OOM, RANK_DEATH, Event

CLEANING_S = 15.0
SIGNALS = {OOM: signal.SIGKILL, HANG: signal.SIGSTOP, RANK_DEATH: signal.SIGSEGV}
"""What the rank gets."""


class LocalRun:
    """A running `ftslurm run`.

    Args:
        arguments: its own.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        # The judgement is printed in place of the report, which stays in the run directory.
        environment = {**os.environ, "FTSLURM_REPORT": "0"}
        self._process = subprocess.Popen(
            module_command(sys.executable, "ftslurm.cli", "run", *arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            # This process has no other thread.
            preexec_fn=_set_up,  # noqa: PLW1509
        )

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Send SIGTERM to its agents."""
        if not self.has_ended:
            self._process.terminate()

    def end(self, grace_s: float) -> None:
        """Stop it, and kill what is left of it after that time."""
        self.stop()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        leave_nothing()


def leave_nothing() -> None:
    """Kill and collect all that was started here; this process is a subreaper."""
    end_descendants(CLEANING_S)


def strike_rank(event: Event, pid: int) -> None:
    """Send a rank the signal of an event."""
    os.kill(pid, SIGNALS[event])


def kill_node(guardian: int, agent: int) -> None:
    """Kill a local node: its guardian first, which would start another agent; the ranks die with the agent."""
    for pid in (guardian, agent):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _set_up() -> None:
    # A group of its own: Ctrl-C reaches the rehearsal alone, which stops the run.
    os.setpgid(0, 0)
    # The core of a rank that is killed on purpose is of no use.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    die_with_parent(signal.SIGTERM)
