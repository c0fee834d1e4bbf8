"""The shared filesystem, accessed only by child processes: a call that hangs costs only a child, and is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ftslurm.dataclasses import dataclass
from ftslurm.health.children import LATE, STARVED, Child, during, own_calls, run_children
from ftslurm.sharedfs.filesystem import PosixFileSystem

if TYPE_CHECKING:
    from ftslurm.health.children import Send

T = TypeVar("T")
_DATA_LIMIT = 1 << 30
"""Bytes of one value: the results of thousands of nodes."""


def _recorded(method: Callable[..., Any], verb: str, path: int = 0) -> Callable[..., Any]:
    """Return a method of the filesystem whose calls are recorded with the path argument of that number."""

    def call(self: PosixFileSystem, *arguments: Any, **options: Any) -> Any:
        return during(f"{verb} {arguments[path]}", lambda: method(self, *arguments, **options))

    return call


class TimedFileSystem(PosixFileSystem):
    """The real filesystem, of which every operation is recorded. Other users' files are refused."""

    def __init__(self) -> None:
        super().__init__(owner=os.geteuid())

    def during(self, what: str, function: Callable[[], T]) -> T:
        """Call `function`, recorded as `what`."""
        return during(what, function)

    if not TYPE_CHECKING:
        create = _recorded(PosixFileSystem.create, "create")
        link = _recorded(PosixFileSystem.link, "link", 1)
        rename = _recorded(PosixFileSystem.rename, "rename", 1)
        unlink = _recorded(PosixFileSystem.unlink, "unlink")
        read = _recorded(PosixFileSystem.read, "open and read")
        listdir = _recorded(PosixFileSystem.listdir, "list")
        refresh = _recorded(PosixFileSystem.refresh, "open directory")
        makedirs = _recorded(PosixFileSystem.makedirs, "mkdir")


Work = Callable[[TimedFileSystem], Any]


@dataclass(frozen=True)
class Outcome:
    """Result of a child's work.

    Attributes:
        value: the return value (after JSON); None without one.
        problem: why there is none, one line.
        hung: the call that had not returned at the time-out.
        slowest: the slowest call: seconds and name.
    """

    value: Any = None
    problem: str | None = None
    hung: str | None = None
    slowest: tuple[float, str] = (0.0, "")


def run_all(works: Sequence[Work], limit_s: float, call_limit_s: float) -> list[Outcome]:
    """Run each work in a child process of its own, concurrently.

    Args:
        works: the functions; each returns a JSON-serialisable value.
        limit_s: seconds until all are killed.
        call_limit_s: longest duration of one filesystem call before the child is killed, seconds.
    """
    children = [Child(_sending(work), limit_s, call_limit_s=call_limit_s, data_limit=_DATA_LIMIT) for work in works]
    run_children(children)
    return [_outcome(child) for child in children]


def _sending(work: Work) -> Callable[[Send], None]:
    """Return the work of a child, which sends value, problem and slowest call."""

    def send_outcome(send: Send) -> None:
        value, problem = None, None
        try:
            value = work(TimedFileSystem())
        except OSError as error:
            problem = f"{own_calls().latest()[1]}: {error}" if error.filename is None else str(error)
        except Exception as error:  # a bug must be a finding on one node, not abort all nodes
            problem = f"{type(error).__name__}: {error}"
        send([value, problem, own_calls().slowest])

    return send_outcome


def _outcome(child: Child) -> Outcome:
    if child.values:
        value, problem, slowest = child.values[0]
        return Outcome(value, problem, None, tuple(slowest))
    if child.outcome in (LATE, STARVED):
        hung = child.call if child.in_call else None
        return Outcome(problem=f"{hung} did not return" if hung else "not done in time", hung=hung)
    return Outcome(problem="its process was killed")
