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
from ftslurm.rendezvous.member import Member, Refused, RunInUse, Superseded, View
from ftslurm.rendezvous.node_record import NodeWord, Vitals
from ftslurm.sharedfs.clock import ClockOffset
from ftslurm.sharedfs.publish import BadFile

Errand = Callable[[], object]
TRIES, RETRY_S = 3, 0.2


@dataclass(frozen=True)
class Lost:
    """This agent may not go on, for `reason`."""

    reason: str


@dataclass(frozen=True)
class Trouble:
    """The shared directory failed the courier with `problem`; None: it works again."""

    problem: str | None


@dataclass(frozen=True)
class Note:
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
        self._word: NodeWord | None = None
        self._errands: deque[tuple[Errand, object]] = deque()
        self._stopping = False
        self._rung = False
        self._vitals: Vitals | None = None
        self._looked_at = float("-inf")
        self._due = monotonic()
        self.published = False
        self.news: deque[object] = deque()
        self.wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._last: tuple[int, bool] | None = None
        self._known_notes: set[str] = set()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._live, name="courier", daemon=True)

    @property
    def clock(self) -> ClockOffset | None:
        """This node's clock against the filesystem server's, as last measured."""
        return self._member.word.clock

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def say(self, word: NodeWord) -> None:
        """Have this word published at once."""
        with self._condition:
            self._word = word
            self._condition.notify()

    def mention(self, vitals: Vitals) -> None:
        """Have the next heartbeat publish these."""
        with self._condition:
            self._vitals = vitals

    def send(self, errand: Errand, answer: object = None) -> None:
        """Have `errand` run; then `answer` and its result come back as news, unless `answer` is None.

        An errand that raises `OSError` or `BadFile` gives the exception as its result.
        """
        with self._condition:
            self._errands.append((errand, answer))
            self._condition.notify()

    def bring(self, news: object) -> None:
        """Bring the loop news of another thread."""
        self._bring(news)

    def rung(self) -> None:
        """Somebody says that there is news: look as soon as a hurried look is due."""
        with self._condition:
            self._rung = True
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

    def _live(self) -> None:
        try:
            self._work()
        except BaseException:
            # What was said last may never have got there; the guardian says that this agent has gone.
            self.published = False
            raise

    def _work(self) -> None:
        tries = TRIES
        while True:
            word, errands, stopping = self._wait()
            if self._rung:
                self._rung = False
                self._member.rung()
                # Sixty nodes that say something at once make a few looks, not sixty.
                self._due = min(self._due, self._looked_at + self._member.next_look_s())
            if self._vitals is not None:
                self._member.mention(self._vitals)
                self._vitals = None
            # The word goes first: others wait for it, nobody waits for a record.
            self._speak(word, stopping)
            for errand, answer in errands:
                self._run(errand, answer)
            if stopping and not self._errands:
                # Once more where the last words met an error: nobody should have to wait for this node's silence.
                if self.published or tries == 0:
                    return
                tries -= 1
                self._pause()

    def _wait(self) -> tuple[NodeWord | None, list[tuple[Errand, object]], bool]:
        with self._condition:
            while self._word is None and not self._errands and not self._stopping and not self._rung:
                left = self._due - self._monotonic()
                if left <= 0:
                    break
                self._condition.wait(left)
            word, self._word = self._word, None
            errands = list(self._errands)
            self._errands.clear()
            return word, errands, self._stopping

    def _pause(self) -> None:
        """Let some time pass before something is tried again; what there is to say meanwhile is said at once."""
        end = self._monotonic() + RETRY_S
        while (left := end - self._monotonic()) > 0:
            with self._condition:
                if self._word is None:
                    self._condition.wait(left)
                word, self._word = self._word, None
            self._speak(word)

    def _speak(self, word: NodeWord | None, now: bool = False) -> None:
        """Publish the word, if there is one; look at the shared directory for it, when a look is due, or now."""
        if word is not None:
            self._member.say(word)
        if word is not None or now or self._monotonic() >= self._due:
            self._due = self._monotonic() + self._tick()

    def _run(self, errand: Errand, answer: object) -> None:
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
            self._complain(str(result), kind=getattr(result, "errno", None))
        elif answer is None and isinstance(result, Exception):
            # Those of helper parts are contained.
            self._bring(defect_of(None, result))
        if answer is not None:
            self._bring((answer, result))

    def _tick(self) -> float:
        self.published = False
        try:
            view = self._member.tick()
        except (Superseded, Refused) as error:
            self._bring(Lost(str(error)))
            return 3600.0
        except RunInUse as error:
            self._bring(Lost(f"{error}; choose another --rdzv-id"))
            return 3600.0
        except (OSError, BadFile) as error:
            self._complain(str(error), kind=getattr(error, "errno", None))
            # A full disk still tells what the others have decided: this node obeys, although it cannot publish.
            self._tell(self._member.view())
            return 0.5
        except Exception as error:
            # Without this thread the agent would look alive to itself and dead to all others.
            self._bring(defect_of(None, error))
            return 3600.0
        self.published = True
        self._looked_at = self._monotonic()
        self._complain(None)
        self._tell(view)
        return self._member.next_look_s()

    def _tell(self, view: View) -> None:
        for note in view.notes:
            if note not in self._known_notes:
                self._known_notes.add(note)
                self._bring(Note(note))
        if view.state is not None and (view.token, view.coordinating) != self._last:
            self._last = (view.token, view.coordinating)
            self._bring(view)

    def _complain(self, problem: str | None, kind: int | None = None) -> None:
        # The same error of another file, a temporary one's say, is no news.
        trouble = problem if kind is None else str(kind)
        if trouble != self._trouble:
            self._trouble = trouble
            self._bring(Trouble(problem))

    def _bring(self, news: object) -> None:
        self.news.append(news)
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass
