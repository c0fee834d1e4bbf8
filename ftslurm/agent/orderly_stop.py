"""An orderly stop as the agent's machine keeps it: why, and until when the ranks may run on (pure)."""

from __future__ import annotations

from ftslurm.agent.actions import Moment
from ftslurm.dataclasses import dataclass
from ftslurm.records.state import State
from ftslurm.records.stop import SIGNAL, StopRequest

KILL_WAIT_MARGIN = 0.6
"""The part of Slurm's KillWait that ranks may use: the agents, ftsrun and the report need the rest."""
DOUBT_S, DOUBT_PART = 1.0, 0.25
"""How long an agent that received a signal waits to learn from the state whether the ranks of other nodes call
`should_stop`, in seconds; and the most of Slurm's KillWait that this may take."""


def takes_notice(polled_here: bool, state: State | None) -> bool | None:
    """Return whether the run's ranks take notice of a stop: a property of the script, not of this node's ranks now.

    Args:
        polled_here: a rank of this node has called `should_stop`.
        state: the newest one.

    Returns:
        None: not as far as is known here, but ranks of other nodes may just have begun to call it.
    """
    if polled_here or (state is not None and state.polled is not None):
        return True
    return None if state is not None and len(state.participants) > 1 else False


STACKS_S, STACKS_PART = 3.0, 0.25
"""Before the end of the grace by which the stacks of ranks that have not left are collected, in seconds; and the most
of the grace that this may be."""


@dataclass(frozen=True)
class Doubt:
    """A stop signal that arrived while it was unknown whether the ranks take notice of a stop.

    Attributes:
        number, received: the signal, and when.
        until_s: the monotonic second at which they count as ranks that do not.
    """

    number: int
    received: Moment
    until_s: float


class OrderlyStop:
    """The orderly stop that this agent asks for.

    Args:
        grace_s: the user's limit of seconds between a stop signal and SIGKILL.
        kill_wait_s: seconds after its SIGTERM at which Slurm kills everything.

    Attributes:
        request: what the coordinator is asked for; None: nothing.
        kill_at: the monotonic second at which the ranks are killed; None: no signal has begun their grace.
        signal: the name of the signal that began it.
        doubt: a signal about which is not decided yet; None: there is none.
    """

    def __init__(self, grace_s: float, kill_wait_s: float) -> None:
        self._grace_s = grace_s
        self._kill_wait_s = kill_wait_s
        self._latest = 0.0
        self._stacks_at: float | None = None
        self.request: StopRequest | None = None
        self.kill_at: float | None = None
        self.signal: str | None = None
        self.doubt: Doubt | None = None

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which a grace or a doubt ends."""
        moments = (self.kill_at, self._stacks_at, self.doubt.until_s if self.doubt is not None else None)
        return min((moment for moment in moments if moment is not None), default=None)

    def wait(self, number: int, now: Moment) -> None:
        """A signal has arrived, and it is unknown whether the ranks take notice of a stop."""
        self.doubt = Doubt(number, now, now.s + min(DOUBT_S, self._kill_wait_s * DOUBT_PART))

    def begin(self, name: str, now: Moment) -> StopRequest:
        """Return the request for a stop signal from outside; it begins the grace."""
        grace_s = min(self._grace_s, self._kill_wait_s)
        self.signal = name
        self.kill_at, self._latest = now.s + grace_s, now.s + self._grace_s
        self._stacks_at = self.kill_at - min(STACKS_S, STACKS_PART * grace_s)
        return StopRequest(SIGNAL, f"{name} from outside", now.ns, name, grace_s)

    def extend(self, ends_s: float) -> None:
        """Extend the grace, within the user's limit: Slurm sends its last SIGTERM at that monotonic second."""
        if self.kill_at is not None:
            later_s = max(0.0, min(ends_s + self._kill_wait_s, self._latest) - self.kill_at)
            self.kill_at += later_s
            if self._stacks_at is not None:
                self._stacks_at += later_s

    def stacks_due(self, now_s: float) -> bool:
        """Return, once, that the grace is nearly over: the ranks' stacks are to be collected."""
        if self._stacks_at is None or now_s < self._stacks_at:
            return False
        self._stacks_at = None
        return True
