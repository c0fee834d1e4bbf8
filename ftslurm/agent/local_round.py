"""One round on this node, as the agent's machine keeps it: workers, failures, and its stop (pure)."""

from __future__ import annotations

import signal

from ftslurm.agent.actions import Assignment, Moment, RecordRound, Signal, WorkerEnd
from ftslurm.agent.messages import short
from ftslurm.dataclasses import dataclass, field
from ftslurm.records.state import FAILED, HANG, RUNNING, STOPPED, SUCCEEDED, Failure, Hang, State

HANG_S = 15.0
"""Seconds that a hang waits for the coordinator's decision before its agent stops its own workers: the shared directory
may hang, and that must not keep a broken round alive. Longer than the coordinator waits for all nodes' stacks."""


@dataclass
class LocalRound:
    """A round on this node; workers are given by their local ranks.

    Attributes:
        ended: how those ended that did.
        failed, stopped, killed: those that failed by themselves, that ftslurm stopped, that it killed.
        first: the first failure on this node.
        hung: the signal to end each worker with whose time-out has expired.
        hang: the first of these time-outs.
        comparing: the signature of `first` is being computed.
        swept: no process of it is left.
        stop_reason, stop_ns: of the stop request.
    """

    assignment: Assignment
    alive: set[int] = field(default_factory=set)
    ended: dict[int, WorkerEnd] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    first: Failure | None = None
    hung: dict[int, int] = field(default_factory=dict)
    hang: Hang | None = None
    collecting_stacks: bool = False
    stacks_collected: bool = False
    comparing: bool = False
    swept: bool = False
    stop_reason: str | None = None
    stop_ns: int | None = None

    @property
    def must_wait_for_stacks(self) -> bool:
        """Whether a failing rank must not stop the others yet: the stacks of some are still missing."""
        return self.collecting_stacks and not self.stacks_collected and bool(self.alive)

    def is_current(self, state: State) -> bool:
        """Return whether this is the round that runs according to `state`."""
        part = self.assignment
        return state.attempt == part.attempt and state.phase == RUNNING and state.round == part.round

    def failed_before_stop(self, end: WorkerEnd) -> bool:
        """Return whether the worker failed by itself before the stop request, although it ended after it."""
        at = end.recorded_ns if end.recorded_ns is not None else end.ended_ns
        return self.stop_ns is not None and at < self.stop_ns

    def note_failure(self, failure: Failure) -> bool:
        """Note a failure; return whether it is the first one of the round here."""
        self.failed.add(failure.local_rank)
        # A rank may have failed before the one whose process ended first: its teardown took longer.
        if self.first is not None and (self.first.kind == HANG or failure.time_ns >= self.first.time_ns):
            return False
        self.first = failure
        self.comparing = failure.at_start and failure.signature is None
        return True

    def start_failure(
        self, node: str, local_rank: int, problem: str, kind: str, blame: str | None, time_ns: int
    ) -> Failure:
        """Return the failure of a worker that could not be started."""
        part = self.assignment
        where = (part.round, node, part.first_rank + local_rank, local_rank, time_ns)
        return Failure(*where, kind, None, None, problem[:500], None, blame=blame)

    def note_expiry(
        self, node: str, local_rank: int, what: str, step: int | None, now: Moment, since_s: float | None
    ) -> Hang:
        """Note the first expired time-out of the round here."""
        part = self.assignment
        since_ns = None if since_s is None else now.ns - round((now.s - since_s) * 1e9)
        rank = part.first_rank + local_rank
        self.hang = Hang(part.round, node, rank, local_rank, now.ns, short(what, 500), step, since_ns)
        return self.hang

    def stop(self, reason: str, now_ns: int) -> list[Signal]:
        """Begin to stop all workers; return the signals to send."""
        self.stop_reason, self.stop_ns = reason, now_ns
        if self.hang is not None and self.first is None:
            self.first = self.hang.failure()
        hung = {local_rank: number for local_rank, number in self.hung.items() if local_rank in self.alive}
        self.killed |= {local_rank for local_rank, number in hung.items() if number == signal.SIGKILL}
        # A stopped process (SIGSTOP) reacts to no signal but these two.
        signals = [Signal((rank,), number) for rank, one in sorted(hung.items()) for number in (signal.SIGCONT, one)]
        others = tuple(sorted(self.alive - set(hung)))
        return [*signals, *([Signal(others, signal.SIGTERM)] if others else [])]

    def record(self, over: bool = False) -> RecordRound:
        """Return the action that records the round as it stands; ``over``: it is."""
        outcome = RUNNING
        if self.failed or self.hang is not None:
            outcome = FAILED
        elif not self.alive and not self.stopped and self.ended:
            outcome = SUCCEEDED
        elif over:
            outcome = STOPPED
        return RecordRound(
            self.assignment,
            outcome,
            self.stop_reason,
            self.stop_ns,
            frozenset(self.stopped),
            frozenset(self.killed),
            frozenset(self.failed),
            self.hang,
            over or outcome == SUCCEEDED,
        )
