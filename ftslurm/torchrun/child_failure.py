"""The failure reported by torch's launcher, as a `Failure`."""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from ftslurm.records.state import Failure

LONGEST = 500
# torch's message for a worker without an error file; its exit code is more informative.
NO_MESSAGE = "To enable traceback"


def failure_of(error: BaseException, round_: int, node: str) -> Failure | None:
    """Return the first failure among the workers, None if `error` is not a worker's failure."""
    if not isinstance(error, ChildFailedError):
        return None
    rank, first = error.get_first_failure()
    signal = first.signal_name() if first.exitcode < 0 else None
    message = f"exit code {first.exitcode}" if signal is None else f"killed by {signal}"
    text = _text(first.message)
    if signal is None and text and not text.startswith(NO_MESSAGE):
        message = text.partition("\n")[0]
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


def _text(message: object) -> str:
    # Of a function with torch's `record` around it (torch puts one around each function, too), it is a dictionary.
    if isinstance(message, dict):
        message = message.get("message", "")
    return str(message).strip()
