"""The rank for which all others waited until their time was over, by what it did not print, and by its stack (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.dataclasses import replace
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.report.facts import RankError
from ftslurm.report.logs.attempt_log import AttemptLog
from ftslurm.report.logs.dumps import place_of
from ftslurm.report.logs.rank_errors import has_waited, record


def late_ranks(log: AttemptLog, errors: Mapping[int, RankError]) -> set[int]:
    """Return the few ranks that printed no time-out of a collective while most others did."""
    waited = {rank for rank, error in errors.items() if timeout_in(error.message) is not None}
    # Where the log ends before the ranks do, a watchdog may not have reported yet.
    late = log.printed_ranks() - waited - log.noticed_ranks() if log.ends.processes or log.ends.job else set()
    late = late if waited else set()
    if not late and waited == errors.keys():
        late = set(range(max(errors, default=0))) - errors.keys()
    return late if len(late) * 2 <= len(errors) and not late & errors.keys() else set()


def hung_rank(log: AttemptLog, errors: Mapping[int, RankError]) -> RankError | None:
    """Return the failure of the only rank for which all others waited, if its stack is in the log; None: it is not."""
    late = late_ranks(log, errors)
    if len(late) != 1 or not all(map(has_waited, errors.values())):
        return None
    rank = late.pop()
    place = place_of(log, rank)
    first = min(errors.values(), key=lambda error: error.order)
    waited = timeout_in(first.message)
    if not place or waited is None:
        return None
    text = f"{place} while the others waited for it in {waited.call}"
    node = next((node for line in log.lines_of(rank) if (node := log.node_of(line)) is not None), None)
    return replace(record(rank, "hang", text, first.order - 1), node=node)
