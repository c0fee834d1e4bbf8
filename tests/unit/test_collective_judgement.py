"""Judgement of the ranks' records of their collectives: real documents of gloo, and what NCCL's look like."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ftslurm.collectives.calls import RankCalls, calls_of
from ftslurm.collectives.finding import (
    ABORTED,
    ABSENT,
    DTYPE,
    LEFT,
    MATCHED,
    NOT_STARTED,
    OPERATION,
    SIZE,
    TRANSFER,
    UNKNOWN,
    Aborted,
)
from ftslurm.collectives.judgement import APART, CYCLE, NOTHING, Judgement, judge
from ftslurm.collectives.phrases import advice, remarks, sentence
from ftslurm.dataclasses import replace
from ftslurm.monitor import flight
from ftslurm.records.flight import DUMP, SOCKET, Collective, FlightRecord, GroupConfig, Trace

DOCUMENTS = Path(__file__).parent / "flight_documents"
NODES = {rank: f"n{rank // 2 + 1}" for rank in range(8)}
S = 10**9


def real(name: str, world: int) -> list[RankCalls]:
    """Return the calls in the documents of a name, as if all were taken some seconds after the newest call."""
    traces = {
        rank: flight.read(path.read_bytes(), path.name)
        for rank in range(world)
        if (path := DOCUMENTS / f"{name}-{rank}.json").exists()
    }
    at_ns = max(entry.time_created_ns for trace in traces.values() for entry in trace.entries) + 9 * S
    return [record(rank, trace, world, at_ns) for rank, trace in traces.items()]


def record(rank: int, trace: Trace, world: int = 4, at_ns: int = 100 * S, source: str = SOCKET) -> RankCalls:
    node = NODES[rank]
    return calls_of(FlightRecord("job-1", 1, node, rank, at_ns, source, trace=trace), world)


def entry(seq: int, title: str = "nccl:all_reduce", **changes: Any) -> Collective:
    """Return an entry that is done, unless `retired=False` is among the changes."""
    given: dict[str, Any] = {
        "process_group": ("0", "default_pg"),
        "input_sizes": ((4096,),),
        "input_dtypes": ("Float",),
        "time_created_ns": seq,
        "retired": True,
        **changes,
    }
    given.setdefault("state", "completed" if given["retired"] else "scheduled")
    return Collective(seq, given.pop("p2p_seq_id", 0), given.pop("op_id", seq), title, **given)


def ranks(
    traces: Iterable[Iterable[Collective]], groups: dict[str, tuple[int, ...]] | None = None, source: str = SOCKET
) -> list[RankCalls]:
    """Return the calls of ranks from 0 on with these entries."""
    given = [tuple(entries) for entries in traces]
    config = {name: GroupConfig("", members) for name, members in (groups or {}).items()}
    return [record(rank, Trace(entries, config, {}), len(given), source=source) for rank, entries in enumerate(given)]


def text(found: Judgement) -> str:
    return sentence(found, NODES)


@pytest.mark.parametrize(
    ("name", "world", "kind", "culprits", "expected"),
    [
        ("late", 4, ABSENT, (2,), "rank 2 on n2 has not joined all_reduce #4 [4 float32], in which ranks 0-1, 3 wait"),
        (
            "order",
            4,
            OPERATION,
            (2,),
            "rank 2 on n2 calls broadcast #4 [4 float32] where ranks 0-1, 3 call all_reduce #4",
        ),
        (
            "size",
            4,
            SIZE,
            (2,),
            "rank 2 on n2 calls all_reduce #4 [8 float32] where ranks 0-1, 3 call all_reduce #4 [4",
        ),
        (
            "dtype",
            4,
            DTYPE,
            (2,),
            "rank 2 on n2 calls all_reduce #4 [4 float64] where ranks 0, 3 call all_reduce #4 [4",
        ),
        (
            "root",
            3,
            MATCHED,
            (),
            "ranks 0, 2 wait in broadcast #2 [4 float32] (group default_pg), which is done on rank 1",
        ),
        ("reinit", 3, ABSENT, (2,), "rank 2 on n2 has not joined all_reduce #2 [4 float32], in which ranks 0-1 wait"),
        ("async", 3, ABSENT, (2,), "rank 2 on n2 has not joined all_reduce #4 [4 float32], in which ranks 0-1 wait"),
        ("absent", 2, ABSENT, (1,), "rank 1 on n1 has not joined all_reduce #4 [8 float32], in which rank 0 waits"),
        (
            "mismatch",
            2,
            OPERATION,
            (),
            "rank 0 calls all_reduce #4 [4096 float32] where rank 1 calls all_gather #4 [4096",
        ),
        (
            "p2p",
            3,
            ABSENT,
            (),
            "rank 1 waits in all_reduce #4 [8 float32] (group default_pg), which ranks 0, 2 have not",
        ),
        (
            "subgroup",
            3,
            UNKNOWN,
            (),
            "rank 0 waits in all_reduce #1 [8 float32] (group 1); the other ranks of the group",
        ),
        ("healthy", 3, NOTHING, (), ""),
    ],
)
def test_what_real_documents_of_gloo_show(
    name: str, world: int, kind: str, culprits: tuple[int, ...], expected: str
) -> None:
    found = judge(real(name, world))
    assert (found.kind, found.culprits) == (kind, culprits), text(found)
    assert text(found).startswith(expected)
    assert (advice(found) != "") == (kind != NOTHING)


def test_a_rank_without_a_record_is_no_culprit_but_one_that_is_seen_to_be_absent_is() -> None:
    of_all = real("late", 4)
    some = judge([one for one in of_all if one.rank != 3])
    assert some.culprits == (2,)
    without = judge([one for one in of_all if one.rank != 2])
    assert (without.kind, without.culprits, without.decides) == (UNKNOWN, (), False)
    assert text(without).endswith("of rank 2 it is not known")


def test_a_record_that_could_not_be_taken_is_named_with_what_the_others_wait_in() -> None:
    of_all = [one for one in real("late", 4) if one.rank != 2]
    of_all.append(RankCalls(2, "n2", 9, problem="no answer within 2 s"))
    found = judge(of_all)
    assert found.missing == {2: "no answer within 2 s"}
    assert (found.kind, found.culprits) == (UNKNOWN, ())


def test_a_rank_that_has_ended_is_waited_for_and_one_rank_that_outlasts_all_others_is_the_odd_one() -> None:
    of_all = real("late", 4)
    left = judge([one for one in of_all if one.rank != 2], gone={2})
    assert (left.kind, left.culprits) == (LEFT, (2,))
    assert sentence(left, NODES, {2: "exit code 0"}) == (
        "rank 2 on n2 ended with exit code 0 while ranks 0-1, 3 wait in all_reduce #4 [4 float32] (group default_pg)"
    )
    alone = judge([one for one in of_all if one.rank == 1], gone={0, 2, 3})
    assert alone.culprits == (1,)
    assert text(alone) == (
        "rank 1 on n1 waits alone in all_reduce #4 [4 float32] (group default_pg): ranks 0, 2-3 had ended"
    )


def test_a_call_that_an_error_ended_counts_as_waited_in() -> None:
    """Gloo's work is retired when its connection breaks, as if it were done."""
    done = [[entry(1), entry(2)], [entry(1), entry(2)], [entry(1)]]
    assert judge(ranks(done)).kind == NOTHING
    found = judge(ranks(done, source=DUMP))
    assert (found.kind, found.culprits) == (ABSENT, (2,))
    assert judge(ranks(done[:2], source=DUMP)).kind == NOTHING, "they may have failed in anything else"


