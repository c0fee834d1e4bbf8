"""Which rank keeps the others waiting, by arrivals at collectives of simulated trainings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from simulation.training import Training, simulate

from ftslurm.dataclasses import replace
from ftslurm.monitor.lateness import as_dicts, lateness, phrase

EIGHT = Training([range(8)])


def later(steps: Sequence[tuple[int, ...]], numbers: int) -> tuple[tuple[int, ...], ...]:
    """Return steps whose collectives have higher numbers."""
    return tuple((first + numbers, last + numbers, *us) for first, last, *us in steps)


def named(training: Training, steps: int = 46, seed: int | None = None) -> list[int]:
    seed = random.randrange(10**9) if seed is None else seed
    print(f"seed {seed}")
    return [each.rank for each in lateness(simulate(random.Random(seed), training, steps)).late]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("slow", [0.05, 0.1])
def test_one_of_eight_that_is_five_percent_slower_is_named_within_thirty_steps(
    waits: bool, parts: int, slow: float
) -> None:
    training = replace(EIGHT, parts=parts, slow={5: slow}, waits=waits, noise=0.01 / parts)
    assert named(training, 30) == [5]


def test_it_is_named_with_its_lateness_and_how_often() -> None:
    found = lateness(simulate(random.Random(1), replace(EIGHT, slow={5: 0.1}), 46))
    (late,) = found.late
    assert (late.rank, found.compared, late.steps) == (5, 8, 46)
    assert late.late_s == pytest.approx(0.010, rel=0.1)
    assert late.step_s == pytest.approx(0.112, rel=0.05)
    assert late.share > 0.95
    (row,) = as_dicts(found, dict.fromkeys(range(8), "n2"), {"n2": ["GPU 1: clocks throttled"], "n1": ["x"]})
    assert (row["node"], row["findings"]) == ("n2", ["GPU 1: clocks throttled"])
    text = phrase(row)
    assert text.startswith("arrives ") and "late at collectives in 100% of 46 sampled steps (a step: 11" in text
    assert text.endswith("; on its node: GPU 1: clocks throttled")


@pytest.mark.parametrize("ranks", [2, 3, 4, 16, 64])
def test_a_slow_rank_is_named_among_few_and_many(ranks: int) -> None:
    assert named(Training([range(ranks)], slow={1: 0.1}, noise=0.01)) == [1]


def test_two_slow_ranks_are_both_named() -> None:
    assert sorted(named(replace(EIGHT, slow={2: 0.1, 6: 0.12}))) == [2, 6]


def test_a_rank_that_waits_for_the_slow_one_in_one_group_is_not_named_for_being_late_in_another() -> None:
    # Tensor parallel pairs, data parallel over the pairs: rank 2 waits for rank 3 in each step.
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    training = Training([*pairs, [0, 2, 4, 6], [1, 3, 5, 7]], slow={3: 0.1}, noise=0.01)
    assert named(training) == [3]


def test_ranks_that_also_send_and_receive_are_not_named() -> None:
    arrivals = simulate(random.Random(3), replace(EIGHT, slow={5: 0.1}), 46)
    assert lateness([replace(one, transfers=True) for one in arrivals]).late == ()


def test_too_few_steps_name_none() -> None:
    found = lateness(simulate(random.Random(4), replace(EIGHT, slow={5: 0.5}), 29))
    assert (found.late, found.compared) == ((), 0)


def test_lateness_that_costs_nothing_is_not_reported() -> None:
    assert named(replace(EIGHT, slow={5: 0.01}, noise=0.001)) == []


def test_a_disturbance_of_some_steps_names_none() -> None:
    quiet, slow = (simulate(random.Random(5), replace(EIGHT, slow={5: part}), 24) for part in (0.0, 0.3))
    arrivals = [
        replace(
            one,
            groups=tuple(
                replace(group, steps=(*group.steps, *later(second.steps, 100)))
                for group, second in zip(one.groups, other.groups, strict=True)
            ),
        )
        for one, other in zip(quiet, slow, strict=True)
    ]
    assert lateness(arrivals).compared == 8
    assert lateness(arrivals).late == ()


def test_steps_that_only_some_ranks_sampled_are_not_compared() -> None:
    arrivals = simulate(random.Random(6), replace(EIGHT, slow={5: 0.1}), 46)
    shifted = [
        one
        if one.rank < 3
        else replace(one, groups=tuple(replace(each, steps=later(each.steps, 1000)) for each in one.groups))
        for one in arrivals
    ]
    assert lateness(shifted).late == lateness(arrivals[3:]).late


def test_without_arrivals_nothing_is_compared() -> None:
    assert lateness([]).compared == 0
    assert lateness(simulate(random.Random(7), Training([[0]]), 40)).compared == 0


def without_a_slow_rank(rng: random.Random) -> Training:
    ranks = rng.choice((4, 8, 16))
    kind: Callable[[], float] = lambda: rng.choice((0.005, 0.02, 0.05, 0.1))  # noqa: E731
    return Training([range(ranks)], noise=kind(), likeness=rng.choice((0.0, 0.3, 0.6)), waits=rng.random() < 0.5)


def test_trainings_without_a_slow_rank_name_none() -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rng = random.Random(seed)
    assert [n for n in range(400) if lateness(simulate(rng, without_a_slow_rank(rng), 46)).late] == []
