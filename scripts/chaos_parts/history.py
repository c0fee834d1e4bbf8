"""Recorded facts of one job for the judge, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

NEVER, IF_INTERRUPTED, IF_NODE, ANY = REQUEUE_POLICIES = ("never", "interrupted", "node", "any")


@dataclass(frozen=True)
class Injection:
    """An injected fault.

    Attributes:
        kind: its name in the registry.
        begin_ns: time of injection.
        end_ns: time of removal; None: nothing to remove.
        node: the target node; None: no single one.
        rank: the target rank, None without one.
        round: the newest round at that time, 0 before the first.
    """

    kind: str
    begin_ns: int
    end_ns: int | None = None
    node: str | None = None
    rank: int | None = None
    round: int = 0

    @property
    def over_ns(self) -> int:
        """When it ended."""
        return self.begin_ns if self.end_ns is None else self.end_ns

    @property
    def text(self) -> str:
        """Short description."""
        where = f" rank {self.rank}" if self.rank is not None else f" {self.node}" if self.node else ""
        return f"{self.kind}{where}"


@dataclass(frozen=True)
class Commit:
    """A checkpoint that became visible between these times, from the shared directory's journal."""

    began_ns: int
    done_ns: int
    name: str
    attempt: str
    round: int
    step: int
    total: int


@dataclass(frozen=True)
class Event:
    """An event recorded by a rank, see `chaos_parts.count`."""

    time_ns: int
    what: str
    round: int
    attempt: str
    rank: int
    node: str
    name: str = ""
    step: int = -1
    why: str = ""


@dataclass(frozen=True)
class FirstFailure:
    """A round's first failure according to the report."""

    cause: str
    what: str
    rank: int | None = None
    node: str | None = None
    nodes: tuple[str, ...] = ()
    signal: str | None = None


@dataclass(frozen=True)
class PastRound:
    """A round according to the report."""

    number: int
    attempt: str
    outcome: str
    reason: str
    ended_ns: int | None
    nodes: tuple[str, ...]
    first: FirstFailure | None = None


@dataclass(frozen=True)
class Report:
    """The report's data on the whole run."""

    status: str
    rounds: tuple[PastRound, ...]
    restarts_used: int
    max_restarts: int


@dataclass(frozen=True)
class Closed:
    """The end of the run according to its last state."""

    outcome: str
    reason: str
    exit_code: int
    time_ns: int


@dataclass(frozen=True)
class Leftover:
    """A file or directory that ftslurm left on a node's local disk.

    Attributes:
        earlier: left by an earlier job, although an agent of this job has started on that node since.
    """

    node: str
    path: str
    earlier: bool = False


@dataclass(frozen=True)
class History:
    """One job.

    Attributes:
        steps, nodes, min_nodes, max_restarts, requeue: its parameters.
        batch_host: the node of its batch script.
        begin_ns, end_ns: when it was submitted, and when it ended or was given up.
        stuck: why it was given up; empty: it ended.
        state, exit_code: according to Slurm, such as "COMPLETED" and "0:0".
        result: the step and the sum of the result file; None without one.
        running: processes of the job left after its end, one line each.
        stale: processes of a past round observed together with those of a newer one on their node.
        leftovers: files left on the nodes' disks.
        output: the job's output.
    """

    name: str
    steps: int
    nodes: tuple[str, ...]
    min_nodes: int
    max_restarts: int
    batch_host: str
    begin_ns: int
    end_ns: int
    requeue: str = NEVER
    stuck: str = ""
    state: str = ""
    exit_code: str = ""
    injections: tuple[Injection, ...] = ()
    commits: tuple[Commit, ...] = ()
    events: tuple[Event, ...] = ()
    closed: Closed | None = None
    report: Report | None = None
    result: tuple[int, int] | None = None
    running: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    output: str = field(default="", repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object, kept after a miss."""
        return asdict(self)


def pick(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Return a `cls` from the values of its fields."""
    return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})
