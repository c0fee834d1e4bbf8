"""The courier: the only thread of the agent that touches the shared filesystem.

The loop hands it words and errands and goes on; when the filesystem hangs, the courier hangs alone. What it
learns comes back through a queue and one byte in a pipe that the loop selects on.
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
    """This agent may not go on, for `reason`."""

    reason: str


@dataclass(frozen=True)
class StorageProblem:
    """The shared directory failed the courier with `problem`; None: it works again."""

    problem: str | None


@dataclass(frozen=True)
class Notice:
    """Something that people should know, said once."""

    text: str


class Courier:
    """Runs `member.tick` whenever it is due, and errands in their order.

    Args:
        member: this node's membership; only the courier's thread uses it.
        monotonic: clock, seconds.

    Attributes:
        published: the last look at the shared directory succeeded, so what was said before it is known to others.
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
        self._looked_at = float("-inf")
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
        """Begin."""
        self._thread.start()

    def publish(self, record: NodeRecord) -> None:
        """Have this word published at once."""
        with self._condition:
            self._record = record
            self._condition.notify()

    def update_vitals(self, vitals: Vitals) -> None:
        """Have the next heartbeat publish these."""
        with self._condition:
            self._vitals = vitals

    def send(self, errand: Task, answer: object = None) -> None:
        """Have `errand` run; then `answer` and its result come back as news, unless `answer` is None.

        An errand that raises `OSError` or `BadFile` gives the exception as its result.
        """
        with self._condition:
            self._tasks.append((errand, answer))
            self._condition.notify()

    def post(self, news: object) -> None:
        """Bring the loop news of another thread."""
        self._post(news)

    def wake(self) -> None:
        """Somebody says that there is news: look as soon as a hurried look is due."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def finish(self, timeout_s: float) -> bool:
        """Publish the last word, run the errands left, stop; False when that took longer than `timeout_s` seconds."""
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
            # What was said last may never have got there; the guardian says that this agent has gone.
            self.published = False
            raise

    def _work(self) -> None:
        tries = TRIES
        while True:
            record, errands, stopping = self._wait()
            if self._woken:
                self._woken = False
                self._member.wake()
                # Sixty nodes that say something at once make a few looks, not sixty.
                self._due = min(self._due, self._looked_at + self._member.next_tick_s())
            if self._vitals is not None:
                self._member.update_vitals(self._vitals)
                self._vitals = None
            # The word goes first: others wait for it, nobody waits for a record.
            self._publish(record, stopping)
            for errand, answer in errands:
                self._run(errand, answer)
            if stopping and not self._tasks:
                # Once more where the last words met an error: nobody should have to wait for this node's silence.
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
            errands = list(self._tasks)
            self._tasks.clear()
            return record, errands, self._stopping

    def _pause(self) -> None:
        """Let some time pass before something is tried again; what there is to say meanwhile is said at once."""
        end = self._monotonic() + RETRY_S
        while (left := end - self._monotonic()) > 0:
            with self._condition:
                if self._record is None:
                    self._condition.wait(left)
                record, self._record = self._record, None
            self._publish(record)

    def _publish(self, record: NodeRecord | None, now: bool = False) -> None:
        """Publish the word, if there is one; look at the shared directory for it, when a look is due, or now."""
        if record is not None:
            self._member.publish(record)
        if record is not None or now or self._monotonic() >= self._due:
            self._due = self._monotonic() + self._tick()

    def _run(self, errand: Task, answer: object) -> None:
        for left in reversed(range(TRIES)):
            result: object
            try:
                result = errand()
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
            # A full disk still tells what the others have decided: this node obeys, although it cannot publish.
            self._post_view(self._member.view())
            return 0.5
        except Exception as error:
            # Without this thread the agent would look alive to itself and dead to all others.
            self._post(defect_of(None, error))
            return 3600.0
        self.published = True
        self._looked_at = self._monotonic()
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
        # The same error of another file, a temporary one's say, is no news.
        trouble = problem if kind is None else str(kind)
        if trouble != self._trouble:
            self._trouble = trouble
            self._post(StorageProblem(problem))

    def _post(self, news: object) -> None:
        self.events.append(news)
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass
