"""Whether an exception in a log ended its process (pure).

It may have been caught. It ended its process if torch's hook printed it, if nothing but aftermath follows in its
stream, or if an end with an exit code follows and it is the last one before that; not if its program states that it
goes on, or does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice, pairwise

from ftslurm.failures.closing_lines import goes_on_without, went_on
from ftslurm.pattern import pattern
from ftslurm.report.logs.attempt_log import OTHERS_LINES, AttemptLog, number_of
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.success import ends_well, step_of, works
from ftslurm.report.logs.tracebacks import Raised, is_logged_error, names_rank, was_caught

CLOSING_LINES = 15
"""Lines that a program may print between the traceback that ends it and its end."""
SILENT_LINES = 100
"""Lines of others at the end of a log without one of a rank, after which it is taken to print nothing more."""
STEPS_READ = 200
"""Lines before and after an exception in which training's steps are counted."""
STEPS_WITHOUT = 3
"""Different steps that other ranks print at most after one has ended."""
BELOW = 3
"""Lines below an exception in which srun reports the end of its process."""
_EXHAUSTED = pattern(
    r"(?i)\bmax(?:imum)? (?:number of )?(?:retries|attempts)|giving up|(?:retries|attempts) (?:failed|exceeded"
    r"|exhausted)"
)
_INSTEAD = pattern(
    r"(?i)\bfall(?:ing|s)? ?back\b|\binstead\b|\bnot available\b|\bcontinuing without\b|\bdisabl(?:ed|ing)\b"
    r"|\boptional\b"
)
_SKIPPED = pattern(r"(?i)\b(?:skipped|ignoring)\b")
USUAL = 5
"""Exceptions of one place that a program has survived, from which on it survives the next one."""
_VARIES = pattern(r"(?<=/)tmp\w{3,12}\b|\d+")


class Fates:
    """The fates of the processes of an attempt that printed exceptions.

    Args:
        log: its lines.
        by_launcher: whether a launcher raised an exception because of its child.
    """

    def __init__(self, log: AttemptLog, by_launcher: Callable[[Raised], bool]) -> None:
        self._log, self._by_launcher = log, by_launcher

    def of(self, each: Raised, own: Sequence[Line], rank: int | None) -> bool | None:
        """Return whether an exception ended its process; None: it may have, if no other one did."""
        if each.by_hook or self.is_before_end(each) or (each.at_top and self._only_closes(each, own)):
            return True
        end = self._log.end_after(each.end, rank)
        if self._was_left_behind(each, own) or self._was_done_without(each, own) or self._is_usual(each, own):
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

    def _only_closes(self, each: Raised, own: Sequence[Line]) -> bool:
        """Whether nothing but a few lines that show no work follow an exception."""
        rest = own[bisect_right(own, each.end, key=number_of) :]
        return len(rest) <= CLOSING_LINES and not any(works(line.text) for line in rest)

    def is_before_end(self, each: Raised) -> bool:
        """Whether srun reports the end of a task right below an exception, and of no other one."""
        below = islice(self._log.lines, bisect_right(self._log.lines, each.end, key=number_of), None)
        near = {line.number for line in islice((line for line in below if line.text.strip()), BELOW)}
        ends = [end for end in self._log.ends.processes if end.number in near]
        return any(end.by == "srun" and not end.stopped and end.code == 1 and len(end.tasks) == 1 for end in ends)

    def is_late(self, each: Raised, own: Sequence[Line]) -> bool:
        """Whether few lines follow an exception, none of which shows that its program goes on."""
        if self._log.ends.processes or self._log.ends.job or went_on(each.headline) or ends_well(own, sole=False):
            return False
        if self._was_tried_again(each, own) or self._is_usual(each, own):
            return False
        ordinary, gap = self._log.ordinary(own, each.end, None)
        return not gap and ordinary <= CLOSING_LINES and not self._log.goes_on(each.end)

    def _is_usual(self, each: Raised, own: Sequence[Line]) -> bool:
        """Whether its program went on after such exceptions of the same place many times, and after this one, too.

        As one that runs samples of generated code, in files of their own.
        """
        if self._log.ends.processes or self._log.ends.job:
            return False
        place = _place_of(each)
        survived = bisect_right(self._after_survived.get(place, []), each.begin)
        if survived < USUAL and place not in self._of_samples:
            return False
        follow = islice(own, bisect_right(own, each.end, key=number_of), None)
        return any(line.text.strip() and not is_aftermath(line.text) for line in follow)

    @cached_property
    def _after_survived(self) -> dict[tuple[str, str], list[int]]:
        """The first lines of exceptions before which one of the same place was survived, by that place."""
        by_place: dict[tuple[str, str], list[Raised]] = {}
        for _, raised in self._log.raised:
            for each in raised:
                by_place.setdefault(_place_of(each), []).append(each)
        return {
            place: [b.begin for a, b in pairwise(same) if self._log.between(a.end, b.begin) > 0]
            for place, same in by_place.items()
            if len(same) > USUAL
        }

    @cached_property
    def _of_samples(self) -> set[tuple[str, str]]:
        """The places that are in a file of its own in each of several exceptions."""
        files = {(_place_of(each), each.exception.frames[-1].file) for each in self._placed}
        return {place for place, number in Counter(place for place, _ in files).items() if number > USUAL}

    @property
    def _placed(self) -> list[Raised]:
        return [each for _, raised in self._log.raised for each in raised if each.exception.frames]

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


def _is_of_feeder(each: Raised) -> bool:
    """Whether it is of the thread that feeds a queue to other processes, which goes on after it."""
    first = next(iter(each.exception.frames), None)
    return first is not None and first.function == "_feed" and first.file.endswith("multiprocessing/queues.py")


def _place_of(each: Raised) -> tuple[str, str]:
    """Return the innermost function of an exception, and its file without what differs from sample to sample."""
    frame = each.exception.frames[-1] if each.exception.frames else None
    return ("", "") if frame is None else (_VARIES.sub("#", frame.file), frame.function)
