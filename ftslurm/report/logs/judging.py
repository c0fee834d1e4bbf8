"""What failed in one attempt, by its lines (pure).

`finding` has what ended processes, `matching` which rank each was. What happens after Slurm began to end the job is a
reaction. A rank that is not named stays unknown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.closing_lines import goes_on_without
from ftslurm.failures.logged_error import logged_error
from ftslurm.failures.message_line import message_line
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.failures.reason import reason
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord
from ftslurm.report.facts import RankError
from ftslurm.report.logs.attempt_log import OTHERS_LINES, AttemptLog, number_of, of_launcher
from ftslurm.report.logs.dumps import places
from ftslurm.report.logs.end import JobEnd, nodes_of
from ftslurm.report.logs.ends import STEP_CANCELLED
from ftslurm.report.logs.finding import DEATH_SIGNAL, Finder
from ftslurm.report.logs.last_resort import last_resort
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.matching import Matcher
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.origins import OF_RUNTIME, QUOTE_LIMIT, was_survived
from ftslurm.report.logs.rank_errors import (
    DEAD_NODE,
    UNKNOWN,
    has_lost_process,
    has_waited,
    is_cascade,
    is_of_distributed,
    oom_error,
    with_memory,
)
from ftslurm.report.logs.silence import silence
from ftslurm.report.logs.success import says_completed, says_zero, tests_passed, works
from ftslurm.report.logs.tracebacks import Raised, names_rank
from ftslurm.report.wording import STALLED
from ftslurm.text import names, plural, ranges

_DIGITS = pattern(r"\d+")
_MISSING_DIRECTORY = pattern(
    r"error: couldn't chdir to [`'](?P<dir>[^`']{1,400})': (?P<why>[^:]{1,80})(?:: going to (?P<to>\S+))?"
)
_MISSING_RANKS, _MISSING_RANK = pattern(r"^(?:Missing|Stalled) ranks:\s*$"), pattern(r"(\d{1,6})!?: \[")
_MISSING_OF_TENSOR = pattern(r"\S \[missing ranks: (\d{1,6}(?:, ?\d{1,6}){0,63})\]")
_GIVEN = pattern(
    r"\bWORLD_SIZE=\d+\b.{0,200}(?<![A-Z_])RANK=(\d{1,6})\b|(?<![A-Z_])RANK=(\d{1,6})\b.{0,200}\bWORLD_SIZE=\d"
    r"|\bJobEnvironment\(.{1,200}\bglobal_rank=(\d{1,6})"  # of submitit
)
STALLED_SHOWN = 64
_CALL_FAILED = pattern(r"\b\w{3,40} failed: (?:No such file|Permission denied|Connection refused|Cannot |Invalid )")
_OWN_NAME = pattern(r"^[\[(]?[Rr]ank[ =:_-]?\d{1,6}[\])]?[:,|]? ?")


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
        by_resort: whether the failures are what a log without an end is evidence of, see `last_resort`.
    """

    errors: dict[int, RankError]
    tails: dict[int, str]
    locals: dict[int, int]
    state: str | None = None
    failed_node: str | None = None
    job: JobEnd | None = None
    job_id: str | None = None
    notes: tuple[str, ...] = ()
    by_resort: bool = False


