"""Observation, timing and run spec: the inputs of every decision of the fold."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.dataclasses import dataclass, field
from ftslurm.records.node import NodeRecord
from ftslurm.records.stacks import StacksFile
from ftslurm.records.state import READY, Participant, State
from ftslurm.records.stop import StopRequest

AT_ONCE, NEXT_ROUND, NEVER = "at-once", "next-round", "never"
REJOIN = (AT_ONCE, NEXT_ROUND, NEVER)


@dataclass(frozen=True)
class Timing:
    """Time-outs and waits of the rendezvous, in seconds, and policies.

    Attributes:
        node_timeout_s: a node whose counter does not change for this time is lost.
        join_timeout_s: a round that has too few nodes for this time closes the run.
        last_call_s: wait for more nodes once the minimum is ready.
        stop_spread_s: Slurm's signals reach the nodes one after the other: after one node has received a stop signal,
            the verdict waits this long for the others.
        settle_s: with spares, wait of the first round for the nodes that come first in Slurm's order.
        rejoin: when a late node is admitted: NEXT_ROUND: with the next round, whenever that forms; AT_ONCE: the running
            round ends for it, after a last call that costs no training time; NEVER: only nodes that were present at the
            start take part, spares included.
        stack_collection_s: when a rank hangs, wait of the round for all nodes to collect their ranks' stacks.
        signature_s: when a rank fails because its node may lack something, wait for the same from all nodes' ranks.
        exclude_after: number of first failures on a node that excludes it; 0 disables exclusion.
        warn_before_end_s: the run is stopped so many seconds before Slurm ends the job; None: by the duration of saves.
    """

    node_timeout_s: float
    join_timeout_s: float
    last_call_s: float
    stop_spread_s: float = 2.0
    settle_s: float = 2.0
    rejoin: str = NEXT_ROUND
    stack_collection_s: float = 10.0
    signature_s: float = 1.0
    exclude_after: int = 2
    warn_before_end_s: float | None = None


@dataclass(frozen=True)
class Observation:
    """The coordinator's observation of all nodes; durations count the time of this coordinator alone.

    Attributes:
        records: the newest record read of each node, of any attempt.
        silent_s: silence of each node, including those without a record.
        forming_for_s: time in the phase FORMING.
        now_ns: this coordinator's clock, for time stamps that people read.
        stop_requested_s: time since the last node received a stop signal from outside.
        joining_for_s: time since the last further node began to wait for a place.
        hanging_for_s: time since a hang was observed.
        failing_for_s: time since a failure of the newest round was observed.
        unproven: nodes whose record has not changed since this coordinator first read it: they may be dead.
        stop_file: a user's request to stop, made by ``ftslurm stop``; None: there is none.
        dead: evidence that a node's agent has ended, as text, where silence confirms that before the node's time-out.
        stacks_file: a user's request for stacks, made by ``ftslurm stacks``; None: there is none.
    """

    records: Mapping[str, NodeRecord]
    silent_s: Mapping[str, float]
    forming_for_s: float
    now_ns: int
    stop_requested_s: float = 0.0
    joining_for_s: float = 0.0
    hanging_for_s: float = 0.0
    failing_for_s: float = 0.0
    unproven: frozenset[str] = frozenset()
    stop_file: StopRequest | None = None
    dead: Mapping[str, str] = field(default_factory=dict)
    stacks_file: StacksFile | None = None

    def is_lost(self, node: str, timing: Timing) -> bool:
        """Return whether the node's agent is thought dead."""
        return node in self.dead or self.silent_s.get(node, 0.0) >= timing.node_timeout_s


@dataclass(frozen=True)
class RunSpec:
    """Requirements of an attempt; see `State` for the fields."""

    run_id: str
    attempt: str
    expected: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    max_restarts: int

    def differences(self, state: State) -> list[str]:
        """Return which options differ from those of the run, as text."""
        options = (
            ("--nnodes", f"{self.min_nodes}:{self.max_nodes}", f"{state.min_nodes}:{state.max_nodes}"),
            ("--max-restarts", str(self.max_restarts), str(state.max_restarts)),
        )
        return [f"{name} {here} here, {there} in the run" for name, here, there in options if here != there]


def may_join(record: NodeRecord) -> bool:
    """Return whether the node could take part in a round that forms now."""
    return record.status == READY and record.reason is None and record.unhealthy is None and not record.health_pending


def waiting_nodes(state: State, records: Mapping[str, NodeRecord]) -> list[NodeRecord]:
    """Return the records of nodes that could take part and are no participants of the newest round."""
    return [
        record
        for record in records.values()
        if record.attempt == state.attempt
        and may_join(record)
        and state.participant(record.node, record.incarnation) is None
    ]


def record_of(participant: Participant, observation: Observation) -> NodeRecord | None:
    """Return the participant's record; None if its node has none, or one of another agent."""
    record = observation.records.get(participant.node)
    return record if record is not None and record.incarnation == participant.incarnation else None


def alive_nodes(state: State, observation: Observation, timing: Timing) -> list[NodeRecord]:
    """Return the records of this attempt's agents that are neither silent nor have left."""
    return [
        record
        for node, record in observation.records.items()
        if record.attempt == state.attempt
        and not observation.is_lost(node, timing)
        and not (record.status == "left" and not record.stop_signal)
    ]


def is_replaced(state: State, participant: Participant, observation: Observation) -> bool:
    """Return whether another agent has published a record of that participant's node."""
    # Another attempt's record proves nothing: it is an old one read late, or of an agent that does not own the run.
    record = observation.records.get(participant.node)
    return record is not None and record.incarnation != participant.incarnation and record.attempt == state.attempt
