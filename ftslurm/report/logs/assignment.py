"""Reasons of unknown ranks, assigned to the ranks that ended so, where that is certain (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from ftslurm.failures.causes import REPEATED
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.failures.predicates import lost_child
from ftslurm.pattern import pattern
from ftslurm.report.facts import RankError
from ftslurm.report.logs.attempt_log import AttemptLog
from ftslurm.report.logs.end import End
from ftslurm.report.logs.evidence import (
    Found,
    code_of,
    first_line,
    headline_of,
    kind_of,
    last_line_of,
    least_torn,
    signal_of,
)
from ftslurm.report.logs.origins import unused
from ftslurm.report.logs.rank_errors import error_of, follows, is_cascade, of_end, with_end, with_first, with_quote
from ftslurm.report.logs.reasons import Reason
from ftslurm.report.logs.table import seconds_between
from ftslurm.report.logs.tracebacks import Crash, Raised

_NUMBER = pattern(r"\d+(?:\.\d+)?")
CLOCK_DOUBT_S = 2
"""Between the clocks of two nodes."""


class Assigner:
    """Assigns reasons to ends.

    Args:
        errors: the failures of known ranks; each assigned reason is added.
        tails: the ends of their output, as text, by the same numbers; likewise.
    """

    def __init__(self, log: AttemptLog, errors: dict[int, RankError], tails: dict[int, str]) -> None:
        self._log = log
        self._errors = errors
        self._tails = tails

    def assign(self, unnamed: list[Found], ends: dict[int, End]) -> None:
        """Give the reasons of unknown ranks to the ranks that ended so, where that is certain."""
        unnamed = [each for each in unnamed if not (self._is_of_aborted(each) or self._is_of_raised(each))]
        unnamed = self._match_sources(unnamed, ends)
        unnamed = self._of_only_task(unnamed, ends)
        in_table = {rank: end for rank, end in ends.items() if end.raised is not None}
        for rank, end in in_table.items():
            assert end.raised is not None
            self._errors[rank] = with_end(error_of(self._log, end.raised, rank, end.node), end)
            self._tails[rank] = ""
        in_rows = {first_line(end.raised) for end in self._log.ends.processes if end.raised is not None}
        unnamed = [
            each for each in unnamed if not (isinstance(each.thing, Raised) and first_line(each.thing) in in_rows)
        ]
        rest = {rank: end for rank, end in ends.items() if rank not in in_table}
        for rank in [rank for rank, end in rest.items() if end.by == "pod" and not self._is_there(unnamed, end)]:
            self._errors[rank], self._tails[rank] = of_end(rest.pop(rank), rank), self._log.tail_of(rank)
        self._match_codes(unnamed, rest)
        self._match_steps(unnamed, rest)
        primary = [each for each in unnamed if not follows(self._log, each.thing)]
        # The only exception of all is that of the only end, whatever it follows from; with another exit code than 1,
        # it is rather one of a rank that is not mentioned.
        sole = len(unnamed) == 1 and len(rest) == 1 and not (self._others_stopped() and not primary)
        sole = sole and bool(primary or {end.code for end in rest.values()} <= {None, 1})
        exits = [each for each in (unnamed if sole else primary) if kind_of(each.thing) != "signal"]
        self._match_signals(unnamed, rest)
        by_exit = {rank: end for rank, end in rest.items() if end.signal is None}
        earliest = self._before_the_others(unnamed, primary, by_exit)
        if earliest is not None:
            self._give(primary[0], earliest, by_exit.pop(earliest))
            unnamed, exits = [each for each in unnamed if each is not primary[0]], []
        alike = {headline_of(each.thing) for each in exits}
        others = [each for each in unnamed if kind_of(each.thing) != "signal"]
        # With tracebacks of others between them, the rank whose end was noticed first may be one of the others.
        alone = len(others) == len(exits)
        torn = exits
        if len(alike) > 1 and (whole := least_torn(exits)):
            exits, alike = whole, {headline_of(whole[0].thing)}
        several = exits and (len(exits) >= len(by_exit) or self._copies(exits[0]) >= len(by_exit))
        # What keeps a container from starting is stated once for all tasks of a node, in one line with their ends.
        not_started = bool(exits) and kind_of(exits[0].thing) == "spawn"
        several = several or (not_started and len({end.number for end in by_exit.values()}) == 1)
        # As many as ended by an exception printed the same: they failed alike, whatever that follows from.
        all_alike = len({headline_of(each.thing) for each in others}) == 1 and len(others) >= len(by_exit) > 1
        if not exits and all_alike and {end.code for end in by_exit.values()} == {1}:
            exits, alike, alone, several = others, {headline_of(others[0].thing)}, True, True
            torn = exits
        if by_exit and len(alike) == 1 and alone and (len(by_exit) == 1 or several):
            for rank, end in by_exit.items():
                self._give(exits[0], rank, end)
            unnamed = [each for each in unnamed if each not in torn]
        else:
            # An exception that nothing catches gives exit code 1.
            for rank, end in by_exit.items():
                if end.code != 1 or not others or (len(by_exit) == 1 and not exits):
                    self._errors[rank], self._tails[rank] = of_end(end, rank), self._log.tail_of(rank)
        # Where several ranks have an exit code and the reason is of one of them, it stays "some rank".
        for each in unnamed[:32]:
            number = unused(self._errors)
            end_ = self._log.end_after(last_line_of(each.thing), None)
            error = error_of(self._log, each.thing, number, self._log.sole_node(end_))
            self._errors[number] = with_quote(error, end_)
            if len(by_exit) == 1 and isinstance(each.thing, Raised):
                self._errors[number] = with_first(self._errors[number], next(iter(by_exit)))
            self._tails[number] = each.tail

    def _of_only_task(self, unnamed: list[Found], ends: Mapping[int, End]) -> list[Found]:
        """Return the first of several exceptions of the only process of a job: what follows is of the same one."""
        own = list(ends.values())
        alone = len(own) == 1 and own[0].by == "srun" and own[0].tasks == (0,) and own[0].code == 1
        labelled = any(line.rank is not None or line.local is not None for line in self._log.lines)
        if not alone or labelled or self._log.is_nested() or len(self._log.ends.processes) > 1:
            return unnamed
        raised = [each for each in unnamed if isinstance(each.thing, Raised) and not follows(self._log, each.thing)]
        return raised[:1] if len(raised) == len(unnamed) else unnamed

    def _copies(self, each: Found) -> int:
        """Return how often the last line of a traceback was printed: ranks that write at once tear the other lines."""
        if not isinstance(each.thing, Raised):
            return 1
        last = _NUMBER.sub("#", each.thing.traceback.rstrip("\n").rpartition("\n")[2].strip())
        return sum(_NUMBER.sub("#", line.text.strip()) == last for line in self._log.lines)

    def _match_sources(self, unnamed: list[Found], ends: dict[int, End]) -> list[Found]:
        """Match what each of several files, or launchers, states on ends with its own reasons; return the others."""
        source_of = self._log.source_of
        of_ends, of_reasons = ({source_of(each.number) for each in those} for those in (ends.values(), unnamed))
        parts = of_ends & of_reasons
        if len(of_ends | of_reasons) < 2:
            return unnamed
        for part in sorted(parts):
            own = {rank: end for rank, end in ends.items() if source_of(end.number) == part}
            for rank in own:
                del ends[rank]
            self.assign([each for each in unnamed if source_of(each.number) == part], own)
        return [each for each in unnamed if source_of(each.number) not in parts]

    def _is_there(self, unnamed: Sequence[Found], end: End) -> bool:
        """Whether a reason of an unknown rank may be of a pod: it is not in another one's lines."""
        nodes = (each.thing.line.node for each in unnamed)
        return any(node is None or (end.node or "").endswith(node) for node in nodes)

    def _before_the_others(
        self, unnamed: Sequence[Found], primary: Sequence[Found], ends: Mapping[int, End]
    ) -> int | None:
        """Return the rank of the only exception with a reason of its own, from which the others follow.

        It is the only one that ended before these appear, or that torchrun noticed before the others.
        """
        following = [each.number for each in unnamed if each not in primary]
        following += [error.order for error in self._errors.values() if is_cascade(error)]
        if len(primary) != 1 or not following or kind_of(primary[0].thing) == "signal":
            return None
        begin, end = last_line_of(primary[0].thing), min(following)
        between = [rank for rank, each in ends.items() if begin < each.number < end]
        between = between or _noticed_first(ends)
        return between[0] if len(between) == 1 and len(ends) > 1 else None

    def _is_of_aborted(self, each: Found) -> bool:
        """Give an exception to the only rank whose watchdog aborted it with the same text; return whether it did."""
        if not isinstance(each.thing, Raised):
            return False
        text = each.thing.exception.message.split("\n", 1)[0].strip()
        same = [rank for rank, error in self._errors.items() if error.signal == "SIGABRT" and text in error.message]
        if len(same) != 1 or not text:
            return False
        rank = same[0]
        self._errors[rank] = error_of(self._log, each.thing, rank, self._errors[rank].node)
        self._tails[rank] = each.tail
        return True

    def _is_of_raised(self, each: Found) -> bool:
        """Whether an abort is of a rank that is known to have raised what it quotes."""
        if not isinstance(each.thing, Reason) or each.thing.signal != "SIGABRT":
            return False
        waited = timeout_in(each.thing.message)
        if waited is not None:
            known = (timeout_in(error.message) for rank, error in self._errors.items() if rank >= 0)
            return any(other is not None and other.call == waited.call for other in known)
        raised = (error.exception for rank, error in self._errors.items() if rank >= 0)
        texts = (exception.message.split("\n", 1)[0].strip() for exception in raised if exception is not None)
        return any(len(text) >= REPEATED and text in each.thing.message for text in texts)

    def _others_stopped(self) -> bool:
        """Whether the log begins within a traceback, and torchrun stopped ranks: what follows may be one of these's."""
        cut = self._log.lines[0].text.startswith("  ")
        return cut and any(end.by == "table" and end.stopped for end in self._log.ends.processes)

    def _match_codes(self, unnamed: list[Found], ends: dict[int, End]) -> None:
        """Give the only reason that leads to the exit code of all ends to these; what came before it was survived."""
        codes = {end.code for end in ends.values()}
        if len(codes) != 1 or codes & {None, 0, 1}:
            return
        those = [each for each in unnamed if code_of(each.thing) in codes]
        if len({headline_of(each.thing) for each in those}) != 1:
            return
        for rank, end in ends.items():
            self._give(those[0], rank, end)
        ends.clear()
        unnamed[:] = [each for each in unnamed if each not in those and each.number > those[0].number]

    def _match_steps(self, unnamed: list[Found], ends: dict[int, End]) -> None:
        """Give the only reason between two ends to the ranks that ended with its exit code: steps follow each other.

        A program that could not start prints its reason once or for each rank, which end alike.
        """
        previous = -1
        for number in self._last_of_neighbours({end.number for end in ends.values()}):
            here = {rank: end for rank, end in ends.items() if previous < end.number <= number and end.code is not None}
            near = [each for each in unnamed if previous < each.number < number]
            codes = {end.code for end in here.values()}
            start = len(codes) == 1 and bool(near)
            start = start and all(isinstance(each.thing, Reason) and each.thing.code in codes for each in near)
            if here and start and len({headline_of(each.thing) for each in near}) == 1:
                for rank, end in here.items():
                    self._give(near[0], rank, end)
                    del ends[rank]
                for each in near:
                    unnamed.remove(each)
            previous = number
        # All tasks end with the code of a container's runtime or of srun.
        started = [each for each in unnamed if isinstance(each.thing, Reason) and each.thing.kind == "spawn"]
        codes = {end.code for end in ends.values()}
        alike = len({headline_of(each.thing) for each in started}) == 1 and len(codes) == 1
        printed = sum(line.text == started[0].thing.line.text for line in self._log.lines) if started else 0
        several = max(len(started), printed) >= len(ends) > 1
        if alike and len(started) == len(unnamed) and (not codes & {None, 0, 1} or (several and codes == {1})):
            for rank, end in list(ends.items()):
                self._give(started[0], rank, end)
                del ends[rank]
            unnamed.clear()

    def _last_of_neighbours(self, numbers: Collection[int]) -> list[int]:
        """Return of each group of lines without output between them the last one."""
        ordered = sorted(numbers)
        last = [a for a, b in pairwise(ordered) if self._log.between(a, b) > 0]
        return [*last, *ordered[-1:]]

    def _match_signals(self, unnamed: list[Found], ends: dict[int, End]) -> None:
        """Report the ends by signals; a crash in the log is that of the only end by its signal."""
        shared: list[Found] = []
        for rank, end in ends.items():
            if end.signal is None:
                continue
            crash = [
                each for each in unnamed if signal_of(each.thing) == end.signal or (end.oom and _is_of_killed(each))
            ]
            same = sum(end.signal == other.signal for other in ends.values())
            if 1 < same <= len(crash):
                # Of as many as ended so, in the order in which their ends were noticed if nothing else tells.
                earlier = sum(end.signal == other.signal and other.number < end.number for other in ends.values())
                alike = len({_text_of(each) for each in crash}) == 1
                self._give(crash[earlier if alike else 0], rank, end)
                shared += crash
            elif crash and same == 1:
                raised = [each for each in unnamed if _is_thrown(each, crash[0])]
                self._give((raised or crash)[0], rank, end)
                unnamed[:] = [each for each in unnamed if each is not crash[0] and each not in raised]
            else:
                self._errors[rank], self._tails[rank] = of_end(end, rank), self._log.tail_of(rank)
        unnamed[:] = [each for each in unnamed if each not in shared]

    def _give(self, each: Found, rank: int, end: End) -> None:
        """Take the evidence for the end of a rank."""
        self._errors[rank] = with_end(error_of(self._log, each.thing, rank, end.node), end)
        # With its own lines, where only some have its label.
        self._tails[rank] = "\n".join(part for part in (self._log.tail(self._log.lines_of(rank)), each.tail) if part)


def _is_thrown(each: Found, crash: Found) -> bool:
    """Whether an exception is what a runtime aborted the same process for, with its place."""
    return (
        isinstance(each.thing, Raised)
        and isinstance(crash.thing, Reason)
        and first_line(each.thing) in crash.thing.message
    )


def _text_of(each: Found) -> str:
    """Return an end's text with its stacks, by which several ones are told from each other."""
    return each.thing.stacks if isinstance(each.thing, Crash) else headline_of(each.thing)


def _is_of_killed(each: Found) -> bool:
    """Whether an exception reports that a child process was killed, as by the kernel where memory ran out."""
    return isinstance(each.thing, Raised) and lost_child(each.thing.exception)


def _noticed_first(ends: Mapping[int, End]) -> list[int]:
    """Return the ranks whose ends torchrun noticed before all others, beyond doubt of the nodes' clocks."""
    return [
        rank
        for rank, end in ends.items()
        if all(
            seconds_between(end.at, other.at) >= (1 if other.node == end.node else CLOCK_DOUBT_S)
            for other in ends.values()
            if other is not end
        )
    ]