def judge(lines: Sequence[Line], *, rank: int | None = None, node: str | None = None) -> Judged:
    """Judge the lines of an attempt.

    Args:
        lines: its lines.
        rank, node: of all lines, where each rank has its own file.
    """
    log = AttemptLog(lines, _given_rank(lines) if rank is None else rank, node)
    finder, matcher = Finder(log), Matcher(log)
    matcher.match(finder.found())
    killed = _killed_last(matcher.errors)
    errors, tails = {rank: each for rank, each in matcher.errors.items() if rank not in killed}, matcher.tails
    job, notes = _job_end(log, errors), _notes(log, finder, errors, killed)
    if matcher.last_output:
        notes.insert(0, matcher.last_output)
    first_kind = min(errors.values(), key=lambda error: error.order).kind if errors else ""
    if matcher.copies > 1 and first_kind == "exception":
        where = f", on {names(sorted(matcher.nodes))}" if len(matcher.nodes) > 1 else ""
        notes.insert(0, f"{matcher.copies} processes printed this traceback{where}; which ranks is not known of all")
    well = _went_well(log, errors)
    if errors and well:
        notes.append(f"the log's last line states success: {log.lines[-1].text.strip()[:200]}")
        errors, tails = {}, {}
    first = min((error.order for error in errors.values()), default=None)
    state = failed_node = None
    if job is not None and job.state == "CANCELLED" and any(number < job.number for number in log.ends.oom):
        job = None  # Slurm itself, at the limit of memory
    if job is not None and (first is None or job.number < first or _follow(log, errors, job)):
        stated = _stated_before(log, job) if job.state == "CANCELLED" and not errors else ""
        errors, tails, state = {}, {}, job.state
        stalled = _stalled(log)
        inspected = f"{STALLED}rank {ranges(stalled)} had not joined" if stalled else ""
        hung = (places(log), inspected, silence(log.lines, job)) if job.state in ("TIMEOUT", "CANCELLED") else ()
        job = replace(
            job, why="; ".join(text for text in (job.why or ("cancelled" if stated else ""), stated, *hung) if text)
        )
        failed_node = next(iter(nodes_of(job.node)), None) if job.state == "NODE_FAIL" else None
    elif log.ends.oom or any(end.oom for end in log.ends.processes):
        state = "OUT_OF_MEMORY"
        job = None
    else:
        if job is not None:
            notes.append(f"later: {job.text.strip()[:200]}")
        elif errors and first is not None:
            # That srun ends a step of which a task has failed is no news.
            ends = (end for end in log.ends.job if end.why and end.why != STEP_CANCELLED and end.number > first)
            later = next(ends, None)
            notes += [f"later: {later.why}"] if later is not None else []
        job = None
    if state == "OUT_OF_MEMORY":
        _add_oom(log, errors, tails)
    resort = None if errors or state is not None or well else last_resort(log, finder.late)
    if resort is not None:
        errors[resort.error.rank], tails[resort.error.rank] = resort.error, resort.tail
    errors = {number: with_memory(log, _with_tasks(log, error)) for number, error in errors.items()}
    errors, tails = _by_local_rank(log, errors, tails)
    job_id = next((each.job_id for each in log.ends.job if each.job_id), None)
    locals_ = {end.rank: end.local for end in log.ends.processes if end.rank is not None and end.local is not None}
    return Judged(errors, tails, locals_, state, failed_node, job, job_id, tuple(notes), resort is not None)


def _stated_before(log: AttemptLog, job: JobEnd) -> str:
    """Return the error that was printed before a job was cancelled, if nothing shows that it was survived."""
    stated = ""
    for line in log.lines[: bisect_left(log.lines, job.number, key=number_of)]:
        if works(line.text):
            stated = ""
        elif not stated and not goes_on_without(line.text):
            text = logged_error(line.text) or (line.text.strip() if _CALL_FAILED.search(line.text) else "")
            stated = text if text and not is_aftermath(line.text) else ""
    return f"stated before: {stated[:200]}" if stated else ""


def _add_oom(log: AttemptLog, errors: dict[int, RankError], tails: dict[int, str]) -> None:
    """Add the process that was killed for memory, if no failure has a reason of its own."""
    if not all(is_cascade(error) or has_lost_process(error) or _lost_pipe(error) for error in errors.values()):
        return
    error = oom_error(log)
    free = min([error.rank, *(number - 1 for number in errors if number < 0)]) if error.rank < 0 else error.rank
    # What lost the killed process reports it before Slurm does.
    order = min([error.order, *(each.order - 1 for each in errors.values())])
    tails[free] = "" if errors else log.tail(log.lines)
    errors[free] = replace(error, rank=free, order=order)


def _with_tasks(log: AttemptLog, error: RankError) -> RankError:
    """Return the record of a launcher's own failure, of no rank, with what srun states on its tasks."""
    if error.rank >= 0 or error.quotes or error.exception is None or not error.exception.frames:
        return error
    if not of_launcher(error.exception.frames[-1].file):
        return error
    ends = [end.text.strip()[:QUOTE_LIMIT] for end in log.ends.processes if end.by == "srun" and not end.stopped]
    return replace(error, quotes=tuple(ends[:2]))


def _lost_pipe(error: RankError) -> bool:
    """Whether a failure is the end of a pipe or connection, as to a process that was killed."""
    return error.exception is not None and error.exception.type in ("EOFError", "BrokenPipeError")


