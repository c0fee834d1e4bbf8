"""Outcome of one attempt of a run as an exit code (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.dataclasses import dataclass
from ftslurm.records.state import EXIT_FAILED
from ftslurm.rendezvous.closing import stop_code


@dataclass(frozen=True)
class Outcome:
    """Outcome of an attempt.

    Attributes:
        exit_code: of the attempt.
        reported: whether the run's report covers this attempt; another one may own the run.
        problem: one line, empty for none.
    """

    exit_code: int
    reported: bool
    problem: str = ""


def outcome_of(
    report: Mapping[str, Any] | None,
    run_dir: str,
    attempt: str | None,
    step_code: int | None,
    stop_signal: str | None = None,
) -> Outcome:
    """Return the outcome of an attempt whose agents have ended.

    Args:
        report: the run's, None when the run directory cannot be read.
        run_dir: its path, for the message.
        attempt: its name; None: no agent has written a record.
        step_code: srun's exit code; None: there was no srun, or it did not end.
        stop_signal: the name of the signal that stopped the launcher.
    """
    by_step = stop_code(stop_signal) if step_code is None else step_code
    if report is None:
        # All agents exit with the state's code, and so does srun.
        return Outcome(by_step, False, f"{run_dir} is no longer readable: see the agents' log lines above")
    if stop_signal is not None and (attempt is None or not report["run"]["attempts"]):
        what = f"{stop_signal} stopped this start before the run had begun"
        return Outcome(stop_code(stop_signal), False, f"{what}: no rank was started")
    if attempt is None:
        what = "no rank was started" + ("" if step_code is None else f" (srun ended with code {step_code})")
        return Outcome(by_step or EXIT_FAILED, False, f"{what}: this start has no record in {run_dir}")
    owners: list[str] = report["run"]["attempts"]
    if attempt not in owners:
        owner = f"attempt {owners[-1]} owns it" if owners else "no attempt owns it"
        problem = f"attempt {attempt} took no part in the run {run_dir}: {owner}"
        return Outcome(by_step or EXIT_FAILED, False, problem)
    if attempt != owners[-1]:
        return Outcome(by_step or EXIT_FAILED, False, f"attempt {owners[-1]} has taken over the run {run_dir}")
    code: int | None = report["exit_code"]
    if code is None:
        return Outcome(by_step or EXIT_FAILED, True)
    problem = f"srun ended with code {step_code}, but the job itself succeeded" if step_code and not code else ""
    return Outcome(code, True, problem)
