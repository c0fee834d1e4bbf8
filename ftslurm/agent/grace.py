"""The seconds that workers get to leave when Slurm stops the job, and in an orderly stop."""

from __future__ import annotations

import os

from ftslurm.agent.option_groups import RunOptions, StopOptions
from ftslurm.agent.orderly_stop import KILL_WAIT_MARGIN
from ftslurm.agent.placement import Placement
from ftslurm.terminal import WARNING, complain
from ftslurm.text import duration, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.slurm.control import SlurmControl
    from ftslurm.slurm.facts import JobFacts

DEFAULT_KILL_WAIT_S = 30.0
ORDERLY_GRACE_S, LOCAL_GRACE_S = 3600.0, 60.0
"""Limit of the grace of an orderly stop where the user sets none, in seconds: Slurm gives less; and without Slurm."""


def orderly_grace_s(options: RunOptions, placement: Placement) -> float:
    """Return the seconds that ranks which call `should_stop` may take, from a stop signal on."""
    if options.stop.grace_s is not None:
        return options.stop.grace_s
    return LOCAL_GRACE_S if placement.job is None else ORDERLY_GRACE_S


def kill_wait_s(placement: Placement) -> float:
    """Return the seconds that workers may take to stop when Slurm stops the job; ftsrun passes the site's KillWait."""
    if placement.job is None:
        return 1e9
    text = os.environ.get("FTSLURM_KILL_WAIT", "")
    return (float(text) if text.isdigit() else DEFAULT_KILL_WAIT_S) * KILL_WAIT_MARGIN


def cut_short(
    grace_s: float | None, kill_wait_s: int | None, partition: str | None, preemption_grace_s: int | None
) -> str | None:
    """Return one line if Slurm kills the ranks before their grace is over; None if it does not, or it is unknown.

    Args:
        grace_s: as the user has asked for it; None: all that Slurm gives.
        kill_wait_s: Slurm's KillWait.
        partition: the job's.
        preemption_grace_s: its GraceTime; None: its jobs are not preempted, or it is unknown.
    """
    if grace_s is None or kill_wait_s is None:
        return None
    usable_s = kill_wait_s * KILL_WAIT_MARGIN
    if grace_s <= usable_s:
        return None
    limits = [f"{duration(usable_s)} after scancel or the time limit (of KillWait, {duration(kill_wait_s)})"]
    if preemption_grace_s and partition is not None:
        left_s = min(grace_s, usable_s + preemption_grace_s)
        source = f"GraceTime {duration(preemption_grace_s)} of partition {safe(partition)}"
        limits.append(f"{duration(left_s)} after a preemption ({source})")
    return f"--grace {grace_s:g} is cut short by Slurm: ranks have {', '.join(limits)}"


def short_limit(warning_s: float | None, limit_s: int | None) -> str | None:
    """Return one line if the job's time limit is so short that ranks are stopped later than asked for; else None.

    Args:
        warning_s: of --warn-before-end; None: by default.
        limit_s: the job's time limit; None: it has none, or it is unknown.
    """
    # Only ftsrun asks: agents load it later.
    from ftslurm.rendezvous.stopping import LEAST_WARNING_S, LONGEST_WARNING

    wanted_s = LEAST_WARNING_S if warning_s is None else warning_s
    if limit_s is None or wanted_s <= LONGEST_WARNING * limit_s:
        return None
    asked = f"--warn-before-end {wanted_s:g}" if warning_s is not None else f"a save ({duration(wanted_s)})"
    return (
        f"the time limit of {duration(limit_s)} is too short for {asked}: ranks that call ftslurm.should_stop are "
        f"stopped when half of the time that they have is over, {duration(LONGEST_WARNING * limit_s)} before the end"
    )


def warn_of_times(options: StopOptions, kill_wait_s: int | None, facts: JobFacts | None, slurm: SlurmControl) -> None:
    """Print what Slurm cuts short of the user's grace, and whether the time limit is too short for a save."""
    if facts is not None and (line := short_limit(options.warn_before_end_s, facts.time_limit_s)) is not None:
        complain(line, level=WARNING)
    _warn_of_grace(options.grace_s, kill_wait_s, facts, slurm)


def _warn_of_grace(grace_s: float | None, kill_wait_s: int | None, facts: JobFacts | None, slurm: SlurmControl) -> None:
    from ftslurm.slurm.errors import SlurmError

    partition = facts.partition if facts is not None else None
    preemption_grace_s: int | None = None
    if cut_short(grace_s, kill_wait_s, None, None) is None:
        return
    try:
        preemption_grace_s = slurm.preemption_grace_s(partition) if partition is not None else None
    except (SlurmError, ValueError):
        # Busy, or a name that is none: KillWait is known.
        pass
    text = cut_short(grace_s, kill_wait_s, partition, preemption_grace_s)
    if text is not None:
        complain(text, level=WARNING)
