"""What failed in one attempt, by its lines (pure).

`finding` has what ended processes, `matching` which rank each was. What happens after Slurm began to end the job is a
reaction. A rank that is not named stays unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.message_line import message_line
from ftslurm.failures.own_code import is_library
from ftslurm.failures.reason import reason
from ftslurm.pattern import pattern
from ftslurm.report.facts import RankError
from ftslurm.report.logs.attempt_log import AttemptLog, of_launcher
from ftslurm.report.logs.dumps import places
from ftslurm.report.logs.end import JobEnd, nodes_of
from ftslurm.report.logs.ends import STEP_CANCELLED
from ftslurm.report.logs.finding import Finder
from ftslurm.report.logs.hung import hung_rank
from ftslurm.report.logs.last_resort import last_resort
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.matching import Matcher
from ftslurm.report.logs.notes import ended_thread, notes_on, stalled_ranks
from ftslurm.report.logs.origins import QUOTE_LIMIT
from ftslurm.report.logs.rank_errors import (
    UNKNOWN,
    has_lost_process,
    has_waited,
    is_cascade,
    is_of_distributed,
    oom_error,
    with_caller,
    with_memory,
)
from ftslurm.report.logs.silence import silence
from ftslurm.report.logs.success import accounted_as_completed, says_zero, tests_passed
from ftslurm.report.wording import RAISED, STALLED
from ftslurm.text import names, ranges

_REACTIONS = ("KeyboardInterrupt", "SystemExit", "SignalException", "SIGTERMException")
_GIVEN = pattern(
    r"\bWORLD_SIZE=\d+\b.{0,200}(?<![A-Z_])RANK=(\d{1,6})\b|(?<![A-Z_])RANK=(\d{1,6})\b.{0,200}\bWORLD_SIZE=\d"
    r"|\bJobEnvironment\(.{1,200}\bglobal_rank=(\d{1,6})"  # of submitit
)


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
    job, notes = _job_end(log, errors), notes_on(log, finder, errors, killed)
    hung = hung_rank(log, errors)
    if hung is not None:
        errors[hung.rank], tails[hung.rank] = hung, log.tail_of(hung.rank)
    if matcher.last_output:
        notes.insert(0, matcher.last_output)
    first_kind = min(errors.values(), key=lambda error: error.order).kind if errors else ""
    if matcher.copies > 1 and first_kind == "exception":
        where = f", on {names(sorted(matcher.nodes))}" if len(matcher.nodes) > 1 else ""
        notes.insert(0, f"{matcher.copies} processes printed this traceback{where}; which ranks is not known of all")
    well = _went_well(log, errors)
    if errors and well:
        by_slurm = accounted_as_completed(log.lines)
        last = log.lines[-1].text.strip()[:200]
        notes.append("Slurm has it as completed" if by_slurm else f"the log's last line states success: {last}")
        errors, tails = {}, {}
    first = min((error.order for error in errors.values()), default=None)
    state = failed_node = None
    if job is not None and job.state == "CANCELLED" and any(number < job.number for number in log.ends.oom):
        job = None  # Slurm itself, at the limit of memory
    if job is not None and (first is None or job.number < first or _follow(log, errors, job)):
        job = replace(job, why="; ".join(text for text in (_why(log, job), _after_stop(errors, job)) if text))
        errors, tails, state = {}, {}, job.state
        failed_node = next(iter(nodes_of(job.node)), None) if job.state == "NODE_FAIL" else None
    elif log.ends.oom or any(end.oom for end in log.ends.processes):
        state = "OUT_OF_MEMORY"
        ended = not _follow_memory(errors) and all(error.signal != "SIGKILL" for error in errors.values())
        notes += [f"later: {each.why}" for each in log.ends.job if each.state == state and ended][:1]
        job = None
    else:
        notes += _later(log, first, job)
        job = None
    if state == "OUT_OF_MEMORY":
        _add_oom(log, errors, tails)
    resort = None if errors or state is not None or well else last_resort(log, finder.late)
    if resort is not None:
        errors[resort.error.rank], tails[resort.error.rank] = resort.error, resort.tail
    errors = {number: with_memory(log, _with_launcher(log, error)) for number, error in errors.items()}
    errors = {number: with_caller(error, finder.callers) for number, error in errors.items()}
    errors, tails = _by_local_rank(log, errors, tails, matcher.named)
    job_id = next((each.job_id for each in log.ends.job if each.job_id), None)
    locals_ = {end.rank: end.local for end in log.ends.processes if end.rank is not None and end.local is not None}
    return Judged(errors, tails, locals_, state, failed_node, job, job_id, tuple(notes), resort is not None)


def _why(log: AttemptLog, job: JobEnd) -> str:
    """Return why a job was ended from outside, and what the log shows of what its ranks did before."""
    if job.state not in ("TIMEOUT", "CANCELLED"):
        return job.why
    stalled = stalled_ranks(log)
    inspected = f"{STALLED}rank {ranges(stalled)} had not joined" if stalled else ""
    stood = (places(log), inspected, ended_thread(log, job), silence(log.lines, job))
    # That the time was over is known; what the ranks did meanwhile is not.
    why = "" if job.state == "TIMEOUT" and any(stood) else job.why
    return "; ".join(text for text in (why, *stood) if text)


def _add_oom(log: AttemptLog, errors: dict[int, RankError], tails: dict[int, str]) -> None:
    """Add the process that was killed for memory, if no failure has a reason of its own."""
    if not _follow_memory(errors):
        return
    error = oom_error(log)
    free = min([error.rank, *(number - 1 for number in errors if number < 0)]) if error.rank < 0 else error.rank
    # What lost the killed process reports it before Slurm does.
    order = min([error.order, *(each.order - 1 for each in errors.values())])
    tails[free] = "" if errors else log.tail(log.lines)
    errors[free] = replace(error, rank=free, order=order)


def _with_launcher(log: AttemptLog, error: RankError) -> RankError:
    """Return the record of a failure of no known rank with what launchers state: the host, or the ends of tasks."""
    if error.rank >= 0:
        return error
    by_ssh = [end for end in log.ends.processes if end.by == "ssh"]
    if error.node is None and len(by_ssh) == 1:
        return replace(error, node=by_ssh[0].node)
    if error.quotes:
        return error
    if error.exit_code in (126, 127):
        its = [end for end in log.ends.processes if end.by == "srun" and end.code == error.exit_code and end.node]
        return replace(error, node=its[0].node, quotes=(its[0].text.strip()[:QUOTE_LIMIT],)) if len(its) == 1 else error
    if error.exception is None or not error.exception.frames:
        return error
    if not of_launcher(error.exception.frames[-1].file):
        return error
    ends = [end.text.strip()[:QUOTE_LIMIT] for end in log.ends.processes if end.by == "srun" and not end.stopped]
    return replace(error, quotes=tuple(ends[:2]))


def _later(log: AttemptLog, first: int | None, job: JobEnd | None) -> list[str]:
    """Return what ended the job after its first failure, in line `first`."""
    if job is not None:
        return [f"later: {job.text.strip()[:200]}"]
    if first is None:
        return []
    # That srun ends a step of which a task has failed is no news.
    ends = (end for end in log.ends.job if end.why and end.why != STEP_CANCELLED and end.number > first)
    return [f"later: {end.why}" for end in ends][:1]


def _follow_memory(errors: Mapping[int, RankError]) -> bool:
    """Whether all failures may follow from a kill for memory: of another process, or by signals before the last one."""
    return all(
        is_cascade(error) or has_lost_process(error) or _lost_pipe(error) or _was_interrupted(error)
        for error in errors.values()
    )


def _was_interrupted(error: RankError) -> bool:
    raised = error.exception.type if error.exception is not None else ""
    return raised == "KeyboardInterrupt" or error.signal in ("SIGINT", "SIGTERM")


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
    log: AttemptLog, errors: dict[int, RankError], tails: dict[int, str], named: Collection[int]
) -> tuple[dict[int, RankError], dict[int, str]]:
    """Return the failures, and the output, with unknown ranks where only the local ones are known for certain."""
    local = log.by_local & errors.keys() - log.printed_ranks() - set(named)
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
    """Whether sacct, or the last line states success: of an exit code without a reason, or by pytest of anything."""
    if accounted_as_completed(log.lines):
        return True
    last = next((line for line in reversed(log.lines) if line.text.strip() and line.text != GAP), None)
    if last is None or last.rank is not None:
        return False
    bare = all(error.kind == "exit" and error.message.startswith("exit code") for error in errors.values())
    launched = any(end.by in ("table", "torchrun") for end in log.ends.processes)
    zero = bare and not launched and not last.text.startswith("+ ") and says_zero(last.text)
    return zero or tests_passed(last.text)


def _ended_before(log: AttemptLog, job: JobEnd) -> bool:
    """Whether ranks had failed, by what was printed in the same file, before a job was ended from outside."""
    part = log.part_of(job.number)
    ended = (end for end in log.ends.processes if not end.stopped and end.code and end.number < job.number)
    return any(log.part_of(end.number) == part for end in ended)


def _after_stop(errors: Mapping[int, RankError], job: JobEnd) -> str:
    """Return what the program itself raised when it was stopped from outside, as where it could not save."""
    for error in sorted(errors.values(), key=lambda each: each.order):
        raised = None if error.exception is None else reason(error.exception)
        if raised is None or error.order < job.number or is_cascade(error) or raised.type in _REACTIONS:
            continue
        if not raised.frames or is_library(raised.frames[-1].file):
            continue
        return f"{RAISED}{raised.type}: {message_line(raised.message)} at {raised.frames[-1].place}"
    return ""


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
    elsewhere = elsewhere and not _ended_before(log, job)
    return job.state == "NODE_FAIL" or (job.state == "CANCELLED" and bool(job.why) and elsewhere)


def _killed_last(errors: Mapping[int, RankError]) -> set[int]:
    """Return the ranks that ended or were killed, without a reason, when all others had waited in vain."""
    killed = {rank for rank, error in errors.items() if error.message in ("SIGKILL", "exit code 1")}
    late = [error.order for error in errors.values() if has_waited(error)]
    parted = late and len(late) + len(killed) == len(errors) and all(errors[rank].order > max(late) for rank in killed)
    return killed if parted else set()
