"""What a log is evidence of that neither states how its processes ended nor has an exception that ended one (pure).

Its end is missing, or nothing but lines of runtimes was printed: the most valuable statement of a failure counts, else
the traceback in whose middle it ends, else an error in its last lines or an exception near its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.closing_lines import goes_on_without, is_summary
from ftslurm.failures.reason import CUT
from ftslurm.failures.stated_lines import Stated, stated_in
from ftslurm.failures.stderr_witness import CHILD, Witness, witness
from ftslurm.failures.traceback_text import open_frames
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord
from ftslurm.report.facts import RankError
from ftslurm.report.failed_worker import NO_END
from ftslurm.report.logs.attempt_log import TAIL_LINES, AttemptLog, number_of, of_launcher, until
from ftslurm.report.logs.evidence import Found, headline_of
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.pods import failed_condition
from ftslurm.report.logs.rank_errors import UNKNOWN, error_of, record
from ftslurm.report.logs.success import ends_well, has_results, says_completed, works
from ftslurm.report.logs.tracebacks import HEADER, Raised, names_rank, was_caught

OF_LAUNCHER = "the log ends within the launcher's own traceback; what failed is not in it"
ERROR_LINES, NEIGHBOURS, AFTER_ERROR = 60, 4, 6
"""Lines at the end in which words of a failure are sought; between two of these; of other kinds after the last one."""
INTRODUCTION = 12
"""Lines above a traceback that introduce it, so that their words are not a failure of their own."""
_IN_WORDS = pattern(
    r"(?i)\b(?:error|err|fatal|failed|failure|failing|fails|exception|abort(?:ed|ing)?|panic|cannot|could not"
    r"|couldn't|can't"
    r"|unable to|timed out|not found|no such|denied|refused|exhausted|exceeded|crashed|killed|corrupt(?:ed)?|invalid"
    r"|core dumped|out of memory|lost connection|unreachable)\b|(?-i:\w(?:Error|Exception)\b)"
)
# Of what a program evaluates.
_COUNTED = pattern(
    r"(?i)\b(?:failed|failures?|errors?)\b[^:\d]{0,30}: ?\d{1,9} (?:of|out of|/) ?\d|\bfailures? by \w+:"
    r"|\b(?:failed|errors?) [a-z]{1,20}: \d{1,9}\W*$|\((?:repaired|recovered|corrected|fixed)\)"
)
_HARMLESS = pattern(
    r"(?i)\b(?:warn(?:ing)?|info|debug|deprecat\w+|note|hint)\b|\[?[WID]\d{3,4} |\[[WI] |\w*Warning: "
    r"|: [IW] \S{1,200}:\d+\]"
    r"|\b(?:error|failure) (?:rate|ratio|count|norm|bars?|margin|analysis|correction)\b"
    r"|\b(?:0|no|without|any) (?:errors?|fail\w+)|\b(?:errors?|failed|invalid)(?: ?rate)?\s?[:=]\s?[\d.]"
    r"|(?<!not )\b(?:written|saved) (?:to|in)\b"
    r"|\berrors?\W{1,4}\d+(?:\.\d|e-| ?%)|\bif\b.{0,80}\b(?:error|fail)"
    r"|\b(?:retry|retries|fall(?:ing)? ?back|ignor\w+|skip\w*|instead|default(?:s|ing)?|from scratch|continuing"
    r"|disabled"
    r"|optional|dropped)\b"
)
_ANNOUNCES = pattern(r":\s*$|(?i:\b(?:critical|fatal) error)\W*$")
_TOOL = pattern(r"(?:sbatch|salloc): error: ")
# Of coreutils and their like.
_COMMAND = pattern(
    r"(?:\S{0,80}/)?(?:cp|mv|rm|ln|mkdir|rmdir|ls|cat|cd|dd|df|du|chmod|chown|touch|tar|gzip|gunzip|bzip2|xz|zstd|unzip"
    r"|rsync|scp|ssh|sed|awk|grep|find|head|tail|tee|sort|mount|install|mktemp|realpath|stat|split|cut|tr): \S.{6,}"
)
_STATUS = pattern(r"(?i)\b(?:status|code|rc|exit|retcode)\b\W{0,3}[1-9]\d{0,2}\b")
_OF_TOOL = pattern(r"[\w./+-]{1,60}: \S")
_STAMPS = pattern(r"^\W{0,2}\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\S{0,6}\W{0,3}|^\[[\d:.]{8,16}\]")
_PASSED_ON = pattern(r"\(RANK (\d{1,6})\)$")
"""At a header, of a traceback that torch's checkpoints pass on from another rank."""


@dataclass(frozen=True)
class LastResort:
    """A failure by a log without an end: its record, and the output that is evidence of it."""

    error: RankError
    tail: str


