"""What a reader should know beside the failures in a log: ranks that had not failed, what was survived (pure)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from ftslurm.failures.message_line import message_line
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.failures.own_code import own_frame
from ftslurm.failures.reason import reason
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord
from ftslurm.report.facts import RankError
from ftslurm.report.logs.attempt_log import BAR, OTHERS_LINES, AttemptLog, number_of
from ftslurm.report.logs.dumps import place_of
from ftslurm.report.logs.end import JobEnd
from ftslurm.report.logs.finding import DEATH_SIGNAL, Finder
from ftslurm.report.logs.hung import hung_rank, late_ranks
from ftslurm.report.logs.lines import Line
from ftslurm.report.logs.origins import OF_RUNTIME, QUOTE_LIMIT, was_survived
from ftslurm.report.logs.rank_errors import DEAD_NODE, has_waited, is_cascade
from ftslurm.report.logs.reasons import MISSING_DIRECTORY
from ftslurm.report.logs.success import says_completed
from ftslurm.report.logs.tracebacks import Raised, names_rank
from ftslurm.report.wording import THREAD
from ftslurm.text import plural, ranges

_DIGITS = pattern(r"\d+")
_MISSING_RANKS, _MISSING_RANK = pattern(r"^(?:Missing|Stalled) ranks:\s*$"), pattern(r"(\d{1,6})!?: \[")
_MISSING_OF_TENSOR = pattern(r"\S \[missing ranks: (\d{1,6}(?:, ?\d{1,6}){0,63})\]")
STALLED_SHOWN = 64
STALL_LINES = 20
"""Lines that a program prints at most after the end of a thread that it then waits for."""
# Of torch's report on a desync (TORCH_NCCL_DESYNC_DEBUG).
_DESYNCED = pattern(
    r"\s*- \[(?P<ranks>\d{1,6}(?:, ?\d{1,6}){0,63})\] "
    r"(?P<what>(?:joined but didn't finish|finished) collective #\d{1,12}(?:, but didn't join collective #\d{1,12})?)"
)
_NEVER_JOINED = pattern(
    r"ranks \[(?P<ranks>\d{1,6}(?:, ?\d{1,6}){0,63})\] are the lagging ranks that caused this timeout"
)
_EVENT_OF_FABRIC = pattern(
    r"^(?P<host>[\w.-]{1,80}):\d+:\d+ .{0,60}NCCL WARN (?P<text>NET/IB ?: (?:\S{1,40} )?(?:Got )?async"
    r" (?:\w+ )?event(?! ?: ?(?:GID|LID|SM|client))"
    r".{1,80})"
)
_NO_COMMAND = pattern(
    r"(?:^|/)(?P<script>[\w.-]{1,80}): line (?P<line>\d{1,6}): (?P<option>--?[A-Za-z][\w-]{0,60}).{0,80}"
    r": command not found$"
)
_THREAD = pattern(r"Exception in thread (.{1,80}?):?\s*$")
_DEAD_THREAD = pattern(r"(?i)\bthread\b.{0,60}\b(?:dead|died|not alive|has (?:ended|failed|stopped|crashed))\b")
_OVER_BUDGET = pattern(r"\bWorker \S{1,80} .{0,40}?(exceeded \d{1,3}% memory budget)")
_NOT_FOUND = pattern(
    r"(?:^|[/\s])[\w./-]{0,200}: line \d{1,6}: (?:module|ml|conda|mamba|micromamba|pyenv|spack|source|activate|nvm)\b"
    r".{0,80}: (?:command not found|No such file or directory)$|(?:^|: )\S{1,200}/activate: No such file or directory$"
    r"|^(?:module|ml|conda|mamba|spack): (?:command )?not found$"
    r"|Unable to locate a modulefile for|The following module\(s\) are unknown:|CondaError: Run 'conda init'"
    r"|CommandNotFoundError: Your shell has not been|EnvironmentNameNotFound"
)
_OF_ENVIRONMENT = frozenset(("SyntaxError", "ImportError", "ModuleNotFoundError", "IndentationError"))
_OWN_NAME = pattern(r"^[\[(]?[Rr]ank[ =:_-]?\d{1,6}[\])]?[:,|]? ?")


def notes_on(log: AttemptLog, finder: Finder, errors: Mapping[int, RankError], killed: set[int]) -> list[str]:
    """Return the notes on an attempt, in the order of their worth.

    Args:
        log: its lines.
        finder: of its evidence.
        errors: the failures, by rank.
        killed: ranks that ended without a reason only after all others had waited in vain.
    """
    others = [each for each in log.ends.kernel if each.kind not in ("cgroup", "host")]
    notes = [f"kernel: {each.text[:200]}" for each in others[:3]]
    signalled = next((line for line in log.lines if DEATH_SIGNAL.search(line.text)), None)
    if signalled is not None and not errors:
        notes.append(f"stopped from outside: {signalled.text.strip()[:200]}")
    if errors:
        notes += _on_others(log, errors, killed)
        if (earlier := _earlier_program(log, finder, errors)) is not None:
            of = (
                "an earlier program of the job"
                if _script(earlier.exception)
                else f"another program ({earlier.line.node})"
            )
            notes.append(f"{of} had failed: {_first_line(earlier)}{_place(earlier)}")
        dead = next((found for line in log.lines if (found := DEAD_NODE.search(line.text))), None)
        notes += [f"Ray: node {dead['node']} was marked dead: {dead['why']}"] if dead is not None else []
        notes += _on_directory(log, errors) + _on_fabric(log, errors) + _on_memory(log, errors) + _on_shell(log, errors)
        notes += _on_threads(log, errors)
    refused = all(error.exception is None or error.exception.type == "SystemExit" for error in errors.values())
    return notes + (_on_broken_lines(log) if errors and refused else []) + _on_survived(log, finder, errors)


def _on_others(log: AttemptLog, errors: Mapping[int, RankError], killed: set[int]) -> list[str]:
    """Return what is known of the ranks that did not fail, for which those that failed may have waited."""
    notes: list[str] = []
    stopped = {rank for end in log.ends.processes if end.stopped for rank in log.ranks_of(end)} - errors.keys()
    stopped |= killed
    waited = {rank for rank, error in errors.items() if timeout_in(error.message) is not None}
    late = late_ranks(log, errors)
    was_awaited = bool(stopped) and len(stopped) < len(errors) and all(map(has_waited, errors.values()))
    if was_awaited and late != stopped:
        text = f"rank {ranges(stopped)} had not failed when it was ended: the others may have waited for it"
        notes.append(f"{text}{_printed_last(log, stopped)}")
    if late and hung_rank(log, errors) is None:
        text = f"rank {ranges(late)} printed no time-out of a collective: look there first"
        notes.append(f"{text}{_printed_last(log, late)}")
    if waited and (desynced := _desynced(log)):
        notes.insert(0, f"{desynced}, by torch's report on the desync: look there first")
    if stalled := stalled_ranks(log) - errors.keys():
        notes.append(f"rank {ranges(stalled)} had not joined, by Horovod's inspector: look there first")
    if all(is_cascade(error) for error in errors.values()):
        # Not all versions of torchrun have those in their tables that they stop.
        listed = sum(end.by == "table" and end.stopped for end in log.ends.processes)
        signalled = sum("closing signal" in line.text for line in log.lines) > listed
        notes += _finished(log, errors) or ([] if stopped or signalled else _not_in_table(log, errors))
    return notes


def _on_directory(log: AttemptLog, errors: Mapping[int, RankError]) -> list[str]:
    """Return that the working directory could not be entered, unless a failure says so."""
    if any("working directory" in error.message for error in errors.values()):
        return []
    moved = next((found for line in log.lines if (found := MISSING_DIRECTORY.search(line.text))), None)
    if moved is None:
        return []
    where = f": it ran in {moved['to']}" if moved["to"] else ""
    return [f"the working directory {moved['dir']} could not be entered ({moved['why']}){where}"]


def _on_broken_lines(log: AttemptLog) -> list[str]:
    """Return that the shell took an option for a command, if it did: its line is no continuation of that before it."""
    found = next((found for line in log.lines if (found := _NO_COMMAND.search(line.text)) is not None), None)
    if found is None:
        return []
    return [
        f"the shell took {found['option']} in line {found['line']} of {found['script']} for a command: the line before"
        " it must end with a backslash and nothing behind it (or a variable before the option is empty)"
    ]


def _on_memory(log: AttemptLog, errors: Mapping[int, RankError]) -> list[str]:
    """Return why Dask ended the workers whose loss failed a task."""
    if not any(error.exception is not None and error.exception.type == "KilledWorker" for error in errors.values()):
        return []
    found = [each[1] for line in log.lines if (each := _OVER_BUDGET.search(line.text)) is not None]
    return [f"{plural(len(found), 'worker')} had {found[-1]} and been ended for it"] if found else []


def _on_threads(log: AttemptLog, errors: Mapping[int, RankError]) -> list[str]:
    """Return what had ended the thread of which a failure says that it is dead."""
    first = min(errors.values(), key=lambda error: error.order)
    text = first.exception.message if first.exception is not None else first.message
    if _DEAD_THREAD.search(text) is None:
        return []
    ended = [each for _, raised in log.raised for each in raised if each.end < first.order and _thread_of(log, each)]
    return (
        [f"thread {_thread_of(log, ended[-1])} had ended: {_first_line(ended[-1])}{_own_place(ended[-1])}"]
        if ended
        else []
    )


def _thread_of(log: AttemptLog, raised: Raised) -> str:
    """Return the name of the thread that an exception ended; empty: it ended none."""
    at = bisect_left(log.lines, raised.begin, key=number_of)
    named = _THREAD.search(log.lines[at - 1].text) if at else None
    return named[1] if named is not None else ""


def _on_shell(log: AttemptLog, errors: Mapping[int, RankError]) -> list[str]:
    """Return that the shell had not found what sets the environment up, where a program could not begin in it."""
    raised = [error.exception.type for error in errors.values() if error.exception is not None]
    if not raised or not set(raised) <= _OF_ENVIRONMENT:
        return []
    first = min(error.order for error in errors.values())
    at = next((i for i, line in enumerate(log.lines) if line.number < first and _NOT_FOUND.search(line.text)), None)
    if at is None:
        return []
    missing = log.lines[at].text.strip()
    if missing.endswith(":"):
        missing += f" {log.lines[at + 1].text.strip()}"
    return [f'the environment may be another one: "{missing[-100:]}" above']


def _on_survived(log: AttemptLog, finder: Finder, errors: Mapping[int, RankError]) -> list[str]:
    """Return what was perhaps no end of a rank, where nothing better is known."""
    notes: list[str] = []
    survived = [end for end in log.ends.processes if was_survived(log, end)]
    if survived and not errors and not log.ends.oom:
        notes.append(f"not known to have ended a rank, because output follows: {survived[0].text.strip()[:200]}")
    without_reason = bool(errors) and all(error.kind == "exit" for error in errors.values())
    perhaps = finder.doubtful or (finder.distant if without_reason else [])
    if perhaps and (without_reason or not errors):
        last = perhaps[-1]
        count = log.between(last.end, log.lines[-1].number + 1)
        follow = plural(count, "line") if count <= OTHERS_LINES else "many lines"
        what = f"{_first_line(last)}{_place(last)}"
        notes.append(f"not known to have ended a rank, because {follow} of output follow: {what}")
    return notes


def _printed_last(log: AttemptLog, ranks: set[int]) -> str:
    """Return the last line of the only one of these ranks, if it is none of progress."""
    if len(ranks) != 1:
        return ""
    if place := place_of(log, next(iter(ranks))):
        return f"; its stack: {place}"
    own = [line for line in log.lines if _rank_named(log, line) in ranks and line.text.strip()]
    own = [line for line in own if not OF_RUNTIME.search(line.text[:QUOTE_LIMIT]) and "NCCL INFO" not in line.text]
    if not own:
        bars = [line.text for line in log.lines if line.rank is None and line.task is None and BAR.search(line.text)]
        return f'; a rank without a label printed "{bars[-1].strip()[:100]}"' if bars else ""
    # What others print, too, is the progress of all.
    form = _DIGITS.sub("#", own[-1].text)
    if any(_DIGITS.sub("#", line.text) == form and _rank_named(log, line) not in ranks for line in log.lines):
        return ""
    return f'; it had printed last: "{_OWN_NAME.sub("", own[-1].text.strip(), count=1)[:100]}"'


def _not_in_table(log: AttemptLog, errors: Mapping[int, RankError]) -> list[str]:
    """Return the ranks that printed, but that torchrun's table of all that failed or were stopped has not."""
    table = {end.rank for end in log.ends.processes if end.by == "table"} - {None}
    hosts = {end.node for end in log.ends.processes if end.by == "table"}
    tasks = {rank for end in log.ends.processes if end.by == "srun" for rank in log.ranks_of(end)}
    printed = {rank for line in log.lines if (rank := _rank_named(log, line)) is not None}
    if table:
        printed |= set(range(max(rank for rank in table if rank is not None)))
    known = table or (set() if log.ends.job else tasks)
    ended = printed - known - errors.keys()
    if not known or not ended or len(hosts) > 1:
        return []
    it, be = ("it", "is") if len(ended) == 1 else ("they", "are")
    what = "in torchrun's table of those" if table else "among srun's tasks"
    text = f"rank {ranges(ended)} {be} not {what} that failed: {it} may have ended without one"
    return [f"{text}{_printed_last(log, ended)}"]


