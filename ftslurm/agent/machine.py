"""The agent's state machine: events in, actions out; it has no process, file or clock of its own.

The loop passes in events and carries out the returned actions, in order. A test is a history:
"rank 3 dies, then its peers abort, then SIGTERM arrives during the stop".
"""

from __future__ import annotations

import signal

from ftslurm import user_limits
from ftslurm.agent import actions as act
from ftslurm.agent.actions import Action, Moment
from ftslurm.agent.local_round import HANG_S
from ftslurm.agent.messages import end_reason, short, stop_reason
from ftslurm.agent.transitions import (
    GONE,
    IDLE,
    PREPARING,
    STANDBY_AFTER_S,
    STANDBY_AFTER_STEP_S,
    STANDBY_AGAIN_S,
    STOPPING,
    SWEEPING,
    Transitions,
)
from ftslurm.dataclasses import replace
from ftslurm.records.state import PERHAPS, RUNNING, SPAWN, STOPPED, SUCCEEDED, UNREACHABLE, Failure, State
from ftslurm.records.stop import StopRequest
from ftslurm.terminal import ERROR, WARNING
from ftslurm.text import duration


class AgentMachine(Transitions):
    """The agent of one node: its events, each a method that returns the actions to take.

    Arguments and attributes: see `Transitions`.
    """

    def on_state(self, state: State, now: Moment) -> list[Action]:
        """The newest state was read."""
        self._state = state
        return [*self._decide(now), *self._follow(state, now)]

    def _follow(self, state: State, now: Moment) -> list[Action]:
        if self.phase == SWEEPING and self._round is not None and self._round.swept:
            return self._finish_round(now)
        if self.phase != RUNNING:
            return self._advance(now)
        current = self._round
        assert current is not None
        if not current.is_current(state):
            past = state.past(current.assignment.round)
            # A rank that others have lost did perhaps not fail: its stack shows what kept it.
            by_peers = past is not None and past.failure is not None and past.failure.by_peers
            stacks = state.closed is not None and state.closed.outcome == STOPPED
            return self._stop(end_reason(state, current.assignment.round, self._attempt), now, stacks, by_peers)
        return self._collect_stacks() if state.hang is not None else self._advance(now)

    def on_prepared(self, prepared: act.Prepared, now: Moment) -> list[Action]:
        """A round was prepared here, or cannot be."""
        if self.phase != PREPARING or self._round is None or self._round.assignment.round != prepared.round:
            return []
        if self._leaving is not None or (self._state is not None and not self._round.is_current(self._state)):
            return self._sweep()
        if prepared.problem is not None:
            # The master's node or the shared directory may equally be at fault: no node is to blame yet.
            kind = UNREACHABLE if prepared.unreachable else SPAWN
            return self._fail_to_start(0, prepared.problem, now, kind, blame=None)
        self.phase = RUNNING
        self._round.alive = set(range(self._slots))
        self._standby_slots.on_emptied()
        self._standby_at = now.s + STANDBY_AFTER_S if self._standby_slots else None
        # Published first: starting may fail, and the record of that failure must be the last one.
        return [*self._publish(RUNNING), act.Spawn(self._round.assignment), self._round.record()]

    def on_spawn_failed(self, local_rank: int, problem: str, now: Moment, errno: int | None = None) -> list[Action]:
        """A worker could not be started; `local_rank` and those after it do not exist.

        Args:
            errno: the kernel's error number; None: unknown.
        """
        if self._round is None:
            return []
        self._round.alive -= set(range(local_rank, self._slots))
        blame = None if errno in user_limits.ERRNOS else PERHAPS
        return self._fail_to_start(local_rank, problem, now, SPAWN, blame)

    def on_worker_ended(self, end: act.WorkerEnd, now: Moment) -> list[Action]:
        """A worker's main process has ended."""
        current = self._round
        if current is None or end.local_rank not in current.alive:
            return []
        # A rank that failed after a stop signal has perhaps failed because of it.
        actions = self._decide(now, at_once=True) if end.failure is not None else []
        current.alive.discard(end.local_rank)
        current.ended[end.local_rank] = end
        if self.phase == STOPPING and not end.by_itself and not current.failed_before_stop(end):
            current.stopped.add(end.local_rank)
        elif end.failure is not None:
            actions += self._note_failure(current, end.failure)
            if self.phase == RUNNING and not (current.must_wait_for_stacks or self._others_may_save(end.failure)):
                actions += self._stop(stop_reason(end.failure), now, by_peers=end.failure.by_peers, first=True)
        if end.failure is not None:
            actions.append(act.RecordFailure(end.local_rank, end.local_rank in current.stopped))
        if self.phase == STOPPING and not current.alive:
            return [*actions, *self._sweep()]
        if self.phase == RUNNING and not current.alive and current.first is not None:
            return [*actions, *self._stop(stop_reason(current.first), now)]
        if self.phase == RUNNING and not current.alive:
            actions += [*self._publish(SUCCEEDED), current.record()]
        return actions

    def _others_may_save(self, failure: Failure) -> bool:
        """Return whether the other workers keep their grace although this one has failed; the state ends it."""
        state, current = self._state, self._round
        return (
            failure.leaving
            and state is not None
            and current is not None
            and current.is_current(state)
            and state.stop is not None
        )

    def on_hang(
        self, local_rank: int, what: str, number: int, step: int | None, now: Moment, since_s: float | None = None
    ) -> list[Action]:
        """A worker exceeded a time-out.

        Args:
            what: description of the time-out.
            number: the signal to end it with.
            step: the last training step that it reported.
            since_s: the monotonic second of its last progress.
        """
        current = self._round
        if self.phase != RUNNING or current is None or local_rank not in current.alive or local_rank in current.hung:
            return []
        current.hung[local_rank] = number
        if current.hang is not None:
            return []
        hang = self._hang = current.note_expiry(self.node, local_rank, what, step, now, since_s)
        self._deadline = now.s + HANG_S
        # The rank whose time is over is often one that waits for the rank that hangs: the stacks show which.
        text = f"round {hang.round} hangs (rank {hang.rank}: {short(what)}): collecting the stacks of all ranks"
        return [*self._publish(RUNNING), act.Log(text, ERROR), *self._collect_stacks()]

    def on_stacks_collected(self, now: Moment) -> list[Action]:
        """The stacks of the workers are collected, as far as possible."""
        current = self._round
        if current is None or current.stacks_collected:
            return []
        current.stacks_collected = True
        self._stacks_collected = current.assignment.round
        actions = self._publish(self._status)
        if self.phase == RUNNING and current.failed:
            assert current.first is not None
            actions += self._stop(stop_reason(current.first), now)
        return actions

    def on_ranks_begun(self, now: Moment) -> None:
        """A rank of this node has made its first step: their start is over."""
        if self._standby_at is not None:
            self._standby_at = min(self._standby_at, now.s + STANDBY_AFTER_STEP_S)

    def on_standby_ended(self, local_rank: int, now: Moment, by_itself: bool = True) -> list[Action]:
        """A standby worker has ended before it was used, or could not be started; not a failure of the job.

        Args:
            by_itself: False: it was found to be unusable, and the next one imports less; or nothing is known to import.
        """
        self._standby_slots.on_ended(local_rank, by_itself)
        if self.phase == RUNNING:
            self._standby_at = now.s + STANDBY_AGAIN_S
        return self._advance(now) if self.phase == IDLE else []

    def on_swept(self, now: Moment) -> list[Action]:
        """All processes started by the workers are gone."""
        if self.phase != SWEEPING:
            return []
        if self._round is not None:
            self._round.swept = True
        return self._finish_round(now)

    def on_compared(self, failure: Failure, signature: str | None, now: Moment) -> list[Action]:
        """The signature of a failure is known; None: it has none."""
        current = self._round
        if current is None or self._failure != failure:
            return []
        current.comparing = False
        if signature is not None:
            self._failure = current.first = replace(failure, signature=signature)
        if self.phase == SWEEPING and current.swept:
            return self._finish_round(now)
        return self._publish(self._status) if signature is not None else []

    def on_signal(self, number: int, now: Moment, stoppable: bool | None = False) -> list[Action]:
        """A signal from outside arrived at the agent.

        Args:
            stoppable: the ranks take notice of a stop (`ftslurm.should_stop`): they may save before they leave. None:
                that will be known soon, see `takes_notice`.
        """
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            alive = self._round.alive if self._round else set()
            return [act.Signal(tuple(sorted(alive)), number)] if alive else []
        # Slurm repeats its SIGTERM; only a second Ctrl-C is a deliberate user request.
        if self._leaving is not None:
            if self.phase != STOPPING or number != signal.SIGINT:
                return []
            return [act.Log("SIGINT again: the ranks are killed now", WARNING), *self._kill()]
        if self.orderly_stop.doubt is not None:
            return self._decide(now, at_once=True) if number == signal.SIGINT else []
        if self.orderly_stop.kill_at is not None:
            if number != signal.SIGINT:
                return []
            killed = f"killed in {duration(min(self._grace_s, self._kill_wait_s))}, or by a third"
            log = act.Log(f"SIGINT again: no save is waited for; the ranks get SIGTERM, and are {killed}", WARNING)
            return [log, *self._leave_by(number, now, ", twice: no save was waited for")]
        if stoppable is None and self.phase == RUNNING:
            self.orderly_stop.wait(number, now)
            return []
        if stoppable and self.phase == RUNNING:
            return self.on_stop_request(self.orderly_stop.begin(signal.Signals(number).name, now))
        return [act.Log(f"{signal.Signals(number).name} from outside: stopping", WARNING), *self._leave_by(number, now)]

    def _leave_by(self, number: int, now: Moment, more: str = "") -> list[Action]:
        name = signal.Signals(number).name
        return self._leave(f"{name} from outside{more}", name, 128 + number, now)

    def _decide(self, now: Moment, at_once: bool = False) -> list[Action]:
        """Decide about a signal that is in doubt, if that is possible now."""
        stop, state = self.orderly_stop, self._state
        doubt, current = stop.doubt, self._round
        if doubt is None:
            return []
        goes_on = self.phase == RUNNING and current is not None and state is not None and current.is_current(state)
        if goes_on and not at_once and self._leaving is None:
            assert state is not None
            if state.polled is not None:
                stop.doubt = None
                return self.on_stop_request(stop.begin(signal.Signals(doubt.number).name, doubt.received))
            if now.s < doubt.until_s:
                return []
        stop.doubt = None
        if self._leaving is not None:
            return []
        log = act.Log(f"{signal.Signals(doubt.number).name} from outside: stopping", WARNING)
        return [log, *self._leave_by(doubt.number, now)]

    def on_stop_request(self, request: StopRequest) -> list[Action]:
        """Something on this node asks for an orderly stop of the run."""
        if self._leaving is not None or self.orderly_stop.request is not None:
            return []
        self.orderly_stop.request = request
        once_more = "; once more: without waiting for them" if request.signal == "SIGINT" else ""
        text = f"{request.reason}: asking the ranks to stop{once_more}"
        return [act.Log(text, WARNING), *self._publish(self._status)]

    def on_evicted(self, reason: str, code: int, now: Moment) -> list[Action]:
        """This agent may not go on (superseded, its guardian died, a refusal): stop everything and leave."""
        if self._leaving is not None:
            return []
        return self._leave(reason, None, code, now)

    def on_unkillable(self, processes: str, now: Moment) -> list[Action]:
        """Killed processes still exist (a driver or a filesystem holds them in the kernel): leave if that is due."""
        text = f"{processes}: killed, but hanging in the kernel"
        actions: list[Action] = [] if text == self._unkillable else [act.Log(text, ERROR)]
        self._unkillable = text
        if (verdict := self._verdict()) is not None:
            code = verdict.exit_code
        elif self._leaving is not None:
            code = self._leaving[2]
        else:
            # Others may go on without this node; it takes part again when it is clean.
            return actions
        return [*actions, *self._go(code)]

    def on_time(self, now: Moment) -> list[Action]:
        """The deadline has passed."""
        kill_at = self.orderly_stop.kill_at
        if kill_at is not None and now.s >= kill_at:
            return self._end_grace(now)
        if self.orderly_stop.stacks_due(now.s) and self._round is not None and self._round.alive:
            # Ranks that take notice of a stop, and have not left: perhaps because one of them hangs.
            request = self.orderly_stop.request
            reason = request.reason if request is not None else "the grace is over"
            return self._collect_stacks(reason, reason)
        if self.orderly_stop.doubt is not None and now.s >= self.orderly_stop.doubt.until_s:
            return self._decide(now)
        if self._deadline is None or now.s < self._deadline:
            return self._start_due_standbys(now)
        self._deadline = None
        if self.phase == STOPPING:
            return self._kill()
        if self.phase == RUNNING and self._round is not None and self._round.hang is not None:
            return self._stop(stop_reason(self._round.hang.failure()), now)
        if self.phase == GONE and self._leaving is not None:
            return [act.Exit(self._leaving[2])]
        return []

    def _start_due_standbys(self, now: Moment) -> list[Action]:
        current = self._round
        if self.phase != RUNNING or self._standby_at is None or now.s < self._standby_at:
            return []
        self._standby_at = None
        if current is None or not current.alive or self.orderly_stop.request is not None:
            # Ranks that have succeeded, or are to stop, need none.
            return []
        return self._start_standbys()
