"""Which exceptions, crashes and other reasons in an attempt's lines ended a process (pure).

An exception in a log may have been caught. It ended its process if torch's hook printed it, if nothing but aftermath
follows in its stream, or if an end with an exit code follows and it is the last one before that.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from ftslurm.failures.closing_lines import goes_on_without, went_on
from ftslurm.failures.exception_line import exception_in
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.failures.reason import reason
from ftslurm.failures.stated_lines import stated_in
from ftslurm.report.logs.attempt_log import OTHERS_LINES, AttemptLog, number_of, until
from ftslurm.report.logs.evidence import Found, is_strong, last_line_of
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.rank_errors import error_of, is_cascade
from ftslurm.report.logs.reasons import STRONG, Reason, reasons_of
from ftslurm.report.logs.success import ends_well, step_of, works
from ftslurm.report.logs.tracebacks import Raised, crashes, is_logged_error, names_rank, was_caught

CLOSING_LINES = 15
"""Lines that a program may print between the traceback that ends it and its end."""
CHILD_LINES = 12
BEFORE_OTHERS = 40
"""Lines of other ranks between a traceback and the moment at which they notice the end of its process."""
SILENT_LINES = 100
"""Lines of others at the end of a log without one of a rank, after which it is taken to print nothing more."""
STEPS_READ = 200
"""Lines before and after an exception in which training's steps are counted."""
STEPS_WITHOUT = 3
"""Different steps that other ranks print at most after one has ended."""
TOGETHER_LINES = BELOW = 3
"""Lines between two tracebacks of ranks that fail together; with more between, the first one was caught."""
DEATH_SIGNAL = re.compile(r"Received \S{1,20} death signal|SignalException: Process \d+ got signal|\^C")
_WATCHDOG = re.compile(
    r"ProcessGroupNCCL\.cpp:\d+\].{0,80}(?:Watchdog caught collective|Some NCCL operations have failed)"
)
_LAUNCHERS = frozenset(
    ("ChildFailedError", "SignalException", "ProcessExitedException", "PapermillExecutionError", "CellExecutionError")
)
_LAUNCHER_FILES = (
    "/accelerate/commands/", "/deepspeed/launcher/", "/torch/distributed/launch.py", "/torch/distributed/run.py",
    "/lightning_fabric/strategies/launchers/", "/horovod/runner/", "/torchelastic/distributed/launch.py",
)  # fmt: skip
_MILD = re.compile(r"\b(?:WARN(?:ING)?|INFO|DEBUG|warning)\b")
_EXCERPT = re.compile(r"\A[#\s]*The last \d+ lines of \S")  # of the output of the process that failed
# Of NCCL's warnings of a fabric, those on this side of a connection: 12 and 13 are of a peer that does not answer, 5 of
# what was sent after that.
_OWN_NCCL = re.compile(r"NCCL WARN .{0,120}Got completion .{0,80}status=(?!(?:5|1[23])\b)\d")
_KERNEL = re.compile(r"\.(?:cu|cuh|h|hip|cpp):\d{1,6}: .{0,300}?Assertion `.{1,200}[`'] failed")
_EXHAUSTED = re.compile(
    r"(?i)\bmax(?:imum)? (?:number of )?(?:retries|attempts)|giving up|(?:retries|attempts) (?:failed|exceeded"
    r"|exhausted)"
)
_OF_END = re.compile(r"(?i)\bexit|return ?code|\bstatus\b|terminated|\bdied\b|killed|\bfail")
"""In what a launcher raises because a process of its own has ended."""
_OF_LAUNCH = re.compile(
    r"(?:torchrun|torch\.distributed|accelerate|deepspeed|launch)\b[^\0]{0,4000}(?:exit status|return ?code|status) \d"
)
_INSTEAD = re.compile(
    r"(?i)\bfall(?:ing|s)? ?back\b|\binstead\b|\bnot available\b|\bcontinuing without\b|\bdisabl(?:ed|ing)\b"
    r"|\boptional\b"
)
_SKIPPED = re.compile(r"(?i)\b(?:skipped|ignoring)\b")
_BARE = re.compile(r"terminate called after throwing an instance of 'c10::DistBackendError'\s*")
_LATE_THREAD = re.compile(r"terminate called (?:without an active exception|recursively)")
_SPAWNED = re.compile(r"process \d+ terminated with (?:signal|exit code) ")
_CHILD = "subprocess.CalledProcessError: Command"
# Of the process that started the one that failed: it leaves the reason to that one's output.
_REFERS = re.compile(
    r"(?i)root cause (?:is )?above|\bsee (?:the )?stack ?trace for (?:the )?root cause"
    r"|\b(?:see|check|inspect|refer to|look at)\b.{0,60}\b(?:above|earlier|previous)\b"
)


