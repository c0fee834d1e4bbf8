"""Which exceptions, crashes and other reasons in an attempt's lines ended a process (pure).

An exception may have been caught: `fates` has whether it ended its process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ftslurm.failures.closing_lines import went_on
from ftslurm.failures.exception_line import exception_in
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.failures.reason import reason
from ftslurm.failures.stated_lines import stated_in
from ftslurm.pattern import pattern
from ftslurm.report.logs.attempt_log import AttemptLog, number_of, until
from ftslurm.report.logs.evidence import Found, is_strong, last_line_of
from ftslurm.report.logs.fates import Fates
from ftslurm.report.logs.lines import Line
from ftslurm.report.logs.rank_errors import error_of, is_cascade
from ftslurm.report.logs.reasons import STRONG, Reason, reasons_of
from ftslurm.report.logs.tracebacks import Raised, crashes, was_caught

CHILD_LINES = 12
BEFORE_OTHERS = 40
"""Lines of other ranks between a traceback and the moment at which they notice the end of its process."""
TOGETHER_LINES = 3
"""Lines between two tracebacks of ranks that fail together; with more between, the first one was caught."""
DEATH_SIGNAL = pattern(r"Received \S{1,20} death signal|SignalException: Process \d+ got signal|\^C")
_WATCHDOG = pattern(
    r"ProcessGroupNCCL\.cpp:\d+\].{0,80}(?:Watchdog caught collective|Some NCCL operations have failed)"
)
_LAUNCHERS = frozenset(
    ("ChildFailedError", "SignalException", "ProcessExitedException", "PapermillExecutionError", "CellExecutionError")
)
_LAUNCHER_FILES = (
    "/accelerate/commands/", "/deepspeed/launcher/", "/torch/distributed/launch.py", "/torch/distributed/run.py",
    "/lightning_fabric/strategies/launchers/", "/horovod/runner/", "/torchelastic/distributed/launch.py",
)  # fmt: skip
_MILD = pattern(r"\b(?:WARN(?:ING)?|INFO|DEBUG|warning)\b")
_EXCERPT = pattern(r"\A[#\s]*The last \d+ lines of \S")  # of the output of the process that failed
# Of NCCL's warnings of a fabric, those on this side of a connection: 12 and 13 are of a peer that does not answer, 5 of
# what was sent after that.
_OWN_NCCL = pattern(r"NCCL WARN .{0,120}Got completion .{0,80}status=(?!(?:5|1[23])\b)\d")
_ENDED_BY_MONITOR = pattern(r"Terminating the process after attempting to dump|watchdog got stuck for")
_KERNEL = pattern(r"\.(?:cu|cuh|h|hip|cpp|py):\d{1,6}: .{0,300}?Assertion `.{1,200}[`'] failed")
_OF_END = pattern(r"(?i)\bexit|return ?code|\bstatus\b|terminated|\bdied\b|killed|\bfail")
"""In what a launcher raises because a process of its own has ended."""
_OF_LAUNCH = pattern(
    r"(?:torchrun|torch\.distributed|accelerate|deepspeed|launch)\b[^\0]{0,4000}(?:exit status|return ?code|status) \d"
)
_BARE = pattern(r"terminate called after throwing an instance of 'c10::DistBackendError'\s*")
_LATE_THREAD = pattern(r"terminate called (?:without an active exception|recursively)")
_SPAWNED = pattern(r"process \d+ terminated with (?:signal|exit code) ")
_CHILD = "subprocess.CalledProcessError: Command"
# Of the process that started the one that failed: it leaves the reason to that one's output.
_REFERS = pattern(
    r"(?i)root cause (?:is )?above|\bsee (?:the )?stack ?trace (?:\(above\) )?for (?:the )?root cause"
    r"|\b(?:see|check|inspect|refer to|look at)\b.{0,60}\b(?:above|earlier|previous)\b"
)


class Finder:
    """Finds what ended processes.

    Attributes:
        doubtful: exceptions that were perhaps caught, after `found`.
        distant: such with much output after them.
        late: such near the end of a log that does not state how its processes ended, also those that were logged.
        callers: such of processes that leave the reason to the output of one that they had started.
    """

    def __init__(self, log: AttemptLog) -> None:
        self._log = log
        self._fates = Fates(log, self._by_launcher)
        self.doubtful: list[Raised] = []
        self.distant: list[Raised] = []
        self.late: list[Found] = []
        self.callers: list[Raised] = []
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
                    if refers(reason(each.exception).message):
                        self.callers.append(each)
                        if of is not None:
                            referring.add(of)
                    continue
                tail = self._log.tail(until(own, each.end, 20), each.numbers)
                above = self._asserted(each) or (self._printed_above(each) if rank is not None else "")
                one = Found(each.begin, of, each, f"{above}{tail}")
                fate = self._fates.of(each, own, of)
                if not fate and rank is None and of is not None and not each.logged:
                    # Its message names a rank, whose end the log may not state.
                    fate = self._fates.of(each, own, None) or fate
                (all_of_them if fate else doubtful if fate is None else []).append(one)
                if not fate and each.logged:
                    logged.append(one)
                if not fate and self._fates.is_late(each, own):
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
            if _ENDED_BY_MONITOR.search(other.message) and self._is_dumped(other.number):
                continue
            if other.rank is not None and (rank is None or other.kind == "exit"):
                # In the output of several ranks, only this line is known to be of this one, unless it states another.
                states = other.message.partition("\n")[0] in other.line.text
                tail = other.message if states else self._log.tail(until(whole, other.number, 30))
                found.append(Found(other.number, other.rank, other, tail))
                continue
            found.append(Found(other.number, known, other, self._log.tail(until(whole, other.number, 30))))
        return found

    def _is_dumped(self, number: int) -> bool:
        """Whether faulthandler, which puts no labels, printed the stacks of a rank that a thread of torch ended."""
        at = bisect_left(self._log.lines, number, key=number_of)
        return any(line.text.startswith("Fatal Python error: Aborted") for line in self._log.lines[at : at + 40])

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
        """Whether a launcher had stated before that a signal from outside stops it, and that is why it was raised."""
        in_handler = any("sigkill_handler" in frame.function for frame in each.exception.frames)
        stopped = each.exception.type == "KeyboardInterrupt" or in_handler or _OF_LAUNCH.search(each.exception.message)
        return bool(stopped) and any(number <= each.begin for number in self._signalled)

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
                and not self._fates.is_before_end(each.thing)
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
            if each.rank is None and isinstance(each.thing, Raised) and not self._fates.is_before_end(each.thing):
                # What another process prints to a file of its own does not follow.
                part = self._log.part_of(each.thing.end)
                own = (other for other in ordered[i + 1 :] if self._log.part_of(other.number) == part)
                primary = (other for other in own if is_strong(other.thing) and not self._follows(other))
                # What a launcher prints of other ranks after the ends of all does not follow, either.
                ended = self._log.end_after(each.thing.end, None)
                if ended is not None and self._log.between(each.thing.end, ended.number) <= TOGETHER_LINES:
                    primary = (other for other in primary if other.number < ended.number)
                if any(self._log.between(each.thing.end, other.number) > TOGETHER_LINES for other in primary):
                    self.distant.append(each.thing)
                    continue
            kept.append(each)
        return kept

    def _follows(self, each: Found) -> bool:
        """Whether its cause is a consequence of another rank's end."""
        return is_cascade(error_of(self._log, each.thing, 0))


def refers(text: str) -> bool:
    """Whether an exception's text leaves the reason to what is printed elsewhere."""
    return _REFERS.search(text) is not None


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
