"""What a simulated agent knows of its cluster: workers, time, faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from ftslurm.agent.actions import Assignment
from ftslurm.agent.containment import Defect
from ftslurm.dataclasses import dataclass
from ftslurm.sharedfs.commits import Commits

if TYPE_CHECKING:
    from simulation.agent import VirtualAgent
    from simulation.stopping import Training

NEVER = float("inf")


@dataclass
class VirtualWorker:
    """Planned behaviour of a worker.

    Attributes:
        ends_at: true time of its own end; NEVER for one that hangs.
        code, signal: outcome of its own end.
        term_s: time to end after SIGTERM; NEVER: it ignores it.
        kill_s: the same after SIGKILL (a process in an uninterruptible call may take a minute).
        turn: number of changes of the plan; an end scheduled for an earlier plan is ignored.
        training: its steps, if it calls `ftslurm.should_stop`.
    """

    local_rank: int
    ends_at: float
    code: int
    signal: str | None
    term_s: float
    kill_s: float
    turn: int = 0
    training: Training | None = None


class Host:
    """Interface of the cluster for an agent; see `cluster.Cluster`."""

    rng: random.Random

    def now(self) -> float:
        """Return true time, seconds."""
        raise NotImplementedError

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Call `event` after the given time."""
        raise NotImplementedError

    def plan_worker(self, agent: VirtualAgent, assignment: Assignment, local_rank: int) -> VirtualWorker:
        """Return the plan of this worker.

        Raises:
            OSError: it cannot be started.
        """
        raise NotImplementedError

    def reaches_master(self, agent: VirtualAgent, assignment: Assignment) -> bool:
        """Return whether the agent's node can connect to the round's master now."""
        raise NotImplementedError

    def commits(self, agent: VirtualAgent) -> Commits:
        """Return the registrations of commits, through that agent's client."""
        raise NotImplementedError

    def on_spawned(self, agent: VirtualAgent, assignment: Assignment) -> None:
        """Note that the agent has started the workers of a round."""
        raise NotImplementedError

    def on_left(self, agent: VirtualAgent, worker: VirtualWorker, step: int, in_vain: bool) -> None:
        """Note that a rank has left by an orderly stop; ``in_vain``: it had waited too long for the decision."""
        raise NotImplementedError

    def on_defect(self, agent: VirtualAgent, defect: Defect) -> None:
        """Note an unexpected exception in the code under test."""
        raise NotImplementedError

    def on_gone(self, agent: VirtualAgent, code: int | None) -> None:
        """Note that the agent has ended, with an exit code or (None) by a crash."""
        raise NotImplementedError

    def may_wait(self, agent: VirtualAgent) -> bool:
        """Return whether the agent's filesystem calls may block now."""
        raise NotImplementedError
