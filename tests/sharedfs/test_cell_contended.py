"""The fenced cell under contention: processes on several clients, some of them killed, and an audit afterwards."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import contended
import pytest
from contended import END, Outcome, audit
from mounts import Client, json_lines

SCRIPT = (sys.executable, "-B", str(Path(contended.__file__).resolve()))


@pytest.mark.parametrize("lose", [0.0, 0.05], ids=["as-it-is", "with-lost-replies"])
def test_every_commit_is_won_by_exactly_one_writer_which_learns_it(
    request: pytest.FixtureRequest,
    clients: list[Client],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lose: float,
) -> None:
    commits = request.config.getoption("--commits", 2000)
    writers = request.config.getoption("--writers", 16)
    seed = random.randrange(1 << 32)
    name = f"ftslurm-contended-{os.urandom(4).hex()}"
    clients[0].run("mkdir", "-p", os.path.join(clients[0].path, name), output=tmp_path / "mkdir")
    began = time.monotonic()
    outcomes = increment(clients, name, commits, writers, lose, seed, tmp_path)
    seconds = time.monotonic() - began
    for i, client in enumerate(dict.fromkeys(clients)):
        listing = client.run(*SCRIPT, "list", os.path.join(client.path, name), output=tmp_path / f"list{i}")
        result = audit(listing, outcomes, commits)
        with capsys.disabled():
            print(f"\n{client.path}: {commits} commits in {seconds:.1f} s, {commits / seconds:.0f}/s, {result.numbers}")
        assert not result.faults, f"seed {seed}, {len(result.faults)} faults: {result.faults[:10]}"
    # What cannot be removed stays: the filesystem may be one that fails.
    clients[0].start("rm", "-rf", os.path.join(clients[0].path, name), output=tmp_path / "rm").wait()


def increment(
    clients: list[Client], name: str, commits: int, writers: int, lose: float, seed: int, outputs: Path
) -> list[Outcome]:
    """Let `writers` processes on all clients make `commits` commits; every fourth is killed on the way."""
    rng = random.Random(seed)
    processes = []
    for i in range(writers):
        client = clients[i % len(clients)]
        # About ten operations a try: somewhere in the first tries that each writer surely makes.
        die_at = str(rng.randrange(1, 2 + 10 * commits // writers)) if i % 4 == 3 else "0"
        place = os.path.join(client.path, name)
        output = outputs / f"w{i:02d}"
        command = (*SCRIPT, "write", place, output.name, str(commits), die_at, str(lose))
        processes.append((client.start(*command, output=output), output))
    outcomes = []
    for i, (process, output) in enumerate(processes):
        process.wait()
        lines = json_lines(output)
        died = not lines or lines[-1][0] != END
        assert not died or i % 4 == 3, f"{output.name} did not come to its end (seed {seed}), last: {lines[-3:]}"
        outcomes.append(Outcome(output.name, lines, died))
    return outcomes


def test_the_audit_finds_what_is_wrong() -> None:
    def generation(token: int, nonce: str, counter: int, writer: str, serial: int) -> list[object]:
        return [
            f"{token:012d}.json",
            {"token": token, "nonce": nonce},
            {"counter": counter, "writer": writer, "serial": serial},
        ]

    good = [generation(1, "a", 1, "w", 1), generation(2, "b", 2, "v", 2)]
    w = Outcome("w", [["won", 1, 1], ["lost", 2, 2]], died=False)
    v = Outcome("v", [["lost", 1, 1], ["won", 2, 2]], died=False)
    assert audit(good, [w, v], 2).faults == []
    cases = {
        "won by 2": (good, [w, Outcome("v", [["won", 1, 1], ["won", 2, 2]], died=False)], 2),
        "got the result that it lost": (good, [w, Outcome("v", [["lost", 1, 1], ["lost", 2, 2]], died=False)], 2),
        "holds None": (good[:1], [w, v], 1),
        "expected generations 1 to 3": (good, [w, v], 3),
        "nonce a is in 2": ([good[0], generation(2, "a", 2, "v", 2)], [w, v], 2),
        "counter 1": ([good[0], generation(2, "b", 1, "v", 2)], [w, v], 2),
        "unknown writers": (good, [w], 2),
        "listed twice": ([*good, good[1]], [w, v], 2),
    }
    for fault, case in cases.items():
        assert fault in "; ".join(audit(*case).faults), fault
    dead = Outcome("v", [["lost", 1, 1]], died=True)
    assert audit(good, [w, dead], 2).faults == []
    unsure = Outcome("v", [["lost", 1, 1], ["raised", 2, 2, "OSError", 5]], died=False)
    assert audit(good, [w, unsure], 2).faults == []
