"""Silence is what one observer measured on its own clock, while it could see."""

from __future__ import annotations

from ftslurm.rendezvous.liveness import Liveness


def test_a_node_is_silent_from_the_first_look_that_found_its_counter() -> None:
    liveness = Liveness(prompt_s=2)
    assert [liveness.look("n1", "i", 5, now) for now in (100.0, 101.0, 102.5)] == [0.0, 1.0, 2.5]


def test_a_counter_that_moves_in_either_direction_ends_the_silence() -> None:
    liveness = Liveness(prompt_s=2)
    liveness.look("n1", "i", 5, 0.0)
    liveness.look("n1", "i", 5, 1.0)
    assert liveness.look("n1", "i", 6, 2.0) == 0.0
    assert liveness.look("n1", "i", 6, 3.0) == 1.0
    assert liveness.look("n1", "i", 2, 4.0) == 0.0


def test_a_new_incarnation_with_the_same_counter_ends_the_silence() -> None:
    liveness = Liveness(prompt_s=2)
    liveness.look("n1", "i", 1, 0.0)
    liveness.look("n1", "i", 1, 1.0)
    assert liveness.look("n1", "j", 1, 2.0) == 0.0


def test_nodes_are_measured_each_for_itself() -> None:
    liveness = Liveness(prompt_s=2)
    liveness.look("n1", "i", 1, 0.0)
    liveness.look("n2", "i", 1, 1.0)
    assert (liveness.look("n1", "i", 1, 2.0), liveness.look("n2", "i", 1, 2.0)) == (2.0, 1.0)


def test_a_long_gap_between_two_looks_does_not_count() -> None:
    liveness = Liveness(prompt_s=2)
    liveness.look("n1", "i", 1, 0.0)
    assert liveness.look("n1", "i", 1, 300.0) == 0.0
    assert liveness.look("n1", "i", 1, 301.0) == 1.0


def test_a_clock_that_steps_back_takes_nothing_away() -> None:
    liveness = Liveness(prompt_s=2)
    liveness.look("n1", "i", 1, 10.0)
    liveness.look("n1", "i", 1, 11.0)
    assert liveness.look("n1", "i", 1, 5.0) == 1.0


def test_another_sign_of_life_begins_the_silence_anew() -> None:
    liveness = Liveness(prompt_s=2)
    liveness.look("n1", "i", 1, 0.0)
    liveness.look("n1", "i", 1, 2.0)
    liveness.heard("n1")
    liveness.heard("nobody")
    assert liveness.look("n1", "i", 1, 3.0) == 1.0


def test_a_new_observer_knows_nothing_yet() -> None:
    liveness = Liveness(prompt_s=2)
    liveness.look("n1", "i", 1, 0.0)
    liveness.look("n1", "i", 1, 2.0)
    liveness.forget()
    assert liveness.look("n1", "i", 1, 4.0) == 0.0