class Finder:
    """Finds what ended processes.

    Attributes:
        doubtful: exceptions that were perhaps caught, after `found`.
        distant: such with much output after them.
        late: such near the end of a log that does not state how its processes ended, also those that were logged.
    """

    def __init__(self, log: AttemptLog) -> None:
        self._log = log
        self.doubtful: list[Raised] = []
        self.distant: list[Raised] = []
        self.late: list[Found] = []
        self._signalled = [line.number for line in log.lines if DEATH_SIGNAL.search(line.text)]

    def found(self) -> list[Found]:
        """Return what ended a process, as far as it can be known, in order."""
        all_of_them: list[Found] = []
        doubtful: list[Found] = []
        logged: list[Found] = []
        referring: set[int] = set()
        for own, raised in self._log.raised:
            rank = self._log.rank_of(own[0])
            for each in raised:
                of = rank if rank is not None or (each.spawned and self._log.is_nested()) else each.rank
                of = self._log.rank_in(each.line.node) if of is None else of
                if each.ignored or self._by_launcher(each) or self._is_reaction(each):
                    if of is not None and _REFERS.search(reason(each.exception).message):
                        referring.add(of)
                    continue
                tail = self._log.tail(until(own, each.end, 20), each.numbers)
                above = self._asserted(each) or (self._printed_above(each) if rank is not None else "")
                one = Found(each.begin, of, each, f"{above}{tail}")
                fate = self._fate(each, own, of)
                if not fate and rank is None and of is not None and not each.logged:
                    # Its message names a rank, whose end the log may not state.
                    fate = self._fate(each, own, None) or fate
                (all_of_them if fate else doubtful if fate is None else []).append(one)
                if not fate and each.logged:
                    logged.append(one)
                if not fate and self._is_late(each, own):
                    self.late.append(one)
                if fate is None:
                    self.doubtful.append(each)
                elif not fate and not each.logged and of is None:
                    self.distant.append(each)
            all_of_them += self._stated(own, rank)
        all_of_them = _without_copies(
            _without_late_threads([*all_of_them, *self._earlier(all_of_them, doubtful, logged)])
        )
        if len(referring) == 1:
            # It is of the rank that says so.
            all_of_them = [each._replace(rank=min(referring)) if each.rank is None else each for each in all_of_them]
        return sorted(self._without_superseded(self._without_caught(all_of_them)), key=lambda each: each.number)

    def _stated(self, own: Sequence[Line], rank: int | None) -> list[Found]:
        """Return the dumps of faulthandler and the reasons of one stream that are not exceptions."""
        dumps = crashes(own)
        reasons = reasons_of(own)
        # A rank's lines with torch's label and those without are one output.
        whole = self._log.lines_of(rank) if rank is not None and (dumps or reasons) else own
        known = rank if rank is not None else self._log.rank_in(own[0].node)
        found = [Found(each.begin, known, each, self._log.tail(until(whole, each.end, 20))) for each in dumps]
        for other in reasons:
            if other.signal and any(abs(other.number - dump.begin) < 40 for dump in dumps):
                continue
            if other.rank is not None and (rank is None or other.kind == "exit"):
                # In the output of several ranks, only this line is known to be of this one.
                found.append(Found(other.number, other.rank, other, other.message))
                continue
            found.append(Found(other.number, known, other, self._log.tail(until(whole, other.number, 30))))
        return found

    def _asserted(self, each: Raised) -> str:
        """Return what a kernel's first thread printed above a device-side assert: the driver does not put labels."""
        if "device-side assert" not in each.headline:
            return ""
        before = self._log.lines[: bisect_left(self._log.lines, each.begin, key=number_of)]
        found = next((line.text for line in before if _KERNEL.search(line.text)), "")
        return f"{found}\n" if found else ""

    def _printed_above(self, each: Raised) -> str:
        """Return the unlabelled lines directly above a labelled CalledProcessError: the child's own output."""
        builds = each.headline.startswith("RuntimeError: Error building extension")
        if not builds and reason(each.exception).type != "CalledProcessError":
            return ""
        at = bisect_left(self._log.lines, each.begin, key=number_of)
        lines: list[str] = []
        for line in reversed(self._log.lines[max(0, at - CHILD_LINES) : at]):
            if line.rank is not None or line.number in self._log.covered or not line.text.strip():
                break
            lines.insert(0, line.text)
        return "".join(f"{text}\n" for text in lines)

    def _by_launcher(self, each: Raised) -> bool:
        """Whether a launcher raised it because of its child, or of a signal to itself."""
        exception = each.exception
        inner = reason(exception)  # of the process that it started
        if exception.type in _LAUNCHERS:
            return True
        if exception.type == "ProcessRaisedException" and not exception.message:
            # A notebook has the traceback of its process apart.
            return any(other.spawned for _, own in self._log.raised for other in own)
        if _EXCERPT.search(exception.message) and any(
            other is not each for _, own in self._log.raised for other in own
        ):
            return True
        if _REFERS.search(inner.message) and any(
            other.end < each.begin for _, own in self._log.raised for other in own
        ):
            return True
        if exception.type == "Exception" and _SPAWNED.match(exception.message):
            return True
        files = [frame.file for frame in (*exception.frames, *inner.frames)]
        if any(frame.function == "_exit_barrier" for frame in exception.frames):
            return True  # of torchrun's agent, which had ended its ranks
        if _OF_LAUNCH.search(exception.message) and any(
            "ChildFailedError" in line.text and line.number < each.begin for line in self._log.lines
        ):
            return True  # of what had started torchrun
        inside = any(part in file for file in files for part in _LAUNCHER_FILES)
        ends = ("CalledProcessError", "KeyboardInterrupt", "RuntimeError")
        if exception.type == ends[2] and not _OF_END.search(exception.message):
            return False  # its own failure
        if any("/elastic/rendezvous/" in file for file in files):
            return False  # its own failure, before any rank
        return inside and (exception.type in ends or inner.type in ends[:2] or _CHILD in exception.message)

    def _is_reaction(self, each: Raised) -> bool:
        """Whether a launcher had stated before that a signal from outside stops it."""
        return each.exception.type == "KeyboardInterrupt" and any(number <= each.begin for number in self._signalled)

    def _fate(self, each: Raised, own: Sequence[Line], rank: int | None) -> bool | None:
        """Return whether an exception ended its process; None: it may have, if no other one did."""
        if each.by_hook or self._is_before_end(each):
            return True
        end = self._log.end_after(each.end, rank)
        if self._was_left_behind(each, own) or self._was_done_without(each, own):
            return False
        if _is_of_feeder(each):
            return None
        by_hook = any(
            other.line.rank == rank is not None and other.begin > each.end
            for _, raised in self._log.raised
            for other in raised
        )
        if (end is None or by_hook) and self._was_tried_again(each, own):
            return False
        ordinary, gap = self._log.ordinary(own, each.end, end.number if end is not None and rank is None else None)
        if not ordinary and not gap:
            return True
        if gap and rank is not None and end is not None and end.rank in (rank, None) and self._is_silent(own, each.end):
            return True
        # An exception that nothing catches gives exit code 1; another code follows closely, if at all.
        worked = end is not None and end.code != 1 and self._works_between(own, each.end, end.number)
        closes = end is None and not gap and not each.logged and ordinary <= CLOSING_LINES
        if rank is not None:
            if closes and not self._log.ends.processes and not self._log.goes_on(each.end, own):
                return True
            ended = end is not None and end.rank in (rank, None) and not gap and ordinary <= CLOSING_LINES
            # A program may log an exception and end with a code of its own.
            if ended and (each.logged or not worked):
                return True
            return None if each.logged and self._falls_silent(own, each.end, rank) else False
        if self._advances(own, each.end, end.number if end is not None else None):
            return False
        limit = OTHERS_LINES if end is not None and end.code == 1 else CLOSING_LINES
        if end is not None and not gap and ordinary <= limit and not worked:
            return True
        # What a batch script prints at its end, as "Done" or a time.
        if closes and not self._log.goes_on(each.end):
            return True
        return None if (gap or ordinary <= OTHERS_LINES) and not each.logged else False

    def _is_before_end(self, each: Raised) -> bool:
        """Whether srun reports the end of a task right below an exception, and of no other one."""
        below = islice(self._log.lines, bisect_right(self._log.lines, each.end, key=number_of), None)
        near = {line.number for line in islice((line for line in below if line.text.strip()), BELOW)}
        ends = [end for end in self._log.ends.processes if end.number in near]
        return any(end.by == "srun" and not end.stopped and end.code == 1 and len(end.tasks) == 1 for end in ends)

    def _is_late(self, each: Raised, own: Sequence[Line]) -> bool:
        """Whether few lines follow an exception, none of which shows that its program goes on."""
        if self._log.ends.processes or self._log.ends.job or went_on(each.headline) or ends_well(own, sole=False):
            return False
        if self._was_tried_again(each, own):
            return False
        ordinary, gap = self._log.ordinary(own, each.end, None)
        return not gap and ordinary <= CLOSING_LINES and not self._log.goes_on(each.end)

    def _was_left_behind(self, each: Raised, own: Sequence[Line]) -> bool:
        """Whether the line below an exception says that its program goes on without what failed, and it did."""
        below = [line for line in own[bisect_right(own, each.end, key=number_of) :] if line.text.strip()]
        goes_on = bool(below) and goes_on_without(below[0].text)
        return goes_on and any(not is_aftermath(line.text) for line in below[1:])

    def _was_done_without(self, each: Raised, own: Sequence[Line]) -> bool:
        """Whether the line before an exception names what the program uses instead, and it raised another one later."""
        at = bisect_left(own, each.begin, key=number_of)
        without = at > 0 and _INSTEAD.search(own[at - 1].text) is not None
        return without and any(
            self._log.between(each.end, other.begin) > 0 and other.headline != each.headline
            for _, raised in self._log.raised
            for other in raised
            if other.begin > each.end and not other.ignored and not self._by_launcher(other)
        )

    def _was_tried_again(self, each: Raised, own: Sequence[Line]) -> bool:
        """Whether the line before an exception says that its program goes on without what failed."""
        at = bisect_left(own, each.begin, key=number_of)
        if at == 0 or not was_caught(own[at - 1].text) or "Exception in thread" in own[at - 1].text:
            return False
        if _EXHAUSTED.search(each.headline):
            return False
        # The last traceback of a log may be another one than what was skipped or tried again before.
        rest = self._log.lines[bisect_right(self._log.lines, each.end, key=number_of) :]
        other = _SKIPPED.search(own[at - 1].text) or own[at - 1].text.startswith("wandb: ")
        return not (other and all(is_aftermath(line.text) or line.number in self._log.covered for line in rest))

    def _works_between(self, own: Sequence[Line], begin: int, end: int) -> bool:
        """Whether a program's progress is between two lines."""
        rest = islice(own, bisect_right(own, begin, key=number_of), bisect_right(own, end, key=number_of))
        return any(line.number not in self._log.covered and works(line.text) for line in rest)

    def _advances(self, own: Sequence[Line], begin: int, end: int | None) -> bool:
        """Whether training goes on for several steps after a line: ranks that wait for one that has ended do not.

        And with as many ranks as before, where these print their steps.
        """
        at = bisect_right(own, begin, key=number_of)
        after = islice((line for line in islice(own, at, None) if end is None or line.number < end), STEPS_READ)
        steps, each = self._steps(after)
        return steps > STEPS_WITHOUT and each >= self._steps(own[max(0, at - STEPS_READ) : at])[1]

    def _steps(self, lines: Iterable[Line]) -> tuple[int, int]:
        """Return how many steps lines state, and how many lines the one with the most of these has."""
        found = Counter(step_of(line.text) for line in lines if line.number not in self._log.covered)
        del found[None]
        return len(found), max(found.values(), default=0)

    def _is_silent(self, own: Sequence[Line], number: int) -> bool:
        """Whether a rank prints nothing more after a line, in the kept parts of a log in which others go on."""
        after = own[bisect_right(own, number, key=number_of) :]
        if not all(line.text == GAP or line.number in self._log.covered or is_aftermath(line.text) for line in after):
            return False
        rest = self._log.lines[bisect_right(self._log.lines, number, key=number_of) :]
        last = max((i for i, line in enumerate(rest) if line.text == GAP), default=-1)
        return len(rest) - last > SILENT_LINES

    def _falls_silent(self, own: Sequence[Line], number: int, rank: int) -> bool:
        """Whether a rank that loggers name in each line prints nothing but errors after a line."""
        for line in islice(own, bisect_right(own, number, key=number_of), None):
            named = names_rank(line.text[:200])
            if (
                named is None
                and line.text.strip()
                and line.number not in self._log.covered
                and not is_aftermath(line.text)
            ):
                return False
            if named == rank and not is_logged_error(line.text):
                return False
        return True

    def _earlier(self, sure: Sequence[Found], doubtful: Sequence[Found], logged: Sequence[Found]) -> list[Found]:
        """Return the doubtful exception that is the reason if all sure ones follow from another rank's end.

        Args:
            sure: what ended processes.
            doubtful: what was perhaps caught.
            logged: what was logged, perhaps by a program that then ended.
        """
        raised = [each for each in sure if isinstance(each.thing, Raised)]
        gave_up = [line.number for line in self._log.lines if _WATCHDOG.search(line.text)]
        aborted = [each.number for each in sure if isinstance(each.thing, Reason) and self._follows(each)]
        noticed = [*(each.number for each in raised), *gave_up, *aborted]
        if not noticed or not all(self._follows(each) for each in raised):
            return []
        late_thread = any(_LATE_THREAD.match(line.text) for line in self._log.lines)
        given_up = bool(gave_up) or late_thread
        aborts = [end for end in self._log.ends.processes if end.signal == "SIGABRT" and given_up]
        if any(not end.stopped and end.code not in (0, 1) and end not in aborts for end in self._log.ends.processes):
            return []  # an end that is no exception's: the others follow from that
        first = min(noticed)
        near = [each for each in doubtful if each.number < first]
        near += [each for each in logged if late_thread and each.number < first and not self._follows(each)]
        near = [each for each in near if self._log.between(last_line_of(each.thing), first) <= BEFORE_OTHERS]
        return near[-1:] or self._named_before(first)

    def _named_before(self, number: int) -> list[Found]:
        """Return the exception that the last such line before another one names: a filtered log has no tracebacks."""
        end = bisect_left(self._log.lines, number, key=number_of)
        for line in reversed(self._log.lines[max(0, end - BEFORE_OTHERS) : end]):
            stated = stated_in(line.text) if _OWN_NCCL.search(line.text) else None
            if stated is not None and not stated.meaning:
                reason = Reason(line.number, "exit", None, None, stated.text, STRONG, line, rank=stated.rank)
                return [Found(line.number, self._log.rank_of(line), reason, line.text)]
            known = line.number in self._log.covered or _MILD.search(line.text)
            exception = None if known else exception_in(line.text)
            if exception is None or went_on(line.text) or was_caught(line.text):
                continue
            raised = Raised(exception, f"{line.text}\n", line.number, line.number, frozenset((line.number,)), line)
            rank = self._log.rank_of(line)
            found = Found(line.number, rank, raised, self._log.tail([*until(self._log.lines, line.number, 0)]))
            if not self._follows(found):
                return [found]
        return []

    def _without_caught(self, found: Sequence[Found]) -> list[Found]:
        """Leave out exceptions without torch's label before one with it: its hook labels all that nothing catches.

        Before the process group is set up it does not; what ends a rank then leaves only consequences to the others.
        """
        by_hook = [each.number for each in found if _is_labelled(each) and not self._follows(each)]
        if not by_hook:
            return list(found)
        first = min(by_hook)
        # Of a launcher's label, which is the same, it is not known who put it there.
        kept: list[Found] = []
        for each in found:
            if (
                isinstance(each.thing, Raised)
                and each.thing.line.rank is None
                and each.number <= first
                and not self._is_before_end(each.thing)
            ):
                self.distant.append(each.thing)
            else:
                kept.append(each)
        return kept

    def _without_superseded(self, found: Sequence[Found]) -> list[Found]:
        """Leave out exceptions of unknown ranks after which the program went on until a later failure."""
        ordered = sorted(found, key=lambda each: each.number)
        kept: list[Found] = []
        for i, each in enumerate(ordered):
            if each.rank is None and isinstance(each.thing, Raised) and not self._is_before_end(each.thing):
                later = (other for other in ordered[i + 1 :] if is_strong(other.thing))
                primary = (other for other in later if not self._follows(other))
                if any(self._log.between(each.thing.end, other.number) > TOGETHER_LINES for other in primary):
                    self.distant.append(each.thing)
                    continue
            kept.append(each)
        return kept

    def _follows(self, each: Found) -> bool:
        """Whether its cause is a consequence of another rank's end."""
        return is_cascade(error_of(self._log, each.thing, 0))


