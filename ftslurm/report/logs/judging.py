"""What failed in one attempt, by its lines: which exceptions ended a process, and of which rank (pure).

An exception in a log may have been caught. It ended its process if torch's hook printed it, if nothing but aftermath
follows in its stream, or if an end with an exit code follows and it is the last one before that. What happens after
Slurm began to end the job is a reaction. A rank that is not named stays unknown.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.causes import classify
from ftslurm.failures.reason import reason
from ftslurm.failures.stderr_witness import went_on
from ftslurm.records.error import HostResources, OomKills
from ftslurm.report.facts import RankError
from ftslurm.report.failed_worker import evidence_of, failed_worker_of
from ftslurm.report.logs.boxes import unboxed
from ftslurm.report.logs.ends import End, Ends, JobEnd, ends_of, nodes_of
from ftslurm.report.logs.lines import GAP, Line, streams
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.reasons import STRONG, Reason, reasons_of
from ftslurm.report.logs.success import ends_well, works
from ftslurm.report.logs.tracebacks import HEADER, Crash, Raised, crashes, is_logged_error, names_rank, tracebacks
from ftslurm.text import plural

UNKNOWN = -1
"""The first of the numbers of unknown ranks: each has its own negative one."""
TAIL_LINES = 400
CLOSING_LINES = 15
"""Lines that a program may print between the traceback that ends it and its end."""
OTHERS_LINES = 200
"""Lines of other ranks between a traceback and the end of its process."""
BEFORE_OTHERS = 40
"""Lines of other ranks between a traceback and the moment at which they notice the end of its process."""
TOGETHER_LINES = 3
"""Lines between two tracebacks of ranks that fail together; with more between, the first one was caught."""
_DEATH_SIGNAL = re.compile(r"Received \S{1,20} death signal|SignalException: Process \d+ got signal")
XIDS = 4
_ENVIRONMENT = re.compile(
    r"Lmod has detected the following error|[Uu]nable to locate a modulefile|module: command not found"
    r"|EnvironmentNameNotFound|(?:conda|activate|micromamba)\S*: (?:command not found|No such file)"
)
_OF_DEVICE = re.compile(r"CUDA|cuda|cuBLAS|cuDNN|NVML")
_WATCHDOG = re.compile(
    r"ProcessGroupNCCL\.cpp:\d+\].{0,80}(?:Watchdog caught collective|Some NCCL operations have failed)"
)
_OF_LAUNCHER = re.compile(
    r"torch/distributed/(?:elastic/(?!multiprocessing/errors/__init__)|run\.py|launch)"
    r"|torch\.distributed\.(?:run|launch|elastic)\b|File \"\S{1,400}/(?:torchrun|deepspeed|accelerate)\""
    r"|/deepspeed/launcher/|\[launch\.py:\d+:"
)
_LAUNCHERS = frozenset(("ChildFailedError", "SignalException", "ProcessExitedException"))
_LAUNCHER_FILES = (
    "/accelerate/commands/", "/deepspeed/launcher/", "/torch/distributed/launch.py", "/torch/distributed/run.py",
    "/lightning_fabric/strategies/launchers/", "/horovod/runner/",
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """What is known about one attempt.

    Attributes:
        errors: the failures, by rank; unknown ranks have negative numbers.
        tails: the ends of their output, as text, by the same numbers.
        locals: local ranks, by rank.
        state: Slurm's state of the job, if its end or an out-of-memory kill is stated.
        failed_node: the node whose failure Slurm states.
        job: Slurm's statement, if it explains the end.
        job_id: the job, if a line states it.
        notes: for the reader.
    """

    errors: dict[int, RankError]
    tails: dict[int, str]
    locals: dict[int, int]
    state: str | None = None
    failed_node: str | None = None
    job: JobEnd | None = None
    job_id: str | None = None
    notes: tuple[str, ...] = ()


class _Found(NamedTuple):
    """A possible failure: an exception, a crash or another reason, of a rank or an unknown one."""

    number: int
    rank: int | None
    thing: Raised | Crash | Reason
    tail: str


def judge(lines: Sequence[Line], *, rank: int | None = None, node: str | None = None) -> Judged:
    """Judge the lines of an attempt.

    Args:
        lines: its lines.
        rank, node: of all lines, where each rank has its own file.
    """
    return _Judge(lines, rank, node).result()


class _Labels:
    """What the labels of all lines say about the numbers of ranks, local ranks and tasks."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.ranks = {line.rank for line in lines if line.rank is not None}
        self.by_local: dict[tuple[int | str | None, ...], set[int]] = {}
        self.launched = any(line.local is not None for line in lines)
        for line in lines:
            if line.rank is None:
                self.launched = self.launched or _OF_LAUNCHER.search(line.text) is not None
                continue
            if line.task is not None and line.task != line.rank:
                self.launched = True
            if line.local is not None:
                for place in ((line.task, line.node, line.local), (None, None, line.local)):
                    self.by_local.setdefault(place, set()).add(line.rank)

    def rank_of(self, line: Line) -> int | None:
        """Return the only rank that has this task, node and local rank in other lines."""
        found = self.by_local.get((line.task, line.node, line.local), set())
        return next(iter(found)) if len(found) == 1 else None

    def excludes(self, local: int) -> bool:
        """Whether a local rank cannot be the rank, because this is not the log of the first node."""
        return bool(self.ranks) and min(self.ranks) > local


