"""What a rank's stderr reports before the traceback that ended it, or before it hung (pure).

A program that waits for a child process, a task or a file notices their failure only by a broken pipe, a cancelled
await or a missing file; ranks that agree on a common failure all raise it, and only one of them has logged why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import replace
from ftslurm.failures.exception_line import HEADER
from ftslurm.failures.message_line import message_line
from ftslurm.failures.own_code import own_frame
from ftslurm.failures.reason import by_distributed, links, reason
from ftslurm.failures.retryability import OTHER_FAILED
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord, Frame
from ftslurm.report.alike import is_same
from ftslurm.report.facts import LogTail, RoundFiles
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.text import cut_middle

OUTPUTS = ("stderr", "stdout")
_SURVIVED_LIMIT = 160  # characters of what was survived
FOLLOWING = frozenset(
    ("EOFError", "BrokenPipeError", "CancelledError", "Empty", "ConnectionResetError", "ConnectionRefusedError",
     "FileNotFoundError", "TimeoutError")
)  # fmt: skip
"""Types of exceptions by which a program notices what failed elsewhere."""
_OF_OTHERS = pattern(
    rf"{OTHER_FAILED}|\b(?:\d+|some|one|any) (?:of \d+ )?(?:rank|worker|process|peer)\S{{0,6}} (?:has |have |had )?"
    r"(?:failed|raised|crashed)"
)
_ENDED = ("Exception in thread", "<Task finished", "Process ")
_NAME = pattern(
    r"\b(?!Fail|Error|Exception|Train|Trace|Rank|Step|Epoch)(?:[A-Z][a-z]+[A-Z]?\w{3,60}|[a-z]\w{0,60}[_\d]\w{1,60})\b"
)


def reported_before(worker: FailedWorker, tails: Sequence[LogTail]) -> ExceptionRecord | None:
    """Return the exception whose traceback is right before that of a rank's own, and not of its chain; None: none."""
    own = worker.exception
    text = next((tail.text for tail in tails if tail.stream == "stderr"), "")
    if own is None or text.count(HEADER) < 2:
        return None
    from ftslurm.failures.stderr_witness import TRACEBACK, witness

    found = witness(text, before=own.type)
    if found is None or found.kind != TRACEBACK or found.exception is None:
        return None
    known = {(each.type, each.message.split("\n", 1)[0]) for each in links(own)}
    inner = reason(found.exception)
    return None if (inner.type, inner.message.split("\n", 1)[0]) in known or own.type == inner.type else inner


def is_adjacent(worker: FailedWorker, tails: Sequence[LogTail]) -> bool:
    """Return whether nothing is between a rank's own traceback and the one above it in its stderr."""
    own = worker.exception
    text = next((tail.text for tail in tails if tail.stream == "stderr"), "")
    if text.count(HEADER) < 2:
        return False
    from ftslurm.failures.closing_lines import output_lines
    from ftslurm.failures.traceback_text import tracebacks

    lines = output_lines(text)
    found = tracebacks(lines)
    at = next((i for i in reversed(range(len(found))) if own is not None and found[i].exception.type == own.type), 0)
    return at > 0 and not any(line.strip() for line in lines[found[at - 1].end : found[at].first])


def collected_before(worker: FailedWorker, tails: Sequence[LogTail]) -> ExceptionRecord | None:
    """Return what a rank went on after and has logged under a name that its own exception has; None: nothing.

    A program that collects the failures of its parts reports them by their names at its end.
    """
    own = worker.exception
    text = next((tail.text for tail in tails if tail.stream == "stderr"), "")
    if own is None or text.count(HEADER) < 2:
        return None
    from ftslurm.failures.closing_lines import output_lines
    from ftslurm.failures.traceback_text import tracebacks

    lines, names = output_lines(text), set(_NAME.findall(own.message))
    for found in reversed(tracebacks(lines)):
        above = lines[found.first - 1] if found.first else ""
        if found.exception.type != own.type and names.intersection(_NAME.findall(above)):
            return reason(found.exception)
    return None


def one_reported_first(
    same: Sequence[FailedWorker], tails: Mapping[int, Sequence[LogTail]]
) -> tuple[FailedWorker, ExceptionRecord] | None:
    """Return the only one of ranks that failed alike whose stderr reports why, with that; None: none, or several.

    Args:
        same: these ranks.
        tails: the ends of the output of some ranks.
    """
    read = [each for each in same if tails.get(each.rank)]
    found = [(each, why) for each in read if (why := reported_before(each, tails[each.rank])) is not None]
    return found[0] if len(found) == 1 < len(read) else None


