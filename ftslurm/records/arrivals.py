"""A node's record of when its ranks arrived at collectives: ``rounds/<round>/arrivals/<node>.json``."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class GroupArrivals:
    """The arrivals of one rank at the collectives of one process group.

    Attributes:
        group: the group's name, the same on all its ranks.
        steps: the newest ones, oldest first. Each is a list: the numbers of the first and the last collective of the
            group in that step, which all ranks count alike, and the arrivals at those of
            `ftslurm.monitor.arrivals.positions`, in microseconds since the rank's last step ended.
    """

    group: str
    steps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RankArrivals:
    """One rank.

    Attributes:
        step_us: its usual time from the end of a step to the end of the next, microseconds.
        transfers: it also calls point-to-point operations, in which it waits for certain ranks.
    """

    rank: int
    step_us: int
    groups: tuple[GroupArrivals, ...]
    transfers: bool = False

    SPARSE = True


@dataclass(frozen=True)
class ArrivalsRecord:
    """The newest sampled steps of a node's ranks; times by the node's clock, since the epoch."""

    round: int
    node: str
    time_ns: int
    ranks: tuple[RankArrivals, ...]

    SCHEMA, VERSION = "ftslurm/arrivals", 1
