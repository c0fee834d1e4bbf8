"""Time-outs: asked for, learned, in force; and as text."""

from __future__ import annotations

import json
import math

import pytest

from ftslurm.monitor import timeouts
from ftslurm.monitor.timeouts import (
    CUT_LIMIT_S,
    MAX_SECTIONS,
    Learned,
    Longest,
    Spans,
    Timeouts,
    effective,
    learn,
    merge,
    parse_seconds,
    parse_section,
)


def heartbeat(seconds: float) -> Longest:
    return Longest(Spans(heartbeat_s=seconds))


def learned_heartbeat(previous: float | None, longest: Longest) -> float | None:
    before = None if previous is None else Learned(Spans(heartbeat_s=previous), 1)
    return learn(before, longest).timeouts.heartbeat_s


def test_without_a_setting_a_rank_that_opted_in_gets_half_an_hour_between_heartbeats() -> None:
    assert effective(Timeouts(), None) == Timeouts(heartbeat_s=1800)


def test_asked_for_beats_learned_and_learned_beats_the_default() -> None:
    learned = Learned(Spans(100, 200, {"data": 300, "save": 400}, 500), 3)
    assert effective(Timeouts(), learned) == Timeouts(100, 200, {"data": 300, "save": 400}, 500)
    asked = Timeouts(initial_s=1, sections={"data": 2}, warmup_steps=3, warmup_s=4, hang_s=5)
    assert effective(asked, learned) == Timeouts(1, 200, {"data": 2, "save": 400}, 500, 3, 4, 5)


def test_off_is_off_however_much_was_learned() -> None:
    learned = Learned(Spans(100, 200, {"data": 300}, 500), 3)
    off = Timeouts(math.inf, math.inf, {"data": math.inf}, math.inf, hang_s=math.inf)
    assert effective(off, learned) == Timeouts()


def test_the_longest_are_merged_over_ranks_and_nodes() -> None:
    one = Longest(Spans(1, None, {"a": 1, "b": 2}), Spans(heartbeat_s=60), 1)
    other = Longest(Spans(3, 2, {"b": 1, "c": 5}), silent=2)
    assert merge([one, other]) == Longest(Spans(3, 2, {"a": 1, "b": 2, "c": 5}), Spans(heartbeat_s=60), 3)
    assert merge([]) == Longest()


@pytest.mark.parametrize(
    ("previous", "longest", "expected"),
    [(None, 200, 1000), (None, 1, 600), (600, 200, 1000), (1800, 200, 1400), (1800, 1, 1200), (600, 1, 600)],
)
def test_a_learned_timeout_is_five_times_the_longest_and_shrinks_by_halves(
    previous: float | None, longest: float, expected: float
) -> None:
    assert learned_heartbeat(previous, heartbeat(longest)) == expected


def test_what_a_round_did_not_show_stays_as_it_was() -> None:
    before = Learned(Spans(100, 200, {"data": 300}, 400), 2)
    assert learn(before, Longest()) == Learned(before.timeouts, 3)


def test_a_timeout_that_cut_an_interval_doubles_so_that_a_healthy_rank_is_not_ended_for_ever() -> None:
    cut = Longest(Spans(heartbeat_s=10), Spans(heartbeat_s=600))
    assert learned_heartbeat(600, cut) == 1200
    assert learned_heartbeat(None, Longest(cut=Spans(heartbeat_s=CUT_LIMIT_S - 1))) == CUT_LIMIT_S
    assert learned_heartbeat(None, Longest(cut=Spans(heartbeat_s=CUT_LIMIT_S + 1))) == CUT_LIMIT_S + 1
    assert learn(None, Longest(cut=Spans(initial_s=1000), silent=1)).timeouts.initial_s == 2000


def test_the_time_to_the_first_heartbeat_is_learned_only_if_every_rank_sent_one() -> None:
    seen = Spans(initial_s=200, heartbeat_s=200)
    assert learn(None, Longest(seen)).timeouts == Spans(1000, 1000)
    assert learn(None, Longest(seen, silent=1)).timeouts == Spans(None, 1000)
    assert learn(Learned(Spans(initial_s=70), 1), Longest(seen, silent=1)).timeouts.initial_s == 70


