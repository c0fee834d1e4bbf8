"""The words of the rendezvous: what a node says of itself, and the fenced state that everybody follows.

Facts only, and their form as JSON; what follows from them is decided in `fold` and `agent.machine`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ftslurm.health.word import Health, read_health
from ftslurm.monitor.timeouts import Learned, Longest, read_learned, read_longest
from ftslurm.rendezvous.fields import Fields
from ftslurm.sharedfs.clock import ClockOffset
from ftslurm.sharedfs.publish import BadFile, decode, encode

NODE_SCHEMA, NODE_VERSION = "ftslurm/node", 1
STATE_SCHEMA, STATE_VERSION = "ftslurm/state", 1

READY, RUNNING, SUCCEEDED, FAILED, LEFT = "ready", "running", "succeeded", "failed", "left"
STATUSES = (READY, RUNNING, SUCCEEDED, FAILED, LEFT)
FORMING, CLOSED = "forming", "closed"
PHASES = (FORMING, RUNNING, CLOSED)

NODE_LOST, STOPPED = "node-lost", "stopped"
HANG = "hang"
BY_NODE, PERHAPS = "node", "perhaps"
HISTORY_KEPT = 100

EXIT_SUCCESS = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DO_NOT_REQUEUE = 78
"""A worker that ends with this code (sysexits.h's EX_CONFIG) says: neither restart nor requeue, it would fail again.

So does ftslurm of a job that cannot start: its script or arguments are wrong, or all nodes lack what it needs.
"""


@dataclass(frozen=True)
class Failure:
    """One worker's failure, in short.

    Attributes:
        kind: "exception", "exit", "signal", "spawn" or "hang".
        message: one line.
        step: the last step that the script reported by `ftslurm.progress`, if it did.
        at_start, again, everywhere: what a restart would bring, see `ftslurm.failures.outlook`.
        blame: BY_NODE: its own words name the node's hardware; PERHAPS: the node may be to blame; None: hardly.
        since_ns: of a hang, when the rank had last moved, by its node's clock.
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
        )


@dataclass(frozen=True)
class Hang:
    """A rank that did not move in time: before its round ends, all ranks show where they are.

    Attributes:
        time_ns: when its agent noticed, by that node's clock.
        what: what it should have done, in words.
        since_ns: when it had last moved, by that clock; None: not known.
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
        """Return what it is in the history of rounds."""
        where = (self.round, self.node, self.rank, self.local_rank, self.time_ns)
        return Failure(*where, HANG, None, None, self.what, self.step, blame=PERHAPS, since_ns=self.since_ns)


@dataclass(frozen=True)
class RankVitals:
    """How one rank gets on.

    Attributes:
        step: the last that it reported, None before the first.
        intervals: how many intervals between its steps fell into which bucket (`monitor.mark`), as far as not none.
    """

    rank: int
    step: int | None
    intervals: tuple[tuple[int, int], ...]

    @staticmethod
    def read(fields: Fields) -> RankVitals:
        """Read it from JSON."""
        return RankVitals(fields.number("rank"), fields.maybe_number("step"), fields.read("intervals", _read_intervals))


@dataclass(frozen=True)
class Vitals:
    """How the ranks of a node get on: for people, and to learn time-outs from.

    Attributes:
        round: whose ranks they are.
        longest: the longest completed intervals.
        stuck: how often this agent's own loop was stuck.
    """

    round: int
    longest: Longest
    ranks: tuple[RankVitals, ...]
    stuck: int

    @staticmethod
    def read(fields: Fields) -> Vitals:
        """Read it from JSON."""
        return Vitals(
            fields.number("round"),
            fields.read("longest", read_longest),
            fields.objects("ranks", RankVitals.read),
            fields.number("stuck"),
        )


def _read_clock(fields: Fields) -> ClockOffset:
    return ClockOffset(fields.number("offset_ns"), fields.number("error_ns"), fields.number("at_ns"))


def _read_intervals(value: object, where: str) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or len(value) > 1000:
        raise ValueError(f"{where}: expected a list of pairs")
    for pair in value:
        if not isinstance(pair, list) or [type(number) for number in pair] != [int, int]:
            raise ValueError(f"{where}: expected pairs of a bucket and a count, found {pair!r:.80}")
    return tuple((bucket, count) for bucket, count in value)


@dataclass(frozen=True)
class NodeWord:
    """What a node says of itself, in its own file; nobody else writes it.

    Attributes:
        incarnation: a nonce, new for each agent process.
        counter: grows with each writing; observers measure how long it stands still.
        position: place in Slurm's node order, from 0.
        slots: workers that it runs.
        address, port: where its first rank would listen as the master of the next round.
        status: READY (no worker alive; said of the round that still runs: it wants the next one), LEFT, or for round
            `round` RUNNING, SUCCEEDED, FAILED (workers may be left).
        round: the newest round that it took part in, 0 for none.
        failure: the first failure here in `round`, if any; kept until the next round starts.
        reason: why it is leaving or left; None: it stays.
        stop_signal: the signal from outside that told it to leave ("SIGTERM"), if that is why.
        token: the newest state that it has seen.
        time_ns: its own clock, for people; never compared with another node's.
        bell: the port of its doorbell at `address`, 0 without one.
        hang: the first rank here that hung in `round`, if any.
        shown: the newest round of which it has collected its ranks' stacks, 0 for none.
        vitals: how its ranks get on; None before they run.
        clock: its clock against the filesystem server's, None where that cannot be measured; for reports only.
        health: what the last look at it found; None before the first.
        unfit: why it cannot take part in a round, in words; None: it can.
        looking: it is being looked at, and will say soon whether it can.
        excluded: why it was set aside, by people or in an earlier run: it takes part only where others do not suffice.
    """

    node: str
    incarnation: str
    counter: int
    attempt: str
    position: int
    slots: int
    host: str
    pid: int
    address: str
    port: int
    status: str
    round: int
    failure: Failure | None
    reason: str | None
    stop_signal: str | None
    token: int
    time_ns: int
    bell: int = 0
    hang: Hang | None = None
    shown: int = 0
    vitals: Vitals | None = None
    clock: ClockOffset | None = None
    health: Health | None = None
    unfit: str | None = None
    looking: bool = False
    excluded: str | None = None

    def encode(self) -> bytes:
        """Return it as a file's content."""
        return encode({"schema": NODE_SCHEMA, "version": NODE_VERSION, **asdict(self)})

    @staticmethod
    def decode(data: bytes, where: str) -> NodeWord:
        """Read it back; `BadFile` names `where` and what is wrong."""
        fields = Fields(decode(data, where, NODE_SCHEMA, NODE_VERSION), where)
        status = fields.text("status")
        if status not in STATUSES:
            raise BadFile(f"{where}: field 'status' should be one of {', '.join(STATUSES)}, found {status!r}")
        return NodeWord(
            fields.text("node"),
            fields.text("incarnation"),
            fields.number("counter"),
            fields.text("attempt"),
            fields.number("position"),
            fields.number("slots"),
            fields.text("host"),
            fields.number("pid"),
            fields.text("address"),
            fields.number("port"),
            status,
            fields.number("round"),
            fields.maybe_object("failure", Failure.read),
            fields.maybe_text("reason"),
            fields.maybe_text("stop_signal"),
            fields.number("token"),
            fields.number("time_ns"),
            fields.maybe_number("bell") or 0,
            fields.maybe_object("hang", Hang.read),
            fields.maybe_number("shown") or 0,
            fields.maybe_object("vitals", Vitals.read),
            fields.maybe_object("clock", _read_clock),
            fields.maybe_read("health", read_health),
            fields.maybe_text("unfit"),
            fields.flag("looking"),
            fields.maybe_text("excluded"),
        )


