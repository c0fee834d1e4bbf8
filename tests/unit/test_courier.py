"""The courier's thread: whatever the shared directory or a bug does to it, an event reaches the loop."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Callable

import pytest

from ftslurm.agent import courier as module
from ftslurm.agent.containment import Defect
from ftslurm.agent.courier import Courier, CourierThread, Evicted, ResultHandler, StorageProblem, TaskResult
from ftslurm.monitor.timeouts import Longest
from ftslurm.records.node import NodeRecord, RankVitals, Vitals, first_record
from ftslurm.rendezvous.abandonment import RunInUse
from ftslurm.rendezvous.member import View
from ftslurm.testing.clock import VirtualClock

RECORD = first_record("n1", "i1", "12.0", 0, 2)
VITALS = Vitals(1, Longest(), (RankVitals(0, 7, ()),), 0)
EIO = OSError(errno.EIO, "Input/output error")


class FakeMember:
    """Succeeds or fails, tick by tick, as listed; then succeeds for ever."""

    def __init__(self, *ticks: Exception | None) -> None:
        self.ticks = list(ticks)
        self.published: list[NodeRecord] = []

    def publish(self, record: NodeRecord) -> None:
        self.published.append(record)

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


def run(member: FakeMember, *tasks: Callable[[], object], handle: ResultHandler | None = None) -> Courier:
    """Let a courier publish one record and run the tasks, and stop it."""
    courier = CourierThread(member, time.monotonic)  # type: ignore[arg-type]
    courier.publish(RECORD)
    for task in tasks:
        courier.send(task, handle)
    courier.start()
    assert courier.finish(10)
    return courier


def test_the_last_record_is_published_again_when_the_directory_failed() -> None:
    courier = run(FakeMember(EIO, EIO))
    assert courier.published
    assert [event for event in courier.events if isinstance(event, StorageProblem)] == [
        StorageProblem(str(EIO)),
        StorageProblem(None),
    ]


def test_the_same_error_of_one_temporary_file_after_the_other_is_posted_once() -> None:
    errors = [
        OSError(errno.ENOTCONN, "Transport endpoint is not connected", f"/runs/.n1.json.{i}.tmp") for i in range(3)
    ]
    courier = run(FakeMember(*errors))
    assert [event for event in courier.events if isinstance(event, StorageProblem)] == [
        StorageProblem(str(errors[0])),
        StorageProblem(None),
    ]


def test_a_directory_that_fails_for_good_does_not_keep_the_courier() -> None:
    assert not run(FakeMember(*[EIO] * 100)).published


def test_an_agent_of_a_second_start_ends_with_the_code_of_a_wrong_usage() -> None:
    courier = run(FakeMember(RunInUse("the run /r is held by job 12")))
    assert list(courier.events) == [Evicted("the run /r is held by job 12", 2)]


def ignore(result: object) -> None:
    """A handler; the tests read the events."""


def results(courier: Courier) -> list[object]:
    return [event.result for event in courier.events if isinstance(event, TaskResult)]


def defects(courier: Courier) -> list[str]:
    return [event.error for event in courier.events if isinstance(event, Defect) and event.part is None]


def test_a_bug_in_a_tick_ends_the_agent_instead_of_its_heartbeat_alone() -> None:
    courier = run(FakeMember(KeyError("n7")))
    assert defects(courier) == ["KeyError: 'n7'"]


def test_a_task_that_fails_is_tried_again() -> None:
    problems = [EIO, EIO]

    def task() -> str:
        if problems:
            raise problems.pop()
        return "done"

    assert results(run(FakeMember(), task, handle=ignore)) == ["done"]


@pytest.mark.parametrize("problem", [EIO, TypeError("x")])
def test_a_task_that_fails_for_good_is_reported_and_the_next_one_runs(problem: Exception) -> None:
    ran: list[bool] = []

    def task() -> None:
        raise problem

    courier = run(FakeMember(), task, lambda: ran.append(True))
    if isinstance(problem, OSError):
        assert StorageProblem(str(EIO)) in courier.events and defects(courier) == []
    else:
        assert defects(courier) == ["TypeError: x"]
    assert ran == [True]
    assert results(run(FakeMember(), task, handle=ignore)) == [problem]


def test_a_record_does_not_wait_for_a_task_that_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 60.0)
    clock = VirtualClock()
    published: queue.SimpleQueue[NodeRecord] = queue.SimpleQueue()
    member = FakeMember()
    monkeypatch.setattr(member, "publish", published.put)
    failed = threading.Event()

    def task() -> str:
        if not failed.is_set():
            failed.set()
            raise EIO
        return "done"

    courier = CourierThread(member, clock.now)  # type: ignore[arg-type]
    courier.send(task, ignore)
    courier.start()
    assert failed.wait(10)
    courier.publish(RECORD)
    assert published.get(timeout=10) is RECORD
    assert not courier.events
    clock.advance(60.0)
    assert courier.finish(10)
    assert results(courier) == ["done"]


class SteppedCourier(Courier):
    """A courier whose turns the test makes."""

    def _notify(self) -> None:
        pass

    def _notify_loop(self) -> None:
        pass


def test_vitals_wait_for_the_next_tick_unless_they_are_to_be_published_at_once() -> None:
    class Member(FakeMember):
        def __init__(self) -> None:
            super().__init__()
            self.vitals: list[bool] = []
            self.count = 0

        def update_vitals(self, vitals: Vitals, at_once: bool) -> None:
            self.vitals.append(at_once)

        def tick(self) -> View:
            self.count += 1
            return super().tick()

    member = Member()
    clock = VirtualClock()
    courier = SteppedCourier(member, clock.now)
    courier.turn()
    courier.update_vitals(VITALS)
    assert courier.deadline > clock.now()
    courier.turn()
    assert (member.vitals, member.count) == ([False], 1)
    courier.update_vitals(VITALS, at_once=True)
    assert courier.deadline <= clock.now()
    courier.turn()
    assert (member.vitals, member.count) == ([False, True], 2)
    assert courier.deadline > clock.now()
