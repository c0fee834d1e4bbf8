"""What failures that are all consequences may follow from: an end, a start or an error of no known rank (pure)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from ftslurm.dataclasses import replace
from ftslurm.failures.closing_lines import goes_on_without, went_on
from ftslurm.failures.logged_error import logged_error
from ftslurm.pattern import pattern
from ftslurm.report.facts import RankError
from ftslurm.report.logs.attempt_log import AttemptLog, number_of
from ftslurm.report.logs.end import End
from ftslurm.report.logs.evidence import Found
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.rank_errors import UNKNOWN, error_of, is_cascade, of_end, record, with_end
from ftslurm.report.logs.reasons import Reason
from ftslurm.report.logs.success import says_completed, works
from ftslurm.report.logs.tracebacks import names_rank

QUOTE_LIMIT = 200
_LABEL = pattern(r"^[\[(]?(?i:rank)[ =:_-]?\d{1,6}[\])]?:? ")
"""Of a program's own, at the begin of what it logs."""
OF_RUNTIME = pattern(r"\.(?:cc|cpp|h|hpp):\d+\]")
"""In lines of the runtime of collectives, which tell of connections, too."""
_DIGITS = pattern(r"\d+")
BEFORE_OTHERS = 40
"""Lines before the first consequence in which the error that it follows from may have been logged."""
_KILLS = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
"""Signals that nothing sends to end a job in order."""

Origin = tuple[RankError, str]
"""A failure, and the output that is evidence of it."""
_ENDED = pattern(
    r"A worker died or was killed while executing a task|Got fatal signal from worker|The actor (?:died|is dead)"
)
_LOST_TASK = pattern(r"/task:(\d{1,6})\W.{0,80}heartbeat timeout")


def unused(errors: Collection[int]) -> int:
    """Return the next number of an unknown rank."""
    return min([UNKNOWN + 1, *errors]) - 1


def earlier_end(log: AttemptLog, errors: dict[int, RankError]) -> Origin | None:
    """Return the end of a process of unknown rank from which all failures may follow, such as of a node's launcher."""
    first = min(error.order for error in errors.values())
    parts = {log.part_of(error.order) for error in errors.values()}
    for end in log.ends.processes:
        # Which of two files was written first cannot be seen.
        later = end.number >= first and log.part_of(end.number) in parts
        known = log.ranks_of(end) or end.stopped or end.oom or later
        killed = end.signal in _KILLS or (end.by in ("pod", "condor") and end.code is None)
        if not known and killed and not was_survived(log, end):
            silent = log.streamed_ranks() - errors.keys()
            rank = silent.pop() if len(silent) == 1 else unused(errors)
            return of_end(end, rank), end.text if rank < 0 else log.tail_of(rank)
    return None


def not_started(log: AttemptLog, errors: dict[int, RankError], weak: Sequence[Found]) -> Origin | None:
    """Return the process that could not be started, for which the others waited in vain.

    Args:
        log: the lines.
        errors: the failures.
        weak: reasons before these that ended a process perhaps.
    """
    first = min(error.order for error in errors.values())
    for each in weak:
        assert isinstance(each.thing, Reason)
        if any(each.number < line.number < first and works(line.text) for line in log.lines):
            continue  # the program had started
        if each.thing.code in (126, 127) or each.thing.message.startswith("cd: "):
            return error_of(log, each.thing, unused(errors)), each.tail
    return None


def logged_before(log: AttemptLog, errors: dict[int, RankError]) -> Origin | None:
    """Return the last error that a rank logged before the others lost it, if it printed nothing more."""
    first = min(error.order for error in errors.values())
    for line in reversed([line for line in log.lines if line.number < first][-BEFORE_OTHERS:]):
        text = logged_error(line.text) if line.number not in log.covered else None
        rank = _rank_of(log, line, 200)
        if text is None or rank is None or rank in errors or "ProcessGroup" in line.text or goes_on_without(text):
            continue
        if is_aftermath(line.text):
            continue  # of Slurm, or a launcher
        later = (other for other in log.lines if other.number > line.number and _rank_of(log, other, 60) == rank)
        if not any(_is_output(log, other) for other in later):
            first_line, first_text = _first_of_block(log, line, text, rank)
            return replace(record(rank, "exit", first_text, first_line.number), node=log.node_of(line)), first_line.text
    return None


