"""Find the run directory that a user means: a path, a job id, a run's name, or simply the newest."""

from __future__ import annotations

import heapq
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ftslurm.report.reading import MAX_ENTRIES
from ftslurm.sharedfs.job_runs import runs_beside
from ftslurm.sharedfs.ownership import is_foreign
from ftslurm.sharedfs.pointer import pointer_name
from ftslurm.sharedfs.rundir import RUNS_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts

_JOB_ID = re.compile(r"(\d{1,20})(?:_(\d{1,20}))?")
MOST_RUNS = 1000
"""Of a directory with more runs of one kind of name, only so many are looked into: those that began last.

A look into 100,000 takes 10 s on a cold local disk, and minutes on a file server.
"""
_NUMBERED = re.compile(r"(job|local)-([0-9]{1,20})(?:[^0-9]|$)")
_MARKS = ("run.json", "state", "rounds", "nodes", "attempts")


class NotFound(LookupError):
    """No run directory fits; the text is for the user and says where was looked.

    Attributes:
        looked: those places, in words; empty where the argument alone was wrong.
    """

    def __init__(self, text: str, looked: str = "") -> None:
        super().__init__(text)
        self.looked = looked


def locate(
    argument: str | None,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    shared_dir: str | None = None,
    job_facts: Callable[[str], JobFacts | None] | None = None,
) -> Path:
    """Return the run directory that is meant.

    A run that is meant neither by its path nor by its name is looked for among the newest ones only, see `MOST_RUNS`.

    Args:
        argument: a run directory, a job id (``123``, ``123_4``), a run id, or None for the newest run.
        environ: the environment; ``FTSLURM_SHARED_DIR`` is used.
        cwd: the current directory.
        shared_dir: the only shared directory to look in, if given.
        job_facts: asks Slurm for a job; None, or an answer of None: not known.

    Raises:
        NotFound: there is none.
    """
    if argument is not None:
        path = cwd / argument
        if _is_run(path):
            return path
        if "/" in argument or argument in (".", ".."):
            raise NotFound(_not_a_run(path))
    job = _JOB_ID.fullmatch(argument) if argument is not None else None
    parents = _parents(environ, cwd, shared_dir)
    for parent in parents:
        found = _in_parent(parent, argument, job)
        if found is not None:
            return found
    if job is not None and argument is not None and shared_dir is None:
        found = _pointed_to(cwd, argument)
        # Asked last: with slurmctld down the answer takes many seconds.
        facts = job_facts(argument) if found is None and job_facts is not None else None
        if facts is not None and facts.work_dir:
            parents.append(Path(facts.work_dir) / RUNS_FOLDER)
            found = _in_parent(parents[-1], argument, job) or _pointed_to(Path(facts.work_dir), argument)
        if facts is not None and facts.std_out:
            found = found or _pointed_to(Path(facts.std_out).parent, argument)
        if found is not None:
            return found
    raise _nothing(argument, cwd, parents)


def _pointed_to(directory: Path, job_id: str) -> Path | None:
    """Return the run directory that ftsrun's link leads to; a link that another user has made is not followed."""
    path = directory / pointer_name(job_id)
    try:
        maker, owner = path.lstat().st_uid, path.stat().st_uid
    except OSError:
        return None
    reader = os.geteuid()
    trusted = maker == owner if reader == 0 else maker in (reader, 0)
    return Path(os.path.realpath(path)) if trusted and _is_run(path) else None


def runs_of_job(run: Path) -> list[Path]:
    """Return all runs of the job that `run` belongs to by its name, in the order of their starts."""
    try:
        beside = [run.parent / name for name in runs_beside(str(run))]
    except OSError:
        return [run]
    return [path for path in beside if path == run or _is_run(path)]


def is_job_id(argument: str) -> bool:
    """Tell whether this may be a Slurm job: `123`, or `123_4` for a task of an array."""
    return _JOB_ID.fullmatch(argument) is not None


def _parents(environ: Mapping[str, str], cwd: Path, shared_dir: str | None) -> list[Path]:
    if shared_dir is not None:
        return [cwd / shared_dir]
    from_environment = environ.get("FTSLURM_SHARED_DIR")
    parents = ([cwd / from_environment] if from_environment else []) + [cwd / RUNS_FOLDER]
    return list(dict.fromkeys(parents))


def _in_parent(parent: Path, argument: str | None, job: re.Match[str] | None) -> Path | None:
    if argument is None:
        return _newest(_runs(parent))
    if job and (runs := [run for run in runs_of_job(parent / f"job-{argument}") if _is_run(run)]):
        # In a shared directory anybody can take a name.
        return _newest([run for run in runs if not is_foreign(str(run))] or runs)
    if _is_run(parent / argument):
        return parent / argument
    return _newest(_with_job(parent, job[1], job[2])) if job else None


