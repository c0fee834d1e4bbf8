"""One agent's part in the rendezvous: publish its word, follow the state, and coordinate when it holds the lease.

`Member.tick` does a bounded number of filesystem calls and returns; whoever calls it (the courier thread, a simulator)
decides when. All deciding is in `fold`; here is the reading and writing around it.
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
from ftslurm.sharedfs.publish import BadFile, create_temporary, forget, publish, random_nonce
from ftslurm.sharedfs.rundir import RunDirectory

CLOSE_TRIES = 20
SIGNS_OF_LIFE = 2
RUNG_S = 1.0
"""For so long an agent that was told of news looks for it; it may not be visible here at once."""
RUNG_MOST_S, RUNG_SHARE = 10.0, 0.1
"""An agent that is rung again and again without news hurries for so many seconds in a row, and then for this share of
the time: the shared directory is spared."""


@dataclass(frozen=True)
class Pace:
    """How often to look, in seconds; larger worlds look less often while they hurry or coordinate (`CROWD`).

    Attributes:
        heartbeat_s: the node's word is written at least so often, and the coordinator's is read.
        follow_s: how often a follower looks at the state while its workers run.
        thorough_s: how often that look trusts no hint and no cache.
        coordinate_s: how often the coordinator looks at the nodes.
        hurry_s: how often everybody looks while a round forms or ends.
    """

    heartbeat_s: float = 3.0
    follow_s: float = 1.0
    thorough_s: float = 10.0
    coordinate_s: float = 0.1
    hurry_s: float = 0.02


CROWD = 64
"""With so many nodes a hurried look comes half as often: the filesystem sees about the same load from any world."""


@dataclass(frozen=True)
class View:
    """What a tick found out.

    Attributes:
        state: the newest state, None before there is any.
        coordinating: whether this node holds the lease.
        notes: what people should know of this tick: a file that is not what it should be, a decision that was void.
    """

    state: State | None
    token: int
    coordinating: bool
    notes: tuple[str, ...]


class FencedOut(Exception):
    """Another attempt has taken over the run; this one must stop and may write nothing more."""


class NodeRefused(Exception):
    """This node asks for something else than the run; both values are in the text."""


class RunInUse(Exception):
    """Another job's agents are alive in this run directory."""


