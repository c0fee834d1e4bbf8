"""What a worker's pages show of it: its step, its vitals, and whether it moves."""

from __future__ import annotations

from ftslurm.agent.workers import Worker
from ftslurm.monitor import heartbeat_page, stop_page
from ftslurm.monitor.heartbeat_page import HeartbeatPage
from ftslurm.monitor.stop_page import StopPage
from ftslurm.records.node import RankVitals


def step_of(page: HeartbeatPage | None) -> int | None:
    """Return the last step that a rank reported."""
    return page.progress.last_step if page is not None and page.progress is not None else None


def has_begun(worker: Worker) -> bool:
    """Return whether it has reported or made a step, or called `should_stop`."""
    page = heartbeat_page.read(worker.record_dir)
    if page is not None and (page.progress is not None or page.automatic):
        return True
    stop = stop_page.read(worker.record_dir)
    return stop is not None and stop.calls > 0


def has_stepped(page: HeartbeatPage | None, stop: StopPage | None) -> bool:
    """Return whether a rank has made a step within the round."""
    progress = page.progress if page is not None else None
    # Each call of `should_stop` has a further step.
    return (progress is not None and progress.last_step > progress.first_step) or (stop is not None and stop.calls > 1)


def vitals_of(rank: int, page: HeartbeatPage | None, stop: StopPage | None) -> RankVitals:
    """Return the vitals of a rank by its pages."""
    step = step_of(page)
    if step is None and stop is not None:
        # A script that calls `should_stop(step)` need not call `progress(step)`, too.
        step = stop.step
    buckets = page.pace.buckets if page is not None else ()
    made = page.optimizer_steps if page is not None and step is None else None
    intervals = tuple((i, n) for i, n in enumerate(buckets) if n)
    return RankVitals(rank, step, intervals, None if made is None else made.last_step)


def signs_of_movement(worker: Worker) -> tuple[int, ...]:
    """Return what changes when a rank moves, by its pages."""
    page, stop = heartbeat_page.read(worker.record_dir), stop_page.read(worker.record_dir)
    known = () if page is None else (page.beats.number, page.progress_ns, page.section_ns)
    return known if stop is None else (*known, stop.calls, stop.waits)
