"""What torch's launcher knows of how its job ended, as one of our records."""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from ftslurm.rendezvous.state import Failure

LONGEST = 500
# torch's words for a worker without an error file; its exit code says more.
NO_MESSAGE = "To enable traceback"


def failure_of(error: BaseException, round_: int, node: str) -> Failure | None:
    """Return the first failure among the workers, None when `error` is about something else."""
    if not isinstance(error, ChildFailedError):
        return None
    rank, first = error.get_first_failure()
    signal = first.signal_name() if first.exitcode < 0 else None
    message = f"exit code {first.exitcode}" if signal is None else f"killed by {signal}"
    if signal is None and first.message and not first.message.startswith(NO_MESSAGE):
        message = first.message.strip().partition("\n")[0]
    return Failure(
        round_,
        node,
        rank,
        first.local_rank,
        first.timestamp * 10**9,
        "exit" if signal is None else "signal",
        first.exitcode if signal is None else None,
        signal,
        message[:LONGEST],
        None,
    )