class Member:
    """One node's membership.

    Args:
        fs: the shared filesystem.
        run: the run directory, already opened.
        shape: what this attempt asks for.
        word: this node's first word; `say` changes it.
        timing: when others count as lost.
        pace: how often to look.
        now: monotonic clock, seconds.
        now_ns: wall clock, nanoseconds since the epoch.
        ring: tells these agents to look now; nothing relies on it.
        clock: measures this node's clock by the publications of its word; None: nobody does.
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
        ring: Callable[[Iterable[NodeRecord]], None] = lambda records: None,
        clock: ServerClock | None = None,
    ) -> None:
        self._fs = fs
        self._run = run
        self._shape = run_spec
        self._word = record
        self._timing = timing
        self._pace = pace
        self._now = now
        self._now_ns = now_ns
        self._nonce = nonce
        self._ring = ring
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
        self._rivals: dict[str, tuple[tuple[str, int], int]] = {}
        self._over: FencedOut | RunInUse | NodeRefused | None = None
        self._looked_thoroughly_at = float("-inf")
        self._rung_until = float("-inf")
        self._rung_left_s = RUNG_MOST_S
        self._rung_left_at = now()

    @property
    def record(self) -> NodeRecord:
        """This node's word as it will next be published."""
        return self._word

    def publish(self, record: NodeRecord) -> None:
        """Change this node's word, but for its counter; the next tick publishes it."""
        self._word = replace(record, counter=self._word.counter, clock=self._word.clock)
        self._dirty = True

    def update_vitals(self, vitals: Vitals) -> None:
        """Change this node's vitals: no news, the next heartbeat publishes them."""
        self._word = replace(self._word, vitals=vitals)

    def wake(self) -> None:
        """Somebody says that there is news: look soon, past all caches, as far as `RUNG_SHARE` allows."""
        now = self._now()
        regained_s = RUNG_SHARE * (now - self._rung_left_at)
        self._rung_left_s = min(RUNG_MOST_S, self._rung_left_s + regained_s)
        self._rung_left_at = now
        more_s = now + RUNG_S - max(now, self._rung_until)
        if more_s <= self._rung_left_s:
            self._rung_left_s -= more_s
            self._rung_until = now + RUNG_S

    def view(self) -> View:
        """Return what is known by now; after a tick that failed, what it could read before that."""
        notes = tuple(self._notes)
        self._notes.clear()
        return View(self._state, self._token, self._coordinating(), notes)

    def tick(self) -> View:
        """Publish, read, and coordinate if it is this node's turn.

        Raises:
            Superseded: a newer attempt owns the run.
            RunInUse: the run belongs to another job whose agents are alive.
            Refused: this node asks for something else than the run; its word says so.
            OSError, BadFile: the shared directory did not do its part; the next tick starts over.
        """
        if self._over is not None:
            raise self._over
        self._observer.begin_observation()
        self._wrote = False
        try:
            self._look()
        except (OSError, BadFile):
            self._observer.observation_failed()
            raise
        self._observer.observation_succeeded(self._wrote)
        return self.view()

    def _look(self) -> None:
        try:
            self._follow()
            if not self._owning():
                self._begin_attempt()
        except (FencedOut, RunInUse) as error:
            # For good: the node's file belongs to the other attempt's agent now.
            self._over = error
            raise
        if self._owning():
            self._check_run_spec()
            # Not before: another job's agent on this very node may own the run, and the node's file.
            self._publish_record()
            self._lead()
            self._notify_followers()
        else:
            self._prove_writable()

    def close(self, outcome: str, reason: str, exit_code: int, failure: Failure | None = None) -> None:
        """Close the attempt for everybody, whoever coordinates: the fence lets one writer win, the others obey.

        Raises:
            Superseded: a newer attempt owns the run, which is left alone.
            RunInUse, OSError, BadFile: as `tick`.
        """
        if self._over is not None:
            raise self._over
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

    def next_look_s(self) -> float:
        """Return how long to wait before the next tick, in seconds, when nothing happens meanwhile."""
        if self._hurrying():
            return self._pace.hurry_s * self._crowd()
        return self._pace.coordinate_s * self._crowd() if self._coordinating() else self._pace.follow_s

    def _hurrying(self) -> bool:
        """Tell whether a round forms or ends, as far as this node knows."""
        state = self._state
        if state is None or state.phase == FORMING or state.hang is not None or self._word.reason is not None:
            return True
        if self._now() < self._rung_until:
            return True
        if state.phase != RUNNING or self._word.status == RUNNING:
            return False
        # A participant that has not begun, or has ended; a spare has time.
        return state.participant(self._word.node, self._word.incarnation) is not None

    def _crowd(self) -> float:
        nodes = max(len(self._observer.words), min(self._shape.max_nodes, len(self._shape.expected)))
        return 1.0 + nodes / CROWD

    def _check_run_spec(self) -> None:
        state, mine = self._state, self._shape
        assert state is not None
        asked = (
            ("--nnodes", f"{mine.min_nodes}:{mine.max_nodes}", f"{state.min_nodes}:{state.max_nodes}"),
            ("--max-restarts", str(mine.max_restarts), str(state.max_restarts)),
        )
        wrong = [f"{name} {here} here, {there} in the run" for name, here, there in asked if here != there]
        if wrong:
            reason = f"{self._word.node} asks for something else than the run: {'; '.join(wrong)}"
            self.publish(replace(self._word, status=LEFT, reason=reason))
            self._publish_record()
            self._over = NodeRefused(reason)
            raise self._over

    # This node's own word

    def _publish_record(self) -> None:
        now = self._now()
        if not self._dirty and now - self._published_at < self._pace.heartbeat_s:
            return
        said = self._dirty
        # Dropped before the write: a word said during it must be published by the next tick.
        self._dirty = False
        self._word = replace(self._word, counter=self._word.counter + 1, token=self._token, time_ns=self._now_ns())
        path, before_ns = self._run.node_file(self._word.node), self._now_ns()
        try:
            publish(self._fs, path, self._word.encode(), nonce=self._nonce)
        except OSError:
            self._dirty = True
            raise
        self._published_at = now
        self._wrote = True
        if self._clock is not None and self._clock.due():
            # The next word has it: one that is published for this alone would cost more than it is worth.
            self._clock.published(path, before_ns, self._now_ns())
            self._word = replace(self._word, clock=self._clock.offset)
        if said and self._state is not None and not self._coordinating():
            leader = self._observer.coordinator_record(self._state)
            self._ring([leader] if leader is not None else [])

    def _prove_writable(self) -> None:
        """Write as often as the agents that own the run: while that fails, their silence proves nothing."""
        now = self._now()
        if now - self._published_at >= self._pace.heartbeat_s:
            path = self._run.node_file(self._word.node)
            forget(self._fs, create_temporary(self._fs, path, b"", durable=False, nonce=self._nonce()))
            self._published_at = now
            self._wrote = True

    def _notify_followers(self) -> None:
        """Have the coordinator's word name the newest state at once: followers look there first."""
        if self._coordinating() and self._word.token < self._token:
            self._dirty = True
            self._publish_record()
            others = [record for record in self._observer.words.values() if record.node != self._word.node]
            self._ring(record for record in others if record.attempt == self._word.attempt and record.status != LEFT)

    # The state

    def _owning(self) -> bool:
        return self._state is not None and self._state.attempt == self._shape.attempt

    def _follow(self) -> None:
        now = self._now()
        thorough = self._hurrying() or now - self._looked_thoroughly_at >= self._pace.thorough_s
        if not thorough and self._state is not None and self._owning() and not self._coordinating():
            newest = self._token_of_coordinator(self._state)
            if newest is not None and newest <= self._token:
                return
            # There is something newer, whatever this client's caches say of it.
            thorough = newest is not None
        newer = self._cell.get_newer(self._token, thorough)
        if thorough:
            self._looked_thoroughly_at = now
        if newer is not None:
            self._learn(newer)

    def _learn(self, newest: Versioned) -> None:
        state = State.decode(newest.value, os.path.join(self._run.state, f"{newest.token:012d}.json"))
        if self._state is None:
            self._coordinator_at_start = state.coordinator.incarnation
        if self._state is not None and self._state.coordinator != state.coordinator:
            # Who took the lease meanwhile lives, however long it had been silent, and even if its word cannot be read.
            self._observer.on_sign_of_life(state.coordinator.node)
        self._state, self._token = state, newest.token
        # It was worth it.
        self._rung_left_s += max(0.0, self._rung_until - self._now())
        self._rung_until = float("-inf")

    def _set(self, state: State) -> bool:
        """Publish `state` as the successor of the one known; whoever wins, the newest is then known."""
        led = self._coordinating()
        newest, won = self._cell.set(state.encode(), self._token or None)
        if won:
            self._state, self._token = state, newest.token
            self._cell.retire(newest.token - KEPT)
            return True
        self._learn(newest)
        if led and self._state is not None and not self._coordinating():
            leader = self._state.coordinator.node
            self._notes.append(f"{leader} has coordinated since this node fell silent: what it decided now is void")
        return False

    def _begin_attempt(self) -> None:
        old, mine = self._state, self._shape.attempt
        if old is not None and (mine in old.attempts or _requeued_since(mine, old.attempt)):
            raise FencedOut(f"attempt {old.attempt} has taken over this run")
        if old is not None and not _requeued_since(old.attempt, mine) and not self._abandoned(old):
            return
        record = self._word
        # Everybody may try: the cell lets one win, and the others read what it published.
        self._set(begin(old, self._shape, record.node, record.incarnation, self._now_ns()))
        if self._state is not None and self._state.attempt != mine and mine in self._state.attempts:
            raise FencedOut(f"attempt {self._state.attempt} has taken over this run")

    def _abandoned(self, old: State) -> bool:
        """Tell whether the other job that owns the run has ended: it said so, all its agents left, or all are silent.

        Raises:
            RunInUse: one of them gave a sign of life.
        """
        if old.phase == CLOSED:
            return True
        self._observer.read_records()
        records = [record for record in self._observer.words.values() if record.attempt == old.attempt]
        staying = [record for record in records if record.status != LEFT]
        signs = {record.node: (record.incarnation, record.counter) for record in staying}
        # The state is a sign of life too, for an attempt whose agents have not said a word yet.
        signs[""] = (old.attempt, self._token)
        changes = 0
        for node, sign in signs.items():
            known, count = self._rivals.get(node, (sign, 0))
            self._rivals[node] = (sign, count + (known != sign))
            changes = max(changes, self._rivals[node][1])
        # One change may be a cache that showed the dead one's last word late.
        if changes >= SIGNS_OF_LIFE:
            raise RunInUse(f"job {old.attempt.rpartition('.')[0]} is running in {self._run.root}")
        silent_s = min(self._observer.silent_s(node, sign) for node, sign in signs.items())
        return self._all_left(old, records) or silent_s >= self._timing.node_timeout_s

    @staticmethod
    def _all_left(old: State, records: Sequence[NodeRecord]) -> bool:
        """Tell whether all agents of that attempt have left.

        One whose record cannot be read now may be alive, and so may those that only a dead coordinator knew of.
        """
        left = {(record.node, record.incarnation) for record in records if record.status == LEFT}
        needed = {(participant.node, participant.incarnation) for participant in old.participants}
        needed.add((old.coordinator.node, old.coordinator.incarnation))
        return needed <= left and all(record.status == LEFT for record in records)

    # The lease

    def _lead(self) -> None:
        """Do the coordinator's work if this node holds the lease, or take the lease from one that is gone."""
        state = self._state
        if state is None or state.phase == CLOSED:
            return
        if self._coordinating():
            self._coordinate(state)
        elif self._coordinator_is_gone(state):
            self._set(take_lease(state, self._word.node, self._word.incarnation))

    def _coordinating(self) -> bool:
        state, record = self._state, self._word
        return state is not None and (state.coordinator.node, state.coordinator.incarnation) == (
            record.node,
            record.incarnation,
        )

    def _token_of_coordinator(self, state: State) -> int | None:
        """Return the newest token that the coordinator has seen; None unless it surely leads still.

        One call answers both of a follower's questions, is there news and does the coordinator live: nobody else writes
        the state meanwhile, but to close it, and that the coordinator learns at once. When it has left or missed two
        heartbeats it may have been replaced.
        """
        record = self._observer.read_coordinator(state)
        if record is None or record.status == LEFT or self._observer.coordinator_silent_s >= 2 * self._pace.heartbeat_s:
            return None
        return record.token

    def _coordinator_is_gone(self, state: State) -> bool:
        if self._word.status == LEFT:
            return False
        if state.coordinator.node == self._word.node and state.coordinator.incarnation == self._coordinator_at_start:
            # The agent of this node that its guardian has replaced by this one.
            return True
        # Two looks must lie closer together than what counts as a stall, or silence is never measured.
        rest_s = min(self._pace.heartbeat_s, self._timing.node_timeout_s / 4)
        record = self._observer.read_coordinator(state, at_least_every_s=rest_s)
        if record is not None and record.status == LEFT:
            return True
        patience_s = self._timing.node_timeout_s + self._place_in_line(state) * self._pace.heartbeat_s
        return self._observer.coordinator_silent_s >= patience_s

    def _place_in_line(self, state: State) -> int:
        """Return how many others should take the lease before this node does."""
        line = [p.node for p in state.participants if p.node != state.coordinator.node]
        return line.index(self._word.node) if self._word.node in line else len(line)

    # Coordinating

    def _coordinate(self, state: State) -> None:
        observation = self._observer.observe(state, self._word, self._now_ns())
        folded = fold(state, observation, self._timing)
        if self._word.status == LEFT and folded.phase != CLOSED:
            folded = hand_over(folded, observation, self._timing)
        if line := self._waiting_lines.line(folded, observation, self._timing):
            self._notes.append(line)
        if folded is not state:
            self._set(folded)


def _requeued_since(one: str, other: str) -> bool:
    """Tell whether attempt `other` is a later restart of the same job: Slurm has ended `one` before it began."""
    (job, restart), (other_job, other_restart) = _restart_of(one), _restart_of(other)
    return job == other_job and restart < other_restart


def _restart_of(attempt: str) -> tuple[str, int]:
    """Read `<job>.<restart>` or `<job>.<restart>+<step>`; an attempt of another form is nobody's restart."""
    job, _, rest = attempt.rpartition(".")
    restart = rest.partition("+")[0]
    return (job, int(restart)) if restart.isdecimal() and len(restart) < 10 else (attempt, 0)


def first_record(node: str, incarnation: str, attempt: str, position: int, slots: int) -> NodeRecord:
    """Return the word of an agent that has just started; the caller fills in where it can be reached."""
    return NodeRecord(
        node, incarnation, 0, attempt, position, slots, node, os.getpid(), node, 0, READY, 0, None, None, None, 0, 0
    )