def test_of_a_rank_that_an_error_ended_only_the_newest_call_of_all_groups_can_have_failed() -> None:
    """The others have completed the world's call; only rank 3 is in the group in which rank 2 waits."""
    calls = entry(60), entry(12, time_created_ns=61, process_group=("2", "undefined"))
    found = judge([record(2, Trace(calls, {"2": GroupConfig("", (2, 3))}, {}), source=DUMP)], gone={0, 1, 3})
    assert (found.kind, found.culprits, found.decides) == (LEFT, (3,), True)
    assert text(found) == "rank 3 on n2 ended while rank 2 waits in all_reduce #12 [4096 float32] (group 2)"
    unknown = judge([record(2, Trace(calls, {}, {}), source=DUMP)], gone={0, 1, 3})
    assert (unknown.kind, unknown.culprits) == (UNKNOWN, ()), "which of them is in the group is not known"
    sent = entry(60, "nccl:send 0->1", p2p_seq_id=1, time_created_ns=61, is_p2p=True)
    assert judge([record(2, Trace((entry(60), sent), {}, {}), source=DUMP)], gone={3}).kind == NOTHING


def test_a_call_that_an_error_ended_and_that_another_rank_got_over_with_another_size_is_shown_with_both() -> None:
    """Gloo lets the rank go on that waits for less than the other one sends."""
    long, short = ({"input_sizes": ((size,),), "output_sizes": ((size,),)} for size in (4, 3))
    first = [entry(1, "gloo:all_reduce", **long)], [entry(1, "gloo:all_reduce", **short), entry(2, "gloo:barrier")]
    found = judge(ranks(first, source=DUMP))
    assert (found.kind, found.root is not None and found.root.seq) == (SIZE, 1)
    assert "rank 0 calls all_reduce #1 [4 float32] where rank 1 calls all_reduce #1 [3 float32]" in text(found)