def test_the_time_to_the_first_heartbeat_is_not_learned_where_some_are_steps_of_an_optimizer() -> None:
    round_ = Longest(Spans(initial_s=30, heartbeat_s=600), automatic=1)
    assert learn(None, round_).timeouts == Spans(heartbeat_s=3000)


def test_what_follows_after_an_optimizers_last_step_has_half_an_hour_and_twice_that_if_it_was_cut_short() -> None:
    first = learn(None, Longest(Spans(heartbeat_s=1), automatic=1))
    assert first.timeouts == Spans(heartbeat_s=1800)
    cut = Longest(Spans(heartbeat_s=1), Spans(heartbeat_s=1800), automatic=1)
    assert learn(first, cut).timeouts == Spans(heartbeat_s=3600)


def test_names_of_sections_do_not_pile_up_in_the_state() -> None:
    before = Learned(Spans(sections={f"old {i}": 60.0 for i in range(MAX_SECTIONS)}), 1)
    after = learn(before, Longest(Spans(sections={"new": 1.0})))
    assert len(after.timeouts.sections) == MAX_SECTIONS
    assert after.timeouts.sections["new"] == 60


def test_everything_survives_the_way_through_json() -> None:
    spans = Spans(1.5, 2, {"dätä": 3, "off": math.inf}, 4)
    asked = Timeouts(1, math.inf, {"a": 2.25}, 3, 4, 5.5, 6)
    learned = Learned(spans, 7)
    longest = Longest(spans, Spans(heartbeat_s=9), 2)

    def through(value: object) -> object:
        return json.loads(json.dumps(value, allow_nan=False))

    assert timeouts.read_spans(through(timeouts.spans_json(spans))) == spans
    assert timeouts.read_timeouts(through(timeouts.timeouts_json(asked))) == asked
    assert timeouts.read_learned(through(timeouts.learned_json(learned))) == learned
    written = {"completed": timeouts.spans_json(spans), "cut": {"heartbeat_s": 9}, "silent": 2}
    assert timeouts.read_longest(through(written)) == longest
    assert timeouts.from_env(timeouts.to_env(asked, learned)) == (asked, learned)
    assert timeouts.from_env(timeouts.to_env(Timeouts(), None)) == (Timeouts(), None)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "x",
        {"heartbeat_s": "1"},
        {"heartbeat_s": True},
        {"heartbeat_s": -1},
        {"heartbeat_s": 1e13},
        {"heartbeat_s": math.nan},
        {"heartbeat_s": [1]},
        {"sections": [1]},
        {"sections": {"": 1}},
        {"sections": {"x" * 41: 1}},
        {"sections": {"x": None}},
        {"sections": {str(i): 1 for i in range(MAX_SECTIONS + 1)}},
        {"warmup_steps": 1.5},
        {"warmup_steps": True},
        {"warmup_steps": -1},
        {"warmup_s": "x"},
    ],
)
def test_wrong_json_gives_one_line_with_the_place(value: object) -> None:
    with pytest.raises(ValueError, match=r"^state\.json: .*(expected|is no name)") as caught:
        timeouts.read_timeouts(value, "state.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"asked": 1}', '{"learned": 1}', '{"learned": {"rounds": -1}}']
)
def test_a_wrong_environment_gives_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        timeouts.from_env(text)


def test_the_command_line_takes_seconds_or_off() -> None:
    assert parse_seconds("--heartbeat-timeout", "1.5") == 1.5
    assert parse_seconds("--heartbeat-timeout", "1m") == 60
    assert parse_seconds("--heartbeat-timeout", "OFF") == math.inf
    for text in ("", "0", "-1", "nan", "inf", "1 m", "0x1"):
        with pytest.raises(
            ValueError, match=r"^--heartbeat-timeout '.*': expected seconds above 0, a time such as 30m or 2h, or off$"
        ):
            parse_seconds("--heartbeat-timeout", text)


def test_the_command_line_takes_sections_by_name() -> None:
    assert parse_section("--section-timeout", "data=30") == ("data", 30)
    assert parse_section("--section-timeout", "a=b=off") == ("a=b", math.inf)
    for text in ("", "data", "=3", "data=", "data=x", "x" * 41 + "=3"):
        with pytest.raises(ValueError, match="^--section-timeout"):
            parse_section("--section-timeout", text)
