"""What happens to an agent and what it does about it: the words between the loop and the machine."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass, replace
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import Failure, Hang, Master


@dataclass(frozen=True)
class Moment:
    """Now, by both clocks: `s` monotonic seconds, `ns` nanoseconds since the epoch."""

    s: float
    ns: int


@dataclass(frozen=True)
class Assignment:
    """This node's part in a round; `nodes` are those that take part, in the order of their group ranks."""

    round: int
    attempt: str
    group_rank: int
    group_world_size: int
    first_rank: int
    slots: int
    world_size: int
    master: Master
    restart_count: int
    max_restarts: int
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """What came of a `Prepare`.

    Attributes:
        problem: why the round cannot begin here; None: it can.
        unreachable: the problem is that the round's master cannot be reached.
    """

    round: int
    problem: str | None = None
    unreachable: bool = False


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker ended, as the kernel and its error record have it.

    Attributes:
        ended_ns: when the kernel reported it.
        recorded_ns: when the worker wrote its own error record; None: it wrote none.
        failure: the failure in short; None when it ended with code 0.
    """

    local_rank: int
    exit_code: int | None
    signal: str | None
    ended_ns: int
    recorded_ns: int | None
    failure: Failure | None


# Actions


@dataclass(frozen=True)
class Prepare:
    """Make the round's directories; answer with `on_prepared`."""

    assignment: Assignment


@dataclass(frozen=True)
class Spawn:
    """Start all workers; answer with `on_spawn_failed` for one that cannot be started."""

    assignment: Assignment


@dataclass(frozen=True)
class Signal:
    """Send a signal to these workers' main processes."""

    local_ranks: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class CollectStacks:
    """Collect the stacks of these workers; answer with `on_shown` when that is done, or has taken too long."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True)
class Compare:
    """Find what this failure is compared by with later ones; answer with `on_compared`."""

    failure: Failure


@dataclass(frozen=True)
class StartStandbys:
    """Start standby workers in these slots; answer with `on_standby_ended` for one that ends before it is used."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True)
class KillLeftovers:
    """Kill everything that workers left behind, and standby workers; answer with `on_swept` when nothing is left."""


@dataclass(frozen=True)
class Publish:
    """Change this node's word; only the given fields change."""

    status: str
    round: int
    failure: Failure | None
    reason: str | None
    stop_signal: str | None
    hang: Hang | None = None
    stacks_collected: int = 0
    new_port: bool = False


@dataclass(frozen=True)
class RecordRound:
    """Write down how the round went on this node."""

    assignment: Assignment
    outcome: str
    stop_reason: str | None
    stop_ns: int | None
    stopped: frozenset[int]
    killed: frozenset[int]
    failed: frozenset[int]
    hang: Hang | None
    over: bool


@dataclass(frozen=True)
class Log:
    """Tell the user one line."""

    text: str


@dataclass(frozen=True)
class Exit:
    """Leave with this code once everything said has been published."""

    code: int


def changed_record(record: NodeRecord, change: Publish) -> NodeRecord:
    """Return a node's word with what `change` changes of it."""
    return replace(
        record,
        status=change.status,
        round=change.round,
        failure=change.failure,
        reason=change.reason,
        stop_signal=change.stop_signal,
        hang=change.hang,
        stacks_collected=change.stacks_collected,
    )


Action = (
    Prepare
    | Spawn
    | StartStandbys
    | Signal
    | CollectStacks
    | Compare
    | KillLeftovers
    | Publish
    | RecordRound
    | Log
    | Exit
)