def test_a_rank_that_gloo_aborted_for_what_came_is_shown_with_the_call_of_its_partner() -> None:
    """Rank 3 got over its call, as what came was shorter; the world's next call stands still because of the abort."""
    pairs = [entry(1, "gloo:all_gather", input_sizes=((size,),), process_group=("g", "")) for size in (5, 6)]
    pairs[0] = replace(pairs[0], process_group=("1", ""))
    world = [entry(60, "gloo:all_reduce"), entry(61, "gloo:all_reduce", retired=False)]
    of_all = [record(rank, Trace((*world, pairs[rank == 3]), {}, {})) for rank in (0, 1, 3)]
    found = judge(of_all, aborted=[Aborted(2, "all_gather", 12, 10)])
    assert (found.kind, found.culprits, found.decides) == (ABORTED, (), True)
    assert text(found) == "rank 3 calls all_gather #1 [6 float32] where rank 2 calls a shorter one (group g)"
    assert remarks(found)[0] == "gloo aborted rank 2, as 12 bytes came where it expected 10"
    assert "where the sizes come from" in advice(found)
    assert found.missing == {2: "gloo aborted it"}
    unknown = judge(of_all, aborted=[Aborted(2, "broadcast", 12, 10)])
    assert (unknown.kind, unknown.culprits) == (UNKNOWN, ())
    gone = judge(of_all, gone={2})
    assert gone.kind == LEFT, "a rank that ended in another way"


def test_a_partner_that_has_sent_all_and_went_on_is_shown_with_its_longer_call() -> None:
    calls = [entry(seq, "gloo:all_reduce", input_sizes=((size,),)) for seq, size in ((3, 10), (4, 12), (5, 10))]
    found = judge([record(1, Trace(tuple(calls), {}, {}))], aborted=[Aborted(0, "all_reduce", 12, 4)])
    assert text(found).startswith("rank 1 calls all_reduce #4 [12 float32] where rank 0 calls a shorter one")
    small = [entry(seq, "gloo:all_reduce", input_sizes=((size,),)) for seq, size in ((3, 4096), (4, 12))]
    found = judge([record(1, Trace(tuple(small), {}, {}))], aborted=[Aborted(0, "all_reduce", 12, 4)])
    assert text(found).startswith("rank 1 calls all_reduce #4 [12 float32]"), "of the other one more would have come"
    alike = [entry(seq, "gloo:broadcast", input_sizes=((100,),)) for seq in (5, 6)]
    found = judge([record(1, Trace(tuple(alike), {}, {}))], aborted=[Aborted(0, "broadcast", 400, 200)])
    assert text(found).startswith("rank 1 calls broadcast [100 float32] where"), "which of the two is not known"


def test_a_rank_that_gloo_aborted_is_the_odd_one_where_all_others_agree() -> None:
    one, other = [entry(61, "gloo:all_reduce", input_sizes=((size,),), retired=False) for size in (1024, 4096)]
    alike = [record(rank, Trace((one,), {}, {})) for rank in (0, 2, 3)]
    aborted = [Aborted(1, "all_reduce", 512, 500)]
    found = judge(alike, aborted=aborted)
    assert (found.kind, found.culprits) == (ABORTED, (1,))
    assert text(found) == (
        "rank 1 on n1 calls a shorter all_reduce where ranks 0, 2-3 call all_reduce #61 [1024 float32]"
        " (group default_pg)"
    )
    differ = judge([*alike[:2], record(3, Trace((other,), {}, {}))], aborted=aborted)
    assert (differ.kind, differ.culprits) == (SIZE, (3,)), "the rank that sent more, and not the one it ended"


def test_two_against_two_are_both_shown_and_none_is_named() -> None:
    one, other = [entry(1, retired=False)], [entry(1, "nccl:_reduce_scatter_base", retired=False)]
    found = judge(ranks([one, other, one, other]))
    assert (found.kind, found.culprits, found.decides) == (OPERATION, (), True)
    assert text(found) == (
        "ranks 0, 2 call all_reduce #1 [4096 float32] where ranks 1, 3 call reduce_scatter #1 [4096 float32]"
        " (group default_pg)"
    )


