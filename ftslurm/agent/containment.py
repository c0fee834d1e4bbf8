"""Containment: an unexpected exception in a helper part of the agent disables that part, and the agent goes on.

A helper part is one that a job can do without: health checks, the rank monitor, output, and so on. The agent uses each
through `Containment.hold`, so that no call can be forgotten. What happens in the core (the machine, the courier, the
workers) is not contained: nobody knows what state it is in then, so the agent stops its workers and leaves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.sharedfs.publish import BadFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from types import TracebackType
    from typing import Any, TypeVar

    T = TypeVar("T")

CHAINED = 5
"""So many exceptions of a chain are recorded."""
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class Component:
    """A helper part of the agent.

    Attributes:
        name: as in "the health checks failed".
        meaning: what it means for the job that the part is disabled.
    """

    name: str
    meaning: str


MONITOR = Component("rank monitor", "hangs of ranks on this node are not noticed any more")
HEALTH = Component("health checks", "this node is not checked any more")
RECORDS = Component("failure records", "the report knows less of this node's ranks")
HOST_RESOURCES = Component(
    "memory and disk counters", "out-of-memory kills and full disks on this node are not recognised"
)
ANALYSIS = Component("failure analysis", "failures that would come again are restarted all the same")
OUTPUT = Component("output", "the ranks' output of this node is not shown here any more; it is in their log files")
MESSAGES = Component("progress lines", "what happens to the rounds is not told here any more")
DOORBELL = Component("doorbell", "news between this node and others takes up to a second")
EXCLUSION = Component("exclusion of nodes", "what this run finds of bad nodes is not noted for later jobs")
STANDBY = Component("standby workers", "workers of this node are not started ahead")
LEFTOVERS = Component("removal of unfinished commits", "what ranks left half-written stays until the next attempt")
BUILD_LOCKS = Component(
    "removal of build locks", "the lock of a rank that is killed while it builds an extension stays"
)
CONNECTION = Component("connection test", "rounds begin without trying whether their master can be reached")
GUARD = Component("loop guard", "it is not noticed when this agent is stuck")
JOB_END = Component("end of the Slurm job", "what Slurm says of the job is not in its report")

THREADS = {
    "console": OUTPUT,
    "follower": OUTPUT,
    "doorbell": DOORBELL,
    "exclusion": EXCLUSION,
    "revocation": LEFTOVERS,
    "build-locks": BUILD_LOCKS,
    "ftslurm-guard": GUARD,
}
"""Which part a thread belongs to, by the thread's name; any other belongs to the core."""


@dataclass(frozen=True)
class Defect:
    """An exception that should not exist.

    Attributes:
        part: the helper part that raised it, now disabled; None: the core.
        error: type and message, in one line.
        place: file, line and function of ftslurm's innermost frame.
        traceback: all frames, without their source lines: reading those may hang with the filesystem.
        refusal: what the system did not let this process have, if that was all; then it is no defect, and not recorded.
    """

    part: Component | None
    error: str
    place: str
    traceback: str
    refusal: str | None = None

    @property
    def text(self) -> str:
        """Return it in one line."""
        return self.refusal or f"a defect of ftslurm: {self.error} ({self.place})"

    def message(self, what_follows: str, path: str) -> str:
        """Return the line for the user; `path`: of its record."""
        return f"{self.text}: {what_follows}" + ("" if self.refusal else f". Please report it with {path}")