def _is_of_feeder(each: Raised) -> bool:
    """Whether it is of the thread that feeds a queue to other processes, which goes on after it."""
    first = next(iter(each.exception.frames), None)
    return first is not None and first.function == "_feed" and first.file.endswith("multiprocessing/queues.py")


def _without_late_threads(found: list[Found]) -> list[Found]:
    """Leave out aborts because a thread still ran when its process ended, where an exception ended one.

    And those by torch's process group without a text, of a watchdog that had given up.
    """
    if any(isinstance(each.thing, Reason) and timeout_in(each.thing.message) is not None for each in found):
        found = [
            each for each in found if not isinstance(each.thing, Reason) or not _BARE.fullmatch(each.thing.message)
        ]
    if not any(isinstance(each.thing, Raised) for each in found):
        return found
    return [each for each in found if not _is_late_thread(each)]


def _is_late_thread(each: Found) -> bool:
    return isinstance(each.thing, Reason) and _LATE_THREAD.match(each.thing.message) is not None


def _without_copies(found: Sequence[Found]) -> list[Found]:
    """Leave out exceptions that a controller prints again, of which it names the rank: the first one gets that."""
    kept: list[Found] = []
    for each in sorted(found, key=lambda one: one.number):
        first = next((i for i, other in enumerate(kept) if _is_copy(each, other)), None)
        if first is None:
            kept.append(each)
        else:
            kept[first] = kept[first]._replace(rank=kept[first].rank if each.rank is None else each.rank)
    return kept


def _is_copy(each: Found, first: Found) -> bool:
    if not (isinstance(each.thing, Raised) and isinstance(first.thing, Raised)):
        return False
    # Processes of Ray: each has its own label.
    ours = each.thing.line.node or "", first.thing.line.node or ""
    other = ours[0] != ours[1] and " pid " in f" {ours[1]}" and each.rank != first.rank
    # Or a framework logs what torch.multiprocessing then raises again.
    other = other or (each.thing.spawned and each.rank is not None)
    return other and first.rank is None and _text_of(each.thing) == _text_of(first.thing)


def _text_of(raised: Raised) -> tuple[str, str]:
    exception = reason(raised.exception)
    return exception.type, exception.message.split("\n", 1)[0]


def _is_labelled(each: Found) -> bool:
    return isinstance(each.thing, Raised) and each.thing.by_hook
