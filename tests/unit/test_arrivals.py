"""Arrivals at collectives, from torch's recorder and the ends of steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftslurm.monitor.arrivals import GROUPS_KEPT, STEPS_KEPT, Call, arrivals_of, joined, positions, read_calls
from ftslurm.records.arrivals import GroupArrivals, RankArrivals
from ftslurm.records.codec import BadFile

MS = 10**6


def entry(number: int, time_ns: int, group: str = "0", **changes: Any) -> dict[str, Any]:
    return {"process_group": [group, "default_pg"], "collective_seq_id": number, "time_created_ns": time_ns} | changes


def test_a_recorders_document_becomes_calls_and_what_is_no_entry_is_left_out() -> None:
    entries = [
        entry(1, 5),
        entry(2, 6, "7", is_p2p=True),
        entry(3, "later"),
        {"process_group": 7},
        entry(4, 8, process_group=[]),
        entry(5, True),
    ]
    document = {"version": "2.10", "entries": entries, "pg_config": {"0": {"ranks": "[0]"}}}
    assert read_calls(json.dumps(document).encode(), "it") == [Call("0", 1, 5), Call("7", 2, 6, True)]


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{", b'{"entries": 7}', b"\xff"])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadFile, match="it"):
        read_calls(data, "it")


def test_a_recorder_without_entries_has_no_calls() -> None:
    assert read_calls(b'{"version": "2.10"}', "it") == []


def test_calls_are_timed_from_the_end_of_the_step_before_them() -> None:
    ends = [100 * MS, 200 * MS, 300 * MS, 400 * MS]
    calls = [
        Call("0", 1, 90 * MS),
        *(Call("0", number, at * MS) for number, at in ((2, 130), (3, 150), (4, 199), (5, 230), (6, 250), (7, 260))),
        Call("0", 8, 410 * MS),
    ]
    found = arrivals_of(3, calls, ends)
    # The first and the last call lie in steps that are not complete.
    group = GroupArrivals("0", ((2, 4, 30_000, 50_000, 99_000), (5, 7, 30_000, 50_000, 60_000)))
    assert found == RankArrivals(3, 100_000, (group,))


def test_the_step_in_which_the_recorder_begins_may_lack_calls_and_is_left_out() -> None:
    ends = [100 * MS, 200 * MS, 300 * MS]
    found = arrivals_of(0, [Call("0", 8, 150 * MS), Call("0", 9, 250 * MS)], ends)
    assert found is not None
    assert found.groups == (GroupArrivals("0", ((9, 9, 50_000),)),)


@pytest.mark.parametrize("ends", [[], [5]])
def test_without_steps_or_calls_there_are_none(ends: list[int]) -> None:
    assert arrivals_of(0, [Call("0", 1, 6)], ends) is None
    assert arrivals_of(0, [], [1, 2, 3]) is None


@pytest.mark.parametrize(
    ("number", "kept"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (99, [0, 1, 49, 98])]
)
def test_of_many_calls_a_step_keeps_four(number: int, kept: list[int]) -> None:
    assert positions(number) == kept


def test_sends_and_receives_are_no_arrivals_but_are_known() -> None:
    calls = [Call("0", 1, 5), Call("0", 1, 12, True), Call("0", 2, 14), Call("0", 2, 30)]
    found = arrivals_of(0, calls, [10, 20, 40])
    assert found is not None and found.transfers
    assert [step[:2] for step in found.groups[0].steps] == [(2, 2), (2, 2)]


def test_only_the_busiest_groups_are_kept() -> None:
    calls = [Call("0", 1, 5)]
    calls += [Call(f"g{group}", number, 10 + number) for group in range(6) for number in range(1 + group)]
    found = arrivals_of(0, calls, [10, 20, 30])
    assert found is not None
    assert [one.group for one in found.groups] == ["g5", "g4", "g3"][:GROUPS_KEPT]


def steps(first: int, number: int) -> tuple[tuple[int, ...], ...]:
    return tuple((n, n, 7) for n in range(first, first + number))


def test_samples_are_joined_up_to_what_is_kept_and_a_step_in_both_counts_once() -> None:
    older = RankArrivals(0, 5, (GroupArrivals("0", steps(1, 24)), GroupArrivals("old", steps(1, 3))))
    newer = RankArrivals(0, 6, (GroupArrivals("0", steps(20, 24)), GroupArrivals("1", steps(4, 1))), transfers=True)
    found = joined(older, newer)
    assert [one.group for one in found.groups] == ["0", "1", "old"]
    assert found.groups[0].steps == steps(1, 43)
    assert (found.step_us, found.transfers) == (6, True)
    later = joined(found, RankArrivals(0, 6, (GroupArrivals("0", steps(100, 24)),)))
    assert later.groups[0].steps == (*steps(20, 24), *steps(100, 24))
    assert len(later.groups[0].steps) == STEPS_KEPT
    assert joined(None, newer) is newer
