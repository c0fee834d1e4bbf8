"""Which runs may be removed, and why others stay (pure); and the table of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.runs.overview import OUTCOMES, UNSTARTED, Overview, job_in_queue
from ftslurm.runs.removal import Mark, Usage
from ftslurm.slurm.queue import QueuedJob
from ftslurm.status.table import columns
from ftslurm.text import clip, duration, plural, safe, size

SHOWN = 40


@dataclass(frozen=True)
class Old:
    """A run that has not changed for long.

    Attributes:
        mark: of its directory when it was judged.
        stays: why it is not removed; None: it may be.
        usage: what it occupies; None: it was not measured.
    """

    run: Overview
    mark: Mark
    stays: str | None = None
    usage: Usage | None = None


def why_it_stays(run: Overview, queue: Mapping[str, QueuedJob] | None) -> str | None:
    """Return why a run that has not changed for long must stay; None: it may be removed.

    Args:
        run: the run.
        queue: the user's jobs in Slurm's queue by their ids; None: Slurm gave no answer, or there is none.
    """
    if queue is not None:
        job = job_in_queue(run, queue)
        if job is not None:
            return f"its job {job.job_id} is {job.state.lower()}"
    if run.state in (*OUTCOMES, "ended"):
        # Slurm starts a job that it requeues within its queue, which is not known here.
        return "Slurm does not say whether its job is requeued" if queue is None and run.job else None
    if run.state == "silent":
        return "its end is not recorded, and Slurm does not say whether it runs" if queue is None and run.job else None
    if run.state == UNSTARTED:
        return "Slurm does not say whether its job waits for nodes" if queue is None and run.job else None
    if run.state == "unknown":
        return f"it cannot be judged ({run.why}); remove it by hand"
    return f"it is {run.state}"


def render(found: Sequence[Old], directory: str, older_s: float, now_ns: int, *, everything: bool) -> str:
    """Return what would be removed, and what stays."""
    going = [old for old in found if old.stays is None]
    files = sum(old.usage.files for old in going if old.usage)
    amount = size(sum(old.usage.size for old in going if old.usage))
    age = duration(older_s)
    if going:
        unstarted = sum(old.run.state == UNSTARTED for old in going)
        ended = "ended" + (f" ({unstarted} never started)" if unstarted else "")
        head = f"{plural(len(going), 'run')} in {safe(directory)} {ended} and unchanged for {age}"
        lines = [f"{head}: {plural(files, 'file')}, {amount}"]
        shown = going if everything else going[:SHOWN]
        rows = [("run", "state", "unchanged for", "files", "size"), *(_row(old, now_ns) for old in shown)]
        lines += [f"  {line}" for line in columns(rows)]
        lines += [f"  and {len(going) - len(shown)} more (--all)"] if len(shown) < len(going) else []
    else:
        lines = [f"no run in {safe(directory)} has ended and is unchanged for {age}"]
    staying = [old for old in found if old.stays is not None]
    shown = staying if everything else staying[:SHOWN]
    lines += [f"stays: {safe(old.run.run)}: {clip(safe(old.stays or ''), 200)}" for old in shown]
    lines += [f"  and {len(staying) - len(shown)} more (--all)"] if len(shown) < len(staying) else []
    return "\n".join(lines) + "\n"


def _row(old: Old, now_ns: int) -> tuple[str, ...]:
    used = old.usage or Usage(0, 0)
    unchanged = duration((now_ns - old.mark.changed_ns) / 1e9)
    return (clip(safe(old.run.run), 40), safe(old.run.state), unchanged, str(used.files), size(used.size))