def survived_by_one(failed: Sequence[FailedWorker], tails: Mapping[int, Sequence[LogTail]]) -> str:
    """Return what one of ranks that failed because of others had caught and printed before; empty: none, or several.

    It may have gone on in another way than the others.
    """
    from ftslurm.failures.closing_lines import output_lines
    from ftslurm.failures.traceback_text import tracebacks

    found: dict[int, ExceptionRecord] = {}
    for each in failed:
        text = next((tail.text for tail in tails.get(each.rank, ()) if tail.stream == "stderr"), "")
        own = each.exception
        for one in tracebacks(output_lines(text)) if own is not None and text.count(HEADER) > 1 else ():
            raised = reason(one.exception)
            inner = raised.frames[-1].file if raised.frames else ""
            if one.ignored or by_distributed(raised.type, raised.module, raised.message, inner):
                continue
            found.setdefault(each.rank, raised)
    if len(found) != 1:
        return ""
    (rank, raised), *_ = found.items()
    place = f" at {own_frame(raised.frames).place.rpartition('/')[2]}" if raised.frames else ""
    text = cut_middle(f"{raised.type}: {message_line(raised.message)}", _SURVIVED_LIMIT)
    return f"rank {rank} had caught {text}{place}, and gone on: its way may have parted there"


def behind_common(failed: Sequence[FailedWorker], tails: Mapping[int, Sequence[LogTail]]) -> FailedWorker | None:
    """Return the failure of one rank that others report by what they and it raise; None: they do not, or it is unknown.

    Ranks that exchange a flag leave together: one of them has logged why.

    Args:
        failed: the failures of a round, the first one first.
        tails: the ends of the output of some ranks.
    """
    if not failed or _OF_OTHERS.search(failed[0].what) is None:
        return None
    found = one_reported_first([failed[0], *(each for each in failed[1:] if is_same(failed[0], each))], tails)
    if found is None:
        return None
    one, why = found
    return replace(one, exception=why, frames=why.frames, traceback=None, exit_code=None, what=why.type)


def output_before(files: RoundFiles, rank: int, then: int | None, stream: str = "stderr") -> str:
    """Return the end of a rank's output; empty if ftslurm stopped the rank, which has printed that since.

    Args:
        files: the round.
        rank: the rank.
        then: when the failure was noticed (ns), because of which it was stopped; None: unknown.
        stream: "stderr" or "stdout".
    """
    own = next((tail for tail in files.tails.get(rank, ()) if tail.stream == stream), None)
    if own is None:
        return ""
    stopped = any(one.rank == rank and one.stopped_by_ftslurm for node in files.nodes for one in node.workers)
    return "" if stopped and then and (own.written_ns or then) > then else own.text


def traceback_at_end(files: RoundFiles, rank: int, then: int | None) -> tuple[str, ...]:
    """Return the traceback with which an output of a rank ends that did not end by it, as a sentence; empty: none.

    Args:
        files: the round.
        rank: the rank.
        then: see `output_before`.
    """
    found = (_traceback_at_end(files, rank, stream, output_before(files, rank, then, stream)) for stream in OUTPUTS)
    return next((text for text in found if text), ())


def _traceback_at_end(files: RoundFiles, rank: int, stream: str, text: str) -> tuple[str, ...]:
    if HEADER not in text:
        return ()
    from ftslurm.failures.stderr_witness import TRACEBACK, witness

    found = witness(text)
    if found is None or found.exception is None or found.kind != TRACEBACK or found.thread:
        return ()
    raised = found.exception
    if by_distributed(raised.type, raised.module, raised.message, raised.inner_file):
        return ()
    if any(found.text in tail.text for other, tails in files.tails.items() if other != rank for tail in tails):
        return ()  # others went on after it
    place = f" at {short_place(found.frames[-1])}" if found.frames else ""
    return (f"the {stream} of rank {rank} ends with a traceback: {found.text}{place}",)


def dead_thread(rank: int, tail: LogTail) -> str:
    """Return which thread, task or child process of a rank an exception had ended, by its stderr; empty: none."""
    if tail.stream != "stderr" or not any(each in tail.text for each in _ENDED):
        return ""
    from ftslurm.failures import stderr_witness

    for dead in stderr_witness.dead_threads(tail.text)[-1:]:
        place = f" at {short_place(own_frame(dead.frames))}" if dead.frames else ""
        return f"{dead.thread} of {f'rank {rank}' if rank >= 0 else 'some rank'} died{place}: {dead.text}"
    return ""


def short_place(frame: Frame) -> str:
    """Return ``train.py:7``."""
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"
