"""Failures common to all nodes, which no single node causes (pure): storage checks and identical rank failures.

A directory that is full or missing fails the same check on all nodes. Leaving out all nodes would end the job for a
condition that may last a few seconds; if it persists, the ranks fail with the true cause.
"""

from __future__ import annotations

from ftslurm.dataclasses import replace
from ftslurm.records.health import FAIL
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import State, with_history
from ftslurm.rendezvous.observation import Observation, Timing, alive_nodes, record_of

STORAGE = "storage-"
"""Name prefix of the storage checks. Other hardware that fails on all nodes is not shared: it is broken everywhere."""


def excuse_shared_findings(state: State, observation: Observation, timing: Timing) -> Observation:
    """Return the observation with nodes healthy that fail nothing but storage checks which fail on all nodes.

    A single node is not excused: its failure may be its own or the storage's.
    """
    staying = [record for record in alive_nodes(state, observation, timing) if record.reason is None]
    unhealthy = [record for record in staying if record.unhealthy is not None]
    if len(unhealthy) < 2 or len(unhealthy) < len(staying):
        return observation
    shared = set.intersection(*(_failed(record) for record in unhealthy))
    excused = {
        record.node: replace(record, unhealthy=None)
        for record in unhealthy
        if _failed(record) <= shared and all(check.startswith(STORAGE) for check, _ in _failed(record))
    }
    return replace(observation, records={**observation.records, **excused}) if excused else observation


def excuse_shared_failure(state: State, observation: Observation) -> State:
    """Return `state` with no node to blame for the newest round's failure if all of its nodes report the same failure.

    Called when the next round is about to form: each node has then stopped its ranks and published its first failure.
    """
    last = state.past(state.round)
    first = last.failure if last is not None else None
    if last is None or first is None or first.blame is None or len(state.participants) < 2:
        return state
    records = [record_of(participant, observation) for participant in state.participants]
    failures = [record.failure for record in records if record is not None and record.failure is not None]
    same = {
        one.node for one in failures if (one.round, one.kind, one.message) == (first.round, first.kind, first.message)
    }
    if same != {participant.node for participant in state.participants}:
        return state
    return with_history(state, replace(last, failure=replace(first, blame=None)))


def _failed(record: NodeRecord) -> set[tuple[str, str]]:
    found = record.health.findings if record.health is not None else ()
    return {(one.check, one.subject) for one in found if one.status == FAIL}
