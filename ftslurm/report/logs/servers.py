"""Logs of servers beside a job's output, where its ranks did not reach a server: one of them may have failed before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ftslurm.failures.message_line import message_line
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord
from ftslurm.report.facts import Problem, RankError
from ftslurm.report.logs.attempt_log import AttemptLog
from ftslurm.report.logs.families import is_of_server
from ftslurm.report.logs.files import Output, owners_of, read_outputs, unread_files
from ftslurm.report.logs.finding import refers
from ftslurm.report.logs.judging import judge
from ftslurm.report.logs.lines import Line
from ftslurm.report.logs.rank_errors import is_cascade
from ftslurm.text import cut_middle

READ = 2
TEXT_LIMIT = 200
SHUTDOWN_LINES = 12
"""Lines that a server prints at most from its failure to its end."""
_NOT_REACHED = pattern(
    r"Connection ?(?:Refused)?(?:Error)?\b|[Cc]onnection refused|Max retries exceeded|ConnectError"
    r"|(?:not|n't) be reached"
)


def failed_servers(folder: Path, those: Sequence[Output], errors: Iterable[RankError]) -> list[str]:
    """Return the failures in files of servers that were not read as the job's, if its ranks did not reach a server.

    Args:
        folder: the directory.
        those: the files that were read as the job's.
        errors: the failures of its last attempt.
    """
    known = list(errors)
    if not known or not all(_NOT_REACHED.search(_text(error)) or is_cascade(error) for error in known):
        return []
    paths = [folder / name for name in unread_files(folder, those) if is_of_server(name)][:READ]
    return [text for path in paths if (text := _failure_in(path))]


def _failure_in(path: Path) -> str:
    problems: list[Problem] = []
    lines, _ = read_outputs([Output(path)], owners_of([path]), problems)
    errors = sorted(judge(lines).errors.values(), key=lambda error: error.order) if lines else []
    text = _text(errors[0]) if errors else _logged_last(lines)
    return f"the server's log ({path.name}) ends with a failure: {text}" if text else ""


def _logged_last(lines: Sequence[Line]) -> str:
    """Return the exception that a server logged last, before it shut down in order; empty: it goes on after it."""
    log = AttemptLog(lines, None, None)
    known = [each for _, raised in log.raised for each in raised if not each.ignored and not refers(each.headline)]
    last = max(known, key=lambda each: each.end, default=None)
    if last is None or log.between(last.end, lines[-1].number + 1) > SHUTDOWN_LINES:
        return ""
    return cut_middle(_line(last.exception), TEXT_LIMIT)


def _text(error: RankError) -> str:
    raised = error.exception
    text = error.message if raised is None else _line(raised)
    return cut_middle(text.strip(), TEXT_LIMIT)


def _line(raised: ExceptionRecord) -> str:
    return f"{raised.type}: {message_line(raised.message)}"