class _Judge:
    def __init__(self, lines: Sequence[Line], rank: int | None, node: str | None) -> None:
        self.lines, self.rank, self.node = lines, rank, node
        self.ends: Ends = ends_of(lines)
        self.streams = {key: unboxed(own) for key, own in streams(lines).items()}
        self.labels = _Labels(lines)
        self.launched = any(end.by in ("torchrun", "table", "deepspeed", "spawn") for end in self.ends.processes)
        self.launched = self.launched or self.labels.launched or self.unnamed_by_srun(lines)
        self.locals = {
            end.rank: end.local for end in self.ends.processes if end.rank is not None and end.local is not None
        }
        self.task_nodes: dict[int | None, str] = {
            task: nodes_of(end.node)[0]
            for end in self.ends.processes
            for task in end.tasks
            if len(nodes_of(end.node)) == 1
        }
        self.signalled = [line.number for line in lines if _DEATH_SIGNAL.search(line.text)]
        self.covered: set[int] = set()  # lines of tracebacks
        self.doubtful: list[Raised] = []  # exceptions that were perhaps caught

    def result(self) -> Judged:
        found = self.found()
        errors, tails = self.matched(found)
        job, notes = self.job_end(errors), self.notes(errors)
        first = min((error.order for error in errors.values()), default=None)
        state = failed_node = None
        if job is not None and (first is None or job.number < first or self.follows(errors, job)):
            errors, tails, state = {}, {}, job.state
            failed_node = next(iter(nodes_of(job.node)), None) if job.state == "NODE_FAIL" else None
        elif self.ends.oom or any(end.oom for end in self.ends.processes):
            state = "OUT_OF_MEMORY"
            job = None
        else:
            if job is not None:
                notes.append(f"later: {job.text.strip()[:200]}")
            job = None
        if not errors and state == "OUT_OF_MEMORY":
            errors[UNKNOWN], tails[UNKNOWN] = self.oom_error(), self.tail(self.lines)
        errors = {number: self.with_memory(error) for number, error in errors.items()}
        job_id = next((each.job_id for each in self.ends.job if each.job_id), None)
        known = {rank: local for rank, local in self.locals.items() if local is not None}
        return Judged(errors, tails, known, state, failed_node, job, job_id, tuple(notes))

    # What the streams contain.

    def found(self) -> list[_Found]:
        """Return what ended a process, as far as it can be known, in order."""
        all_of_them: list[_Found] = []
        doubtful: list[_Found] = []
        parsed = [(own, tracebacks(own)) for own in self.streams.values()]
        self.covered = {number for _, raised in parsed for each in raised for number in each.numbers}
        for own, raised in parsed:
            rank = self.rank_of(own[0])
            for each in raised:
                if each.ignored or self.by_launcher(each) or self.is_reaction(each):
                    continue
                of = rank if rank is not None or (each.spawned and self.nested()) else each.rank
                one = _Found(each.begin, of, each, self.tail(until(own, each.end, 20), each.numbers))
                fate = self.fate(each, own, of)
                (all_of_them if fate else doubtful if fate is None else []).append(one)
                if fate is None:
                    self.doubtful.append(each)
            dumps = crashes(own)
            reasons = reasons_of(own)
            # A rank's lines with torch's label and those without are one output.
            whole = self.lines_of(rank) if rank is not None and (dumps or reasons) else own
            all_of_them += [_Found(each.begin, rank, each, self.tail(until(whole, each.end, 20))) for each in dumps]
            for other in reasons:
                if other.signal and any(abs(other.number - dump.begin) < 40 for dump in dumps):
                    continue
                all_of_them.append(_Found(other.number, rank, other, self.tail(until(whole, other.number, 30))))
        all_of_them = [*all_of_them, *self.earlier(all_of_them, doubtful)]
        return sorted(self.without_superseded(all_of_them), key=lambda each: each.number)

    def lines_of(self, rank: int) -> list[Line]:
        """Return the lines of a rank in all streams, in order."""
        found = [line for own in self.streams.values() if self.rank_of(own[0]) == rank for line in own]
        return sorted(found, key=_number)

    def nested(self) -> bool:
        """Whether processes that a rank spawns are not the job's ranks, because a launcher started these."""
        several = any(len(end.tasks) > 1 or max(end.tasks, default=0) for end in self.ends.processes)
        by_launcher = any(end.by in ("torchrun", "table", "deepspeed", "mpirun") for end in self.ends.processes)
        return several or by_launcher or any(line.task is not None or line.local is not None for line in self.lines)

    def unnamed_by_srun(self, lines: Sequence[Line]) -> bool:
        """Whether ranks failed whose numbers srun's tasks do not reach: these are launchers, which end by exit code 1.

        The line on the end of a rank may be missing, so that ranks that srun only does not mention prove nothing.
        """
        ends = [end for end in self.ends.processes if end.by == "srun"]
        tasks = {task for end in ends for task in end.tasks}
        failed = {line.rank for line in lines if line.rank is not None and line.text.startswith(HEADER)}
        codes = {end.code for end in ends if not end.stopped}
        return bool(tasks and failed) and codes == {1} and not failed & tasks and max(failed) > max(tasks)

    def rank_of(self, line: Line) -> int | None:
        """Return the rank of a line's stream."""
        if self.rank is not None:
            return self.rank
        if line.rank is not None:
            return line.rank
        if line.task is not None and not self.launched:
            return line.task
        if line.local is None:
            return None
        named = self.labels.rank_of(line)
        if named is not None or self.labels.excludes(line.local):
            return named
        rows = {end.rank for end in self.ends.processes if end.by == "table" and end.local == line.local}
        if len(rows) == 1:
            return rows.pop()
        agents = {end.agent for end in self.ends.processes if end.by == "torchrun"}
        hosts = {end.node for end in self.ends.processes if end.by == "table"}
        tasks = {each.task for each in self.lines if each.task is not None}
        nodes = {each.node for each in self.lines if each.node is not None}
        if max(len(agents), len(hosts), len(tasks), len(nodes)) == 1 and not rows:
            return line.local
        return None

    def by_launcher(self, each: Raised) -> bool:
        """Whether a launcher raised it because of its child, or of a signal to itself."""
        exception = each.exception
        if exception.type in _LAUNCHERS:
            return True
        files = [frame.file for frame in exception.frames]
        inside = any(part in file for file in files for part in _LAUNCHER_FILES)
        return inside and exception.type in ("CalledProcessError", "KeyboardInterrupt", "RuntimeError")

    def is_reaction(self, each: Raised) -> bool:
        """Whether a launcher had told before that a signal from outside stops it."""
        return each.exception.type == "KeyboardInterrupt" and any(number < each.begin for number in self.signalled)

    def fate(self, each: Raised, own: Sequence[Line], rank: int | None) -> bool | None:
        """Return whether an exception ended its process; None: it may have, if no other one did."""
        if each.line.rank is not None:
            return True
        end = self.end_after(each.end, rank)
        ordinary, gap = self.ordinary(own, each.end, end.number if end is not None and rank is None else None)
        if not ordinary and not gap:
            return True
        if rank is not None:
            if end is not None and end.rank in (rank, None) and not gap and ordinary <= CLOSING_LINES:
                return True
            return None if each.logged and self.falls_silent(own, each.end, rank) else False
        # An exception that nothing catches gives exit code 1; another code follows closely, if at all.
        limit = OTHERS_LINES if end is not None and end.code == 1 else CLOSING_LINES
        if end is not None and not gap and ordinary <= limit:
            return True
        # A batch script's last words, as "Done" or a time.
        if end is None and not gap and not each.logged and ordinary <= CLOSING_LINES and not self.goes_on(each.end):
            return True
        return None if not gap and ordinary <= OTHERS_LINES and not each.logged else False

    def goes_on(self, number: int) -> bool:
        """Whether a line after that one is of a program that works, has done its work, or survived a failure."""
        rest = self.lines[bisect_right(self.lines, number, key=_number) :]
        return ends_well(rest, sole=False) or any(works(line.text) or went_on(line.text) for line in rest)

    def falls_silent(self, own: Sequence[Line], number: int, rank: int) -> bool:
        """Whether a rank that loggers name in each line prints nothing but errors after a line."""
        for line in islice(own, bisect_right(own, number, key=_number), None):
            named = names_rank(line.text[:200])
            if named is None and line.text.strip() and line.number not in self.covered and not is_aftermath(line.text):
                return False
            if named == rank and not is_logged_error(line.text):
                return False
        return True

    def end_after(self, number: int, rank: int | None) -> End | None:
        """Return the first end by an exit code after a line, of that rank or of any."""
        for end in self.ends.processes:
            if end.number <= number or end.stopped or end.code == 0 or (end.by == "srun" and self.launched):
                continue
            of = self.ranks_of(end)
            if end.code is not None and (rank is None or not of or rank in of):
                return end
        return None

    def ranks_of(self, end: End) -> list[int]:
        """Return the ranks whose end it is."""
        if end.rank is not None:
            return [end.rank]
        if end.by == "srun" and not self.launched:
            return list(end.tasks)
        if end.local is not None:
            rank = self.rank_of(Line("", 0, local=end.local))
            return [] if rank is None else [rank]
        return [self.rank] if self.rank is not None else []

    def earlier(self, sure: Sequence[_Found], doubtful: Sequence[_Found]) -> list[_Found]:
        """Return the doubtful exception that is the reason if all sure ones follow from another rank's end."""
        raised = [each for each in sure if isinstance(each.thing, Raised)]
        gave_up = [line.number for line in self.lines if _WATCHDOG.search(line.text)]
        noticed = [*(each.number for each in raised), *gave_up]
        if not noticed or not all(self.is_cascade(each.thing) for each in raised):
            return []
        aborts = [end for end in self.ends.processes if end.signal == "SIGABRT" and gave_up]
        if any(not end.stopped and end.code not in (0, 1) and end not in aborts for end in self.ends.processes):
            return []  # an end that is no exception's: the others follow from that
        first = min(noticed)
        near = [each for each in doubtful if each.number < first]
        return [each for each in near if self.between(_last(each.thing), first) <= BEFORE_OTHERS][-1:]

    def without_superseded(self, found: Sequence[_Found]) -> list[_Found]:
        """Leave out exceptions of unknown ranks after which the program went on until a later failure."""
        ordered = sorted(found, key=lambda each: each.number)
        kept: list[_Found] = []
        for i, each in enumerate(ordered):
            if each.rank is None and isinstance(each.thing, Raised):
                later = (other for other in ordered[i + 1 :] if _is_strong(other.thing))
                primary = (other for other in later if not self.is_cascade(other.thing))
                if any(self.between(each.thing.end, other.number) > TOGETHER_LINES for other in primary):
                    continue
            kept.append(each)
        return kept

    def between(self, begin: int, end: int) -> int:
        """Return the number of ordinary lines between two lines."""
        return self.ordinary(self.lines, begin, end)[0]

    def ordinary(self, lines: Sequence[Line], begin: int, end: int | None) -> tuple[int, bool]:
        """Return the number of lines by which a program goes on, and whether some were left out among them.

        Args:
            lines: of a stream.
            begin, end: the numbers of the lines between which it counts, without these; no more than OTHERS_LINES.
        """
        count = 0
        for line in islice(lines, bisect_right(lines, begin, key=_number), None):
            if (end is not None and line.number >= end) or count > OTHERS_LINES:
                break
            if line.text == GAP:
                return count, True
            count += line.number not in self.covered and not is_aftermath(line.text)
        return count, False

    def is_cascade(self, thing: Raised | Crash | Reason) -> bool:
        """Whether its cause is a consequence of another rank's end."""
        return _cascade(self.error(thing, 0, None))

    # Which ranks ended, and why.

    def matched(self, found: Sequence[_Found]) -> tuple[dict[int, RankError], dict[int, str]]:
        """Match the reasons with the ends of ranks."""
        errors: dict[int, RankError] = {}
        tails: dict[int, str] = {}
        codes = {end.code for end in self.ends.processes if not end.stopped and end.by != "script"} - {None, 0, 1}
        strong = [each for each in found if _is_strong(each.thing) or _code(each.thing) in codes]
        for each in strong:
            if each.rank is not None and (each.rank not in errors or self.is_better(each, errors[each.rank])):
                errors[each.rank], tails[each.rank] = self.error(each.thing, each.rank, None), each.tail
        open_ends = self.open_ends(errors)
        unnamed = [each for each in strong if each.rank is None]
        self.match_unnamed(unnamed, open_ends, errors, tails)
        if not errors:
            self.match_weak([each for each in found if each not in strong], errors, tails)
        if not errors:
            self.bare(errors, tails)
        return errors, tails

    def is_better(self, each: _Found, known: RankError) -> bool:
        """Whether a later reason of a rank replaces the known one: a rank that fails again had caught the first."""
        return known.kind == "exception" and not self.is_cascade(each.thing)

    def open_ends(self, errors: dict[int, RankError]) -> dict[int, End]:
        """Return the ends of ranks without a reason yet; those with one get their exit codes."""
        found: dict[int, End] = {}
        for end in self.ends.processes:
            if end.stopped or end.code == 0:
                continue
            for rank in self.ranks_of(end):
                known = errors.get(rank)
                if known is None:
                    if rank not in found or (end.by == "table" and found[rank].by != "table"):
                        found[rank] = end
                    continue
                errors[rank] = _with_end(known, end)
        return found

    def match_unnamed(
        self, unnamed: list[_Found], ends: dict[int, End], errors: dict[int, RankError], tails: dict[int, str]
    ) -> None:
        """Give the reasons of unknown ranks to the ranks that ended so, where that is certain."""
        in_table = {rank: end for rank, end in ends.items() if end.raised is not None}
        for rank, end in in_table.items():
            assert end.raised is not None
            errors[rank] = _with_end(self.error(end.raised, rank, end.node), end)
            tails[rank] = ""
        rest = {rank: end for rank, end in ends.items() if rank not in in_table}
        self.match_steps(unnamed, rest, errors, tails)
        primary = [each for each in unnamed if not self.is_cascade(each.thing)]
        exits = [each for each in primary if _kind(each.thing) != "signal"]
        self.match_signals(unnamed, rest, errors, tails)
        by_exit = {rank: end for rank, end in rest.items() if end.signal is None}
        alike = {_headline(each.thing) for each in exits}
        others = [each for each in unnamed if _kind(each.thing) != "signal"]
        # With tracebacks of others between them, the rank whose end was noticed first may be one of the others.
        alone = len(others) == len(exits)
        if by_exit and len(alike) == 1 and alone and (len(by_exit) == 1 or len(exits) >= len(by_exit)):
            for rank, end in by_exit.items():
                self.give(exits[0], rank, end, errors, tails)
            unnamed = [each for each in unnamed if each not in exits]
        else:
            # An exception that nothing catches gives exit code 1.
            for rank, end in by_exit.items():
                if end.code != 1 or not others or (len(by_exit) == 1 and not exits):
                    errors[rank], tails[rank] = of_end(end, rank), self.tail_of(rank)
        # Where several ranks have an exit code and the reason is of one of them, it stays "some rank".
        for i, each in enumerate(unnamed[:32]):
            end_ = self.end_after(_last(each.thing), None)
            error = self.error(each.thing, UNKNOWN - i, self.sole_node(end_))
            errors[UNKNOWN - i] = _with_quote(error, end_)
            if len(by_exit) == 1 and isinstance(each.thing, Raised):
                errors[UNKNOWN - i] = _with_first(errors[UNKNOWN - i], next(iter(by_exit)))
            tails[UNKNOWN - i] = each.tail

    def match_steps(
        self, unnamed: list[_Found], ends: dict[int, End], errors: dict[int, RankError], tails: dict[int, str]
    ) -> None:
        """Give the only reason between two ends to the ranks that ended with its exit code: steps follow each other.

        A program that could not start prints its reason once or for each rank, which end alike.
        """
        previous = -1
        for number in sorted({end.number for end in ends.values()}):
            here = {rank: end for rank, end in ends.items() if end.number == number and end.code is not None}
            near = [each for each in unnamed if previous < each.number < number]
            codes = {end.code for end in here.values()}
            start = bool(near) and all(isinstance(each.thing, Reason) and each.thing.code in codes for each in near)
            if here and start and len({_headline(each.thing) for each in near}) == 1:
                for rank, end in here.items():
                    self.give(near[0], rank, end, errors, tails)
                    del ends[rank]
                for each in near:
                    unnamed.remove(each)
            previous = number
        # All tasks end with the code of a container's runtime or of srun.
        started = [each for each in unnamed if isinstance(each.thing, Reason) and each.thing.kind == "spawn"]
        codes = {end.code for end in ends.values()}
        alike = len({_headline(each.thing) for each in started}) == 1 and len(codes) == 1
        if alike and len(started) == len(unnamed) and not codes & {None, 0, 1}:
            for rank, end in list(ends.items()):
                self.give(started[0], rank, end, errors, tails)
                del ends[rank]
            unnamed.clear()

    def match_signals(
        self, unnamed: list[_Found], ends: dict[int, End], errors: dict[int, RankError], tails: dict[int, str]
    ) -> None:
        """Report the ends by signals; a crash in the log is that of the only end by its signal."""
        for rank, end in ends.items():
            if end.signal is None:
                continue
            crash = [each for each in unnamed if _signal(each.thing) == end.signal]
            if crash and sum(end.signal == other.signal for other in ends.values()) == 1:
                self.give(crash[0], rank, end, errors, tails)
                unnamed.remove(crash[0])
            else:
                errors[rank], tails[rank] = of_end(end, rank), self.tail_of(rank)

    def give(self, each: _Found, rank: int, end: End, errors: dict[int, RankError], tails: dict[int, str]) -> None:
        errors[rank] = _with_end(self.error(each.thing, rank, end.node), end)
        tails[rank] = each.tail

    def match_weak(self, weak: Sequence[_Found], errors: dict[int, RankError], tails: dict[int, str]) -> None:
        """Take a weak reason if there is no other one: the last line, or the code of an end agrees."""
        codes = {end.code for end in self.ends.processes if not end.stopped}
        for each in reversed(weak):
            assert isinstance(each.thing, Reason)
            if each.thing.final or each.thing.code in codes:
                rank = UNKNOWN if each.rank is None else each.rank
                errors[rank], tails[rank] = self.error(each.thing, rank, None), each.tail
                return

    def bare(self, errors: dict[int, RankError], tails: dict[int, str]) -> None:
        """Report an end without a reason, of an unknown rank."""
        for end in self.ends.processes:
            if not end.stopped and end.code != 0 and not self.ranks_of(end):
                errors[UNKNOWN] = of_end(end, UNKNOWN)
                tails[UNKNOWN] = self.tail([line for line in self.lines if line.number <= end.number])
                return

    # Slurm and the kernel.

    def job_end(self, errors: dict[int, RankError]) -> JobEnd | None:
        """Return the first statement on the job's end; that on a step without a reason only if nothing failed."""
        whole = [end for end in self.ends.job if end.whole]
        failures = [end for end in whole if end.state == "NODE_FAIL"]
        if failures:
            named = [end for end in failures if end.node]
            return replace((named or failures)[0], number=min(end.number for end in whole))
        if whole:
            return whole[0]
        ended = [end for end in self.ends.processes if not end.stopped and end.code != 0]
        return self.ends.job[0] if self.ends.job and not errors and not ended else None

    def follows(self, errors: dict[int, RankError], job: JobEnd) -> bool:
        """Whether all failures follow from a node's: their connections broke before Slurm noticed it."""
        return job.state == "NODE_FAIL" and all(_cascade(error) for error in errors.values())

    def oom_error(self) -> RankError:
        number = min([*self.ends.oom, *(end.number for end in self.ends.processes if end.oom)])
        text = next((line.text for line in self.lines if line.number == number), "")
        error = _rank_error(UNKNOWN, "signal", "SIGKILL", number)
        return replace(error, signal="SIGKILL", quotes=(text.strip()[:300],))

    def with_memory(self, error: RankError) -> RankError:
        """Return the error with the kernel's statement on memory."""
        kills = [each for each in self.ends.kernel if each.kind in ("cgroup", "host")]
        killed = error.signal == "SIGKILL" or error.exit_code == 137 or "killed by signal: Killed" in error.message
        if not kills or not killed or error.host_resources is not None:
            return error
        at_limit = any(each.kind == "cgroup" for each in kills)
        total = None if at_limit else 100
        oom = OomKills(len(kills), len(kills), source="the kernel's line in the log", at_limit=at_limit)
        resources = HostResources(oom=oom, memory_total=total, least_available=None if at_limit else 0)
        return replace(error, host_resources=resources, quotes=(*error.quotes, kills[0].text[:300]))

    def notes(self, errors: dict[int, RankError]) -> list[str]:
        """Return what a reader should know beside the failures."""
        others = [each for each in self.ends.kernel if each.kind not in ("cgroup", "host")]
        notes = [f"kernel: {each.text[:200]}" for each in others[:3]]
        signalled = next((line for line in self.lines if _DEATH_SIGNAL.search(line.text)), None)
        if signalled is not None and not errors:
            notes.append(f"stopped from outside: {signalled.text.strip()[:200]}")
        if self.doubtful and not errors:
            last = self.doubtful[-1]
            frames = last.exception.frames
            place = f" at {frames[-1].file}:{frames[-1].line}" if frames else ""
            follow = plural(self.between(last.end, self.lines[-1].number + 1), "line")
            notes.append(f"not known to have ended a rank, because {follow} of output follow: {_first(last)}{place}")
        return notes

    # Records.

    def error(self, thing: Raised | Crash | Reason, rank: int, node: str | None) -> RankError:
        if isinstance(thing, Raised):
            error = _rank_error(rank, "exception", thing.headline, thing.begin)
            exception = reason(thing.exception)
            if _OF_DEVICE.search(thing.headline):
                # The kernel's word on the device decides what the error of the driver only guesses.
                xids = tuple(each.text for each in self.ends.kernel if each.kind == "xid")[:XIDS]
                exception = replace(exception, notes=(*exception.notes, *xids))
            error = replace(error, exception=exception, traceback=thing.traceback)
        elif isinstance(thing, Crash):
            error = replace(
                _rank_error(rank, "signal", thing.signal, thing.begin), signal=thing.signal, stacks=thing.stacks
            )
        else:
            error = _rank_error(rank, thing.kind, thing.message, thing.number)
            error = replace(error, exit_code=thing.code, signal=thing.signal)
            if "of the batch script)" in thing.message:
                error = replace(error, quotes=tuple(self.environment(thing.number)))
        node = node or thing.line.node or self.node or self.task_nodes.get(thing.line.task)
        return replace(error, node=node, local_rank=thing.line.local)

    def environment(self, before: int) -> list[str]:
        """Return what modules and environments said before a command of the batch script failed."""
        found = [i for i, line in enumerate(self.lines) if line.number < before and _ENVIRONMENT.search(line.text)]
        return [" ".join(line.text.strip() for line in self.lines[i : i + 2])[:300] for i in found[:2]]

    def sole_node(self, end: End | None) -> str | None:
        """The node of the only task that ended."""
        own = [each for each in self.ends.processes if each.by == "srun" and not each.stopped and each.code != 0]
        nodes = {node for each in own for node in nodes_of(each.node)}
        sole = len(nodes) == 1 and (end is not None or not any(line.node for line in self.lines))
        return nodes.pop() if sole else None

    def tail(self, lines: Sequence[Line], own: Collection[int] = ()) -> str:
        """The end of an output; without the tracebacks of others, which another part of the report shows."""
        mixed = bool(lines) and self.rank_of(lines[-1]) is None
        kept = [line for line in lines[-TAIL_LINES:] if line.text != GAP]
        if mixed:
            kept = [line for line in kept if line.number not in self.covered or line.number in own]
        return "\n".join(line.text for line in kept)

    def tail_of(self, rank: int) -> str:
        """The end of a rank's lines; of a log without labels the end of all."""
        own = self.lines_of(rank)
        if own:
            return self.tail(own)
        ends = [end.number for end in self.ends.processes]
        unlabelled = (line for line in self.lines if line.rank is None and line.task is None and line.local is None)
        return self.tail([line for line in unlabelled if not ends or line.number < ends[0]])


