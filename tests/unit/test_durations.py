"""One grammar of durations in the options of all commands: seconds, or numbers with units."""

from __future__ import annotations

import math

import pytest

from ftslurm.agent.options import parse_run
from ftslurm.doctor.command import _parser as doctor
from ftslurm.nodes.command import _parser as nodes
from ftslurm.status.command import _parser as status
from ftslurm.text import duration_s

GOOD = {
    "90": 90,
    "0.5": 0.5,
    "90s": 90,
    "2m": 120,
    "10min": 600,
    "1h30min": 5400,
    "1.5h": 5400,
    "1d": 86_400,
    "1d12h": 129_600,
    "2w": 1_209_600,
}


@pytest.mark.parametrize(("text", "seconds"), GOOD.items())
def test_a_duration_is_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1 h", "1h 30", "1h30", "1H", "nan", "inf", "1_0", "٣", "٣h", "1..5h", "min", "3ms"]
)
def test_other_texts_are_no_durations(text: str) -> None:
    assert duration_s(text) is None


def test_options_of_all_commands_take_units() -> None:
    times = ["--exclude-for", "1d", "--node-timeout", "2m", "--hang-timeout", "1.5h", "--section-timeouts", "eval=30m"]
    run = parse_run([*times, "--join-timeout", "600", "x.py"], {})
    assert (run.exclusion.for_s, run.timing.node_timeout_s, run.timing.join_timeout_s) == (86_400, 120, 600)
    assert (run.timeouts.configured.hang_s, run.timeouts.configured.sections) == (5400, {"eval": 1800})
    assert nodes().parse_args(["exclude", "n1", "--for", "90"]).time == 90 * 10**9
    assert nodes().parse_args(["exclude", "n1", "--for", "90m"]).time == 5400 * 10**9
    assert status().parse_args(["--watch", "2m"]).watch == 120
    assert doctor().parse_args(["--seconds", "1m", "--wait", "90s"]).wait == 90


def test_a_time_out_can_still_be_switched_off() -> None:
    assert parse_run(["--hang-timeout", "off", "x.py"], {}).timeouts.configured.hang_s == math.inf