def logged_alike(log: AttemptLog, errors: dict[int, RankError]) -> dict[int, Origin]:
    """Return the error that several ranks logged last in the same words, by rank; empty: there is no such."""
    found: dict[int, tuple[Line, str]] = {}
    for line in log.lines:
        rank = _rank_of(log, line, 200)
        text = logged_error(line.text) if rank is not None and line.number not in log.covered else None
        if rank is not None and text is not None and "ProcessGroup" not in line.text and not goes_on_without(text):
            found[rank] = line, _LABEL.sub("", text)
        elif rank is not None and works(line.text):
            found.pop(rank, None)
    alike = len({_DIGITS.sub("#", text) for _, text in found.values()}) == 1
    if not alike or len(found) < 2 or not set(errors) <= set(found):
        return {}
    origins: dict[int, Origin] = {}
    for rank, (line, text) in found.items():
        # The launcher states the codes of some of them only.
        error = replace(record(rank, "exit", text, line.number), node=log.node_of(line))
        known = errors.get(rank)
        if known is not None:
            error = replace(error, node=error.node or known.node, local_rank=known.local_rank, quotes=known.quotes)
        origins[rank] = error, text
    return origins


def named_before(log: AttemptLog, errors: dict[int, RankError]) -> Origin | None:
    """Return the last error in whose text another rank is named, if no rank did a further step after it."""
    origin = logged_before(log, errors)
    if origin is None:
        return None
    at = bisect_left(log.lines, origin[0].order, key=number_of)
    named = names_rank(log.lines[at].text[:200]) == origin[0].rank
    after = (line.text for line in log.lines[at:] if logged_error(line.text) is None)
    return origin if named and not any(map(works, after)) else None


def _first_of_block(log: AttemptLog, line: Line, text: str, rank: int) -> tuple[Line, str]:
    """Return the first of the errors that a rank logged in lines one after the other: what follows explains it."""
    for other in reversed(log.lines[: bisect_left(log.lines, line.number, key=number_of)]):
        above = logged_error(other.text)
        if above is None or other.number != line.number - 1 or _rank_of(log, other, 200) != rank:
            break
        line, text = other, above
    return line, text


def lost_task(log: AttemptLog, errors: dict[int, RankError]) -> Origin | None:
    """Return the task whose heartbeats JAX or TensorFlow missed, which the others only report."""
    found = next(((line, lost) for line in log.lines if (lost := _LOST_TASK.search(line.text)) is not None), None)
    if found is None or ((rank := int(found[1][1])) in errors and rank >= 0):
        return None
    return record(rank, "exit", f"task {rank} stopped its heartbeats", found[0].number), found[0].text


def silent_end(log: AttemptLog, errors: dict[int, RankError]) -> Origin | None:
    """Return the last line of the only process that did not lose the others, where each has its own file.

    The last lines of others may only be of progress.
    """
    failed = {log.part_of(error.order) for error in errors.values()}
    files: dict[int, list[Line]] = {}
    for line in log.lines:
        if line.task is not None or line.rank is not None or line.node is not None:
            files.setdefault(line.part, []).append(line)
    silent = [own for part, own in files.items() if part not in failed]
    last_lines = [(last, logged_error(last.text)) for own in silent if (last := _last_line(own)) is not None]
    logged = [(line, text) for line, text in last_lines if text is not None and not goes_on_without(text)]
    if len(logged) == 1:
        line, text = logged[0]
    elif len(last_lines) == 1 and not logged and has_unique_form(log, last_lines[0][0]):
        line = last_lines[0][0]
        text = f'its output ends with "{line.text.strip()[:QUOTE_LIMIT]}"'
    else:
        return None
    rank = log.rank_of(line)
    error = record(unused(errors) if rank is None else rank, "exit", text, line.number)
    return replace(error, node=log.node_of(line)), line.text


