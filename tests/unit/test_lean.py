"""Lean dataclasses: whatever one can do with a standard one of the same kind gives the same."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftslurm import lean


@lean.dataclass(frozen=True)
class Node:
    """A frozen one."""

    name: str
    slots: int = 1
    seen: dict[str, int] = lean.field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.name}/{self.slots}"


@lean.dataclass
class Round:
    """One that changes, with others in it."""

    number: int
    nodes: list[Node] = lean.field(default_factory=list)
    pair: tuple[Node, ...] = ()


@lean.dataclass(frozen=True)
class Nothing:
    """One without fields."""


@lean.dataclass(frozen=True)
class One:
    """One with a single field."""

    only: int


def standard(cls: type) -> Any:
    """Return a standard dataclass of the same name and fields."""
    return dataclasses.make_dataclass(cls.__name__, list(cls.__match_args__), frozen=True)  # type: ignore[attr-defined]


def test_values_come_by_place_by_name_and_by_default() -> None:
    assert Node("n1", 2, {"a": 1}) == Node(name="n1", slots=2, seen={"a": 1}) == Node("n1", seen={"a": 1}, slots=2)
    assert (Node("n1").slots, Node("n1").seen, Round(1).nodes) == (1, {}, [])
    assert Node("n1", 2).label == "n1/2"


def test_a_default_that_is_made_is_nobody_elses() -> None:
    assert Round(1).nodes is not Round(1).nodes
    assert not hasattr(Round, "nodes")


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), (("n1", 1, {}, 4), {}), (("n1",), {"name": "n1"}), (("n1",), {"sluts": 1}), ((), {"slots": 1})],
)
def test_too_few_too_many_and_unknown_values_are_refused(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="^Node: "):
        Node(*values, **named)


def test_only_the_same_values_of_the_same_class_are_equal() -> None:
    assert Node("n1") != Node("n2")
    others: list[object] = [("n1", 1, {}), Nothing(), One(1)]
    assert Node("n1") not in others
    assert Nothing() in others
    assert One(1) in others
    assert One(2) not in others
    assert One(1) != standard(One)(1)


@pytest.mark.parametrize("instance", [One(1), One(0), Nothing()])
def test_a_frozen_one_is_hashed_by_its_values(instance: Any) -> None:
    assert len({instance, copy.copy(instance)}) == 1


def test_one_that_can_change_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Round(1))


def test_it_is_shown_as_a_standard_one_is() -> None:
    assert repr(One(1)) == repr(standard(One)(1)) == "One(only=1)"
    assert repr(Nothing()) == repr(standard(Nothing)())
    assert repr(Round(1, [Node("n1")])) == "Round(number=1, nodes=[Node(name='n1', slots=1, seen={})], pair=())"


def test_a_frozen_one_can_be_changed_by_nobody() -> None:
    node = Node("n1")
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Node\.slots cannot be set"):
        node.slots = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Node\.slots cannot be set"):
        del node.slots
    assert node == Node("n1")
    changing = Round(1)
    changing.number = 2
    assert changing == Round(2)


@pytest.mark.parametrize("replace", [lean.replace, dataclasses.replace])
def test_a_copy_can_differ_in_some_values(replace: Any) -> None:
    assert replace(Node("n1", 2), slots=3) == Node("n1", 3)
    assert replace(Round(1, [Node("n1")])) == Round(1, [Node("n1")])
    with pytest.raises(TypeError):
        replace(Node("n1"), sluts=3)


@pytest.mark.parametrize("asdict", [lean.asdict, dataclasses.asdict])
def test_it_becomes_a_dictionary_with_all_that_is_in_it(asdict: Any) -> None:
    node = {"name": "n1", "slots": 1, "seen": {}}
    assert asdict(Round(1, [Node("n1")], (Node("n1"),))) == {"number": 1, "nodes": [node], "pair": (node,)}
    assert asdict(Nothing()) == {}
    assert asdict(Node("n1", seen={"x": standard(One)(4)})) == node | {"seen": {"x": {"only": 4}}}


def test_the_standard_functions_know_its_fields() -> None:
    assert dataclasses.is_dataclass(Node)
    assert [field.name for field in dataclasses.fields(Node)] == ["name", "slots", "seen"]


@pytest.mark.parametrize("instance", [Node("n1", 2, {"a": 1}), Round(1, [Node("n1")]), Nothing()])
def test_it_can_be_copied_and_pickled(instance: Any) -> None:
    assert copy.deepcopy(instance) == copy.copy(instance) == pickle.loads(pickle.dumps(instance)) == instance


def test_it_can_be_matched_by_place() -> None:
    match Node("n1", 2):
        case Node(name, 2):
            assert name == "n1"
        case _:
            pytest.fail("no match")


def test_making_comparing_and_turning_it_into_a_dictionary_does_not_bring_the_standard_module() -> None:
    code = """if True:
        import sys
        from ftslurm.lean import asdict, dataclass, replace
        One = dataclass(frozen=True)(type("One", (), {"__annotations__": {"only": "int"}}))
        assert asdict(replace(One(1), only=2)) == {"only": 2} and One(1) == One(1) and repr(One(1))
        assert not {"dataclasses", "inspect", "typing"} & set(sys.modules), sys.modules
    """
    subprocess.run(
        [sys.executable, "-S", "-c", code], check=True, env={"PYTHONPATH": str(Path(lean.__file__).parents[1])}
    )
