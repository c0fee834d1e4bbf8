"""An in-memory Slurm with configurable answers that records all calls."""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.dataclasses import replace
from ftslurm.slurm.errors import SlurmError, SlurmRefused, SlurmUnknownJob
from ftslurm.slurm.facts import JobFacts, NodeFacts, check_job_id, select_job
from ftslurm.slurm.nodelist import compress

__all__ = ["FakeSlurm"]


class FakeSlurm:
    """A SlurmControl for tests.

    Add jobs with `put`, set `kill_wait` and `nodes`, make operations fail with `fail`; `boots` has the
    boot times of nodes (nanoseconds since the epoch).
    `calls` has every call in order, as (operation, argument), including failed ones.

    Args:
        jobs: the initial jobs.
        kill_wait: the result of `kill_wait_s`.
        nodes: name to state.
    """

    def __init__(
        self, jobs: Iterable[JobFacts] = (), kill_wait: int | None = 30, nodes: dict[str, str] | None = None
    ) -> None:
        self.jobs: dict[str, JobFacts] = {}
        self.accounting: dict[str, JobFacts] = {}
        self.kill_wait = kill_wait
        self.most_requeues: int | None = None
        self.nodes = dict(nodes or {})
        self.reasons: dict[str, str] = {}
        self.boots: dict[str, int] = {}
        self.calls: list[tuple[str, str]] = []
        self._failures: dict[str, list[SlurmError]] = {}
        self._broken: dict[str, SlurmError] = {}
        for facts in jobs:
            self.put(facts)

    def put(self, facts: JobFacts) -> None:
        """Add a job, or replace its data."""
        self.jobs[facts.job_id] = facts

    def fail(self, operation: str, error: SlurmError, times: int | None = 1) -> None:
        """Make the next `times` calls (None: all) of `operation` ("job", "requeue", ...) raise `error`."""
        if not callable(getattr(self, operation, None)):
            raise ValueError(f"SlurmControl has no operation {operation!r}")
        if times is None:
            self._broken[operation] = error
        else:
            self._failures.setdefault(operation, []).extend([error] * times)

    def heal(self) -> None:
        """Remove all injected failures."""
        self._failures.clear()
        self._broken.clear()

    def job(self, job_id: str) -> JobFacts | None:
        """See SlurmControl."""
        self._called("job", check_job_id(job_id))
        return self._find(job_id)

    def accounted(self, job_id: str) -> JobFacts | None:
        """See SlurmControl; returns the entry of `accounting`."""
        self._called("accounted", check_job_id(job_id))
        return self.accounting.get(job_id)

    def kill_wait_s(self) -> int | None:
        """See SlurmControl."""
        self._called("kill_wait_s", "")
        return self.kill_wait

    def preemption_grace_s(self, partition: str) -> int | None:
        """See SlurmControl."""
        self._called("preemption_grace_s", partition)
        return None

    def allow_requeue(self, job_id: str) -> None:
        """See SlurmControl."""
        self._called("allow_requeue", check_job_id(job_id))
        facts = self._find(job_id)
        if facts is None:
            raise SlurmUnknownJob(f"no job {job_id}")
        self.put(replace(facts, requeue=True))

    def cancel_pending(self, job_name: str) -> None:
        """See SlurmControl."""
        self._called("cancel_pending", job_name)

    def max_batch_requeue(self) -> int | None:
        """See SlurmControl."""
        self._called("max_batch_requeue", "")
        return self.most_requeues

    def cancel(self, job_id: str) -> None:
        """See SlurmControl. The job is then CANCELLED."""
        self._called("cancel", check_job_id(job_id))
        facts = self._find(job_id)
        if facts is None:
            raise SlurmUnknownJob(f"`scancel {job_id}` failed (exit 1): Invalid job id specified")
        if not facts.ended:
            self.put(replace(facts, state="CANCELLED"))

    def complete(self, job_id: str, exit_code: int) -> None:
        """See SlurmControl. The job is then COMPLETED, or FAILED with that exit code."""
        self._called("complete", f"{check_job_id(job_id)} {exit_code}")
        facts = self._find(job_id)
        if facts is None:
            raise SlurmRefused("`-m ftslurm.slurm.complete` failed (exit 1): Invalid job id specified")
        if not facts.ended:
            self.put(replace(facts, state="FAILED" if exit_code else "COMPLETED", exit_code=(exit_code, 0)))

    def node(self, name: str) -> NodeFacts | None:
        """See SlurmControl."""
        self._called("node", name)
        if name not in self.nodes:
            return None
        return NodeFacts(name, self.nodes[name], self.reasons.get(name), self.boots.get(name))

    def requeue(self, job_id: str) -> None:
        """See SlurmControl. The job is then pending, with one restart more and no nodes, as in Slurm."""
        self._called("requeue", check_job_id(job_id))
        facts = self._find(job_id)
        if facts is None:
            raise SlurmUnknownJob(f"`scontrol requeue {job_id}` failed (exit 1): Invalid job id specified")
        self.put(
            replace(
                facts,
                state="PENDING",
                reason="BeginTime",
                exit_code=None,
                restarts=(facts.restarts or 0) + 1,
                node_list=(),
                start_ns=None,
                end_ns=None,
            )
        )

    def node_states(self, names: Iterable[str]) -> dict[str, str]:
        """See SlurmControl."""
        names = list(names)
        self._called("node_states", compress(names))
        return {name: self.nodes[name] for name in names if name in self.nodes}

    def partition_nodes(self, partition: str) -> dict[str, str]:
        """See SlurmControl; every partition has all nodes."""
        self._called("partition_nodes", partition)
        return {name: state.lower() for name, state in self.nodes.items()}

    def exclude_nodes(self, job_id: str, nodes: Iterable[str]) -> None:
        """See SlurmControl. Refused, as in Slurm, for a job that runs or has ended."""
        names = tuple(nodes)
        self._called("exclude_nodes", f"{check_job_id(job_id)} {compress(names)}")
        facts = self._find(job_id)
        if facts is None:
            raise SlurmUnknownJob(f"`scontrol update JobId={job_id}` failed (exit 1): Invalid job id specified")
        if facts.state not in ("PENDING", "COMPLETING"):
            raise SlurmRefused(f"`scontrol update JobId={job_id}` failed (exit 1): Job is no longer pending execution")
        self.put(replace(facts, excluded=names))

    def drain(self, node: str, reason: str) -> str | None:
        """See SlurmControl; the reason is stored in `reasons`."""
        self._called("drain", node)
        if node not in self.nodes:
            raise SlurmRefused(f"Slurm knows no node {node}")
        facts = NodeFacts(node, self.nodes[node], self.reasons.get(node))
        if facts.is_out:
            return f"{node} is {facts.state} already" + (f": {facts.reason}" if facts.reason else "")
        self.nodes[node] += "+DRAIN"
        self.reasons[node] = reason
        return None

    def _find(self, job_id: str) -> JobFacts | None:
        found = select_job(self.jobs.values(), job_id)
        return found[-1] if found else None

    def _called(self, operation: str, argument: str) -> None:
        self.calls.append((operation, argument))
        if self._failures.get(operation):
            raise self._failures[operation].pop(0)
        if operation in self._broken:
            raise self._broken[operation]
