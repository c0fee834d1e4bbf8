"""A worker that failed by itself: its facts from agent, error record and state (pure); see also `judged_worker`."""

from __future__ import annotations

import re

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.causes import ROWS, Cause, HostResources
from ftslurm.failures.own_code import own_frame
from ftslurm.failures.record_summary import SIMILAR
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord, Frame
from ftslurm.report.facts import Failure, RankError, RecordSummary, RoundNode, Worker

UNJUDGED = ROWS[-1]
_TYPED = pattern(r"([A-Za-z_][\w.]{0,100}): ?(.*)", re.DOTALL)
_FRAME = pattern(r'^ *File "([^"\n]{1,4096})", line (\d{1,9})(?:,? in (\S{1,200}))?', re.MULTILINE)

NO_END = "how it ended is not in the log"
"""The description of an end of which only the output is known."""


@dataclass(frozen=True)
class FailedWorker:
    """A failed worker with all its facts.

    ``lines`` are the evidence as text; ``alone`` is the same as judged without its output or that of its child process,
    which is not read of all ranks that fail alike; None: that adds nothing.
    """

    rank: int
    node: str
    host: str | None
    local_rank: int | None
    time_ns: int | None
    kind: str
    exit_code: int | None
    signal: str | None
    core_dumped: bool
    step: int | None
    argv: tuple[str, ...]
    exception: ExceptionRecord | None
    frames: tuple[Frame, ...]
    traceback: str | None
    stacks: str | None
    evidence: tuple[str, ...]
    cause: Cause
    what: str
    life_s: float | None = None
    host_resources: HostResources | None = None
    sections: tuple[tuple[str, float], ...] = ()
    cuda: tuple[tuple[str, int], ...] = ()
    lines: tuple[str, ...] = ()
    scheduler: str = ""
    exit_message: str = ""
    nccl_warnings: tuple[str, ...] = ()
    order: int = 0
    quotes: tuple[str, ...] = ()
    alone: FailedWorker | None = None


def failed_worker_of(
    rank: int,
    observed: tuple[RoundNode, Worker] | None,
    error: RankError | None,
    summary: Failure | None,
    scheduler: str,
) -> FailedWorker:
    """Merge the facts about a failed worker, before judging.

    Args:
        rank: its rank.
        observed: its agent's record of it.
        error: its error record.
        summary: its failure's summary in the node record or the state.
        scheduler: the scheduler's state of the job, if that ended with it.
    """
    node, worker = observed or (None, None)
    kind = _kind(worker, error, summary)
    exception = _exception(kind, error, summary)
    stacks = error.stacks if error else None
    # For a crash, the record has the stacks in the place of the traceback, for readers of torch's format.
    traceback = error.traceback if error and error.traceback != stacks else None
    known = [x for x in (worker, error, summary) if x is not None]
    record = error is not None and error.whole
    step = _first_known(
        error.step if error else None,
        worker.progress.last_step if worker and worker.progress else None,
        summary.step if summary else None,
    )
    return FailedWorker(
        rank=rank,
        node=(node.node if node else None) or (error and error.node) or (summary.node if summary else None) or "?",
        host=(node.host if node else None) or (error.host if error else None),
        local_rank=_first_known(*[x.local_rank for x in known]),
        time_ns=_time_ns(exception is not None, worker, error, summary),
        kind=kind,
        exit_code=_first_known(*[x.exit_code for x in known]),
        signal=(worker and worker.signal) or (error and error.signal) or (summary.signal if summary else None),
        core_dumped=worker is not None and worker.core_dumped,
        step=step,
        argv=error.argv if error else (),
        exception=exception,
        frames=recorded_frames(exception, traceback, stacks),
        traceback=traceback,
        stacks=stacks,
        evidence=tuple(n for n, x in (("round-node", worker), ("error.json", record), ("summary", summary)) if x),
        cause=UNJUDGED,
        scheduler=scheduler,
        what=(error.message if error else "") or (summary.message if summary else ""),
        life_s=_life_s(worker),
        host_resources=error.host_resources if error else None,
        sections=error.sections if error else (),
        cuda=error.cuda if error else (),
        exit_message=error.exit_message if error else "",
        order=error.order if error else 0,
        quotes=error.quotes if error else (),
    )


def _kind(worker: Worker | None, error: RankError | None, summary: Failure | None) -> str:
    if error is not None and error.kind == "exception":
        return "exception"
    if worker is not None and worker.signal is not None:
        return "signal"
    if worker is not None and worker.failed and worker.pid is None and (error is None or error.whole):
        return "spawn"
    if error is not None:
        return error.kind
    if summary is not None and (worker is None or worker.exit_code is None or summary.kind in ("exception", "spawn")):
        return summary.kind
    return "exit"


