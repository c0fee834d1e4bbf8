"""What is known of one job when it is judged: facts only, as they were recorded, and their form as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Injection:
    """A fault that was done.

    Attributes:
        kind: its name in the registry.
        begin_ns: when.
        end_ns: when it was undone; None: there was nothing to undo.
        node: the node that was hit; None: no single one.
        rank: the rank that was hit, None if none was.
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
        """When it was over."""
        return self.begin_ns if self.end_ns is None else self.end_ns

    @property
    def text(self) -> str:
        """It, in a few words."""
        where = f" rank {self.rank}" if self.rank is not None else f" {self.node}" if self.node else ""
        return f"{self.kind}{where}"


@dataclass(frozen=True)
class Commit:
    """A checkpoint that became visible, between these times: the shared directory itself wrote that down."""

    began_ns: int
    done_ns: int
    name: str
    attempt: str
    round: int
    step: int
    total: int


@dataclass(frozen=True)
class Event:
    """What a rank says that it did, see `chaos_parts.count`."""

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
    """What the report says a round ended by."""

    cause: str
    what: str
    rank: int | None = None
    node: str | None = None
    nodes: tuple[str, ...] = ()
    signal: str | None = None


@dataclass(frozen=True)
class PastRound:
    """A round as the report tells it."""

    number: int
    attempt: str
    outcome: str
    reason: str
    ended_ns: int | None
    nodes: tuple[str, ...]
    first: FirstFailure | None = None


@dataclass(frozen=True)
class Report:
    """What the report says of the whole run."""

    status: str
    rounds: tuple[PastRound, ...]
    restarts_used: int
    max_restarts: int


@dataclass(frozen=True)
class Closed:
    """How the run's last state says that it ended."""

    outcome: str
    reason: str
    exit_code: int
    time_ns: int


@dataclass(frozen=True)
class Leftover:
    """A file or directory that ftslurm left on a node's local disk.

    Attributes:
        earlier: an earlier job has left it, and an agent of this one has started on that node since.
    """

    node: str
    path: str
    earlier: bool = False


@dataclass(frozen=True)
class History:
    """One job.

    Attributes:
        steps, nodes, min_nodes, max_restarts: what it was.
        batch_host: the node of its batch script.
        begin_ns, end_ns: when it was submitted, and when it was over or given up.
        stuck: why it was given up; empty: it ended.
        state, exit_code: as Slurm says, such as "COMPLETED" and "0:0".
        result: the step and the sum of the result file; None: there is none.
        running: processes of the job that were left when it was over, a line each.
        stale: processes of a past round that were seen beside those of a newer one on their node.
        leftovers: what was left on the nodes' disks.
        output: what the job printed.
    """

    name: str
    steps: int
    nodes: tuple[str, ...]
    min_nodes: int
    max_restarts: int
    batch_host: str
    begin_ns: int
    end_ns: int
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
        """Return it for a file that people read after a miss."""
        return asdict(self)


def pick(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Make a `cls` of those of the values that it has fields for."""
    return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})
