"""What a coordinator sees and what it goes by: the facts that every decision of the fold follows from."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.state import READY, Participant, State

AT_ONCE, NEXT_ROUND, NEVER = "at-once", "next-round", "never"
REJOIN = (AT_ONCE, NEXT_ROUND, NEVER)


@dataclass(frozen=True)
class Timing:
    """How long things may take, in seconds.

    Attributes:
        node_timeout_s: a node whose counter stands still for so long is lost.
        join_timeout_s: a round that has too few nodes for so long closes the run.
        last_call_s: how long to wait for more nodes once the minimum is ready.
        stop_spread_s: Slurm's signals reach the nodes one after the other: when one node has been told to stop, the
            verdict waits so long for the others to say the same.
        settle_s: with nodes to spare, how long the first round waits for the ones that come first in Slurm's order.
        rejoin: when a late node gets in: with the NEXT_ROUND, whenever that comes, or AT_ONCE: the running round ends
            for it, after a last call that costs no training time; or NEVER: only nodes that were there at the start
            take part, spares included.
        show_s: when a rank hangs, how long the round waits for all nodes to collect their ranks' stacks.
        agree_s: when a rank fails by what its node may lack, how long to wait whether all nodes' ranks do.
        set_aside_after: so many first failures on a node let others be preferred to it; 0: none do.
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


@dataclass(frozen=True)
class Observation:
    """What the coordinator sees.

    Attributes:
        words: the newest word read of each node, of any attempt.
        silent_s: for how long each node (those without a word too) has been silent.
        forming_for_s: for how long this coordinator has seen the phase FORMING.
        now_ns: this coordinator's clock, for stamps that people read.
        told_for_s: for how long it has seen a node that was told from outside to stop.
        joining_for_s: for how long no further node has come to wait for a place.
        hanging_for_s: for how long it has seen that a rank hangs.
        failing_for_s: for how long it has seen a failure in the newest round.
        unproven: nodes whose record has not changed since this coordinator first read it: perhaps they are dead.
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


@dataclass(frozen=True)
class RunSpec:
    """What an attempt asks for; see `State` for the fields."""

    run_id: str
    attempt: str
    expected: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    max_restarts: int


def may_join(record: NodeRecord) -> bool:
    """Tell whether the node could take part in a round that forms now."""
    return record.status == READY and record.reason is None and record.unhealthy is None and not record.health_pending


def waiting_nodes(state: State, records: Mapping[str, NodeRecord]) -> list[NodeRecord]:
    """Return the words of nodes that could take part and have no part in the newest round."""
    return [
        record
        for record in records.values()
        if record.attempt == state.attempt
        and may_join(record)
        and state.participant(record.node, record.incarnation) is None
    ]


def record_of(participant: Participant, observation: Observation) -> NodeRecord | None:
    """Return the participant's word, None when its node has none or speaks for another agent by now."""
    record = observation.records.get(participant.node)
    return record if record is not None and record.incarnation == participant.incarnation else None


def alive_nodes(state: State, observation: Observation, timing: Timing) -> list[NodeRecord]:
    """Return the words of this attempt's agents that are neither silent nor gone."""
    return [
        record
        for node, record in observation.records.items()
        if record.attempt == state.attempt
        and observation.silent_s.get(node, 0.0) < timing.node_timeout_s
        and not (record.status == "left" and not record.stop_signal)
    ]


def is_replaced(state: State, participant: Participant, observation: Observation) -> bool:
    """Tell whether another agent speaks for that participant's node by now."""
    # Another attempt's word proves nothing: it is an old one read late, or an agent that has no business here.
    record = observation.records.get(participant.node)
    return record is not None and record.incarnation != participant.incarnation and record.attempt == state.attempt