def _time_ns(raised: bool, worker: Worker | None, error: RankError | None, summary: Failure | None) -> int | None:
    # An exception's time is when it was caught; the process may have needed seconds more to end.
    error_ns = error.time_ns if error else None
    ended_ns = worker.ended_ns if worker else None
    summary_ns = summary.time_ns if summary else None
    if raised:
        return _first_known(error_ns, summary_ns, ended_ns)
    return _first_known(ended_ns, error_ns, summary_ns)


def _exception(kind: str, error: RankError | None, summary: Failure | None) -> ExceptionRecord | None:
    if error is not None and error.exception is not None:
        return error.exception
    if kind != "exception":
        return None
    message = (error.message if error else "") or (summary.message if summary else "")
    match = _TYPED.match(message)
    if match is None:
        return ExceptionRecord("Exception", message=message) if message else None
    module, _, name = match[1].rpartition(".")
    return ExceptionRecord(name, module, match[2])


def recorded_frames(exception: ExceptionRecord | None, traceback: str | None, stacks: str | None) -> tuple[Frame, ...]:
    """Return the frames that say where it failed, outermost first: of the exception, else of a text that has them."""
    if exception is not None and exception.frames:
        return exception.frames
    if traceback:
        # A record by torch alone has the frames only as text.
        return tuple(_frames_in(traceback[-65536:])[-100:])
    if stacks:
        # faulthandler: innermost first; the thread that crashed is the "current" one, or the only one.
        _, _, current = stacks.rpartition("Current thread " if "Current thread " in stacks else "\nStack (most ")
        return tuple(reversed(_frames_in(current[:65536].split("\n\n", 1)[0])[:100]))
    return ()


def beside_crash(worker: FailedWorker) -> Frame | None:
    """Return where the main thread was when a thread of a library crashed, which Python does not know; None: unknown.

    It may have called that library.
    """
    if not worker.stacks or worker.frames or worker.signal is None:
        return None
    frames = main_thread(worker.stacks)
    return own_frame(frames) if frames else None


def main_thread(stacks: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, which faulthandler prints last."""
    found = (_frames_in(block) for block in reversed(stacks[-65536:].split("\n\n")))
    return tuple(reversed(next((each for each in found if each), [])[:100]))


def _frames_in(text: str) -> list[Frame]:
    return [Frame(file, int(line), function) for file, line, function in _FRAME.findall(text)]


def _life_s(worker: Worker | None) -> float | None:
    if worker is None or worker.started_ns is None or worker.ended_ns is None:
        return None
    return max(0, worker.ended_ns - worker.started_ns) / 1e9


def _first_known(*values: int | None) -> int | None:
    for value in values:
        if value is not None:
            return value
    return None


def from_summary(node: RoundNode, worker: Worker, summary: RecordSummary, sample: RankError | None) -> RankError:
    """Return a record reconstructed from its summary.

    Args:
        node, worker: its node and worker.
        summary: the record summary.
        sample: the record of another rank with the same signature, if one was read.
    """
    record = sample or _without_sample(worker, summary)
    exception = record.exception
    if summary.signature.startswith(SIMILAR) and exception is not None:
        record = replace(record, exception=replace(exception, message=summary.message), message=summary.message)
    return replace(
        record,
        rank=worker.rank,
        node=node.node,
        host=node.host,
        local_rank=worker.local_rank,
        pid=worker.pid,
        time_ns=summary.time_ns,
        step=summary.step,
        # These belong to that other rank only.
        traceback=None,
        stacks=None,
        sections=(),
        cuda=(),
        whole=False,
    )


def _without_sample(worker: Worker, summary: RecordSummary) -> RankError:
    exception = None
    if summary.type is not None:
        exception = ExceptionRecord(summary.type, summary.module, summary.message, frames=_innermost(summary.where))
    end = (worker.exit_code, worker.signal, None, None, (), summary.message, None, exception, None)
    return RankError(worker.rank, None, None, None, None, summary.kind, *end)


def _innermost(where: str | None) -> tuple[Frame, ...]:
    file, _, place = (where or "").rpartition(":")
    line, _, function = place.partition(" in ")
    if not file or not (line.isascii() and line.isdigit() and len(line) < 10):
        return ()
    return (Frame(file, int(line), function or "?"),)
