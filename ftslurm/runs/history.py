"""The history of a directory's runs as one dictionary: totals, failures by cause and by node (pure).

=============== =======================================================================================================
key             meaning (times ``_ns``: since the epoch; ``_s``: seconds; None: unknown)
=============== =======================================================================================================
schema, version "ftslurm/history", 1
directory       of the runs; `since_ns`: only runs whose state changed later; `made_ns`
runs            the last changed first, as `ftslurm.runs.history_entry.RunEntry`
counts          number of runs by status
totals          `runs`, `failures`, `failed_runs` (with a failure, recovered or not), `interrupted`; `running_s`: time
                of the runs without Slurm's queue; `mtbf_s`: mean time between failures, running time by failures;
                `elapsed_s`, `productive_s`, `ratio` (effective training time) of the runs that report steps, `of_runs`
                their number; `lost_s` (work), `detection_s`, `stopping_s`, `restart_s`, `queue_s`; `rank_hours_lost`
                and its `unit`
causes          failures by cause, the most frequent first: `cause`, `title`, `failures`, `runs`, `nodes` (numbers),
                `lost_s`, `last_ns`, `example`
nodes           failures by node, the same: `node`, `failures`, `runs`, `causes` (titles and numbers), `last_ns`
problems        runs that could not be judged: `run`, `directory`, `problem`
=============== =======================================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ftslurm.dataclasses import asdict
from ftslurm.runs.history_entry import TIMES, FailureEntry, RunEntry, Unreadable, total

SCHEMA, VERSION = "ftslurm/history", 1
Dict = dict[str, Any]
Failed = Sequence[tuple[RunEntry, FailureEntry]]


def history(
    entries: Sequence[RunEntry | Unreadable], directory: str, since_ns: int | None, now_ns: int, *, failed: bool = False
) -> Dict:
    """Return the history.

    Args:
        entries: the runs, the last changed first.
        directory: of the runs.
        since_ns: the earliest last change of the runs.
        now_ns: nanoseconds since the epoch.
        failed: whether `runs` has only those with a failure; all others are counted.
    """
    runs = [entry for entry in entries if isinstance(entry, RunEntry)]
    failures = [(run, failure) for run in runs for failure in run.failures]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "directory": directory,
        "since_ns": since_ns,
        "made_ns": now_ns,
        "counts": dict(Counter(run.status for run in runs).most_common()),
        "totals": _totals(runs, failures),
        "causes": _causes(failures),
        "nodes": _nodes(failures),
        "runs": [asdict(run) for run in runs if run.failures or not failed],
        "problems": [asdict(entry) for entry in entries if isinstance(entry, Unreadable)],
    }


def _totals(runs: Sequence[RunEntry], failures: Failed) -> Dict:
    running_s = sum(_running_s(run) for run in runs)
    trained = [run for run in runs if run.ratio is not None and run.elapsed_s]
    elapsed_s = sum(run.elapsed_s or 0.0 for run in trained)
    productive_s = sum(run.productive_s or 0.0 for run in trained)
    units = {run.unit for run in runs if run.rank_hours_lost is not None}
    return {
        "runs": len(runs),
        "failures": len(failures),
        "failed_runs": sum(bool(run.failures) for run in runs),
        "interrupted": sum(run.interrupted for run in runs),
        "running_s": running_s,
        "mtbf_s": running_s / len(failures) if failures and running_s else None,
        "elapsed_s": elapsed_s if trained else None,
        "productive_s": productive_s if trained else None,
        "ratio": productive_s / elapsed_s if elapsed_s else None,
        "of_runs": len(trained),
        **{key: total(getattr(run, key) for run in runs) for key in (*TIMES, "queue_s")},
        "rank_hours_lost": total(run.rank_hours_lost for run in runs),
        "unit": "GPU" if units == {"GPU"} else "rank",
    }


def _running_s(run: RunEntry) -> float:
    whole = run.elapsed_s if run.elapsed_s is not None else run.duration_s
    return max(0.0, (whole or 0.0) - (run.queue_s or 0.0))


def _causes(failures: Failed) -> list[Dict]:
    groups: dict[str, list[tuple[RunEntry, FailureEntry]]] = {}
    for run, failure in failures:
        groups.setdefault(failure.cause, []).append((run, failure))
    rows = [
        {
            "cause": cause,
            "title": group[0][1].title,
            **_numbers(group),
            "nodes": len({node for _, failure in group for node in failure.nodes}),
            "lost_s": total(failure.lost_s for _, failure in group),
            "example": group[0][1].what,
        }
        for cause, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["failures"], row["cause"]))


def _nodes(failures: Failed) -> list[Dict]:
    groups: dict[str, list[tuple[RunEntry, FailureEntry]]] = {}
    for run, failure in failures:
        for node in failure.nodes:
            groups.setdefault(node, []).append((run, failure))
    rows = [
        {
            "node": node,
            **_numbers(group),
            "causes": dict(Counter(failure.title for _, failure in group).most_common()),
        }
        for node, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["failures"], row["node"]))


def _numbers(group: Failed) -> Dict:
    return {
        "failures": len(group),
        "runs": len({run.directory for run, _ in group}),
        "last_ns": max((failure.time_ns for _, failure in group if failure.time_ns is not None), default=None),
    }
