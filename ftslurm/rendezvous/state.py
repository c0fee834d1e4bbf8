"""The fenced state that all agents follow, and the types it shares with node records: phases, failures, hangs.

Facts only, and their JSON form; the decisions are in `fold` and `agent.machine`.
"""

from __future__ import annotations

from ftslurm.dataclasses import asdict, dataclass, replace
from ftslurm.monitor.timeouts import Learned, read_learned
from ftslurm.rendezvous.fields import Fields
from ftslurm.sharedfs.publish import BadFile, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STATE_SCHEMA, STATE_VERSION = "ftslurm/state", 1

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
        at_start, again, everywhere: retryability, see `ftslurm.failures.retryability`.
        blame: BY_NODE: its message names the node's hardware; PERHAPS: the node may be to blame; None: unlikely.
        since_ns: for a hang, time of the rank's last heartbeat, by its node's clock.
        signature: compared with another round's failure, see `ftslurm.failures.signature`; None: not comparable.
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
    again: str | None = None
    everywhere: bool = False
    blame: str | None = None
    since_ns: int | None = None
    signature: str | None = None

    @staticmethod
    def read(fields: Fields) -> Failure:
        """Read it from JSON; `BadFile` names a wrong field."""
        return Failure(
            fields.number("round"),
            fields.text("node"),
            fields.number("rank"),
            fields.number("local_rank"),
            fields.number("time_ns"),
            fields.text("kind"),
            fields.maybe_number("exit_code"),
            fields.maybe_text("signal"),
            fields.text("message"),
            fields.maybe_number("step"),
            fields.flag("at_start"),
            fields.maybe_text("again"),
            fields.flag("everywhere"),
            fields.maybe_text("blame"),
            fields.maybe_number("since_ns"),
            fields.maybe_text("signature"),
        )


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

    @staticmethod
    def read(fields: Fields) -> Hang:
        """Read it from JSON."""
        return Hang(
            fields.number("round"),
            fields.text("node"),
            fields.number("rank"),
            fields.number("local_rank"),
            fields.number("time_ns"),
            fields.text("what"),
            fields.maybe_number("step"),
            fields.maybe_number("since_ns"),
        )

    def failure(self) -> Failure:
        """Return it as an entry of the round history."""
        where = (self.round, self.node, self.rank, self.local_rank, self.time_ns)
        return Failure(*where, HANG, None, None, self.what, self.step, blame=PERHAPS, since_ns=self.since_ns)


@dataclass(frozen=True)
class Lease:
    """The coordinator, which alone may write the state; `term` counts the changes of the lease."""

    node: str
    incarnation: str
    term: int

    @staticmethod
    def read(fields: Fields) -> Lease:
        """Read it from JSON."""
        return Lease(fields.text("node"), fields.text("incarnation"), fields.number("term"))


@dataclass(frozen=True)
class Participant:
    """A node of the current round and its ranks: `first_rank` to `first_rank + slots - 1`."""

    node: str
    incarnation: str
    slots: int
    first_rank: int
    group_rank: int

    @staticmethod
    def read(fields: Fields) -> Participant:
        """Read it from JSON."""
        return Participant(
            fields.text("node"),
            fields.text("incarnation"),
            fields.number("slots"),
            fields.number("first_rank"),
            fields.number("group_rank"),
        )


@dataclass(frozen=True)
class Master:
    """Address and port where rank 0 of the round listens: the workers' MASTER_ADDR and MASTER_PORT."""

    address: str
    port: int

    @staticmethod
    def read(fields: Fields) -> Master:
        """Read it from JSON."""
        return Master(fields.text("address"), fields.number("port"))


@dataclass(frozen=True)
class LostNode:
    """An agent that became silent, or left, during a round."""

    node: str
    incarnation: str
    round: int
    time_ns: int
    silent_s: float

    @staticmethod
    def read(fields: Fields) -> LostNode:
        """Read it from JSON."""
        return LostNode(
            fields.text("node"),
            fields.text("incarnation"),
            fields.number("round"),
            fields.number("time_ns"),
            fields.seconds("silent_s"),
        )


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

    @staticmethod
    def read(fields: Fields) -> RoundHistory:
        """Read it from JSON."""
        return RoundHistory(
            fields.number("round"),
            fields.text("attempt"),
            fields.texts("nodes"),
            fields.number("world_size"),
            fields.number("formed_ns"),
            fields.maybe_number("ended_ns"),
            fields.text("outcome"),
            fields.maybe_text("reason"),
            fields.maybe_object("failure", Failure.read),
        )


@dataclass(frozen=True)
class Closed:
    """End of the attempt: every agent exits with `exit_code`."""

    outcome: str
    reason: str
    exit_code: int
    time_ns: int

    @staticmethod
    def read(fields: Fields) -> Closed:
        """Read it from JSON."""
        return Closed(
            fields.text("outcome"), fields.text("reason"), fields.number("exit_code"), fields.number("time_ns")
        )


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

    def encode(self) -> bytes:
        """Return it as the fenced cell's value."""
        return encode({"schema": STATE_SCHEMA, "version": STATE_VERSION, **asdict(self)})

    @staticmethod
    def decode(data: bytes, where: str) -> State:
        """Read it back; `BadFile` names `where` and what is wrong."""
        fields = Fields(decode(data, where, STATE_SCHEMA, STATE_VERSION), where)
        phase = fields.text("phase")
        if phase not in PHASES:
            raise BadFile(f"{where}: field 'phase' should be one of {', '.join(PHASES)}, found {phase!r}")
        return State(
            fields.text("run_id"),
            fields.text("attempt"),
            fields.texts("attempts"),
            fields.texts("expected"),
            fields.number("min_nodes"),
            fields.number("max_nodes"),
            fields.number("max_restarts"),
            fields.number("restarts_used"),
            fields.object("coordinator", Lease.read),
            phase,
            fields.number("round"),
            fields.objects("participants", Participant.read),
            fields.number("world_size"),
            fields.maybe_object("master", Master.read),
            fields.objects("lost", LostNode.read),
            fields.objects("history", RoundHistory.read),
            fields.maybe_object("closed", Closed.read),
            fields.texts("admitted"),
            fields.maybe_object("hang", Hang.read),
            fields.maybe_read("learned", read_learned),
        )

    def participant(self, node: str, incarnation: str) -> Participant | None:
        """Return that agent's participant entry of round `round`, None without one."""
        for participant in self.participants:
            if participant.node == node and participant.incarnation == incarnation:
                return participant
        return None

    def past(self, round_: int) -> RoundHistory | None:
        """Return that round's history entry, None if it is unknown (or no longer kept)."""
        return next((entry for entry in reversed(self.history) if entry.round == round_), None)


def as_json(value: Failure | None) -> dict[str, Any] | None:
    """Return a failure as a JSON object."""
    return None if value is None else asdict(value)


def with_history(state: State, entry: RoundHistory) -> State:
    """Return `state` with `entry` added, replacing that of the same round."""
    kept = tuple(old for old in state.history if old.round != entry.round)
    return replace(state, history=(*kept, entry)[-HISTORY_KEPT:])
