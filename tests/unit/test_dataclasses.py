"""Our data classes behave as the standard library's do, which a type checker takes them for."""

from __future__ import annotations

import copy
import dataclasses as standard
import pickle
from typing import Any

import pytest

from ftslurm import dataclasses as ours


def classes(module: Any) -> tuple[Any, Any]:
    @module.dataclass(frozen=True)
    class Fact:
        name: str
        count: int = 3
        more: dict[str, int] = module.field(default_factory=dict)
        note: str | None = module.field(default=None, compare=False, repr=False)

        def doubled(self) -> int:
            return 2 * self.count

    @module.dataclass
    class Thing:
        facts: list[Fact] = module.field(default_factory=list)
        pair: tuple[Any, ...] = ()

    return Fact, Thing


@pytest.fixture(params=[standard, ours], ids=["standard", "ours"])
def made(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    return (request.param, *classes(request.param))


Made = tuple[Any, Any, Any]


def test_arguments_go_by_place_and_by_name_and_defaults_fill_the_rest(made: Made) -> None:
    _, fact, thing = made
    assert (fact("a").count, fact("a", 5).count, fact(count=7, name="b").doubled()) == (3, 5, 14)
    assert thing().facts is not thing().facts
    assert fact.count == 3 and not hasattr(fact, "more")


@pytest.mark.parametrize("arguments", [{}, {"name": "a", "other": 1}], ids=["one too few", "one too many"])
def test_wrong_arguments_are_refused_by_the_classs_name(made: Made, arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Fact\.__init__\(\)"):
        made[1](**arguments)


def test_equality_and_hash_are_by_value_and_leave_out_what_is_not_compared(made: Made) -> None:
    _, fact, thing = made
    assert fact("a", more={}, note="x") == fact("a", note="y") != fact("b")
    assert fact("a") != ("a", 3, {}, None)
    assert thing([fact("a")]) == thing([fact("a")])
    with pytest.raises(TypeError, match="unhashable"):
        hash(thing())
    with pytest.raises(TypeError, match="unhashable"):
        hash(fact("a"))
    assert hash(fact("a", more=None)) == hash(fact("a", more=None, note="y"))


def test_repr_names_the_fields(made: Made) -> None:
    _, fact, thing = made
    assert repr(fact("a", note="x")).endswith("Fact(name='a', count=3, more={})")
    assert repr(thing()).endswith("Thing(facts=[], pair=())")


def test_what_is_frozen_stays_and_what_is_not_changes(made: Made) -> None:
    _, fact, thing = made
    one = fact("a")
    with pytest.raises(standard.FrozenInstanceError, match="name"):
        one.name = "b"
    with pytest.raises(standard.FrozenInstanceError, match="name"):
        del one.name
    changed = thing()
    changed.pair = (1,)
    assert changed == thing(pair=(1,))


def test_replace_changes_a_copy(made: Made) -> None:
    module, fact, _ = made
    one = fact("a", 5, {"x": 1}, "note")
    assert module.replace(one, count=6) == fact("a", 6, {"x": 1}, "note")
    assert (one.count, module.replace(one, count=6).note) == (5, "note")
    with pytest.raises(TypeError, match="nothing"):
        module.replace(one, nothing=1)


def test_asdict_goes_into_data_classes_lists_tuples_and_dictionaries(made: Made) -> None:
    module, fact, thing = made
    nested = thing([fact("a", more={"x": 1})], (fact("b"), [fact("c")], {"d": fact("d")}))
    rest = {"count": 3, "note": None}
    expected = (
        {"name": "b", "more": {}, **rest},
        [{"name": "c", "more": {}, **rest}],
        {"d": {"name": "d", "more": {}, **rest}},
    )
    assert module.asdict(nested) == {"facts": [{"name": "a", "more": {"x": 1}, **rest}], "pair": expected}


def test_instances_are_copied_and_matched(made: Made) -> None:
    _, fact, _ = made
    assert copy.deepcopy(fact("a", 5)) == fact("a", 5)
    match fact("a", 5):
        case object(name=name, count=5):
            assert name == "a"
        case other:
            pytest.fail(str(other))
    assert fact.__match_args__ == ("name", "count", "more", "note")


def test_a_default_that_can_change_is_refused(made: Made) -> None:
    class Shared:
        values: list[int] = []  # noqa: RUF012

    with pytest.raises(ValueError, match="values"):
        made[0].dataclass(Shared)


def test_methods_of_the_class_itself_stay(made: Made) -> None:
    @made[0].dataclass(frozen=True)
    class Own:
        name: str

        def __repr__(self) -> str:
            return "mine"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Own("a")), Own("a") == Own("b"), hash(Own("a"))) == ("mine", True, 7)


@ours.dataclass(frozen=True)
class Kept:
    name: str
    count: int = 3


def test_instances_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept("a", 4))) == Kept("a", 4)


def test_the_standard_librarys_functions_take_our_classes() -> None:
    fact, _ = classes(ours)
    one = fact("a", note="x")
    assert standard.is_dataclass(fact) and standard.is_dataclass(one)
    assert [field.name for field in standard.fields(fact)] == ["name", "count", "more", "note"]
    assert standard.replace(one, count=4) == fact("a", 4)
    assert standard.asdict(one) == {"name": "a", "count": 3, "more": {}, "note": "x"}