def _with_job(parent: Path, job: str, task: str | None) -> Iterable[Path]:
    """Runs that this job took part in, whatever their name: a run keeps its name over resubmissions."""
    for run in _runs(parent):
        attempts = _folders(run / "attempts")
        if task is None:
            if any(name.split(".")[0] == job for name in attempts):
                yield run
        elif any(_is_task(run / "attempts" / name / "attempt.json", job, task) for name in attempts):
            yield run


def _is_task(path: Path, job: str, task: str) -> bool:
    # An array's element has a job id of its own in the attempt's name; only the file tells the array.
    from ftslurm.report.decode import Malformed
    from ftslurm.report.reading import parse_json, read_file

    try:
        data = read_file(path, 1 << 20, frozenset((path.parent.stat().st_uid, 0)))
        value = parse_json(data or b"")
    except (Malformed, OSError):
        return False
    return isinstance(value, dict) and (value.get("array_job_id"), value.get("array_task_id")) == (job, task)


def _runs(parent: Path) -> list[Path]:
    return [parent / name for name in _begun_last(parent) if _is_run(parent / name)]


def _begun_last(parent: Path) -> list[str]:
    """Return the names of the runs that began last, `MOST_RUNS` of each kind of name, sorted.

    Without a question to the file server for each: Slurm counts jobs up, a run outside Slurm is named for its start,
    and for names of people's own stands the number of the inode, which most filesystems count up.
    """
    kinds: dict[str, list[tuple[int, str]]] = {}
    for name, inode in _scan(parent):
        numbered = _NUMBERED.match(name)
        kind, order = (numbered[1], int(numbered[2])) if numbered else ("", inode)
        kinds.setdefault(kind, []).append((order, name))
    return sorted(name for kind in kinds.values() for _, name in heapq.nlargest(MOST_RUNS, kind))


def _newest(runs: Iterable[Path]) -> Path | None:
    return max(runs, key=_written_ns, default=None)


def _written_ns(run: Path) -> int:
    """When the run was last written to: its own directory changes only at the start and at the end."""
    return max((_mtime_ns(run / name) for name in ("", "nodes", "state", "rounds")), default=0)


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_run(path: Path) -> bool:
    try:
        return path.is_dir() and any((path / mark).exists() for mark in _MARKS)
    except (OSError, ValueError):
        return False


def _folders(path: Path) -> list[str]:
    return sorted(name for name, _ in _scan(path))


def _scan(path: Path) -> list[tuple[str, int]]:
    """Return name and inode of each directory in `path`, and of each link, which may lead to one."""
    try:
        with os.scandir(path) as entries:
            seen = itertools.islice(entries, MAX_ENTRIES)
            # Both are known from the directory itself.
            return [(one.name, one.inode()) for one in seen if one.is_dir(follow_symlinks=False) or one.is_symlink()]
    except OSError:
        return []


def _closed(path: Path) -> str | None:
    """Return why a directory that exists cannot be read; None: it can, or is not there."""
    try:
        owner = path.stat().st_uid
    except (OSError, ValueError):
        return None
    if not path.is_dir() or os.access(path, os.R_OK | os.X_OK):
        return None
    return f"{path} belongs to user id {owner}, you are {os.geteuid()}, and may not be read"


def _not_a_run(path: Path) -> str:
    if closed := _closed(path):
        return closed
    if path.exists() and not path.is_dir():
        return f"expected a run directory, but {path} is not a directory"
    found = "is not there" if not path.exists() else "holds none of " + ", ".join(_MARKS)
    return f"expected a run directory, but {path} {found}; give the directory that the job's output names"


def _nothing(argument: str | None, cwd: Path, parents: list[Path]) -> NotFound:
    looked = ", ".join(str(p) + ("" if p.is_dir() else " (not there)") for p in dict.fromkeys(parents))
    wanted = "run" if argument is None else f"run directory or job {argument!r}"
    here = "" if argument is None else f"{cwd}, "
    if argument is not None:
        for place in (cwd / argument, *(parent / name for parent in parents for name in (argument, f"job-{argument}"))):
            if closed := _closed(place):
                return NotFound(closed, f"{here}{looked}; {closed}")
        if os.path.isfile(cwd / argument):
            return NotFound(_not_a_run(cwd / argument), f"{here}{looked}")
    many = any(len(_scan(parent)) > MOST_RUNS for parent in parents)
    only = f", of whose runs the {MOST_RUNS} newest by name were looked into" if many else ""
    text = f"found no {wanted} in {here}{looked}{only}; give the run directory itself, or --shared-dir"
    return NotFound(text, f"{here}{looked}")
