"""Slurm's data on the run's job for `ftslurm status`: asked for while the run directory is read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ftslurm.dataclasses import asdict
from ftslurm.slurm.environment import job_of
from ftslurm.slurm.job_now import LIMIT_S, JobNow, ask, lines
from ftslurm.slurm.run_command import has_program

KEPT_S = 5.0
"""How long an answer is used again by `--watch`, in seconds."""
SLACK_S = 1.0


class JobInquiry:
    """Asks Slurm about one job at a time, on a thread, and keeps the answer for some seconds.

    Args:
        query: asks about a job; None: Slurm's commands, if there are any.
        monotonic: clock, seconds.
    """

    def __init__(
        self, query: Callable[[str], JobNow] | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._query = query or (ask if has_program("scontrol", os.environ) else None)
        self._monotonic = monotonic
        self._job: str | None = None
        self._asked_at = float("-inf")
        self._answers: list[JobNow] = []
        self._thread: threading.Thread | None = None

    def begin(self, job_id: str | None) -> None:
        """Ask about this job unless the last answer about it is fresh."""
        if self._query is None or job_id is None:
            return
        now = self._monotonic()
        if job_id == self._job and now - self._asked_at < KEPT_S:
            return
        query, answers = self._query, list[JobNow]()
        self._job, self._asked_at, self._answers = job_id, now, answers
        self._thread = threading.Thread(target=lambda: answers.append(query(job_id)), daemon=True)
        self._thread.start()

    def answer(self, job_id: str | None) -> JobNow | None:
        """Return the answer about this job; None: there is none, or it was not asked for."""
        self.begin(job_id)
        if self._thread is None or job_id != self._job:
            return None
        # Its commands have a deadline of their own.
        self._thread.join(LIMIT_S + SLACK_S)
        return self._answers[0] if self._answers else None


def newest_job(directory: str) -> str | None:
    """Return the id of the job whose attempt began last, by the names of the attempts; None: it was none of a job."""
    try:
        with os.scandir(os.path.join(directory, "attempts")) as entries:
            found = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.name) for entry in entries]
    except OSError:
        return None
    return job_of(max(found, default=(0, ""))[1])


def report(now: JobNow | None, limit_was_s: int | None) -> Mapping[str, Any] | None:
    """Return the key "slurm" of the status; None if there is nothing that Slurm knows (pure)."""
    if now is None or (now.state is None and now.problem is None):
        return None
    facts = {key: value for key, value in asdict(now).items() if key != "facts"}
    return {**facts, "left_s": now.left_s, "limit_was_s": limit_was_s, "lines": lines(now, limit_was_s)}
