"""What scripts/chaos plans: always the same for a seed, every fault in time, and a registry without mistakes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from chaos_parts.counting import ITEMS, item, part, total
from chaos_parts.faults import BY_NAME, FAULTS, STOPPED, THIS_RANK
from chaos_parts.processes import RANK
from chaos_parts.schedule import BEFORE, STEP_S, plan

from ftslurm.failures.causes import ROWS

PLANS = [plan(seed, number) for seed in range(40) for number in range(1, 26)]


def test_the_same_seed_and_number_give_the_same_plan_and_others_another() -> None:
    assert [plan(3, number) for number in (1, 2, 3)] == [plan(3, number) for number in (1, 2, 3)]
    assert len({plan(seed, number).blows for seed in range(5) for number in (1, 2)}) == 10


def test_a_plan_does_not_depend_on_whether_torch_is_there_but_for_the_link() -> None:
    for number in range(1, 30):
        with_torch, without = plan(1, number, gloo=True), plan(1, number)
        assert with_torch.blows == without.blows
        assert without.link == "star"


def test_every_fault_comes_as_often_as_its_weight() -> None:
    blows = [blow for each in PLANS for blow in each.blows]
    times = {fault.name: sum(blow.fault == fault.name for blow in blows) for fault in FAULTS}
    share = len(blows) / sum(fault.weight for fault in FAULTS)
    for fault in FAULTS:
        assert 0.5 * share * fault.weight < times[fault.name] < 2 * share * fault.weight + 5, fault.name


def test_every_fault_is_in_time_lasts_as_its_row_states_and_some_come_at_the_same_time() -> None:
    close = 0
    for each in PLANS:
        assert 1 <= len(each.blows) <= 3
        for blow in each.blows:
            fault = BY_NAME[blow.fault]
            assert fault.last_s[0] <= blow.last_s <= fault.last_s[1]
            assert 0 < blow.at_s < 35 and 0 <= blow.choice <= 1
            assert not (blow.since == BEFORE and fault.spares_start)
        later = [blow for blow in each.blows if blow.since != BEFORE]
        close += any(abs(one.at_s - other.at_s) < 0.6 for one, other in pairwise(later))
        assert any(blow.at_s < each.steps * STEP_S for blow in each.blows)
    assert close > len(PLANS) / 20


def test_one_may_choose_the_faults() -> None:
    only = [BY_NAME["scancel"], BY_NAME["requeue"]]
    assert {blow.fault for number in range(1, 9) for blow in plan(1, number, only).blows} == {"scancel", "requeue"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_row_of_the_registry_names_causes_that_there_are_and_blames_what_it_hits(fault) -> None:  # type: ignore[no-untyped-def]
    known = {row.name for row in ROWS} | {STOPPED}
    for reason in fault.reasons:
        assert reason.causes <= known
        assert reason.blames != THIS_RANK or fault.hits == RANK
    assert fault.last_s[0] <= fault.last_s[1]
    assert not (fault.ends_job and fault.takes_node)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(FAULTS)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 8])
def test_the_sum_is_the_same_for_every_world_size(world_size: int) -> None:
    for step in (1, 2, 50):
        parts = sum(part(step, rank, world_size) for rank in range(world_size))
        assert parts == sum(item(step, index) for index in range(ITEMS)) == total(step) - total(step - 1)
