"""What one node knows of all nodes: their newest words, who is silent, and for how long things have gone on.

Followers look at the coordinator alone, the coordinator and whoever begins an attempt at everybody.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from ftslurm.rendezvous.liveness import Attention, Liveness
from ftslurm.rendezvous.node_record import NodeWord
from ftslurm.rendezvous.observation import Seen, Timing, waiting
from ftslurm.rendezvous.state import FORMING, State
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import BadFile
from ftslurm.sharedfs.rundir import RunDirectory

NODE_FILE_LIMIT = 1 << 20


class _Lasting:
    """For how long a set of agents has not been joined by another one."""

    def __init__(self) -> None:
        self._members: frozenset[tuple[str, str]] = frozenset()
        self._since = 0.0

    def seconds(self, words: Sequence[NodeWord], now: float) -> float:
        members = frozenset((word.node, word.incarnation) for word in words)
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
        self.words: dict[str, NodeWord] = {}
        self.coordinator_silent_s = 0.0
        self._looked_by_name_at = float("-inf")
        self._looked_at_coordinator = (0, float("-inf"))
        self._forming_since: tuple[int, float] | None = None
        self._hanging_since: tuple[int, float] | None = None
        self._failing_since: tuple[int, float] | None = None
        self._told = _Lasting()
        self._joining = _Lasting()

    def begin_look(self) -> None:
        """Begin a look; end it by `look_succeeded` or `look_failed`.

        After an outage of the shared directory every node gets a fresh time-out: the others may see it end later. One
        as short as a heartbeat interval only does not count, else a directory that fails now and then would hide dead
        nodes for ever.
        """
        seen_s = self._attention.note()
        if self._attention.outage_s >= self._outage_s:
            self._liveness.renew(seen_s)

    def look_succeeded(self, wrote: bool) -> None:
        """End a look that met no error; `wrote`: it has proven that the shared directory can be written."""
        self._attention.succeeded(wrote)

    def look_failed(self) -> None:
        """End a look that met an error: it proves no node silent."""
        self._attention.failed()

    def heard(self, node: str) -> None:
        """Note a sign of life other than the node's word."""
        self._liveness.heard(node, self._attention.note())

    def silent_s(self, node: str, sign: tuple[str, int]) -> float:
        """Note a node's sign of life, which changes while it lives; return for how long it has not changed."""
        return self._liveness.look(node, *sign, self._attention.note())

    # The coordinator

    def coordinators_word(self, state: State) -> NodeWord | None:
        """Return the coordinator's newest word as far as read; None when its node speaks for another agent."""
        word = self.words.get(state.coordinator.node)
        return word if word is not None and word.incarnation == state.coordinator.incarnation else None

    def look_at_coordinator(self, state: State, at_least_every_s: float = 0.0) -> NodeWord | None:
        """Read the coordinator's word, unless that was done so lately; return it as `coordinators_word` does."""
        term, looked_at = self._looked_at_coordinator
        now = self._now()
        if term != state.coordinator.term or now - looked_at >= at_least_every_s:
            self._looked_at_coordinator = (state.coordinator.term, now)
            self.read_word(state.coordinator.node)
            word = self.coordinators_word(state)
            sign = (word.incarnation, word.counter) if word is not None else ("", 0)
            self.coordinator_silent_s = self.silent_s(state.coordinator.node, sign)
        return self.coordinators_word(state)

    # Everybody

    def look(self, state: State, own: NodeWord, now_ns: int) -> Seen:
        """Read all words and return what a coordinator decides by.

        Args:
            own: this node's word as it is now, not as the filesystem has it.
            now_ns: wall clock, nanoseconds since the epoch.
        """
        self.read_words()
        self.words[own.node] = own
        silent_s = {}
        for node in {*self.words, *(p.node for p in state.participants)}:
            word = self.words.get(node)
            silent_s[node] = self.silent_s(node, (word.incarnation, word.counter) if word else ("", 0))
        # Waits are counted as silence is: an outage of the shared directory must not use them up.
        now = self._attention.note()
        told = [word for word in self.words.values() if word.stop_signal and word.attempt == state.attempt]
        return Seen(
            self.words,
            silent_s,
            self._forming_for(state, now),
            now_ns,
            # One more that was told: the wait begins anew, for a node told an hour ago does not explain this one.
            self._told.seconds(told, now),
            self._joining.seconds(waiting(state, self.words), now),
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
        if not any(word.failure is not None and word.failure.round == state.round for word in self.words.values()):
            self._failing_since = None
            return 0.0
        if self._failing_since is None or self._failing_since[0] != state.round:
            self._failing_since = (state.round, now)
        return now - self._failing_since[1]

    def read_words(self) -> None:
        """Read the words of all nodes that have one."""
        names = self._fs.listdir(self._run.nodes)
        listed = {name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith(".")}
        for node in sorted(listed):
            self.read_word(node)
        now = self._now()
        if now - self._looked_by_name_at >= self._by_name_s:
            # A client's listing was seen to lack a name for more than a minute (NFSv4.2); an open finds it.
            self._looked_by_name_at = now
            for node in self._expected:
                if node not in listed and node not in self.words:
                    self.read_word(node)

    def read_word(self, node: str) -> None:
        """Read one node's word; one that cannot be read stays as it was, and so falls silent."""
        path = self._run.node_file(node)
        try:
            word = NodeWord.decode(self._fs.read(path, NODE_FILE_LIMIT), path)
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
        if known is not None and known.incarnation == word.incarnation and word.counter < known.counter:
            # NFS may serve a renamed-over file for a while.
            return
        if word.node == node:
            self.words[node] = word
