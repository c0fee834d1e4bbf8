"""Result of a run of checks: their verdicts, in the form sent to the agent (pure)."""

from __future__ import annotations

import json

from ftslurm.dataclasses import asdict, dataclass, replace
from ftslurm.health.verdict import Verdict, read_verdict, verdict_json


@dataclass(frozen=True)
class RunResult:
    """Result of a run of checks.

    Attributes:
        verdicts: one of each check, in their order.
        stuck: pids of killed processes that still exist: they hang in the kernel.
        took_s: total seconds.
        present: the checks whose subject exists.
    """

    verdicts: tuple[Verdict, ...]
    stuck: tuple[int, ...]
    took_s: float
    present: tuple[str, ...] = ()


def encode(result: RunResult) -> str:
    """Return a run's result as one line; without the facts, which only the next run needs."""
    verdicts = [verdict_json(replace(one, facts=None)) for one in result.verdicts]
    return json.dumps({**asdict(replace(result, verdicts=())), "verdicts": verdicts})


def decode(data: bytes) -> RunResult:
    """Read it back.

    Raises:
        ValueError: the line is no result, for example because the process was killed.
    """
    try:
        value = json.loads(data)
        verdicts = tuple(read_verdict(one) for one in value["verdicts"])
        return RunResult(verdicts, tuple(value["stuck"]), value["took_s"], tuple(value["present"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no result of the checks ({type(error).__name__}: {error})") from None
