"""The transitions of an agent between its phases: begin a round, stop it, kill and sweep its workers, leave.

Each returns the actions that it takes; what causes it is an event of `ftslurm.agent.machine`.
"""

from __future__ import annotations

import signal

from ftslurm.agent import actions as act
from ftslurm.agent.actions import Action, Moment
from ftslurm.agent.local_round import LocalRound
from ftslurm.agent.messages import failure_line, stop_reason
from ftslurm.agent.orderly_stop import OrderlyStop
from ftslurm.agent.standby_slots import StandbySlots
from ftslurm.records.state import FAILED, LEFT, READY, RUNNING, Closed, Failure, Hang, State
from ftslurm.terminal import ERROR

IDLE, PREPARING, STOPPING, SWEEPING, GONE = "idle", "preparing", "stopping", "sweeping", "gone"

STANDBY_AFTER_S, STANDBY_AFTER_STEP_S = 30.0, 1.0
"""Seconds after the start of the ranks, or after their first step if that is known, until standby workers are started:
they must not compete with the ranks' own start."""
STANDBY_AGAIN_S = 3.0
"""Seconds until another one is started beside ranks."""
FAREWELL_S = 1.0
"""Seconds that an agent requested to leave waits for the verdict on the whole job."""


class Transitions:
    """The state of one node's agent, and what changes it.

    Args:
        node, incarnation, attempt, slots: of this agent.
        grace_s: seconds between SIGTERM and SIGKILL when a round is stopped.
        kill_wait_s: the same when Slurm stops the job: it kills everything KillWait seconds after its SIGTERM.
        orderly_grace_s: seconds that ranks which call `should_stop` may take; None: `grace_s`.
        standby: keep standby workers while a round runs.

    Attributes:
        orderly_stop: as this agent asks for it.
    """

    def __init__(
        self,
        node: str,
        incarnation: str,
        attempt: str,
        slots: int,
        grace_s: float,
        kill_wait_s: float,
        standby: bool = False,
        orderly_grace_s: float | None = None,
    ) -> None:
        self.node = node
        self._incarnation = incarnation
        self._attempt = attempt
        self._slots = slots
        self._grace_s = grace_s
        self._kill_wait_s = kill_wait_s
        self._standby_slots = StandbySlots(slots if standby else 0)
        self._standby_at: float | None = None
        self.phase = IDLE
        self._state: State | None = None
        self._round: LocalRound | None = None
        self._newest_round = 0
        self._hang: Hang | None = None
        self._stacks_collected = 0
        self._failure: Failure | None = None
        self._status = READY
        self._leaving: tuple[str, str | None, int] | None = None
        self._deadline: float | None = None
        self._unkillable: str | None = None
        self.orderly_stop = OrderlyStop(grace_s if orderly_grace_s is None else orderly_grace_s, kill_wait_s)

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `on_time` wants to be called."""
        standby_at = self._standby_at if self.phase == RUNNING else None
        moments = (self._deadline, self.orderly_stop.deadline, standby_at)
        return min((moment for moment in moments if moment is not None), default=None)

    def runs(self, state: State) -> bool:
        """Return whether the workers of the state's round run here."""
        return self.phase == RUNNING and self._round is not None and self._round.is_current(state)

    def _finish_round(self, now: Moment) -> list[Action]:
        current = self._round
        # The next round must not form before it is known whether it would fail like this one. An agent that leaves
        # anyway does not wait for a file that may hang.
        if current is not None and current.comparing and self._leaving is None and self._verdict() is None:
            return []
        actions: list[Action] = [] if current is None else [current.record(over=True), act.ForgetRound()]
        self._round = None
        self.phase = IDLE
        self._deadline = None
        return [*actions, *self._publish(READY, new_port=True), *self._advance(now)]

    def _advance(self, now: Moment) -> list[Action]:
        state = self._state
        if state is None:
            return []
        if (verdict := self._verdict()) is not None:
            # Only after its workers are gone.
            return self._go(verdict.exit_code) if self.phase in (IDLE, GONE) else []
        if self.phase != IDLE or self._leaving is not None:
            return self._depart(now) if self.phase == IDLE else []
        return self._take_part(state)

    def _verdict(self) -> Closed | None:
        """Return how this attempt has ended; None while it goes on."""
        state = self._state
        return state.closed if state is not None and state.attempt == self._attempt else None

    def _take_part(self, state: State) -> list[Action]:
        part = state.participant(self.node, self._incarnation)
        if state.phase != RUNNING or state.attempt != self._attempt or state.round <= self._newest_round:
            return []
        if part is None:
            return self._start_standbys()
        assignment = act.assignment_of(state, part)
        if assignment is None:
            return []
        self._newest_round = state.round
        self._round = LocalRound(assignment)
        self._failure = self._hang = None
        self.phase = PREPARING
        return [act.Prepare(assignment)]

    def _start_standbys(self) -> list[Action]:
        self._standby_at = None
        slots = self._standby_slots.take()
        return [act.StartStandbys(slots)] if slots else []

    def _go(self, code: int) -> list[Action]:
        self.phase = GONE
        self._deadline = None
        return [*self._publish(LEFT), act.Exit(code)]

    def _note_failure(self, current: LocalRound, failure: Failure) -> list[Action]:
        if not current.note_failure(failure):
            return []
        self._failure = failure
        compare = [act.Compare(failure)] if current.comparing else []
        return [*self._publish(FAILED), act.Log(failure_line(failure), ERROR), *compare]

    def _collect_stacks(self, stop: str | None = None, after: str | None = None, urgent: bool = True) -> list[Action]:
        """Collect stacks and records of the workers, once in a round; see `CollectStacks` for the arguments."""
        current = self._round
        assert current is not None
        if current.collecting_stacks:
            return []
        current.collecting_stacks = True
        return [act.CollectStacks(tuple(sorted(current.alive)), stop, after, urgent)]

    def _fail_to_start(self, local_rank: int, problem: str, now: Moment, kind: str, blame: str | None) -> list[Action]:
        current = self._round
        assert current is not None
        failure = current.start_failure(self.node, local_rank, problem, kind, blame, now.ns)
        self.phase = RUNNING
        actions = self._note_failure(current, failure)
        return actions + self._stop(stop_reason(failure), now)

    def _stop(
        self, reason: str, now: Moment, stacks: bool = False, by_peers: bool = False, first: bool = False
    ) -> list[Action]:
        """Stop the workers.

        Args:
            stacks: collect their stacks before: no failure of their own or of another rank shows where they are.
            by_peers: collect them before: one of them is perhaps the cause of another rank's failure.
            first: no rank of the round, on any node, has been stopped before.
        """
        current = self._round
        assert current is not None
        if not current.alive:
            return self._sweep()
        after = None if first else reason
        collection = self._collect_stacks(reason, after, urgent=not by_peers) if stacks or by_peers else []
        signals = current.stop(reason, now.ns)
        if current.hang is not None:
            self._failure = current.first
        self.phase = STOPPING
        grace_s = self._grace_s if self._leaving is None else min(self._grace_s, self._kill_wait_s)
        self._deadline = now.s + grace_s
        if (kill_at := self.orderly_stop.kill_at) is not None:
            # Ranks that have left for the stop keep its grace when the round ends for another reason.
            self._deadline = min(self._deadline, kill_at) if self._leaving is not None else kill_at
        actions = self._publish(FAILED) if current.hang is not None else []
        return [*actions, *collection, *signals]

    def _end_grace(self, now: Moment) -> list[Action]:
        """The grace of an orderly stop is over: kill the ranks that have not left, and leave."""
        request, name = self.orderly_stop.request, self.orderly_stop.signal
        self.orderly_stop.kill_at = None
        if self._leaving is not None or request is None or name is None:
            return self._kill() if self.phase == STOPPING else []
        # By the signal that began the grace; the request may be an earlier one, as a notice or a signal to one rank.
        actions = self._leave(request.reason, name, 128 + signal.Signals[name].value, now)
        return [*actions, *self._kill()] if self.phase == STOPPING else actions

    def _kill(self) -> list[Action]:
        current = self._round
        assert current is not None
        current.killed |= current.alive
        self._deadline = None
        return [act.Signal(tuple(sorted(current.alive)), signal.SIGKILL)]

    def _sweep(self) -> list[Action]:
        self.phase = SWEEPING
        self._deadline = None
        # They are for the round that follows, if one may.
        keep = bool(self._standby_slots) and self._leaving is None and self._verdict() is None
        return [act.KillLeftovers(keep)]

    def _leave(self, reason: str, name: str | None, code: int, now: Moment) -> list[Action]:
        self._leaving = (reason, name, code)
        # Their memory may be what the ranks need to save.
        actions = [*self._publish(self._status), *([act.DropStandbys()] if self._standby_slots else [])]
        if self.phase == RUNNING:
            return [*actions, *self._stop(reason, now, stacks=name is not None)]
        if self.phase == STOPPING and self._deadline is not None:
            # A stop is in progress, perhaps with a longer grace period than Slurm allows.
            self._deadline = min(self._deadline, now.s + self._kill_wait_s)
        if self.phase == PREPARING:
            # Nothing was started yet, and the shared directory may hang for good.
            return [*actions, *self._sweep()]
        if self.phase == IDLE:
            return [*actions, *self._depart(now)]
        if self.phase == SWEEPING and self._round is not None and self._round.swept:
            return [*actions, *self._finish_round(now)]
        return actions

    def _depart(self, now: Moment) -> list[Action]:
        """Publish that this node has left, and wait briefly for the verdict, whose exit code has precedence."""
        assert self._leaving is not None
        self.phase = GONE
        self._deadline = now.s + (FAREWELL_S if self._leaving[1] else 0.0)
        return self._publish(LEFT)

    def _publish(self, status: str, new_port: bool = False) -> list[Action]:
        self._status = status
        reason, name = (self._leaving[0], self._leaving[1]) if self._leaving else (None, None)
        return [
            act.Publish(
                status,
                self._newest_round,
                self._failure,
                reason,
                name,
                self._hang,
                self._stacks_collected,
                new_port,
                self.orderly_stop.request,
            )
        ]
