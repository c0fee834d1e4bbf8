"""The order of a log's failures where that of its lines misleads (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import replace
from ftslurm.failures.nccl_timeout import timeout_in
from ftslurm.pattern import pattern
from ftslurm.report.facts import RankError
from ftslurm.report.logs.attempt_log import AttemptLog
from ftslurm.report.logs.end import End
from ftslurm.report.logs.evidence import Found, headline_of
from ftslurm.report.logs.rank_errors import is_cascade

_TERMINATED = pattern(r"terminated with exception|what\(\):|taking the entire process down")


def killed_pods(log: AttemptLog, errors: Mapping[int, RankError]) -> list[tuple[End, int]]:
    """Return the pods that Kubernetes killed, which no failure is of, and their places in the order of the failures.

    What only lost its connections, or aborted, follows from that.
    """
    known = {error.node for error in errors.values()}
    killed = [end for end in log.ends.processes if end.by == "pod" and end.code is None and end.node not in known]
    if not errors or not killed:
        return []
    follow = all(is_cascade(error) or error.signal == "SIGABRT" for error in errors.values())
    orders = [error.order for error in errors.values()]
    order = min(orders) - 1 if follow else max(orders) + 1
    return [(end, order) for end in killed]


def later_aborts(errors: Mapping[int, RankError], strong: Sequence[Found]) -> dict[int, RankError]:
    """Put aborts without a reason, and time-outs of ranks that are not known to have aborted, behind the others.

    Where a rank's time for a collective was over, other aborts may follow from that.
    """
    timed_out = {rank for rank, error in errors.items() if timeout_in(error.message) is not None}
    if not timed_out:
        return {}
    aborted = {each.rank for each in strong if _TERMINATED.search(headline_of(each.thing)) is not None} - {None}
    later = {rank for rank, error in errors.items() if error.message == error.signal == "SIGABRT"}
    if aborted & timed_out:
        later |= timed_out - aborted
    return {} if later == errors.keys() else _last(errors, later)


def later_rendezvous(errors: Mapping[int, RankError]) -> dict[int, RankError]:
    """Put a launcher that met no other behind one that could not be started."""
    if not any(error.exit_code in (126, 127) for error in errors.values()):
        return {}
    return _last(errors, {rank for rank, error in errors.items() if error.message.startswith("RendezvousTimeoutError")})


def _last(errors: Mapping[int, RankError], those: set[int]) -> dict[int, RankError]:
    last = max(error.order for error in errors.values())
    return {rank: replace(errors[rank], order=last + 1) for rank in those}
