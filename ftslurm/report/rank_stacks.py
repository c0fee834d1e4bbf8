"""What the triage of a round's stacks needs beside them: ranks that had finished, and calls of functions in C."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping

from ftslurm.dataclasses import replace
from ftslurm.failures.own_code import own_frame
from ftslurm.monitor.faulthandler_text import Frame
from ftslurm.monitor.stack_classifier import is_library
from ftslurm.monitor.stacks_file import RankStacks
from ftslurm.monitor.triage import finished
from ftslurm.pattern import pattern
from ftslurm.report.facts import RankError, RecordSummary, RoundFiles
from ftslurm.sharedfs.bounded_read import Malformed, read_file

PLACES_READ = 64
SCRIPT_LIMIT = 4 * 1024 * 1024
_INNERMOST = pattern(r'\(most recent call first\):\n  File "(/.*)", line (\d{1,9}) in ')
_CALL = pattern(r"([A-Za-z_][\w.]*)\s*\(")
_PLACE = pattern(r"(.+):(\d{1,9})(?: in (.*))?")
_LITERAL = pattern(r"#.*|(['\"]).*?\1")


def of_all_ranks(files: RoundFiles) -> list[RankStacks]:
    """Return the stacks of a round's ranks, with those that had ended with success before; empty if there are none.

    With the exceptions that ranks had recorded by then: what a rank that raised does at its end tells nothing.
    """
    found = dict(files.stacks)
    for node in files.nodes if found else ():
        for worker in node.workers:
            ended = worker.ended_ns is not None and worker.exit_code == 0 and not worker.stopped_by_ftslurm
            known = found.get(worker.rank)
            if known is not None:
                found[worker.rank] = replace(
                    known, raised=_raised(files.errors.get(worker.rank) or worker.error, known)
                )
            if ended and (known is None or known.stacks.problem == "had ended"):
                step = worker.progress.last_step if worker.progress is not None else None
                found[worker.rank] = finished(worker.rank, worker.local_rank or 0, node.node, step)
    return [found[rank] for rank in sorted(found)]


def _raised(record: RankError | RecordSummary | None, stacks: RankStacks) -> tuple[str, Frame | None] | None:
    """Return the type and place of the exception that a rank had recorded, or recorded, when it was to give its stacks.

    Where it gave some, they show whether the script was over. One that gave none must have raised before.
    """
    if record is None or record.kind != "exception":
        return None
    if not stacks.stacks.text and (record.time_ns is None or record.time_ns >= stacks.time_ns):
        return None
    name, where = _exception_of(record)
    place = _PLACE.fullmatch(where or "")
    return (name, Frame(place[1], int(place[2]), place[3] or "") if place is not None else None) if name else None


def _exception_of(record: RankError | RecordSummary) -> tuple[str | None, str | None]:
    """Return the type and the place of the judged exception."""
    if isinstance(record, RecordSummary):
        return record.type, record.where
    exception = record.exception
    if exception is None:
        return None, None
    return exception.type, own_frame(exception.frames).place if exception.frames else None


def calls_of(stacks: Iterable[RankStacks], owners: frozenset[int]) -> Mapping[tuple[str, int], str]:
    """Return the only call in each line of the user's code in which a thread is, by file and line.

    Python's stacks do not show functions in C: `time.sleep`, `lock.acquire`, `loss.item`. Files are read as they are
    now; one that cannot be read, or is another user's, gives no name.
    """
    places: dict[str, set[int]] = {}
    for each in stacks:
        for file, line in _INNERMOST.findall(each.stacks.text):
            if not is_library(file) and (file in places or len(places) < PLACES_READ):
                places.setdefault(file, set()).add(int(line))
    found: dict[tuple[str, int], str] = {}
    for file, lines in places.items():
        source = _lines(file, owners)
        for line in lines:
            name = only_call(source[line - 1]) if 0 < line <= len(source) else None
            if name is not None:
                found[file, line] = name
    return found


def only_call(line: str) -> str | None:
    """Return the name of the only call in a line of Python; None: there is none, or are several."""
    names = [name for name in _CALL.findall(_LITERAL.sub("''", line)) if not keyword.iskeyword(name)]
    return names[0] if len(names) == 1 and not line.lstrip().startswith(("def ", "class ", "@")) else None


def _lines(file: str, owners: frozenset[int]) -> list[str]:
    try:
        data = read_file(file, SCRIPT_LIMIT, owners)
    except Malformed:
        return []
    return data.decode("utf-8", "replace").splitlines() if data is not None else []
