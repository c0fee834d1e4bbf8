"""What one node knows of all nodes: their newest words, who is silent, and for how long things have gone on.

Followers look at the coordinator alone, the coordinator and whoever begins an attempt at everybody.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from ftslurm.rendezvous.liveness import Attention, Liveness
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.rendezvous.observation import Observation, Timing, waiting_nodes
from ftslurm.rendezvous.state import FORMING, State
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import BadFile
from ftslurm.sharedfs.rundir import RunDirectory

NODE_FILE_LIMIT = 1 << 20


class _Duration:
    """For how long a set of agents has not been joined by another one."""

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
    """Reads the nodes' words.

    Args:
        fs, run: where they are.
        expected: nodes that are looked for by name even when the directory's listing lacks them.
        timing: when others count as lost.
        by_name_s: how often to look for those.
        outage_s: after so many seconds without a look that succeeded, the nodes' silence begins anew.
        now: monotonic clock, seconds.
        notes: gets what people should know: a word that cannot be read.

    Attributes:
        words: the newest word read of each node, of any attempt.
        coordinator_silent_s: for how long the coordinator was silent at the last look at it.
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
        self._attention = Attention(now, timing.node_timeout_s / 2)
        self._liveness = Liveness()
        self.words: dict[str, NodeRecord] = {}
        self.coordinator_silent_s = 0.0
        self._looked_by_name_at = float("-inf")
        self._looked_at_coordinator = (0, float("-inf"))
        self._forming_since: tuple[int, float] | None = None
        self._hanging_since: tuple[int, float] | None = None
        self._failing_since: tuple[int, float] | None = None
        self._told = _Duration()
        self._joining = _Duration()

    def begin_observation(self) -> None:
        """Begin a look; end it by `look_succeeded` or `look_failed`.

        After an outage of the shared directory every node gets a fresh time-out: the others may see it end later. One
        as short as a heartbeat interval only does not count, else a directory that fails now and then would hide dead
        nodes for ever.
        """
        seen_s = self._attention.note()
        if self._attention.outage_s >= self._outage_s:
            self._liveness.renew(seen_s)

    def observation_succeeded(self, wrote: bool) -> None:
        """End a look that met no error; `wrote`: it has proven that the shared directory can be written."""
        self._attention.succeeded(wrote)

    def observation_failed(self) -> None:
        """End a look that met an error: it proves no node silent."""
        self._attention.failed()

    def on_sign_of_life(self, node: str) -> None:
        """Note a sign of life other than the node's word."""
        self._liveness.heard(node, self._attention.note())

    def silent_s(self, node: str, sign: tuple[str, int]) -> float:
        """Note a node's sign of life, which changes while it lives; return for how long it has not changed."""
        return self._liveness.look(node, *sign, self._attention.note())

    # The coordinator

    def coordinator_record(self, state: State) -> NodeRecord | None:
        """Return the coordinator's newest word as far as read; None when its node speaks for another agent."""
        record = self.words.get(state.coordinator.node)
        return record if record is not None and record.incarnation == state.coordinator.incarnation else None

    def read_coordinator(self, state: State, at_least_every_s: float = 0.0) -> NodeRecord | None:
        """Read the coordinator's word, unless that was done so lately; return it as `coordinators_word` does."""
        term, looked_at = self._looked_at_coordinator
        now = self._now()
        if term != state.coordinator.term or now - looked_at >= at_least_every_s:
            self._looked_at_coordinator = (state.coordinator.term, now)
            self.read_record(state.coordinator.node)
            record = self.coordinator_record(state)
            sign = (record.incarnation, record.counter) if record is not None else ("", 0)
            self.coordinator_silent_s = self.silent_s(state.coordinator.node, sign)
        return self.coordinator_record(state)

    # Everybody

    def observe(self, state: State, own: NodeRecord, now_ns: int) -> Observation:
        """Read all words and return what a coordinator decides by.

        Args:
            own: this node's word as it is now, not as the filesystem has it.
            now_ns: wall clock, nanoseconds since the epoch.
        """
        self.read_records()
        self.words[own.node] = own
        silent_s = {}
        for node in {*self.words, *(p.node for p in state.participants)}:
            record = self.words.get(node)
            silent_s[node] = self.silent_s(node, (record.incarnation, record.counter) if record else ("", 0))
        # Waits are counted as silence is: an outage of the shared directory must not use them up.
        now = self._attention.note()
        told = [record for record in self.words.values() if record.stop_signal and record.attempt == state.attempt]
        return Observation(
            self.words,
            silent_s,
            self._forming_for(state, now),
            now_ns,
            # One more that was told: the wait begins anew, for a node told an hour ago does not explain this one.
            self._told.seconds(told, now),
            self._joining.seconds(waiting_nodes(state, self.words), now),
            self._hanging_for(state, now),
            self._failing_for(state, now),
            frozenset(self._liveness.unproven - {own.node}),
        )

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
            record.failure is not None and record.failure.round == state.round for record in self.words.values()
        ):
            self._failing_since = None
            return 0.0
        if self._failing_since is None or self._failing_since[0] != state.round:
            self._failing_since = (state.round, now)
        return now - self._failing_since[1]

    def read_records(self) -> None:
        """Read the words of all nodes that have one."""
        names = self._fs.listdir(self._run.nodes)
        listed = {name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")}
        for node in sorted(listed):
            self.read_record(node)
        now = self._now()
        if now - self._looked_by_name_at >= self._by_name_s:
            # A client's listing was seen to lack a name for more than a minute (NFSv4.2); an open finds it.
            self._looked_by_name_at = now
            for node in self._expected:
                if node not in listed and node not in self.words:
                    self.read_record(node)

    def read_record(self, node: str) -> None:
        """Read one node's word; one that cannot be read stays as it was, and so falls silent."""
        path = self._run.node_file(node)
        try:
            record = NodeRecord.decode(self._fs.read(path, NODE_FILE_LIMIT), path)
        except FileNotFoundError:
            return
        except (OSError, BadFile) as error:
            # GlusterFS says ESTALE of a file that was renamed over just now: the next look sees the new one.
            if not isinstance(error, OSError) or error.errno != errno.ESTALE:
                self._notes.append(f"{error}; going on without it")
            return
        finally:
            self._attention.note()
        known = self.words.get(node)
        if known is not None and known.incarnation == record.incarnation and record.counter < known.counter:
            # NFS may serve a renamed-over file for a while.
            return
        if record.node == node:
            self.words[node] = record
