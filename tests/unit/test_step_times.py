"""Which ranks are slow, from histograms of intervals."""

from __future__ import annotations

import random
import statistics

import pytest

from ftslurm.monitor.heartbeat_page import BUCKETS, EDGES_S, bucket
from ftslurm.monitor.step_times import Histogram, SlowRank, slow_ranks


def counted(*intervals_s: float) -> Histogram:
    counts = [0] * BUCKETS
    for interval_s in intervals_s:
        counts[bucket(int(interval_s * 1e9))] += 1
    return Histogram(tuple(counts))


def test_a_rank_that_is_twice_as_slow_is_named_with_both_times() -> None:
    ranks = {rank: counted(*[0.1] * 50) for rank in range(8)}
    ranks[5] = counted(*[0.2] * 50)
    (slow,) = slow_ranks(ranks)
    assert slow.rank == 5
    assert slow.median_s == pytest.approx(0.2, rel=0.25)
    assert slow.others_s == pytest.approx(0.1, rel=0.25)


def test_of_ranks_that_are_tied_together_none_is_named() -> None:
    seeded = random.Random(1)
    ranks = {rank: counted(*[seeded.gauss(0.1, 0.005) for _ in range(100)]) for rank in range(64)}
    assert slow_ranks(ranks) == []


def test_a_few_long_steps_name_no_rank() -> None:
    ranks = {rank: counted(*[0.1] * 90) for rank in range(4)}
    ranks[0] = counted(*[0.1] * 90, *[60.0] * 10)
    assert slow_ranks(ranks) == []


def test_a_rank_with_few_intervals_is_neither_slow_nor_a_measure() -> None:
    ranks = {0: counted(*[0.1] * 30), 1: counted(*[0.1] * 30), 2: counted(*[9.0] * 19)}
    assert slow_ranks(ranks) == []
    assert [slow.rank for slow in slow_ranks(ranks, least=19)] == [2]
    assert slow_ranks({0: counted(*[0.1] * 30), 1: counted(*[9.0] * 3)}) == []


def test_of_two_ranks_the_slower_one_is_measured_by_the_other() -> None:
    assert [s.rank for s in slow_ranks({0: counted(*[0.1] * 30), 1: counted(*[0.3] * 30)})] == [1]


def test_half_of_the_ranks_may_be_slow_and_the_slowest_stands_first() -> None:
    ranks = {rank: counted(*[0.1] * 30) for rank in range(5)}
    ranks |= {5: counted(*[1.0] * 30), 6: counted(*[2.0] * 30), 7: counted(*[1.0] * 30)}
    assert [s.rank for s in slow_ranks(ranks)] == [6, 5, 7]


def test_each_rank_is_measured_by_the_median_of_the_others_exactly() -> None:
    seeded = random.Random(2)
    for size in range(2, 12):
        ranks = {rank: counted(*[seeded.choice([0.1, 0.2, 0.5, 2.0])] * 20) for rank in range(size)}
        expected = []
        for rank, each in ranks.items():
            others_s = statistics.median(other.median_s for r, other in ranks.items() if r != rank)
            if each.median_s > 1.5 * others_s:
                expected.append(SlowRank(rank, each.median_s, others_s))
        assert slow_ranks(ranks) == sorted(expected, key=lambda s: (-s.median_s, s.rank))


def test_quantiles_are_right_within_their_bucket() -> None:
    seeded = random.Random(3)
    values = [seeded.lognormvariate(-2, 1) for _ in range(2000)]
    histogram = counted(*values)
    for part in (0.1, 0.5, 0.9, 0.99):
        true = sorted(values)[int(part * len(values))]
        assert histogram.quantile(part) == pytest.approx(true, rel=0.2)
    assert counted().median_s == 0
    assert counted(10**6).median_s == EDGES_S[-1]


def test_pairs_of_bucket_and_count_are_the_same_histogram() -> None:
    whole = counted(*[0.1] * 10, 3.0)
    pairs = [(at, number) for at, number in enumerate(whole.counts) if number]
    assert Histogram.from_pairs(pairs) == whole
    assert Histogram.from_pairs([(-1, 5), (10**6, 5), (3, -5)]).intervals == 0
