"""The fenced state that all agents follow, and the types it shares with node records: phases, failures, hangs.

Facts only, and their JSON form; the decisions are in `fold` and `agent.machine`.
"""

from __future__ import annotations

from ftslurm.dataclasses import dataclass, replace
from ftslurm.monitor.timeouts import Learned
from ftslurm.records.cause import CAUSES, UNKNOWN
from ftslurm.records.codec import read_record, write_record
from ftslurm.records.stacks import StacksFile
from ftslurm.records.stop import JobEnd, Stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

READY, RUNNING, SUCCEEDED, FAILED, LEFT = "ready", "running", "succeeded", "failed", "left"
STATUSES = (READY, RUNNING, SUCCEEDED, FAILED, LEFT)
FORMING, CLOSED = "forming", "closed"
PHASES = (FORMING, RUNNING, CLOSED)

NODE_LOST, STOPPED = "node-lost", "stopped"
HANG = "hang"
SPAWN = "spawn"
UNREACHABLE = "unreachable"
BY_NODE, PERHAPS = "node", "perhaps"
HISTORY_KEPT = 100

EXIT_SUCCESS = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 75
"""Exit code (sysexits.h's EX_TEMPFAIL) of an orderly stop: all ranks left at an agreed step, to go on later."""
EXIT_DO_NOT_REQUEUE = 78
"""Exit code (sysexits.h's EX_CONFIG) of a worker that must be neither restarted nor requeued: it would fail again.

ftslurm uses it for a job that cannot start: its script or arguments are wrong, or all nodes lack what it needs.
"""


@dataclass(frozen=True)
class Failure:
    """Summary of one worker's failure.

    Attributes:
        kind: "exception", "exit", "signal", SPAWN, UNREACHABLE (the round's master, before the worker was started) or
            HANG.
        message: one line.
        step: the last training step that the script reported by `ftslurm.progress`, if any.
        at_start, non_retryable, on_any_node: retryability, see `ftslurm.failures.retryability`.
        blame: BY_NODE: its message names the node's hardware; PERHAPS: the node may be to blame; None: unlikely.
        since_ns: for a hang, time of the rank's last heartbeat, by its node's clock.
        signature: compared with another round's failure, see `ftslurm.failures.signature`; None: not comparable.
        leaving: it had left by `should_stop` before: perhaps its save has failed, and the others still save.
        by_peers: it lost a connection to other ranks, or waited for them: the cause may be with one of them.
    """

    round: int
    node: str
    rank: int
    local_rank: int
    time_ns: int
    kind: str
    exit_code: int | None
    signal: str | None
    message: str
    step: int | None
    at_start: bool = False
    non_retryable: str | None = None
    on_any_node: bool = False
    blame: str | None = None
    since_ns: int | None = None
    signature: str | None = None
    leaving: bool = False
    by_peers: bool = False


@dataclass(frozen=True)
class Hang:
    """An expired rank: before its round ends, the stacks of all ranks are collected.

    Attributes:
        time_ns: when its agent detected it, by that node's clock.
        what: the time-out that expired, as text.
        since_ns: time of the rank's last heartbeat, by that clock; None: unknown.
    """

    round: int
    node: str
    rank: int
    local_rank: int
    time_ns: int
    what: str
    step: int | None
    since_ns: int | None = None

    def failure(self) -> Failure:
        """Return it as an entry of the round history."""
        where = (self.round, self.node, self.rank, self.local_rank, self.time_ns)
        return Failure(*where, HANG, None, None, self.what, self.step, blame=PERHAPS, since_ns=self.since_ns)


DEFAULT_ROLE = "default"
"""The workers' ROLE_NAME without `--role`, as in torchrun."""


@dataclass(frozen=True)
class Lease:
    """The coordinator, which alone may write the state; `term` counts the changes of the lease."""

    node: str
    incarnation: str
    term: int


@dataclass(frozen=True)
class Participant:
    """A node of the current round and its ranks: `first_rank` to `first_rank + slots - 1`; `role` is its workers'."""

    node: str
    incarnation: str
    slots: int
    first_rank: int
    group_rank: int
    role: str = DEFAULT_ROLE

    SPARSE = True


@dataclass(frozen=True)
class Master:
    """Address and port where rank 0 of the round listens: the workers' MASTER_ADDR and MASTER_PORT."""

    address: str
    port: int


@dataclass(frozen=True)
class LostNode:
    """An agent that became silent, or left, during a round."""

    node: str
    incarnation: str
    round: int
    time_ns: int
    silent_s: float


@dataclass(frozen=True)
class RoundHistory:
    """Course and outcome of a round; times by the coordinator's clock.

    Attributes:
        outcome: RUNNING, SUCCEEDED, FAILED, NODE_LOST or STOPPED.
    """

    round: int
    attempt: str
    nodes: tuple[str, ...]
    world_size: int
    formed_ns: int
    ended_ns: int | None
    outcome: str
    reason: str | None
    failure: Failure | None


