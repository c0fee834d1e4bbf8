"""The node-list parser says what Slurm's own says."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from ftslurm.slurm.nodelist import compress, expand

SEED = 20260102
CASES = 400

pytestmark = pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol is not installed")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which scontrol works: it insists on a configuration, even to spell out names."""
    conf: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\n")
    return {**os.environ, "SLURM_CONF": str(conf)}


def hostnames(text: str, environment: dict[str, str]) -> list[str]:
    command = ["scontrol", "show", "hostnames", text]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.split("\n")[:-1]


def a_range(source: random.Random) -> str:
    first = source.choice([0, 1, 7, 8, 9, 10, 95, 98, 99, 100, 999, 1000])
    low = f"{first:0{source.choice([1, 1, 2, 3, 4])}d}"
    if source.random() < 0.4:
        return low
    high = f"{first + source.choice([0, 1, 2, 3, 12])}"
    return f"{low}-{high.zfill(len(low))}" if source.random() < 0.8 else f"{low}-{high}"


def an_element(source: random.Random) -> str:
    stem = source.choice(["n", "node-", "a.b", "gpu_a100-", "n0", "n1", "", "x1y"])
    brackets = source.choice([0, 1, 1, 1, 2, 2, 3, 4])
    if not brackets:
        return (stem or "m") + source.choice(["", "1", "007"])
    parts = []
    for number in range(brackets):
        parts.append(stem if number == 0 else source.choice(["", "node", "-", ".r", "0"]))
        count = source.randint(1, 3 if brackets < 3 else 2)
        parts.append(f"[{','.join(a_range(source) for _ in range(count))}]")
    return "".join(parts)


def test_generated_lists_expand_as_by_scontrol(environment: dict[str, str]) -> None:
    source = random.Random(SEED)
    for case in range(CASES):
        separator = source.choice([",", ",", ", ", " "])
        text = separator.join(an_element(source) for _ in range(source.randint(1, 3)))
        assert expand(text) == hostnames(text, environment), f"seed {SEED}, case {case}: {text!r}"


def test_scontrol_reads_the_lists_that_we_write(environment: dict[str, str]) -> None:
    source = random.Random(SEED + 1)
    for case in range(100):
        stems = [source.choice(["n", "r1n", "a-b.c"]) for _ in range(2)]
        numbers = [f"{source.randint(0, 30):0{source.choice([1, 3])}d}" for _ in range(9)]
        names = [source.choice(stems) + number for number in numbers]
        if source.random() < 0.7:
            names.sort()
        assert hostnames(compress(names), environment) == names, f"seed {SEED + 1}, case {case}: {names}"
