"""How long the shared directory has failed for this agent, and when the agent gives it up."""

from __future__ import annotations

from ftslurm.agent.courier import StorageProblem
from ftslurm.agent.effects import Effects
from ftslurm.terminal import ERROR, WARNING
from ftslurm.text import duration


class StorageTrouble:
    """Follows the courier's reports on the shared directory.

    Args:
        effects: have the clock, the workers and the log.
        limit_s: seconds that the shared directory may fail while no worker runs.
    """

    def __init__(self, effects: Effects, limit_s: float) -> None:
        self._effects = effects
        self._limit_s = limit_s
        self._since: float | None = None

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `is_final` is to be asked; None: it works, or workers run."""
        return None if self._since is None or self._effects.running() else self._since + self._limit_s

    def on_problem(self, event: StorageProblem) -> None:
        """The shared directory fails, or works again."""
        if event.problem is None:
            self._since = None
            self._effects.log("the shared directory works again", WARNING)
            self._effects.retry_records()
            return
        self._effects.log(f"the shared directory: {event.problem}; trying again", WARNING)
        if self._since is None:
            self._since = self._effects.monotonic()

    def is_final(self) -> bool:
        """Return whether it has failed for long (full, read-only, damaged) and no worker runs; log that."""
        deadline = self.deadline
        if deadline is None or self._effects.monotonic() < deadline:
            return False
        self._effects.log(f"the shared directory has failed for {duration(self._limit_s)}: giving up", ERROR)
        return True