@dataclass(frozen=True)
class Lease:
    """Who may write the state: the coordinator, and how often the lease has changed hands."""

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
    """Where rank 0 of the round listens: the workers' MASTER_ADDR and MASTER_PORT."""

    address: str
    port: int

    @staticmethod
    def read(fields: Fields) -> Master:
        """Read it from JSON."""
        return Master(fields.text("address"), fields.number("port"))


@dataclass(frozen=True)
class LostNode:
    """An agent that fell silent, or said that it is gone, in the middle of a round."""

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
    """How a round went; times by the coordinator's clock.

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
    """How the attempt ended: every agent leaves with `exit_code`."""

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
    """The fenced state: written by the coordinator alone, followed by everybody.

    Attributes:
        attempts: all attempts so far, the current one last.
        expected: the nodes that Slurm gave, in its order; empty when unknown.
        phase: FORMING (the next round), RUNNING (round `round`) or CLOSED.
        round: the newest formed round, 0 for none; grows over attempts too.
        participants: of round `round`.
        lost: nodes lost in this attempt.
        history: the newest rounds, at most HISTORY_KEPT.
        admitted: the nodes that were there when the attempt's first round formed: its participants and spares.
        hang: why round `round` is about to end, once all of its ranks have shown where they are; None: it is not.
        learned: time-outs from earlier rounds, requeues included; None before the first one has ended.
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
        """Return that agent's part in round `round`, None if it has none."""
        for participant in self.participants:
            if participant.node == node and participant.incarnation == incarnation:
                return participant
        return None

    def past(self, round_: int) -> RoundHistory | None:
        """Return how that round went, None if it is unknown (or no longer kept)."""
        return next((entry for entry in reversed(self.history) if entry.round == round_), None)


def as_json(value: Failure | None) -> dict[str, Any] | None:
    """Return a failure as a JSON object."""
    return None if value is None else asdict(value)


def with_history(state: State, entry: RoundHistory) -> State:
    """Return `state` with `entry` added, or put in place of the same round's."""
    kept = tuple(old for old in state.history if old.round != entry.round)
    return replace(state, history=(*kept, entry)[-HISTORY_KEPT:])
