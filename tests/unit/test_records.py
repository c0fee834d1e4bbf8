"""Each file of the run directory is written and read by one codec: what is written is read back, damage is named."""

from __future__ import annotations

import json
import random
import string
import sys
from typing import Any

import pytest

from ftslurm.monitor.timeouts import Learned, Longest, Spans
from ftslurm.records.attempt import Attempt, Run, SchedulerView, StepEnd
from ftslurm.records.codec import BadFile, NewerFormat, read_record, write_record
from ftslurm.records.defect import DefectRecord
from ftslurm.records.error import ErrorRecord, ExceptionRecord, Frame
from ftslurm.records.flight import FlightRecord
from ftslurm.records.health import Health, HealthFinding
from ftslurm.records.node import NodeRecord
from ftslurm.records.round import RoundRecord, WorkerRecord
from ftslurm.records.stacks import StacksAnswer, StacksFile
from ftslurm.records.state import PendingCommit, State, StateFile

RECORDS = [Run, Attempt, StepEnd, SchedulerView, PendingCommit, DefectRecord, NodeRecord, RoundRecord, State]
RECORDS += [StateFile, ErrorRecord, FlightRecord, StacksFile, StacksAnswer]
OWN: dict[type, Any] = {
    Learned: lambda chance: Learned(Spans(heartbeat_s=chance.uniform(1, 9)), chance.randrange(9)),
    ExceptionRecord: lambda chance: an_exception(chance, 3),
    Longest: lambda chance: Longest(Spans(initial_s=chance.uniform(1, 9)), Spans(), chance.randrange(9)),
}
"""Classes with a reading of their own, or that contain themselves."""


def an_exception(chance: random.Random, depth: int) -> ExceptionRecord:
    """Return an exception with at most `depth` links behind it."""
    cause, context, member = (
        an_exception(chance, depth - 1) if depth and chance.random() < 0.5 else None for _ in range(3)
    )
    frames = tuple(a_record(Frame, chance) for _ in range(chance.randrange(3)))
    members = (member,) if member is not None else ()
    return ExceptionRecord("E", "m", "\udc80", ("note",), frames, cause, context, members, frames_left_out=depth)


def some(annotation: str, cls: Any, chance: random.Random) -> Any:
    """Return a random value that an annotation allows."""
    annotation = annotation.strip()
    if annotation.endswith("| None"):
        return None if chance.random() < 0.3 else some(annotation.removesuffix("| None"), cls, chance)
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        return tuple(some(annotation[6:-6], cls, chance) for _ in range(chance.randrange(3)))
    if annotation.startswith("tuple["):
        return tuple(some(part, cls, chance) for part in annotation[6:-1].split(","))
    if annotation == "dict[str, int]":
        return {"k\udc80": 5} if chance.random() < 0.7 else {}
    if annotation.startswith("dict[str, Group"):
        return {"k": some(annotation[10:-1], cls, chance)}
    if annotation.startswith("dict[str"):
        return {"k\udc80": "v"} if chance.random() < 0.7 else {}
    simple = {
        "int": lambda: chance.randrange(-(2**62), 2**62),
        "float": lambda: chance.uniform(-9, 9),
        "bool": lambda: chance.random() < 0.5,
        "str": lambda: "".join(chance.choices(string.printable + "é\udc80\n", k=chance.randrange(9))),
    }
    if annotation in simple:
        return simple[annotation]()
    inner = vars(sys.modules[cls.__module__])[annotation]
    return OWN[inner](chance) if inner in OWN else a_record(inner, chance)


def a_record(cls: Any, chance: random.Random) -> Any:
    """Return a random record of a class."""
    choices = dict(getattr(cls, "CHOICES", ()))
    values = {
        name: chance.choice(choices[name]) if name in choices else some(annotation, cls, chance)
        for name, annotation in cls.__annotations__.items()
    }
    return cls(**values)


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("cls", RECORDS)
def test_any_record_is_read_back_as_it_was_written(cls: Any, lenient: bool) -> None:
    for seed in range(30):
        record = a_record(cls, random.Random(seed))
        data = write_record(record)
        assert data.endswith(b"\n") and data.isascii(), "one line that any tool can print"
        assert read_record(cls, data, "file", lenient=lenient) == record, f"seed {seed}"


