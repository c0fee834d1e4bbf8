"""Read the files of a run directory that `ftslurm status` needs: bounded, read-only, tolerant of bad files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from ftslurm.dataclasses import dataclass, replace
from ftslurm.monitor.timeouts import Timeouts, read_timeouts
from ftslurm.records.arrivals import ArrivalsRecord
from ftslurm.records.attempt import Attempt, StepEnd
from ftslurm.records.codec import BadFile, read_record
from ftslurm.records.node import NodeRecord, misnamed
from ftslurm.records.state import RUNNING, State
from ftslurm.report.facts import Problem
from ftslurm.sharedfs.bounded_read import Malformed, list_directory, read_file
from ftslurm.sharedfs.cell import RETIRED, read_generation
from ftslurm.sharedfs.rundir import rank_directory

KIB = 1024
RECORD_LIMIT = 1024 * KIB
STATE_LIMIT = 64 * 1024 * KIB
STATE_TRIES = 5
PROBLEMS_KEPT = 1000
OUTPUTS_READ = 512
"""Of a larger world, whether any rank prints is not examined: that would take too many requests."""
ARRIVALS_READ = 512
"""Nodes whose samples of arrivals are read: some 50 KB each."""

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class ReceivedRecord:
    """A node record and when it was written, nanoseconds since the epoch by the file server's clock."""

    record: NodeRecord
    written_ns: int


@dataclass(frozen=True)
class RunTiming:
    """The attempt's options as far as known, else the defaults; seconds.

    Attributes:
        exclude_after: number of first failures that exclude a node; 0: none do, or not known.
    """

    heartbeat_s: float = 3.0
    node_timeout_s: float = 8.0
    timeouts: Timeouts | None = None
    exclude_after: int = 0


_NO_ATTEMPT: tuple[RunTiming, int | None, str | None] = (RunTiming(), None, None)


@dataclass(frozen=True)
class Snapshot:
    """Content of a run directory at one time.

    Attributes:
        directory: its path.
        now_ns: start of reading, by this machine's clock.
        took_ns: duration of reading.
        server_ns: the newest time stamp found, by the file server's clock; None without files.
        timing: the timing options of the attempt.
        state: the newest usable generation; None: there is none.
        token: its token.
        newest_token: the newest token in the directory, 0 for none; larger than `token` if that generation is damaged.
        nodes: the node records.
        ended_ns: when the launcher of the state's attempt recorded that its agents have ended; None: it has not.
        problems: the files that cannot be used, and why.
        time_limit_s: the job's time limit when the attempt began.
        printed_ns: when a rank of the running round printed last, by the file server's clock; None: unknown.
        arrivals: of the nodes of the running round.
    """

    directory: str
    now_ns: int
    took_ns: int = 0
    server_ns: int | None = None
    timing: RunTiming = RunTiming()
    state: State | None = None
    token: int = 0
    newest_token: int = 0
    nodes: tuple[ReceivedRecord, ...] = ()
    ended_ns: int | None = None
    problems: tuple[Problem, ...] = ()
    time_limit_s: int | None = None
    printed_ns: int | None = None
    arrivals: tuple[ArrivalsRecord, ...] = ()


def read(
    directory: Path, *, wall_ns: Callable[[], int], monotonic_ns: Callable[[], int], nodes: bool = True
) -> Snapshot:
    """Read a run directory.

    Args:
        directory: its path.
        wall_ns: this machine's clock, nanoseconds since the epoch.
        monotonic_ns: a monotonic clock.
        nodes: whether to read the node records.

    Raises:
        OSError: the directory does not exist or cannot be entered.
    """
    reader = _Reader(directory, os.stat(directory).st_uid)
    # Opened, not only stat'ed: an unreadable directory would appear empty.
    os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    start = monotonic_ns()
    snapshot = reader.snapshot(wall_ns(), nodes)
    return replace(snapshot, took_ns=monotonic_ns() - start)


