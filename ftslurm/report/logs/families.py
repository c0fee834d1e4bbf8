"""Which output files belong to one job, by their names: and of which node or task each is (pure).

Numbers in names are of a job, a node, a task, a stream or a date. ``slurm-7.out`` and ``slurm-8.out`` are two jobs;
``771_0.err`` and ``771_1.err``, ``node0.log`` and ``node1.log``, ``log.0`` and ``log.1``, ``7/rank0/stderr`` and
``7/rank1/stderr`` are one. A number counts tasks or nodes if the word before it says so, or if the numbers of the
files count from 0 or 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ftslurm.pattern import pattern

TOGETHER_NS = 600 * 10**9
"""Difference of the times of last writing up to which files that only count are taken for one job's."""
JOB_NUMBER = 100
_OF_SERVER = pattern(r"(?i)server|serving|\bserve|vllm|sglang")
_OUTPUT = pattern(
    r"(?:.*/)?(?:.*\.(?:out|err|log|txt|stdout|stderr|dmesg|journal|o\d+|e\d+)(?:\.\d{1,5})?(?:\.gz)?|slurm-\d[^/]*"
    r"|.*\.(?:error|out)\.\d{4,6}|(?:.*/)?\d{1,12}\.[oe]"
    r"|(?:(?:worker|rank)?log|out|err|stdout|stderr|output)(?:[._-]?\d{1,6}|[._-][A-Za-z][\w-]{0,40}\d)?)"
)
_DATE = pattern(r"(?:19\d|20[0-4])\d(?:[01]\d(?:[0-3]\d(?:\d{4}|\d{6})?)?)?")
_PADDED = pattern(r"0\d{3,5}")
_DIGITS = pattern(r"\d+")
_STREAM = pattern(r"(?:out|err|stdout|stderr|log)(?=\.gz$|$|\d+$)")
_WORD = pattern(r"([A-Za-z]+)[^A-Za-z0-9]*$")
_TASKS = frozenset(("rank", "task", "proc", "process", "worker", "member", "procid", "global"))
_LOCALS = frozenset(("local", "localrank"))
_NODES = frozenset(("node", "host", "nid", "cn", "gn", "n", "nodeid", "nodename"))
_LETTERED = pattern(r"(?<![A-Za-z])(?P<word>(?:node|host|machine|server)[-_]?)(?P<letter>[a-z])(?=[-_.])")
_HOST = pattern(r"[A-Za-z]+(?:-[A-Za-z]+)*-?(?:0\d{1,3}|\d{1,2})")
_STREAMS = frozenset(("log", "out", "err", "stdout", "stderr", "output"))
_HEADS = frozenset(("master", "chief", "launcher"))
_WORKERS = _HEADS | {"worker"}
_JOBS = frozenset(("slurm", "job", "jobid", "run", "exp", "attempt", "try", "trial", "version", "v", "step", "epoch"))


class Output(NamedTuple):
    """An output file.

    Attributes:
        path: where it is, as given to `family`.
        task, node, local: of all its lines, if its name says so.
        part: equal for files of one process, such as ``.out`` and ``.err``.
    """

    path: str
    task: int | None = None
    node: str | None = None
    local: int | None = None
    part: int = 0


def is_output(name: str) -> bool:
    """Whether a file's name is that of a job's output."""
    return _OUTPUT.fullmatch(name) is not None


def is_of_server(name: str) -> bool:
    """Whether a file's name is that of a server's log, which the job's ranks call."""
    return _OF_SERVER.search(name.rpartition("/")[2]) is not None


def is_of_one_job(names: Iterable[str]) -> bool:
    """Whether the names have no more than one job's number among them."""
    jobs: set[str] = set()
    known = list(names)
    if any(_rotated(name, known) for name in known):
        return False
    for name in known:
        for i, number in enumerate(_numbers(name)):
            kind = _kind(name, i)
            if kind == "job" or (kind is None and _may_be_job(number)):
                jobs.add(number)
    return len(jobs) <= 1


