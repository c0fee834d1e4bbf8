"""Who failed first in a round: all that is known of each failed worker, ordered, root cause first (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ftslurm.failures.causes import PRIMARY
from ftslurm.report.clocks import Clocks, Doubt
from ftslurm.report.facts import (
    Exc,
    Failure,
    Frame,
    History,
    NodeWord,
    RankError,
    RoundFiles,
    RoundNode,
    Snapshot,
    Worker,
)
from ftslurm.report.scheduler import state_for_evidence
from ftslurm.report.suspect import UNJUDGED, Suspect, judge

_TYPED = re.compile(r"([A-Za-z_][\w.]{0,100}): ?(.*)", re.DOTALL)
_FRAME = re.compile(r'^ *File "([^"\n]{1,4096})", line (\d{1,9})(?:,? in (\S{1,200}))?', re.MULTILINE)


def suspects(snapshot: Snapshot, number: int) -> list[Suspect]:
    """Return the workers of a round that failed and were not stopped by ftslurm, root cause first.

    Primary causes stand before cascades, then earlier before later, as far as the nodes' clocks tell. A worker that
    ftslurm stopped is no suspect, whatever it wrote on its way out; but one whose exception was caught on its own
    node before anything there was stopped had failed by itself, even if its process took longer to end.
    """
    files = round_files(snapshot, number)
    words = {rank: word for rank, word in summaries(snapshot, number).items() if word.kind != "hang"}
    found: dict[int, Suspect] = {}
    state = _scheduler_state(snapshot, files)
    for node in files.nodes:
        began_ns = _stop_began_ns(node)
        for worker in node.workers:
            error = files.errors.get(worker.rank)
            if _failed_by_itself(worker, error, began_ns):
                word = words.get(worker.rank)
                found[worker.rank] = _judged(snapshot, files, state, worker.rank, (node, worker), error, word)
    seen = {worker.rank for node in files.nodes for worker in node.workers if worker.ended_ns is not None}
    for rank in sorted((set(files.errors) | set(words)) - seen - set(found)):
        # No agent's last word on this rank: its agent died first, or its file is broken.
        error = files.errors.get(rank)
        if rank in words or not _maybe_stopped(error):
            found[rank] = _judged(snapshot, files, state, rank, None, error, words.get(rank))
    return sorted(found.values(), key=lambda suspect: _order(snapshot.clocks, number, suspect))


def _judged(
    snapshot: Snapshot,
    files: RoundFiles,
    state: str,
    rank: int,
    seen: tuple[RoundNode, Worker] | None,
    error: RankError | None,
    word: Failure | None,
) -> Suspect:
    """Judge a worker, or find the verdict: who reads the output's ends asks before, and the report again after it."""
    tails = files.tails.get(rank, ())
    if tails:
        return judge(_suspect(rank, seen, error, word, state), tails, snapshot.causes)
    node, worker = seen or (None, None)
    known = snapshot.judged.get((files.number, rank))
    # A verdict belongs to these very objects: who replaces a fact of a snapshot takes the verdicts along.
    if known is not None and known[0] is node and known[1] is worker and known[2] is error and known[3] == word:
        suspect: Suspect = known[4]
        return suspect
    suspect = judge(_suspect(rank, seen, error, word, state), (), snapshot.causes)
    snapshot.judged[files.number, rank] = (node, worker, error, word, suspect)
    return suspect


def _scheduler_state(snapshot: Snapshot, files: RoundFiles) -> str:
    if not snapshot.scheduler:
        return ""
    entry = history_of(snapshot, files.number)
    attempt = entry.attempt if entry is not None else next((node.attempt for node in files.nodes), None)
    return state_for_evidence(snapshot, files.number, attempt)


def at_the_same_time(clocks: Clocks, number: int, ordered: Sequence[Suspect]) -> list[tuple[Suspect, Doubt]]:
    """Return the primary suspects that may have been first as well, for all that the clocks tell, and their doubt.

    Of each other node the first one: there one clock says the order.
    """
    if not ordered or ordered[0].cause.role != PRIMARY or ordered[0].time_ns is None:
        return []
    first, nodes, found = ordered[0], {ordered[0].node}, []
    assert first.time_ns is not None
    for suspect in ordered[1:]:
        if suspect.cause.role != PRIMARY or suspect.time_ns is None or suspect.node in nodes:
            continue
        nodes.add(suspect.node)
        doubt = clocks.between(number, (first.node, first.time_ns), (suspect.node, suspect.time_ns))
        if _comparable_ns(clocks, number, suspect) - _comparable_ns(clocks, number, first) <= doubt.ns:
            found.append((suspect, doubt))
    return found


