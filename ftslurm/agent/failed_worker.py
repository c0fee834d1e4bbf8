"""A failed worker with its error record: what the agent knows about it when it publishes both (pure)."""

from __future__ import annotations

from ftslurm.agent.workers import Worker
from ftslurm.dataclasses import dataclass
from ftslurm.failures.record import summary
from ftslurm.failures.retryability import retryability
from ftslurm.records.error import ErrorRecord
from ftslurm.records.state import Failure


@dataclass(frozen=True)
class FailedWorker:
    """A worker that has failed, or hangs.

    Attributes:
        worker: the process.
        observed: the agent's own observations, by which a record of the worker's own is completed; see
            `ftslurm.failures.record.complete`.
        record: the error record as it stands.
    """

    worker: Worker
    observed: ErrorRecord
    record: ErrorRecord

    @property
    def recorded_ns(self) -> int | None:
        """When the worker wrote the record itself; None: its agent composed it."""
        return self.record.recorded_ns

    def failure(self) -> Failure:
        """Return the failure for the node record and the state; the worker has ended."""
        assert self.worker.ended_ns is not None
        life_s = (self.worker.ended_ns - self.worker.started_ns) / 1e9
        return Failure(**summary(self.record), **retryability(self.record, life_s))
