"""Log lines of the coordinator about a change of the state: one line per event (pure)."""

from __future__ import annotations

from ftslurm.agent.machine import short
from ftslurm.rendezvous.state import CLOSED, FORMING, RUNNING, State
from ftslurm.rendezvous.unreachable import wait_s


def messages(old: State | None, new: State) -> list[str]:
    """Return the lines for the events between `old` and `new`."""
    lines: list[str] = []
    if old is not None and old.attempt == new.attempt and old.phase == RUNNING and new.phase != CLOSED:
        # One change may end a round and begin the next.
        past = new.past(old.round)
        if past is not None and past.outcome != RUNNING:
            then = f"restart {new.restarts_used} of {new.max_restarts}"
            if new.phase == FORMING and (seconds := wait_s(new)):
                then = f"trying again in {seconds:g} s"
            lines.append(f"round {past.round} ended: {short(past.reason or past.outcome)}; {then}")
    if new.phase == RUNNING and (old is None or old.round != new.round) and new.master is not None:
        nodes = len(new.participants)
        lines.append(
            f"round {new.round}: {new.world_size} ranks on {nodes} node{'s' if nodes > 1 else ''}, "
            f"master {new.master.address}:{new.master.port}"
        )
    if new.phase == CLOSED and new.closed is not None and (old is None or old.phase != CLOSED):
        lines.append(f"{new.closed.outcome}: {short(new.closed.reason, 300)}")
    return lines
