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
from ftslurm.rendezvous.member import FencedOut, Member, NodeRefused, RunInUse, View
from ftslurm.rendezvous.node_record import NodeRecord, Vitals
from ftslurm.sharedfs.clock import ClockOffset
from ftslurm.sharedfs.publish import BadFile

Task = Callable[[], object]
TRIES, RETRY_S = 3, 0.2


@dataclass(frozen=True)
class Evicted:
    """This agent must not continue, for `reason`."""

    reason: str


@dataclass(frozen=True)
class StorageProblem:
    """Access to the shared directory failed with `problem`; None: it works again."""

    problem: str | None


@dataclass(frozen=True)
class Notice:
    """Information for the user, logged once."""

    text: str


class Courier:
    """Runs `member.tick` whenever it is due, and tasks in their order.

    Args:
        member: this node's membership; only the courier's thread uses it.
        monotonic: clock, seconds.

    Attributes:
        published: the last tick succeeded, so records handed over before it are visible to other nodes.
    """

    def __init__(self, member: Member, monotonic: Callable[[], float]) -> None:
        self._member = member
        self._monotonic = monotonic
        self._condition = threading.Condition()
        self._record: NodeRecord | None = None
        self._tasks: deque[tuple[Task, object]] = deque()
        self._stopping = False
        self._woken = False
        self._vitals: Vitals | None = None
        self._ticked_at = float("-inf")
        self._due = monotonic()
        self.published = False
        self.events: deque[object] = deque()
        self.wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._last: tuple[int, bool] | None = None
        self._known_notices: set[str] = set()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._thread_main, name="courier", daemon=True)

    @property
    def clock(self) -> ClockOffset | None:
        """This node's clock against the filesystem server's, as last measured."""
        return self._member.record.clock

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def publish(self, record: NodeRecord) -> None:
        """Publish this record at once."""
        with self._condition:
            self._record = record
            self._condition.notify()

    def update_vitals(self, vitals: Vitals) -> None:
        """Publish these vitals with the next heartbeat."""
        with self._condition:
            self._vitals = vitals

    def send(self, task: Task, answer: object = None) -> None:
        """Run `task`; post `answer` and its result as an event, unless `answer` is None.

        If the task raises `OSError` or `BadFile`, the exception is its result.
        """
        with self._condition:
            self._tasks.append((task, answer))
            self._condition.notify()

    def post(self, event: object) -> None:
        """Post an event of another thread to the loop."""
        self._post(event)

    def wake(self) -> None:
        """Handle a wake: tick as soon as the rate limit of wakes allows."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def finish(self, timeout_s: float) -> bool:
        """Publish the last record, run the remaining tasks, stop; False if that exceeds `timeout_s` seconds."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The thread

    def _thread_main(self) -> None:
        try:
            self._work()
        except BaseException:
            # The last record may not be published; the guardian publishes that this agent is gone.
            self.published = False
            raise

    def _work(self) -> None:
        tries = TRIES
        while True:
            record, tasks, stopping = self._wait()
            if self._woken:
                self._woken = False
                self._member.wake()
                # Sixty nodes that publish at once cause a few ticks, not sixty.
                self._due = min(self._due, self._ticked_at + self._member.next_tick_s())
            if self._vitals is not None:
                self._member.update_vitals(self._vitals)
                self._vitals = None
            # The node record goes first: other nodes wait for it, none waits for the tasks' files.
            self._publish(record, stopping)
            for task, answer in tasks:
                self._run(task, answer)
            if stopping and not self._tasks:
                # Retry a failed last publish: otherwise the others wait until this node's heartbeat expires.
                if self.published or tries == 0:
                    return
                tries -= 1
                self._pause()

    def _wait(self) -> tuple[NodeRecord | None, list[tuple[Task, object]], bool]:
        with self._condition:
            while self._record is None and not self._tasks and not self._stopping and not self._woken:
                left = self._due - self._monotonic()
                if left <= 0:
                    break
                self._condition.wait(left)
            record, self._record = self._record, None
            tasks = list(self._tasks)
            self._tasks.clear()
            return record, tasks, self._stopping

    def _pause(self) -> None:
        """Wait before a retry; records that arrive meanwhile are published at once."""
        end = self._monotonic() + RETRY_S
        while (left := end - self._monotonic()) > 0:
            with self._condition:
                if self._record is None:
                    self._condition.wait(left)
                record, self._record = self._record, None
            self._publish(record)

    def _publish(self, record: NodeRecord | None, now: bool = False) -> None:
        """Publish the record, if any; tick if there is one, if a tick is due, or if `now`."""
        if record is not None:
            self._member.publish(record)
        if record is not None or now or self._monotonic() >= self._due:
            self._due = self._monotonic() + self._tick()

    def _run(self, task: Task, answer: object) -> None:
        for left in reversed(range(TRIES)):
            result: object
            try:
                result = task()
            except OSError as error:
                result = error
                if left:
                    self._pause()
                    continue
            except Exception as error:
                result = error
            break
        if answer is None and isinstance(result, (OSError, BadFile)):
            self._post_problem(str(result), kind=getattr(result, "errno", None))
        elif answer is None and isinstance(result, Exception):
            # Those of helper parts are contained.
            self._post(defect_of(None, result))
        if answer is not None:
            self._post((answer, result))

    def _tick(self) -> float:
        self.published = False
        try:
            view = self._member.tick()
        except (FencedOut, NodeRefused) as error:
            self._post(Evicted(str(error)))
            return 3600.0
        except RunInUse as error:
            self._post(Evicted(f"{error}; choose another --rdzv-id"))
            return 3600.0
        except (OSError, BadFile) as error:
            self._post_problem(str(error), kind=getattr(error, "errno", None))
            # On a full disk the decisions of others are still readable: this node follows them, although it cannot
            # publish.
            self._post_view(self._member.view())
            return 0.5
        except Exception as error:
            # Without this thread the agent would run on while all others consider it dead.
            self._post(defect_of(None, error))
            return 3600.0
        self.published = True
        self._ticked_at = self._monotonic()
        self._post_problem(None)
        self._post_view(view)
        return self._member.next_tick_s()

    def _post_view(self, view: View) -> None:
        for note in view.notes:
            if note not in self._known_notices:
                self._known_notices.add(note)
                self._post(Notice(note))
        if view.state is not None and (view.token, view.coordinating) != self._last:
            self._last = (view.token, view.coordinating)
            self._post(view)

    def _post_problem(self, problem: str | None, kind: int | None = None) -> None:
        # The same error of another file, such as a temporary one, is not a new problem.
        trouble = problem if kind is None else str(kind)
        if trouble != self._trouble:
            self._trouble = trouble
            self._post(StorageProblem(problem))

    def _post(self, event: object) -> None:
        self.events.append(event)
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass
