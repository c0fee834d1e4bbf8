"""One run in the history: the facts of its report that are counted over runs (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ftslurm.dataclasses import dataclass
from ftslurm.records.codec import BadFile, record_of
from ftslurm.report.wording import JOB_KINDS

TIMES = ("lost_s", "detection_s", "stopping_s", "restart_s")
"""Keys of a report's accounting that are time lost by failures, the ranks' devices being held."""


@dataclass(frozen=True)
class FailureEntry:
    """A failure that ended a round, or all of the job.

    Attributes:
        cause, title: of the catalogue.
        what: one line.
        nodes: where; of a user's exception, too, which is not the node's.
        lost_s: work, detection, stopping and restart; None: unknown.
    """

    round: int
    cause: str
    title: str
    what: str
    nodes: tuple[str, ...]
    rank: int | None
    time_ns: int | None
    lost_s: float | None


@dataclass(frozen=True)
class RunEntry:
    """A run; values as in its report, see docs/report-schema.md.

    Attributes:
        interrupted: number of rounds that were stopped from outside, the last one included.
        nodes, ranks: of the largest round.
        unit: of `rank_hours_lost`: "GPU" or "rank".
        problems: number of its files that cannot be used.
        judged: whether its report was made anew, instead of read.
    """

    run: str
    directory: str
    status: str
    summary: str
    exit_code: int | None
    started_ns: int | None
    ended_ns: int | None
    duration_s: float | None
    last_step: int | None
    rounds: int
    nodes: int
    ranks: int
    restarts_used: int | None
    interrupted: int
    failures: tuple[FailureEntry, ...]
    elapsed_s: float | None
    productive_s: float | None
    ratio: float | None
    lost_s: float | None
    detection_s: float | None
    stopping_s: float | None
    restart_s: float | None
    queue_s: float | None
    rank_hours_lost: float | None
    unit: str
    problems: int
    judged: bool = False


@dataclass(frozen=True)
class Unreadable:
    """A run that cannot be judged, and why."""

    run: str
    directory: str
    problem: str


def entry_of(report: Mapping[str, Any], directory: str, *, judged: bool) -> RunEntry:
    """Return the entry of a run.

    Args:
        report: what `ftslurm.report.analysis.analyse` returned, or a file of it.
        directory: the run directory, which may have been moved since the report was saved.

    Raises:
        BadFile: it is no such report; one line.
    """
    try:
        value = _entry(report) | {"directory": directory, "judged": judged}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadFile(f"report.json: not a report: {type(error).__name__}: {error}") from None
    return record_of(RunEntry, value, "report.json")


def _entry(report: Mapping[str, Any]) -> dict[str, Any]:
    sums, rounds, cause = report["accounting"], report["rounds"], report["cause"]
    failed = [entry for entry in rounds if _is_failure(entry["first_failure"])]
    failures = [_failure(entry["first_failure"], entry["accounting"]) for entry in failed]
    if cause is not None and _is_failure(cause) and cause["kind"] == "health-check":
        failures.append(_failure(cause, None))
    by_slurm = cause is not None and cause["kind"] in JOB_KINDS
    interrupted = len(report["interrupted"]) + int(by_slurm or report["status"] == "stopped")
    return {
        "run": report["run"]["id"],
        "status": report["status"],
        "summary": report["summary"],
        **{key: report[key] for key in ("exit_code", "started_ns", "ended_ns", "duration_s", "last_step")},
        "rounds": len(rounds),
        "nodes": max((len(entry["nodes"]) for entry in rounds), default=0),
        "ranks": max((entry["world_size"] or 0 for entry in rounds), default=0),
        "restarts_used": report["restarts_used"],
        "interrupted": interrupted,
        "failures": failures,
        **{key: sums[key] for key in ("elapsed_s", "productive_s", "ratio", *TIMES, "queue_s", "rank_hours_lost")},
        "unit": sums["unit"],
        "problems": len(report["problems"]),
    }


def _is_failure(first: Mapping[str, Any] | None) -> bool:
    return first is not None and first["kind"] not in JOB_KINDS


def _failure(first: Mapping[str, Any], accounting: Mapping[str, Any] | None) -> dict[str, Any]:
    nodes = first["nodes"] or ([first["node"]] if first["node"] else [])
    return {
        "round": first["round"],
        "cause": first["cause"],
        "title": first["title"],
        "what": first["what"],
        "nodes": list(dict.fromkeys(nodes)),
        "rank": first["rank"],
        "time_ns": first["time_ns"],
        "lost_s": None if accounting is None else total(accounting[key] for key in TIMES),
    }


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
