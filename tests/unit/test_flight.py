"""Documents of torch's flight recorder, reduced to what is kept, and as a record of the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftslurm.monitor import flight
from ftslurm.records.codec import BadFile, read_record, write_record
from ftslurm.records.flight import FlightRecord, GroupConfig, GroupStatus

DOCUMENTS = Path(__file__).parent / "flight_documents"


def document(count: int = 1, *, open_from: int = 10**6, group: str = "0", **changes: Any) -> dict[str, Any]:
    """A document of `count` all-reduces in one group; those from number `open_from` on are not retired."""
    entry = {
        "profiling_name": "nccl:all_reduce",
        "process_group": [group, "default_pg"],
        "input_sizes": [[4, 2]],
        "input_dtypes": ["Float"],
        "p2p_seq_id": 0,
        "time_created_ns": 1,
        "state": "scheduled",
        "frames": [{"name": "step", "filename": "train.py", "line": 3}],
        **changes,
    }
    numbers = range(1, count + 1)
    return {
        "version": "2.10",
        "entries": [{**entry, "collective_seq_id": n, "op_id": n, "retired": n < open_from} for n in numbers],
    }


@pytest.mark.parametrize("path", sorted(DOCUMENTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_real_document_becomes_a_record_that_can_be_read_again(path: Path) -> None:
    given = json.loads(path.read_bytes())
    trace = flight.read(path.read_bytes(), path.name)
    assert [one.collective_seq_id for one in trace.entries] == [one["collective_seq_id"] for one in given["entries"]]
    assert trace.left_out == 0 and trace.version == given["version"]
    record = FlightRecord("job-1", 1, "n1", 0, 5, "socket", trace=trace)
    assert read_record(FlightRecord, write_record(record), "it") == record


def test_what_a_rank_waits_in_is_there_with_its_sizes_and_its_group() -> None:
    last = flight.read((DOCUMENTS / "mismatch-1.json").read_bytes(), "it").entries[-1]
    assert (last.profiling_name, last.collective_seq_id, last.retired) == ("gloo:all_gather", 4, False)
    assert (last.input_sizes, last.output_sizes, last.input_dtypes) == (((4096,),), ((2, 4096),), ("Float",))
    assert last.process_group == ("0", "default_pg")
    assert last.time_discovered_started_ns is None  # gloo's zero is no time


def test_of_a_long_record_the_newest_of_each_group_and_those_waited_for_are_kept() -> None:
    long = document(2000)
    long["entries"] = [*document(3, group="tensor")["entries"], *document(2000, open_from=1500)["entries"]]
    trace = flight.reduce(long)
    of = {name: [e.collective_seq_id for e in trace.entries if e.process_group[0] == name] for name in ("tensor", "0")}
    assert of["tensor"] == [1, 2, 3]
    assert of["0"] == [*range(1500, 1500 + flight.OPEN), *range(2001 - flight.NEWEST, 2001)]
    assert trace.left_out == 2003 - len(trace.entries)


def test_the_states_of_groups_are_numbers_and_minus_one_is_none() -> None:
    status = {"0": {"last_enqueued_collective": "7", "last_started_collective": 6, "last_completed_collective": "-1"}}
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 12]"}}
    trace = flight.reduce({**document(), "pg_status": status, "pg_config": config})
    assert trace.pg_status == {"0": GroupStatus(7, 6, None)}
    assert trace.pg_config == {"0": GroupConfig("default_pg", (0, 1, 12))}


def test_of_the_group_of_a_large_world_the_ranks_are_not_listed() -> None:
    def ranks(numbers: range) -> tuple[int, ...]:
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(numbers))}}
        return flight.reduce({**document(), "pg_config": config}).pg_config["0"].ranks

    assert ranks(range(flight.LISTED)) == tuple(range(flight.LISTED))
    assert ranks(range(16_384)) == ()
    assert len(ranks(range(0, 4096, 2))) == 2048


def test_what_is_of_another_form_is_left_out_and_frames_are() -> None:
    mixed = document(2)
    mixed["entries"] += ["x", {"process_group": "0"}, {**mixed["entries"][0], "collective_seq_id": "many"}]
    mixed["entries"][0] |= {"input_sizes": "?", "timeout_ms": "?", "profiling_name": "a\nb"}
    trace = flight.reduce({**mixed, "pg_config": [], "pg_status": {"0": 3}})
    assert [one.collective_seq_id for one in trace.entries] == [1, 2] and trace.left_out == 3
    assert trace.entries[0].input_sizes == () and trace.entries[0].profiling_name == "a?b"
    assert b"train.py" not in write_record(FlightRecord("r", 1, "n", 0, 5, "socket", trace=trace))


def test_a_recorder_without_an_entry_has_an_empty_record() -> None:
    assert flight.read(b'{"version": "2.10"}', "it").entries == ()


@pytest.mark.parametrize("data", [b"", b"[]", b"<html>", b'{"entries": 3}'])
def test_another_document_is_refused_with_its_name(data: bytes) -> None:
    with pytest.raises(BadFile, match="rank 3"):
        flight.read(data, "rank 3")
