"""A user's request for the stacks of a running job (``ftslurm stacks``), and a node's answer to it."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.records.flight import FlightRecord


@dataclass(frozen=True)
class StacksFile:
    """A user's request: ``nodes/stacks.request``, removed by the command that has made it.

    Attributes:
        attempt, round: whose ranks.
        time_ns: when, by the clock of the user's host; it distinguishes requests.
    """

    attempt: str
    round: int
    time_ns: int

    SCHEMA, VERSION = "ftslurm/stacks-request", 1


@dataclass(frozen=True)
class RankAnswer:
    """One rank's part of an answer.

    Attributes:
        stacks: in the form of ``stacks.txt``, see `ftslurm.monitor.stacks_file`.
        collectives: the record of its collectives; None: it is not recorded.
    """

    rank: int
    stacks: str
    collectives: FlightRecord | None = None


@dataclass(frozen=True)
class StacksAnswer:
    """A node's answer to the newest request: ``asked/<node>.json``.

    Attributes:
        request_ns: `StacksFile.time_ns` of the request.
        time_ns: when it was complete, by the node's clock.
        ranks: those that are alive.
    """

    node: str
    round: int
    request_ns: int
    time_ns: int
    ranks: tuple[RankAnswer, ...] = ()

    SCHEMA, VERSION = "ftslurm/stacks-answer", 1
