"""The node record that each agent publishes in its own file, and its JSON form. Facts only; decisions are elsewhere."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.timeouts import Longest
from ftslurm.records.codec import read_record, write_record
from ftslurm.records.health import Health
from ftslurm.records.state import DEFAULT_ROLE, READY, STATUSES, ClockOffset, Failure, Hang
from ftslurm.records.stop import JobEnd, StopRequest, StopVote


@dataclass(frozen=True)
class RankVitals:
    """Progress of one rank.

    Attributes:
        step: the last training step that it reported; None before the first.
        intervals: pairs of a bucket (`monitor.heartbeat_page`) and its number of step intervals, without empty buckets.
        optimizer_step: where the script reports no steps, the last one of its optimizer, by the optimizer's own count
            if it keeps one, else since this start. Not the script's step: it decides nothing.
    """

    rank: int
    step: int | None
    intervals: tuple[tuple[int, int], ...]
    optimizer_step: int | None = None

    SPARSE = True


@dataclass(frozen=True)
class Vitals:
    """Progress of a node's ranks: for display, and to learn time-outs from.

    Attributes:
        round: the ranks' round.
        longest: the longest completed intervals.
        stuck: number of times that this agent's own loop was stuck.
        loading: the checkpoint that they load (`ftslurm.loading`), of the first rank that reports one.
        stepped: whether one of them has reported a step and then a further one.
        stoppable: number of its ranks that have called `should_stop`.
    """

    round: int
    longest: Longest
    ranks: tuple[RankVitals, ...]
    stuck: int
    loading: str | None = None
    stepped: bool = False
    stoppable: int = 0


@dataclass(frozen=True)
class Predecessor:
    """The killed agent of the same node that this one replaces: incarnation, reason and time of its end."""

    incarnation: str
    reason: str
    time_ns: int


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
            `round` RUNNING, SUCCEEDED, FAILED (workers may be left).
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
        stop_request: why its agent asks for an orderly stop of the run; None: it does not.
        stop_vote: its answer to the newest proposal of a step to stop at; None: none was made.
        job_end: when Slurm ends the job, as this agent last learned; None: unknown.
        role: of its workers (`--role`).
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
    stop_request: StopRequest | None = None
    stop_vote: StopVote | None = None
    job_end: JobEnd | None = None
    role: str = DEFAULT_ROLE

    SCHEMA, VERSION = "ftslurm/node", 1
    CHOICES = (("status", STATUSES),)

    def encode(self) -> bytes:
        """Return it as a file's content."""
        return write_record(self)

    @staticmethod
    def decode(data: bytes, where: str) -> NodeRecord:
        """Read it back; `BadFile` names `where` and what is wrong."""
        return read_record(NodeRecord, data, where)


def misnamed(node: str, file_name: str) -> str | None:
    """Return as text that a node record has the file name of another node; None: it has its own."""
    return None if f"{node}.json" == file_name else f"names node {node!r:.80}; ignored"


def first_record(node: str, incarnation: str, attempt: str, position: int, slots: int, pid: int = 0) -> NodeRecord:
    """Return the record of an agent that has just started; the caller fills in its address."""
    return NodeRecord(
        node, incarnation, 0, attempt, position, slots, node, pid, node, 0, READY, 0, None, None, None, 0, 0
    )
