"""The facts about one failed worker, merged from its agent, its error record and the run's state (pure)."""

from __future__ import annotations

import re

from ftslurm.report.facts import Exc, Failure, Frame, RankError, RoundNode, Worker
from ftslurm.report.failed_worker import UNJUDGED, FailedWorker

_TYPED = re.compile(r"([A-Za-z_][\w.]{0,100}): ?(.*)", re.DOTALL)
_FRAME = re.compile(r'^ *File "([^"\n]{1,4096})", line (\d{1,9})(?:,? in (\S{1,200}))?', re.MULTILINE)


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
        frames=_frames(exception, traceback, stacks),
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
    )


def _kind(worker: Worker | None, error: RankError | None, summary: Failure | None) -> str:
    if error is not None and error.kind == "exception":
        return "exception"
    if worker is not None and worker.signal is not None:
        return "signal"
    if worker is not None and worker.failed and worker.pid is None:
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


def _exception(kind: str, error: RankError | None, summary: Failure | None) -> Exc | None:
    if error is not None and error.exception is not None:
        return error.exception
    if kind != "exception":
        return None
    message = (error.message if error else "") or (summary.message if summary else "")
    match = _TYPED.match(message)
    if match is None:
        return Exc("Exception", "", message, (), None) if message else None
    module, _, name = match[1].rpartition(".")
    return Exc(name, module, match[2], (), None)


def _frames(exception: Exc | None, traceback: str | None, stacks: str | None) -> tuple[Frame, ...]:
    if exception is not None and exception.frames:
        return exception.frames
    if traceback:
        # A record by torch alone has the frames only as text.
        return tuple(_frames_in(traceback[-65536:])[-100:])
    if stacks:
        # faulthandler: innermost first, and the thread that crashed is the "current" one.
        _, _, current = stacks.rpartition("Current thread ")
        return tuple(reversed(_frames_in(current[:65536].split("\n\n", 1)[0])[:100]))
    return ()


def _frames_in(text: str) -> list[Frame]:
    return [Frame(file, int(line), function, None) for file, line, function in _FRAME.findall(text)]


def _life_s(worker: Worker | None) -> float | None:
    if worker is None or worker.started_ns is None or worker.ended_ns is None:
        return None
    return max(0, worker.ended_ns - worker.started_ns) / 1e9


def _first_known(*values: int | None) -> int | None:
    for value in values:
        if value is not None:
            return value
    return None


__all__ = ["failed_worker_of"]
