"""The output of any job of Slurm: found by what Slurm knows, and completed by it (thin)."""

from __future__ import annotations

from pathlib import Path

from ftslurm.dataclasses import replace
from ftslurm.report.facts import Snapshot
from ftslurm.report.logs.files import Output, outputs
from ftslurm.report.logs.gathering import gather_files
from ftslurm.report.scheduler import SCHEDULER, line, verdict
from ftslurm.sharedfs.locate import NotFound
from ftslurm.slurm.account import view_of
from ftslurm.slurm.facts import JobFacts


def output_files(job: JobFacts) -> list[Output]:
    """Return the output files of a job that exist: those that Slurm names, and those of its steps beside them."""
    named = [path for path in (job.std_out, job.std_err) if path]
    if not named and job.work_dir:
        named = [f"{job.work_dir}/slurm-{job.scontrol_id}.out"]
    paths = list(dict.fromkeys(Path(path) for path in named))
    found = [Output(path) for path in paths if path.is_file()]
    if not paths:
        return found
    beside = outputs(paths[0].parent, job.scontrol_id)
    return found + [each for each in beside if each.path not in paths]


def snapshot_of_output(job: JobFacts, now_ns: int, note: str = "") -> Snapshot:
    """Return what a job's output contains, with Slurm's view of its end.

    Args:
        job: Slurm's data.
        now_ns: the time, nanoseconds since the epoch.
        note: for the reader, in one line.

    Raises:
        NotFound: it has no output that can be read.
    """
    those = output_files(job)
    if not those:
        path = job.std_out or "no path is recorded"
        raise NotFound(f"job {job.scontrol_id} has no output file ({path}); name it: ftslurm report --logs FILE")
    snapshot = gather_files(f"job-{job.scontrol_id}", those, now_ns=now_ns)
    newest = snapshot.attempt
    assert newest is not None
    view = view_of(job, newest.attempt, job.scontrol_id, now_ns)
    ended = verdict(view)
    stated = next((each for each in snapshot.scheduler if each.attempt == newest.attempt), None)
    failed = any(node.workers for node in snapshot.rounds[-1].nodes)
    # A failure in the output precedes the end of the job, unless Slurm itself ended that.
    if (
        stated is not None
        or (ended is not None and (not failed or ended[0] == SCHEDULER))
        or view.state == "OUT_OF_MEMORY"
    ):
        merged = view if stated is None or ended is not None else replace(stated, time_limit_s=view.time_limit_s)
        node = merged.failed_node or (stated.failed_node if stated is not None else None)
        merged = replace(merged, failed_node=node)
        others = tuple(each for each in snapshot.scheduler if each.attempt != newest.attempt)
        snapshot = replace(snapshot, scheduler=(*others, merged))
    files = ", ".join(str(each.path) for each in those[:3])
    notes = [each for each in (note, line(view), *snapshot.notes) if each]
    return replace(snapshot, directory=files, notes=tuple(notes))
