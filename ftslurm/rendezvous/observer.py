"""One node's observation of all nodes: their newest records, their silence, and durations of conditions.

Followers read the coordinator's record only; the coordinator, and an agent that begins an attempt, read all records.
While a round runs undisturbed, the records of agents that vouch for themselves by datagrams are read only when changed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from ftslurm.observed_time import ObservedTime
from ftslurm.records.codec import BadFile
from ftslurm.records.node import NodeRecord
from ftslurm.records.stacks import StacksFile
from ftslurm.records.state import FORMING, LEFT, RUNNING, State
from ftslurm.records.stop import USER, StopFile, StopRequest
from ftslurm.rendezvous.closing import highest_step
from ftslurm.rendezvous.contacts import Contacts
from ftslurm.rendezvous.liveness import Liveness
from ftslurm.rendezvous.observation import Observation, Timing, waiting_nodes
from ftslurm.rendezvous.pace import Pace
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.overlapped import chunks_of, read_all, read_or_error
from ftslurm.sharedfs.publish import read_published
from ftslurm.sharedfs.rundir import STACKS_FILE, STOP_FILE, RunDirectory

NODE_FILE_LIMIT = 1 << 20
STEP_RECORDS = 4
OVERLAPPED = 16
"""From so many records on, several are read at a time."""
STACKS_FILE_S = 1.0
"""Interval of reading a user's request for stacks again while it lies there: the user may ask once more."""


class _Duration:
    """Time since the last agent was added to a set of agents."""

    def __init__(self) -> None:
        self._members: frozenset[tuple[str, str]] = frozenset()
        self._since = 0.0

    def seconds(self, records: Sequence[NodeRecord], now: float) -> float:
        members = frozenset((record.node, record.incarnation) for record in records)
        if not members <= self._members:
            self._since = now
        self._members = members
        return now - self._since if members else 0.0


