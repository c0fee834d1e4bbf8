"""Which task of a job array a command is for, when the user gave the array's job id alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ftslurm.dataclasses import dataclass
from ftslurm.terminal import UsageError, print_error
from ftslurm.text import clip, ranges, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.runs.overview import Overview

PREFERRED = (("failed",), ("silent", "ended", "unknown"))
"""States of the task that is shown, the best first: the user most likely asks for what went wrong."""
WIDTH = 200


@dataclass(frozen=True)
class ArrayTask:
    """A task that has a run, with what `ftslurm list` prints of that."""

    job: str
    number: int
    path: Path
    run: Overview

    @property
    def name(self) -> str:
        """Its job id for Slurm and for these commands."""
        return f"{self.job}_{self.number}"


def tasks_of(argument: str | None, found: Path) -> list[ArrayTask]:
    """Return the tasks of an array that have a run, by their numbers; empty unless there are several.

    Args:
        argument: what the user gave; a job id without a task may be an array's.
        found: the run that it was resolved to.
    """
    from ftslurm.sharedfs.job_runs import first_run
    from ftslurm.sharedfs.locate import array_tasks, is_job_id

    if argument is None or not is_job_id(argument) or "_" in argument:
        return []
    if first_run(found.name) == f"job-{argument}":
        # The run of a job that is no array; its directory may hold 100,000 others.
        return []
    runs: Mapping[int, Path] = array_tasks(found, argument)
    if len(runs) < 2:
        return []
    from ftslurm.runs.overview import overview

    return [ArrayTask(argument, number, path, overview(str(path))) for number, path in runs.items()]


def shown_task(command: str, argument: str | None, found: Path) -> Path:
    """Return the run to show; of an array's tasks one that failed, and name the others on stderr.

    On stderr, because the output may be JSON.
    """
    tasks = tasks_of(argument, found)
    if not tasks:
        return found
    shown = _preferred(tasks, found)
    other = next(task for task in tasks if task is not shown)
    print_error(
        f"ftslurm {command}: {summary(tasks)}; task {shown.number} is shown, "
        f"another one by: ftslurm {command} {other.name}"
    )
    return shown.path


def _preferred(tasks: Sequence[ArrayTask], found: Path) -> ArrayTask:
    for states in PREFERRED:
        for task in tasks:
            if task.run.state in states:
                return task
    return next((task for task in tasks if task.path == found), tasks[0])


def only_task(command: str, argument: str | None, found: Path, fits: Callable[[Overview], bool], none: str) -> Path:
    """Return the run to act on: of an array's tasks the only one that fits.

    Args:
        fits: whether the command makes sense for a task.
        none: why it makes sense for none, as "none of them runs".

    Raises:
        UsageError: none or several do; one line that names all.
    """
    tasks = tasks_of(argument, found)
    if not tasks:
        return found
    fitting = [task for task in tasks if fits(task.run)]
    if len(fitting) == 1:
        return fitting[0].path
    if not fitting:
        raise UsageError(f"{summary(tasks)}; {none}")
    raise UsageError(f"{summary(tasks)}; name one task, as in: ftslurm {command} {fitting[0].name}")


def summary(tasks: Sequence[ArrayTask]) -> str:
    """``job 22 is an array: task 2 failed; tasks 1, 3 succeeded`` (pure)."""
    by_state: dict[str, list[int]] = {}
    for task in tasks:
        by_state.setdefault(task.run.state, []).append(task.number)
    order = [state for states in PREFERRED for state in states]
    states = sorted(by_state, key=lambda state: (order.index(state) if state in order else len(order), state))
    parts = [_part(state, by_state[state]) for state in states]
    return f"job {safe(tasks[0].job)} is an array: {'; '.join(parts)}"


def _part(state: str, numbers: Sequence[int]) -> str:
    verb = "" if state in ("failed", "succeeded") else "is " if len(numbers) == 1 else "are "
    return f"task{'s' if len(numbers) > 1 else ''} {clip(ranges(numbers), WIDTH)} {verb}{safe(state)}"
