"""What came of a look: some checks' verdicts, as a look hands them on to its agent (pure)."""

from __future__ import annotations

import json

from ftslurm.dataclasses import asdict, dataclass, replace
from ftslurm.health.verdict import Finding, Verdict, without_facts


@dataclass(frozen=True)
class RunResult:
    """What came of some checks.

    Attributes:
        verdicts: one of each check, in their order.
        stuck: pids of killed processes that are still there: they hang in the kernel.
        took_s: seconds in all.
        present: the checks that found something to look at.
    """

    verdicts: tuple[Verdict, ...]
    stuck: tuple[int, ...]
    took_s: float
    present: tuple[str, ...] = ()


def encode(looked: RunResult) -> str:
    """Return a look's result as one line; without the facts, which are for the next look alone."""
    verdicts = [asdict(one) for one in without_facts(looked.verdicts)]
    return json.dumps({**asdict(replace(looked, verdicts=())), "verdicts": verdicts})


def decode(data: bytes) -> RunResult:
    """Read it back.

    Raises:
        ValueError: that is no result; the process was killed, say.
    """
    try:
        said = json.loads(data)
        verdicts = tuple(
            Verdict(**{**one, "findings": tuple(Finding(**finding) for finding in one["findings"])})
            for one in said["verdicts"]
        )
        return RunResult(verdicts, tuple(said["stuck"]), said["took_s"], tuple(said["present"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no result of a look ({type(error).__name__}: {error})") from None
