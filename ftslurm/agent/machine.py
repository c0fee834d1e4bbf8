"""The agent's state machine: events in, actions out; it has no process, file or clock of its own.

The loop passes in events and carries out the returned actions, in order. A test is a history:
"rank 3 dies, then its peers abort, then SIGTERM arrives during the stop".
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from ftslurm import user_limits
from ftslurm.agent.actions import (
    Action,
    Assignment,
    CollectStacks,
    Compare,
    Exit,
    KillLeftovers,
    Log,
    Moment,
    Prepare,
    Prepared,
    Publish,
    RecordRound,
    Signal,
    Spawn,
    StartStandbys,
    WorkerEnd,
)
from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.rendezvous.state import (
    CLOSED,
    FAILED,
    HANG,
    LEFT,
    PERHAPS,
    READY,
    RUNNING,
    SPAWN,
    STOPPED,
    SUCCEEDED,
    UNREACHABLE,
    Failure,
    Hang,
    State,
)

IDLE, PREPARING, STOPPING, SWEEPING, GONE = "idle", "preparing", "stopping", "sweeping", "gone"

HANG_S = 15.0
"""Seconds that a hang waits for the coordinator's decision before its agent stops its own workers: the shared directory
may hang, and that must not keep a broken round alive. Longer than the coordinator waits for all nodes' stacks."""

STANDBY_DEATHS = 3
"""Number of standby workers that may die in one slot; after that their imports are taken to be the cause."""

FAREWELL_S = 1.0
"""Seconds that an agent requested to leave waits for the verdict on the whole job."""


@dataclass
class _Round:
    assignment: Assignment
    alive: set[int]
    ended: dict[int, WorkerEnd] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    first: Failure | None = None
    hung: dict[int, int] = field(default_factory=dict)
    hang: Hang | None = None
    collecting_stacks: bool = False
    stacks_collected: bool = False
    comparing: bool = False
    swept: bool = False
    stop_reason: str | None = None
    stop_ns: int | None = None


