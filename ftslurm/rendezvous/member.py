"""Rendezvous membership of one agent: publish its node record, follow the state, coordinate while it holds the lease.

`Member.tick` makes a bounded number of filesystem calls and returns; its caller (the courier thread, a simulator)
chooses when. All decisions are in `fold`; this module reads and writes around it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from ftslurm.dataclasses import dataclass, replace
from ftslurm.records.codec import BadFile
from ftslurm.records.node import NodeRecord, Vitals
from ftslurm.records.state import CLOSED, FORMING, LEFT, RUNNING, Failure, State
from ftslurm.rendezvous.abandonment import Abandonment, RunInUse, requeued_since
from ftslurm.rendezvous.closing import finish
from ftslurm.rendezvous.contacts import Contacts
from ftslurm.rendezvous.exclusion import last_resort_line
from ftslurm.rendezvous.fold import begin, fold, hand_over, take_lease
from ftslurm.rendezvous.observation import RunSpec, Timing
from ftslurm.rendezvous.observer import Observer
from ftslurm.rendezvous.pace import Pace, WakeBudget, interval_factor
from ftslurm.rendezvous.waiting_lines import WaitingLines
from ftslurm.sharedfs.cell import KEPT, FencedCell, Versioned
from ftslurm.sharedfs.clock import ServerClock
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import create_temporary, publish, random_nonce, remove_temporary
from ftslurm.sharedfs.rundir import RunDirectory

CLOSE_TRIES = 20
SPREAD = 0.618
"""Multiples of the golden ratio, modulo 1, are evenly spread for any number of nodes."""


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
        contacts: exchanges signs of life with other agents by datagrams; None: without datagrams.
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
        contacts: Contacts | None = None,
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
        self._contacts = contacts
        self._observer = Observer(fs, run, run_spec.expected, timing, pace, now, self._notes, contacts)
        self._state: State | None = None
        self._token = 0
        self._coordinator_at_start: str | None = None
        self._published_at = float("-inf")
        self._looked_at = self._followed_at = float("-inf")
        self._wrote = False
        self._dirty = True
        self._waiting_lines = WaitingLines()
        self._abandonment = Abandonment(self._observer, timing.node_timeout_s, run.root)
        self._final_error: FencedOut | RunInUse | NodeRefused | None = None
        self._thorough_at = float("-inf")
        self._wakes = WakeBudget(now)

    @property
    def record(self) -> NodeRecord:
        """This node's record as it will next be published."""
        return self._record

    def publish(self, record: NodeRecord) -> None:
        """Change this node's record, except its counter; the next tick publishes it."""
        self._record = replace(record, counter=self._record.counter, clock=self._record.clock)
        self._dirty = True

    def update_vitals(self, vitals: Vitals, at_once: bool = False) -> None:
        """Change this node's vitals; the next heartbeat, or tick, publishes them, without waking other agents."""
        self._record = replace(self._record, vitals=vitals)
        if at_once:
            self._published_at = self._looked_at = float("-inf")

    def wake(self) -> None:
        """Tick fast and bypass all caches for a second, within the limit of `WakeBudget`."""
        self._wakes.wake()

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
        self._wrote = False
        if self._contacts is not None:
            self._contacts.collect()
        if self._must_look():
            self._observer.begin_observation()
            try:
                self._tick()
            except (OSError, BadFile):
                self._observer.observation_failed()
                raise
            self._observer.observation_succeeded(self._wrote)
            self._looked_at = self._now()
        # Only now: an agent whose accesses fail does not vouch for itself.
        self._exchange_signs()
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
        interval_s = self._look_s()
        return interval_s if self._contacts is None else min(interval_s, self._contacts.interval_s)

    def _look_s(self) -> float:
        """Return the interval between two looks at the shared directory; between them are ticks that only send signs.

        A quiet agent looks with each sign, which costs a call only where something has changed.
        """
        if self._in_transition():
            return self._pace.transition_s * self._interval_factor()
        if self._contacts is not None and (self._is_quiet() or self._suspects_coordinator()):
            return self._contacts.interval_s
        return self._pace.coordinate_s * self._interval_factor() if self._coordinating() else self._pace.follow_s

    def _must_look(self) -> bool:
        if self._contacts is None or self._dirty or not self._owning():
            return True
        # Not quite the interval, which the clock of the caller may cut short.
        return self._now() - self._looked_at >= 0.9 * self._look_s()

    def _is_quiet(self) -> bool:
        """Return whether signs of life make looks at the shared directory unnecessary."""
        state = self._state
        if state is None or self._contacts is None or self._in_transition():
            return False
        if self._coordinating():
            return self._observer.is_quiet(state) and not self._observer.watching
        return state.phase == RUNNING and self._observer.token_heard(state) is not None

    def _suspects_coordinator(self) -> bool:
        state = self._state
        if state is None or self._coordinating():
            return False
        return self._observer.suspects(self._observer.coordinator_record(state))

    # Signs of life

    def _exchange_signs(self) -> None:
        state = self._state
        if self._contacts is None or state is None or not self._owning() or self._record.status == LEFT:
            return
        self._contacts.interval_s = self._pace.sign_s(self._nodes())
        if self._coordinating():
            records = [one for one in self._observer.records.values() if one.node != self._record.node]
            records = [one for one in records if one.attempt == self._record.attempt and one.status != LEFT]
        else:
            coordinator = self._observer.coordinator_record(state)
            records = [coordinator] if coordinator is not None else []
        # A record that no sign has announced is newer than the signs.
        self._contacts.exchange(records, self._record.counter, self._token, self._wrote)

    def _in_transition(self) -> bool:
        """Return whether a round forms or ends, according to this node's copy of the state."""
        state = self._state
        if state is None or state.phase == FORMING or state.hang is not None or self._record.reason is not None:
            return True
        if self._wakes.awake:
            return True
        if state.phase != RUNNING or self._record.status == RUNNING:
            return False
        # A participant that has not begun, or has ended; a spare need not tick fast.
        return state.participant(self._record.node, self._record.incarnation) is not None

    def _interval_factor(self) -> float:
        return interval_factor(self._nodes())

    def _nodes(self) -> int:
        expected = min(self._run_spec.max_nodes, len(self._run_spec.expected))
        return max(len(self._observer.records), expected)

    def _check_run_spec(self) -> None:
        assert self._state is not None
        wrong = self._run_spec.differences(self._state)
        if wrong:
            reason = f"{self._record.node} has other options than the run: {'; '.join(wrong)}"
            self.publish(replace(self._record, status=LEFT, reason=reason))
            self._publish_record()
            self._final_error = NodeRefused(reason)
            raise self._final_error

    # This node's record

    def _publish_record(self) -> None:
        now = self._now()
        # Who no longer hears this agent looks into its record, which must not be as its last sign has announced it.
        is_missed = self._contacts is not None and self._contacts.lost_at() > self._published_at
        if not self._dirty and not is_missed and now - self._published_at < self._publish_s():
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

    def _publish_s(self) -> float:
        """Return the longest interval between two publications: a member that its coordinator hears need not hurry.

        The coordinator's record shows to other jobs, commands and the batch host that the run is alive.
        """
        if self._coordinating() or not self._is_quiet():
            return self._pace.heartbeat_s
        # Spread over time, since all nodes publish at once when a round begins.
        return self._pace.quiet_s * (0.75 + 0.25 * (self._record.position * SPREAD % 1.0))

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
        quiet = self._owning() and self._is_quiet()
        if quiet and self._coordinating() and now - self._followed_at < self._pace.follow_s:
            return
        self._followed_at = now
        # The coordinator tells a follower the newest token, so that no cache can hide it.
        thorough_s = 2 * self._pace.quiet_s if quiet and not self._coordinating() else self._pace.thorough_s
        thorough = self._in_transition() or now - self._thorough_at >= thorough_s
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
        self._wakes.refund()

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
        if old is not None and (mine in old.attempts or requeued_since(mine, old.attempt)):
            raise FencedOut(f"attempt {old.attempt} has taken over this run")
        if old is not None and not requeued_since(old.attempt, mine) and not self._abandonment.holds(old, self._token):
            return
        record = self._record
        # Any agent may try: the cell accepts one, and the others read what it published.
        reached = self._observer.step_reached(old) if old is not None and old.phase == RUNNING else None
        self._set(begin(old, self._run_spec, record.node, record.incarnation, self._now_ns(), reached))
        if self._state is not None and self._state.attempt != mine and mine in self._state.attempts:
            raise FencedOut(f"attempt {self._state.attempt} has taken over this run")

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
        heard = self._observer.token_heard(state)
        if heard is not None:
            return heard
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
        if self._observer.token_heard(state) is not None:
            return False
        # The interval between two reads must be shorter than what counts as a stall, or silence is never measured.
        rest_s = min(self._pace.heartbeat_s, self._timing.node_timeout_s / 4)
        record = self._observer.read_coordinator(state, at_least_every_s=rest_s)
        if record is not None and record.status == LEFT:
            return True
        line_s = self._lease_rank(state) * self._pace.heartbeat_s
        if self._observer.coordinator_is_dead(state, line_s):
            return True
        return self._observer.coordinator_silent_s >= self._timing.node_timeout_s + line_s

    def _lease_rank(self, state: State) -> int:
        """Return how many other nodes take the lease before this one does."""
        line = [p.node for p in state.participants if p.node != state.coordinator.node]
        return line.index(self._record.node) if self._record.node in line else len(line)

    # Coordinating

    def _coordinate(self, state: State) -> None:
        quiet = not self._in_transition() and self._observer.is_quiet(state)
        observation = self._observer.observe(state, self._record, self._now_ns(), quiet)
        folded = fold(state, observation, self._timing)
        if self._record.status == LEFT and folded.phase != CLOSED:
            folded = hand_over(folded, observation, self._timing)
        if line := self._waiting_lines.line(folded, observation, self._timing):
            self._notes.append(line)
        if folded is not state and self._set(folded):
            line = last_resort_line(state, folded, observation.records, self._timing.exclude_after)
            self._notes += [line] if line else []
