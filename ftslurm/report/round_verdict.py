"""What is known and concluded about a round (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ftslurm.dataclasses import dataclass, field
from ftslurm.report.facts import Doubt, RoundFiles
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import FirstFailure
from ftslurm.report.root_cause import Follower
from ftslurm.report.round_facts import Cost

if TYPE_CHECKING:
    from ftslurm.collectives.judgement import Judgement
    from ftslurm.monitor.triage import Triage
    from ftslurm.report.standstill import Standstill


@dataclass(frozen=True)
class RoundVerdict:
    """All that is known and concluded about a round.

    Attributes:
        number: its number.
        files: its records, with times of clocks that are far off corrected.
        attempt: the attempt that formed it.
        nodes: its nodes.
        world_size: its number of ranks.
        started_ns, ended_ns: its begin and end.
        outcome: as recorded, else according to all files; "running" or "unknown" without an end.
        over: whether it ended, and not with success, so that each rank's end should be recorded.
        reason: the recorded one.
        first_step, last_step: the lowest and highest training step that its ranks reported.
        optimizer_steps: where none reported any, the lowest and highest step of their optimizers; see `begun_again`.
        first: the first failure.
        same_time: primary failures that the clocks do not prove to be later, with their uncertainty.
        failed: all judged workers that failed by themselves, root cause first.
        others: those of them that are not the first failure.
        following: further ranks with cascades, by cause, see `ftslurm.report.root_cause.Failures`.
        places: the triage of the ranks' stacks, if there are any.
        triage: the same if a rank hung; its suspects are those of the records of collectives, where these decide.
        collectives: what the records of the ranks' collectives show, if there are any.
        by_collectives: whether the first failure, or the standstill, follows from them.
        standstill: that no rank had moved before the round was stopped from outside.
        cwd: the working directory of its attempt.
        scheduler: Slurm's action that ended it, as text.
        recovered: whether the job went on after a failure.
        cost: None if no further round followed, or it succeeded.
    """

    number: int
    files: RoundFiles
    attempt: str | None
    nodes: tuple[str, ...]
    world_size: int | None
    started_ns: int | None
    ended_ns: int | None
    outcome: str
    over: bool
    reason: str | None
    first_step: int | None
    last_step: int | None
    cwd: str | None = None
    first: FirstFailure | None = None
    same_time: Sequence[tuple[FailedWorker, Doubt]] = ()
    failed: Sequence[FailedWorker] = ()
    others: Sequence[FailedWorker] = ()
    following: Mapping[str, Sequence[Follower]] = field(default_factory=dict)
    places: Triage | None = None
    triage: Triage | None = None
    collectives: Judgement | None = None
    by_collectives: bool = False
    standstill: Standstill | None = None
    scheduler: str | None = None
    recovered: bool = False
    cost: Cost | None = None
    optimizer_steps: tuple[int, int] | None = None

    @property
    def failed_ranks(self) -> set[int]:
        """The ranks that failed by themselves."""
        return {s.rank for s in self.failed} | {each.rank for group in self.following.values() for each in group}