def last_resort(log: AttemptLog, late: Sequence[Found]) -> LastResort | None:
    """Return the failure that a log without any other evidence is evidence of; None: none.

    Args:
        log: its lines.
        late: exceptions near its end that were perhaps caught.
    """
    cut_off = _cut_off(log)
    if cut_off is not None and (late or cut_off.error.message == OF_LAUNCHER):
        # What is complete comes first: a traceback that breaks off behind it is a consequence, or of another process.
        whole = (
            _stated(log, late) or _late(log, late) or _last_error(log, late) or _error_line(log, cut_off.error.order)
        )
        return _killed(log) or whole or cut_off
    found = _killed(log) or _stated(log, late) or cut_off or _last_error(log, late) or _late(log, late)
    return found or _of_operator(log) or _error_line(log) or _of_command(log)


def _killed(log: AttemptLog) -> LastResort | None:
    """Return the process that the kernel killed for memory, of a kernel's log without any end."""
    kill = next((each for each in log.ends.kernel if each.kind in ("cgroup", "host") and "ill" in each.text), None)
    if kill is None:
        return None
    error = replace(record(UNKNOWN, "signal", "SIGKILL", kill.number), signal="SIGKILL")
    return LastResort(error, log.tail([*until(log.lines, kill.number, 0)]))


def _stated(log: AttemptLog, late: Sequence[Found]) -> LastResort | None:
    found: list[tuple[Stated, Line]] = []
    before = ""
    for line in log.lines:
        stated = stated_in(line.text) if line.text != GAP else None
        if before == "Last error:" and line.text.strip():
            stated = Stated(0, line.text.strip()[:600], f"NCCL error: {line.text.strip()[:600]}")
        before = line.text.strip()
        if stated is not None:
            found.append((stated, line))
        elif works(line.text) and line.number not in log.covered:
            found.clear()  # what was stated before was survived
    if not found or ends_well(log.lines, sole=False):
        return None
    # As ranks leave one after the other, the store and its clients warn of each other.
    above = log.lines[: bisect_left(log.lines, found[0][1].number, key=number_of)]
    passed_over = {number for _, raised in log.raised for each in raised if each.ignored for number in each.numbers}
    above = [line for line in above if line.number not in passed_over]
    if all(line.text.startswith("[W") for _, line in found) and ends_well(above, sole=False):
        return None
    each, line = min(found, key=lambda one: (one[0].value, one[1].number))
    rank = each.rank if each.rank is not None else log.rank_of(line)
    resort = _of(log, line, rank, each.node, log.tail([*until(log.lines, line.number, 0)]))
    raised = next((one for one in late if isinstance(one.thing, Raised) and line.number in one.thing.numbers), None)
    if raised is not None and not each.meaning:
        return LastResort(error_of(log, raised.thing, UNKNOWN if raised.rank is None else raised.rank), raised.tail)
    # Of a traceback's line, the lines above it say less.
    message = each.meaning or (each.text if line.number in log.covered else "")
    return replace(resort, error=replace(resort.error, message=message)) if message else resort


def _late(log: AttemptLog, late: Sequence[Found]) -> LastResort | None:
    """Return the last exception near the end; one that repeats, as of what is tried again, is none."""
    kept = [each for each in late if sum(headline_of(other.thing) == headline_of(each.thing) for other in late) == 1]
    if not kept or kept[-1] is not late[-1]:
        return None
    rank = UNKNOWN if kept[-1].rank is None else kept[-1].rank
    return LastResort(error_of(log, kept[-1].thing, rank), kept[-1].tail)


def _last_error(log: AttemptLog, late: Sequence[Found]) -> LastResort | None:
    """Return the failure that the last lines state, of a logger or a library."""
    if late:
        return None  # the exception says more than the line that mentions it
    lines = [line for line in log.lines if line.text != GAP][-TAIL_LINES:]
    tail = "\n".join(line.text for line in lines)
    found: Witness | None = witness(tail)
    # Tracebacks have been judged; those in a logger's JSON have not.
    if found is None or found.kind == CHILD or found.lines or found.text in _ignored(log):
        return None
    last = next((line for line in reversed(lines) if found.text[:60] in line.text), lines[-1])
    line = _specified(lines, last)
    tail = tail if line is last else log.tail(until(lines, line.number, 0))
    rank = log.rank_of(line)
    return _of(log, line, names_rank(line.text[:200]) if rank is None else rank, "", tail)


def _of_operator(log: AttemptLog) -> LastResort | None:
    """Return why Kubernetes' operator has given a job up."""
    failed = failed_condition(log.lines)
    if failed is None:
        return None
    resort = _of(log, failed[0], None, "", "")
    return replace(resort, error=replace(resort.error, message=failed[1], quotes=()))


