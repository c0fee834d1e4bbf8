"""Expected files that a run directory lacks: reported, so that missing data is not taken for success (pure).

Unrecorded ends are shown with the ranks and in the headline.
"""

from __future__ import annotations

from ftslurm.report import root_cause
from ftslurm.report.facts import RoundFiles, Snapshot
from ftslurm.report.sampling import final
from ftslurm.report.wording import count, names, ranges

_FOREIGN = (
    "times: of the log files only, so the first failure is a guess where several ranks have causes of their own",
    "ends: only torchrun's table has exit codes and signals, and it rarely shows which ranks torchrun stopped",
    "nodes: a rank's node is named for the folder or file of its output",
)


def missing(snapshot: Snapshot) -> list[str]:
    """Return a line for each kind of missing record, for the run and its newest round that has files."""
    if snapshot.job is not None:
        return []
    if snapshot.source != "ftslurm":
        return list(_FOREIGN)
    lines: list[str] = []
    if snapshot.run is None:
        lines.append("run.json: the run's owner and creation time are unknown")
    if snapshot.state is None:
        lines.append("state: no generation can be read, so the ends of rounds and of the run are unknown")
    if not snapshot.attempts:
        lines.append("attempts: no file has the command")
    numbers = {files.number for files in snapshot.rounds}
    newest = max(numbers | {h.round for h in (snapshot.state.history if snapshot.state else ())}, default=None)
    if newest is None:
        lines.append("rounds: none has begun, or their files were deleted")
    elif newest not in numbers:
        lines.append(f"rounds/{newest:06d}: no files of the newest round")
    else:
        lines += _of_round(snapshot, root_cause.round_files(snapshot, newest))
    return lines


def _of_round(snapshot: Snapshot, files: RoundFiles) -> list[str]:
    where, lines = f"rounds/{files.number:06d}", []
    entry = root_cause.history_of(snapshot, files.number)
    here = {node.node for node in files.nodes}
    absent = [name for name in (entry.nodes if entry is not None else ()) if name not in here]
    if absent:
        lines.append(f"{where}/nodes: no file of {count(len(absent), 'node')} ({names(absent)})")
    failed = {
        worker.rank
        for node in files.nodes
        for worker in node.workers
        if worker.failed and not worker.stopped_by_ftslurm and (worker.error is None or not final(node, worker))
    }
    failed |= {rank for rank, error in files.errors.items() if not error.whole}
    without = sorted(failed - {rank for rank, error in files.errors.items() if error.whole})
    if without:
        lines.append(f"{where}/ranks: no error record of {count(len(without), 'failed rank')} ({ranges(without)})")
    return lines


__all__ = ["missing"]
