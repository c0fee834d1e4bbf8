"""All that is known of one failed worker, from its agent, its error record and the run's state together (pure)."""

from __future__ import annotations

import re

from ftslurm.report.facts import Exc, Failure, Frame, RankError, RoundNode, Worker
from ftslurm.report.failed_worker import UNJUDGED, FailedWorker

_TYPED = re.compile(r"([A-Za-z_][\w.]{0,100}): ?(.*)", re.DOTALL)
_FRAME = re.compile(r'^ *File "([^"\n]{1,4096})", line (\d{1,9})(?:,? in (\S{1,200}))?', re.MULTILINE)


def failed_worker_of(
    rank: int,
    seen: tuple[RoundNode, Worker] | None,
    error: RankError | None,
    word: Failure | None,
    scheduler: str,
) -> FailedWorker:
    """Put together what is known of a failed worker; not judged yet.

    Args:
        rank: its rank.
        seen: what its agent saw of it.
        error: its error record.
        word: its failure in short, as its node's word or the state have it.
        scheduler: the scheduler's state of the job, if that ended with it.
    """
    node, worker = seen or (None, None)
    kind = _kind(worker, error, word)
    exception = _exception(kind, error, word)
    stacks = error.stacks if error else None
    # For a crash, the record offers the stacks to torch's readers in the traceback's place.
    traceback = error.traceback if error and error.traceback != stacks else None
    known = [x for x in (worker, error, word) if x is not None]
    record = error is not None and error.whole
    step = _first_known(
        error.step if error else None,
        worker.progress.last_step if worker and worker.progress else None,
        word.step if word else None,
    )
    return FailedWorker(
        rank=rank,
        node=(node.node if node else None) or (error and error.node) or (word.node if word else None) or "?",
        host=(node.host if node else None) or (error.host if error else None),
        local_rank=_first_known(*[x.local_rank for x in known]),
        time_ns=_time_ns(exception is not None, worker, error, word),
        kind=kind,
        exit_code=_first_known(*[x.exit_code for x in known]),
        signal=(worker and worker.signal) or (error and error.signal) or (word.signal if word else None),
        core_dumped=worker is not None and worker.core_dumped,
        step=step,
        argv=error.argv if error else (),
        exception=exception,
        frames=_frames(exception, traceback, stacks),
        traceback=traceback,
        stacks=stacks,
        evidence=tuple(n for n, x in (("round-node", worker), ("error.json", record), ("summary", word)) if x),
        cause=UNJUDGED,
        scheduler=scheduler,
        what=(error.message if error else "") or (word.message if word else ""),
        life_s=_life_s(worker),
        host_resources=error.host_resources if error else None,
        sections=error.sections if error else (),
        cuda=error.cuda if error else (),
        exit_message=error.exit_message if error else "",
    )


def _kind(worker: Worker | None, error: RankError | None, word: Failure | None) -> str:
    if error is not None and error.kind == "exception":
        return "exception"
    if worker is not None and worker.signal is not None:
        return "signal"
    if worker is not None and worker.failed and worker.pid is None:
        return "spawn"
    if error is not None:
        return error.kind
    if word is not None and (worker is None or worker.exit_code is None or word.kind in ("exception", "spawn")):
        return word.kind
    return "exit"


def _time_ns(raised: bool, worker: Worker | None, error: RankError | None, word: Failure | None) -> int | None:
    # An exception happened when it was caught; the process may have needed seconds more to end.
    error_ns = error.time_ns if error else None
    ended_ns = worker.ended_ns if worker else None
    word_ns = word.time_ns if word else None
    if raised:
        return _first_known(error_ns, word_ns, ended_ns)
    return _first_known(ended_ns, error_ns, word_ns)


def _exception(kind: str, error: RankError | None, word: Failure | None) -> Exc | None:
    if error is not None and error.exception is not None:
        return error.exception
    if kind != "exception":
        return None
    message = (error.message if error else "") or (word.message if word else "")
    match = _TYPED.match(message)
    if match is None:
        return Exc("Exception", "", message, (), None) if message else None
    module, _, name = match[1].rpartition(".")
    return Exc(name, module, match[2], (), None)


def _frames(exception: Exc | None, traceback: str | None, stacks: str | None) -> tuple[Frame, ...]:
    if exception is not None and exception.frames:
        return exception.frames
    if traceback:
        # A record by torch alone: the frames are there only as text.
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
