"""The logs of a job that ftslurm did not run, read into a `Snapshot` as far as possible.

Files in torchrun's ``--log-dir`` (torch 2.5 to 2.13): ``<run_id>_<random>/attempt_<n>/<local_rank>/`` with
stdout.log, stderr.log and, of scripts under ``@record``, error.json; each agent makes a ``<run_id>_<random>`` of its
own. Or a job's output file (``slurm-*.out``), with the ranks' lines interleaved.

They contain no ends, no node names and no times but those of the files: the report states this.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.failures import plugins
from ftslurm.failures.causes import Cause
from ftslurm.report import output_text
from ftslurm.report.decode import rank_error_from
from ftslurm.report.facts import LogTail, Problem, RankError, RoundFiles, RoundNode, Snapshot, Worker
from ftslurm.report.fields import Malformed
from ftslurm.report.locating import NotFound
from ftslurm.report.parallel_read import read_in_parallel
from ftslurm.report.reading import list_directory, parse_json, read_file, read_tail

TAIL_LIMIT = 256 * 1024
OUTPUT_LIMIT = 8 << 20
RECORD_LIMIT = 1 << 20
SLACK_NS = 2 * 10**9  # files of two nodes have times of two clocks
MAX_RUNS, MAX_ATTEMPTS = 4096, 64

_ATTEMPT = re.compile(r"attempt_(\d{1,6})")
_LOCAL = re.compile(r"\d{1,5}")
_OUTPUT = re.compile(r"slurm-\d.*\.(out|err)|.*\.(out|err|log)")
_LOGS = "logs of another launcher"


@dataclass
class _Rank:
    """One worker's folder of one attempt."""

    folder: Path
    local_rank: int
    stderr: str = ""
    size: int = 0
    written_ns: int | None = None
    named: int | None = None
    error: RankError | None = None
    problems: list[Problem] = field(default_factory=list)


def gather_logs(path: Path, *, now_ns: int, causes: Sequence[Cause] | None = None) -> Snapshot:
    """Read torchrun's logs or a job's output.

    Args:
        path: torchrun's log directory, a directory in it, one that holds output files, or an output file.
        now_ns: the time of reading, nanoseconds since the epoch.
        causes: the catalogue's rows; None: ftslurm's, and those of entry points.

    Returns:
        A round for each attempt. No file's content raises.

    Raises:
        NotFound: it contains no such logs.
        OSError: the path cannot be read.
    """
    problems: list[Problem] = []
    if causes is None:
        causes, broken = plugins.load()
        problems += [Problem(*each) for each in broken]
    owners = frozenset((os.stat(path).st_uid, 0))
    if path.is_dir():
        runs = _runs(path)
        rows = [row for text in _outputs(path, owners, problems) for row in output_text.table(text)] if runs else []
        rounds = _rounds(_together(runs), owners, rows, problems)
        if not rounds:
            rounds = [_plain(text, file) for file, text in _texts(path, owners, problems)][-1:]
    else:
        text = _text(path, owners, problems)
        rounds = [] if text is None else [_plain(text, path)]
    if not rounds:
        raise NotFound(f"expected torchrun's logs (attempt_0/0/stderr.log) or a job's output, found neither in {path}")
    for files in rounds:
        problems += _unnamed(files)
    return Snapshot(
        directory=str(path),
        now_ns=now_ns,
        rounds=tuple(rounds),
        problems=tuple(problems),
        causes=tuple(causes),
        source=_LOGS,
    )


def _runs(path: Path) -> list[Path]:
    """The folders that contain ``attempt_<n>``: the path itself, or those in it."""
    if _ATTEMPT.fullmatch(path.name):
        path = path.parent
    below = _folders(path)
    if any(_ATTEMPT.fullmatch(name) for name in below):
        return [path]
    return [path / name for name in below[:MAX_RUNS] if any(map(_ATTEMPT.fullmatch, _folders(path / name)))]


def _together(runs: list[Path]) -> list[Path]:
    """Of several folders, the newest and those of the same job: the same run id and overlapping write times."""
    spans = {run: _span(run) for run in runs}
    if len(runs) < 2:
        return runs
    newest = max(runs, key=lambda run: spans[run][1])
    begin, end = spans[newest][0] - SLACK_NS, spans[newest][1]
    name = newest.name.rpartition("_")[0]
    return [r for r in runs if r.name.rpartition("_")[0] == name and spans[r][0] <= end and spans[r][1] >= begin]


def _span(run: Path) -> tuple[int, int]:
    """The start of its first attempt and its last write, by the files' times."""
    times = []
    for attempt in _folders(run):
        for local in _folders(run / attempt):
            folder = run / attempt / local
            times += [_mtime_ns(p) for p in (folder, folder / "stderr.log", folder / "stdout.log")]
    known = [t for t in times if t is not None]
    return (min(known), max(known)) if known else (0, 0)