def _given_rank(lines: Sequence[Line]) -> int | None:
    """Return the rank that a process prints of its environment, if all lines are of one; None: not known."""
    if any((line.rank, line.task, line.local) != (None, None, None) or line.part for line in lines):
        return None
    given = {int(found[1] or found[2] or found[3]) for line in lines if (found := _GIVEN.search(line.text)) is not None}
    return given.pop() if len(given) == 1 else None


def _by_local_rank(
    log: AttemptLog, errors: dict[int, RankError], tails: dict[int, str]
) -> tuple[dict[int, RankError], dict[int, str]]:
    """Return the failures, and the output, with unknown ranks where only the local ones are known for certain."""
    local = log.by_local & errors.keys() - log.printed_ranks()
    if not local or log.has_one_node():
        return errors, tails
    free = min([UNKNOWN + 1, *errors]) - 1
    number = {rank: free - i for i, rank in enumerate(sorted(local))}
    moved = {
        number.get(rank, rank): replace(error, rank=number[rank], local_rank=rank) if rank in number else error
        for rank, error in errors.items()
    }
    return moved, {number.get(rank, rank): tail for rank, tail in tails.items()}


def _job_end(log: AttemptLog, errors: Mapping[int, RankError]) -> JobEnd | None:
    """Return the first statement on the job's end; that on a step without a reason only if nothing failed."""
    whole = [end for end in log.ends.job if end.whole]
    failures = [end for end in whole if end.state == "NODE_FAIL"]
    if failures:
        named = [end for end in failures if end.node]
        return replace((named or failures)[0], number=min(end.number for end in whole))
    if whole:
        return whole[0]
    ended = [end for end in log.ends.processes if not end.stopped and end.code != 0]
    if not log.ends.job:
        return None
    job = log.ends.job[0]
    return job if (not errors and not ended) or (job.why and _follow(log, errors, job)) else None


def _went_well(log: AttemptLog, errors: Mapping[int, RankError]) -> bool:
    """Whether the last line states success: of an exit code without a reason, or by pytest of anything."""
    last = next((line for line in reversed(log.lines) if line.text.strip() and line.text != GAP), None)
    if last is None or last.rank is not None:
        return False
    bare = all(error.kind == "exit" and error.message.startswith("exit code") for error in errors.values())
    launched = any(end.by in ("table", "torchrun") for end in log.ends.processes)
    zero = bare and not launched and not last.text.startswith("+ ") and says_zero(last.text)
    return zero or tests_passed(last.text)


def _follow(log: AttemptLog, errors: Mapping[int, RankError], job: JobEnd) -> bool:
    """Whether all failures follow from a node's: their connections broke before Slurm noticed it.

    Or from a launcher's, which was stopped from outside by another file, of which no order is known.
    """
    if job.state == "NODE_FAIL" and job.node and all(map(is_of_distributed, errors.values())):
        # Of the network, on the nodes that did not fail.
        names_ = nodes_of(job.node)
        return not any(error.node in names_ for error in errors.values())
    # A rank of which only the exit code is known tells nothing beside one that lost the node.
    bare = [error for error in errors.values() if job.state == "NODE_FAIL" and error.message.startswith("exit code ")]
    if not all(is_cascade(error) for error in errors.values() if error not in bare or len(bare) == len(errors)):
        return False
    elsewhere = all(log.part_of(error.order) != log.part_of(job.number) for error in errors.values())
    return job.state == "NODE_FAIL" or (job.state == "CANCELLED" and bool(job.why) and elsewhere)


def _killed_last(errors: Mapping[int, RankError]) -> set[int]:
    """Return the ranks that ended or were killed, without a reason, when all others had waited in vain."""
    killed = {rank for rank, error in errors.items() if error.message in ("SIGKILL", "exit code 1")}
    late = [error.order for error in errors.values() if has_waited(error)]
    parted = late and len(late) + len(killed) == len(errors) and all(errors[rank].order > max(late) for rank in killed)
    return killed if parted else set()