def _specified(lines: Sequence[Line], line: Line) -> Line:
    """Return the error above one by which a tool only states that there was one; else that line."""
    at = lines.index(line)
    if is_summary(line.text):
        while at and _OF_TOOL.match(lines[at - 1].text):
            at -= 1
        return lines[at]
    above = lines[at - 1] if at and line.text.endswith(": Unspecified error") else None
    return above if above is not None and _TOOL.match(above.text) else line


def _ignored(log: AttemptLog) -> set[str]:
    """Return the exceptions that Python ignored; of several processes, their lines may be torn apart."""
    return {each.headline for _, raised in log.raised for each in raised if each.ignored}


def _error_line(log: AttemptLog, end: int | None = None) -> LastResort | None:
    """Return the failure that the last lines of a log state in words of any form: the first line of the last ones.

    Args:
        log: the lines.
        end: the number of the line before which they are; None: the log's end.
    """
    known = [line for line in log.lines if end is None or line.number < end]
    lines = [line for line in known[-ERROR_LINES:] if line.text != GAP]
    if ends_well(log.lines, sole=False) or log.ends.processes:
        return None
    begin = max((i + 1 for i, line in enumerate(lines) if works(line.text) or says_completed(line.text)), default=0)
    # Tracebacks have been judged, with what introduces them.
    near = {i - k for i, line in enumerate(lines) if line.number in log.covered for k in range(INTRODUCTION)}
    ignored = _ignored(log)
    those = [i for i in range(begin, len(lines)) if i not in near and _is_error(lines[i].text)]
    those = [i for i in those if lines[i].text.strip() not in ignored]
    if not those:
        return None
    first = those[-1]
    for i in reversed(those):
        if first - i > NEIGHBOURS:
            break
        first = i
    after = lines[those[-1] + 1 :]
    if sum(not is_aftermath(line.text) for line in after) > AFTER_ERROR or any(
        has_results(each.text) for each in after
    ):
        return None
    line = _specified(lines, lines[first])
    rank = log.rank_of(line)
    resort = _of(log, line, names_rank(line.text[:200]) if rank is None else rank, "", "")
    return replace(resort, error=replace(resort.error, message=_STAMPS.sub("", line.text).strip()[:500], quotes=()))


def _of_command(log: AttemptLog) -> LastResort | None:
    """Return what a command printed last that prints only in case of trouble, in any language, if a script failed."""
    lines = [line for line in log.lines if line.text.strip() and line.text != GAP]
    at = max((i for i, line in enumerate(lines) if _COMMAND.match(line.text)), default=None)
    if at is None or log.ends.processes or ends_well(log.lines, sole=False):
        return None
    after = lines[at + 1 :]
    if len(after) > AFTER_ERROR or not any(_STATUS.search(line.text) and not is_summary(line.text) for line in after):
        return None
    line = _specified(lines, lines[at])
    resort = _of(log, line, None, "", "")
    return replace(resort, error=replace(resort.error, message=line.text.strip()[:500], quotes=()))


def _is_error(text: str) -> bool:
    stated = _IN_WORDS.search(text) is not None and _HARMLESS.search(text) is None and _COUNTED.search(text) is None
    return stated and not goes_on_without(text) and _ANNOUNCES.search(text) is None


def _of(log: AttemptLog, line: Line, rank: int | None, node: str, tail: str) -> LastResort:
    error = record(UNKNOWN if rank is None else rank, "exit", NO_END, line.number)
    error = replace(error, node=node or log.node_of(line), local_rank=line.local, quotes=(line.text.strip()[:300],))
    return LastResort(error, tail)


def _cut_off(log: AttemptLog) -> LastResort | None:
    """Return the exception whose traceback has no end in the log: its place and rank are known, its text is not."""
    for own in log.streams.values():
        first, frames = open_frames([line.text for line in own])
        if first == len(own) or not (frames or own[first].text.rstrip().endswith(HEADER)):
            continue
        if first and was_caught(own[first - 1].text):
            continue
        line, rank = own[first], log.rank_of(own[first])
        passed_on = _PASSED_ON.search(line.text)
        rank = int(passed_on[1]) if passed_on is not None else rank
        # Of any type: Python prints it below the frames.
        begins = {
            raised.exception.frames[0].place for _, each in log.raised for raised in each if raised.exception.frames
        }
        if frames and frames[0].place in begins:
            continue  # the same code raised before, and was survived
        text = OF_LAUNCHER if frames and all(of_launcher(frame.file) for frame in frames[-3:]) else CUT
        error = record(UNKNOWN if rank is None else rank, "exception", text, line.number)
        begin = max(line.text.find(HEADER), 0)  # behind a progress bar
        traceback = "\n".join([line.text[begin:], *(each.text for each in own[first + 1 :])]) + "\n"
        exception = ExceptionRecord("Exception", "", text, frames=frames)
        error = replace(error, exception=exception, traceback=traceback)
        return LastResort(replace(error, node=log.node_of(line), local_rank=line.local), log.tail(own))
    return None
