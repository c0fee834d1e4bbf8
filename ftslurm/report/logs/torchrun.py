"""torchrun's log directory: a folder for each rank of each attempt.

Files in ``--log-dir`` (torch 2.5 to 2.13): ``<run_id>_<random>/attempt_<n>/<local_rank>/`` with stdout.log, stderr.log
and, of scripts under ``@record``, error.json; each agent makes a ``<run_id>_<random>`` of its own. They contain no
ends, no node names and no times but those of the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ftslurm.dataclasses import dataclass, field, replace
from ftslurm.pattern import pattern
from ftslurm.report.facts import UNNAMED, LogTail, Problem, RankError, RoundFiles, RoundNode, Worker, read_error
from ftslurm.report.logs.end import End, Ends
from ftslurm.report.logs.files import Output, excerpt_of, folders, is_output, mtime_ns, outputs
from ftslurm.report.logs.judging import judge
from ftslurm.report.logs.lines import cleaned, labelled, lines_of
from ftslurm.report.logs.rank_errors import UNKNOWN, of_end
from ftslurm.report.logs.success import ends_well
from ftslurm.report.logs.tracebacks import HEADER, tracebacks
from ftslurm.sharedfs.bounded_read import Malformed, list_directory, parse_json, read_file, read_in_parallel

TAIL_LIMIT = 256 * 1024
RECORD_LIMIT = 1 << 20
TEMPFILE_LETTERS = 8
SLACK_NS = 10 * 10**9  # files of two nodes have times of two clocks
BESIDE_NS = 120 * 10**9
BEFORE_NS = 10**9
"""Time after the last line of the ranks in which the launcher writes its table."""
MAX_RUNS, MAX_ATTEMPTS = 4096, 64
DEEPER = 2
"""Further levels of folders in which the agents' ones are sought."""

_ATTEMPT = pattern(r"attempt_(\d{1,6})")
_LOCAL = pattern(r"\d{1,5}")


@dataclass
class _Rank:
    """One worker's folder of one attempt."""

    folder: Path
    local_rank: int
    written_ns: int | None = None
    named: int | None = None
    record: RankError | None = None
    error: RankError | None = None
    tails: tuple[LogTail, ...] = ()
    hooked: bool = False  # whether torch's hook printed an exception, which nothing caught
    survived: bool = False  # whether it printed a traceback and then that it had done its work
    by_resort: bool = False  # whether the error is only stated, see `Judged`
    problems: list[Problem] = field(default_factory=list)


def runs_in(path: Path) -> list[Path]:
    """Return the folders of the newest job's agents in a log directory; empty if it is none."""
    return _together(_runs(path))


def outputs_beside(path: Path, runs: Sequence[Path]) -> list[Output]:
    """Return the launcher's own output: in the log directory, or beside it if it was written at the same time."""
    inside = outputs(path)
    if inside:
        return inside
    ended = max(_span(run)[1] for run in runs)
    try:
        beside = [name for name in list_directory(path.parent)[0] if is_output(name)]
    except Malformed:
        return []
    found = outputs(path.parent)
    names = {each.path.name for each in found}
    # More than one that would fit: which one is this job's cannot be known.
    times = [mtime_ns(path.parent / name) or 0 for name in beside if name not in names]
    if any(abs(time - ended) <= BESIDE_NS for time in times):
        return []
    # A launcher writes last, when its ranks have ended.
    written = [(each, (mtime_ns(each.path) or 0) - ended) for each in found]
    return [each for each, after in written if -BEFORE_NS <= after <= BESIDE_NS]


def _runs(path: Path) -> list[Path]:
    """The folders that contain ``attempt_<n>``: the path itself, or those in it."""
    if _ATTEMPT.fullmatch(path.name):
        path = path.parent
    below = folders(path)
    if any(_ATTEMPT.fullmatch(name) for name in below):
        return [path]
    found = [path / name for name in below[:MAX_RUNS] if any(map(_ATTEMPT.fullmatch, folders(path / name)))]
    if found:
        return found
    # Of a job's directory, in which the log directory is one of several, or has a folder for each node.
    deeper = [path / name for name in below[:MAX_RUNS]]
    for _ in range(DEEPER):
        deeper = [each / inner for each in deeper for inner in folders(each)[:MAX_RUNS]][:MAX_RUNS]
        if found := [each for each in deeper if any(map(_ATTEMPT.fullmatch, folders(each)))]:
            break
    return found