class Containment:
    """Holds the helper parts of one agent; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._tell: Callable[[Defect], object] | None = None
        self._untold: list[Defect] = []
        self._disabled: set[Component] = set()

    def connect(self, tell: Callable[[Defect], object]) -> None:
        """Have each new `Defect` told, and those there are already."""
        self._tell = tell
        for defect in self._untold:
            tell(defect)

    def works(self, part: Component) -> bool:
        """Tell whether the part is not disabled."""
        return part not in self._disabled

    def hold(
        self,
        part: Component,
        make: Callable[..., T],
        *arguments: object,
        answers: Mapping[str, object] | None = None,
        passes: tuple[type[Exception], ...] = (),
        close: str | None = None,
        **named: object,
    ) -> T:
        """Make an object of the part and return what stands for it.

        Each call of a method, and each reading of an attribute, goes to the object. Once the part is disabled, by this
        object or another one of the part, it is answered here: by `answers`, else None.

        Args:
            make: the object's class.
            arguments, named: for `make`, whose exceptions disable the part, too.
            answers: by attribute its value, by method a function that is called instead.
            passes: exceptions that the caller expects and handles.
            close: a method to be called when this object has disabled its part; its exceptions are ignored.
        """
        real = self.call(part, None, lambda: make(*arguments, **named), passes=passes)
        held: Any = _Held(self, part, make, real, dict(answers or {}), passes, close)
        return held  # type: ignore[no-any-return]

    def call(
        self,
        part: Component,
        default: T,
        function: Callable[..., T],
        *arguments: Any,
        passes: tuple[type[Exception], ...] = (),
    ) -> T:
        """Return what a function of the part does, or `default` if it fails or the part is disabled."""
        if part in self._disabled:
            return default
        try:
            return function(*arguments)
        except passes:
            raise
        except (Exception, SystemExit) as error:
            self.fail(part, error)
            return default

    def contained_task(self, part: Component, send: Callable[..., None]) -> Callable[..., None]:
        """Return `send` for errands of the part: an errand runs in the courier's thread, which must outlive it."""

        def sent(errand: Callable[[], object], *answer: object) -> None:
            # What the filesystem does is the courier's to deal with.
            send(lambda: self.call(part, None, errand, passes=(OSError, BadFile)), *answer)

        return sent

    def fail(self, part: Component | None, error: BaseException) -> None:
        """Disable the part for `error`; None: the core has failed. Of a disabled part nothing more is told."""
        if part in self._disabled:
            return
        if part is not None:
            self._disabled.add(part)
        if self._tell is None:
            self._untold.append(defect_of(part, error))
        else:
            self._tell(defect_of(part, error))

    def on_thread(self, arguments: threading.ExceptHookArgs) -> None:
        """Take the exception that has ended a thread; for `threading.excepthook`."""
        name = arguments.thread.name if arguments.thread is not None else ""
        if arguments.exc_value is not None:
            self.fail(THREADS.get(name), arguments.exc_value)


class _Held:
    """Stands for an object of a part; see `Containment.hold`."""

    def __init__(
        self,
        containment: Containment,
        part: Component,
        make: Callable[..., object],
        real: object,
        answers: Mapping[str, object],
        passes: tuple[type[Exception], ...],
        close: str | None,
    ) -> None:
        self._containment = containment
        self._part = part
        self._make = make
        self._real = real
        self._answers = answers
        self._passes = passes
        self._close = close

    def __getattr__(self, name: str) -> object:
        if callable(getattr(self._make, name, None)):
            return lambda *arguments, **named: self._call(
                name, lambda: getattr(self._real, name)(*arguments, **named), *arguments
            )
        return self._ask(lambda: getattr(self._real, name), self._answers.get(name))

    def _call(self, name: str, call: Callable[[], object], *arguments: object) -> object:
        answer = self._answers.get(name)
        default = object()
        result = self._ask(call, default)
        if result is default:
            return answer(*arguments) if callable(answer) else None
        # What a generator does comes later.
        return self._steps(result) if isinstance(result, Iterator) else result

    def _steps(self, steps: Iterator[object]) -> Iterator[object]:
        end = object()
        while (step := self._ask(lambda: next(steps, end), end)) is not end:
            yield step

    def _ask(self, call: Callable[[], object], default: object) -> object:
        before = self._containment.works(self._part)
        result = self._containment.call(self._part, default, call, passes=self._passes)
        if before and self._close is not None and not self._containment.works(self._part):
            try:
                getattr(self._real, self._close)()
            except Exception:
                # It is not what it should be: that is why it is closed.
                pass
        return result


def defect_of(part: Component | None, error: BaseException) -> Defect:
    """Return what is told and recorded of an exception."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    traces: list[str] = []
    one: BaseException | None = error
    while one is not None and len(traces) < CHAINED:
        traces.append(_frames(one))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    # CPython's only word for it, the same in all versions.
    threads = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    refusal = "no more threads can be started here (ulimit -u, ulimit -v, the cgroup's pids.max)" if threads else None
    return Defect(part, text, _place(error.__traceback__), "\n\n".join(reversed(traces)) + "\n", refusal)


def _frames(error: BaseException) -> str:
    lines = ["Traceback (most recent call last):"]
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
        trace = trace.tb_next
    return "\n".join([*lines, f"{type(error).__name__}: {error}"])


def _place(trace: TracebackType | None) -> str:
    place = "?"
    while trace is not None:
        code = trace.tb_frame.f_code
        file = os.path.abspath(code.co_filename)
        if file.startswith(_HOME + os.sep) or place == "?":
            place = f"{os.path.relpath(file, _HOME)}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return place