@pytest.mark.parametrize("cls", RECORDS)
@pytest.mark.parametrize("seed", range(20))
def test_a_wrong_value_is_refused_by_name_and_read_leniently_where_it_is_no_identity(cls: Any, seed: int) -> None:
    chance = random.Random(seed)
    value = json.loads(write_record(a_record(cls, chance)))
    name = chance.choice(list(cls.__annotations__))
    value[name] = chance.choice([[[]], 2**70, {"": [7]}, 1e300]) if value.get(name) != [] else 7
    data = json.dumps(value).encode()
    if not cls.__annotations__[name].startswith(
        ("dict", "HostResources", "Learned")
    ):  # of which any value may be missing
        with pytest.raises(BadFile, match=f"^the file: .*{name}.*$"):
            read_record(cls, data, "the file")
    annotation = cls.__annotations__[name]
    if annotation.endswith("| None") or annotation.startswith("tuple"):
        assert isinstance(read_record(cls, data, "the file", lenient=True), cls)


def test_a_bad_value_does_not_cost_its_neighbours() -> None:
    value = json.loads(write_record(DefectRecord("n1", None, None, 1, 5, "x", None, "error", None)))
    assert read_record(DefectRecord, json.dumps(value | {"round": "one"}).encode(), "f", lenient=True).round is None
    with pytest.raises(BadFile, match=r"f: field 'round' should be an integer, found 'one'"):
        read_record(DefectRecord, json.dumps(value | {"round": "one"}).encode(), "f")
    state = json.loads(write_record(a_record(State, random.Random(1))))
    state["history"] = [{"round": 1}, {"round": "x"}]
    assert read_record(State, json.dumps(state).encode(), "f", lenient=True).history == ()


def test_findings_of_a_node_are_read_one_by_one() -> None:
    health = Health("fail", 5, "fast", (HealthFinding("gpu", "fail", "GPU 3", "fell off the bus", "drain it", 4),))
    record = json.loads(write_record(a_record(RoundRecord, random.Random(2))))
    record["health"] = {"status": "fail", "checked_ns": 5, "set": "fast", "findings": [7, {"check": "x"}]}
    record["health"]["findings"].append(json.loads(json.dumps(health.findings[0].__dict__)))
    assert read_record(RoundRecord, json.dumps(record).encode(), "f", lenient=True).health == health


def test_a_missing_field_is_named() -> None:
    with pytest.raises(BadFile, match="f: field 'run_id' is missing"):
        read_record(Run, b'{"schema": "ftslurm/run", "version": 1}', "f")


def test_a_newer_format_and_another_schema_are_named() -> None:
    with pytest.raises(NewerFormat, match="made by a newer ftslurm"):
        read_record(Run, b'{"schema": "ftslurm/run", "version": 2}', "f")
    with pytest.raises(BadFile, match="f: expected a JSON object of ftslurm/run, found 'ftslurm/node'"):
        read_record(Run, b'{"schema": "ftslurm/node", "version": 1}', "f")


def test_unknown_keys_are_ignored() -> None:
    data = b'{"schema": "ftslurm/step", "version": 1, "attempt": "7.0", "ended_ns": 5, "more": {}}'
    assert read_record(StepEnd, data, "f") == StepEnd("7.0", 5, None, None)


def test_what_a_worker_did_not_do_takes_no_room_in_the_file() -> None:
    worker = WorkerRecord(3, exit_code=0)
    record = RoundRecord(1, "7.0", "n1", *[None] * 5, None, 1, None, "running", None, None, (worker,))
    data = write_record(record)
    assert json.loads(data)["workers"] == [{"rank": 3, "exit_code": 0}]
    assert read_record(RoundRecord, data, "f") == record