def test_an_order_that_differs_is_distinguished_from_another_call() -> None:
    rest = [entry(1, retired=False), entry(2, "nccl:all_gather", retired=False)]
    swapped = [entry(1, "nccl:all_gather", retired=False), entry(2, retired=False)]
    found = judge(ranks([rest, rest, swapped]))
    assert found.culprits == (2,)
    assert remarks(found) == ["rank 2 made that call as #2: the same calls in another order"]


def test_one_barrier_is_no_other_call_than_another_names_way_to_make_it() -> None:
    made = [entry(1, "nccl:all_reduce_barrier", input_sizes=((1,),), retired=False)]
    same = [entry(1, "nccl:barrier", input_sizes=(), input_dtypes=(), retired=False)]
    assert judge(ranks([made, same, made])).kind == MATCHED
    base = [entry(1, "nccl:_all_gather_base", retired=False)]
    listed = [entry(1, "nccl:all_gather", retired=False)]
    assert judge(ranks([base, listed, base])).kind == MATCHED


@pytest.mark.parametrize("title", ["nccl:all_to_all", "nccl:_broadcast_oop", "ucc:something", "nccl:all_to_allv"])
def test_sizes_that_may_differ_are_no_mismatch(title: str) -> None:
    of_all = [[entry(1, title, input_sizes=((size,),), retired=False)] for size in (1, 2, 3)]
    assert judge(ranks(of_all)).kind == MATCHED


def test_a_root_that_alone_has_the_whole_is_no_mismatch() -> None:
    root = [entry(1, "gloo:scatter", input_sizes=((3, 4),), output_sizes=((4,),), output_dtypes=("Float",))]
    rest = [entry(1, "gloo:scatter", input_sizes=(), input_dtypes=(), output_sizes=((4,),), output_dtypes=("Float",))]
    wait = [entry(2, "gloo:gather", output_sizes=((3, 4096),), output_dtypes=("Float",), retired=False)]
    far = [entry(2, "gloo:gather", retired=False)]
    found = judge(ranks([root + wait, rest + far, rest + far]))
    assert found.kind == MATCHED
    assert "or the roots (src, dst) differ" in advice(found)


def test_parts_of_a_coalesced_call_are_done_with_the_whole() -> None:
    def gathered(*, done: bool, size: int = 4) -> list[Collective]:
        parts = [entry(1, "nccl:all_gather", input_sizes=((size,),), op_id=n, retired=False) for n in (1, 2)]
        return [*parts, entry(1, "nccl:coalesced", input_sizes=(), input_dtypes=(), op_id=2, retired=done)]

    assert judge(ranks([gathered(done=True)] * 3)).kind == NOTHING
    found = judge(ranks([gathered(done=False), gathered(done=False), gathered(done=False, size=8)]))
    assert (found.kind, found.culprits) == (SIZE, (2,))
    assert text(found).startswith("rank 2 on n2 calls all_gather #1 [8 float32] and 1 more in one where ranks 0-1 call")


def test_all_alike_and_not_done_is_no_fault_of_the_script() -> None:
    found = judge(ranks([[entry(1), entry(2, retired=False)]] * 3))
    assert (found.kind, found.culprits, found.decides) == (MATCHED, (), True)
    assert (
        text(found)
        == "all 3 ranks have called all_reduce #2 [4096 float32] alike (group default_pg), and it is not done"
    )
    assert "the transport is more likely at fault than the script" in advice(found)


def test_a_device_that_has_not_begun_with_what_all_called_is_named() -> None:
    begun = [entry(1, retired=False, state="started")]
    found = judge(ranks([begun, [entry(1, retired=False)], begun]))
    assert (found.kind, found.culprits, found.decides) == (NOT_STARTED, (1,), False)
    assert text(found) == (
        "rank 1 on n1 has not started all_reduce #1 [4096 float32], as ranks 0, 2 have (group default_pg)"
    )


def transfer(number: int, title: str, size: int = 8, *, done: bool = False) -> Collective:
    sizes = ((size,),)
    return entry(0, f"nccl:{title}", p2p_seq_id=number, op_id=number, is_p2p=True, input_sizes=sizes, retired=done)


