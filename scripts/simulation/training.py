"""Simulated synchronous training: what ranks' recorders and step counters would hold (pure, from a random source)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.monitor.arrivals import Call, arrivals_of
from ftslurm.records.arrivals import RankArrivals

SECOND = 10**9
OPTIMIZER_S = 0.003
JITTER_S = 0.0002


@dataclass(frozen=True)
class Training:
    """A training; durations in seconds.

    Attributes:
        groups: the process groups, each a list of ranks. In each part of a step, every rank works, and then waits in
            its groups' collectives, in this order.
        parts: parts of a step.
        step_s: a rank's work in a step.
        noise: standard deviation of a rank's work in a step, relative to it.
        likeness: correlation of a rank's deviation in one step with that in the next.
        slow: by rank how much longer it works, relative to a step.
        clock_s: the clocks of two ranks differ by up to so much.
        waits: whether ranks wait in each collective, or only at the end of the step.
    """

    groups: Sequence[Sequence[int]]
    parts: int = 1
    step_s: float = 0.1
    noise: float = 0.02
    likeness: float = 0.0
    slow: dict[int, float] | None = None
    clock_s: float = 1.0
    waits: bool = True


def simulate(rng: random.Random, training: Training, steps: int) -> list[RankArrivals]:
    """Return what `steps` sampled steps show of each rank."""
    ranks = sorted({rank for group in training.groups for rank in group})
    clocks = {rank: rng.uniform(0, training.clock_s) for rank in ranks}
    calls: dict[int, list[Call]] = {rank: [] for rank in ranks}
    ends: dict[int, list[int]] = {rank: [] for rank in ranks}
    at_s = dict.fromkeys(ranks, 1000.0)
    deviation = {rank: rng.gauss(0, 1) for rank in ranks}
    numbers = dict.fromkeys(range(len(training.groups)), 0)
    # One before the first compared step: that begins with its end.
    for _ in range(steps + 1):
        for rank in ranks:
            fresh = (1 - training.likeness**2) ** 0.5
            deviation[rank] = training.likeness * deviation[rank] + fresh * rng.gauss(0, 1)
        release_s = dict(at_s)
        for _ in range(training.parts):
            for rank in ranks:
                work = max(0.1, 1 + training.noise * deviation[rank]) + (training.slow or {}).get(rank, 0.0)
                at_s[rank] += training.step_s * work / training.parts
            for place, group in enumerate(training.groups):
                numbers[place] += 1
                for rank in group:
                    time_ns = round(
                        (at_s[rank] + clocks[rank] + min(rng.expovariate(1 / JITTER_S), OPTIMIZER_S)) * SECOND
                    )
                    calls[rank].append(Call(str(place), numbers[place], time_ns))
                done_s = max(at_s[rank] for rank in group)
                for rank in group:
                    release_s[rank] = max(release_s[rank], done_s)
                    if training.waits:
                        at_s[rank] = done_s
        for rank in ranks:
            # What the optimizer takes, after all collectives.
            at_s[rank] = max(at_s[rank], release_s[rank]) + OPTIMIZER_S
            ends[rank].append(round((at_s[rank] + clocks[rank]) * SECOND))
    found = (arrivals_of(rank, calls[rank], ends[rank]) for rank in ranks)
    return [one for one in found if one is not None]
