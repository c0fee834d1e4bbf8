"""The output files of a job in a directory, found and read (thin); `ftslurm.report.logs.families` knows their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ftslurm.pattern import pattern
from ftslurm.report.facts import Problem
from ftslurm.report.logs.condor import is_log_of_events
from ftslurm.report.logs.ends import ends_of
from ftslurm.report.logs.families import TOGETHER_NS, family, is_of_array, is_of_one_job, is_of_server, is_output
from ftslurm.report.logs.lines import Line, lines_of
from ftslurm.report.logs.reading import Excerpt, read_path
from ftslurm.report.logs.success import ends_well
from ftslurm.report.logs.tracebacks import names_rank
from ftslurm.sharedfs.bounded_read import Malformed, list_directory
from ftslurm.text import names as listed
from ftslurm.text import plural

MAX_FILES = 4096
MAX_FOLDERS = 256
_OF_RANK = pattern(r"(?i)std(?:out|err)|rank[-_.]?\d|\.(?:out|err|log)\.txt")
"""In names of texts that are a job's output."""
_ABOUT = pattern(
    r"(?i)(?:.*[-_.])?(?:describe|events?|dmesg|journal|sacct|scontrol|seff|kubectl|k8s|pods)\b.*\.(?:txt|log|out)"
    r"|.*\.(?:dmesg|journal)"
)
"""Names of files in which a user keeps what tools print about a job."""
_COLLECTED = pattern(r".*\.(?:jsonl|ndjson)(?:\.gz)?|.*\.[oe]")
"""Names of what a log collector writes, and of output without a job's number."""
DEPTH = 2
"""Levels of folders that are searched where a directory itself has no output file."""


class Output(NamedTuple):
    """An output file; ``task``, ``node``, ``local``: of all its lines; ``part``: equal for files of one process."""

    path: Path
    task: int | None = None
    node: str | None = None
    local: int | None = None
    part: int = 0


def outputs(folder: Path, job: str | None = None, *, depth: int = 0) -> list[Output]:
    """Return the output files of a job in a directory, in the order of parts and streams; None: of the newest one.

    Args:
        folder: the directory.
        job: the job.
        depth: levels of folders that are searched if the directory itself has no output file.
    """
    times = _times(folder, depth)
    if job is not None:
        times = {name: time for name, time in times.items() if job in _jobs(name)}
    if not times:
        return []
    about = {name: time for name, time in times.items() if _ABOUT.fullmatch(name)}
    times = {name: time for name, time in times.items() if name not in about} or times
    # A server that the ranks call may go on after them.
    times = {name: time for name, time in times.items() if not is_of_server(name)} or times
    newest = max(times, key=lambda name: (times[name], name))
    found = _of_family(folder, newest, times, about)
    found = found if job is not None else _with_unnumbered(folder, found, times)
    found += _about(folder, about, found, times[newest]) if job is None else []
    return [*_per_rank_below(folder, times[newest], found), *found] if depth and job is None else found


def _about(folder: Path, about: Mapping[str, int], found: Sequence[Output], written_ns: int) -> list[Output]:
    """Return the files with what tools print about the job, written at the time of its output or later."""
    part = 1 + max(each.part for each in found)
    read = {each.path for each in found}
    those = [folder / name for name, time in sorted(about.items()) if time >= written_ns - TOGETHER_NS]
    return [Output(path, part=part + i) for i, path in enumerate(those) if path not in read]


def _with_unnumbered(folder: Path, found: list[Output], times: dict[str, int]) -> list[Output]:
    """Return a job's files with those beside them that no number gives to another job, written at the same time."""
    newest, only = max(times.values()), found
    if not is_of_one_job(times) or any(newest - time > TOGETHER_NS for time in times.values()):
        return found
    read = {each.path for each in found}
    while rest := {name: time for name, time in times.items() if folder / name not in read}:
        more = [each for each in _of_family(folder, max(rest), rest, times) if each.path not in read]
        first = 1 + max(each.part for each in found)
        found = [*found, *(each._replace(part=first + each.part) for each in more)]
        read |= {each.path for each in more}
    named = [each for each in found if (each.task, each.node, each.local) != (None, None, None)]
    # Launchers and Slurm write to the others; without files of ranks, others are of other programs.
    return [*named, *(each for each in found if each not in named)] if named else only


