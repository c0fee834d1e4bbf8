"""A misspelt FTSLURM_ variable is named with the one that was probably meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftslurm.agent.option_table import OPTIONS
from ftslurm.agent.variable_names import OWN, edits, misspelt

DOCUMENTATION = Path(__file__).parents[2] / "docs/options.md"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FTSLURM_SHARED_DRI", "FTSLURM_SHARED_DIR"),
        ("FTSLURM_SHAREDDIR", "FTSLURM_SHARED_DIR"),
        ("FTSLURM_MAX_RESTART", "FTSLURM_MAX_RESTARTS"),
        ("FTSLURM_NODES", "FTSLURM_NNODES"),
        ("ftslurm_max_restarts", "FTSLURM_MAX_RESTARTS"),
        ("FTSLURM_HEARTBEAT_TIMOUT", "FTSLURM_HEARTBEAT_TIMEOUT"),
        ("PET_NPROC_PER_NOD", "PET_NPROC_PER_NODE"),
        ("PET_MAX_RESTART", "PET_MAX_RESTARTS"),
    ],
)
def test_a_misspelt_variable_is_named_with_the_nearest_option(name: str, meant: str) -> None:
    line = f"{name} in the environment is no option and is ignored; did you mean {meant}?"
    assert misspelt(["PATH", name, "FTSLURM_SHARED_DIR"]) == [line]


def test_names_of_options_of_the_product_and_of_scripts_are_no_misspellings() -> None:
    documented = set(re.findall(r"FTSLURM_[A-Z_]*[A-Z]", DOCUMENTATION.read_text()))
    known = {option.variable for option in OPTIONS} | {f"FTSLURM_{name}" for name in OWN}
    assert {name for name in documented if not name.startswith("FTSLURM__")} <= known
    theirs = ["FTSLURM_PLUGIN_LEVEL", "FTSLURM_MY_SITE", "FTSLURM_X", "FTSLURM__START", "TORCH_HOME", "FTSLURM_"]
    theirs += ["PET_RDZV_BACKEND", "PET_NNODES", "PET_SHUTDOWN_TIMEOUT", "PET_PROJECT", "PET_"]
    assert misspelt([*documented, *known, *theirs]) == []


@pytest.mark.parametrize(
    ("one", "other", "number"), [("", "ab", 2), ("ab", "ab", 0), ("ab", "ba", 1), ("abc", "ac", 1), ("abc", "xbz", 2)]
)
def test_edits_are_insertions_removals_replacements_and_swaps(one: str, other: str, number: int) -> None:
    assert edits(one, other) == edits(other, one) == number
