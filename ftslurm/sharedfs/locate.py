"""Resolve a user's argument to a run directory: a path, a job id, a run's name, or by default the newest run."""

from __future__ import annotations

import heapq
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ftslurm.sharedfs.bounded_read import MAX_ENTRIES, Malformed, parse_json, read_file
from ftslurm.sharedfs.job_runs import pointer_name, runs_beside
from ftslurm.sharedfs.ownership import is_foreign
from ftslurm.sharedfs.rundir import RUNS_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.facts import JobFacts

_JOB_ID = re.compile(r"(\d{1,20})(?:_(\d{1,20}))?")
MOST_RUNS = 1000
"""Number of runs per kind of name that are read in one directory: those that began last.

Reading 100,000 takes 10 s on a cold local disk, and minutes on a file server.
"""
_NUMBERED = re.compile(r"(job|local)-([0-9]{1,20})(?:[^0-9]|$)")
_MARKERS = ("run.json", "state", "rounds", "nodes", "attempts")


class NotFound(LookupError):
    """No run directory matches; the text is for the user and names the searched places.

    Attributes:
        looked: those places, as text; empty where the argument alone was wrong.
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
    """Return the run directory for an argument.

    A run given neither by its path nor by its name is searched among the newest ones only, see `MOST_RUNS`.

    Args:
        argument: a run directory, a job id (``123``, ``123_4``), a run id (``job-123``), or None for the newest run.
        environ: the environment; ``FTSLURM_SHARED_DIR`` is used.
        cwd: the current directory.
        shared_dir: the only shared directory to search, if given.
        job_facts: queries Slurm for a job; None, or a result of None: unknown.

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
    # A run that is named by its default name is searched as its job is: job-123 as 123.
    number = slurm_job(argument) if argument is not None else None
    if number is not None and argument is not None and shared_dir is None:
        found = _pointed_to(cwd, number)
        # Queried last: with slurmctld down the answer takes many seconds.
        facts = job_facts(number) if found is None and job_facts is not None else None
        if facts is not None and facts.work_dir:
            parents.append(Path(facts.work_dir) / RUNS_FOLDER)
            found = _in_parent(parents[-1], argument, job) or _pointed_to(Path(facts.work_dir), number)
        if facts is not None and facts.std_out:
            found = found or _pointed_to(Path(facts.std_out).parent, number)
        if found is not None:
            return found
        if facts is not None and facts.state == "PENDING":
            raise _pending(number, facts, _nothing(argument, cwd, parents).looked)
    raise _nothing(argument, cwd, parents)


def place_of(argument: str | None, environ: Mapping[str, str], cwd: Path, shared_dir: str | None = None) -> Path:
    """Return the path that `locate` reads first, as a name; nothing is read."""
    if argument is not None and ("/" in argument or argument in (".", "..")):
        return cwd / argument
    return _parents(environ, cwd, shared_dir)[0]


def _pointed_to(directory: Path, job_id: str) -> Path | None:
    """Return the target of ftsrun's link; links of other users are not followed."""
    path = directory / pointer_name(job_id)
    try:
        maker, owner = path.lstat().st_uid, path.stat().st_uid
    except OSError:
        return None
    reader = os.geteuid()
    trusted = maker == owner if reader == 0 else maker in (reader, 0)
    return Path(os.path.realpath(path)) if trusted and _is_run(path) else None


def runs_of_job(run: Path) -> list[Path]:
    """Return all runs of the job in the name of `run`, in the order of their starts."""
    try:
        beside = [run.parent / name for name in runs_beside(str(run))]
    except OSError:
        return [run]
    return [path for path in beside if path == run or _is_run(path)]


def array_tasks(run: Path, job: str) -> dict[int, Path]:
    """Return the runs of a job array's tasks, by their task ids in order; empty if `job` is not an array's id.

    Args:
        run: the run that `locate` found for the id.
        job: a job id without a task.
    """
    return _named_tasks(run.parent, job) or (_recorded_tasks(run.parent, job) if _task_of(run, job) else {})


def _named_tasks(parent: Path, job: str) -> dict[int, Path]:
    """Return the tasks' runs by the runs' names: `job-22_1`."""
    of_job = re.compile(rf"job-{job}_([0-9]{{1,20}})(?:-[0-9]+)?")
    runs: dict[int, list[Path]] = {}
    for name, _ in _scan(parent):
        found = of_job.fullmatch(name)
        # In a shared directory anybody can take a name.
        if found and _is_run(parent / name) and not is_foreign(str(parent / name)):
            runs.setdefault(int(found[1]), []).append(parent / name)
    newest = {task: _newest(same) for task, same in sorted(runs.items())[:MOST_RUNS]}
    return {task: run for task, run in newest.items() if run is not None}


def _recorded_tasks(parent: Path, job: str) -> dict[int, Path]:
    """Return the tasks' runs by the records of their attempts, for runs of other names."""
    runs: dict[int, list[Path]] = {}
    for run in _runs(parent):
        task = _task_of(run, job)
        if task is not None:
            runs.setdefault(task, []).append(run)
    newest = {task: _newest(same) for task, same in sorted(runs.items())}
    return {task: run for task, run in newest.items() if run is not None}


def _task_of(run: Path, job: str) -> int | None:
    """Return the task of that array that took part in a run; None: none did."""
    for name in _folders(run / "attempts"):
        array, task = _array_of(run / "attempts" / name / "attempt.json")
        if array == job and task is not None and task.isdecimal():
            return int(task)
    return None