def _per_rank_below(folder: Path, written_ns: int, beside: Sequence[Output]) -> list[Output]:
    """Return the files of single ranks in a folder of the directory, written at the same time as a job's own output."""
    if any(each.task is not None or each.node or each.local is not None or "/" in str(each.path.relative_to(folder))
           for each in beside):  # fmt: skip
        return []
    times: dict[str, int] = {}
    for name in folders(folder)[:MAX_FOLDERS]:
        times |= {each: time for each, time in _times_in(folder, f"{name}/").items() if is_output(each)}
    times = {name: time for name, time in times.items() if abs(time - written_ns) <= TOGETHER_NS}
    if not times:
        return []
    found = _of_family(folder, max(times, key=lambda name: (times[name], name)), times)
    several = len({each.part for each in found}) > 1 and all(each[1:4] != (None, None, None) for each in found)
    first = 1 + max(each.part for each in beside)
    return [each._replace(part=first + each.part) for each in found] if several else []


def siblings(path: Path) -> list[Path]:
    """Return the other output files of the job to which a file belongs."""
    times = {name: time for name, time in _times_in(path.parent, "").items() if is_output(name)}
    if path.name not in times:
        return []
    return [each.path for each in _of_family(path.parent, path.name, times) if each.path.name != path.name]


def unread_files(folder: Path, those: Sequence[Output]) -> list[str]:
    """Return the names of the output files of a directory that were not read."""
    read = {each.path for each in those}
    return [name for name in _times(folder, DEPTH) if folder / name not in read]


def unread(folder: Path, those: Sequence[Output]) -> list[str]:
    """Return a note on the output files of a directory that were not read, and on what was; empty: there is none."""
    read = {each.path for each in those}
    left = unread_files(folder, those)
    notes = []
    if len({each.part for each in those}) > 1:
        shown = listed([str(each.path.relative_to(folder)) for each in those])
        notes.append(f"read as one job's: {plural(len(those), 'file')} ({shown})")
    if below := _below(folder, {*read, *(folder / name for name in left)}):
        notes.append(f"not read, in folders below: {plural(len(below), 'file')} ({listed(below)})")
    if left:
        numbered = not is_of_one_job([*left, *(str(each.path.relative_to(folder)) for each in those)])
        why = "as of other jobs" if numbered else "perhaps of another run or program; name it to read it"
        notes.append(f"not read, {why}: {plural(len(left), 'file')} ({listed(sorted(left))})")
    return notes


def _below(folder: Path, known: Collection[Path]) -> list[str]:
    """Return the output files in folders of a directory that itself has some, so that these were not searched."""
    if any(path.parent != folder for path in known):
        return []
    level, found = [""], list[str]()
    for _ in range(DEPTH + 1):
        level = [f"{each}{name}/" for each in level for name in folders(folder / each)][:MAX_FOLDERS]
        found += [name for each in level for name in _times_in(folder, each) if is_output(name) and _is_log(name)]
    return sorted(found)[:MAX_FILES]


def beside(path: Path) -> list[str]:
    """Return a note on the files that are named as of the same job as the only one that was read."""
    others = siblings(path)
    if not others:
        return []
    several = "have" if len(others) > 1 else "has"
    shown = listed([each.name for each in others])
    number = plural(len(others), "file")
    return [f"{number} beside it {several} a name as of the same job ({shown}): if so, name the directory"]


def _of_family(folder: Path, name: str, times: dict[str, int], beside: Iterable[str] = ()) -> list[Output]:
    return [Output(folder / each.path, *each[1:]) for each in family(name, times, beside)]


def _times(folder: Path, depth: int) -> dict[str, int]:
    """Return the times of the output files in a directory; of one without, of those in its folders."""
    level = [""]
    for _ in range(depth + 1):
        every = {name: time for each in level for name, time in _times_in(folder, each).items()}
        found = {name: time for name, time in every.items() if is_output(name)}
        # Text is a job's output only where nothing else is, and JSON lines where no text is.
        found = {name: time for name, time in found.items() if _is_log(name)} or found
        found = found or {name: time for name, time in every.items() if _COLLECTED.fullmatch(name)}
        if found:
            return dict(list(found.items())[:MAX_FILES])
        level = [f"{each}{name}/" for each in level for name in folders(folder / each)][:MAX_FOLDERS]
    return {}