def _together(runs: list[Path]) -> list[Path]:
    """Of several folders, the newest and those of the same job: the same run id and overlapping write times."""
    spans = {run: _span(run) for run in runs}
    if len(runs) < 2:
        return runs
    newest = max(runs, key=lambda run: spans[run][1])
    begin, end = spans[newest][0] - SLACK_NS, spans[newest][1]
    name = _run_id(newest)
    return [r for r in runs if _run_id(r) == name and spans[r][0] <= end and spans[r][1] >= begin]


def _run_id(run: Path) -> str:
    """The part of a folder's name before the eight letters that tempfile adds, which may contain "_"."""
    return run.name[: -len("_") - TEMPFILE_LETTERS]


def _span(run: Path) -> tuple[int, int]:
    """The start of its first attempt and its last write, by the files' times."""
    times = []
    for attempt in folders(run):
        for local in folders(run / attempt):
            folder = run / attempt / local
            times += [mtime_ns(p) for p in (folder, folder / "stderr.log", folder / "stdout.log")]
    known = [t for t in times if t is not None]
    return (min(known), max(known)) if known else (0, 0)


def rounds_of(runs: list[Path], owners: frozenset[int], ends: Ends, problems: list[Problem]) -> list[RoundFiles]:
    """Return a round for each attempt.

    Args:
        runs: the agents' folders.
        owners: the trusted owners of files.
        ends: what the launcher's output states; its table is about the last attempt.
        problems: is extended by the files that are unusable.
    """
    numbers = {int(found[1]) for run in runs for name in folders(run) if (found := _ATTEMPT.fullmatch(name))}
    chosen = sorted(numbers)[-MAX_ATTEMPTS:]
    while len(chosen) > 1 and not _has_output(runs, chosen[-1]):
        chosen.pop()  # it was stopped before it printed anything
    return [
        _round(runs, n, owners, _of_attempt(ends.processes, i, last=n == chosen[-1]), problems)
        for i, n in enumerate(chosen)
    ]


def _has_output(runs: Sequence[Path], attempt: int) -> bool:
    """Return whether a rank of an attempt has printed or recorded anything."""
    places = [run / f"attempt_{attempt}" for run in runs]
    ranks = [place / name for place in places for name in folders(place)]
    return any(_size(rank / name) for rank in ranks for name in ("stderr.log", "stdout.log", "error.json"))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _of_attempt(ends: Sequence[End], i: int, *, last: bool) -> list[End]:
    """Return the launcher's statements on the ends of an attempt: each agent names a failure of each, in order."""
    by_agent: dict[str | None, list[End]] = {}
    for end in ends:
        if end.by == "torchrun":
            by_agent.setdefault(end.agent, []).append(end)
    # A log that does not name its agents, or begins later, may miss some.
    found = [own[i] for agent, own in by_agent.items() if agent and i < len(own)]
    return [*found, *(end for end in ends if last and (end.by != "torchrun" or not end.agent))]


def _round(
    runs: list[Path], attempt: int, owners: frozenset[int], ends: Sequence[End], problems: list[Problem]
) -> RoundFiles:
    places = [run / f"attempt_{attempt}" for run in runs]
    groups = [[_Rank(place / n, int(n)) for n in folders(place) if _LOCAL.fullmatch(n)] for place in places]
    all_ranks = [rank for group in groups for rank in group]
    for _ in read_in_parallel(lambda rank: _read(rank, owners), all_ranks):
        pass
    if any(each.error is not None and not each.by_resort for each in all_ranks):
        # What a rank only stated was survived, or follows, where another one's failure is known.
        for each in all_ranks:
            each.error = None if each.by_resort else each.error
    firsts = _first_ranks(groups)
    nodes: list[RoundNode] = []
    errors: dict[int, RankError] = {}
    tails: dict[int, tuple[LogTail, ...]] = {}
    unknown = UNKNOWN
    of_nodes = len({run.parent for run in runs}) == len(runs)
    for run, group, first in zip(runs, groups, firsts, strict=True):
        # The name of a folder stands for its node where there are several.
        node = (run.parent if of_nodes else run).name if len(runs) > 1 else UNNAMED
        workers = []
        for each in group:
            problems += each.problems
            rank = unknown if first is None else first + each.local_rank
            unknown -= first is None
            end = _end_of(each, rank, ends, sole=len(runs) == 1)
            error = _error(each, rank, node, end)
            if error is not None:
                errors[rank], tails[rank] = error, each.tails
            workers.append(worker_of(rank, each.local_rank, error))
        nodes.append(round_node(attempt + 1, node, workers))
    world = len(all_ranks)
    whole = sorted(w.rank for n in nodes for w in n.workers) == list(range(world))
    nodes = [replace(node, world_size=world if whole else None) for node in nodes]
    return RoundFiles(attempt + 1, tuple(nodes), errors, tails)


