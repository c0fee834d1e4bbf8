"""Records of a run's events: the lines of its event log, and that a command was started for one.

The log: ``events/<term>.jsonl``, ``events/<node>.<incarnation>.jsonl``. A command: in the attempt's ``events``.
"""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class LoggedEvent:
    """An event of a run, one line of JSON; what does not belong to its kind is None and left out.

    Attributes:
        event: its kind, one of `ftslurm.event_log.entries.KINDS`.
        attempt: in which it happened.
        text: one line.
        time_ns: of the event, by the clock of the node that noticed it; None only until it is written.
        round: None: it belongs to the attempt as a whole.
        term: the coordinator's term in which it was written; None: not by the coordinator.
        node: the node that it is about.
        rank: the failed or hung rank.
        step: of that rank, or at which all ranks leave.
        nodes, joined, left: Slurm's node lists: of the round, and how it differs from the one before.
        world_size: ranks of the round.
        outcome: of a round, an attempt, or a requeue.
        cause: of a failure (its kind), a stop, or an end.
        exit_code: of the rank, or of the attempt.
        signal: that ended the rank.
        restarts_used, max_restarts: of the restart budget.
        until_ns: end of an exclusion.
    """

    event: str
    attempt: str
    text: str
    time_ns: int | None = None
    round: int | None = None
    term: int | None = None
    node: str | None = None
    rank: int | None = None
    step: int | None = None
    nodes: str | None = None
    joined: str | None = None
    left: str | None = None
    world_size: int | None = None
    outcome: str | None = None
    cause: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    restarts_used: int | None = None
    max_restarts: int | None = None
    until_ns: int | None = None

    SCHEMA, VERSION = "ftslurm/logged-event", 1
    SPARSE = True


@dataclass(frozen=True)
class EventRecord:
    """A command was started for the event. The process that has written this starts it, and no other one.

    Attributes:
        event: its name, see `ftslurm.hooks.events`.
        round: 0: the attempt as a whole.
        node: where the command runs.
        nonce: of the process that starts it.
        time_ns: when, by that node's clock.
        text: of the event, one line.
    """

    event: str
    attempt: str
    round: int
    node: str
    nonce: str
    time_ns: int
    text: str

    SCHEMA, VERSION = "ftslurm/event", 1
