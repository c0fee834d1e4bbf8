"""Interface of the queries and changes that ftslurm needs of Slurm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts, NodeFacts


class SlurmControl(Protocol):
    """Slurm operations that ftslurm needs. Each may take seconds, and may raise any SlurmError."""

    def job(self, job_id: str) -> JobFacts | None:
        """Return the facts of a job `123` or array task `123_4`; None: Slurm knows no such job.

        Raises:
            ValueError: `job_id` is neither form.
        """

    def accounted(self, job_id: str) -> JobFacts | None:
        """Return the accounting's record of a job: while scontrol shows COMPLETING, it has the final state and user.

        None: there is no accounting, or no record of this job.
        """

    def kill_wait_s(self) -> int | None:
        """Return the seconds from Slurm's SIGTERM to its SIGKILL (KillWait); None: unknown."""

    def preemption_grace_s(self, partition: str) -> int | None:
        """Return the seconds between Slurm's first SIGTERM at a preemption and its second one (GraceTime).

        None: jobs of the partition are not preempted, or it is unknown. A quality of service may have its own.

        Raises:
            ValueError: not a valid partition name.
        """

    def max_batch_requeue(self) -> int | None:
        """Return after how many requeues Slurm holds a job (MaxBatchRequeue); None: this version does not print it."""

    def requeue(self, job_id: str) -> None:
        """Stop and requeue a job or one array task, given by `SlurmJob.scontrol_id`.

        Raises:
            ValueError: `job_id` is neither `123` nor `123_4`.
            SlurmUnknownJob: there is no such job.
            SlurmRefused: not permitted, or the job cannot be requeued.
        """

    def allow_requeue(self, job_id: str) -> None:
        """Let a job be requeued that was submitted with --no-requeue, or at a site with JobRequeue=0.

        Permitted to the job's owner (22.05). Raises as `requeue`.
        """

    def cancel(self, job_id: str) -> None:
        """End a job or one array task; one that has already ended is fine.

        Raises:
            ValueError: `job_id` is neither `123` nor `123_4`.
            SlurmRefused: not permitted, or there is no such job.
        """

    def cancel_pending(self, job_name: str) -> None:
        """Cancel this user's pending jobs of that name.

        Raises:
            SlurmRefused: not permitted.
        """

    def complete(self, job_id: str, exit_code: int) -> None:
        """End a job as if its batch script had ended with `exit_code`; one that has already ended is fine.

        Args:
            job_id: a number; for an array task its own number, not `123_4`.

        Raises:
            ValueError: `job_id` is no number.
            SlurmRefused: not permitted, there is no such job, or Slurm's library is missing.
        """

    def node(self, name: str) -> NodeFacts | None:
        """Return the facts of a node; None: Slurm knows no such node.

        Raises:
            ValueError: not a valid node name.
        """

    def node_states(self, names: Iterable[str]) -> dict[str, str]:
        """Return the states of these nodes in Slurm's spelling (`DOWN+DRAIN`); unknown nodes are omitted.

        Raises:
            NodeListError: (a ValueError) a name is no valid node name.
        """

    def partition_nodes(self, partition: str) -> dict[str, str]:
        """Return the nodes of a partition, or of several (`a,b`), and their states in sinfo's spelling.

        Raises:
            ValueError: not a valid partition name.
        """

    def exclude_nodes(self, job_id: str, nodes: Iterable[str]) -> None:
        """Replace the excluded nodes (ExcNodeList) of a job that is pending or being requeued.

        Permitted to the job's owner. Slurm accepts every list: with too few nodes left, the job waits for ever.

        Raises:
            ValueError: `job_id` is neither `123` nor `123_4`, or a name is no valid node name.
            SlurmRefused: the job runs or has ended, a node is unknown, or it is not permitted.
        """

    def drain(self, node: str, reason: str) -> str | None:
        """Drain a node: no further job is started on it until an administrator resumes it; running jobs continue.

        A node that is already drained, down or failing keeps its state and reason.

        Returns:
            None: it is drained now. Otherwise its existing state and reason.

        Raises:
            ValueError: not a valid node name.
            SlurmRefused: unknown node, or this user lacks permission, which Slurm's operators have.
        """