class Observer:
    """Reads the node records.

    Args:
        fs, run: where they are.
        expected: nodes whose records are opened by name if the directory's listing lacks them.
        timing: time-outs after which others count as lost.
        pace: intervals. After a heartbeat interval without a successful observation the nodes' silence restarts at 0.
        now: monotonic clock, seconds.
        notes: receives messages for the log: a record that cannot be read.
        contacts: agents that are heard by datagrams; None: without datagrams.

    Attributes:
        records: the newest record read of each node, of any attempt.
        coordinator_silent_s: the coordinator's silence at the last read of its record, or sign of it.
        stop_file: a user's request to stop, of any attempt; None: there is none.
        watching: a node's silence can be seen in its record alone.
        stacks_file: a user's newest request for stacks, of any round; None: there is none.
    """

    def __init__(
        self,
        fs: FileSystem,
        run: RunDirectory,
        expected: Sequence[str],
        timing: Timing,
        pace: Pace,
        now: Callable[[], float],
        notes: list[str],
        contacts: Contacts | None = None,
    ) -> None:
        self._fs = fs
        self._run = run
        self._expected = expected
        self._timing = timing
        self._pace = pace
        self._contacts = contacts
        self._now = now
        self._notes = notes
        self._attention = ObservedTime(now, timing.node_timeout_s / 2)
        self._liveness = Liveness()
        self.records: dict[str, NodeRecord] = {}
        self.coordinator_silent_s = 0.0
        self.stop_file: StopFile | None = None
        self.watching = True
        self._silent_s: dict[str, float] = {}
        self._read_at: dict[str, float] = {}
        self._confirmed: dict[str, str] = {}
        self._listed_at = self._read_by_name_at = float("-inf")
        self.stacks_file: StacksFile | None = None
        self._stacks_file_read_at = float("-inf")
        self._coordinator_read_at = (0, float("-inf"))
        self._forming_since: tuple[int, float] | None = None
        self._hanging_since: tuple[int, float] | None = None
        self._failing_since: tuple[int, float] | None = None
        self._stop_requested = _Duration()
        self._joining = _Duration()

    def begin_observation(self) -> None:
        """Begin an observation; end it with `observation_succeeded` or `observation_failed`.

        After an outage of the shared directory every node gets a fresh time-out, since other nodes may see the outage
        end later. An outage shorter than a heartbeat interval does not count; otherwise a directory with sporadic
        errors would hide dead nodes for ever.
        """
        counted_s = self._attention.note()
        if self._attention.outage_s >= self._pace.heartbeat_s:
            self._liveness.restart_all(counted_s)

    def observation_succeeded(self, wrote: bool) -> None:
        """End a successful observation; `wrote`: it included a successful write to the shared directory."""
        self._attention.succeeded(wrote)

    def observation_failed(self) -> None:
        """End a failed observation, which does not count as silence of any node."""
        self._attention.failed()

    def note_activity(self, node: str) -> None:
        """Note activity of a node other than a change of its record."""
        self._liveness.restart(node, self._attention.note())

    def silent_s(self, node: str, sign: tuple[str, int]) -> float:
        """Note a node's incarnation and counter, which change while it lives; return the time since the last change."""
        return self._liveness.update(node, *sign, self._attention.note())

    # The coordinator

    def coordinator_record(self, state: State) -> NodeRecord | None:
        """Return the coordinator's newest record read; None if its node's record is another agent's."""
        record = self.records.get(state.coordinator.node)
        return record if record is not None and record.incarnation == state.coordinator.incarnation else None

    def read_coordinator(self, state: State, at_least_every_s: float = 0.0) -> NodeRecord | None:
        """Read the coordinator's record, at most at the given interval; return it as `coordinator_record` does."""
        term, read_at = self._coordinator_read_at
        now = self._now()
        if term != state.coordinator.term or now - read_at >= at_least_every_s:
            self._coordinator_read_at = (state.coordinator.term, now)
            self.read_record(state.coordinator.node)
            self.coordinator_silent_s = self._silence(state.coordinator.node, self.coordinator_record(state))
        return self.coordinator_record(state)

    def token_heard(self, state: State) -> int | None:
        """Return the newest token that the coordinator has read, by its signs; None if it does not vouch for itself."""
        record = self.coordinator_record(state)
        if record is None or self._contacts is None or not self._contacts.hears(record):
            return None
        self.coordinator_silent_s = self._silence(record.node, record)
        contact = self._contacts.of(record)
        return contact.token if contact is not None else None

    def coordinator_is_dead(self, state: State, line_s: float) -> bool:
        """Return whether there is evidence that the coordinator has ended, which its silence confirms.

        Args:
            line_s: further silence, in seconds, for which others take the lease first.
        """
        record = self.coordinator_record(state)
        if record is None or self._evidence(record, self.coordinator_silent_s - line_s) is None:
            return False
        self._read_anew(record.node)
        self.coordinator_silent_s = self._silence(record.node, self.coordinator_record(state))
        record = self.coordinator_record(state)
        return record is not None and self._evidence(record, self.coordinator_silent_s - line_s) is not None

    def suspects(self, record: NodeRecord | None) -> bool:
        """Return whether that agent has stopped to vouch for itself, and may be dead."""
        return record is not None and self._contacts is not None and self._contacts.suspects(record)

    def _dead(self, record: NodeRecord, silent_s: dict[str, float]) -> str | None:
        """Return evidence that the node's agent has ended, once its newest record confirms its silence."""
        evidence = self._evidence(record, silent_s[record.node])
        if evidence is None or self._confirmed.get(record.node) == record.incarnation:
            return evidence
        self._read_anew(record.node)
        newest = self.records[record.node]
        silent_s[record.node] = self._silence(record.node, newest)
        evidence = self._evidence(newest, silent_s[record.node])
        if evidence is not None:
            self._confirmed[record.node] = newest.incarnation
        return evidence

    def _read_anew(self, node: str) -> None:
        """Read a record past the client's caches."""
        self._fs.refresh(self._run.nodes)
        self.read_record(node)

    def _evidence(self, record: NodeRecord, silent_s: float) -> str | None:
        if self._contacts is None or silent_s < self._contacts.dead_s:
            return None
        return self._contacts.evidence(record)

    def _silence(self, node: str, record: NodeRecord | None) -> float:
        """Return a node's silence in its record and in its signs, of which the more recent ones count."""
        if record is None:
            return self.silent_s(node, ("", 0))
        contact = self._contacts.of(record) if self._contacts is not None else None
        if contact is None:
            return self.silent_s(node, (record.incarnation, record.counter))
        # Its signs have announced that record: to read it proves nothing newer.
        sign = (record.incarnation, max(record.counter, contact.counter))
        self.silent_s(node, sign)
        self._liveness.heard(node, record.incarnation, self._attention.note() - (self._now() - contact.alive_at))
        return self.silent_s(node, sign)

    # All nodes

    def observe(self, state: State, own: NodeRecord, now_ns: int, quiet: bool = False) -> Observation:
        """Read the records and return the observation for the coordinator's decision.

        Args:
            own: this node's current record, which may be newer than the published one.
            now_ns: wall clock, nanoseconds since the epoch.
            quiet: only records that may have changed are read.
        """
        if quiet:
            self._read_changed(state, own)
        else:
            self.read_records()
        self.records[own.node] = own
        silent_s: dict[str, float] = {}
        dead: dict[str, str] = {}
        for node in {*self.records, *(p.node for p in state.participants)}:
            record = self.records.get(node)
            silent_s[node] = self._silence(node, record)
            if record is not None and (evidence := self._dead(record, silent_s)) is not None:
                dead[node] = evidence
        self._silent_s = silent_s
        self.watching = any(self._must_watch(record, state) for record in self.records.values() if record is not own)
        # Waits are measured like silence: an outage of the shared directory must not use them up.
        now = self._attention.note()
        stop_requested = [
            record for record in self.records.values() if record.stop_signal and record.attempt == state.attempt
        ]
        return Observation(
            self.records,
            silent_s,
            self._forming_for(state, now),
            now_ns,
            # A further stopped node restarts the wait: a stop an hour ago does not explain this one.
            self._stop_requested.seconds(stop_requested, now),
            self._joining.seconds(waiting_nodes(state, self.records), now),
            self._hanging_for(state, now),
            self._failing_for(state, now),
            frozenset(self._liveness.unproven - {own.node}),
            self._stop_requested_by_user(state),
            dead,
            self.stacks_file,
        )

    def is_quiet(self, state: State) -> bool:
        """Return whether a round runs undisturbed, as far as known, and another agent vouches for itself by signs."""
        if self._contacts is None or state.phase != RUNNING or state.hang is not None or state.stop is not None:
            return False
        mine = [record for record in self.records.values() if record.attempt == state.attempt and record.status != LEFT]
        return any(map(self._contacts.hears, mine)) and not any(_is_disturbed(record, state) for record in mine)

    def _must_watch(self, record: NodeRecord, state: State) -> bool:
        """Return whether the node's silence can be seen in its record alone, and matters."""
        gone = record.status == LEFT or record.attempt != state.attempt or self._is_lost(record)
        return not gone and (self._contacts is None or not self._contacts.hears(record))

    def _is_lost(self, record: NodeRecord) -> bool:
        return self._silent_s.get(record.node, 0.0) >= self._timing.node_timeout_s

    def _read_changed(self, state: State, own: NodeRecord) -> None:
        """Read the records that may have changed, and now and then all; those of nodes that are gone, only then."""
        now = self._now()
        if self.watching or now - self._listed_at >= self._pace.follow_s:
            known = set(self.records)
            listed = self._list()
            for node in sorted(listed - known):
                self.read_record(node)
        others = [record for record in self.records.values() if record.node != own.node]
        self._read_several([record.node for record in others if self._may_have_changed(record, state, now)])

    def _may_have_changed(self, record: NodeRecord, state: State, now: float) -> bool:
        returns = record.status != LEFT and self._is_lost(record)
        interval_s = self._pace.heartbeat_s if returns else self._pace.quiet_s
        if now - self._read_at.get(record.node, float("-inf")) >= interval_s:
            return True
        contact = self._contacts.of(record) if self._contacts is not None else None
        return self._must_watch(record, state) or (contact is not None and contact.counter > record.counter)

    def _stop_requested_by_user(self, state: State) -> StopRequest | None:
        file = self.stop_file
        if file is None or file.attempt != state.attempt:
            # Of an earlier attempt: a new request replaces it.
            self.stop_file = None
            return None
        return StopRequest(USER, file.reason, file.time_ns)

    def _forming_for(self, state: State, now: float) -> float:
        if state.phase != FORMING:
            self._forming_since = None
            return 0.0
        if self._forming_since is None or self._forming_since[0] != state.round:
            self._forming_since = (state.round, now)
        return now - self._forming_since[1]

    def _hanging_for(self, state: State, now: float) -> float:
        if state.hang is None:
            self._hanging_since = None
            return 0.0
        if self._hanging_since is None or self._hanging_since[0] != state.round:
            self._hanging_since = (state.round, now)
        return now - self._hanging_since[1]

    def _failing_for(self, state: State, now: float) -> float:
        if not any(
            record.failure is not None and record.failure.round == state.round for record in self.records.values()
        ):
            self._failing_since = None
            return 0.0
        if self._failing_since is None or self._failing_since[0] != state.round:
            self._failing_since = (state.round, now)
        return now - self._failing_since[1]

    def read_records(self) -> None:
        """Read all node records."""
        listed = self._list()
        self._read_several(sorted(listed))
        now = self._now()
        if now - self._read_by_name_at >= self._pace.follow_s:
            # A client's listing was observed to lack a name for more than a minute (NFSv4.2); an open finds it.
            self._read_by_name_at = now
            for node in self._expected:
                if node not in listed and node not in self.records:
                    self.read_record(node)

    def _list(self) -> set[str]:
        """Return the nodes in the directory, and read a user's requests."""
        self._listed_at = self._now()
        names = self._fs.listdir(self._run.nodes)
        self._read_stop_file(STOP_FILE in names)
        self._read_stacks_file(STACKS_FILE in names)
        return {name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")}

    def _read_stop_file(self, listed: bool) -> None:
        """Read a user's request to stop: it lies in the directory that is listed anyway."""
        if not listed or self.stop_file is not None:
            return
        path = self._run.stop_file
        try:
            self.stop_file = read_published(self._fs, path, StopFile, NODE_FILE_LIMIT)
        except (OSError, BadFile) as error:
            self._notes.append(f"{error}; ignoring this file")

    def _read_stacks_file(self, listed: bool) -> None:
        """Read a user's request for stacks, until its command removes it; one that was killed leaves it behind."""
        now = self._now()
        if not listed:
            self.stacks_file = None
        elif self.stacks_file is None or now - self._stacks_file_read_at >= STACKS_FILE_S:
            self._stacks_file_read_at = now
            try:
                self.stacks_file = read_published(self._fs, self._run.stacks_file, StacksFile, NODE_FILE_LIMIT)
            except (OSError, BadFile):
                # Removed meanwhile, or not of that form: its command reports that no node answers.
                self.stacks_file = None

    def step_reached(self, state: State) -> int | None:
        """Return the highest step in a few records of an attempt whose agents have not recorded its end.

        All ranks are at about the same step, and in a large job each agent makes this call.
        """
        found = []
        for participant in state.participants[:STEP_RECORDS]:
            self.read_record(participant.node)
            record = self.records.get(participant.node)
            found += [record] if record is not None and record.attempt == state.attempt else []
        return highest_step(found, state.round, None)

    def read_record(self, node: str) -> None:
        """Read one node's record; an unreadable one is kept as last read, so that the node becomes silent."""
        self._take(node, read_or_error(self._fs, self._run.node_file(node), NODE_FILE_LIMIT))

    def _read_several(self, nodes: Sequence[str]) -> None:
        if not self._fs.overlaps or len(nodes) < OVERLAPPED:
            for node in nodes:
                self.read_record(node)
            return
        for chunk in chunks_of(nodes):
            paths = [self._run.node_file(node) for node in chunk]
            for node, content in zip(chunk, read_all(self._fs, paths, NODE_FILE_LIMIT), strict=True):
                self._take(node, content)

    def _take(self, node: str, content: bytes | OSError) -> None:
        path = self._run.node_file(node)
        self._read_at[node] = self._now()
        try:
            if isinstance(content, OSError):
                raise content
            record = NodeRecord.decode(content, path)
        except FileNotFoundError:
            return
        except (OSError, BadFile) as error:
            # GlusterFS returns ESTALE for a file that was just renamed over: the next read finds the new one.
            if not isinstance(error, OSError) or error.errno != errno.ESTALE:
                self._notes.append(f"{error}; ignoring this file")
            return
        finally:
            self._attention.note()
        known = self.records.get(node)
        if known is not None and known.incarnation == record.incarnation and record.counter < known.counter:
            # NFS may serve a renamed-over file for some time.
            return
        if record.node == node:
            self.records[node] = record


def _is_disturbed(record: NodeRecord, state: State) -> bool:
    """Return whether the coordinator has to decide on this record soon."""
    failure, hang = record.failure, record.hang
    return (
        record.reason is not None
        or record.stop_signal is not None
        or record.stop_request is not None
        or (failure is not None and failure.round == state.round)
        or (hang is not None and hang.round == state.round)
    )