def _rank_named(log: AttemptLog, line: Line) -> int | None:
    """Return the rank of a line, by its label or its first words."""
    rank = log.rank_of(line)
    return names_rank(line.text[:60]) if rank is None and line.number not in log.covered else rank


def _desynced(log: AttemptLog) -> str:
    """Return which ranks torch's report on a desync names, and what it tells of them; empty: there is none."""
    for line in reversed(log.lines):
        if (lagging := _NEVER_JOINED.search(line.text)) is not None:
            return f"{_ranks(lagging['ranks'])} never joined a collective"
        if (found := _DESYNCED.match(line.text)) is not None:
            return f"{_ranks(found['ranks'])} {found['what']}"
    return ""


def _ranks(numbers: str) -> str:
    ranks = sorted(map(int, numbers.split(",")))
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"


def _on_fabric(log: AttemptLog, errors: Mapping[int, RankError]) -> list[str]:
    """Return what adapters, of any node, had reported by themselves where NCCL's connections failed."""
    if not any(error.signal == "SIGABRT" or "NCCL" in error.message for error in errors.values()):
        return []
    found = (_EVENT_OF_FABRIC.match(line.text) for line in log.lines if "NET/IB" in line.text)
    return list(dict.fromkeys(f"{each['host']}: {each['text']}" for each in found if each is not None))[:2]


