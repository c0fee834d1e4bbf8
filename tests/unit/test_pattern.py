"""Regular expressions that are compiled on first use."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import re

import pytest

import ftslurm.failures
import ftslurm.report
from ftslurm.pattern import pattern


def test_a_pattern_matches_as_one_of_re() -> None:
    number = pattern(r"(?P<number>\d+) steps", re.IGNORECASE)
    found = number.search("after 12 STEPS")
    assert found is not None and found["number"] == "12"
    assert number.sub("?", "12 steps of 20 steps") == "? of ?"
    assert [*pattern(b"[ab]+").finditer(b"ab c ba")][1][0] == b"ba"


def test_an_error_in_a_pattern_appears_on_first_use() -> None:
    broken = pattern("(")
    for _ in range(2):
        with pytest.raises(re.error, match="missing"):
            broken.search("")


@pytest.mark.parametrize("package", [ftslurm.failures, ftslurm.report], ids=lambda package: str(package.__name__))
def test_each_pattern_of_the_report_is_valid(package: object) -> None:
    names = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")  # type: ignore[attr-defined]
    modules = [importlib.import_module(each.name) for each in names]
    patterns = [each for each in gc.get_objects() if type(each) is type(pattern(""))]
    assert modules and len(patterns) > 100
    for each in patterns:
        assert isinstance(each.pattern, str | bytes)