def until(lines: Sequence[Line], number: int, more: int) -> Sequence[Line]:
    """Return the lines up to a line, and some after it."""
    at = bisect_right(lines, number, key=_number)
    return lines[max(0, at - TAIL_LINES) : at + more]


def _number(line: Line) -> int:
    return line.number


def _cascade(error: RankError) -> bool:
    worker = failed_worker_of(error.rank, None, error, None, "")
    return classify(evidence_of(worker, "")).cascade


def is_cascade(error: RankError) -> bool:
    """Whether a failure's cause is a consequence of another rank's end."""
    return _cascade(error)


def of_end(end: End, rank: int) -> RankError:
    """Return the record of an end without a reason."""
    if end.signal is not None:
        error = replace(_rank_error(rank, "signal", end.signal, end.number), signal=end.signal)
    else:
        error = replace(_rank_error(rank, "exit", f"exit code {end.code}", end.number), exit_code=end.code)
    return _with_end(error, end)


def _with_end(error: RankError, end: End) -> RankError:
    """Return the record with what an end states."""
    code = end.code if end.code is not None and error.kind != "signal" else error.exit_code
    sole = nodes_of(end.node)
    node = sole[0] if len(sole) == 1 else error.node
    local = end.local if end.local is not None else error.local_rank
    pid = end.pid if end.pid is not None else error.pid
    return _with_quote(replace(error, exit_code=code, node=node, host=node, local_rank=local, pid=pid), end)