def ended_thread(log: AttemptLog, end: JobEnd) -> str:
    """Return the exception that ended a thread shortly before a program printed nothing more; empty: there is none.

    Args:
        log: the lines.
        end: the job's, from outside.
    """
    for _, raised in log.raised:
        for each in reversed(raised):
            thread = _thread_of(log, each)
            if not thread or each.end > end.number:
                continue
            count = log.between(each.end, end.number)
            if count <= STALL_LINES:
                return f"{THREAD}{thread}, {_first_line(each)}{_own_place(each)}; {plural(count, 'line')} followed"
    return ""


def stalled_ranks(log: AttemptLog) -> set[int]:
    """Return the ranks that Horovod's stall inspector named last."""
    named = [tensor[1] for line in log.lines if (tensor := _MISSING_OF_TENSOR.search(line.text)) is not None]
    at = max((i for i, line in enumerate(log.lines) if _MISSING_RANKS.search(line.text)), default=None)
    if at is None:
        return set(map(int, named[-1].split(","))) if named else set()
    found = (_MISSING_RANK.match(line.text) for line in log.lines[at + 1 : at + 1 + STALLED_SHOWN])
    return {int(each[1]) for each in found if each is not None}


def _finished(log: AttemptLog, errors: Mapping[int, RankError]) -> list[str]:
    """Return what ranks printed that had done their work, while the others lost their connections."""
    found: dict[int, str] = {}
    for line in log.lines:
        rank = line.rank if line.rank is not None else names_rank(line.text[:60])
        if rank is not None and rank not in errors and says_completed(_OWN_NAME.sub("", line.text, count=1)):
            found[rank] = line.text.strip()[:120]
    return [f'rank {rank} had finished: "{text}"' for rank, text in sorted(found.items())[:2]]