def test_a_receive_without_a_send_names_the_rank_that_does_not_send() -> None:
    found = judge(ranks([[transfer(1, "recv 0<-2")], [], []], {"0": (0, 1, 2)}))
    assert (found.kind, found.culprits) == (TRANSFER, (2,))
    assert text(found) == ("rank 2 on n2 has no send for recv #1 [8 float32], in which rank 0 waits (group default_pg)")


def test_numbers_of_transfers_differ_between_the_two_sides() -> None:
    """Rank 1 has sent to rank 2 before, so that its send to rank 0 is its second one."""
    of_all = [
        [transfer(1, "recv 0<-1")],
        [transfer(1, "send 1->2", done=True), transfer(2, "send 1->0", size=4)],
        [transfer(1, "recv 2<-1", done=True)],
    ]
    found = judge(ranks(of_all))
    assert (found.kind, found.culprits) == (SIZE, ())
    assert "rank 0 calls recv #1 [8 float32] where rank 1 calls send #1 [4 float32]" in text(found)
    of_all[1][1] = transfer(2, "send 1->0")
    assert judge(ranks(of_all)).kind == MATCHED


def test_a_send_that_is_done_with_another_size_is_the_counterpart_of_a_receive_that_waits() -> None:
    found = judge(ranks([[transfer(1, "recv 0<-1")], [transfer(1, "send 1->0", size=4, done=True)]]))
    assert found.kind == SIZE


def test_work_in_flight_on_a_rank_that_works_does_not_hide_that_it_is_late() -> None:
    groups = {"1": (1, 2)}
    side = {"process_group": ("1", "side")}
    of_all = [
        [entry(1, retired=False)],
        [entry(1, retired=False)],
        [entry(1, retired=False, **side)],
        [entry(1, retired=False)],
    ]
    waits = judge(ranks(of_all, groups))
    assert waits.culprits == (), "rank 2 may wait for rank 1 there"
    works = judge(ranks(of_all, groups), busy={2})
    assert works.culprits == (2,)


def test_groups_with_one_name_and_other_members_are_not_compared() -> None:
    def of(members: tuple[int, ...], rank: int, title: str, *, done: bool = False) -> RankCalls:
        made = entry(1, title, process_group=("1", "pair"), retired=done)
        return record(rank, Trace((made,), {"1": GroupConfig("", members)}, {}))

    of_all = [of((0, 1), 0, "nccl:all_reduce"), of((0, 1), 1, "nccl:all_reduce")]
    of_all += [of((2, 3), rank, "nccl:broadcast", done=True) for rank in (2, 3)]
    found = judge(of_all)
    assert (found.kind, found.root and found.root.size) == (MATCHED, 2)


def test_worlds_of_their_own_in_one_round_are_not_mixed() -> None:
    """Each node's script made a group of its own ranks, with numbers from 0."""
    of_all = []
    for rank, title in enumerate(("gloo:all_reduce", "gloo:all_reduce", "gloo:barrier", "gloo:barrier")):
        trace = Trace((entry(1, title, retired=False),), {"": GroupConfig("", (0, 1))}, {})
        of_all.append(record(rank, trace))
    assert judge(of_all).kind == NOTHING


def test_a_group_without_a_name_is_not_the_scripts() -> None:
    """The peer heartbeat has one, and it stands still first when a rank is lost."""
    beat = {"process_group": ("", "")}
    of_all = [[entry(8), entry(9, retired=False), entry(2, retired=False, **beat)]] * 2
    found = judge(ranks([*of_all, [entry(8), entry(1, **beat)]]))
    assert (found.culprits, found.root and found.root.name) == ((2,), "0")


def test_a_rank_is_absent_from_a_group_that_its_record_lacks_only_if_nothing_is_overwritten() -> None:
    groups, side = {"1": (0, 1, 2)}, {"process_group": ("1", "side")}
    waits = [entry(1), entry(1, retired=False, **side)]
    whole = judge(ranks([waits, waits, [entry(1), entry(2)]], groups))
    assert (whole.kind, whole.culprits) == (ABSENT, (2,))
    overwritten = judge(ranks([waits, waits, [entry(50), entry(51)]], groups))
    assert (overwritten.kind, overwritten.culprits) == (UNKNOWN, ())


def test_two_backends_of_one_group_count_for_themselves() -> None:
    both = [entry(1, "gloo:broadcast"), entry(1, "nccl:all_reduce"), entry(2, "nccl:all_gather", retired=False)]
    late = [entry(1, "nccl:all_reduce"), entry(1, "gloo:broadcast")]
    found = judge(ranks([both, both, late]))
    assert (found.kind, found.culprits) == (ABSENT, (2,))


