"""Which rank failed by which evidence: what ended processes, matched with what a log states on their ends (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import replace
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.pattern import pattern
from ftslurm.report.facts import RankError
from ftslurm.report.logs.assignment import Assigner
from ftslurm.report.logs.attempt_log import AttemptLog
from ftslurm.report.logs.end import End
from ftslurm.report.logs.evidence import (
    Found,
    code_of,
    first_line,
    headline_of,
    is_strong,
)
from ftslurm.report.logs.origins import (
    earlier_end,
    is_explained,
    logged_alike,
    logged_before,
    logged_last,
    lost_task,
    named_before,
    not_started,
    silent_end,
    unused,
    was_survived,
)
from ftslurm.report.logs.precedence import killed_pods, later_aborts, later_rendezvous
from ftslurm.report.logs.rank_errors import (
    UNKNOWN,
    error_of,
    follows,
    is_cascade,
    of_end,
    with_end,
)
from ftslurm.report.logs.reasons import Reason
from ftslurm.report.logs.tracebacks import Raised

_KILLED = pattern(r"\[launch\.py:\d+:\w+\] Killing subprocess (\d+)$")  # of DeepSpeed
_TRACED = pattern(r"\+{1,3} (?:\S{1,80}/)?(?:srun|mpirun|mpiexec|torchrun|accelerate|deepspeed) ")  # of set -x
ONE_SHELL = 5
"""Lines between a shell's errors of two commands, of which the first one did not end it."""