def _rounds(
    runs: list[Path], owners: frozenset[int], rows: Sequence[output_text.Row], problems: list[Problem]
) -> list[RoundFiles]:
    numbers = {int(found[1]) for run in runs for name in _folders(run) if (found := _ATTEMPT.fullmatch(name))}
    chosen = sorted(numbers)[-MAX_ATTEMPTS:]
    # torchrun's table is about its last attempt.
    return [_round(runs, n, owners, rows if n == chosen[-1] else (), problems) for n in chosen]


def _round(
    runs: list[Path],
    attempt: int,
    owners: frozenset[int],
    rows: Sequence[output_text.Row],
    problems: list[Problem],
) -> RoundFiles:
    places = [run / f"attempt_{attempt}" for run in runs]
    groups = [[_Rank(place / n, int(n)) for n in _folders(place) if _LOCAL.fullmatch(n)] for place in places]
    all_ranks = [rank for group in groups for rank in group]
    for _ in read_in_parallel(lambda rank: _read(rank, owners), all_ranks):
        pass
    nodes: list[RoundNode] = []
    errors: dict[int, RankError] = {}
    tails: dict[int, tuple[LogTail, ...]] = {}
    first = 0
    for run, group in zip(runs, groups, strict=True):
        # The first rank of this agent, if any of its ranks is named in its output; else counted on.
        first = next((r.named - r.local_rank for r in group if r.named is not None and r.named >= r.local_rank), first)
        workers = []
        for each in group:
            rank = first + each.local_rank
            problems += each.problems
            row = next((row for row in rows if row.rank == rank), None)
            error = _error(each, rank, run.name, row)
            if error is not None:
                errors[rank] = error
                tails[rank] = tuple(_tails(each, owners))
            workers.append(_worker(rank, each.local_rank, error))
        nodes.append(_node(attempt + 1, run.name, workers))
        first += len(group)
    world = len(all_ranks)
    whole = sorted(w.rank for n in nodes for w in n.workers) == list(range(world))
    nodes = [node._replace(world_size=world if whole else None) for node in nodes]
    return RoundFiles(attempt + 1, tuple(nodes), errors, tails)


def _read(rank: _Rank, owners: frozenset[int]) -> None:
    path = rank.folder / "stderr.log"
    try:
        found = read_tail(path, TAIL_LIMIT, owners)
        if found is not None:
            text, rank.size = found
            rank.stderr, rank.named = output_text.without_prefix(text)
    except Malformed as error:
        rank.problems.append(Problem(str(path), str(error)))
    rank.written_ns = _mtime_ns(path)
    path = rank.folder / "error.json"
    try:
        data = read_file(path, RECORD_LIMIT, owners)
        if data is not None:
            value = parse_json(data)
            rank.error = rank_error_from(value, 0)
            ours = value.get("ftslurm") if isinstance(value, dict) else None
            named = ours.get("rank") if isinstance(ours, dict) else None
            rank.named = named if type(named) is int and 0 <= named < 10**6 else rank.named
    except Malformed as error:
        rank.problems.append(Problem(str(path), str(error)))


def _error(each: _Rank, rank: int, node: str, row: output_text.Row | None) -> RankError | None:
    """The failure of a worker: from its own record, else its output, else torchrun's table."""
    if each.error is not None:
        if each.error.exception is not None or each.error.kind != "exception":
            return replace(each.error, rank=rank)
        # torch's record has the exception chain only as text.
        raised = output_text.uncaught(each.error.traceback or "", sure=True)
        exception = raised.exception if raised is not None else None
        return replace(each.error, rank=rank, node=node, local_rank=each.local_rank, exception=exception)
    error = _from_text(each.stderr, rank, each.written_ns, sure=each.named is not None)
    if error is None and row is not None and row.code != 0 and not row.stopped:
        error = _from_row(row, each.written_ns)
    return replace(error, node=node, local_rank=each.local_rank) if error is not None else None


def _from_text(text: str, rank: int, written_ns: int | None, *, sure: bool) -> RankError | None:
    crash = output_text.crash(text)
    if crash is not None:
        error = _rank_error(rank, written_ns, "signal", crash.signal)
        return replace(error, signal=crash.signal, stacks=crash.stacks)
    raised = output_text.uncaught(text, sure=sure)
    if raised is None:
        return None
    error = _rank_error(rank, written_ns, "exception", raised.headline)
    return replace(error, exception=raised.exception, traceback=raised.traceback)


def _from_row(row: output_text.Row, written_ns: int | None) -> RankError:
    if row.code < 0:
        try:
            name = signal.Signals(-row.code).name
        except ValueError:
            name = f"signal {-row.code}"
        error = replace(_rank_error(row.rank, written_ns, "signal", name), signal=name)
    else:
        error = _rank_error(row.rank, written_ns, "exit", f"exit code {row.code}")
        error = replace(error, exit_code=row.code)
    return replace(error, host=row.host, pid=row.pid)


def _rank_error(rank: int, time_ns: int | None, kind: str, message: str) -> RankError:
    return RankError(
        rank=rank,
        node=None,
        host=None,
        local_rank=None,
        time_ns=time_ns,
        kind=kind,
        exit_code=None,
        signal=None,
        step=None,
        pid=None,
        argv=(),
        message=message,
        traceback=None,
        exception=None,
        stacks=None,
    )