def logged_last(
    log: AttemptLog, errors: Mapping[int, RankError], following: Sequence[int]
) -> tuple[Origin | None, str]:
    """Return the error that was logged last before the only known end, or a note on what was printed last there.

    Args:
        log: the lines.
        errors: the failures; of the rank that ended so, a consequence or no reason is known.
        following: the numbers of the lines of no known rank from which consequences are printed.
    """
    ends = {rank: end for end in log.ends.processes if not end.stopped and end.code for rank in log.ranks_of(end)}
    if len(ends) != 1:
        return None, ""
    (rank, end), *_ = ends.items()
    known = errors.get(rank)
    if known is None or not (
        is_cascade(known) or known.message in (f"exit code {end.code}", f"SystemExit: {end.code}")
    ):
        return None, ""
    line = _last_output_before(log, min([*following, end.number]))
    if line is None:
        return None, ""
    text = logged_error(line.text)
    if text is None or goes_on_without(text):
        before = "others lost their connections" if following else "its end"
        return None, f'the last line before {before}: "{line.text.strip()[:QUOTE_LIMIT]}"'
    return (with_end(record(rank, "exit", f"exit code {end.code}: {text}", line.number), end), line.text), ""


def _last_output_before(log: AttemptLog, number: int) -> Line | None:
    """Return the last ordinary line of no known rank before a line, if it may be why a process ended."""
    before = [line for line in log.lines if line.number < number][-BEFORE_OTHERS:]
    last = _last_line([line for line in before if line.number not in log.covered])
    if last is None or _rank_of(log, last, 60) is not None or log.part_of(number) != last.part:
        return None
    if OF_RUNTIME.search(last.text[:QUOTE_LIMIT]):
        return None
    text = logged_error(last.text)
    is_reason = text is not None and not goes_on_without(text)
    return last if is_reason or has_unique_form(log, last) else None


def has_unique_form(log: AttemptLog, line: Line) -> bool:
    """Whether no other line has the form of this one, as those of progress have."""
    form = _DIGITS.sub("#", line.text)
    alone = sum(_DIGITS.sub("#", other.text) == form for other in log.lines) == 1
    return alone and not works(line.text) and not says_completed(line.text) and not went_on(line.text)


def _last_line(lines: Sequence[Line]) -> Line | None:
    last = next((line for line in reversed(lines) if line.text == GAP or not is_aftermath(line.text)), None)
    return None if last is None or last.text == GAP or works(last.text) else last


def was_survived(log: AttemptLog, end: End) -> bool:
    """Return whether output follows a shell's line on a signal to a process that it does not name."""
    return end.by == "shell" and end.pid is None and log.between(end.number, log.lines[-1].number + 1) > 0


def is_explained(log: AttemptLog, end: End) -> bool:
    """Return whether a shell's line on a process without a number follows from the end of another one, stated above."""
    if end.by != "shell" or end.pid is not None:
        return False
    at = bisect_left(log.lines, end.number, key=number_of)
    for line in reversed(log.lines[max(0, at - BEFORE_OTHERS) : at]):
        if works(line.text):
            return False
        if _ENDED.search(line.text):
            return True
    return False


def _rank_of(log: AttemptLog, line: Line, begin: int) -> int | None:
    """Return the rank of a line, by its label or its first characters."""
    rank = log.rank_of(line)
    return names_rank(line.text[:begin]) if rank is None else rank


def _is_output(log: AttemptLog, line: Line) -> bool:
    return line.number not in log.covered and not is_aftermath(line.text) and logged_error(line.text) is None