class Matcher:
    """Matches evidence with the ends of ranks.

    Attributes:
        errors: the failures, by rank; unknown ranks have negative numbers.
        tails: the ends of their output, as text, by the same numbers.
        last_output: what any rank printed last before the only end without a reason, or before others lost that rank.
        nodes: of the exceptions without a known rank.
        named: ranks that evidence names, so that these are no local ones.
        copies: how many processes printed the same traceback without a label, if more than ranks are known to fail so.
    """

    def __init__(self, log: AttemptLog) -> None:
        self._log = log
        self.errors: dict[int, RankError] = {}
        self.tails: dict[int, str] = {}
        self.copies = 0
        self.nodes: set[str] = set()
        self.last_output = ""
        self.named: set[int] = set()

    def match(self, found: Sequence[Found]) -> None:
        """Match the evidence, in its order, with the ends of ranks."""
        codes = {end.code for end in self._log.ends.processes if not end.stopped and end.by != "script"} - {None, 0, 1}
        strong = [each for each in found if is_strong(each.thing) or code_of(each.thing) in codes]
        strong = [each for i, each in enumerate(strong) if not (strong[i + 1 :] and _went_on(each, strong[i + 1]))]
        self.named = {each.rank for each in strong if each.rank is not None}
        for each in strong:
            if each.rank is not None and (
                each.rank not in self.errors or self._is_better(each, self.errors[each.rank])
            ):
                self.errors[each.rank], self.tails[each.rank] = error_of(self._log, each.thing, each.rank), each.tail
        open_ends = self._open_ends()
        unnamed = self._without_all_of_launch([each for each in strong if each.rank is None])
        open_ends |= self._failed_before_they_were_stopped(unnamed, open_ends)
        Assigner(self._log, self.errors, self.tails).assign(unnamed, open_ends)
        raised = [each for each in strong if each.rank is None and isinstance(each.thing, Raised)]
        self.copies = self._copied(raised)
        self.nodes = {node for each in raised if (node := self._log.node_of(each.thing.line)) is not None}
        if not self.errors:
            self._match_weak([each for each in found if each not in strong])
        bare = not self.errors
        if bare:
            self._bare()
        if all(error.signal == "SIGABRT" or is_cascade(error) for error in self.errors.values()) and (
            lost := lost_task(self._log, self.errors)
        ):
            self.errors[lost[0].rank], self.tails[lost[0].rank] = lost
        elif not bare and all(map(is_cascade, self.errors.values())):
            self._add_origin([each for each in found if each not in strong])
        self._take_last_output(strong)
        self._add_killed_pods()
        self.errors |= later_aborts(self.errors, strong) | later_rendezvous(self.errors)
        if self.errors and all(error.message == f"exit code {error.exit_code}" for error in self.errors.values()):
            for rank, alike in logged_alike(self._log, self.errors).items():
                self.errors[rank], self.tails[rank] = alike
            # What a launcher observed first may be a reaction to another rank's error.
            bare = all(error.message == f"exit code {error.exit_code}" for error in self.errors.values())
            origin = named_before(self._log, self.errors) if bare else None
            if origin is not None:
                self.errors[origin[0].rank], self.tails[origin[0].rank] = origin

    def _add_killed_pods(self) -> None:
        for end, order in killed_pods(self._log, self.errors):
            number = unused(self.errors)
            self.errors[number], self.tails[number] = replace(of_end(end, number), order=order), end.text

    def _add_origin(self, weak: Sequence[Found]) -> None:
        """Add what all failures, which are consequences, may follow from."""
        first = min(error.order for error in self.errors.values())
        weak = [each for each in weak if each.number < first]
        origin = earlier_end(self._log, self.errors) or not_started(self._log, self.errors, weak)
        origin = origin or logged_before(self._log, self.errors) or silent_end(self._log, self.errors)
        if origin is not None:
            self.errors[origin[0].rank], self.tails[origin[0].rank] = origin

    def _take_last_output(self, strong: Sequence[Found]) -> None:
        """Take the error that was logged last for the reason of the only rank whose end is known, if it has none.

        Where no line has a label, a consequence was taken for that end as the only exception, or for none.
        """
        following = [each.number for each in strong if each.rank is None and follows(self._log, each.thing)]
        origin, self.last_output = logged_last(self._log, self.errors, following)
        if origin is None:
            return
        rank = origin[0].rank
        known = self.errors[rank]
        if is_cascade(known):
            number = unused(self.errors)
            self.errors[number], self.tails[number] = replace(known, rank=number, node=None), self.tails[rank]
        self.errors[rank], self.tails[rank] = origin

    def _without_all_of_launch(self, unnamed: list[Found]) -> list[Found]:
        """Take a reason for all ranks of a launcher that printed it as often as it ended processes on its only node."""
        pids = {found[1] for line in self._log.lines if (found := _KILLED.search(line.text)) is not None}
        alike = len({headline_of(each.thing) for each in unnamed}) == 1
        if not alike or not 1 < len(unnamed) == len(pids) or self.errors or len({x.node for x in self._log.lines}) > 1:
            return unnamed
        for rank, each in enumerate(unnamed):
            self.errors[rank], self.tails[rank] = error_of(self._log, each.thing, rank), each.tail
        return []

    def _is_better(self, each: Found, known: RankError) -> bool:
        """Whether a later reason of a rank replaces the known one: a rank that fails again had caught the first."""
        if known.kind == "signal" and isinstance(each.thing, Raised) and first_line(each.thing) in known.message:
            return True  # the same with its place
        first = known.exception.message.split("\n", 1)[0] if known.exception is not None else ""
        same = bool(first) and isinstance(each.thing, Reason) and first in each.thing.message
        # After its watchdog gave up waiting, the rank itself may have raised why.
        waited = known.kind == "signal" and timeout_in(known.message) is not None
        reaction = waited and isinstance(each.thing, Raised) and timeout_in(each.thing.headline) is None
        return (known.kind == "exception" or reaction) and not same and not follows(self._log, each.thing)

    def _open_ends(self) -> dict[int, End]:
        """Return the ends of ranks without a reason yet; those with one get their exit codes."""
        found: dict[int, End] = {}
        for end in self._log.ends.processes:
            if end.stopped or end.code == 0 or self._was_tolerated(end):
                continue
            for rank in self._log.ranks_of(end):
                known = self.errors.get(rank)
                if known is None:
                    if rank not in found or (end.by == "table" and found[rank].by != "table"):
                        found[rank] = end
                    continue
                self.errors[rank] = with_end(known, end)
        return found

    def _was_tolerated(self, end: End) -> bool:
        """Whether the batch script, by its trace, started another step after an end, in which a process ended, too."""
        begun = (line.number for line in self._log.lines if line.number > end.number and _TRACED.match(line.text))
        number = next(begun, None) if end.by == "srun" else None
        return number is not None and any(
            other.number > number and not other.stopped and other.code != 0 for other in self._log.ends.processes
        )

    def _copied(self, unnamed: Sequence[Found]) -> int:
        if len({headline_of(each.thing) for each in unnamed}) != 1:
            return 0
        # Of one known rank, or of none.
        one = len(self.errors) == 1 < len(unnamed)
        return len(unnamed) if one or (self.errors and max(self.errors) < 0) else 0

    def _failed_before_they_were_stopped(self, unnamed: Sequence[Found], ends: Mapping[int, End]) -> dict[int, End]:
        """Return the ends of ranks that the launcher stopped, if as many ranks as there are printed the same reason."""
        rows = {end.rank: end for end in self._log.ends.processes if end.by == "table" and end.rank is not None}
        # What follows from another failure is of the ranks of other nodes.
        primary = [each for each in unnamed if not follows(self._log, each.thing)]
        alike = len({headline_of(each.thing) for each in primary}) == 1
        alike = alike and len(primary) == len(rows)
        codes = {end.code for end in ends.values()}
        if not alike or not ends or len(codes) != 1 or codes & {None}:
            return {}
        code = codes.pop()
        stopped = {rank: end for rank, end in rows.items() if end.stopped and rank not in ends}
        return {rank: replace(end, code=code, signal=None, stopped=False) for rank, end in stopped.items()}

    def _match_weak(self, weak: Sequence[Found]) -> None:
        """Take a weak reason if there is no other one: the last line, or the code of an end agrees."""
        codes = {end.code for end in self._log.ends.processes if not end.stopped}
        # Of several at the end the first one: the others may follow from it.
        final = [each for each in weak if isinstance(each.thing, Reason) and each.thing.final]
        for each in (*final, *reversed(weak)):
            assert isinstance(each.thing, Reason)
            # Most failures give exit code 1.
            if each.thing.final or (each.thing.code in codes and each.thing.code != 1):
                rank = UNKNOWN if each.rank is None else each.rank
                self.errors[rank], self.tails[rank] = error_of(self._log, each.thing, rank), each.tail
                return

    def _bare(self) -> None:
        """Report an end without a reason, of an unknown rank."""
        for end in self._log.ends.processes:
            if end.stopped or end.code == 0 or self._log.ranks_of(end) or was_survived(self._log, end):
                continue
            if not is_explained(self._log, end):
                self.errors[UNKNOWN] = of_end(end, UNKNOWN)
                self.tails[UNKNOWN] = self._log.tail([line for line in self._log.lines if line.number <= end.number])
                return


def _went_on(each: Found, later: Found) -> bool:
    """Whether a shell that could not start a command went on to another one: only the last one gives its exit code."""
    if code_of(each.thing) != code_of(later.thing) or later.number - each.number > ONE_SHELL:
        return False
    both = [thing for thing in (each.thing, later.thing) if isinstance(thing, Reason)]
    return len(both) == 2 and all(thing.message.startswith("cannot start ") for thing in both)