class AgentMachine:
    """The agent of one node.

    Args:
        node, incarnation, attempt, slots: of this agent.
        grace_s: seconds between SIGTERM and SIGKILL when a round is stopped.
        kill_wait_s: the same when Slurm stops the job: it kills everything KillWait seconds after its SIGTERM.
        standby: as a spare, keep standby workers.
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
    ) -> None:
        self.node = node
        self._incarnation = incarnation
        self._attempt = attempt
        self._slots = slots
        self._grace_s = grace_s
        self._kill_wait_s = kill_wait_s
        self._standby_chances = dict.fromkeys(range(slots if standby else 0), STANDBY_DEATHS)
        self._cold = set(self._standby_chances)
        self.phase = IDLE
        self._state: State | None = None
        self._round: _Round | None = None
        self._newest_round = 0
        self._hang: Hang | None = None
        self._stacks_collected = 0
        self._failure: Failure | None = None
        self._status = READY
        self._leaving: tuple[str, str | None, int] | None = None
        self._deadline: float | None = None
        self._unkillable: str | None = None

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `on_time` wants to be called."""
        return self._deadline

    def stopped(self, local_rank: int) -> bool:
        """Return whether ftslurm stopped that worker of the current round."""
        return self._round is not None and local_rank in self._round.stopped

    # Events

    def on_state(self, state: State, now: Moment) -> list[Action]:
        """The newest state was read."""
        self._state = state
        if self.phase == SWEEPING and self._round is not None and self._round.swept:
            return self._finish_round(now)
        if self.phase != RUNNING:
            return self._advance(now)
        if not self._is_current(state):
            return self._stop(self._round_end_reason(state), now)
        return self._collect_stacks() if state.hang is not None else self._advance(now)

    def on_prepared(self, prepared: Prepared, now: Moment) -> list[Action]:
        """A round was prepared here, or cannot be."""
        if self.phase != PREPARING or self._round is None or self._round.assignment.round != prepared.round:
            return []
        if self._leaving is not None or (self._state is not None and not self._is_current(self._state)):
            return self._sweep()
        if prepared.problem is not None:
            # The master's node or the shared directory may equally be at fault: no node is to blame yet.
            kind = UNREACHABLE if prepared.unreachable else SPAWN
            return self._fail_to_start(0, prepared.problem, now, kind, blame=None)
        self.phase = RUNNING
        self._round.alive = set(range(self._slots))
        # Published first: starting may fail, and the record of that failure must be the last one.
        return [*self._publish(RUNNING), Spawn(self._round.assignment), self._record()]

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

    def on_worker_ended(self, end: WorkerEnd, now: Moment) -> list[Action]:
        """A worker's main process has ended."""
        current = self._round
        if current is None or end.local_rank not in current.alive:
            return []
        current.alive.discard(end.local_rank)
        current.ended[end.local_rank] = end
        actions: list[Action] = []
        if self.phase == STOPPING and not self._before_the_stop(current, end):
            current.stopped.add(end.local_rank)
        elif end.failure is not None:
            actions += self._note_failure(current, end.failure)
            # While stacks are collected, a failing rank must not stop ranks whose stacks are still missing.
            if self.phase == RUNNING and (
                not current.collecting_stacks or current.stacks_collected or not current.alive
            ):
                actions += self._stop(_of_rank(end.failure), now)
        if self.phase == STOPPING and not current.alive:
            return [*actions, *self._sweep()]
        if self.phase == RUNNING and not current.alive:
            actions += [*self._publish(SUCCEEDED), self._record()]
        return actions

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
        part = current.assignment
        rank = part.first_rank + local_rank
        since_ns = None if since_s is None else now.ns - round((now.s - since_s) * 1e9)
        text = short(what, 500)
        self._hang = current.hang = Hang(part.round, self.node, rank, local_rank, now.ns, text, step, since_ns)
        self._deadline = now.s + HANG_S
        return [
            *self._publish(RUNNING),
            Log(f"round {part.round}: rank {rank} hangs: {short(what)}"),
            *self._collect_stacks(),
        ]

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
            actions += self._stop(_of_rank(current.first), now)
        return actions

    def on_standby_ended(self, local_rank: int, now: Moment) -> list[Action]:
        """A standby worker has ended before it was used, or could not be started; not a failure of the job."""
        self._standby_chances[local_rank] -= 1
        self._cold.add(local_rank)
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

    def on_signal(self, number: int, now: Moment) -> list[Action]:
        """A signal from outside arrived at the agent."""
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            alive = self._round.alive if self._round else set()
            return [Signal(tuple(sorted(alive)), number)] if alive else []
        name = signal.Signals(number).name
        if self._leaving is not None:
            # Slurm repeats its SIGTERM; only a second Ctrl-C is a deliberate user request.
            return self._kill() if self.phase == STOPPING and number == signal.SIGINT else []
        return self._leave(f"{name} from outside", name, 128 + number, now)

    def on_evicted(self, reason: str, code: int, now: Moment) -> list[Action]:
        """This agent may not go on (superseded, its guardian died, a refusal): stop everything and leave."""
        if self._leaving is not None:
            return []
        return self._leave(reason, None, code, now)

    def on_unkillable(self, processes: str, now: Moment) -> list[Action]:
        """Killed processes still exist (a driver or a filesystem holds them in the kernel): leave if that is due."""
        text = f"{processes}: killed, but hanging in the kernel"
        actions: list[Action] = [] if text == self._unkillable else [Log(text)]
        self._unkillable = text
        state = self._state
        if state is not None and state.attempt == self._attempt and state.closed is not None:
            code = state.closed.exit_code
        elif self._leaving is not None:
            code = self._leaving[2]
        else:
            # Others may go on without this node; it takes part again when it is clean.
            return actions
        self.phase = GONE
        self._deadline = None
        return [*actions, *self._publish(LEFT), Exit(code)]

    def on_time(self, now: Moment) -> list[Action]:
        """The deadline has passed."""
        if self._deadline is None or now.s < self._deadline:
            return []
        self._deadline = None
        if self.phase == STOPPING:
            return self._kill()
        if self.phase == RUNNING and self._round is not None and self._round.hang is not None:
            return self._stop(_of_rank(self._round.hang.failure()), now)
        if self.phase == GONE and self._leaving is not None:
            return [Exit(self._leaving[2])]
        return []

    # Decisions

    def _finish_round(self, now: Moment) -> list[Action]:
        current = self._round
        # The next round must not form before it is known whether it would fail like this one. An agent that leaves
        # anyway does not wait for a file that may hang.
        if current is not None and current.comparing and self._leaving is None and not self._is_closed():
            return []
        actions: list[Action] = [] if current is None else [self._record(over=True)]
        self._round = None
        self.phase = IDLE
        self._deadline = None
        return [*actions, *self._publish(READY, new_port=True), *self._advance(now)]

    def _advance(self, now: Moment) -> list[Action]:
        state = self._state
        if state is None:
            return []
        if self._is_closed() and state.closed is not None:
            return self._follow_closed(state.closed.exit_code)
        if self.phase != IDLE or self._leaving is not None:
            return self._depart(now) if self.phase == IDLE else []
        return self._take_part(state)

    def _is_closed(self) -> bool:
        state = self._state
        return state is not None and state.attempt == self._attempt and state.phase == CLOSED

    def _follow_closed(self, code: int) -> list[Action]:
        if self.phase not in (IDLE, GONE):
            # Only after its workers are gone.
            return []
        self.phase = GONE
        self._deadline = None
        return [*self._publish(LEFT), Exit(code)]

    def _take_part(self, state: State) -> list[Action]:
        part = state.participant(self.node, self._incarnation)
        if state.phase != RUNNING or state.attempt != self._attempt or state.round <= self._newest_round:
            return []
        if part is None:
            return self._warm_up()
        if state.master is None:
            return []
        assignment = Assignment(
            state.round,
            state.attempt,
            part.group_rank,
            len(state.participants),
            part.first_rank,
            part.slots,
            state.world_size,
            state.master,
            state.restarts_used,
            state.max_restarts,
            tuple(participant.node for participant in state.participants),
        )
        self._newest_round = state.round
        self._round = _Round(assignment, set())
        self._failure = self._hang = None
        self.phase = PREPARING
        return [Prepare(assignment)]

    def _warm_up(self) -> list[Action]:
        cold, self._cold = self._cold, set()
        startable = tuple(sorted(rank for rank in cold if self._standby_chances[rank] > 0))
        return [StartStandbys(startable)] if startable else []

    def _is_current(self, state: State) -> bool:
        current = self._round
        return (
            current is not None
            and state.attempt == self._attempt
            and state.phase == RUNNING
            and state.round == current.assignment.round
        )

    def _round_end_reason(self, state: State) -> str:
        if state.attempt != self._attempt:
            return f"attempt {state.attempt} has taken over"
        assert self._round is not None
        past = state.past(self._round.assignment.round)
        if past is not None and past.reason:
            return past.reason
        return state.closed.reason if state.closed else "the round is over"

    def _before_the_stop(self, current: _Round, end: WorkerEnd) -> bool:
        """Return whether the worker failed by itself before the stop request, although it ended after it."""
        at = end.recorded_ns if end.recorded_ns is not None else end.ended_ns
        return current.stop_ns is not None and at < current.stop_ns

    def _note_failure(self, current: _Round, failure: Failure) -> list[Action]:
        current.failed.add(failure.local_rank)
        first = current.first
        # A rank may have failed before the one whose process ended first: its teardown took longer.
        if first is not None and (first.kind == HANG or failure.time_ns >= first.time_ns):
            return []
        current.first = self._failure = failure
        step = "" if failure.step is None else f" at step {failure.step}"
        what = f"rank {failure.rank} failed{step}" if failure.kind != UNREACHABLE else "cannot begin"
        current.comparing = failure.at_start and failure.signature is None
        return [
            *self._publish(FAILED),
            Log(f"round {failure.round}: {what}: {short(failure.message)}"),
            *([Compare(failure)] if current.comparing else []),
        ]

    def _collect_stacks(self) -> list[Action]:
        current = self._round
        assert current is not None
        if current.collecting_stacks:
            return []
        current.collecting_stacks = True
        return [CollectStacks(tuple(sorted(current.alive)))]

    def _fail_to_start(self, local_rank: int, problem: str, now: Moment, kind: str, blame: str | None) -> list[Action]:
        current = self._round
        assert current is not None
        rank = current.assignment.first_rank + local_rank
        failure = Failure(
            current.assignment.round,
            self.node,
            rank,
            local_rank,
            now.ns,
            kind,
            None,
            None,
            problem[:500],
            None,
            blame=blame,
        )
        self.phase = RUNNING
        actions = self._note_failure(current, failure)
        return actions + self._stop(_of_rank(failure), now)

    def _stop(self, reason: str, now: Moment) -> list[Action]:
        current = self._round
        assert current is not None
        if not current.alive:
            return self._sweep()
        current.stop_reason = reason
        current.stop_ns = now.ns
        if current.hang is not None and current.first is None:
            current.first = self._failure = current.hang.failure()
        self.phase = STOPPING
        grace_s = self._grace_s if self._leaving is None else min(self._grace_s, self._kill_wait_s)
        self._deadline = now.s + grace_s
        actions = self._publish(FAILED) if current.hang is not None else []
        hung = {local_rank: number for local_rank, number in current.hung.items() if local_rank in current.alive}
        current.killed |= {local_rank for local_rank, number in hung.items() if number == signal.SIGKILL}
        # A stopped process (SIGSTOP) reacts to no signal but these two.
        ends = [Signal((rank,), number) for rank, one in sorted(hung.items()) for number in (signal.SIGCONT, one)]
        others = tuple(sorted(current.alive - set(hung)))
        return [*actions, *ends, *([Signal(others, signal.SIGTERM)] if others else [])]

    def _kill(self) -> list[Action]:
        current = self._round
        assert current is not None
        current.killed |= current.alive
        self._deadline = None
        return [Signal(tuple(sorted(current.alive)), signal.SIGKILL)]

    def _sweep(self) -> list[Action]:
        self.phase = SWEEPING
        self._deadline = None
        self._cold = set(self._standby_chances)
        return [KillLeftovers()]

    def _leave(self, reason: str, name: str | None, code: int, now: Moment) -> list[Action]:
        self._leaving = (reason, name, code)
        actions = self._publish(self._status)
        if self.phase == RUNNING:
            return [*actions, *self._stop(reason, now)]
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
            Publish(
                status, self._newest_round, self._failure, reason, name, self._hang, self._stacks_collected, new_port
            )
        ]

    def _record(self, over: bool = False) -> RecordRound:
        current = self._round
        assert current is not None
        outcome = RUNNING
        if current.failed or current.hang is not None:
            outcome = FAILED
        elif not current.alive and not current.stopped and current.ended:
            outcome = SUCCEEDED
        elif over:
            outcome = STOPPED
        return RecordRound(
            current.assignment,
            outcome,
            current.stop_reason,
            current.stop_ns,
            frozenset(current.stopped),
            frozenset(current.killed),
            frozenset(current.failed),
            current.hang,
            over or outcome == SUCCEEDED,
        )


def short(text: str, length: int = 160) -> str:
    """Return `text`, truncated to one line of a terminal; the report has the whole text."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _of_rank(failure: Failure) -> str:
    if failure.kind == UNREACHABLE:
        return failure.message
    return f"rank {failure.rank} on {failure.node} {'hung' if failure.kind == HANG else 'failed'}"


def exit_code(actions: Iterable[Action]) -> int | None:
    """Return the code of the Exit among `actions`, None if there is none."""
    return next((action.code for action in actions if isinstance(action, Exit)), None)
