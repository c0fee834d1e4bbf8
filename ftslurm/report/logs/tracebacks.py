"""Tracebacks and faulthandler's dumps in the lines of one stream (pure).

`ftslurm.failures.traceback_text` parses the tracebacks; here they are sorted out of the lines of several ranks before,
and get what a log shows beside them: label, rank, logger.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures import traceback_text
from ftslurm.failures.exception_line import is_relation
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord
from ftslurm.report.logs.lines import GAP, REMOTE, Line
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.success import works
from ftslurm.report.logs.untangle import HEADER, untangled

CUT_LINES = 3
"""Lines at the beginning of a log among which the end of a traceback may be."""
STACKS_LIMIT, STACKS_LINES = 65536, 400
_DIGITS = pattern(r"\d+")
# Of SGLang: the rank among those of tensor parallelism.
_TENSOR = pattern(r"\[[\d :.-]{10,30} TP(\d{1,4})\] ")
_RANK = pattern(r"(?i)\brank[\"' ]{0,2}[ =:#]{0,2}(\d{1,6})\b")
# "RuntimeError: Rank 5, node n3, device 5, iteration 104: ...": the program's own rank.
_OWN_RANK = pattern(r"\[?[Rr]ank[ =:]?(\d{1,6})\]?[,:\]] (?!.{0,40}\b(?:did not|failed to|is running|has not))")
_WARNING = pattern(r"\b\w*Warning: |\[\w+ W \d|\bWARN(?:ING)?\b")  # the text of which is indented below
_OF_WARNING = pattern(r" +warnings\.warn\(")  # the source below a warning whose text has a traceback
_UNCAUGHT = pattern(
    r"(?i)\b(?:uncaught|unhandled|exception during training|(?:training|job|run) (?:has )?(?:failed|crashed)"
    r"|terminating|aborting"
    r"|an error has been caught)\b"
)
_SNIPPET = pattern(r"\[Rank (\d{1,6}) Error Snippet\]:?$", re.MULTILINE)  # of Ray Train
# Of Gaudi's and Ascend's runtimes, and of NCCL.
TAGGED_RANK = pattern(
    r"(?:\[Rank:|\bRankID:|Duplicate GPU detected : rank |communicator was aborted on rank |store based barrier on"
    r" rank: )(\d{1,6})\b"
)
_OF_NUMPY = "_ARRAY_API not found"
"""Of a module for an older NumPy, with a traceback; if the import fails, another exception says so."""
_AT_TOP = "An error has been caught in function '<module>', process 'MainProcess'"
"""Of loguru, at the outermost call of a script."""
_SPAWNED = pattern(r"-- Process (\d{1,6}) terminated with\b")
_LOGGED = pattern(
    r"^[EWF]\d{4} \d\d:|^\[[EWF] \d{4}-|\b(?:ERROR|CRITICAL|WARNING|WARN|FATAL|EXCEPTION)\b"
    # In lower case any program may write it: "validation error 0.1".
    r"|(?:\[|level=|\| ?)(?:error|warning)\b|\b(?:error|warning):"
)
_OF_EXCEPTION = pattern(
    r"(?i)error|exception|fail|caught|could ?n[o']t|cannot|unable|retr(?:y|ies)|skip|ignor|traceback|:\s*$"
)
_CAUGHT = pattern(
    r"(?i)(?<!number of )\bskip(?:ping|ped)?\b|\bretr(?:y|ies|ying)\b|\bignor(?:e|ed|ing)\b|Exception in thread "
)
_REMOTE = pattern(rf"{re.escape(HEADER)}{REMOTE}(?P<process>.+?)(?:, rank (?P<rank>\d{{1,6}}))?$")
_OF_LOGGER = pattern(r"(?:\S{1,40} ){0,3}\W?(?:INFO|DEBUG|WARNING)\b")
_C10D = pattern(r"\[[WEFI](?! ?\d{4}-\d\d)\d{0,4}[ \d:.]")
_OF_STACK = pattern(r"\s*$|Exception raised from |frame #\d")  # native, below a line of torch's C++ code
_OF_LAUNCHER = pattern(r"/torch/distributed/|/bin/[^/]+$")
_FATAL = pattern(r"Fatal Python error: (.{1,100})$")
SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
}


IGNORED_LINES = 6
_FENCE = "```"
FENCED_LINES, FEW_FOLLOW = 12, 3
"""Lines below a traceback in Markdown that are read; so many that are no program's end."""


