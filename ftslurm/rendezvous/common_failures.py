"""What fails on all nodes and is no single node's (pure): the shared storage's checks, and ranks that fail alike.

A directory that is full or gone fails the same check on all nodes. Leaving them all out would end the job for what may
be over in a few seconds; and if it is not, the ranks fail by the true reason.
"""

from __future__ import annotations

from ftslurm.dataclasses import replace
from ftslurm.health.verdict import FAIL
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.observation import Observation, Timing, alive_nodes, record_of
from ftslurm.rendezvous.state import State, with_history

STORAGE = "storage-"
"""What the names of these checks begin with. Other hardware that fails on all nodes is not shared: it is broken
everywhere."""


def excuse_shared_trouble(state: State, seen: Observation, timing: Timing) -> Observation:
    """Return what is seen with nodes fit that are unhealthy only by storage checks which fail alike on all nodes.

    One node alone cannot tell whose trouble it is.
    """
    staying = [record for record in alive_nodes(state, seen, timing) if record.reason is None]
    unhealthy = [record for record in staying if record.unhealthy is not None]
    if len(unhealthy) < 2 or len(unhealthy) < len(staying):
        return seen
    shared = set.intersection(*(_failed(record) for record in unhealthy))
    excused = {
        record.node: replace(record, unhealthy=None)
        for record in unhealthy
        if _failed(record) <= shared and all(check.startswith(STORAGE) for check, _ in _failed(record))
    }
    return replace(seen, records={**seen.records, **excused}) if excused else seen


def excuse_shared_failure(state: State, seen: Observation) -> State:
    """Return `state` with no node to blame for the newest round's failure where all of its nodes have failed alike.

    They have when the next round is about to form: each has stopped its ranks and published what failed first there.
    """
    last = state.past(state.round)
    first = last.failure if last is not None else None
    if last is None or first is None or first.blame is None or len(state.participants) < 2:
        return state
    records = [record_of(participant, seen) for participant in state.participants]
    failures = [record.failure for record in records if record is not None and record.failure is not None]
    alike = {
        one.node for one in failures if (one.round, one.kind, one.message) == (first.round, first.kind, first.message)
    }
    if alike != {participant.node for participant in state.participants}:
        return state
    return with_history(state, replace(last, failure=replace(first, blame=None)))


def _failed(record: NodeRecord) -> set[tuple[str, str]]:
    found = record.health.findings if record.health is not None else ()
    return {(one.check, one.subject) for one in found if one.status == FAIL}