def _is_log(name: str) -> bool:
    return ".txt" not in name or _OF_RANK.search(name) is not None or _ABOUT.fullmatch(name) is not None


def _times_in(folder: Path, below: str) -> dict[str, int]:
    try:
        names = list_directory(folder / below if below else folder)[0]
    except Malformed:
        return {}
    return {f"{below}{name}": mtime_ns(folder / below / name) or 0 for name in names}


def _jobs(name: str) -> set[str]:
    digits = "".join(each if each.isdigit() else " " for each in name).split()
    return {*digits, "_".join(digits[:2])}


def read_outputs(
    those: Sequence[Output], owners: frozenset[int], problems: list[Problem]
) -> tuple[list[Line], list[tuple[Path, Excerpt]]]:
    """Return the lines of these files, one after another, and what was read."""
    parts: dict[int, list[tuple[Output, list[Line]]]] = {}
    read: list[tuple[Path, Excerpt]] = []
    for output in those:
        excerpt = excerpt_of(output.path, owners, problems)
        if excerpt is not None:
            read.append((output.path, excerpt))
            parts.setdefault(output.part, []).append((output, lines_of(excerpt)))
    named, series = _ranks_in(parts), _hosts_in(parts)
    parts = {
        key: [(_of_host(each._replace(task=named.get(each.path, each.task)), series), own) for each, own in part]
        for key, part in parts.items()
    }
    lines: list[Line] = []
    for part in parts.values():
        # Which of a process's streams was written last cannot be seen: its words on its own success are the last ones.
        # A scheduler knows more of the end.
        for output, own in sorted(part, key=lambda each: (is_log_of_events(each[1]), ends_well(each[1], sole=False))):
            lines += [_named(line, len(lines) + i, output) for i, line in enumerate(own)]
    return lines, read


def _ranks_in(parts: Mapping[int, Sequence[tuple[Output, Sequence[Line]]]]) -> dict[Path, int]:
    """Return the ranks of files that are named as an array's, where the first rank in each is its number."""
    numbers: dict[Path, int] = {}
    for output, own in (each for part in parts.values() for each in part):
        if output.task is None and is_of_array(output.path.name):
            number = int(re.findall(r"\d+", output.path.name)[-1])
            first = next((rank for line in own if (rank := _first_rank(line)) is not None), None)
            if first != number:
                return {}
            numbers[output.path] = number
    return numbers if len(numbers) > 1 else {}


def _hosts_in(parts: Mapping[int, Sequence[tuple[Output, Sequence[Line]]]]) -> set[str]:
    """Return what the names of files begin with, before a number, of which Slurm's programs name one as a host's."""
    outputs_ = [(output, own) for part in parts.values() for output, own in part if output.node is None]
    ends = [ends_of(own) for _, own in outputs_] if len(outputs_) > 1 else []
    hosts = {end.node for each in ends for end in each.processes} | {end.node for each in ends for end in each.job}
    return {_series(name) for output, _ in outputs_ if (name := _stem(output)) in hosts}


def _of_host(output: Output, series: Collection[str]) -> Output:
    """Return an output that is named after a host, whose number is none of a task."""
    name = _stem(output)
    return output._replace(task=None, node=name) if output.node is None and _series(name) in series else output


def _stem(output: Output) -> str:
    return output.path.name.partition(".")[0]


def _series(name: str) -> str:
    return name.rstrip("0123456789")


def _first_rank(line: Line) -> int | None:
    return names_rank(line.text) if line.rank is None else line.rank


def _named(line: Line, number: int, output: Output) -> Line:
    """A line with what the name of its file says, where its own label does not."""
    task = output.task if line.task is None else line.task
    local = output.local if line.local is None else line.local
    return line._replace(number=number, task=task, node=line.node or output.node, local=local, part=output.part)


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


__all__ = [
    "DEPTH",
    "Output",
    "beside",
    "excerpt_of",
    "folders",
    "is_output",
    "mtime_ns",
    "outputs",
    "owners_of",
    "read_outputs",
]
__all__ += ["siblings", "unread"]