@dataclass(frozen=True)
class Raised:
    """An exception with its traceback in a log.

    Attributes:
        exception: with those behind it.
        traceback: as text.
        begin, end: the numbers of its first and last line.
        numbers: of all its lines.
        line: its first line, with the label.
        rank: in the text before it, or in its message; None: unknown.
        logged: whether a logger printed it, so that it had been caught.
        spawned: whether that rank is the number of a process of torch.multiprocessing.spawn.
        ignored: whether Python printed it and went on.
        by_hook: whether torch's hook printed it, which labels what nothing caught.
        at_top: whether a logger states that it ended the script itself.
    """

    exception: ExceptionRecord
    traceback: str
    begin: int
    end: int
    numbers: frozenset[int]
    line: Line
    rank: int | None = None
    logged: bool = False
    spawned: bool = False
    ignored: bool = False
    by_hook: bool = False
    at_top: bool = False

    @property
    def headline(self) -> str:
        """``ValueError: boom``."""
        name = self.exception.type
        return f"{name}: {self.exception.message}" if self.exception.message else name


@dataclass(frozen=True)
class Crash:
    """A fatal signal in faulthandler's report."""

    signal: str
    stacks: str
    begin: int
    end: int
    line: Line


def tracebacks(lines: Sequence[Line]) -> list[Raised]:
    """Return the exceptions in the lines of a stream, in the order of their ends; chained ones as one."""
    if not lines:
        return []
    # torch's hook prints uncaught exceptions only: what follows a type with that label is its message.
    by_hook = _is_by_hook(lines)
    begins = any(": " in line.text for line in lines[:CUT_LINES])
    places = (_is_of_traceback(line) or traceback_text.is_syntax_place(line.text) for line in lines)
    if not by_hook and not begins and not any(places):
        return []
    sorted_out = _without_runtime(lines) if by_hook else untangled(lines)
    found: list[Raised] = []
    for is_gap, group in groupby(sorted_out, lambda line: line.text == GAP):
        part = [] if is_gap else list(group)
        texts = [line.text for line in part]
        cut = bool(part) and part[0] is lines[0]
        end = 0
        for each in traceback_text.tracebacks(texts, whole=by_hook, cut=cut):
            found.append(_raised(part, each, end))
            end = each.end
    found = found or (_without_frames(sorted_out) if by_hook else [])
    return [replace(each, by_hook=True) for each in found] if by_hook else found


def _without_runtime(lines: Sequence[Line]) -> list[Line]:
    """Return the lines without those of torch's C++ code, and without the native stacks in these."""
    kept: list[Line] = []
    inside = False
    for line in lines:
        inside = _C10D.match(line.text) is not None or (inside and _OF_STACK.match(line.text) is not None)
        if not inside:
            kept.append(line)
    return kept


def _is_by_hook(lines: Sequence[Line]) -> bool:
    """Whether a stream has the label of torch's hook, which prints uncaught exceptions only.

    A launcher or a program that puts the same label before each line puts it before its loggers' lines, too.
    """
    if lines[0].rank is None:
        return False
    first = next((i for i, line in enumerate(lines) if _is_of_traceback(line)), len(lines))
    own = [not line.text[:1].isspace() and not _C10D.match(line.text) for line in lines]
    logged = (is_own and _OF_LOGGER.match(line.text) for line, is_own in zip(lines, own, strict=True))
    return not any(logged) and not any(
        is_own and works(line.text) for line, is_own in zip(lines[:first], own[:first], strict=True)
    )


