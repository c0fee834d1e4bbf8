"""The courier's thread: whatever the shared directory or a bug does to it, the loop hears of it."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable

import pytest

from ftslurm.agent import courier as module
from ftslurm.agent.containment import Defect
from ftslurm.agent.courier import Courier, StorageProblem
from ftslurm.rendezvous.member import View, first_record
from ftslurm.rendezvous.node_record import NodeRecord
from ftslurm.testing.clock import VirtualClock

WORD = first_record("n1", "i1", "12.0", 0, 2)
EIO = OSError(errno.EIO, "Input/output error")


class FakeMember:
    """Does what the list says, tick by tick: nothing, or an exception; then nothing for ever."""

    def __init__(self, *ticks: Exception | None) -> None:
        self.ticks = list(ticks)
        self.said: list[NodeRecord] = []

    def publish(self, word: NodeRecord) -> None:
        self.said.append(word)

    def tick(self) -> View:
        problem = self.ticks.pop(0) if self.ticks else None
        if problem is not None:
            raise problem
        return View(None, 0, False, ())

    def view(self) -> View:
        return View(None, 0, False, ())

    def next_tick_s(self) -> float:
        return 3600.0


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)


def run(member: FakeMember, *errands: Callable[[], object], answer: object = None) -> Courier:
    """Let a courier say one word and run the errands, and stop it."""
    courier = Courier(member, time.monotonic)  # type: ignore[arg-type]
    courier.publish(WORD)
    for errand in errands:
        courier.send(errand, answer)
    courier.start()
    assert courier.finish(10)
    return courier


def test_the_last_word_is_said_again_when_the_directory_failed() -> None:
    courier = run(FakeMember(EIO, EIO))
    assert courier.published
    assert [news for news in courier.events if isinstance(news, StorageProblem)] == [
        StorageProblem(str(EIO)),
        StorageProblem(None),
    ]


def test_the_same_error_of_one_temporary_file_after_the_other_is_told_once() -> None:
    errors = [
        OSError(errno.ENOTCONN, "Transport endpoint is not connected", f"/runs/.n1.json.{i}.tmp") for i in range(3)
    ]
    courier = run(FakeMember(*errors))
    assert [news for news in courier.events if isinstance(news, StorageProblem)] == [
        StorageProblem(str(errors[0])),
        StorageProblem(None),
    ]


def test_a_directory_that_fails_for_good_does_not_keep_the_courier() -> None:
    assert not run(FakeMember(*[EIO] * 100)).published


def defects(courier: Courier) -> list[str]:
    return [news.error for news in courier.events if isinstance(news, Defect) and news.part is None]


def test_a_bug_in_a_tick_ends_the_agent_instead_of_leaving_it_mute() -> None:
    courier = run(FakeMember(KeyError("n7")))
    assert defects(courier) == ["KeyError: 'n7'"]


def test_an_errand_that_fails_is_tried_again() -> None:
    problems = [EIO, EIO]

    def errand() -> str:
        if problems:
            raise problems.pop()
        return "done"

    assert (7, "done") in run(FakeMember(), errand, answer=7).events


@pytest.mark.parametrize("problem", [EIO, TypeError("x")])
def test_an_errand_that_fails_for_good_is_told_and_the_next_one_runs(problem: Exception) -> None:
    ran: list[bool] = []

    def errand() -> None:
        raise problem

    courier = run(FakeMember(), errand, lambda: ran.append(True))
    if isinstance(problem, OSError):
        assert StorageProblem(str(EIO)) in courier.events and defects(courier) == []
    else:
        assert defects(courier) == ["TypeError: x"]
    assert ran == [True]
    assert (9, problem) in run(FakeMember(), errand, answer=9).events


def test_a_word_does_not_wait_for_an_errand_that_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 60.0)
    clock = VirtualClock()
    said: queue.SimpleQueue[NodeRecord] = queue.SimpleQueue()
    member = FakeMember()
    monkeypatch.setattr(member, "publish", said.put)
    failed = threading.Event()

    def errand() -> str:
        if not failed.is_set():
            failed.set()
            raise EIO
        return "done"

    courier = Courier(member, clock.now)  # type: ignore[arg-type]
    courier.send(errand, 7)
    courier.start()
    assert failed.wait(10)
    courier.publish(WORD)
    assert said.get(timeout=10) is WORD
    assert not courier.events
    clock.advance(60.0)
    assert courier.finish(10)
    assert (7, "done") in courier.events
