"""An orderly stop in the report: why, at which step all ranks left, or which rank did not leave (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.records.state import CLOSED, State
from ftslurm.text import first_line

Json = Mapping[str, Any]


def stop_report(state: State | None) -> dict[str, Any] | None:
    """Return the report's ``stop``: the orderly stop of the newest attempt; None: none was requested."""
    stop = state.stop if state is not None else None
    if state is None or stop is None:
        return None
    return {
        "cause": stop.cause,
        "reason": stop.reason,
        "node": stop.node,
        "signal": stop.signal,
        "requested_ns": stop.requested_ns,
        "grace_s": stop.grace_s,
        "orderly": stop.orderly if state.phase == CLOSED else None,
        "result": stop.result,
        "save_cut": stop.save_cut,
    }


def is_interrupted(report: Json) -> bool:
    """Return whether all ranks left because they were to stop: the run was interrupted, and may go on later."""
    return report["stop"] is not None and report["stop"]["orderly"] is True


SAVE_CUT = (
    "hint: what is saved after the grace is lost: save faster, or have Slurm announce the end earlier "
    "(#SBATCH --signal=TERM@SECONDS, --warn-before-end)"
)


def stop_hint(report: Json) -> str:
    """Return what to do about a save that the end of the grace has cut short; empty if none was."""
    return SAVE_CUT if report["stop"] is not None and report["stop"]["save_cut"] else ""


def blames_a_rank(report: Json) -> bool:
    """Return whether the first line names the rank that did not leave in time."""
    return report["stop"] is not None and report["stop"]["orderly"] is False and bool(report["stop"]["result"])


def stop_result(report: Json) -> str:
    """``; saved at step 43 (997 ms of 3 s grace)``, ``; stop requested 34 s ago, ...``; empty if it is unknown."""
    stop = report["stop"]
    return f"; {first_line(stop['result'])}" if stop is not None and stop["result"] else ""
