"""Events of an agent and its actions on them: the vocabulary shared by the loop and the machine."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.records.state import Failure, Hang, Master, Participant, State
from ftslurm.records.stop import StopRequest
from ftslurm.terminal import INFO


@dataclass(frozen=True)
class Moment:
    """Now, by both clocks: `s` monotonic seconds, `ns` nanoseconds since the epoch."""

    s: float
    ns: int


@dataclass(frozen=True)
class Assignment:
    """This node's part in a round; `nodes` take part, in the order of their group ranks; `avoid`: bad checkpoints.

    Attributes:
        first_role_rank, role_world_size: as `first_rank` and `world_size`, of the nodes with this node's role; None and
            0: all have the same role.
    """

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
    avoid: tuple[str, ...] = ()
    first_role_rank: int | None = None
    role_world_size: int = 0


def assignment_of(state: State, part: Participant) -> Assignment | None:
    """Return a participant's part in the state's round; None while the round has no master."""
    if state.master is None:
        return None
    same = [one for one in state.participants if one.role == part.role]
    return Assignment(
        state.round,
        state.attempt,
        part.group_rank,
        len(state.participants),
        part.first_rank,
        part.slots,
        state.world_size,
        state.master,
        state.restarts_used,
        state.max_restarts,
        tuple(participant.node for participant in state.participants),
        state.avoid,
        *(
            (sum(one.slots for one in same if one.group_rank < part.group_rank), sum(one.slots for one in same))
            if len(same) < len(state.participants)
            else ()
        ),
    )


@dataclass(frozen=True)
class Prepared:
    """Result of a `Prepare`.

    Attributes:
        problem: why the round cannot begin here; None: it can.
        unreachable: the round's master cannot be reached.
    """

    round: int
    problem: str | None = None
    unreachable: bool = False


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker ended, according to the kernel and its error record.

    Attributes:
        ended_ns: when the kernel reported it.
        recorded_ns: when the worker wrote its own error record; None: it wrote none.
        failure: summary of the failure; None when it ended with code 0.
        by_itself: it ended with code 0 before it was sent a signal or left for a stop.
    """

    local_rank: int
    exit_code: int | None
    signal: str | None
    ended_ns: int
    recorded_ns: int | None
    failure: Failure | None
    by_itself: bool = False


@dataclass(frozen=True)
class SignalReceived:
    """A signal from outside arrived at the agent."""

    number: int


@dataclass(frozen=True)
class GuardianEnded:
    """The guardian was killed."""


@dataclass(frozen=True)
class StandbyEnded:
    """A standby worker has ended before it was used; ``by_itself``: it was not found to be unusable."""

    local_rank: int
    by_itself: bool = True


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
    """Collect stacks and records of collectives of these workers; answer with `on_stacks_collected` in bounded time.

    Attributes:
        stop: why they are stopped from outside, before which this is done; None: a rank hangs.
        after: why ftslurm may have stopped ranks of the round before, see `FlightRecord`; None: it has not.
        urgent: the ranks need the time, as those that Slurm kills soon.
    """

    local_ranks: tuple[int, ...]
    stop: str | None = None
    after: str | None = None
    urgent: bool = True


@dataclass(frozen=True)
class Compare:
    """Compute the signature by which this failure is compared with later ones; answer with `on_compared`."""

    failure: Failure


@dataclass(frozen=True)
class StartStandbys:
    """Start standby workers in these slots; answer with `on_standby_ended` for one that ends before it is used."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True)
class KillLeftovers:
    """Kill everything that workers left behind; answer with `on_swept` when nothing is left.

    Attributes:
        keep_standbys: standby workers stay, for the next round.
    """

    keep_standbys: bool = False


@dataclass(frozen=True)
class DropStandbys:
    """End all standby workers: no round follows here."""


@dataclass(frozen=True)
class Publish:
    """Publish the node record with these values.

    Attributes:
        new_port: reserve a port for the next round.
        stop_request: see `NodeRecord`.
    """

    status: str
    round: int = 0
    failure: Failure | None = None
    reason: str | None = None
    stop_signal: str | None = None
    hang: Hang | None = None
    stacks_collected: int = 0
    new_port: bool = False
    stop_request: StopRequest | None = None


@dataclass(frozen=True)
class RecordRound:
    """Record how the round went on this node."""

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
class RecordFailure:
    """Publish the error record of a worker that has failed; ``stopped``: ftslurm stopped it, it is no failure."""

    local_rank: int
    stopped: bool


@dataclass(frozen=True)
class ForgetRound:
    """Forget the workers of the round and their node-local files."""


@dataclass(frozen=True)
class Log:
    """Log one line for the user; `level`: of `ftslurm.terminal`."""

    text: str
    level: int = INFO


@dataclass(frozen=True)
class Exit:
    """Leave with this code once everything pending has been published."""

    code: int


Action = (
    Prepare
    | Spawn
    | StartStandbys
    | DropStandbys
    | Signal
    | CollectStacks
    | Compare
    | KillLeftovers
    | Publish
    | RecordRound
    | RecordFailure
    | ForgetRound
    | Log
    | Exit
)
