"""An orderly stop: why the run is to stop, the step at which all ranks leave, and each node's answer to a proposal."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.records.codec import write_record

SIGNAL, TIME_LIMIT, PREEMPTED, NOTICE, USER, DRAIN = "signal", "time-limit", "preempted", "notice", "user", "drain"
STOP_CAUSES = (SIGNAL, TIME_LIMIT, PREEMPTED, NOTICE, USER, DRAIN)

ANY_STEP = -(2**62)
"""The proposed step while no rank has called `should_stop` with a step: each leaves at its first call."""


@dataclass(frozen=True)
class StopRequest:
    """A node's request to stop the run; its ranks may save first.

    Attributes:
        cause: one of STOP_CAUSES.
        reason: one line for the user.
        time_ns: when it arose, by that node's clock.
        signal: the signal ("SIGTERM"), if the cause is one.
        grace_s: seconds until that node kills its ranks; None: it does not.
    """

    cause: str
    reason: str
    time_ns: int
    signal: str | None = None
    grace_s: float | None = None

    CHOICES = (("cause", STOP_CAUSES),)


@dataclass(frozen=True)
class StopVote:
    """A node's answer to a proposal of the coordinator, as its ranks stand.

    Attributes:
        round, proposal: what it answers; proposal 0: no step is proposed yet.
        polling: a rank has called `should_stop`.
        step: the highest step with which a rank has called it; None: none has with a step.
        step_s: seconds between two calls of its fastest rank; None: unknown.
        passed: a rank has passed the proposed step, so that the ranks cannot all leave there.
        left: its ranks that have left by `should_stop`.
        trained_on: its ranks that took further steps, although `should_stop` had returned True.
        saved: its ranks that have completed a checkpoint (section "checkpoint") since the request, and have not failed.
        unasked: its ranks that have never called `should_stop`.
        late: which ranks have not left, and where they are, as text; None: none.
        saving: the rank that `late` names is in the section "checkpoint".
    """

    round: int
    proposal: int
    polling: bool = False
    step: int | None = None
    step_s: float | None = None
    passed: bool = False
    left: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    unasked: tuple[int, ...] = ()
    trained_on: tuple[int, ...] = ()
    late: str | None = None
    saving: bool = False


@dataclass(frozen=True)
class Stop:
    """The orderly stop of the run, as the coordinator decides it.

    Attributes:
        cause, reason, signal, grace_s: see `StopRequest`.
        node: where the request arose; None: outside the nodes' agents.
        requested_ns: when the coordinator received it, by its clock.
        round: the round that is to stop.
        proposal: number of the proposed step; 0: none yet. Each further proposal has a higher step.
        step: the proposed step, ANY_STEP for each rank's next call.
        committed: all ranks leave at `step`, at the first call of `should_stop` with this step or a higher one.
        orderly: the run is closed, and all ranks have ended with success, at least one of them by `should_stop`: a
            script may have one rank ask, and the others follow it.
        result: what became of the ranks, as text; None: the run is not closed, or it is unknown.
        save_cut: the grace ended before a save did.
    """

    cause: str
    reason: str
    node: str | None
    requested_ns: int
    round: int
    signal: str | None = None
    grace_s: float | None = None
    proposal: int = 0
    step: int | None = None
    committed: bool = False
    orderly: bool = False
    result: str | None = None
    save_cut: bool = False

    CHOICES = (("cause", STOP_CAUSES),)


@dataclass(frozen=True)
class JobEnd:
    """When Slurm ends the job.

    Attributes:
        end_ns: the time limit, extensions included, or the end of the grace of a preemption; since the epoch, by
            Slurm's clock. None: there is none.
        preempted: the job is being preempted.
        draining: nodes of the job that are being drained.
        time_ns: when Slurm answered, by this node's clock.
    """

    end_ns: int | None
    preempted: bool
    draining: tuple[str, ...]
    time_ns: int


@dataclass(frozen=True)
class StopFile:
    """A user's request to stop the run, made by ``ftslurm stop``: ``nodes/stop.request``.

    Attributes:
        attempt: that is to stop.
        reason: one line for the user.
        time_ns: when, by the clock of the user's host.
    """

    attempt: str
    reason: str
    time_ns: int

    SCHEMA, VERSION = "ftslurm/stop", 1

    def encode(self) -> bytes:
        """Return it as a file's content."""
        return write_record(self)