def _earlier_program(log: AttemptLog, finder: Finder, errors: Mapping[int, RankError]) -> Raised | None:
    """Return the last exception of another program than those that failed, before these; None: there is none.

    It began with another script, or its lines have the name of another program, and not of a node, which has a number.
    """
    scripts = {_script(error.exception) for error in errors.values() if error.exception is not None} - {""}
    first = min(error.order for error in errors.values())
    before = [each for each in finder.distant if each.end < first]
    orders = {error.order for error in errors.values()}
    numbered = any(line.node is not None and any(map(str.isdigit, line.node)) for line in log.lines)
    names = {line.node for line in log.lines if line.number in orders}
    for each in reversed(before):
        script, name = _script(each.exception), each.line.node
        if script:
            return each if scripts and script not in scripts else None
        if name is not None and not numbered and None not in names and name not in names:
            return each
    return None


def _script(exception: ExceptionRecord) -> str:
    """Return the script that a traceback begins with; empty: none."""
    first = next(iter(exception.frames), None)
    return first.file if first is not None and first.function == "<module>" else ""


def _place(raised: Raised) -> str:
    frames = raised.exception.frames
    return f" at {frames[-1].file}:{frames[-1].line}" if frames else ""


def _own_place(raised: Raised) -> str:
    frame = own_frame(raised.exception.frames) if raised.exception.frames else None
    return f" at {frame.place}" if frame is not None else ""


def _first_line(raised: Raised) -> str:
    exception = reason(raised.exception)
    return f"{exception.type}: {message_line(exception.message)}"[:200]
