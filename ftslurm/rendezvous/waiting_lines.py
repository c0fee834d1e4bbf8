"""Log lines that name the nodes which a forming round waits for, and why (pure).

Only the coordinator writes them, one node of a thousand. A node whose own health check hangs logs that itself, see
`ftslurm.agent.health_monitor`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ftslurm.records.state import FORMING, LEFT, READY, State
from ftslurm.rendezvous.exclusion import NAMED, excluded_nodes
from ftslurm.rendezvous.observation import Observation, Timing, may_join
from ftslurm.text import duration

FIRST_S = 5.0
"""Time in the phase FORMING before the first line, and the shortest interval between two lines, in seconds."""
LONGEST_S = 120.0
"""The interval doubles up to this while nothing changes, in seconds."""


class WaitingLines:
    """Composes the log lines of the forming rounds of one coordinator."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, round_: int) -> None:
        self._round = round_
        self._line_at_s = 0.0
        self._interval_s = FIRST_S
        self._reasons = ""

    def line(self, state: State, observation: Observation, timing: Timing) -> str | None:
        """Return a line if one is due, else None; called on each tick of the coordinator."""
        if state.phase != FORMING or state.round != self._round:
            self._begin(state.round)
        since_s = observation.forming_for_s - self._line_at_s
        if state.phase != FORMING or since_s < FIRST_S:
            return None
        reasons = "; ".join(_grouped(state, observation, timing))
        if since_s < self._interval_s and reasons == self._reasons:
            return None
        self._reasons, self._line_at_s = reasons, observation.forming_for_s
        self._interval_s = min(LONGEST_S, 2 * self._interval_s)
        ready = sum(record.attempt == state.attempt and may_join(record) for record in observation.records.values())
        number = f"{ready} of {state.min_nodes} nodes are ready after {duration(observation.forming_for_s)}"
        return f"round {state.round + 1} waits: {number}" + (f"; {reasons}" if reasons else "")


def _grouped(state: State, observation: Observation, timing: Timing) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for node, why in _waited_for(state, observation, timing):
        groups.setdefault(why, []).append(node)
    for why, nodes in groups.items():
        more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
        yield f"{', '.join(nodes[:NAMED])}{more}: {why}"


def _waited_for(state: State, observation: Observation, timing: Timing) -> Iterator[tuple[str, str]]:
    """Yield each node that does not take part yet, with the reason."""
    records = {record.node: record for record in observation.records.values() if record.attempt == state.attempt}
    excluded = excluded_nodes(state, records, timing.exclude_after)
    for node in state.expected:
        if node not in records:
            yield node, "no node record yet"
    for node, record in sorted(records.items(), key=lambda one: (one[1].position, one[0])):
        if record.status == LEFT or record.reason is not None:
            yield node, f"left ({record.reason})" if record.reason else "left"
        elif observation.is_lost(node, timing):
            yield node, "silent"
        elif record.unhealthy is not None:
            yield node, f"unhealthy ({record.unhealthy})"
        elif record.health_pending:
            yield node, "health pending"
        elif record.status != READY:
            yield node, f"workers of round {record.round} have not ended"
        elif node in observation.unproven:
            yield node, "no heartbeat since the coordinator changed"
        elif node in excluded:
            yield node, "excluded, takes part only if others do not suffice"
