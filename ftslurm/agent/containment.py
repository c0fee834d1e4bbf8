"""Containment: an unexpected exception in a component of the agent disables that component, and the agent goes on.

A component is a helper part that a job can do without: health checks, the rank monitor, output, and so on. The agent
uses each through `Containment.hold`, so that no call can be forgotten. Exceptions in the core (the machine, the
courier, the workers) are not contained: its state is undefined then, so the agent stops its workers and leaves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.records.codec import BadFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from types import TracebackType
    from typing import Any, TypeVar

    T = TypeVar("T")

CHAINED = 5
"""Number of exceptions of a chain that are recorded."""
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class Component:
    """A helper part of the agent that a job can do without.

    Attributes:
        name: as in "the health checks failed".
        meaning: consequence for the job if the component is disabled.
    """

    name: str
    meaning: str


MONITOR = Component("rank monitor", "hangs of ranks on this node are no longer detected")
STOP_PAGES = Component("orderly stop", "ranks of this node do not learn of a stop before they are signalled")
JOB_WATCH = Component("watch of the job's end", "ranks are not stopped before the time limit or by --stop-when")
HEALTH = Component("health checks", "this node is no longer checked")
RECORDS = Component("failure records", "the report has less information on this node's ranks")
HOST_RESOURCES = Component(
    "memory and disk counters", "out-of-memory kills and full disks on this node are not recognised"
)
ANALYSIS = Component("failure analysis", "non-retryable failures are restarted anyway")
OUTPUT = Component("output", "the output of this node's ranks is no longer shown here; it is in their log files")
MESSAGES = Component("progress lines", "beginnings and ends of rounds are no longer logged here")
DOORBELL = Component("doorbell", "updates between this node and others take up to a second")
EXCLUSION = Component("exclusion of nodes", "unhealthy nodes found by this run are not excluded from later jobs")
STANDBY = Component("standby workers", "workers of this node are not started ahead")
LEFTOVERS = Component("removal of unfinished commits", "unfinished commits of ranks stay until the next attempt")
BUILD_LOCKS = Component(
    "removal of build locks", "the lock of a rank that is killed while it builds an extension stays"
)
ARRIVALS = Component("samples of arrivals", "ranks of this node that are late at collectives are not found")
CONNECTION = Component("connection test", "rounds begin without a test whether their master can be reached")
GUARD = Component("loop guard", "it is not detected if this agent is stuck")
EVENTS = Component("event log", "the run's events are no longer logged by this node")
NUMA_BINDING = Component("NUMA binding", "ranks of this node are not bound to CPUs")
HOOKS = Component("event hooks", "the command of --on-event is no longer run from here")
JOB_END = Component("end of the Slurm job", "Slurm's view of the job is missing in its report")

THREADS = {
    "console": OUTPUT,
    "follower": OUTPUT,
    "doorbell": DOORBELL,
    "exclusion": EXCLUSION,
    "revocation": LEFTOVERS,
    "build-locks": BUILD_LOCKS,
    "arrivals": ARRIVALS,
    "ftslurm-guard": GUARD,
}
"""The component of a thread, by the thread's name; all others belong to the core."""


@dataclass(frozen=True)
class Defect:
    """An unexpected exception: an error in ftslurm itself.

    Attributes:
        part: the component that raised it, now disabled; None: the core.
        error: type and message, in one line.
        place: file, line and function of ftslurm's innermost frame.
        traceback: all frames, without their source lines: reading those may hang with the filesystem.
        refusal: the resource that the system refused, if that is the cause; then it is no defect, and not recorded.
    """

    part: Component | None
    error: str
    place: str
    traceback: str
    refusal: str | None = None

    @property
    def text(self) -> str:
        """Return the defect as one line."""
        return self.refusal or f"a defect of ftslurm: {self.error} ({self.place})"

    def message(self, what_follows: str, path: str) -> str:
        """Return the line for the user; `path`: of its record."""
        return f"{self.text}: {what_follows}" + ("" if self.refusal else f". Please report it with {path}")


