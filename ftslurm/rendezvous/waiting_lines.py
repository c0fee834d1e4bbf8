"""Lines for the user: which nodes a forming round waits for, and why (pure).

Only the coordinator writes them: of a thousand nodes, one. A node whose own health check does not answer reports that
itself, see `ftslurm.agent.health_monitor`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ftslurm.rendezvous.observation import Observation, Timing, may_join
from ftslurm.rendezvous.state import FORMING, LEFT, READY, State

FIRST_S = 5.0
"""Time without a round before the first line, and the shortest interval between two lines, in seconds."""
LONGEST_S = 120.0
"""While nothing changes the interval doubles, up to this."""
NAMED = 4


class WaitingLines:
    """Writes the lines of the forming rounds of one coordinator."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, round_: int) -> None:
        self._round = round_
        self._line_at_s = 0.0
        self._interval_s = FIRST_S
        self._reasons = ""

    def line(self, state: State, seen: Observation, timing: Timing) -> str | None:
        """Return a line if one is due, else None; to be called on each tick of the coordinator."""
        if state.phase != FORMING or state.round != self._round:
            self._begin(state.round)
        since_s = seen.forming_for_s - self._line_at_s
        if state.phase != FORMING or since_s < FIRST_S:
            return None
        reasons = "; ".join(_grouped(state, seen, timing))
        if since_s < self._interval_s and reasons == self._reasons:
            return None
        self._reasons, self._line_at_s = reasons, seen.forming_for_s
        self._interval_s = min(LONGEST_S, 2 * self._interval_s)
        ready = sum(record.attempt == state.attempt and may_join(record) for record in seen.records.values())
        number = f"{ready} of {state.min_nodes} nodes are ready after {seen.forming_for_s:.0f} s"
        return f"round {state.round + 1} waits: {number}" + (f"; {reasons}" if reasons else "")


def _grouped(state: State, seen: Observation, timing: Timing) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for node, why in _waited_for(state, seen, timing):
        groups.setdefault(why, []).append(node)
    for why, nodes in groups.items():
        more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
        yield f"{', '.join(nodes[:NAMED])}{more}: {why}"


def _waited_for(state: State, seen: Observation, timing: Timing) -> Iterator[tuple[str, str]]:
    """Yield each node that does not take part yet, with the reason."""
    known = {record.node: record for record in seen.records.values() if record.attempt == state.attempt}
    for node in state.expected:
        if node not in known:
            yield node, "no record of its agent yet"
    for node, record in sorted(known.items(), key=lambda one: (one[1].position, one[0])):
        if record.status == LEFT or record.reason is not None:
            yield node, f"left ({record.reason})" if record.reason else "left"
        elif seen.silent_s.get(node, 0.0) >= timing.node_timeout_s:
            yield node, "silent"
        elif record.unhealthy is not None:
            yield node, f"unhealthy ({record.unhealthy})"
        elif record.health_pending:
            yield node, "its health is being checked"
        elif record.status != READY:
            yield node, f"its workers of round {record.round} have not ended"
        elif node in seen.unproven:
            yield node, "no sign of life since the coordinator changed"
