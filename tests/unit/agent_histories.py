"""An agent's machine with its events, for histories: "rank 3 dies, then its peers abort, then SIGTERM arrives"."""

from __future__ import annotations

import signal
from dataclasses import replace

from ftslurm.agent.actions import (
    Action,
    Moment,
    Prepared,
    Publish,
    RecordRound,
    Spawn,
    WorkerEnd,
)
from ftslurm.agent.machine import (
    AgentMachine,
)
from ftslurm.records.state import (
    CLOSED,
    READY,
    RUNNING,
    Closed,
    Failure,
    Hang,
    Lease,
    Master,
    Participant,
    RoundHistory,
    State,
)

SECOND = 1_000_000_000
TERM, KILL, INT, USR1 = signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGUSR1
CONT = signal.SIGCONT
HANG_ELSEWHERE = Hang(1, "n1", 0, 0, 5, "no heartbeat for 30.0 s", None)


def history(round_: int, outcome: str = RUNNING, reason: str | None = None) -> RoundHistory:
    return RoundHistory(round_, "12.0", ("n1", "n2"), 4, 0, None, outcome, reason, None)


def state(round_: int = 1, phase: str = RUNNING, **changes: object) -> State:
    parts = (Participant("n1", "i2", 2, 0, 0), Participant("n2", "i1", 2, 2, 1))
    base = State(
        "r", "12.0", ("12.0",), ("n1", "n2"), 2, 2, 3, round_ - 1, Lease("n1", "i2", 1), phase, round_,
        parts, 4, Master("n1", 20_000), (), (history(round_),), None,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def closed(outcome: str, reason: str, code: int, **changes: object) -> State:
    return state(phase=CLOSED, closed=Closed(outcome, reason, code, 0), **changes)


class Agent:
    """The agent of n2 with ranks 2 and 3; each method is an event and returns the actions that follow.

    Time advances by one second with each event. A `Spawn` for which `cannot_start` is set fails at once, inside the
    list of actions, as it does in the loop.

    Attributes:
        published: the last node record.
        log: all actions.
    """

    def __init__(self, grace_s: float = 15.0, kill_wait_s: float = 18.0, standby: bool = False) -> None:
        self.machine = AgentMachine("n2", "i1", "12.0", 2, grace_s, kill_wait_s, standby)
        self.seconds = 100.0
        self.cannot_start: int | None = None
        self.errno: int | None = None
        self.published = Publish(READY, 0, None, None, None)
        self.log: list[Action] = []

    def now(self) -> Moment:
        return Moment(self.seconds, round(self.seconds * SECOND))

    def done(self, actions: list[Action]) -> list[Action]:
        done: list[Action] = []
        for action in actions:
            done.append(action)
            if isinstance(action, Publish):
                self.published = action
            if isinstance(action, Spawn) and self.cannot_start is not None:
                problem = "cannot start python: No such file"
                done += self.done(self.machine.on_spawn_failed(self.cannot_start, problem, self.now(), self.errno))
        self.log += done
        return done

    def tick(self, seconds: float = 1.0) -> list[Action]:
        self.seconds += seconds
        return self.done(self.machine.on_time(self.now()))

    def reads(self, new: State) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_state(new, self.now()))

    def prepared(self, round_: int = 1, problem: str | None = None) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_prepared(Prepared(round_, problem), self.now()))

    def ends(
        self,
        local: int,
        code: int | None = 0,
        by: int | None = None,
        recorded_ago_s: float | None = None,
        ago_s: float = 0,
        at_start: bool = False,
        leaving: bool = False,
        by_itself: bool = False,
    ) -> list[Action]:
        self.seconds += 1
        ended = round((self.seconds - ago_s) * SECOND)
        recorded = None if recorded_ago_s is None else round((self.seconds - recorded_ago_s) * SECOND)
        name = signal.Signals(by).name if by else None
        failure = None
        if by or code:
            kind = "signal" if by else "exit"
            round_ = self.machine._newest_round
            failure = Failure(
                round_, "n2", 2 + local, local, ended, kind, None if by else code, name, "boom", 7, at_start,
                leaving=leaving,
            )  # fmt: skip
        end = WorkerEnd(local, None if by else code, name, ended, recorded, failure, by_itself)
        return self.done(self.machine.on_worker_ended(end, self.now()))

    def compared(self, failure: Failure, signature: str | None = "same") -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_compared(failure, signature, self.now()))

    def hangs(self, local: int, number: int = KILL) -> list[Action]:
        self.seconds += 1
        now = self.now()
        return self.done(self.machine.on_hang(local, "no heartbeat for 30.0 s", number, 7, now, now.s - 30))

    def stacks_collected(self) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_stacks_collected(self.now()))

    def standby_ends(self, local: int, by_itself: bool = True) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_standby_ended(local, self.now(), by_itself))

    def swept(self) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_swept(self.now()))

    def signalled(self, number: int, stoppable: bool | None = False) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_signal(number, self.now(), stoppable))

    def evicted(self, reason: str) -> list[Action]:
        self.seconds += 1
        return self.done(self.machine.on_evicted(reason, 1, self.now()))

    @property
    def record(self) -> RecordRound:
        return [action for action in self.log if isinstance(action, RecordRound)][-1]


def running(round_: int = 1, **how: float) -> Agent:
    agent = Agent(**how)
    agent.reads(state(round_))
    agent.prepared(round_)
    agent.log.clear()
    return agent


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]