def _is_of_traceback(line: Line) -> bool:
    return HEADER in line.text or traceback_text.is_frame(line.text)


def _without_frames(lines: Sequence[Line]) -> list[Raised]:
    """Return the first exception in lines of torch's hook of which the others are missing, as behind a filter."""
    for i, line in enumerate(lines):
        found = traceback_text.tracebacks([line.text], whole=True, cut=True) if ": " in line.text else []
        if found:
            return [_raised(lines[i:], found[0])]
    return []


def _raised(lines: Sequence[Line], found: traceback_text.Traceback, after: int = 0) -> Raised:
    """Return an exception; ``after``: the line at which the traceback before it ends."""
    own = lines[found.first : found.end]
    prefix = own[0].text[: max(0, own[0].text.find(HEADER))]  # of one without a header: empty
    before = lines[found.first - 1].text if found.first > after else ""
    logged = bool(_LOGGED.search(prefix[:200])) or (not prefix.strip() and _is_logged(before))
    # What nothing caught is logged, too.
    caught = logged and _UNCAUGHT.search(before[:400]) is None
    whole = "\n".join([before, *(line.text for line in own)])
    spawned = _SPAWNED.search(whole)
    named = _RANK.search(prefix[-200:]) or _TENSOR.match(prefix) or (_RANK.search(before[-200:]) if logged else None)
    message = found.exception.message[:2000]
    stated = (_OWN_RANK.match(message) or TAGGED_RANK.search(message)) if found.rank is None else None
    which = spawned or named or _SNIPPET.search(whole) or stated
    rank = int(which[1]) if which is not None else found.rank
    numbers = frozenset(line.number for line in own)
    mark = next((each for line in reversed(own) if (each := _REMOTE.search(line.text)) is not None), None)
    remote = None if mark is None else mark["process"]
    rank = int(mark["rank"]) if rank is None and mark is not None and mark["rank"] else rank
    dead = found.exception.type in ("ActorDiedError", "RayActorError")  # which its caller raises
    remote = "" if dead and "pid " in (own[0].node or "") else None if dead else remote
    first = own[0] if remote is None else own[0]._replace(node=remote or None)
    text = "\n".join(_without(line.text, prefix) for line in own) + "\n"
    return Raised(
        _with_cut_callers(found.exception, [line.text for line in lines[found.end :]]),
        text,
        min(numbers),
        max(numbers),
        numbers,
        first,
        rank,
        caught,
        spawned=spawned is not None,
        at_top=_AT_TOP in before,
        ignored=found.ignored
        or message == _OF_NUMPY
        or _is_below_ignored(lines, found.first)
        or (prefix[:1].isspace() and not prefix.strip() and _WARNING.search(before[:400]) is not None)
        or _is_of_warning([line.text for line in lines[found.end : found.end + 3]])
        or _is_fenced(lines, found.first, found.end)
        or _is_of_executed_text(prefix, found.exception, lines[found.end :]),
    )


def _is_below_ignored(lines: Sequence[Line], first: int) -> bool:
    """Whether Python ignores the exceptions of several processes, which have printed that at once."""
    for line in reversed(lines[max(0, first - IGNORED_LINES) : first]):
        if line.text.strip() and line.text.strip() != HEADER:
            return line.text.count("Exception ignored in") > 1
    return False


def _is_fenced(lines: Sequence[Line], first: int, end: int) -> bool:
    """Whether a traceback is quoted as a block of Markdown, as in a language model's prompts, and output follows."""
    after = [line.text.strip() for line in lines[end : end + FENCED_LINES] if line.text.strip()]
    if first == 0 or not lines[first - 1].text.lstrip().startswith(_FENCE) or after[:1] != [_FENCE]:
        return False
    opened = sum(line.text.lstrip().startswith(_FENCE) for line in lines[:first]) % 2 == 1
    return opened and len(after) > FEW_FOLLOW