def test_of_records_of_unequal_length_only_common_numbers_are_compared() -> None:
    long = [entry(n) for n in range(1, 90)] + [entry(90, retired=False)]
    short = [entry(89), entry(90, retired=False)]
    odd = [entry(88, "nccl:all_gather"), entry(90, "nccl:all_gather", retired=False)]
    found = judge(ranks([long, short, long, odd]))
    assert (found.kind, found.culprits, found.root and found.root.seq) == (OPERATION, (3,), 90)


def test_a_difference_that_all_got_over_is_reported_only_if_nothing_else_is_wrong() -> None:
    one, odd = [entry(1)], [entry(1, "nccl:broadcast")]
    wait = [entry(2, retired=False)]
    late = judge(ranks([one + wait, one + wait, odd]))
    assert (late.kind, late.culprits) == (ABSENT, (2,))
    found = judge(ranks([one + wait, one + wait, odd + wait]))
    assert (found.kind, found.culprits, found.decides) == (OPERATION, (2,), False)
    assert "that call is not the one that is waited in: it may not be the reason" in remarks(found)


def test_groups_in_which_all_ranks_wait_are_all_named_where_their_members_are_not_known() -> None:
    """Gloo does not record the members: two groups of the same ranks, which rank 0 uses in another order."""
    of = {name: [entry(60), entry(1, retired=False, process_group=(name, "undefined"))] for name in ("1", "2")}
    found = judge(ranks([of["2"], of["1"], of["1"], of["1"]]))
    assert (found.kind, found.culprits, found.decides) == (APART, (), True)
    assert text(found) == (
        "ranks wait apart, in several groups: ranks 1-3 in all_reduce #1 (group 1), rank 0 in all_reduce #1 (group 2)"
    )
    assert "in one order" in advice(found)
    works = judge(ranks([of["2"], of["1"], of["1"], [entry(60)]]))
    assert (works.kind, works.decides) == (UNKNOWN, False), "rank 3 may be the one for which they wait"
    assert remarks(works) == ["rank 0 waits in all_reduce #1 (group 2)"]
    assert "by the stacks" in advice(works) and "without a record" not in advice(works)
    assert judge(ranks([of["2"], of["1"]]), gone={3}).kind == LEFT


def in_a_cycle(listed: dict[int, tuple[str, ...]]) -> Judgement:
    """Judge ranks 0 -> 1 -> 3 -> 2 -> 0 of which each waits in a group of two, with the groups that each lists."""
    members = {"1": (0, 1), "2": (1, 3), "3": (2, 3), "4": (0, 2)}
    waits_in = {0: "1", 1: "2", 3: "3", 2: "4"}
    calls: list[RankCalls] = []
    for rank in range(4):
        waits = entry(1, "gloo:all_reduce", retired=False, process_group=(waits_in[rank], "undefined"))
        config = {name: GroupConfig("", members[name]) for name in listed[rank]}
        calls.append(record(rank, Trace((entry(1, "gloo:barrier"), waits), config, {})))
    return judge(calls)


def test_ranks_that_wait_for_each_other_in_a_cycle_are_all_named_and_none_is_the_culprit() -> None:
    found = in_a_cycle({0: ("1", "4"), 1: ("1", "2"), 2: ("3", "4"), 3: ("2", "3")})
    assert (found.kind, found.culprits, found.decides) == (CYCLE, (), True)
    assert text(found) == "ranks 0, 1, 3, 2 wait for each other in a cycle: groups are used in different orders"
    assert remarks(found)[0] == "rank 0 waits in all_reduce #1 (group 1) for rank 1"
    assert len(remarks(found)) == 4


def test_the_members_of_a_group_are_known_by_a_rank_that_has_not_called_in_it() -> None:
    assert in_a_cycle({0: ("1", "4"), 1: (), 2: ("3", "4"), 3: ("2", "3")}).kind == CYCLE
    assert in_a_cycle({0: ("1", "4"), 1: (), 2: ("3", "4"), 3: ("3",)}).decides is False


def test_two_groups_in_another_order_name_the_rank_that_did_so() -> None:
    groups = {"1": (0, 1, 2)}
    side = {"process_group": ("1", "side")}
    early = [entry(1, **side), entry(1), entry(2, retired=False, **side)]
    swapped = [entry(1, **side), entry(1), entry(2, retired=False)]
    found = judge(ranks([early, early, swapped, [entry(1), entry(2, retired=False)]], groups))
    assert (found.kind, found.culprits) == (CYCLE, (2,))
