"""Helper parts that fail: disabled, reported once, answered for; never the agent's end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ftslurm.agent import containment
from ftslurm.agent.containment import HEALTH, MONITOR, Component, Containment, Defect, defect_of
from ftslurm.records.codec import BadFile


class Helper:
    """A part that does as it is ordered until it is ordered to fail."""

    def __init__(self, fails: bool = False) -> None:
        self.value = 7
        self.closed = 0
        if fails:
            raise KeyError("made")

    @property
    def deadline(self) -> float | None:
        if self.value < 0:
            raise ValueError("no deadline")
        return 1.5

    def say(self, text: str, error: BaseException | None = None) -> str:
        if error is not None:
            raise error
        return f"answer {text}"

    def steps(self, count: int) -> Iterator[int]:
        yield from range(count)
        raise KeyError("at the end")

    def close(self) -> None:
        self.closed += 1
        raise OSError("cannot be closed")


class Held:
    """A containment, the defects that it reported, and a helper that it holds."""

    def __init__(self, **options: Any) -> None:
        self.defects: list[Defect] = []
        self.containment = Containment()
        self.containment.connect(self.defects.append)
        self.helper = self.containment.hold(HEALTH, Helper, answers={"say": lambda answer, *_: answer}, **options)

    @property
    def parts(self) -> list[Component | None]:
        return [defect.part for defect in self.defects]


def test_while_nothing_fails_everything_goes_to_the_part() -> None:
    held = Held()
    assert (held.helper.say("x"), held.helper.value, held.helper.deadline) == ("answer x", 7, 1.5)
    assert held.containment.works(HEALTH) and held.defects == []


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), RecursionError(), SystemExit(3), AssertionError()])
def test_an_exception_disables_the_part_and_is_reported_once(error: BaseException) -> None:
    held = Held()
    assert held.helper.say("x", error) == "x"
    assert held.helper.say("y") == "y"
    assert (held.helper.value, held.helper.deadline) == (None, None)
    assert held.parts == [HEALTH] and not held.containment.works(HEALTH)


def test_a_property_that_fails_does_the_same() -> None:
    held = Held()
    held.helper._real.value = -1  # type: ignore[attr-defined]
    assert held.helper.deadline is None
    assert held.parts == [HEALTH]


def test_a_part_that_cannot_be_made_is_disabled_from_the_start() -> None:
    held = Held(fails=True)
    assert held.parts == [HEALTH]
    assert (held.helper.say("x"), held.helper.value) == ("x", None)


def test_what_a_generator_gives_before_it_fails_is_not_lost() -> None:
    held = Held()
    assert list(held.helper.steps(3)) == [0, 1, 2]
    assert held.parts == [HEALTH]


def test_all_objects_of_a_part_are_disabled_together() -> None:
    held = Held()
    other = held.containment.hold(HEALTH, Helper)
    apart = held.containment.hold(MONITOR, Helper)
    held.helper.say("x", KeyError("x"))
    assert other.say("x") is None
    assert apart.say("x") == "answer x"


def test_what_the_caller_expects_passes() -> None:
    held = Held(passes=(OSError,))
    with pytest.raises(FileNotFoundError):
        held.helper.say("x", FileNotFoundError())
    assert held.containment.works(HEALTH)


def test_an_object_that_has_failed_is_closed_as_far_as_that_is_possible() -> None:
    held = Held(close="close")
    held.helper.say("x", KeyError("x"))
    held.helper.say("x")
    assert held.helper._real.closed == 1  # type: ignore[attr-defined]
    assert len(held.defects) == 1


def test_a_defect_before_the_listener_is_set_is_reported_to_it_later() -> None:
    contained = Containment()
    contained.fail(HEALTH, KeyError("early"))
    defects: list[Defect] = []
    contained.connect(defects.append)
    assert [defect.error for defect in defects] == ["KeyError: 'early'"]


@pytest.mark.parametrize(
    ("name", "part"),
    [*containment.THREADS.items(), ("courier", None), ("whatever", None)],
)
def test_a_thread_that_ends_by_an_exception_disables_its_part_or_is_the_cores(
    name: str, part: Component | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr(threading, "excepthook", held.containment.on_thread)

    def work() -> None:
        raise KeyError("in a thread")

    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
    assert held.parts == [part]


def test_an_errand_of_a_part_leaves_the_filesystems_errors_to_the_courier() -> None:
    held = Held()
    sent: list[Any] = []
    send = held.containment.contained_task(HEALTH, lambda errand, *answer: sent.append((errand, answer)))

    def errand(error: Exception | None) -> str:
        if error is not None:
            raise error
        return "done"

    for error in (None, OSError(), BadFile(), KeyError("x")):
        send(lambda error=error: errand(error), "answer")
    (good, answer), full, bad, broken = sent
    assert (good(), answer) == ("done", ("answer",))
    with pytest.raises(OSError):
        full[0]()
    with pytest.raises(BadFile):
        bad[0]()
    assert held.containment.works(HEALTH)
    assert broken[0]() is None
    assert held.parts == [HEALTH]


def test_a_defect_has_what_happened_where_and_what_led_to_it() -> None:
    try:
        try:
            Helper(fails=True)
        except KeyError as error:
            raise ValueError("two\nlines") from error
    except ValueError as error:
        defect = defect_of(HEALTH, error)
    assert defect.error == "ValueError: two lines"
    assert "test_containment.py:" in defect.place
    first, second = defect.traceback.split("\n\n")
    assert first.startswith("Traceback") and first.endswith("KeyError: 'made'")
    assert second.startswith("Traceback") and second.endswith("ValueError: two\nlines\n")
    assert defect.text.startswith("a defect of ftslurm: ValueError: two lines (")
