"""Which shared filesystem the tests run on: options of pytest, given by `scripts/test --sharedfs KIND`."""

from __future__ import annotations

from pathlib import Path

import pytest
from mounts import Client, parse


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sharedfs")
    group.addoption("--sharedfs", default="local", help="local, or [COMMAND:]PATH,[COMMAND:]PATH,... of one filesystem")
    group.addoption("--commits", type=int, default=2000, help="how many commits the contended cell gets (2000)")
    group.addoption("--writers", type=int, default=16, help="how many processes write to it (16)")


@pytest.fixture(name="clients")
def _clients(request: pytest.FixtureRequest, tmp_path: Path) -> list[Client]:
    """The mounts of one filesystem, by the option."""
    # With a default: pytest reads this file too late for its options when it runs all of tests/.
    return parse(request.config.getoption("--sharedfs", "local"), tmp_path)