@dataclass(frozen=True)
class Closed:
    """End of the attempt: every agent exits with `exit_code`.

    Attributes:
        cause: one of `ftslurm.records.cause`.
    """

    outcome: str
    reason: str
    exit_code: int
    time_ns: int
    cause: str = UNKNOWN

    CHOICES = (("cause", CAUSES),)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, and the number of consecutive starts from it that failed without a step gained."""

    path: str
    starts: int


@dataclass(frozen=True)
class ClockOffset:
    """Difference to add to this node's time to get the server's; the true value is within `error_ns` of it.

    Attributes:
        offset_ns: server's clock minus this node's, nanoseconds.
        error_ns: half of the interval that contains the true value: round trip and granularity of the stamps.
        at_ns: when it was measured, by this node's clock.
    """

    offset_ns: int
    error_ns: int
    at_ns: int


@dataclass(frozen=True)
class State:
    """The fenced state: written by the coordinator alone, followed by all agents.

    Attributes:
        attempts: all attempts so far, the current one last.
        expected: the nodes of the allocation, in Slurm's order; empty if unknown.
        phase: FORMING (the next round), RUNNING (round `round`) or CLOSED.
        round: the newest formed round; 0 for none; continues across attempts.
        participants: of round `round`.
        lost: nodes lost in this attempt.
        history: the newest rounds, at most HISTORY_KEPT.
        admitted: the nodes present when the attempt's first round formed: its participants and spares.
        hang: the hang that ends round `round` once the stacks of all its ranks are collected; None without one.
        learned: time-outs learned in earlier rounds, requeues included; None before the first one has ended.
        stop: the orderly stop that is requested in this attempt; None: none is.
        job_end: when Slurm ends the job, as the coordinator knows; None: unknown.
        reached: the highest training step that the run's ranks have reported, as of the end of its newest round,
            requeues included; None: none has been reported.
        reached_before: the same, when the attempt began.
        loaded: the checkpoint from which the newest rounds were started, if they failed without a step gained.
        avoid: the checkpoints that are called bad, see `ftslurm.rendezvous.checkpoints`.
        stacks_request: a user's newest request for the stacks of a round's ranks; None: there was none.
        polled: the newest attempt in which a rank has called `should_stop`: the script takes notice of a stop, also
            before the ranks of a further round have called it. None: none has, or ranks of a later attempt have taken
            steps without.
    """

    run_id: str
    attempt: str
    attempts: tuple[str, ...]
    expected: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    max_restarts: int
    restarts_used: int
    coordinator: Lease
    phase: str
    round: int
    participants: tuple[Participant, ...]
    world_size: int
    master: Master | None
    lost: tuple[LostNode, ...]
    history: tuple[RoundHistory, ...]
    closed: Closed | None
    admitted: tuple[str, ...] = ()
    hang: Hang | None = None
    learned: Learned | None = None
    stop: Stop | None = None
    job_end: JobEnd | None = None
    reached: int | None = None
    reached_before: int | None = None
    loaded: Loaded | None = None
    avoid: tuple[str, ...] = ()
    polled: str | None = None
    stacks_request: StacksFile | None = None

    SCHEMA, VERSION = "ftslurm/state", 1
    CHOICES = (("phase", PHASES),)

    def encode(self) -> bytes:
        """Return it as the fenced cell's value."""
        return write_record(self)

    @staticmethod
    def decode(data: bytes, where: str) -> State:
        """Read it back; `BadFile` names `where` and what is wrong."""
        return read_record(State, data, where)

    def participant(self, node: str, incarnation: str) -> Participant | None:
        """Return that agent's participant entry of round `round`, None without one."""
        for participant in self.participants:
            if participant.node == node and participant.incarnation == incarnation:
                return participant
        return None

    @property
    def gained(self) -> bool | None:
        """Whether the attempt has got further than the run had before; None: no step was ever reported."""
        if self.reached is None:
            return None
        return self.reached_before is None or self.reached > self.reached_before

    def past(self, round_: int) -> RoundHistory | None:
        """Return that round's history entry, None if it is unknown (or no longer kept)."""
        return next((entry for entry in reversed(self.history) if entry.round == round_), None)


def with_history(state: State, entry: RoundHistory) -> State:
    """Return `state` with `entry` added, replacing that of the same round."""
    kept = tuple(old for old in state.history if old.round != entry.round)
    return replace(state, history=(*kept, entry)[-HISTORY_KEPT:])


@dataclass(frozen=True)
class StateFile:
    """A generation's file, ``state/<token>.json``: see `ftslurm.sharedfs.cell`, which writes it and does not parse it.

    Attributes:
        nonce: of its author.
        retired: its value was removed.
        value: the state as JSON.
    """

    token: int
    nonce: str
    retired: bool = False
    value: dict[str, Any] | None = None

    SCHEMA, VERSION = "ftslurm/cell", 1


@dataclass(frozen=True)
class PendingCommit:
    """The registration of a commit in progress, which the state fences: ``commits/<round>.<node>.<nonce>.json``.

    Attributes:
        round: of the rank.
        node: where the rank runs; the paths are valid on that node.
        temporary: absolute path of the source of the rename.
        target: absolute path of its target.
    """

    round: int
    node: str
    temporary: str
    target: str

    SCHEMA, VERSION = "ftslurm/commit", 1
