"""Rendezvous membership of one agent: publish its node record, follow the state, coordinate while it holds the lease.

`Member.tick` makes a bounded number of filesystem calls and returns; its caller (the courier thread, a simulator)
chooses when. All decisions are in `fold`; this module reads and writes around it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.rendezvous.closing import finish
from ftslurm.rendezvous.fold import begin, fold, hand_over, take_lease
from ftslurm.rendezvous.node_record import NodeRecord, Vitals
from ftslurm.rendezvous.observation import RunSpec, Timing
from ftslurm.rendezvous.observer import Observer
from ftslurm.rendezvous.state import CLOSED, FORMING, LEFT, READY, RUNNING, Failure, State
from ftslurm.rendezvous.waiting_lines import WaitingLines
from ftslurm.sharedfs.cell import KEPT, FencedCell, Versioned
from ftslurm.sharedfs.clock import ServerClock
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import BadFile, create_temporary, publish, random_nonce, remove_temporary
from ftslurm.sharedfs.rundir import RunDirectory

CLOSE_TRIES = 20
MIN_CHANGES = 2
WAKE_S = 1.0
"""Time for which a woken agent ticks fast, in seconds; the change may not be visible here at once."""
WAKE_BUDGET_S, WAKE_SHARE = 10.0, 0.1
"""Limit for repeated wake-ups without a change: an agent ticks fast for this many seconds in a row, then for this share
of the time, to limit the load on the shared directory."""


@dataclass(frozen=True)
class Pace:
    """Intervals of the membership, in seconds; those of coordinators and transitions grow with the number of nodes.

    Attributes:
        heartbeat_s: longest interval between two writes of the node record, and two reads of the coordinator's.
        follow_s: interval at which a follower reads the state while its workers run.
        thorough_s: interval at which that read bypasses the hint and all caches.
        coordinate_s: interval at which the coordinator reads the node records.
        transition_s: interval of every agent while a round forms or ends.
    """

    heartbeat_s: float = 3.0
    follow_s: float = 1.0
    thorough_s: float = 10.0
    coordinate_s: float = 0.1
    transition_s: float = 0.02


LARGE_RUN_NODES = 64
"""Number of nodes at which those intervals double, so that the filesystem's load is about the same for any size."""


@dataclass(frozen=True)
class View:
    """Result of a tick.

    Attributes:
        state: the newest state; None before the first.
        coordinating: whether this node holds the lease.
        notes: messages for the log: an invalid file, a discarded decision.
    """

    state: State | None
    token: int
    coordinating: bool
    notes: tuple[str, ...]


class FencedOut(Exception):
    """Another attempt has taken over the run; this one must stop and must not write any more."""


class NodeRefused(Exception):
    """This node's options differ from the run's; the text has both values."""


class RunInUse(Exception):
    """Live agents of another job use this run directory."""


