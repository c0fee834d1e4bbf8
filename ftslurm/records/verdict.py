"""Records of what follows from an attempt's end in Slurm: ``attempts/<attempt>/verdict.json``, and what came of it.

The verdicts of a run's attempts are its lineage: by them, budgets survive requeues and resubmissions.
"""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.records.cause import CAUSES

REQUEUE, BY_SLURM, END = "requeue", "by-slurm", "end"
ACTIONS = (REQUEUE, BY_SLURM, END)
"""The job is to be started again; Slurm itself does that; it is not."""

REQUEUED, RESUBMITTED, FAILED = "requeued", "resubmitted", "failed"
OUTCOMES = (REQUEUED, RESUBMITTED, BY_SLURM, FAILED)


@dataclass(frozen=True)
class AttemptVerdict:
    """What follows from the end of an attempt; published once, by an agent or, where none could, by ftsrun.

    Attributes:
        time_ns, node: when and where it was decided.
        cause: why the attempt ended (`ftslurm.records.cause`), with Slurm's data considered.
        text: the decision in one line, for the user; empty if there is nothing to say.
        exit_code: of the attempt, if the job is not started again.
        reached: the highest step of the run.
        gained: whether the attempt got further than the run had before; None: no step was ever reported.
        number, budget: number of requeues for this cause since the last gain, this one included, and the largest
            allowed; None: not limited.
    """

    attempt: str
    time_ns: int
    node: str
    action: str
    cause: str
    text: str
    exit_code: int
    reached: int | None = None
    gained: bool | None = None
    number: int = 0
    budget: int | None = None

    SCHEMA, VERSION = "ftslurm/verdict", 1
    CHOICES = (("action", ACTIONS), ("cause", CAUSES))


@dataclass(frozen=True)
class RequeueClaim:
    """Exclusive right to carry out an attempt's verdict: ``attempts/<attempt>/claim.json``, published once.

    Attributes:
        by: "ftsrun", or the node of an agent that acts in its place.
        nonce: of the process.
    """

    attempt: str
    time_ns: int
    by: str
    nonce: str

    SCHEMA, VERSION = "ftslurm/claim", 1


@dataclass(frozen=True)
class Requeued:
    """What came of the verdict: ``attempts/<attempt>/requeue.json``.

    Attributes:
        outcome: REQUEUED: the same job starts again; RESUBMITTED: as job `job_id`; BY_SLURM: it had been requeued
            already; FAILED: Slurm refused, see `problem`.
    """

    attempt: str
    time_ns: int
    outcome: str
    job_id: str | None = None
    problem: str | None = None

    SCHEMA, VERSION = "ftslurm/requeue", 1
    CHOICES = (("outcome", OUTCOMES),)
