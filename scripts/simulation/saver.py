"""A rank that saves checkpoints with the protocol of `ftslurm.commit`, sometimes frozen between two operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from functools import partial

from ftslurm.agent.actions import Assignment
from ftslurm.fencing import Fence, RoundIsOver, check
from ftslurm.records.state import PendingCommit
from ftslurm.sharedfs.commits import Commits, temporary_of
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import remove_temporary
from ftslurm.sharedfs.rundir import RunDirectory
from simulation.agent import VirtualAgent
from simulation.host import Host, VirtualWorker
from simulation.invariants import Ledger

TARGET = "/data/last.pt"
FREEZE_CHANCE = 0.1
"""Probability that a rank is frozen between two operations of a commit."""
IN_FLIGHT_CHANCE = 0.3
"""Probability that the last call of a killed rank is still executed by the server, possibly much later."""


class Saver:
    """Saves repeatedly as rank 0 of a round.

    Args:
        host: the cluster.
        fs: a client of the rank's node, without the agent's faults.
        run: the run.
        agent, worker, assignment: the rank.
        ledger: receives each commit.
        counts: "commits", and those "fenced out".
    """

    def __init__(
        self,
        host: Host,
        fs: FileSystem,
        run: RunDirectory,
        agent: VirtualAgent,
        worker: VirtualWorker,
        assignment: Assignment,
        ledger: Ledger,
        counts: Counter[str],
    ) -> None:
        self._host = host
        self._fs = fs
        self._run = run
        self._agent = agent
        self._worker = worker
        self._round = assignment.round
        self._fence = Fence(run.root, assignment.attempt, assignment.round, agent.node)
        self._ledger = ledger
        self._counts = counts

    def start(self, commits: Commits, number: int) -> None:
        """Begin; `number` differs for each saver."""
        self._later(self._save(commits, number))

    def _later(self, steps: Generator[float, None, None]) -> None:
        try:
            seconds = next(steps)
        except StopIteration:
            return
        self._host.after(seconds, partial(self._go_on, steps))

    def _go_on(self, steps: Generator[float, None, None]) -> None:
        worker = self._agent.workers.get(self._worker.local_rank)
        lives = self._agent.alive and worker is self._worker
        if lives or self._host.rng.random() < IN_FLIGHT_CHANCE:
            self._later(steps)

    def _save(self, commits: Commits, number: int) -> Generator[float, None, None]:
        count = 0
        while True:
            yield self._host.rng.expovariate(1 / 15.0)
            count += 1
            temporary = temporary_of(TARGET, self._round, f"{number}-{count}")
            try:
                yield from self._commit(commits, temporary)
            except RoundIsOver:
                self._counts["fenced out"] += 1
                remove_temporary(self._fs, temporary)
                return
            except OSError:
                remove_temporary(self._fs, temporary)

    def _commit(self, commits: Commits, temporary: str) -> Generator[float, None, None]:
        registration = commits.register(PendingCommit(self._round, self._agent.node, temporary, TARGET))
        try:
            yield self._pause_s()
            self._fs.create(temporary, b"%d" % self._round, durable=True)
            yield self._pause_s()
            check(self._fs, self._fence)
            yield self._pause_s()
            self._rename(temporary)
            yield self._pause_s()
        except (OSError, RoundIsOver):
            # Not in a `finally`, which would also run for a killed rank.
            commits.finished(registration)
            raise
        commits.finished(registration)

    def _rename(self, temporary: str) -> None:
        try:
            self._fs.rename(temporary, TARGET)
        except FileNotFoundError:
            self._counts["fenced out at the rename"] += 1
            raise
        self._counts["commits"] += 1
        self._ledger.on_commit(self._round, self._agent.node)

    def _pause_s(self) -> float:
        rng = self._host.rng
        return rng.uniform(1.0, 120.0) if rng.random() < FREEZE_CHANCE else rng.uniform(0.0, 0.3)