def _worker(rank: int, local_rank: int | None, error: RankError | None) -> Worker:
    return Worker(
        rank=rank,
        local_rank=local_rank,
        pid=error.pid if error else None,
        started_ns=None,
        ended_ns=error.time_ns if error else None,
        exit_code=error.exit_code if error else None,
        signal=error.signal if error else None,
        core_dumped=False,
        stopped_by_ftslurm=False,
        stop_signal=None,
        progress=None,
        failed=error is not None,
    )


def _node(number: int, name: str, workers: Iterable[Worker]) -> RoundNode:
    return RoundNode(
        round=number,
        attempt=f"attempt_{number - 1}",
        node=name,
        host=None,
        world_size=None,
        started_ns=None,
        ended_ns=None,
        outcome="unknown",
        stop_reason=None,
        stop_ns=None,
        workers=tuple(workers),
    )


def _tails(each: _Rank, owners: frozenset[int]) -> Iterable[LogTail]:
    if each.size:
        yield LogTail("stderr", str(each.folder / "stderr.log"), each.stderr, each.size)
    path = each.folder / "stdout.log"
    try:
        found = read_tail(path, TAIL_LIMIT, owners)
    except Malformed:
        return
    if found is not None:
        yield LogTail("stdout", str(path), *found)


def _plain(text: str, file: Path) -> RoundFiles:
    """A job's output with the lines of all ranks in it."""
    ranks, rest = output_text.by_rank(text)
    rows = {row.rank: row for row in output_text.table(text)}
    written_ns = _mtime_ns(file)
    errors: dict[int, RankError] = {}
    for rank in sorted(set(ranks) | set(rows)):
        error = _from_text(ranks.get(rank, ""), rank, None, sure=rank in ranks)
        row = rows.get(rank)
        if error is None and row is not None and row.code != 0 and not row.stopped:
            error = _from_row(row, None)
        if error is not None:
            host = row.host if row is not None and row.host else file.name
            errors[rank] = replace(error, node=host)
    failed = [rank for rank, error in errors.items() if error.exception is None and error.stacks is None]
    before, _, _ = rest.partition("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    before = before[: before.rfind(output_text.HEADER)] if "ChildFailedError" in rest else before
    if len(failed) == 1:
        # One rank failed without a prefix in its last output: the unnamed traceback is its.
        found = _from_text(before, failed[0], None, sure=False)
        if found is not None:
            known = errors[failed[0]]
            found = replace(found, node=known.node, host=known.host, pid=known.pid, exit_code=known.exit_code)
            errors[failed[0]] = found
    tails = {rank: (LogTail("stderr", str(file), ranks.get(rank, before)[-TAIL_LIMIT:], len(text)),) for rank in errors}
    by_node: dict[str, list[Worker]] = {}
    for rank in sorted(set(ranks) | set(rows)):
        error, row = errors.get(rank), rows.get(rank)
        name = row.host if row is not None and row.host else file.name
        by_node.setdefault(name, []).append(_worker(rank, row.local_rank if row else None, error))
    if not errors:
        found = _from_text(before, -1, written_ns, sure=False)
        tails = {-1: (LogTail("stderr", str(file), before, len(text)),)} if found is not None else {}
    return RoundFiles(1, tuple(_node(1, name, workers) for name, workers in by_node.items()), errors, tails)


def _unnamed(files: RoundFiles) -> Iterable[Problem]:
    """A traceback without a rank prefix: reported, but not attributed to a rank."""
    for tail in files.tails.get(-1, ()):
        found = _from_text(tail.text, -1, None, sure=False)
        if found is not None:
            headline = found.message.split("\n", 1)[0][:300]
            yield Problem(tail.path, f"ends with {headline}; its rank is unknown")


def _outputs(path: Path, owners: frozenset[int], problems: list[Problem]) -> Iterable[str]:
    return [text for _, text in _texts(path, owners, problems)]


def _texts(path: Path, owners: frozenset[int], problems: list[Problem]) -> Iterable[tuple[Path, str]]:
    """The output files in a directory, the newest last."""
    try:
        names = [name for name in list_directory(path)[0] if _OUTPUT.fullmatch(name)]
    except Malformed:
        return
    for name in sorted(names, key=lambda n: _mtime_ns(path / n) or 0)[-8:]:
        text = _text(path / name, owners, problems)
        if text is not None:
            yield path / name, text


def _text(path: Path, owners: frozenset[int], problems: list[Problem]) -> str | None:
    try:
        found = read_tail(path, OUTPUT_LIMIT, owners)
    except Malformed as error:
        problems.append(Problem(str(path), str(error)))
        return None
    return found[0] if found is not None else None


def _folders(path: Path) -> list[str]:
    try:
        return list_directory(path)[1]
    except Malformed:
        return []


def _mtime_ns(path: Path) -> int | None:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None


__all__ = ["gather_logs"]
