"""How the agent's loop follows an orderly stop: passes each step of the agreement on to the ranks, and answers it."""

from __future__ import annotations

from ftslurm.agent.effects import Effects
from ftslurm.agent.machine import AgentMachine
from ftslurm.dataclasses import replace
from ftslurm.records.state import State
from ftslurm.records.stop import Stop, StopVote


class StopFollower:
    """Follows the orderly stop of the newest state.

    Args:
        effects: reach the ranks.
        machine: the agent's; it has the time at which the ranks are killed.

    Attributes:
        vote: this node's answer; None: nothing was proposed.
    """

    def __init__(self, effects: Effects, machine: AgentMachine) -> None:
        self._effects = effects
        self._machine = machine
        self._stop: Stop | None = None
        self._kill_at: float | None = None
        self._announced_end: float | None = None
        self._late: StopVote | None = None
        self.vote: StopVote | None = None

    def follow(self, state: State | None) -> None:
        """Pass the stop of the newest state on, if it or the grace has changed, and its round's workers run here."""
        stop = state.stop if state is not None else None
        if state is None or stop is None or not self._machine.runs(state):
            return
        end = state.job_end
        if end is not None and end.preempted and end.end_ns is not None:
            left_s = (end.end_ns - self._effects.now_ns()) / 1e9
            self._machine.orderly_stop.extend(self._effects.monotonic() + left_s)
        if self._stop is None and stop.grace_s is not None:
            self._announced_end = self._effects.monotonic() + stop.grace_s
        # A notice has how long the node has left; only a signal has this agent kill the ranks then.
        kill_at = self._machine.orderly_stop.kill_at or self._announced_end
        if (stop, kill_at) == (self._stop, self._kill_at):
            return
        self._stop, self._kill_at = stop, kill_at
        self.vote = self._effects.follow_stop(stop, kill_at)

    def on_worker_ended(self) -> None:
        """Renew the answer: the record of how the workers have ended has where they left."""
        if self._stop is not None:
            vote = self._effects.follow_stop(self._stop, self._kill_at)
            late = self._late
            self.vote = replace(vote, late=late.late if late else None, saving=late is not None and late.saving)

    def on_signal(self) -> None:
        """Renew the answer before a further signal reaches the ranks: it has where they are now."""
        if self._stop is not None:
            self.vote = self._effects.follow_stop(self._stop, self._kill_at)
            self._late = self.vote

    def on_time(self, now_s: float) -> None:
        """Renew the answer when the grace is over: it has where the ranks are that are killed then."""
        kill_at = self._machine.orderly_stop.kill_at
        if self._stop is not None and kill_at is not None and kill_at <= now_s:
            self.vote = self._effects.follow_stop(self._stop, kill_at)
            self._late = self.vote

    def forget_round(self) -> None:
        """Forget the round's workers; the answer stays."""
        self._stop = None