class Member:
    """Membership of one node.

    Args:
        fs: the shared filesystem.
        run: the run directory, already opened.
        run_spec: the attempt's requirements.
        record: this node's first record; `publish` changes it.
        timing: time-outs after which others count as lost.
        pace: intervals.
        now: monotonic clock, seconds.
        now_ns: wall clock, nanoseconds since the epoch.
        wake_agents: wakes these agents; best effort.
        clock: measures this node's clock offset by the publications of its record; None: not measured.
    """

    def __init__(
        self,
        fs: FileSystem,
        run: RunDirectory,
        run_spec: RunSpec,
        record: NodeRecord,
        timing: Timing,
        pace: Pace,
        now: Callable[[], float],
        now_ns: Callable[[], int],
        nonce: Callable[[], str] = random_nonce,
        wake_agents: Callable[[Iterable[NodeRecord]], None] = lambda records: None,
        clock: ServerClock | None = None,
    ) -> None:
        self._fs = fs
        self._run = run
        self._run_spec = run_spec
        self._record = record
        self._timing = timing
        self._pace = pace
        self._now = now
        self._now_ns = now_ns
        self._nonce = nonce
        self._wake_agents = wake_agents
        self._clock = clock
        self._cell = FencedCell(fs, run.state, nonce)
        self._notes: list[str] = []
        self._observer = Observer(fs, run, run_spec.expected, timing, pace.follow_s, pace.heartbeat_s, now, self._notes)
        self._state: State | None = None
        self._token = 0
        self._coordinator_at_start: str | None = None
        self._published_at = float("-inf")
        self._wrote = False
        self._dirty = True
        self._waiting_lines = WaitingLines()
        self._last_signs: dict[str, tuple[tuple[str, int], int]] = {}
        self._final_error: FencedOut | RunInUse | NodeRefused | None = None
        self._thorough_at = float("-inf")
        self._woken_until = float("-inf")
        self._wake_budget_s = WAKE_BUDGET_S
        self._wake_budget_at = now()

    @property
    def record(self) -> NodeRecord:
        """This node's record as it will next be published."""
        return self._record

    def publish(self, record: NodeRecord) -> None:
        """Change this node's record, except its counter; the next tick publishes it."""
        self._record = replace(record, counter=self._record.counter, clock=self._record.clock)
        self._dirty = True

    def update_vitals(self, vitals: Vitals) -> None:
        """Change this node's vitals; the next heartbeat publishes them, without waking other agents."""
        self._record = replace(self._record, vitals=vitals)

    def wake(self) -> None:
        """Tick fast and bypass all caches for `WAKE_S`, within the limit of `WAKE_SHARE`."""
        now = self._now()
        regained_s = WAKE_SHARE * (now - self._wake_budget_at)
        self._wake_budget_s = min(WAKE_BUDGET_S, self._wake_budget_s + regained_s)
        self._wake_budget_at = now
        more_s = now + WAKE_S - max(now, self._woken_until)
        if more_s <= self._wake_budget_s:
            self._wake_budget_s -= more_s
            self._woken_until = now + WAKE_S

    def view(self) -> View:
        """Return the current view; after a failed tick, with what it had read before the error."""
        notes = tuple(self._notes)
        self._notes.clear()
        return View(self._state, self._token, self._coordinating(), notes)

    def tick(self) -> View:
        """Publish, read, and coordinate if this node holds the lease.

        Raises:
            FencedOut: a newer attempt owns the run.
            RunInUse: the run belongs to another job whose agents are alive.
            NodeRefused: this node's options differ from the run's; its record has the reason.
            OSError, BadFile: an access to the shared directory failed; the next tick starts over.
        """
        if self._final_error is not None:
            raise self._final_error
        self._observer.begin_observation()
        self._wrote = False
        try:
            self._tick()
        except (OSError, BadFile):
            self._observer.observation_failed()
            raise
        self._observer.observation_succeeded(self._wrote)
        return self.view()

    def _tick(self) -> None:
        try:
            self._follow()
            if not self._owning():
                self._begin_attempt()
        except (FencedOut, RunInUse) as error:
            # Final: the node's file belongs to the other attempt's agent now.
            self._final_error = error
            raise
        if self._owning():
            self._check_run_spec()
            # Only now: another job's agent on this node may own the run, and with it the node's file.
            self._publish_record()
            self._lead()
            self._notify_followers()
        else:
            self._prove_writable()

    def close(self, outcome: str, reason: str, exit_code: int, failure: Failure | None = None) -> None:
        """Close the attempt for all agents, with or without the lease: the fence accepts one writer, the others follow.

        Raises:
            FencedOut: a newer attempt owns the run, which stays unchanged.
            RunInUse, OSError, BadFile: as `tick`.
        """
        if self._final_error is not None:
            raise self._final_error
        for _ in range(CLOSE_TRIES):
            self._follow()
            if not self._owning():
                self._begin_attempt()
            state = self._state
            if state is None or not self._owning():
                continue
            if state.phase == CLOSED:
                return
            if self._set(finish(state, outcome, reason, exit_code, self._now_ns(), failure)):
                return

    def next_tick_s(self) -> float:
        """Return the time until the next tick, in seconds, if no event arrives before."""
        if self._in_transition():
            return self._pace.transition_s * self._interval_factor()
        return self._pace.coordinate_s * self._interval_factor() if self._coordinating() else self._pace.follow_s

    def _in_transition(self) -> bool:
        """Return whether a round forms or ends, according to this node's copy of the state."""
        state = self._state
        if state is None or state.phase == FORMING or state.hang is not None or self._record.reason is not None:
            return True
        if self._now() < self._woken_until:
            return True
        if state.phase != RUNNING or self._record.status == RUNNING:
            return False
        # A participant that has not begun, or has ended; a spare need not tick fast.
        return state.participant(self._record.node, self._record.incarnation) is not None

    def _interval_factor(self) -> float:
        nodes = max(len(self._observer.records), min(self._run_spec.max_nodes, len(self._run_spec.expected)))
        return 1.0 + nodes / LARGE_RUN_NODES

    def _check_run_spec(self) -> None:
        state, mine = self._state, self._run_spec
        assert state is not None
        options = (
            ("--nnodes", f"{mine.min_nodes}:{mine.max_nodes}", f"{state.min_nodes}:{state.max_nodes}"),
            ("--max-restarts", str(mine.max_restarts), str(state.max_restarts)),
        )
        wrong = [f"{name} {here} here, {there} in the run" for name, here, there in options if here != there]
        if wrong:
            reason = f"{self._record.node} has other options than the run: {'; '.join(wrong)}"
            self.publish(replace(self._record, status=LEFT, reason=reason))
            self._publish_record()
            self._final_error = NodeRefused(reason)
            raise self._final_error

    # This node's record

    def _publish_record(self) -> None:
        now = self._now()
        if not self._dirty and now - self._published_at < self._pace.heartbeat_s:
            return
        changed = self._dirty
        # Cleared before the write: a change made during it must be published by the next tick.
        self._dirty = False
        self._record = replace(
            self._record, counter=self._record.counter + 1, token=self._token, time_ns=self._now_ns()
        )
        path, before_ns = self._run.node_file(self._record.node), self._now_ns()
        try:
            publish(self._fs, path, self._record.encode(), nonce=self._nonce)
        except OSError:
            self._dirty = True
            raise
        self._published_at = now
        self._wrote = True
        if self._clock is not None and self._clock.due():
            # Published with the next record: a publication for the clock alone would cost more than it is worth.
            self._clock.published(path, before_ns, self._now_ns())
            self._record = replace(self._record, clock=self._clock.offset)
        if changed and self._state is not None and not self._coordinating():
            coordinator = self._observer.coordinator_record(self._state)
            self._wake_agents([coordinator] if coordinator is not None else [])

    def _prove_writable(self) -> None:
        """Write at the heartbeat interval, as the run's owners do: while that fails, their silence proves nothing."""
        now = self._now()
        if now - self._published_at >= self._pace.heartbeat_s:
            path = self._run.node_file(self._record.node)
            remove_temporary(self._fs, create_temporary(self._fs, path, b"", durable=False, nonce=self._nonce()))
            self._published_at = now
            self._wrote = True

    def _notify_followers(self) -> None:
        """Publish the newest token in the coordinator's record at once: followers read that first."""
        if self._coordinating() and self._record.token < self._token:
            self._dirty = True
            self._publish_record()
            others = [record for record in self._observer.records.values() if record.node != self._record.node]
            self._wake_agents(
                record for record in others if record.attempt == self._record.attempt and record.status != LEFT
            )

    # The state

    def _owning(self) -> bool:
        return self._state is not None and self._state.attempt == self._run_spec.attempt

    def _follow(self) -> None:
        now = self._now()
        thorough = self._in_transition() or now - self._thorough_at >= self._pace.thorough_s
        if not thorough and self._state is not None and self._owning() and not self._coordinating():
            newest = self._token_of_coordinator(self._state)
            if newest is not None and newest <= self._token:
                return
            # There is a newer state, even if this client's caches do not show it yet.
            thorough = newest is not None
        newer = self._cell.get_newer(self._token, thorough)
        if thorough:
            self._thorough_at = now
        if newer is not None:
            self._adopt(newer)

    def _adopt(self, newest: Versioned) -> None:
        state = State.decode(newest.value, os.path.join(self._run.state, f"{newest.token:012d}.json"))
        if self._state is None:
            self._coordinator_at_start = state.coordinator.incarnation
        if self._state is not None and self._state.coordinator != state.coordinator:
            # The new holder of the lease is alive, however long it had been silent, and even if its record is
            # unreadable.
            self._observer.note_activity(state.coordinator.node)
        self._state, self._token = state, newest.token
        # The wake-up was justified: refund its time.
        self._wake_budget_s += max(0.0, self._woken_until - self._now())
        self._woken_until = float("-inf")

    def _set(self, state: State) -> bool:
        """Publish `state` as the current one's successor; on return the current state is the newest, own or not."""
        was_coordinating = self._coordinating()
        newest, won = self._cell.set(state.encode(), self._token or None)
        if won:
            self._state, self._token = state, newest.token
            self._cell.retire(newest.token - KEPT)
            return True
        self._adopt(newest)
        if was_coordinating and self._state is not None and not self._coordinating():
            coordinator = self._state.coordinator.node
            self._notes.append(f"lost the coordinator lease to {coordinator}; discarding a stale decision")
        return False

    def _begin_attempt(self) -> None:
        old, mine = self._state, self._run_spec.attempt
        if old is not None and (mine in old.attempts or _requeued_since(mine, old.attempt)):
            raise FencedOut(f"attempt {old.attempt} has taken over this run")
        if old is not None and not _requeued_since(old.attempt, mine) and not self._abandoned(old):
            return
        record = self._record
        # Any agent may try: the cell accepts one, and the others read what it published.
        self._set(begin(old, self._run_spec, record.node, record.incarnation, self._now_ns()))
        if self._state is not None and self._state.attempt != mine and mine in self._state.attempts:
            raise FencedOut(f"attempt {self._state.attempt} has taken over this run")

    def _abandoned(self, old: State) -> bool:
        """Return whether the other job that owns the run has ended: closed, or all its agents have left or are silent.

        Raises:
            RunInUse: one of its agents is alive.
        """
        if old.phase == CLOSED:
            return True
        self._observer.read_records()
        records = [record for record in self._observer.records.values() if record.attempt == old.attempt]
        staying = [record for record in records if record.status != LEFT]
        signs = {record.node: (record.incarnation, record.counter) for record in staying}
        # A new state is a sign of life too, for an attempt whose agents have not published a record yet.
        signs[""] = (old.attempt, self._token)
        changes = 0
        for node, sign in signs.items():
            known, count = self._last_signs.get(node, (sign, 0))
            self._last_signs[node] = (sign, count + (known != sign))
            changes = max(changes, self._last_signs[node][1])
        # A single change may be the last record of a dead agent, shown late by a cache.
        if changes >= MIN_CHANGES:
            raise RunInUse(f"job {old.attempt.rpartition('.')[0]} is running in {self._run.root}")
        silent_s = min(self._observer.silent_s(node, sign) for node, sign in signs.items())
        return self._all_agents_left(old, records) or silent_s >= self._timing.node_timeout_s

    @staticmethod
    def _all_agents_left(old: State, records: Sequence[NodeRecord]) -> bool:
        """Return whether all agents of that attempt have left.

        An agent whose record is unreadable may be alive, and so may agents that only a dead coordinator had a record
        of.
        """
        left = {(record.node, record.incarnation) for record in records if record.status == LEFT}
        needed = {(participant.node, participant.incarnation) for participant in old.participants}
        needed.add((old.coordinator.node, old.coordinator.incarnation))
        return needed <= left and all(record.status == LEFT for record in records)

    # The lease

    def _lead(self) -> None:
        """Coordinate if this node holds the lease, or take the lease from a coordinator that is lost."""
        state = self._state
        if state is None or state.phase == CLOSED:
            return
        if self._coordinating():
            self._coordinate(state)
        elif self._coordinator_is_lost(state):
            self._set(take_lease(state, self._record.node, self._record.incarnation))

    def _coordinating(self) -> bool:
        state, record = self._state, self._record
        return state is not None and (state.coordinator.node, state.coordinator.incarnation) == (
            record.node,
            record.incarnation,
        )

    def _token_of_coordinator(self, state: State) -> int | None:
        """Return the newest token that the coordinator has read; None unless it certainly still holds the lease.

        One call shows a follower both whether the state has changed and whether the coordinator is alive: other agents
        write the state only to close it, which the coordinator reads at once. A coordinator that has left or missed two
        heartbeats may have been replaced.
        """
        record = self._observer.read_coordinator(state)
        if record is None or record.status == LEFT or self._observer.coordinator_silent_s >= 2 * self._pace.heartbeat_s:
            return None
        return record.token

    def _coordinator_is_lost(self, state: State) -> bool:
        if self._record.status == LEFT:
            return False
        if state.coordinator.node == self._record.node and state.coordinator.incarnation == self._coordinator_at_start:
            # The coordinator is this node's previous agent, which its guardian has replaced by this one.
            return True
        # The interval between two reads must be shorter than what counts as a stall, or silence is never measured.
        rest_s = min(self._pace.heartbeat_s, self._timing.node_timeout_s / 4)
        record = self._observer.read_coordinator(state, at_least_every_s=rest_s)
        if record is not None and record.status == LEFT:
            return True
        patience_s = self._timing.node_timeout_s + self._lease_rank(state) * self._pace.heartbeat_s
        return self._observer.coordinator_silent_s >= patience_s

    def _lease_rank(self, state: State) -> int:
        """Return how many other nodes take the lease before this one does."""
        line = [p.node for p in state.participants if p.node != state.coordinator.node]
        return line.index(self._record.node) if self._record.node in line else len(line)

    # Coordinating

    def _coordinate(self, state: State) -> None:
        observation = self._observer.observe(state, self._record, self._now_ns())
        folded = fold(state, observation, self._timing)
        if self._record.status == LEFT and folded.phase != CLOSED:
            folded = hand_over(folded, observation, self._timing)
        if line := self._waiting_lines.line(folded, observation, self._timing):
            self._notes.append(line)
        if folded is not state:
            self._set(folded)


def _requeued_since(one: str, other: str) -> bool:
    """Return whether attempt `other` is a later restart of the same job: Slurm ended `one` before it began."""
    (job, restart), (other_job, other_restart) = _restart_of(one), _restart_of(other)
    return job == other_job and restart < other_restart


def _restart_of(attempt: str) -> tuple[str, int]:
    """Read `<job>.<restart>` or `<job>.<restart>+<step>`; an attempt of another form is no restart."""
    job, _, rest = attempt.rpartition(".")
    restart = rest.partition("+")[0]
    return (job, int(restart)) if restart.isdecimal() and len(restart) < 10 else (attempt, 0)


def first_record(node: str, incarnation: str, attempt: str, position: int, slots: int) -> NodeRecord:
    """Return the record of an agent that has just started; the caller fills in its address."""
    return NodeRecord(
        node, incarnation, 0, attempt, position, slots, node, os.getpid(), node, 0, READY, 0, None, None, None, 0, 0
    )