def _first_ranks(groups: Sequence[Sequence[_Rank]]) -> list[int | None]:
    """The first rank of each agent, by a rank that is named in its output; None: it cannot be known."""
    firsts = [
        next((r.named - r.local_rank for r in group if r.named is not None and r.named >= r.local_rank), None)
        for group in groups
    ]
    size = {len(group) for group in groups}
    if None in firsts and len(size) == 1 and firsts.count(None) == 1:
        free = set(range(0, len(groups) * min(size), min(size) or 1)) - set(firsts)
        return [min(free) if first is None and len(free) == 1 else first for first in firsts]
    return firsts


def _read(rank: _Rank, owners: frozenset[int]) -> None:
    path = rank.folder / "error.json"
    try:
        data = read_file(path, RECORD_LIMIT, owners)
        if data is not None:
            record, unusable = read_error(parse_json(data))
            rank.record = RankError.of(record, 0)
            rank.named = record.rank if record.rank is not None and 0 <= record.rank < 10**6 else rank.named
            if unusable is not None:
                rank.problems.append(Problem(str(path), unusable))
    except Malformed as error:
        rank.problems.append(Problem(str(path), str(error)))
    rank.written_ns = mtime_ns(rank.folder / "stderr.log")
    found = []
    for stream in ("stderr", "stdout"):
        path = rank.folder / f"{stream}.log"
        excerpt = excerpt_of(path, owners, rank.problems)
        if excerpt is None:
            continue
        lines = lines_of(excerpt)
        if excerpt.size:
            text = "\n".join(line.text for line in lines[-2000:])
            found.append(LogTail(stream, str(path), text[-TAIL_LIMIT:], excerpt.size))
        if rank.named is None:
            rank.named = next((line.rank for line in lines if line.rank is not None), None)
        hooked = any(line.rank is not None and HEADER in line.text for line in lines)
        if (
            stream == "stdout"
            and ends_well(lines, sole=True)
            and rank.error is not None
            and (rank.error.kind == "exception" or rank.by_resort)
        ):
            rank.survived = not rank.hooked
        rank.hooked = rank.hooked or hooked
        if rank.error is None:
            judged = judge([line._replace(local=None) for line in lines], rank=0)
            rank.error, rank.by_resort = next(iter(judged.errors.values()), None), judged.by_resort
    rank.tails = tuple(found)


def _end_of(each: _Rank, rank: int, ends: Sequence[End], *, sole: bool) -> End | None:
    """The launcher's statement on a rank's end."""
    known = [end for end in ends if not end.stopped and end.code != 0]
    by_table = [end for end in known if end.by == "table" and end.rank == rank]
    by_agent = [end for end in known if end.by == "torchrun" and sole and end.local == each.local_rank]
    return next(iter([*by_table, *by_agent]), None)


def _error(each: _Rank, rank: int, node: str, end: End | None) -> RankError | None:
    """The failure of a worker: from its own record, else its output, else the launcher's statement."""
    error = None if each.survived and end is None else each.error
    record = each.record
    if record is not None and (record.exception is not None or record.kind != "exception"):
        return replace(record, rank=rank)
    if record is not None:
        # torch's record has the exception chain only as text.
        raised = tracebacks(labelled(cleaned(record.traceback or "")))
        exception = raised[-1].exception if raised else None
        return replace(record, rank=rank, node=node, local_rank=each.local_rank, exception=exception)
    if error is None and end is not None:
        error = of_end(end, rank)
    elif error is not None and end is not None and error.exit_code is None and error.kind != "signal":
        error = replace(error, exit_code=end.code, host=end.node, pid=end.pid)
    if error is None:
        return None
    host = error.host
    return replace(error, rank=rank, node=node, host=host, local_rank=each.local_rank, time_ns=each.written_ns, order=0)


def worker_of(rank: int, local_rank: int | None, error: RankError | None) -> Worker:
    """Return the record of a worker, by its failure."""
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


def round_node(number: int, name: str, workers: Iterable[Worker]) -> RoundNode:
    """Return the record of a node, or of a folder, in an attempt."""
    return RoundNode(
        round=number,
        attempt=f"attempt_{number - 1}",
        node=name,
        incarnation=None,
        host=None,
        agent_pid=None,
        group_rank=None,
        world_size=None,
        master=None,
        started_ns=None,
        ended_ns=None,
        outcome="unknown",
        stop_reason=None,
        stop_ns=None,
        workers=tuple(workers),
    )
