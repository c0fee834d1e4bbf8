"""A rank's record of its collectives: ``rounds/<round>/ranks/<rank>/collectives.json``.

What torch's flight recorder of that rank held at one moment, reduced by `ftslurm.monitor.flight.reduce`. Names are
torch's own. Source: torch, ``torch/csrc/distributed/c10d/FlightRecorder.hpp`` and its ``FlightRecorderDetail.hpp``.
"""

from __future__ import annotations

from ftslurm.dataclasses import dataclass

SOCKET, DUMP, NONE = "socket", "dump", "none"
SOURCES = (SOCKET, DUMP, NONE)


@dataclass(frozen=True)
class Collective:
    """One entry: a collective or a point-to-point operation that the rank has called.

    Attributes:
        collective_seq_id: number of the collective in its group, from 1; every rank of the group counts the same
            way. A point-to-point operation has that of the last collective before it.
        p2p_seq_id: number of the point-to-point operation in its group; 0: none so far.
        op_id: number of the operation in its group, both kinds together.
        profiling_name: backend and operation, ``gloo:all_reduce``, ``nccl:send 0->1``.
        process_group: name and description of its group, ``("0", "default_pg")``. Every group has another name.
        time_created_ns: when the rank called it, nanoseconds since the epoch by the node's clock.
        input_sizes, output_sizes: shapes; input_dtypes, output_dtypes: torch's names of C++ types, ``Float``.
        state: ``scheduled``, ``started``, ``completed``. Gloo knows no other than ``scheduled``.
        retired: torch counts it as done; with gloo the only sign of completion.
        pg_id: key of its group in `Trace.pg_status`.
        time_discovered_started_ns, time_discovered_completed_ns: when torch noticed that; None: it did not.
        timeout_ms: of the operation.
    """

    collective_seq_id: int
    p2p_seq_id: int
    op_id: int
    profiling_name: str
    process_group: tuple[str, str]
    time_created_ns: int
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    pg_id: int | None = None
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    timeout_ms: int | None = None

    SPARSE = True


@dataclass(frozen=True)
class GroupConfig:
    """A process group as the recorder knows it: its description and its ranks, by their global numbers.

    Without ranks, they are not known, or are more than a thousand from 0 on.
    """

    desc: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroupStatus:
    """The newest collectives of a group on this rank by their `collective_seq_id`; None: none, or unknown."""

    last_enqueued_collective: int | None = None
    last_started_collective: int | None = None
    last_completed_collective: int | None = None


@dataclass(frozen=True)
class Trace:
    """The recorder's content.

    Attributes:
        entries: oldest first; at most the newest ones of each group, and those that are not retired.
        pg_config: by the group's name. With gloo, groups are missing in it, unless the source is DUMP.
        pg_status: by the group's `pg_id`, as text.
        left_out: number of the recorder's entries that were left out of `entries`.
        version: of the recorder's document.
    """

    entries: tuple[Collective, ...]
    pg_config: dict[str, GroupConfig]
    pg_status: dict[str, GroupStatus]
    left_out: int = 0
    version: str = ""


@dataclass(frozen=True)
class FlightRecord:
    """The record of one rank's collectives; also of a rank whose recorder gave nothing.

    Attributes:
        run: the run's id.
        time_ns: when it was taken, nanoseconds since the epoch by the node's clock.
        source: one of `SOURCES`. SOCKET: the rank was asked while it ran. DUMP: an exception or torch's abort ended it,
            and it left this before; gloo then counts the collective that failed as retired, the last one that
            the rank called. NONE: there is no `trace`.
        trouble: why there is no trace, or not all of it.
        torch: version of the rank's torch; None: unknown.
        trace: the recorder's content.
        step: the last training step that the rank had reported.
        took_s: seconds from the request to the answer.
        after: why ftslurm may have stopped ranks of the round before, on this node or others: what the trace shows may
            then be its own doing. None: it had stopped none.
    """

    run: str
    round: int
    node: str
    rank: int
    time_ns: int
    source: str
    trouble: str | None = None
    torch: str | None = None
    trace: Trace | None = None
    step: int | None = None
    took_s: float | None = None
    after: str | None = None

    SCHEMA, VERSION = "ftslurm/collectives", 1
    CHOICES = (("source", SOURCES),)
