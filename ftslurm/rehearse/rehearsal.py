"""Run the script, inject the event at its step, and wait until it has started again (thin: `verdict` judges)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ftslurm.kernel import parent_of
from ftslurm.records.state import CLOSED, RUNNING, STOPPED, SUCCEEDED, State
from ftslurm.records.stop import StopFile, StopVote
from ftslurm.rehearse.events import HANG, NODE_LOSS, TIMEOUT
from ftslurm.rehearse.evidence import RunningRank, RunRecords, votes_of
from ftslurm.rehearse.local_run import LocalRun, kill_node, leave_nothing, strike_rank
from ftslurm.rehearse.plan import STEPS_BEFORE, Plan
from ftslurm.rehearse.verdict import Injection, Records
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.terminal import print_error
from ftslurm.text import duration, one_line

PAGES_S, RECORDS_S = 0.02, 0.2
"""Intervals at which the ranks' pages and the records of the run are read, seconds."""
SETTLED_S = 5.0
"""A round without steps counts as started again when its ranks have run for so long."""
ENDING_S = 30.0
"""Time beyond its grace in which a run that was stopped ends, before what is left of it is killed."""
NOTICE_S = 60.0
"""Time beyond the time-out of a hang, or of a node, after which the event counts as not noticed."""


class NotInjected(Exception):
    """The event could not be injected; one line.

    Attributes:
        is_failure: the run failed before; else the rehearsal was planned wrongly.
    """

    def __init__(self, text: str, is_failure: bool = False) -> None:
        super().__init__(text)
        self.is_failure = is_failure


