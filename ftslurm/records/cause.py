"""Causes of an attempt's end, and the policies by which it is followed by a requeue (see `ftslurm.job_end.requeue`)."""

from __future__ import annotations

SUCCEEDED = "succeeded"
FAILURE = "failure"
"""A rank failed, and no restart is left."""
HANG = "hang"
"""The same of a rank that hung."""
NON_RETRYABLE = "non-retryable"
"""It would fail again: wrong usage, a missing module, the same failure at start in each round, exit code 78."""
NODE = "node"
"""Nodes or agents were lost, or never joined, and too few are left."""
UNHEALTHY = "unhealthy"
"""Too few healthy nodes."""
NETWORK = "network"
"""The master of a round could not be reached, again and again."""
INTERRUPTED = "interrupted"
"""A signal from outside, whose origin is not known (yet): Slurm's data turn it into one of the following causes."""
PREEMPTED = "preempted"
TIME_LIMIT = "time-limit"
NOTICE = "notice"
"""A notice of `--stop-when`: a node leaves, or the site asks for it."""
REQUEUED = "requeued"
"""Slurm had already requeued the job: by `scontrol requeue`, a preemption, or the failure of a node."""
CANCELLED = "cancelled"
"""A user stopped it: scancel, Ctrl-C."""
UNKNOWN = "unknown"
"""Not recorded."""

CAUSES = (
    *(SUCCEEDED, FAILURE, HANG, NON_RETRYABLE, NODE, UNHEALTHY, NETWORK),
    *(INTERRUPTED, PREEMPTED, TIME_LIMIT, NOTICE, REQUEUED, CANCELLED, UNKNOWN),
)

NEVER, IF_INTERRUPTED, IF_NODE, ANY = "never", "interrupted", "node", "any"
REQUEUE_POLICIES = (NEVER, IF_INTERRUPTED, IF_NODE, ANY)
"""Values of `--requeue`; each includes the causes of those before it."""
