"""Random programs of collectives with one fault: the right rank, operation and number are named, and no other rank."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace

import pytest
from collective_programs import OPERATIONS, Do, Rank, World, program, world_of

from ftslurm.collectives.calls import calls_of
from ftslurm.collectives.finding import ABSENT, DIFFERENT, LEFT
from ftslurm.collectives.judgement import CYCLE, NOTHING, Judgement, judge
from ftslurm.collectives.phrases import advice, remarks, sentence
from ftslurm.records.flight import FlightRecord, GroupConfig, Trace

SEEDS = range(int(os.environ.get("COLLECTIVE_SEEDS", "60")))
BACKENDS = ("gloo", "nccl")


def judged(world: World, rng: random.Random, **options: object) -> Judgement:
    """Run a world until it stands still, and judge the records."""
    records = world.run().records(buffer=rng.choice((60, 2000)))
    rng.shuffle(records)
    return judge([calls_of(record, len(world.ranks)) for record in records], **options)  # type: ignore[arg-type]


def text_of(found: Judgement) -> str:
    return "; ".join([sentence(found, {}), *remarks(found), advice(found)])


def made(seed: int, backend: str) -> tuple[random.Random, World, int, int]:
    """Return a world of a random program, a rank of it and the place of one of its calls of its group of all."""
    rng = random.Random(seed)
    groups, calls = program(rng, rng.randrange(3, 9), rng.randrange(6, 30))
    world = world_of(groups, calls, backend)
    victim = rng.choice(world.ranks)
    own = [i for i, do in enumerate(victim.todo) if i >= len(groups) and not do.peers]
    if not own:
        victim.todo.append(Do("0", "all_reduce"))
        for rank in world.ranks:
            if rank is not victim:
                rank.todo.append(Do("0", "all_reduce"))
        own = [len(victim.todo) - 1]
    return rng, world, victim.rank, rng.choice(own)


def number(world: World, rank: int, place: int) -> tuple[str, int]:
    """Return the group of a call of a rank's program, and its number there."""
    todo = world.ranks[rank].todo
    group = todo[place].group
    return group, sum(do.group == group and not do.peers for do in todo[: place + 1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_makes_another_call_is_named_with_both_calls(seed: int, backend: str) -> None:
    rng, world, victim, place = made(seed, backend)
    do = world.ranks[victim].todo[place]
    others = [name for name in OPERATIONS if name != do.name]
    changed = rng.choice(
        [replace(do, name=rng.choice(others))]
        + ([replace(do, elements=do.elements + 1)] if do.name in OPERATIONS[:-1] else [])
        + ([replace(do, dtype="Double" if do.dtype != "Double" else "Half")] if do.name in OPERATIONS[:-1] else [])
    )
    group, seq = number(world, victim, place)
    world.ranks[victim].todo[place] = changed
    found = judged(world, rng)
    assert found.kind in DIFFERENT, (seed, text_of(found))
    assert found.culprits == (victim,), (seed, text_of(found))
    assert found.root is not None and (found.root.name, found.root.seq) == (group, seq), (seed, text_of(found))
    assert f"{changed.name} #{seq}" in text_of(found) and f"{do.name} #{seq}" in text_of(found)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ended", [False, True])
def test_a_rank_that_does_not_come_is_named_with_the_call_that_waits_for_it(
    seed: int, backend: str, ended: bool
) -> None:
    rng, world, victim, place = made(seed, backend)
    rank = world.ranks[victim]
    rank.stops_before = place
    rank.gone = ended
    found = judged(world, rng, gone={victim} if ended else (), busy=() if ended else {victim})
    counts = dict(rank.numbers)
    if backend == "gloo" and ended and found.kind == NOTHING:
        return  # What waits for it are transfers alone.
    assert found.kind in (ABSENT, LEFT, "transfer"), (seed, text_of(found))
    assert found.culprits == (victim,), (seed, text_of(found))
    if backend == "gloo" and ended and found.root is not None and found.root.size is None:
        assert not found.decides, seed  # Gloo does not record whether it was in that group.
        return
    if found.kind in (ABSENT, LEFT) and found.root is not None and not _is_transfer(found):
        assert found.root.seq == counts.get(found.root.name, 0) + 1, (seed, text_of(found))


def _is_transfer(found: Judgement) -> bool:
    assert found.root is not None
    operation = found.root.operation
    return operation is not None and operation.peers is not None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_skipped_or_swapped_call_is_no_other_ranks_fault(seed: int, backend: str) -> None:
    rng, world, victim, place = made(seed, backend)
    todo = world.ranks[victim].todo
    if rng.random() < 0.5 and place + 1 < len(todo):
        todo[place], todo[place + 1] = todo[place + 1], todo[place]
    else:
        del todo[place]
    found = judged(world, rng)
    assert found.culprits in ((), (victim,)), (seed, text_of(found))
    if all(not do.peers for rank in world.ranks for do in rank.todo) and len(world.groups) == 1 and found.root:
        assert found.culprits == (victim,), (seed, text_of(found))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_where_nothing_is_wrong_no_rank_is_named(seed: int, backend: str) -> None:
    """A program that came to its end, with work that no rank waited for, and one seen on its way."""
    rng, world, _, _ = made(seed, backend)
    assert judged(world, rng).kind == NOTHING, seed
    rng, world, victim, place = made(seed, backend)
    world.ranks[victim].stops_before = place  # It is late.
    late = judge([calls_of(record, len(world.ranks)) for record in world.run().records(after_s=0.2)])
    assert late.kind == NOTHING, (seed, text_of(late))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_with_records_missing_no_other_rank_is_blamed(seed: int, backend: str) -> None:
    rng, world, victim, place = made(seed, backend)
    world.ranks[victim].stops_before = place
    records = world.run().records()
    lost = set(rng.sample(range(len(records)), rng.randrange(1, len(records))))
    calls = [calls_of(record, len(world.ranks)) for record in records if record.rank not in lost]
    found = judge(calls, busy={victim})
    assert set(found.culprits) <= {victim}, (seed, lost, text_of(found))
    text_of(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_transfer_without_its_partner_is_found(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randrange(3, 7)
    groups, calls = program(rng, size, rng.randrange(4, 12))
    one, other = rng.sample(range(size), 2)
    world = world_of(groups, [do for do in calls if not do.peers])
    forgets = rng.choice((one, other))
    for rank in (one, other):
        if rank != forgets:
            world.ranks[rank].todo.append(Do("0", "transfer", peers=(one, other)))
    found = judged(world, rng)
    assert found.culprits == (forgets,), (seed, text_of(found))
    assert f"for {'recv' if forgets == one else 'send'} #1" in text_of(found), text_of(found)


def test_transfers_of_two_ranks_to_each_other_are_a_cycle_without_a_culprit() -> None:
    world = world_of({"0": (0, 1, 2)}, [Do("0", "all_reduce")])
    world.ranks[0].todo.append(Do("0", "transfer", peers=(1, 0)))
    world.ranks[1].todo.append(Do("0", "transfer", peers=(0, 1)))
    found = judged(world, random.Random(0))
    assert (found.kind, found.culprits) == (CYCLE, ())


def test_a_chain_over_three_groups_ends_at_the_rank_that_waits_for_no_other() -> None:
    groups = {"0": tuple(range(6)), "1": (0, 1, 2), "2": (2, 3, 4), "3": (4, 5)}
    first = [Do(group, "broadcast") for group in groups]
    world = world_of(
        groups, [*first, Do("3", "all_reduce"), Do("2", "all_gather"), Do("1", "all_reduce"), Do("0", "barrier")]
    )
    world.ranks[5].stops_before = 2
    found = judged(world, random.Random(0), busy={5})
    assert (found.kind, found.culprits) == (ABSENT, (5,))
    text = text_of(found)
    assert text.startswith("rank 5 has not joined all_reduce #2 [4 float32], in which rank 4 waits (group 3 (g3))"), (
        text
    )
    assert "ranks 2-3 wait in all_gather #2 (group 2 (g2)) for rank 4" in text
    assert "ranks 0-1 wait in all_reduce #2 (group 1 (g1)) for rank 2" in text


LARGE, TENSOR, ENTRIES = 16_384, 8, 20


def large(rank: int, *, joined: bool, last: str = "all_reduce") -> FlightRecord:
    """Return the record of one of 16,384 ranks, without running the model: the last call of all is not done."""
    own = f"t{rank // TENSOR}"
    first = rank // TENSOR * TENSOR
    world = World({"0": tuple(range(2)), own: tuple(range(first, first + TENSOR))}, [])
    calls = [Do("0", "all_reduce", 1 << 20)] * (ENTRIES - 1) + [Do("0", last, 1 << 20)] * joined
    entries = [world.entry(Rank(rank, []), Do(own, "all_gather"), n, 1, n, n, done=True) for n in range(1, ENTRIES)]
    entries += [world.entry(Rank(rank, []), do, n, 1, n, n, done=n < ENTRIES) for n, do in enumerate(calls, 1)]
    config = {own: GroupConfig("tensor", world.groups[own])}
    trace = Trace(tuple(entries), config, {}, 0, "2.10")
    return FlightRecord("j", 1, f"n{rank // 8}", rank, 9 * 10**9, "socket", trace=trace)


@pytest.mark.exhaustive
def test_the_records_of_16384_ranks_are_judged_in_seconds() -> None:
    ranks, took_s = [], 0.0
    for rank in range(LARGE):
        record = large(rank, joined=rank != 9_999)
        began = time.process_time()
        ranks.append(calls_of(record, LARGE))
        took_s += time.process_time() - began
    odd = calls_of(large(9_999, joined=True, last="broadcast"), LARGE)
    began = time.process_time()
    found = judge(ranks)
    took_s += time.process_time() - began
    assert found.culprits == (9_999,)
    assert sentence(found, {}).startswith(
        "rank 9999 has not joined all_reduce #20 [1048576 float32], in which 16,383 ranks"
    )
    # 2.1 s of one quiet core; the bound is against work that grows with the square of the ranks.
    assert took_s < 12, took_s
    again = judge([odd if one.rank == 9_999 else one for one in ranks])
    assert again.culprits == (9_999,)
    assert "calls broadcast #20 [1048576 float32] where 16,383 ranks call all_reduce #20" in sentence(again, {})