def tail_needed(suspect: Suspect) -> bool:
    """Whether the end of the worker's output can change or explain the verdict on it."""
    return suspect.exception is None


def round_files(snapshot: Snapshot, number: int) -> RoundFiles:
    """Return the files of a round; empty if there are none."""
    for files in snapshot.rounds:
        if files.number == number:
            return files
    return RoundFiles(number, (), {})


def history_of(snapshot: Snapshot, number: int) -> History | None:
    """Return what the state remembers of a round."""
    history = snapshot.state.history if snapshot.state else ()
    return next((h for h in history if h.round == number), None)


def summaries(snapshot: Snapshot, number: int) -> dict[int, Failure]:
    """Return the failures of a round as node files and the state have them in short, by rank."""
    words: dict[int, Failure] = {}
    for word in snapshot.nodes:
        _add_summary(words, _failure_of(word), number)
    entry = history_of(snapshot, number)
    if entry is not None:
        _add_summary(words, entry.failure, number)
    return words


def _failure_of(word: NodeWord) -> Failure | None:
    failure = word.failure
    return replace(failure, round=word.round) if failure is not None and not failure.round else failure


def _add_summary(words: dict[int, Failure], failure: Failure | None, number: int) -> None:
    if failure is not None and failure.round == number:
        words[failure.rank] = failure


def _stop_began_ns(node: RoundNode) -> int | None:
    """When this node began to stop its workers, or the latest time by which it surely had not."""
    if node.stop_ns is not None:
        return node.stop_ns
    own = (w for w in node.workers if w.failed and not w.stopped_by_ftslurm)
    return min((w.ended_ns for w in own if w.ended_ns is not None), default=None)


def _failed_by_itself(worker: Worker, error: RankError | None, began_ns: int | None) -> bool:
    if worker.stopped_by_ftslurm:
        # Its process ended late (torch's teardown takes seconds), its exception came first: the same
        # clock says so. Across nodes no clock does, so there the agent's word stands.
        return (
            error is not None
            and error.kind == "exception"
            and error.time_ns is not None
            and began_ns is not None
            and error.time_ns < began_ns
        )
    return worker.failed or (worker.ended_ns is None and error is not None and not _maybe_stopped(error))


def _maybe_stopped(error: RankError | None) -> bool:
    """Whether the record may be that of a rank that ftslurm stopped: only the agent's word could tell."""
    return error is not None and error.exception is None and error.signal in ("SIGTERM", "SIGKILL")


def _suspect(
    rank: int,
    seen: tuple[RoundNode, Worker] | None,
    error: RankError | None,
    word: Failure | None,
    scheduler: str,
) -> Suspect:
    node, worker = seen or (None, None)
    kind = _kind(worker, error, word)
    exception = _exception(kind, error, word)
    stacks = error.stacks if error else None
    # For a crash, the record offers the stacks to torch's readers in the traceback's place.
    traceback = error.traceback if error and error.traceback != stacks else None
    known = [x for x in (worker, error, word) if x is not None]
    step = _first_known(
        error.step if error else None,
        worker.progress.last_step if worker and worker.progress else None,
        word.step if word else None,
    )
    return Suspect(
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
        evidence=tuple(n for n, x in (("round-node", worker), ("error.json", error), ("summary", word)) if x),
        cause=UNJUDGED,
        scheduler=scheduler,
        what=(error.message if error else "") or (word.message if word else ""),
        life_s=_life_s(worker),
        surroundings=error.surroundings if error else None,
        sections=error.sections if error else (),
        cuda=error.cuda if error else (),
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


def _order(clocks: Clocks, number: int, suspect: Suspect) -> tuple[bool, bool, int, int]:
    time_ns = _comparable_ns(clocks, number, suspect)
    return suspect.cause.role != PRIMARY, suspect.time_ns is None, time_ns, suspect.rank


def _comparable_ns(clocks: Clocks, number: int, suspect: Suspect) -> int:
    return clocks.comparable_ns(number, suspect.node, suspect.time_ns or 0)


def _life_s(worker: Worker | None) -> float | None:
    if worker is None or worker.started_ns is None or worker.ended_ns is None:
        return None
    return max(0, worker.ended_ns - worker.started_ns) / 1e9


def _first_known(*values: int | None) -> int | None:
    for value in values:
        if value is not None:
            return value
    return None
