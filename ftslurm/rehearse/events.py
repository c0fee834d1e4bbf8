"""The events that can be rehearsed."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        name: on the command line.
        title: in the verdict, behind "ready for".
        what: what is done, with `{target}`: a rank or a node.
        summary: what it stands for, for ``--help``.
        stops_run: it stops the whole run, and a further attempt begins.
    """

    name: str
    title: str
    what: str
    summary: str
    stops_run: bool = False


PREEMPT = Event(
    "preempt",
    "preemption",
    "SIGTERM to the agents",
    "SIGTERM to all agents, SIGKILL when --grace is over; then a new attempt",
    stops_run=True,
)
TIMEOUT = Event(
    "timeout",
    "the time limit",
    "the time limit comes near",
    "the job's end comes near: the ranks are asked to stop, SIGTERM when --grace is over; then a new attempt",
    stops_run=True,
)
NODE_LOSS = Event(
    "node-loss",
    "the loss of a node",
    "SIGKILL of all processes of node {target}",
    "SIGKILL of the last node's guardian, agent and ranks; without a spare a new attempt follows",
)
OOM = Event(
    "oom",
    "out of memory",
    "SIGKILL of {target}, which stands for the kernel's out-of-memory kill",
    "SIGKILL of a rank, which stands for the kernel's out-of-memory kill",
)
HANG = Event("hang", "a hang", "SIGSTOP of {target}", "SIGSTOP of a rank; --hang-timeout is 10 unless given")
RANK_DEATH = Event("rank-death", "the death of a rank", "SIGSEGV to {target}", "SIGSEGV to a rank, as of a crash")

EVENTS = {event.name: event for event in (PREEMPT, TIMEOUT, NODE_LOSS, OOM, HANG, RANK_DEATH)}