class Containment:
    """Contains the components of one agent; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._post: Callable[[Defect], object] | None = None
        self._pending: list[Defect] = []
        self._disabled: set[Component] = set()

    def connect(self, post: Callable[[Defect], object]) -> None:
        """Post each new `Defect`, and those that are pending."""
        self._post = post
        for defect in self._pending:
            post(defect)

    def works(self, part: Component) -> bool:
        """Return whether the component is not disabled."""
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
        """Make an object of the component and return a proxy for it.

        The proxy forwards method calls and attribute reads to the object. Once the component is disabled, by this
        object or another one of the component, it returns the value from `answers`, else None.

        Args:
            make: the object's class.
            arguments, named: for `make`, whose exceptions disable the component, too.
            answers: by attribute its value, by method a function that is called instead.
            passes: exceptions that the caller expects and handles.
            close: a method to be called when this object has disabled its part; its exceptions are ignored.
        """
        real = self.call(part, None, lambda: make(*arguments, **named), passes=passes)
        held: Any = _Proxy(self, part, make, real, dict(answers or {}), passes, close)
        return held  # type: ignore[no-any-return]

    def call(
        self,
        part: Component,
        default: T,
        function: Callable[..., T],
        *arguments: Any,
        passes: tuple[type[Exception], ...] = (),
    ) -> T:
        """Return the result of a function of the component, or `default` if it fails or the component is disabled."""
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
        """Return `send` for tasks of the component: a task runs on the courier's thread, which must survive it."""

        def sent(task: Callable[[], object], *answer: object) -> None:
            # Errors of the filesystem are handled by the courier.
            send(lambda: self.call(part, None, task, passes=(OSError, BadFile)), *answer)

        return sent

    def fail(self, part: Component | None, error: BaseException) -> None:
        """Disable the component for `error`; None: the core. Later errors of a disabled component are dropped."""
        if part in self._disabled:
            return
        if part is not None:
            self._disabled.add(part)
        if self._post is None:
            self._pending.append(defect_of(part, error))
        else:
            self._post(defect_of(part, error))

    def on_thread(self, arguments: threading.ExceptHookArgs) -> None:
        """Handle the exception that has ended a thread; for `threading.excepthook`."""
        name = arguments.thread.name if arguments.thread is not None else ""
        if arguments.exc_value is not None:
            self.fail(THREADS.get(name), arguments.exc_value)


class _Proxy:
    """Proxy for an object of a component; see `Containment.hold`."""

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
        return self._contained(lambda: getattr(self._real, name), self._answers.get(name))

    def _call(self, name: str, call: Callable[[], object], *arguments: object) -> object:
        answer = self._answers.get(name)
        default = object()
        result = self._contained(call, default)
        if result is default:
            return answer(*arguments) if callable(answer) else None
        # The body of a generator runs later.
        return self._steps(result) if isinstance(result, Iterator) else result

    def _steps(self, steps: Iterator[object]) -> Iterator[object]:
        end = object()
        while (step := self._contained(lambda: next(steps, end), end)) is not end:
            yield step

    def _contained(self, call: Callable[[], object], default: object) -> object:
        before = self._containment.works(self._part)
        result = self._containment.call(self._part, default, call, passes=self._passes)
        if before and self._close is not None and not self._containment.works(self._part):
            try:
                getattr(self._real, self._close)()
            except Exception:
                # The object is in an undefined state: that is why it is closed.
                pass
        return result


def defect_of(part: Component | None, error: BaseException) -> Defect:
    """Return the defect that describes an exception."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    traces: list[str] = []
    one: BaseException | None = error
    while one is not None and len(traces) < CHAINED:
        traces.append(_frames(one))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    # CPython gives no other indication; the text is the same in all versions.
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
