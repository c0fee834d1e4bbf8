"""Silence is what one observer measured on its own clock, while it could see."""

from __future__ import annotations

from ftslurm.observed_time import ObservedTime
from ftslurm.rendezvous.liveness import Liveness
from ftslurm.testing.clock import VirtualClock


def test_a_node_is_silent_from_the_first_read_of_its_counter() -> None:
    liveness = Liveness()
    assert [liveness.update("n1", "i", 5, now) for now in (100.0, 101.0, 102.5)] == [0.0, 1.0, 2.5]


def test_a_counter_that_moves_in_either_direction_ends_the_silence() -> None:
    liveness = Liveness()
    liveness.update("n1", "i", 5, 0.0)
    assert liveness.update("n1", "i", 6, 2.0) == 0.0
    assert liveness.update("n1", "i", 6, 3.0) == 1.0
    assert liveness.update("n1", "i", 2, 4.0) == 0.0


def test_a_new_incarnation_with_the_same_counter_ends_the_silence() -> None:
    liveness = Liveness()
    liveness.update("n1", "i", 1, 0.0)
    assert liveness.update("n1", "j", 1, 2.0) == 0.0


def test_nodes_are_measured_each_for_itself() -> None:
    liveness = Liveness()
    liveness.update("n1", "i", 1, 0.0)
    liveness.update("n2", "i", 1, 1.0)
    assert (liveness.update("n1", "i", 1, 2.0), liveness.update("n2", "i", 1, 2.0)) == (2.0, 1.0)


def test_another_sign_of_life_restarts_the_silence() -> None:
    liveness = Liveness()
    liveness.update("n1", "i", 1, 0.0)
    liveness.restart("n1", 2.0)
    liveness.restart("unknown", 2.0)
    assert liveness.update("n1", "i", 1, 3.0) == 1.0


def test_a_stall_of_the_observer_is_no_time_of_watching() -> None:
    clock = VirtualClock()
    attention = ObservedTime(clock.now, prompt_s=2)
    clock.advance(300.0)
    assert attention.note() == 0.0
    clock.advance(1.5)
    assert attention.note() == 1.5


def test_a_long_observation_of_many_prompt_calls_counts() -> None:
    clock = VirtualClock()
    attention = ObservedTime(clock.now, prompt_s=2)
    for _ in range(1000):
        clock.advance(0.01)
        attention.note()
    assert round(attention.note(), 6) == 10.0


def test_a_clock_that_steps_back_takes_nothing_away() -> None:
    times = iter([10.0, 11.0, 5.0, 6.0])
    attention = ObservedTime(lambda: next(times), prompt_s=2)
    assert [attention.note() for _ in range(3)] == [1.0, 1.0, 2.0]