def is_job_id(argument: str) -> bool:
    """Return whether this may be a Slurm job: `123`, or `123_4` for a task of an array."""
    return _JOB_ID.fullmatch(argument) is not None


def slurm_job(argument: str) -> str | None:
    """Return the Slurm job of a job id, or of a run's default name: `123` for `job-123`; None: it is neither."""
    number = argument.removeprefix("job-")
    return number if _JOB_ID.fullmatch(number) is not None else None


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
        # A run of this very name is meant as well as the job's.
        runs += [parent / argument] if _is_run(parent / argument) else []
        # In a shared directory anybody can take a name.
        return _newest([run for run in runs if not is_foreign(str(run))] or runs)
    if job and job[2] is None and (tasks := _named_tasks(parent, job[1])):
        return _newest(tasks.values())
    if _is_run(parent / argument):
        return parent / argument
    # job-123 is the default name of job 123's run, which may have another one.
    job = job or _JOB_ID.fullmatch(argument.removeprefix("job-"))
    return _newest(_with_job(parent, job[1], job[2])) if job else None


def _with_job(parent: Path, job: str, task: str | None) -> Iterable[Path]:
    """Runs that this job took part in, whatever their names: a run keeps its name over resubmissions."""
    for run in _runs(parent):
        attempts = _folders(run / "attempts")
        if task is None:
            if any(name.split(".")[0] == job for name in attempts):
                yield run
        elif any(_array_of(run / "attempts" / name / "attempt.json") == (job, task) for name in attempts):
            yield run


def _array_of(path: Path) -> tuple[str | None, str | None]:
    """Return the array's job id and the task's id by the record of an attempt; None: it was no task of an array.

    The attempt's name contains the task's own job id; only the file contains the array's.
    """
    try:
        data = read_file(path, 1 << 20, frozenset((path.parent.stat().st_uid, 0)))
        value = parse_json(data or b"")
    except (Malformed, OSError):
        return None, None
    found = (value.get(key) for key in ("array_job_id", "array_task_id")) if isinstance(value, dict) else (None, None)
    array, task = (text if isinstance(text, str) else None for text in found)
    return array, task


def _runs(parent: Path) -> list[Path]:
    return [parent / name for name in _begun_last(parent) if _is_run(parent / name)]


def _begun_last(parent: Path) -> list[str]:
    """Return the names of the runs that began last, `MOST_RUNS` of each kind of name, sorted.

    Without a file server call for each: Slurm's job ids increase, a run outside Slurm is named for its start,
    and for other names the inode number is used, which increases on most filesystems.
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
    """The time of the run's last write: its own directory changes only at the start and at the end."""
    return max((_mtime_ns(run / name) for name in ("", "nodes", "state", "rounds")), default=0)


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_run(path: Path) -> bool:
    try:
        return path.is_dir() and any((path / marker).exists() for marker in _MARKERS)
    except (OSError, ValueError):
        return False


def _folders(path: Path) -> list[str]:
    return sorted(name for name, _ in _scan(path))


def _scan(path: Path) -> list[tuple[str, int]]:
    """Return name and inode of each directory in `path`, and of each link, which may point to one."""
    try:
        with os.scandir(path) as entries:
            first = itertools.islice(entries, MAX_ENTRIES)
            # Both come from the directory entry, without a stat.
            return [(one.name, one.inode()) for one in first if one.is_dir(follow_symlinks=False) or one.is_symlink()]
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
    return f"{path} belongs to user id {owner}, you are {os.geteuid()}, and is not readable"


def _not_a_run(path: Path) -> str:
    if closed := _closed(path):
        return closed
    if path.exists() and not path.is_dir():
        return f"expected a run directory, but {path} is not a directory"
    found = "is not there" if not path.exists() else "holds none of " + ", ".join(_MARKERS)
    return f"expected a run directory, but {path} {found}; give the directory named in the job's output"


def _pending(argument: str, facts: JobFacts, looked: str) -> NotFound:
    """Return what to say of a job that has not started; one that `ftslurm restart` has submitted names its run."""
    from ftslurm.slurm.sbatch import run_of_comment

    run = run_of_comment(facts.comment)
    if run is not None:
        return NotFound(
            f"job {argument} is pending; it will go on with the run {run}, which has that name here", looked
        )
    return NotFound(f"job {argument} is pending and has no run yet in {looked}", looked)


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
    only = f", of whose runs only the {MOST_RUNS} newest by name were searched" if many else ""
    meant = _similar_run(argument, parents) if argument is not None else None
    hint = f"did you mean {meant}?" if meant is not None else "give the run directory itself, or --shared-dir"
    text = f"found no {wanted} in {here}{looked}{only}; {hint}"
    return NotFound(text, f"{here}{looked}")


def _similar_run(argument: str, parents: Iterable[Path]) -> str | None:
    """Return the name of the run that a name was probably meant to be; a job's number is never taken for another's."""
    if slurm_job(argument) is not None:
        return None
    from ftslurm.similar import MOST_EDITS, nearest

    names = (name for parent in parents for name, _ in _scan(parent) if len(name) >= len(argument) - MOST_EDITS)
    close = (name for name in names if name[:1] == argument[:1] or name[1:2] == argument[1:2])
    return nearest(argument, itertools.islice(dict.fromkeys(close), MOST_RUNS))