def _is_of_executed_text(prefix: str, exception: ExceptionRecord, after: Sequence[Line]) -> bool:
    """Whether a traceback is of text that its program executed, as of a language model's, and that it quotes."""
    if not exception.frames or not all(frame.file.startswith("<") for frame in exception.frames):
        return False
    indented = bool(prefix) and not prefix.strip()
    return indented or any(line.text.strip() and not is_aftermath(line.text) for line in after[:FENCED_LINES])


def _is_of_warning(after: Sequence[str]) -> bool:
    """Whether a traceback is a warning's text, whose source follows; another warning begins with its own line."""
    first = next((text for text in after if text.strip()), "")
    return _OF_WARNING.match(first) is not None


def _with_cut_callers(exception: ExceptionRecord, after: Sequence[str]) -> ExceptionRecord:
    """Return an exception with the frames of the one that was raised from it, and whose end is not in the text."""
    if not any(is_relation(line) for line in after[:4]):
        return exception
    _, frames = traceback_text.open_frames(after)
    if not frames or any(_OF_LAUNCHER.search(frame.file) for frame in frames):
        return exception
    return replace(exception, frames=(*frames, *exception.frames))


def _without(text: str, prefix: str) -> str:
    """A line without the prefix of its traceback, in which numbers change."""
    if not prefix or "Exception Group" in prefix:
        return text
    numbered = r"\d+".join(map(re.escape, _DIGITS.split(prefix)))
    found = re.match(numbered, text)
    return text[found.end() :] if found else text


def names_rank(text: str) -> int | None:
    """Return the rank that a line names."""
    found = _RANK.search(text)
    return int(found[1]) if found is not None else None


def is_logged_error(text: str) -> bool:
    """Whether it is a logger's line of level WARNING or higher."""
    return _is_logged(text)


def _is_logged(before: str) -> bool:
    """Whether the line before a traceback is a logger's."""
    level = _LOGGED.search(before[:120])
    if level is None or before.startswith(("srun:", "slurmstepd")):
        return False
    # A warning of something else may be above a traceback by chance.
    mild = "warn" in level[0].lower() or level[0].lstrip("[").startswith("W")
    return not mild or _OF_EXCEPTION.search(before[:400]) is not None


def was_caught(before: str) -> bool:
    """Whether the line before a traceback says that its program, or the rest of it, goes on."""
    # A warning shows the source of what it is about, with what linters are asked.
    return _CAUGHT.search(before[:400].replace("type: ignore", "")) is not None


def ends_within(lines: Sequence[Line]) -> bool:
    """Whether the last lines of a stream are a traceback without an end."""
    begins = [i for i, line in enumerate(lines) if HEADER in line.text]
    if not begins:
        return False
    rest = [line.text for line in lines[begins[-1] + 1 :] if line.text.strip()]
    return all(text[:1].isspace() for text in rest)


def crashes(lines: Sequence[Line]) -> list[Crash]:
    """Return the fatal signals in faulthandler's reports in a stream."""
    found = []
    for i, line in enumerate(lines):
        match = _FATAL.search(line.text) if "Fatal Python error: " in line.text else None
        if match is None or match[1].strip() not in SIGNALS:
            continue
        j = i + 1
        while j < len(lines) and j - i < STACKS_LINES and _of_stacks(lines[j].text):
            j += 1
        stacks = "\n".join([line.text[match.start() :], *(each.text for each in lines[i + 1 : j])])[:STACKS_LIMIT]
        found.append(Crash(SIGNALS[match[1].strip()], stacks, line.number, lines[j - 1].number, line))
    return found


def _of_stacks(text: str) -> bool:
    begins = (
        "  ",
        "Current thread",
        "Thread 0x",
        "Stack (most recent call first)",
        "Extension modules",
        "Python runtime",
    )
    return text != GAP and (not text.strip() or text.startswith(begins))


__all__ = [
    "HEADER",
    "SIGNALS",
    "TAGGED_RANK",
    "Crash",
    "Raised",
    "crashes",
    "ends_within",
    "is_logged_error",
    "names_rank",
    "tracebacks",
    "was_caught",
]
