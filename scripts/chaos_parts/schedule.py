"""Faults of each job of a seed, with their times (pure): the same seed and number always give the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from chaos_parts.faults import FAULTS, Fault

STEP_S = 0.1
POLLING = 0.5
"""Share of the jobs whose ranks call `ftslurm.should_stop`."""
TIME_LIMIT, TIME_LIMIT_STEPS = "time-limit", 700
"""Slurm looks at time limits every 30 s, and they are whole minutes: such a job is longer by so many steps."""
NEED_POLLS = (TIME_LIMIT, "rank-signalled")
BEFORE, TRAINING = "after submission", "after training began"


@dataclass(frozen=True)
class Blow:
    """A planned fault.

    Attributes:
        fault: its name in the registry.
        since: origin of its time: BEFORE or TRAINING.
        at_s: its time, in seconds.
        last_s: time until its removal, in seconds.
        choice: from 0 to 1: selects one of its possible targets.
    """

    fault: str
    since: str
    at_s: float
    last_s: float
    choice: float


@dataclass(frozen=True)
class Plan:
    """One job.

    Attributes:
        number: index of the seed's job, from 1.
        link: "star" or "gloo", see `chaos_parts.links`.
        per_node: ranks on each node.
        options: additional options of ftslurm.
        slow_stop_s: time that a stopped rank takes to save, in seconds.
        polls: its ranks call `ftslurm.should_stop` with each step.
    """

    number: int
    steps: int
    link: str
    per_node: int
    options: tuple[str, ...]
    slow_stop_s: float
    blows: tuple[Blow, ...]
    polls: bool = False


def plan(seed: int, number: int, faults: Sequence[Fault] = FAULTS, gloo: bool = False) -> Plan:
    """Return the plan of one job.

    Args:
        seed, number: determine the plan.
        faults: those to choose from.
        gloo: some jobs may use torch.
    """
    rng = random.Random(f"{seed}/{number}")
    # Always drawn, so that the rest is the same with torch and without.
    with_gloo = rng.random() < 0.12
    per_node = rng.choice((1, 2, 2, 2))
    standby = rng.random() < 0.25
    slow_stop_s = rng.choice((0.0, 0.0, 1.5))
    steps = rng.randint(12, 20) * 10
    blows: list[Blow] = []
    at_s = rng.uniform(0.5, 8.0)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        blows.append(_blow(rng, faults, at_s))
        at_s += rng.uniform(0.0, 0.6) if rng.random() < 0.3 else rng.uniform(0.6, 12.0)
    polls = rng.random() < POLLING or any(blow.fault in NEED_POLLS for blow in blows)
    if any(blow.fault == TIME_LIMIT for blow in blows):
        steps += TIME_LIMIT_STEPS
    return Plan(
        number,
        steps,
        "gloo" if gloo and with_gloo else "star",
        1 if gloo and with_gloo else per_node,
        ("--warm-imports", "json") if standby else (),
        slow_stop_s,
        tuple(sorted(blows, key=lambda blow: (blow.since, blow.at_s))),
        polls,
    )


def _blow(rng: random.Random, faults: Sequence[Fault], at_s: float) -> Blow:
    fault = rng.choices(faults, [fault.weight for fault in faults])[0]
    early = rng.random() < 0.2 and not fault.spares_start
    start_s = rng.uniform(0.3, 4.0)
    return Blow(
        fault.name,
        BEFORE if early else TRAINING,
        round(start_s if early else at_s, 2),
        round(rng.uniform(*fault.last_s), 2),
        rng.random(),
    )
