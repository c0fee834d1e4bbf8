"""Which files of a directory are the newest job's output, and of which rank or node each is (thin).

Names are compared with their numbers: ``slurm-4711.out`` and ``slurm-4711.err`` are one job; so are ``4711_0_log.out``,
``4711_1_log.out``, ... of submitit, and ``rank0.log``, ``rank1.log``, ... The tasks of an array are jobs of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ftslurm.report.facts import Problem
from ftslurm.report.logs.lines import Line, lines_of
from ftslurm.report.logs.reading import Excerpt, read_path
from ftslurm.sharedfs.bounded_read import Malformed, list_directory

MAX_FILES = 4096
_OUTPUT = re.compile(r".*\.(?:out|err|log|txt|stdout|stderr|o\d+|e\d+)(?:\.gz)?|slurm-\d.*")
_DIGITS = re.compile(r"\d+")
_STREAM = re.compile(r"(?:out|err|stdout|stderr|log)(?=\.gz$|$|\d+$)")
_PER_RANK = re.compile(r"rank|task|worker|proc|local|#_#_log\.|#-#-#")
_ARRAY = re.compile(r"slurm-#_#\.(?:out|err)")


class Output(NamedTuple):
    """An output file: ``rank``: of all its lines, if each rank has its own file."""

    path: Path
    rank: int | None


def is_output(name: str) -> bool:
    """Whether a file's name is that of a job's output."""
    return _OUTPUT.fullmatch(name) is not None


def outputs(folder: Path, job: str | None = None) -> list[Output]:
    """Return the output files of a job in a directory, in the order of ranks and streams; None: of the newest one."""
    try:
        names = [name for name in list_directory(folder)[0] if is_output(name)][:MAX_FILES]
    except Malformed:
        return []
    if job is not None:
        names = [name for name in names if job in (*_numbers(name), "_".join(_numbers(name)[:2]))]
    if not names:
        return []
    times = {name: mtime_ns(folder / name) or 0 for name in names}
    newest = max(names, key=lambda name: (times[name], name))
    alike = [name for name in names if _shape(name) == _shape(newest)]
    place = _rank_place(newest, alike)
    if place is None:
        own = [name for name in alike if _numbers(name) == _numbers(newest)]
        return [Output(folder / name, None) for name in sorted(own, key=_stream_order)]
    same = [name for name in alike if _without(name, place) == _without(newest, place)]
    return [
        Output(folder / name, int(_numbers(name)[place]))
        for name in sorted(same, key=lambda name: (int(_numbers(name)[place]), _stream_order(name)))
    ]


def _rank_place(newest: str, alike: Sequence[str]) -> int | None:
    """Return which of the numbers in the names is the rank: it counts from 0, and the name says so."""
    shape = _DIGITS.sub("#", newest)
    if _ARRAY.fullmatch(shape) or not _PER_RANK.search(shape):
        return None
    for place in reversed(range(len(_numbers(newest)))):
        same = {int(_numbers(n)[place]) for n in alike if _without(n, place) == _without(newest, place)}
        if len(same) > 1 and same == set(range(len(same))):
            return place
    return None


def _numbers(name: str) -> list[str]:
    return _DIGITS.findall(name)


def _without(name: str, place: int) -> list[str]:
    numbers = _numbers(name)
    return numbers[:place] + numbers[place + 1 :]


def _shape(name: str) -> str:
    return _STREAM.sub("", _DIGITS.sub("#", name.removesuffix(".gz")))


def _stream_order(name: str) -> tuple[bool, str]:
    """Standard output first: launchers and Slurm write to the other."""
    return "err" in name.rsplit(".", 2)[-1] or ".err" in name, name


def read_outputs(
    those: Sequence[Output], owners: frozenset[int], problems: list[Problem]
) -> tuple[list[Line], list[tuple[Path, Excerpt]]]:
    """Return the lines of these files, one after another, and what was read."""
    lines: list[Line] = []
    read: list[tuple[Path, Excerpt]] = []
    for output in those:
        excerpt = excerpt_of(output.path, owners, problems)
        if excerpt is None:
            continue
        read.append((output.path, excerpt))
        own = lines_of(excerpt)
        task = output.rank
        lines += [line._replace(number=len(lines) + i) if task is None else _named(line, len(lines) + i, task)
                  for i, line in enumerate(own)]  # fmt: skip
    return lines, read


def _named(line: Line, number: int, task: int) -> Line:
    return line._replace(number=number, task=task)


def excerpt_of(path: Path, owners: frozenset[int], problems: list[Problem]) -> Excerpt | None:
    """Read a file; what is wrong with it becomes a problem."""
    try:
        excerpt = read_path(path, owners)
    except Malformed as error:
        problems.append(Problem(str(path), str(error)))
        return None
    if excerpt is not None and excerpt.problem:
        problems.append(Problem(str(path), excerpt.problem))
    return excerpt


def mtime_ns(path: Path) -> int | None:
    """Return a file's time; None if there is none."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None


def folders(path: Path) -> list[str]:
    """Return the names of the directories in a directory."""
    try:
        return list_directory(path)[1]
    except Malformed:
        return []


def owners_of(paths: Iterable[Path]) -> frozenset[int]:
    """Return the trusted owners of a job's output: those of the named paths, and root."""
    return frozenset({path.stat().st_uid for path in paths} | {0})


__all__ = ["Output", "excerpt_of", "folders", "is_output", "mtime_ns", "outputs", "owners_of", "read_outputs"]
