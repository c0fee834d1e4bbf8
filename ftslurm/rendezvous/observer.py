"""One node's observation of all nodes: their newest records, their silence, and durations of conditions.

Followers read the coordinator's record only; the coordinator, and an agent that begins an attempt, read all records.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from ftslurm.observed_time import ObservedTime
from ftslurm.records.codec import BadFile
from ftslurm.records.node import NodeRecord
from ftslurm.records.state import FORMING, State
from ftslurm.records.stop import USER, StopFile, StopRequest
from ftslurm.rendezvous.closing import highest_step
from ftslurm.rendezvous.liveness import Liveness
from ftslurm.rendezvous.observation import Observation, Timing, waiting_nodes
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import read_published
from ftslurm.sharedfs.rundir import STOP_FILE, RunDirectory

NODE_FILE_LIMIT = 1 << 20
STEP_RECORDS = 4


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
        by_name_s: interval between two such attempts.
        outage_s: after this many seconds without a successful observation, the nodes' silence restarts at 0.
        now: monotonic clock, seconds.
        notes: receives messages for the log: a record that cannot be read.

    Attributes:
        records: the newest record read of each node, of any attempt.
        coordinator_silent_s: the coordinator's silence at the last read of its record.
        stop_file: a user's request to stop, of any attempt; None: there is none.
    """

    def __init__(
        self,
        fs: FileSystem,
        run: RunDirectory,
        expected: Sequence[str],
        timing: Timing,
        by_name_s: float,
        outage_s: float,
        now: Callable[[], float],
        notes: list[str],
    ) -> None:
        self._fs = fs
        self._run = run
        self._expected = expected
        self._by_name_s = by_name_s
        self._outage_s = outage_s
        self._now = now
        self._notes = notes
        self._attention = ObservedTime(now, timing.node_timeout_s / 2)
        self._liveness = Liveness()
        self.records: dict[str, NodeRecord] = {}
        self.coordinator_silent_s = 0.0
        self.stop_file: StopFile | None = None
        self._read_by_name_at = float("-inf")
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
        if self._attention.outage_s >= self._outage_s:
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
            record = self.coordinator_record(state)
            sign = (record.incarnation, record.counter) if record is not None else ("", 0)
            self.coordinator_silent_s = self.silent_s(state.coordinator.node, sign)
        return self.coordinator_record(state)

    # All nodes

    def observe(self, state: State, own: NodeRecord, now_ns: int) -> Observation:
        """Read all records and return the observation for the coordinator's decision.

        Args:
            own: this node's current record, which may be newer than the published one.
            now_ns: wall clock, nanoseconds since the epoch.
        """
        self.read_records()
        self.records[own.node] = own
        silent_s = {}
        for node in {*self.records, *(p.node for p in state.participants)}:
            record = self.records.get(node)
            silent_s[node] = self.silent_s(node, (record.incarnation, record.counter) if record else ("", 0))
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
        )

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
        names = self._fs.listdir(self._run.nodes)
        self._read_stop_file(STOP_FILE in names)
        listed = {name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")}
        for node in sorted(listed):
            self.read_record(node)
        now = self._now()
        if now - self._read_by_name_at >= self._by_name_s:
            # A client's listing was observed to lack a name for more than a minute (NFSv4.2); an open finds it.
            self._read_by_name_at = now
            for node in self._expected:
                if node not in listed and node not in self.records:
                    self.read_record(node)

    def _read_stop_file(self, listed: bool) -> None:
        """Read a user's request to stop: it lies in the directory that is listed anyway."""
        if not listed or self.stop_file is not None:
            return
        path = self._run.stop_file
        try:
            self.stop_file = read_published(self._fs, path, StopFile, NODE_FILE_LIMIT)
        except (OSError, BadFile) as error:
            self._notes.append(f"{error}; ignoring this file")

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
        path = self._run.node_file(node)
        try:
            record = NodeRecord.decode(self._fs.read(path, NODE_FILE_LIMIT), path)
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