def family(of: str, times: Mapping[str, int], beside: Iterable[str] = ()) -> list[Output]:
    """Return the output files of the job to which a file belongs, itself among them, in the order of its parts.

    Args:
        of: the name of the file.
        times: the times of last writing of all output files, by name, in nanoseconds.
        beside: the names of further output files.
    """
    # Nodes that letters count.
    numbered = {_numbered(name): name for name in times}
    if set(numbered) != set(times) and len(numbered) == len(times):
        found = family(_numbered(of), {name: times[own] for name, own in numbered.items()}, beside)
        return [
            each._replace(path=numbered[each.path], node=_lettered(numbered[each.path]) or each.node) for each in found
        ]
    of = _counted_beside(of, times)
    shapes = [name for name in times if _shape(name) == _shape(of) and not _rotated(name, times)] or [of]
    places, counted = _places(of, shapes, times)
    same = [name for name in shapes if all(_numbers(name)[i] == _numbers(of)[i] for i in places)]
    jobs = [number for i, number in enumerate(_numbers(of)) if i in places and _may_be_job(number)]
    # Files of another form that have the job's number: of other nodes, or of the job itself.
    more = [name for name in times if name not in same and jobs and max(jobs, key=int) in _numbers(name)]
    kinds = {i: _kind(of, i) for i in counted}
    # Of job-node-0-0 and job-node-0-1 the second number counts.
    one = {i for i, kind in kinds.items() if kind == "node" and len({_numbers(each)[i] for each in same}) == 1}
    both = {i for i in one if i + 1 in kinds and _before(of, i + 1) == "-" and len(same) > 1}
    # Ranks count from 0: from 1, without a word for what counts, these may be hosts.
    hosts = {i for i, kind in kinds.items() if kind is None and min(int(_numbers(each)[i]) for each in same) > 0}
    kinds = {i: kind for i, kind in kinds.items() if i not in both | hosts}
    # Beside the job's own file, numbers are of tasks; an array has no such file.
    arrays = not {_own_file(each) for each in same} & set(times)
    found = [_output(name, kinds, arrays=arrays) for name in same]
    if (
        _HEADS.intersection(words := {each for name in (*times, *beside) for each in _words(name)})
        and "worker" in words
    ):
        # Kubernetes' operators count workers beside a master: these numbers are no ranks.
        found = [
            each._replace(task=None, node=each.path.rpartition("/")[2].partition(".")[0])
            if _WORKERS.intersection(_words(each.path))
            else each
            for each in found
        ]
    if len(found) == 1 and not more and "worker" in _words(of.rpartition("/")[2]):
        found = [found[0]._replace(task=None)]  # Kubernetes' operators count workers from 0, beside a master of rank 0
    several = {place: len(rows) for place, rows in _rows(found).items()}
    if any(number > 1 for number in several.values()):
        # The same number on several nodes is a local rank.
        found = [each._replace(task=None, local=each.task) if each.node else each for each in found]
    found += [Output(name) for name in more]
    keys: dict[object, int] = {}
    return [each._replace(part=keys.setdefault(_process(each.path), len(keys))) for each in sorted(found, key=_order)]


def _numbered(name: str) -> str:
    """Return a name in which numbers take the place of letters that count nodes: ``node-b.log``, ``node-1.log``."""
    return _LETTERED.sub(lambda found: f"{found['word']}{ord(found['letter']) - ord('a')}", name, count=1)


def _lettered(name: str) -> str | None:
    found = _LETTERED.search(name)
    return None if found is None else found[0]


def _counted_beside(of: str, times: Mapping[str, int]) -> str:
    """Return a file of the same job with a further number in its name, of a task or a node; else the file itself."""
    jobs = [number for number in _numbers(of) if _may_be_job(number)]
    if not jobs:
        return of
    number, own = max(jobs, key=int), len(_numbers(of))
    more = [
        each for each in times if number in _numbers(each) and len(_numbers(each)) > own and not _rotated(each, times)
    ]
    return max(more, key=lambda name: (times[name], name)) if len(more) > 1 else of


