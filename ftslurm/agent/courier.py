"""The courier: the agent's thread for the fenced state and the node records on the shared filesystem.

The loop hands it records and tasks and goes on; when the filesystem hangs, the courier hangs alone. Results come back
as events through a queue and one byte in a pipe that the loop selects on.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from ftslurm.agent.containment import defect_of
from ftslurm.dataclasses import dataclass
from ftslurm.records.codec import BadFile
from ftslurm.records.node import NodeRecord, Vitals
from ftslurm.records.state import EXIT_FAILED, EXIT_USAGE, ClockOffset
from ftslurm.rendezvous.abandonment import RunInUse
from ftslurm.rendezvous.member import FencedOut, Member, NodeRefused, View
from ftslurm.terminal import INFO

Task = Callable[[], object]
ResultHandler = Callable[[object], None]
RETRIES, RETRY_S = 3, 0.2
"""How often, and after how many seconds, a failed task or the last record is tried again."""
FAILED_TICK_S = 0.5
ENDED_S = 3600.0
"""Time until the next tick, in seconds, of an agent that may not go on and leaves."""


@dataclass(frozen=True)
class Evicted:
    """This agent must not continue, for `reason`, and ends with `exit_code`."""

    reason: str
    exit_code: int = EXIT_FAILED


@dataclass(frozen=True)
class StorageProblem:
    """Access to the shared directory failed with `problem`; None: it works again."""

    problem: str | None


@dataclass(frozen=True)
class Notice:
    """Information for the user, logged once; `level`: of `ftslurm.terminal`."""

    text: str
    level: int = INFO


@dataclass(frozen=True)
class TaskResult:
    """The result of a task; the loop passes it to `handle`. An exception is a result, too."""

    handle: ResultHandler
    result: object


class Courier:
    """Runs `member.tick` whenever it is due, and tasks in their order, by turns; `CourierThread` makes these turns.

    Args:
        member: this node's membership; only the turns use it.
        monotonic: clock, seconds.

    Attributes:
        published: the last tick succeeded, so records handed over before it are visible to other nodes.
        finished: after `stop`, everything handed over is published or has failed for good.
        events: for the loop.
    """

    def __init__(self, member: Member, monotonic: Callable[[], float]) -> None:
        self._member = member
        self._monotonic = monotonic
        self._condition = threading.Condition()
        self._record: NodeRecord | None = None
        self._tasks: deque[tuple[Task, ResultHandler | None]] = deque()
        self._stop_requested = self._stopping = False
        self._woken = False
        self._vitals: Vitals | None = None
        self._hurried = False
        self._ticked_at = float("-inf")
        self._due = monotonic()
        self._retry_at = float("-inf")
        self._task_retries = self._last_retries = RETRIES
        self.published = self.finished = False
        self.events: deque[object] = deque()
        self._last: tuple[int, bool] | None = None
        self._known_notices: set[str] = set()
        self._trouble: str | None = None

    # Effects

    def _notify(self) -> None:
        """Have `turn` called at its `deadline`, which may be earlier than before; `_condition` is held."""
        raise NotImplementedError

    def _notify_loop(self) -> None:
        """Have the loop handle `events`."""
        raise NotImplementedError

    # For the loop

    @property
    def clock(self) -> ClockOffset | None:
        """This node's clock against the filesystem server's, as last measured."""
        return self._member.record.clock

    def publish(self, record: NodeRecord) -> None:
        """Publish this record at once."""
        with self._condition:
            self._record = record
            self._notify()

    def update_vitals(self, vitals: Vitals, at_once: bool = False) -> None:
        """Publish these vitals with the next heartbeat, or at once."""
        with self._condition:
            self._vitals = vitals
            if at_once:
                self._hurried = True
                self._notify()

    def send(self, task: Task, handle: ResultHandler | None = None) -> None:
        """Run `task`; the loop passes its result to `handle`, or the exception that it raises."""
        with self._condition:
            self._tasks.append((task, handle))
            self._notify()

    def wake(self) -> None:
        """Handle a wake: tick as soon as the rate limit of wakes allows."""
        with self._condition:
            self._woken = True
            self._notify()

    def stop(self) -> None:
        """Publish the last record, run the remaining tasks, and finish."""
        with self._condition:
            self._stop_requested = True
            self._notify()

    def post(self, event: object) -> None:
        """Post an event to the loop; also for other threads."""
        self.events.append(event)
        self._notify_loop()

    # Turns

    @property
    def deadline(self) -> float:
        """The monotonic second at which `turn` is due."""
        if self._record is not None or self._woken or self._hurried or self._stop_requested != self._stopping:
            return float("-inf")
        return min(self._due, self._retry_at) if self._tasks else self._due

    def turn(self) -> None:
        """Do what is due; the only part that touches the shared filesystem."""
        with self._condition:
            record, self._record = self._record, None
            woken, self._woken = self._woken, False
            vitals, self._vitals = self._vitals, None
            hurried, self._hurried = self._hurried, False
            self._stopping = self._stop_requested
        if woken:
            self._member.wake()
            # Sixty nodes that publish at once cause a few ticks, not sixty.
            self._due = min(self._due, self._ticked_at + self._member.next_tick_s())
        if vitals is not None:
            self._member.update_vitals(vitals, hurried)
        # The node record goes first: other nodes wait for it, none waits for the tasks' files.
        if record is not None:
            self._member.publish(record)
        if record is not None or hurried or self._stopping or self._monotonic() >= self._due:
            self._due = self._monotonic() + self._tick()
        self._run_tasks()
        if self._stopping and not self._tasks:
            # Retry a failed last publish: otherwise the others wait until this node's heartbeat expires.
            self.finished = self.published or self._last_retries == 0
            self._last_retries -= 1
            self._due = min(self._due, self._monotonic() + RETRY_S)

    def _run_tasks(self) -> None:
        # A record that arrives meanwhile is published before the rest of them.
        while self._tasks and self._record is None and self._monotonic() >= self._retry_at:
            self._run(*self._tasks[0])

    def _run(self, task: Task, handle: ResultHandler | None) -> None:
        result: object
        try:
            result = task()
        except OSError as error:
            result = error
            if self._task_retries:
                self._task_retries -= 1
                self._retry_at = self._monotonic() + RETRY_S
                return
        except Exception as error:
            result = error
        self._tasks.popleft()
        self._task_retries = RETRIES
        if isinstance(result, Exception) and not isinstance(result, (OSError, BadFile)):
            # Those of helper parts are contained.
            self.post(defect_of(None, result))
        if handle is not None:
            self.post(TaskResult(handle, result))
        elif isinstance(result, (OSError, BadFile)):
            self._post_problem(str(result), kind=getattr(result, "errno", None))

    def _tick(self) -> float:
        self.published = False
        try:
            view = self._member.tick()
        except (FencedOut, NodeRefused) as error:
            self.post(Evicted(str(error)))
            return ENDED_S
        except RunInUse as error:
            self.post(Evicted(str(error), EXIT_USAGE))
            return ENDED_S
        except (OSError, BadFile) as error:
            self._post_problem(str(error), kind=getattr(error, "errno", None))
            # On a full disk the decisions of others are still readable: this node follows them, although it cannot
            # publish.
            self._post_view(self._member.view())
            return FAILED_TICK_S
        except Exception as error:
            # Without this thread the agent would run on while all others consider it dead.
            self.post(defect_of(None, error))
            return ENDED_S
        self.published = True
        self._ticked_at = self._monotonic()
        self._post_problem(None)
        self._post_view(view)
        return self._member.next_tick_s()

    def _post_view(self, view: View) -> None:
        for note in view.notes:
            if note not in self._known_notices:
                self._known_notices.add(note)
                self.post(Notice(note))
        if view.state is not None and (view.token, view.coordinating) != self._last:
            self._last = (view.token, view.coordinating)
            self.post(view)

    def _post_problem(self, problem: str | None, kind: int | None = None) -> None:
        # The same error of another file, such as a temporary one, is not a new problem.
        trouble = problem if kind is None else str(kind)
        if trouble != self._trouble:
            self._trouble = trouble
            self.post(StorageProblem(problem))


class CourierThread(Courier):
    """The courier on a thread of its own.

    Attributes:
        wake_r: becomes readable when there are events.
    """

    def __init__(self, member: Member, monotonic: Callable[[], float]) -> None:
        super().__init__(member, monotonic)
        self.wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._work, name="courier", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Stop, and wait for the end; False if that exceeds `timeout_s` seconds."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _notify(self) -> None:
        self._condition.notify()

    def _notify_loop(self) -> None:
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass

    def _work(self) -> None:
        try:
            while not self.finished:
                self._wait()
                self.turn()
        except BaseException:
            # The last record may not be published; the guardian publishes that this agent is gone.
            self.published = False
            raise

    def _wait(self) -> None:
        with self._condition:
            while (left := self.deadline - self._monotonic()) > 0:
                self._condition.wait(left)
