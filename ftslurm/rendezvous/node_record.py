"""The node record that each agent publishes in its own file, and its JSON form. Facts only; decisions are elsewhere."""

from __future__ import annotations

from ftslurm.dataclasses import asdict, dataclass
from ftslurm.health.node_health import Health, read_health
from ftslurm.monitor.timeouts import Longest, read_longest
from ftslurm.rendezvous.fields import Fields
from ftslurm.rendezvous.state import STATUSES, Failure, Hang
from ftslurm.sharedfs.clock import ClockOffset
from ftslurm.sharedfs.publish import BadFile, decode, encode

NODE_SCHEMA, NODE_VERSION = "ftslurm/node", 1


@dataclass(frozen=True)
class RankVitals:
    """Progress of one rank.

    Attributes:
        step: the last training step that it reported; None before the first.
        intervals: pairs of a bucket (`monitor.heartbeat_page`) and its number of step intervals, without empty buckets.
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
    """Progress of a node's ranks: for display, and to learn time-outs from.

    Attributes:
        round: the ranks' round.
        longest: the longest completed intervals.
        stuck: number of times that this agent's own loop was stuck.
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


@dataclass(frozen=True)
class Predecessor:
    """The killed agent of the same node that this one replaces: incarnation, reason and time of its end."""

    incarnation: str
    reason: str
    time_ns: int

    @staticmethod
    def read(fields: Fields) -> Predecessor:
        """Read it from JSON."""
        return Predecessor(fields.text("incarnation"), fields.text("reason"), fields.number("time_ns"))


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
class NodeRecord:
    """A node's record, in a file that only the node's own agent (and its guardian) writes.

    Attributes:
        incarnation: a nonce, new for each agent process.
        counter: incremented at each write; observers measure how long it does not change.
            position: index in Slurm's node order, from 0.
            slots: number of workers that it runs.
            address, port: where its first rank would listen as the master of the next round.
            status: READY (no worker alive; if `round` still runs, the node requests the next one), LEFT, or for round
            `round`
                RUNNING, SUCCEEDED, FAILED (workers may be left).
            round: the newest round that it took part in; 0 for none.
            failure: the first failure here in `round`, if any; kept until the next round starts.
            reason: why it is leaving or left; None: it stays.
            stop_signal: the external signal that stopped it ("SIGTERM"), if that is the reason.
            token: the newest state that it has read.
            time_ns: its own clock, for display; never compared with another node's.
            doorbell_port: the UDP port of its doorbell at `address`; 0 without one.
            hang: the first rank here that hung in `round`, if any.
            stacks_collected: the newest round whose ranks' stacks it has collected; 0 for none.
            vitals: progress of its ranks; None before they run.
            clock: its clock's offset from the filesystem server's; None if that cannot be measured; for reports only.
            health: the result of the last run of its health checks; None before the first.
            unhealthy: why it cannot take part in a round, as text; None: it can.
            health_pending: its health checks are running; the result decides whether it can take part.
            to_be_replaced: its agent was killed, and its guardian starts a new one; only with status LEFT.
            predecessor: the killed agent that this one replaces; None for the node's first agent.
            excluded: why it was excluded, by users or in an earlier run: it takes part only if others do not suffice.
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
    doorbell_port: int = 0
    hang: Hang | None = None
    stacks_collected: int = 0
    vitals: Vitals | None = None
    clock: ClockOffset | None = None
    health: Health | None = None
    unhealthy: str | None = None
    health_pending: bool = False
    excluded: str | None = None
    to_be_replaced: bool = False
    predecessor: Predecessor | None = None

    def encode(self) -> bytes:
        """Return it as a file's content."""
        return encode({"schema": NODE_SCHEMA, "version": NODE_VERSION, **asdict(self)})

    @staticmethod
    def decode(data: bytes, where: str) -> NodeRecord:
        """Read it back; `BadFile` names `where` and what is wrong."""
        fields = Fields(decode(data, where, NODE_SCHEMA, NODE_VERSION), where)
        status = fields.text("status")
        if status not in STATUSES:
            raise BadFile(f"{where}: field 'status' should be one of {', '.join(STATUSES)}, found {status!r}")
        return NodeRecord(
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
            fields.maybe_number("doorbell_port") or 0,
            fields.maybe_object("hang", Hang.read),
            fields.maybe_number("stacks_collected") or 0,
            fields.maybe_object("vitals", Vitals.read),
            fields.maybe_object("clock", _read_clock),
            fields.maybe_read("health", read_health),
            fields.maybe_text("unhealthy"),
            fields.flag("health_pending"),
            fields.maybe_text("excluded"),
            fields.flag("to_be_replaced"),
            fields.maybe_object("predecessor", Predecessor.read),
        )
