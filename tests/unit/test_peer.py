"""What the peer heartbeat makes of answers: pure, without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from ftslurm import peer
from ftslurm.peer.verdict import absent, lost_error, ranks, timeout_of, token_error, wrong_ranks


@pytest.mark.parametrize(("period", "timeout"), [(60.0, 50.0), (12.0, 2.0), (13.5, 3.5), (1.0, 2.0)])
def test_the_time_out_is_ten_seconds_below_the_period_but_at_least_two(period: float, timeout: float) -> None:
    assert timeout_of(period) == timeout


def test_every_slot_must_hold_the_token() -> None:
    assert wrong_ranks([7, 7, 7], 7) == []
    assert wrong_ranks([7, 0, 8], 7) == [1, 2]


def test_the_rank_with_another_token_is_named() -> None:
    assert str(token_error([7, 7, 5], 7, rank=0)).startswith("rank 2 answers the peer heartbeat with a wrong token")
    assert str(token_error([7, 7, 7, 5, 6], 7, rank=0)).startswith("ranks 3-4 answer the peer")


def test_a_rank_whose_token_no_other_shares_blames_itself() -> None:
    text = str(token_error([7, 7, 5], 5, rank=2))
    assert text.startswith("rank 2 is out of step: 2 of 3 ranks agree on another heartbeat token; this rank was")


def test_of_two_ranks_that_disagree_none_knows_better() -> None:
    assert str(token_error([7, 5], 7, rank=0)).startswith("rank 1 answers")
    assert str(token_error([7, 5], 5, rank=1)).startswith("rank 0 answers")


def test_the_ranks_that_did_not_come_are_named() -> None:
    text = str(lost_error([3, 4, 5, 9], 3, 50.0, "whatever"))
    assert text.startswith("ranks 3-5, 9 did not answer the peer heartbeat 3 times in a row (time-out 50 s)")


def test_where_all_came_the_last_error_is_reported() -> None:
    text = str(lost_error([], 3, 2.0, "connection reset"))
    assert text == "the peer heartbeat failed 3 times in a row (time-out 2 s): connection reset"


@pytest.mark.parametrize("gone", [set(), {0}, {5}, {0, 1, 2}, {499, 998}, set(range(1000))])
def test_absent_ranks_are_found_with_questions_about_groups(gone: set[int]) -> None:
    questions: list[int] = []

    def are_here(some: Sequence[int]) -> bool:
        questions.append(len(some))
        return not gone & set(some)

    assert absent(range(1000), are_here) == sorted(gone)
    assert len(gone) == 1000 or len(questions) <= 1 + 2 * 10 * len(gone)


def test_long_lists_of_ranks_are_shortened() -> None:
    assert ranks([4]) == "rank 4"
    assert ranks([2, 0, 1, 7]) == "ranks 0-2, 7"
    assert ranks(range(0, 100, 2)).endswith("28, 30 and 34 more")


@pytest.mark.parametrize(("period", "timeout"), [(0.0, None), (-1.0, None), (float("nan"), None), (60.0, 0.0)])
def test_periods_and_time_outs_that_are_none_are_refused(period: float, timeout: float | None) -> None:
    with pytest.raises(ValueError, match="more than 0 s"):
        peer.start(period, timeout=timeout)


def test_importing_it_does_not_import_torch() -> None:
    source = "import sys, ftslurm, ftslurm.peer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