class Rehearsal:
    """One rehearsal.

    Args:
        plan: what is rehearsed.
        directory: the run directory.
        monotonic, sleep: clock and wait, seconds.
    """

    def __init__(
        self,
        plan: Plan,
        directory: str,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._records = RunRecords(directory)
        self._monotonic = monotonic
        self._sleep = sleep
        self._until = monotonic() + plan.limit_s
        self._saw_steps = False

    def carry_out(self) -> tuple[Injection, Records]:
        """Run it; return what was injected, and the records. Nothing of the run is left then.

        Raises:
            NotInjected: with one line.
            OSError: no process could be started.
        """
        try:
            run = LocalRun(self._plan.arguments)
            state, ranks, step = self._await_step(run)
            injection = self._inject(run, state, ranks, step)
            self._say(f"{injection.event.what.format(target=injection.target)}{_at(step, self._plan.after_s)}")
            ended, votes, run = self._await_next(run, injection)
            self._await_resumption(run, injection)
            run.end((self._plan.grace_s or self._plan.options.timing.grace_s) + ENDING_S)
        finally:
            leave_nothing()
        last, _ = self._records.newest()
        return injection, Records(ended, votes, last or state, self._records.rounds())

    # Until the event

    def _await_step(self, run: LocalRun) -> tuple[State, list[RunningRank], int | None]:
        """Wait until the event is due; return the state, the ranks, and the highest step."""
        since: float | None = None
        wanted = self._plan.at_step
        while True:
            state, ranks = self._await_ranks(run, 0)
            since = since or self._monotonic()
            until = self._monotonic() + RECORDS_S
            while self._monotonic() < until:
                found = [steps for rank in ranks if (steps := rank.steps()) is not None]
                self._saw_steps = self._saw_steps or bool(found)
                highest = max((steps[1] for steps in found), default=None)
                self._refuse_passed_step(min((steps[0] for steps in found), default=None))
                if highest is not None and wanted is None:
                    wanted = highest + STEPS_BEFORE
                if highest is not None and wanted is not None and highest >= wanted:
                    return state, ranks, highest
                if not self._saw_steps and self._monotonic() - since >= self._plan.after_s:
                    return state, ranks, None
                self._sleep(PAGES_S)
            # As seldom as the records: a round that has ended meanwhile has no ranks any more.
            newest, _ = self._records.newest()
            if run.has_ended or (newest is not None and (newest.phase == CLOSED or newest.round != state.round)):
                raise self._too_early(newest, run.exit_code)
            self._check_limit()

    def _refuse_passed_step(self, first: int | None) -> None:
        wanted = self._plan.at_step
        # Many scripts call their first step 1.
        if first is not None and wanted is not None and first > max(wanted, 1):
            raise NotInjected(
                f"--at-step {wanted}: the script begins at step {first}, as it resumes from a checkpoint: give a step "
                f"above {first}, or a directory without checkpoints"
            )

    def _await_ranks(self, run: LocalRun, after: int) -> tuple[State, list[RunningRank]]:
        """Wait until all ranks of a round beyond `after` run.

        Raises:
            NotInjected: the run has ended.
        """
        while True:
            state, _ = self._records.newest()
            ranks = self._records.ranks(state) if state is not None and state.round > after else None
            if state is not None and ranks is not None:
                return state, ranks
            # Not when the state is closed: a new attempt begins with that of the old one.
            if run.has_ended:
                raise self._too_early(state, run.exit_code)
            self._check_limit()
            self._sleep(RECORDS_S)

    def _too_early(self, state: State | None, exit_code: int | None = None) -> NotInjected:
        at = "" if self._plan.at_step is None else f" before step {self._plan.at_step}"
        history = state.history if state is not None else ()
        failed = next((entry for entry in history if entry.outcome not in (RUNNING, SUCCEEDED)), None)
        if state is not None and state.closed is not None and state.closed.outcome == SUCCEEDED:
            return NotInjected(f"the program ended{at}, before the event: give a lower --at-step, or --after")
        if failed is not None:
            return NotInjected(f"the run failed{at} by itself: {one_line(failed.reason or '?')}", is_failure=True)
        return NotInjected(f"the run ended before the event with exit code {exit_code}", is_failure=exit_code != 2)

    def _check_limit(self) -> None:
        if self._monotonic() >= self._until:
            raise NotInjected(
                f"not done within {duration(self._plan.limit_s)} (--limit): the step of the event was not reached, or "
                "the run did not end"
            )

    # The event

    def _inject(self, run: LocalRun, state: State, ranks: list[RunningRank], step: int | None) -> Injection:
        plan = self._plan
        target = "the run"
        now_ns = time.time_ns()
        if plan.event is TIMEOUT:
            reason = f"the time limit is near, {duration(plan.grace_s)} left (a rehearsal)"
            request = StopFile(state.attempt, reason, now_ns)
            publish(PosixFileSystem(owner=os.geteuid()), RunDirectory(self._directory).stop_file, request.encode())
        elif plan.event.stops_run:
            run.stop()
        elif plan.event is NODE_LOSS:
            target = self._lose_node(state)
        else:
            rank = self._struck(ranks)
            target = f"rank {rank.rank} on {rank.node}"
            strike_rank(plan.event, rank.pid)
        return Injection(plan.event, target, state.round, now_ns, step, plan.grace_s, plan.is_requeued)

    def _struck(self, ranks: list[RunningRank]) -> RunningRank:
        wanted = ranks[-1].rank if self._plan.rank is None else self._plan.rank
        found = next((rank for rank in ranks if rank.rank == wanted), None)
        if found is None:
            raise NotInjected(f"--rank {wanted}: the round has ranks 0 to {ranks[-1].rank}")
        return found

    def _lose_node(self, state: State) -> str:
        _, nodes = self._records.newest()
        last = max(state.participants, key=lambda one: one.group_rank)
        record = next((one for one in nodes if (one.node, one.incarnation) == (last.node, last.incarnation)), None)
        guardian = parent_of(record.pid) if record is not None else None
        if record is None or guardian is None or guardian <= 1:
            raise NotInjected(f"the agent of {last.node} was not found")
        kill_node(guardian, record.pid)
        return last.node

    # After it

    def _await_next(self, run: LocalRun, injection: Injection) -> tuple[State | None, tuple[StopVote, ...], LocalRun]:
        """Wait until a further round runs, or the attempt has ended; then start the next attempt.

        Returns:
            State and votes at the end of the attempt, None if it goes on; and the run that goes on.
        """
        started = self._monotonic()
        while not run.has_ended and self._monotonic() < self._until:
            state, _ = self._records.newest()
            goes_on = state is not None and state.phase == RUNNING and state.round > injection.round
            if goes_on and not injection.event.stops_run:
                return None, (), run
            waited_s = self._monotonic() - started
            if self._is_over_grace(waited_s) and injection.event is TIMEOUT:
                run.stop()
            if waited_s > self._patience_s():
                break
            self._sleep(RECORDS_S)
        run.end(0 if not run.has_ended else ENDING_S)
        ended, nodes = self._records.newest()
        votes = votes_of(ended, nodes)
        if self._starts_again(ended, injection):
            self._say("a new attempt of the run, as after a requeue")
            run = LocalRun(self._plan.arguments)
        return ended, votes, run

    def _is_over_grace(self, waited_s: float) -> bool:
        return self._plan.grace_s is not None and waited_s >= self._plan.grace_s

    def _patience_s(self) -> float:
        options = self._plan.options
        if self._plan.event.stops_run:
            return (self._plan.grace_s or 0) + options.timing.grace_s + ENDING_S
        waits_s = options.timing.node_timeout_s + options.timing.join_timeout_s + options.timing.last_call_s
        if self._plan.event is HANG:
            waits_s += options.timeouts.configured.hang_s or 0
        return min(waits_s + NOTICE_S, self._plan.limit_s)

    def _starts_again(self, ended: State | None, injection: Injection) -> bool:
        """Return whether the attempt ended by the event itself, so that a job would be requeued."""
        if ended is None or (ended.closed is not None and ended.closed.outcome == SUCCEEDED):
            return False
        if injection.event is NODE_LOSS:
            return ended.round == injection.round
        return injection.event.stops_run and (ended.closed is None or ended.closed.outcome == STOPPED)

    def _await_resumption(self, run: LocalRun, injection: Injection) -> None:
        """Wait until each rank has taken a step, or has run for a while where no steps are reported."""
        try:
            state, ranks = self._await_ranks(run, injection.round)
        except NotInjected:
            return
        since = self._monotonic()
        while not run.has_ended and self._monotonic() < self._until:
            found = [steps for rank in ranks if (steps := rank.steps()) is not None]
            if len(found) == len(ranks) and all(last > first for first, last in found):
                return
            if not self._saw_steps and self._monotonic() - since >= SETTLED_S:
                return
            newest, _ = self._records.newest()
            if newest is not None and (newest.phase != RUNNING or newest.round != state.round):
                return
            self._sleep(RECORDS_S)

    def _say(self, text: str) -> None:
        print_error(f"ftslurm rehearse: {text}")


def _at(step: int | None, after_s: float) -> str:
    return f" at step {step}" if step is not None else f"; no steps were reported within {duration(after_s)}"