def _notes(log: AttemptLog, finder: Finder, errors: Mapping[int, RankError], killed: set[int]) -> list[str]:
    """Return what a reader should know beside the failures."""
    others = [each for each in log.ends.kernel if each.kind not in ("cgroup", "host")]
    notes = [f"kernel: {each.text[:200]}" for each in others[:3]]
    signalled = next((line for line in log.lines if DEATH_SIGNAL.search(line.text)), None)
    if signalled is not None and not errors:
        notes.append(f"stopped from outside: {signalled.text.strip()[:200]}")
    stopped = {rank for end in log.ends.processes if end.stopped for rank in log.ranks_of(end)} - errors.keys()
    stopped |= killed
    if errors and stopped and len(stopped) < len(errors) and all(has_waited(error) for error in errors.values()):
        text = f"rank {ranges(stopped)} had not failed when it was ended: the others may have waited for it"
        notes.append(f"{text}{_printed_last(log, stopped)}")
    late = log.printed_ranks() - {rank for rank, error in errors.items() if timeout_in(error.message) is not None}
    # Where the log ends before the ranks do, a watchdog may still have waited to speak.
    late = late - log.noticed_ranks() if log.ends.processes or log.ends.job else set()
    if errors and not late and all(timeout_in(error.message) is not None for error in errors.values()):
        late = set(range(max(errors))) - errors.keys()
    if errors and len(late) * 2 <= len(errors) and not late & errors.keys():
        text = f"rank {ranges(late)} printed no time-out of a collective: look there first{_printed_last(log, late)}"
        notes += [text] if late else []
    if errors and (stalled := _stalled(log) - errors.keys()):
        notes.append(f"rank {ranges(stalled)} had not joined, by Horovod's inspector: look there first")
    if errors and all(is_cascade(error) for error in errors.values()):
        # Not all versions of torchrun have those in their tables that they stop.
        listed = sum(end.by == "table" and end.stopped for end in log.ends.processes)
        signalled_ranks = sum("closing signal" in line.text for line in log.lines) > listed
        notes += _finished(log, errors) or ([] if stopped or signalled_ranks else _not_in_table(log, errors))
    if errors and (earlier := _earlier_program(finder, errors)) is not None:
        notes.append(f"an earlier program of the job had failed: {_first_line(earlier)}{_place(earlier)}")
    dead = next((found for line in log.lines if (found := DEAD_NODE.search(line.text))), None)
    notes += [f"Ray: node {dead['node']} was marked dead: {dead['why']}"] if dead is not None and errors else []
    survived = [end for end in log.ends.processes if was_survived(log, end)]
    if survived and not errors:
        notes.append(f"not known to have ended a rank, because output follows: {survived[0].text.strip()[:200]}")
    named = any("working directory" in error.message for error in errors.values())
    if (
        errors
        and not named
        and (moved := next((x for line in log.lines if (x := _MISSING_DIRECTORY.search(line.text))), None))
    ):
        where = f": it ran in {moved['to']}" if moved["to"] else ""
        notes.append(f"the working directory {moved['dir']} could not be entered ({moved['why']}){where}")
    without_reason = bool(errors) and all(error.kind == "exit" for error in errors.values())
    perhaps = finder.doubtful or (finder.distant if without_reason else [])
    if perhaps and (without_reason or not errors):
        last = perhaps[-1]
        count = log.between(last.end, log.lines[-1].number + 1)
        follow = plural(count, "line") if count <= OTHERS_LINES else "many lines"
        notes.append(
            f"not known to have ended a rank, because {follow} of output follow: {_first_line(last)}{_place(last)}"
        )
    return notes


def _printed_last(log: AttemptLog, ranks: set[int]) -> str:
    """Return the last line of the only one of these ranks, if it is none of progress."""
    own = [line for line in log.lines if _rank_named(log, line) in ranks and line.text.strip()]
    own = [line for line in own if not OF_RUNTIME.search(line.text[:QUOTE_LIMIT])]
    if len(ranks) != 1 or not own:
        return ""
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


def _stalled(log: AttemptLog) -> set[int]:
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


def _earlier_program(finder: Finder, errors: Mapping[int, RankError]) -> Raised | None:
    """Return the last exception of another script than those that failed, before these; None: there is none."""
    scripts = {_script(error.exception) for error in errors.values() if error.exception is not None} - {""}
    first = min(error.order for error in errors.values())
    before = [each for each in finder.distant if each.end < first and _script(each.exception)]
    return before[-1] if scripts and before and _script(before[-1].exception) not in scripts else None


def _script(exception: ExceptionRecord) -> str:
    """Return the script that a traceback begins with; empty: none."""
    first = next(iter(exception.frames), None)
    return first.file if first is not None and first.function == "<module>" else ""


def _place(raised: Raised) -> str:
    frames = raised.exception.frames
    return f" at {frames[-1].file}:{frames[-1].line}" if frames else ""


def _first_line(raised: Raised) -> str:
    exception = reason(raised.exception)
    return f"{exception.type}: {message_line(exception.message)}"[:200]