def _places(of: str, shapes: Sequence[str], times: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Return which of the numbers in a name must be equal in names of the same job, and which count its parts."""
    fixed: list[int] = []
    counted: list[int] = []
    for i in range(len(_numbers(of))):
        rows = [name for name in shapes if all(_numbers(name)[j] == _numbers(of)[j] for j in fixed)]
        values = {int(_numbers(name)[i]) for name in rows}
        kind = _kind(of, i)
        counts = _counts(values) or (kind is None and all(map(_is_host, rows)))
        if len(values) > 1 and (kind in ("task", "node", "local") or (kind != "job" and counts)):
            certain = kind is not None or any(_may_be_job(_numbers(of)[j]) for j in fixed)
            if certain or all(abs(times.get(name, 0) - times.get(of, 0)) <= TOGETHER_NS for name in rows):
                counted.append(i)
                continue
        elif kind in ("task", "node", "local"):
            counted.append(i)
            continue
        fixed.append(i)
    return fixed, counted


def _kind(name: str, place: int) -> str | None:
    """Return what a number in a name counts, by the word before it."""
    before = _before(name, place)
    # Of weather models: each rank has a file of errors.
    if before.endswith("error.") and _PADDED.fullmatch(_numbers(name)[place]):
        return "task"
    word = _WORD.search(before)
    if word is None:
        return None
    lower = word[1].lower()
    lower = lower.removesuffix("log") or lower
    kinds = (("task", _TASKS), ("local", _LOCALS), ("node", _NODES), ("job", _JOBS), ("stream", _STREAMS))
    found = next((kind for kind, words in kinds if lower in words), None)
    if found == "task" and re.search(r"local[_-]?rank[^A-Za-z0-9]*$", before, re.IGNORECASE):
        return "local"
    return found


def _before(name: str, place: int) -> str:
    numbers = list(_DIGITS.finditer(name))
    return name[numbers[place - 1].end() if place else 0 : numbers[place].start()]


def _may_be_job(number: str) -> bool:
    """Whether it may be a job's number: it is no small one, and no date."""
    return int(number) >= JOB_NUMBER and _DATE.fullmatch(number) is None


def _counts(values: Collection[int]) -> bool:
    """Whether numbers count from 0 or 1, with few left out."""
    return min(values) <= 1 and max(values) < 2 * len(values)


def _is_host(name: str) -> bool:
    """Whether a file may be named after a host: ``gpu11.log``; not after a job, which has a larger number."""
    return _HOST.fullmatch(name.rpartition("/")[2].partition(".")[0]) is not None


def _own_file(name: str) -> str:
    """Return the name of the file of the job itself beside one with a further number."""
    return re.sub(r"_\d+(?=\.)", "", name)


def _output(name: str, kinds: Mapping[int, str | None], *, arrays: bool) -> Output:
    task = node = local = None
    for i, kind in kinds.items():
        number = _numbers(name)[i]
        if kind == "node":
            node = _node(name, i)
        elif kind == "local" or _before(name, i).lower().rstrip("-_.:") in ("gpu", "device", "cuda"):
            local = int(number)
        elif not (arrays and is_of_array(name)):
            task = int(number)
    return Output(name, task, node, local)


def is_of_array(name: str) -> bool:
    """Whether a file is named as that of a task of an array, ``slurm-7_3.out``; those of ranks may be, too."""
    return _ARRAY.fullmatch(_DIGITS.sub("#", name.rpartition("/")[2])) is not None


_ARRAY = pattern(r"slurm-#_#\.(?:out|err)(?:\.gz)?")


def _node(name: str, place: int) -> str:
    number = list(_DIGITS.finditer(name))[place]
    word = re.search(r"[A-Za-z]+-?$", name[: number.start()])
    return f"{word[0] if word else 'node'}{number[0]}"


def _rows(found: Sequence[Output]) -> dict[int, set[str | None]]:
    rows: dict[int, set[str | None]] = {}
    for each in found:
        if each.task is not None:
            rows.setdefault(each.task, set()).add(each.node)
    return rows


def _process(name: str) -> str:
    """A name without its stream: equal for the files of one process."""
    return re.sub(r"(?:out|err|stdout|stderr|log)(?=[._-]|\d|/|$)", "", name.removesuffix(".gz"))


def _order(each: Output) -> tuple[object, ...]:
    """By numbers; files of no single part last, because launchers and Slurm write to them; standard output first."""
    none = each.task is None and each.node is None and each.local is None
    error = re.search(r"err(?=[._-]|\d|/|$)", each.path.rpartition("/")[2]) is not None
    return none, [int(number) for number in _numbers(each.path)], _process(each.path), error, each.path


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", name.lower())


def _rotated(name: str, times: Collection[str]) -> bool:
    """Whether it is an older part of a file that logrotate or the like has put aside."""
    base = re.sub(r"\.\d{1,3}(?:\.gz)?$", "", name)
    return base != name and base in times


def _numbers(name: str) -> list[str]:
    return _DIGITS.findall(name)


def _shape(name: str) -> str:
    return _STREAM.sub("", _DIGITS.sub("#", name.removesuffix(".gz")))
