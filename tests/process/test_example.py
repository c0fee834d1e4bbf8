"""The example trains, fails where it is set to, and goes on from its checkpoints, without any launcher."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch cannot be imported")

EXAMPLE = Path(__file__).parents[2] / "examples" / "char_lm.py"
WORLD_SIZE = 2
LIMIT_S = 120.0
STEPS, FAILS_AT = 9, 6
COMMON = [f"--steps={STEPS}", "--batch-size=4", "--checkpoint-every=2", "--report-every=1", "--device=cpu"]
FAILING = ["--fail-rank=1", f"--fail-at-step={FAILS_AT}"]


@dataclass(frozen=True)
class Outcome:
    """How a small job of the example ended: one exit code and one text per rank."""

    exit_codes: list[int]
    stdout: list[str]
    stderr: list[str]

    @property
    def losses(self) -> dict[int, str]:
        """Return rank 0's printed loss of each step."""
        return {int(step): loss for step, loss in re.findall(r"step +(\d+)/\d+ +loss (\S+)", self.stdout[0])}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run_example(arguments: list[str], restart_count: int = 0) -> Outcome:
    """Run the ranks of one job as torchrun would, with nothing but its environment variables."""
    port = free_port()
    ranks: list[subprocess.Popen[str]] = []
    try:
        for number in range(WORLD_SIZE):
            job = {"RANK": number, "WORLD_SIZE": WORLD_SIZE}
            job |= {"LOCAL_RANK": number, "LOCAL_WORLD_SIZE": WORLD_SIZE}
            master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
            counted = {"TORCHELASTIC_RESTART_COUNT": restart_count}
            environment = os.environ | {name: str(value) for name, value in (job | master | counted).items()}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(EXAMPLE), *arguments],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        texts = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        return Outcome([rank.wait() for rank in ranks], [out for out, _ in texts], [err for _, err in texts])
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_example([*COMMON, "--checkpoint-dir", str(tmp_path_factory.mktemp("uninterrupted"))])


@dataclass(frozen=True)
class Interrupted:
    """A job that failed, and the one that went on from it, past a torn checkpoint."""

    failed: Outcome
    resumed: Outcome
    torn: Path


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    directory = tmp_path_factory.mktemp("inter rupted")
    arguments = [*COMMON, *FAILING, "--checkpoint-dir", str(directory)]
    failed = run_example(arguments)
    newest = max(directory.glob("step-*.pt"))
    torn = directory / "step-00000008.pt"
    torn.write_bytes(newest.read_bytes()[:10_000])
    return Interrupted(failed, run_example(arguments, restart_count=1), torn)


def test_the_example_trains_and_its_loss_falls(uninterrupted: Outcome) -> None:
    assert uninterrupted.exit_codes == [0, 0], uninterrupted.stderr
    assert list(uninterrupted.losses) == list(range(1, STEPS + 1))
    assert float(uninterrupted.losses[STEPS]) < float(uninterrupted.losses[1]) - 0.3
    assert uninterrupted.stdout[1] == "", "only rank 0 speaks"


def test_the_rank_chosen_to_fail_raises_a_descriptive_error_at_its_step(interrupted: Interrupted) -> None:
    failed = interrupted.failed
    assert 0 not in failed.exit_codes
    assert f"RuntimeError: rank 1 was asked to fail at step {FAILS_AT}" in failed.stderr[1]
    assert list(failed.losses) == list(range(1, FAILS_AT))


def test_after_a_restart_it_resumes_from_the_newest_readable_checkpoint_and_finishes(
    interrupted: Interrupted,
) -> None:
    resumed = interrupted.resumed
    assert resumed.exit_codes == [0, 0], resumed.stderr
    assert f"skipping the checkpoint {interrupted.torn}" in resumed.stdout[0]
    assert re.search(r"resumed from .*step-00000004\.pt", resumed.stdout[0])
    assert list(resumed.losses) == list(range(5, STEPS + 1))


def test_a_resumed_job_computes_what_an_uninterrupted_one_does(
    uninterrupted: Outcome, interrupted: Interrupted
) -> None:
    losses = interrupted.resumed.losses
    assert losses == {step: uninterrupted.losses[step] for step in losses}