class _Reader:
    def __init__(self, directory: Path, owner: int) -> None:
        self.directory = directory
        # Files of root were put there by an administrator.
        self.owners = frozenset((owner, 0))
        self.stamps: list[int] = []
        self.problems: list[Problem] = []

    def snapshot(self, now_ns: int, with_nodes: bool) -> Snapshot:
        nodes = tuple(self.nodes()) if with_nodes else ()
        # After the nodes, which take longer: the state, printed first, should be the newest.
        state, token, newest = self.state()
        attempt = self.attempt(state.attempt) if state is not None else _NO_ATTEMPT
        return Snapshot(
            directory=str(self.directory),
            now_ns=now_ns,
            server_ns=max(self.stamps, default=None),
            timing=attempt[0],
            time_limit_s=attempt[1],
            state=state,
            token=token,
            newest_token=newest,
            nodes=nodes,
            ended_ns=self.ended_ns(state.attempt) if state is not None else None,
            problems=tuple(self.problems),
            printed_ns=self.printed_ns(state, attempt[2]) if state is not None and with_nodes else None,
            arrivals=tuple(self.arrivals(state)) if state is not None and with_nodes else (),
        )

    def printed_ns(self, state: State, logs: str | None) -> int | None:
        """Return when a rank of the running round printed last; None: unknown, as where output is in no files."""
        if state.phase != RUNNING or state.world_size > OUTPUTS_READ:
            return None
        root = logs if logs and os.path.isabs(logs) and "\0" not in logs else str(self.directory)
        newest = []
        for rank in range(state.world_size):
            folder = rank_directory(root, state.round, rank)
            stamps = [_modified_ns(os.path.join(folder, name)) for name in ("stdout.log", "stderr.log")]
            if not any(stamps):
                return None
            newest.append(max(stamps))
        return max(newest, default=None)

    def arrivals(self, state: State) -> Iterable[ArrivalsRecord]:
        """Yield what the running round's nodes have sampled, for few enough nodes."""
        if state.phase != RUNNING:
            return
        parent = self.directory / "rounds" / f"{state.round:06d}" / "arrivals"
        known = {f"{part.node}.json" for part in state.participants}
        for name in [name for name in self.listing(parent) if name in known][:ARRIVALS_READ]:
            path = parent / name
            record = self.record(path, RECORD_LIMIT, lambda data: read_record(ArrivalsRecord, data, "it", lenient=True))
            if record is not None and record.round == state.round:
                yield record

    def nodes(self) -> Iterable[ReceivedRecord]:
        parent = self.directory / "nodes"
        names = [name for name in self.listing(parent) if name.endswith(".json") and not name.startswith(".")]
        for name in names:
            path = parent / name
            record = self.record(path, RECORD_LIMIT, lambda data: NodeRecord.decode(data, "it"))
            # Stat after reading: if the file was rewritten meanwhile, the record appears younger than it is, and the
            # silence remains a lower bound.
            stamp = self.stamp(path)
            if record is None or stamp is None:
                continue
            if wrong := misnamed(record.node, name):
                self.problem(path, wrong)
                continue
            yield ReceivedRecord(record, stamp)
        self.stamp(parent)

    def state(self) -> tuple[State | None, int, int]:
        parent = self.directory / "state"
        tokens = sorted((int(n[:12]) for n in self.listing(parent) if _is_generation(n)), reverse=True)
        self.stamp(parent)
        for token in tokens[:STATE_TRIES]:
            state = self.record(parent / f"{token:012d}.json", STATE_LIMIT, lambda data: _generation(data, token))  # noqa: B023
            if state is not None:
                return state, token, tokens[0]
        return None, 0, tokens[0] if tokens else 0

    def attempt(self, attempt: str) -> tuple[RunTiming, int | None, str | None]:
        path = self.of_attempt(attempt, "attempt.json")
        return (path and self.record(path, STATE_LIMIT, _attempt)) or _NO_ATTEMPT

    def ended_ns(self, attempt: str) -> int | None:
        path = self.of_attempt(attempt, "step.json")
        end = path and self.record(path, RECORD_LIMIT, lambda data: read_record(StepEnd, data, "it"))
        return end.ended_ns if end else None

    def of_attempt(self, attempt: str, name: str) -> Path | None:
        if "/" in attempt or "\0" in attempt or attempt in ("", ".", ".."):
            return None
        return self.directory / "attempts" / attempt / name

    def record(self, path: Path, limit: int, build: Callable[[bytes], Fact]) -> Fact | None:
        try:
            data = read_file(path, limit, self.owners)
            return None if data is None else build(data)
        except Malformed as error:
            self.problem(path, str(error))
        except BadFile as error:
            self.problem(path, str(error).removeprefix("it: "))
        except OverflowError as error:
            self.problem(path, f"a number in it is too large ({error})")
        return None

    def listing(self, path: Path) -> list[str]:
        try:
            return list_directory(path)[0]
        except Malformed as error:
            self.problem(path, str(error))
            return []

    def stamp(self, path: Path) -> int | None:
        try:
            stamp = os.stat(path, follow_symlinks=False).st_mtime_ns
        except OSError:
            return None
        self.stamps.append(stamp)
        return stamp

    def problem(self, path: Path, reason: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(Problem(os.path.relpath(path, self.directory), reason))


def _is_generation(name: str) -> bool:
    return len(name) == 17 and name.endswith(".json") and name.isascii() and name[:12].isdigit()


def _generation(data: bytes, token: int) -> State:
    value = read_generation(data, "it", token).value
    if value is None:
        raise BadFile(RETIRED)
    return State.decode(value, "it")


def _attempt(data: bytes) -> tuple[RunTiming, int | None, str | None]:
    record = read_record(Attempt, data, "it", lenient=True)
    return _timing(record), record.time_limit_s, record.logs


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def _timing(attempt: Attempt) -> RunTiming:
    options = attempt.options or {}
    timeouts = options.get("timeouts")
    try:
        parsed = read_timeouts(timeouts) if isinstance(timeouts, dict) else None
    except ValueError as error:
        raise Malformed(str(error)) from None
    heartbeat_s, node_timeout_s = _seconds(options.get("heartbeat_s")), _seconds(options.get("node_timeout_s"))
    return RunTiming(
        heartbeat_s or RunTiming.heartbeat_s,
        node_timeout_s or RunTiming.node_timeout_s,
        parsed,
        attempt.exclude_after,
    )


def _seconds(value: object) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e9
    return float(value) if good else None  # type: ignore[arg-type]