def _with_quote(error: RankError, end: End | None) -> RankError:
    if end is None or end.by in ("table", "torchrun") or len(error.quotes) > 1:
        return error
    return replace(error, quotes=(*error.quotes, end.text.strip()[:300]))


def _first(raised: Raised) -> str:
    return raised.headline.split("\n", 1)[0][:200]


def _is_strong(thing: Raised | Crash | Reason) -> bool:
    return not isinstance(thing, Reason) or thing.strength == STRONG


def _code(thing: Raised | Crash | Reason) -> int | None:
    return thing.code if isinstance(thing, Reason) else None


def _with_first(error: RankError, rank: int) -> RankError:
    text = f"the end of rank {rank} was noticed first; which rank has this traceback is not known"
    return replace(error, quotes=(*error.quotes, text))


def _kind(thing: Raised | Crash | Reason) -> str:
    if isinstance(thing, Raised):
        return "exception"
    return "signal" if isinstance(thing, Crash) else thing.kind


def _signal(thing: Raised | Crash | Reason) -> str | None:
    return None if isinstance(thing, Raised) else thing.signal


def _headline(thing: Raised | Crash | Reason) -> str:
    if isinstance(thing, Raised):
        place = thing.exception.frames[-1].place if thing.exception.frames else ""
        return f"{thing.headline}|{place}"
    return thing.signal or "" if isinstance(thing, Crash) else thing.message


def _last(thing: Raised | Crash | Reason) -> int:
    return thing.number if isinstance(thing, Reason) else thing.end


def _rank_error(rank: int, kind: str, message: str, order: int) -> RankError:
    return RankError(
        rank=rank,
        node=None,
        host=None,
        local_rank=None,
        time_ns=None,
        kind=kind,
        exit_code=None,
        signal=None,
        step=None,
        pid=None,
        argv=(),
        message=message,
        traceback=None,
        exception=None,
        stacks=None,
        whole=False,
        order=order,
    )


__all__ = ["UNKNOWN", "Judged", "is_cascade", "judge", "of_end"]
