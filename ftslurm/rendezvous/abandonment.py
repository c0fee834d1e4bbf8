"""Whether the other job that owns a run directory has ended, so that this one may take the run over."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.records.node import NodeRecord
from ftslurm.records.state import CLOSED, LEFT, State
from ftslurm.rendezvous.observer import Observer

MIN_CHANGES = 2
IN_USE = "wait for it, stop it, or choose another --rdzv-id"
"""What to do where a run is started a second time."""


class RunInUse(Exception):
    """Live agents of another job use this run directory."""


class Abandonment:
    """Judges the owner of a run by several reads of its node records.

    Args:
        observer: reads them.
        node_timeout_s: time without a sign of life after which a node counts as lost.
        root: the run directory, for messages.
    """

    def __init__(self, observer: Observer, node_timeout_s: float, root: str) -> None:
        self._observer = observer
        self._node_timeout_s = node_timeout_s
        self._root = root
        self._last_signs: dict[str, tuple[tuple[str, int], int]] = {}

    def holds(self, old: State, token: int) -> bool:
        """Return whether the attempt of `old` has ended: closed, or all its agents have left or are silent.

        Args:
            token: of `old`.

        Raises:
            RunInUse: one of its agents is alive.
        """
        if old.phase == CLOSED:
            return True
        self._observer.read_records()
        records = [record for record in self._observer.records.values() if record.attempt == old.attempt]
        staying = [record for record in records if record.status != LEFT]
        signs = {record.node: (record.incarnation, record.counter) for record in staying}
        # A new state is a sign of life too, for an attempt whose agents have not published a record yet.
        signs[""] = (old.attempt, token)
        changes = 0
        for node, sign in signs.items():
            known, count = self._last_signs.get(node, (sign, 0))
            self._last_signs[node] = (sign, count + (known != sign))
            changes = max(changes, self._last_signs[node][1])
        # A single change may be the last record of a dead agent, shown late by a cache.
        if changes >= MIN_CHANGES:
            job = old.attempt.rpartition(".")[0]
            raise RunInUse(f"the run {self._root} is held by job {job}, which runs already; {IN_USE}")
        silent_s = min(self._observer.silent_s(node, sign) for node, sign in signs.items())
        return _all_agents_left(old, records) or silent_s >= self._node_timeout_s


def _all_agents_left(old: State, records: Sequence[NodeRecord]) -> bool:
    """Return whether all agents of that attempt have left.

    An agent whose record is unreadable may be alive, and so may agents that only a dead coordinator had a record of.
    """
    left = {(record.node, record.incarnation) for record in records if record.status == LEFT}
    needed = {(participant.node, participant.incarnation) for participant in old.participants}
    needed.add((old.coordinator.node, old.coordinator.incarnation))
    return needed <= left and all(record.status == LEFT for record in records)


def requeued_since(one: str, other: str) -> bool:
    """Return whether attempt `other` is a later restart of the same job: Slurm ended `one` before it began."""
    (job, restart), (other_job, other_restart) = _restart_of(one), _restart_of(other)
    return job == other_job and restart < other_restart


def _restart_of(attempt: str) -> tuple[str, int]:
    """Read `<job>.<restart>` or `<job>.<restart>+<step>`; an attempt of another form is no restart."""
    job, _, rest = attempt.rpartition(".")
    restart = rest.partition("+")[0]
    return (job, int(restart)) if restart.isdecimal() and len(restart) < 10 else (attempt, 0)
