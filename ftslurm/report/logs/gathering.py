"""The logs of a job that ftslurm did not run, read into a `Snapshot` as far as possible.

Either torchrun's ``--log-dir`` (`ftslurm.report.logs.torchrun`), or a job's output: a file, a pipe, or the newest job's
files in a directory. Each attempt of the job is a round; the last one counts.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftslurm.dataclasses import replace
from ftslurm.failures import plugins
from ftslurm.failures.causes import Cause
from ftslurm.records.attempt import SchedulerView
from ftslurm.report.facts import UNNAMED, Attempt, LogTail, Problem, RoundFiles, RoundNode, Run, Snapshot, Worker
from ftslurm.report.logs import attempts, torchrun
from ftslurm.report.logs.attempt_log import number_of
from ftslurm.report.logs.ends import ends_of
from ftslurm.report.logs.files import DEPTH, Output, beside, outputs, owners_of, read_outputs, unread
from ftslurm.report.logs.judging import Judged, judge
from ftslurm.report.logs.lines import GAP, Line, lines_of
from ftslurm.report.logs.rank_errors import is_cascade
from ftslurm.report.logs.reading import Excerpt, is_stream, read_stream, stdin_excerpt
from ftslurm.report.logs.servers import failed_servers
from ftslurm.report.logs.tracebacks import ends_within
from ftslurm.sharedfs.locate import NotFound
from ftslurm.text import ranges

SOURCE = "logs of another launcher"
STDIN = Path("-")
SHOWN = 120
FEW = 8


def gather_logs(path: Path, *, now_ns: int | None = None, causes: Sequence[Cause] | None = None) -> Snapshot:
    """Read torchrun's logs or a job's output.

    Args:
        path: torchrun's log directory, a directory in it, one that holds output files, an output file, a pipe; "-":
            standard input.
        now_ns: the time of reading, nanoseconds since the epoch; None: now.
        causes: the catalogue's rows; None: ftslurm's, and those of entry points.

    Returns:
        A round for each attempt. No file's content raises.

    Raises:
        NotFound: it contains no such logs.
        OSError: the path cannot be read.
    """
    if path == STDIN:
        return of_excerpts("stdin", [(path, stdin_excerpt())], now_ns=now_ns, causes=causes)
    if is_stream(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return of_excerpts(str(path), [(path, read_stream(fd))], now_ns=now_ns, causes=causes)
        finally:
            os.close(fd)
    # A link that the user names is followed; links in a directory are not.
    real = path.resolve()
    if not real.is_dir():
        return gather_files(str(path), [real], now_ns=now_ns, causes=causes, notes=beside(real))
    owners, problems = owners_of([real]), list[Problem]()
    runs = torchrun.runs_in(real)
    if not runs:
        those = outputs(real, depth=DEPTH)
        snapshot = gather_files(str(path), those, now_ns=now_ns, causes=causes, notes=unread(real, those))
        errors = snapshot.rounds[-1].errors.values() if snapshot.rounds else ()
        return replace(snapshot, notes=(*failed_servers(real, those, errors), *snapshot.notes))
    lines, _ = read_outputs(torchrun.outputs_beside(real, runs), owners, problems)
    rounds = torchrun.rounds_of(runs, owners, ends_of(lines), problems)
    if not rounds:
        raise _nothing(path)
    judged = judge(lines) if lines else Judged({}, {}, {})
    each = [Judged({}, {}, {})] * (len(rounds) - 1) + [judged]
    return _snapshot(str(path), rounds, each, problems, _suspects(rounds[-1]), now_ns, causes)


def _suspects(last: RoundFiles) -> list[str]:
    """Name the ranks whose logs end without a word while all others lost their connection to a rank."""
    silent = sorted(worker.rank for node in last.nodes for worker in node.workers if not worker.failed)
    known = bool(silent) and silent[0] >= 0
    if (
        not last.errors
        or not known
        or len(silent) > max(len(last.errors), FEW)
        or not all(map(is_cascade, last.errors.values()))
    ):
        return []
    those = f"no failure in the logs of {'rank' if len(silent) == 1 else 'ranks'} {ranges(silent)}"
    which = "it" if len(silent) == 1 else "one of them"
    return [f"{those}: {which} may have ended first without a word, or the others waited for it"]


def gather_files(
    name: str,
    paths: Sequence[Path | Output],
    *,
    now_ns: int | None = None,
    causes: Sequence[Cause] | None = None,
    notes: Sequence[str] = (),
) -> Snapshot:
    """Read the output files of one job; see `gather_logs`; ``notes``: on the choice of files, for the reader."""
    those = [each if isinstance(each, Output) else Output(each) for each in paths]
    problems: list[Problem] = []
    lines, read = read_outputs(those, owners_of([each.path for each in those]) if those else frozenset(), problems)
    if not read and not problems:
        raise _nothing(Path(name))
    files = {each.part: each.path.name for each in those} if len({each.part for each in those}) == len(those) else {}
    return _of_lines(name, lines, read, problems, now_ns, causes, notes, files)


def of_excerpts(
    name: str,
    read: Sequence[tuple[Path, Excerpt]],
    *,
    now_ns: int | None = None,
    causes: Sequence[Cause] | None = None,
) -> Snapshot:
    """Return the snapshot of logs that were read."""
    problems = [Problem(str(path), excerpt.problem) for path, excerpt in read if excerpt.problem]
    lines: list[Line] = []
    for _, excerpt in read:
        lines += [line._replace(number=len(lines) + i) for i, line in enumerate(lines_of(excerpt))]
    return _of_lines(name, lines, read, problems, now_ns, causes)


def _nothing(path: Path) -> NotFound:
    return NotFound(f"expected torchrun's logs (attempt_0/0/stderr.log) or a job's output, found neither in {path}")


def _of_lines(
    name: str,
    lines: list[Line],
    read: Sequence[tuple[Path, Excerpt]],
    problems: list[Problem],
    now_ns: int | None,
    causes: Sequence[Cause] | None,
    remarks: Sequence[str] = (),
    files: Mapping[int, str] | None = None,
) -> Snapshot:
    parts = attempts.split_parts(lines)
    judged = [_with_files(judge(part), lines, files or {}) for part in parts]
    paths = ", ".join(str(path) for path, _ in read[:3])
    size = sum(excerpt.size for _, excerpt in read)
    rounds = [_round(i + 1, each, paths, size) for i, each in enumerate(judged)]
    notes = list(judged[-1].notes)
    if not judged[-1].errors and judged[-1].state is None:
        notes += _last_line(parts[-1], any(excerpt.open_end for _, excerpt in read))
    return _snapshot(name, rounds, judged, problems, [*notes, *remarks], now_ns, causes)


def _with_files(judged: Judged, lines: Sequence[Line], files: Mapping[int, str]) -> Judged:
    """Return failures with the files in which they are, where neither the rank nor the node is known.

    Args:
        judged: the failures.
        lines: of all files.
        files: the name of each part's only file; empty: not known.
    """
    open_ = [rank for rank, error in judged.errors.items() if rank < 0 and error.node is None]
    if len(files) < 2 or not open_:
        return judged
    errors = dict(judged.errors)
    for rank in open_:
        at = bisect_right(lines, errors[rank].order, key=number_of) - 1
        if name := files.get(lines[max(at, 0)].part):
            errors[rank] = replace(errors[rank], quotes=(f"in {name}", *errors[rank].quotes))
    return replace(judged, errors=errors)


def _last_line(lines: Sequence[Line], open_end: bool) -> list[str]:
    """Describe the end of a log without a failure: it may be of a job that runs, or that was killed."""
    last = next((line for line in reversed(lines) if line.text.strip() and line.text != GAP), None)
    if last is None:
        return ["it is empty"]
    if ends_within([line for line in lines if line.key == last.key]):
        return [f"it ends in the middle of a traceback: {last.text.strip()[:SHOWN]}"]
    how = "it ends in the middle of a line" if open_end else "its last line"
    return [f"{how}: {last.text.strip()[:SHOWN]}"]


def _round(number: int, judged: Judged, path: str, size: int) -> RoundFiles:
    by_node: dict[str, list[Worker]] = {}
    for rank, error in sorted(judged.errors.items()):
        by_node.setdefault(error.node or UNNAMED, []).append(torchrun.worker_of(rank, error.local_rank, error))
    tails = {
        rank: (LogTail("stderr", path, text, max(size, len(text))),) for rank, text in judged.tails.items() if text
    }
    nodes = [node_of(number, name, judged, workers) for name, workers in (by_node or {UNNAMED: []}).items()]
    return RoundFiles(number, tuple(nodes), judged.errors, tails)


def node_of(number: int, name: str, judged: Judged, workers: Sequence[Worker]) -> RoundNode:
    """Return the record of a node in an attempt."""
    return replace(torchrun.round_node(number, name, workers), attempt=_attempt(number, judged))


def _attempt(number: int, judged: Judged) -> str:
    return f"{judged.job_id or 'log'}.{number - 1}"


def _snapshot(
    name: str,
    rounds: Sequence[RoundFiles],
    judged: Sequence[Judged],
    problems: list[Problem],
    notes: Sequence[str],
    now_ns: int | None,
    causes: Sequence[Cause] | None,
) -> Snapshot:
    if causes is None:
        causes, broken = plugins.load()
        problems = [*problems, *(Problem(*each) for each in broken)]
    causes = [_of_others(row) for row in causes]
    views, records = [], []
    for i, (files, each) in enumerate(zip(rounds, judged, strict=True)):
        attempt = files.nodes[0].attempt if files.nodes else _attempt(files.number, each)
        assert attempt is not None
        records.append(Attempt(attempt, i + 1, job_id=each.job_id))
        if each.state is not None:
            views.append(_view(attempt, each))
    return Snapshot(
        directory=name,
        now_ns=time.time_ns() if now_ns is None else now_ns,
        run=Run(name.rstrip("/").rsplit("/", 1)[-1] or name),
        attempts=tuple(records),
        rounds=tuple(rounds),
        problems=tuple(problems),
        causes=tuple(causes),
        scheduler=tuple(views),
        source=SOURCE,
        notes=tuple(notes),
    )


def _of_others(row: Cause) -> Cause:
    """Return a row with what it says of a job that ftslurm did not run."""
    if row.name == "terminated":
        return replace(row, title="terminated by SIGTERM")
    if row.name == "hang":
        return replace(row, advice="See why that rank was there: the others only waited for it.")
    return replace(row, advice="Ctrl-C, or a user or a tool that sends SIGINT.") if row.name == "interrupt" else row


def _view(attempt: str, judged: Judged) -> SchedulerView:
    """Return what a log's lines state as Slurm's view; "REQUEUED" is a cancellation of that attempt."""
    state = "CANCELLED" if judged.state == "REQUEUED" else judged.state
    view = SchedulerView(attempt, None, judged.job_id, state=state, failed_node=judged.failed_node, source="log")
    if judged.state == "REQUEUED":
        return replace(view, reason="Requeued")
    return replace(view, reason=judged.job.why) if judged.job is not None and judged.job.why else view
