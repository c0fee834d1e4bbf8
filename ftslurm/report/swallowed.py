"""Ranks that ended with exit code 0, and whose output ends with a traceback (pure).

The exit code of ``python train.py | tee log`` in a shell is that of ``tee``. What such a rank reports is success. If
all ranks end so, the run succeeds, and the report says what the output shows; if others fail because of it, it is
the first failure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ftslurm.failures.causes import Cause
from ftslurm.failures.own_code import own_frame
from ftslurm.failures.reason import by_distributed
from ftslurm.report.facts import LogTail, RoundFiles, Worker
from ftslurm.report.failed_worker import FailedWorker, failed_worker_of
from ftslurm.report.judged_worker import LIVED_ON_NS, judge
from ftslurm.text import cut_middle, plural

RANKS_READ = 64
"""Ranks of a run of which the outputs are read although it succeeded; of a larger one none is."""
TEXT_LIMIT = 120
_MAIN = ("<module>", "_run_module_as_main")
"""Where the traceback of what ended a program begins; that of a finalizer at its end begins in Python's own code."""
_HEADER = "Traceback (most recent call last)"


class _Ended(NamedTuple):
    follows: bool
    rank: int
    text: str


def may_be_swallowed(files: RoundFiles) -> list[int]:
    """Return the ranks of a small round that all ended with exit code 0; empty: it is large, or did not end so."""
    workers = [worker for node in files.nodes for worker in node.workers]
    whole = all(worker.ended_ns is not None and worker.exit_code == 0 for worker in workers)
    return [worker.rank for worker in workers] if whole and len(workers) <= RANKS_READ else []


def swallowed(files: RoundFiles) -> str:
    """Return which rank ended with exit code 0 though its output ends with a traceback, as a sentence; empty: none.

    Args:
        files: the round, with the ends of its ranks' outputs.
    """
    workers = {worker.rank: worker for node in files.nodes for worker in node.workers}
    found = [each for rank in may_be_swallowed(files) for each in _ended(workers[rank], files.tails.get(rank, ()))]
    if not found:
        return ""
    _, rank, text = min(found)
    others = len({each.rank for each in found}) - 1
    more = f" (and so do{'es that' if others == 1 else ' those'} of {plural(others, 'more rank')})" if others else ""
    return (
        f"rank {rank} ended with exit code 0, though its output ends with a traceback{more}: {text}; a pipe or ||"
        " hides exit codes: set -e, set -o pipefail"
    )


def swallowed_failure(files: RoundFiles, ranks: Collection[int], rows: Sequence[Cause]) -> FailedWorker | None:
    """Return the failure of one of these ranks that had ended with exit code 0; None: no output ends with a failure.

    Args:
        files: the round, with the ends of its ranks' outputs.
        ranks: that had ended with exit code 0.
        rows: the catalogue of causes.
    """
    for node in files.nodes:
        for worker in node.workers:
            tails = files.tails.get(worker.rank, ()) if worker.rank in ranks else ()
            if any(not each.follows for each in _ended(worker, tails)):
                found = judge(failed_worker_of(worker.rank, (node, worker), None, None, ""), tails, rows)
                if found.exception is not None:
                    return found
    return None


def _ended(worker: Worker, tails: tuple[LogTail, ...]) -> Iterator[_Ended]:
    for tail in tails:
        if _HEADER not in tail.text or not _at_its_end(worker, tail):
            continue
        from ftslurm.failures.stderr_witness import TRACEBACK, witness

        found = witness(tail.text)
        raised = found.exception if found is not None and found.kind == TRACEBACK and not found.thread else None
        if found is None or raised is None or not raised.frames or raised.frames[0].function not in _MAIN:
            continue
        place = own_frame(raised.frames).place.rpartition("/")[2]
        follows = by_distributed(raised.type, raised.module, raised.message, raised.inner_file)
        yield _Ended(follows, worker.rank, f"{cut_middle(found.text, TEXT_LIMIT)} at {place}")


def _at_its_end(worker: Worker, tail: LogTail) -> bool:
    """Return whether a rank ended with what it printed last, and did not go on; torch prefixes what nothing catches."""
    if f"[rank{worker.rank}]: {_HEADER}" in tail.text:
        return True
    assert worker.ended_ns is not None
    return tail.written_ns is not None and worker.ended_ns - tail.written_ns <= LIVED_ON_NS
