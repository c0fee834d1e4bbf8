"""`ftslurm rehearse` with small scripts: one that is ready for each event, and one for each reason not to be."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.test_run import Started

REHEARSE = [sys.executable, "-m", "ftslurm.cli", "rehearse"]

READY = """
import os, time
import ftslurm
path = f"checkpoint{os.environ['RANK']}"
step = int(open(path).read()) if os.path.exists(path) else 0

def save():
    with ftslurm.section("checkpoint"):
        open(path + ".new", "w").write(str(step))
        os.replace(path + ".new", path)

while step < 100000:
    if ftslurm.should_stop(step):
        save()
        break
    time.sleep(0.02)
    step += 1
    if step % 10 == 0:
        save()
"""
DOES_NOT_LOAD = READY.replace("os.path.exists(path)", "False")
DOES_NOT_POLL = READY.replace("if ftslurm.should_stop(step):", "if ftslurm.progress(step):").replace("% 10", "% 1000")
SAVES_TOO_SLOWLY = READY.replace("        save()\n        break", "        time.sleep(60)\n        break")
DOES_NOT_SAVE_AT_THE_STOP = READY.replace("        save()\n        break", "        break")
FAILS_AGAIN = READY.replace(
    "import ftslurm\n", "import ftslurm\nassert os.environ['FTSLURM_ROUND'] == '1', 'no second time'\n"
)
WITHOUT_FTSLURM = "import time\nwhile True:\n    time.sleep(0.05)\n"
ENDS = "import ftslurm\nfor step in range(5):\n    ftslurm.progress(step)\n"
FAILS = "raise ValueError('a mistake')\n"


class Rehearsed(Started):
    """An `ftslurm rehearse` in the background."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
        environment = {**clean, "PWD_MARK": str(directory)}
        with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
            self.process = subprocess.Popen(
                [*REHEARSE, *arguments], cwd=directory, env=environment, stdout=out, stderr=err
            )

    @property
    def verdict(self) -> str:
        return "\n".join(line for line in self.out.splitlines() if not line.startswith("["))


Rehearse = Callable[..., Rehearsed]


@pytest.fixture
def rehearse(tmp_path: Path) -> Iterator[Rehearse]:
    """Rehearse with a script's text; nothing of it may be left at its end."""
    started: list[Rehearsed] = []

    def begin(script: str, *arguments: str) -> Rehearsed:
        (tmp_path / "train.py").write_text(script)
        run = Rehearsed(tmp_path, *arguments, "--", "train.py")
        started.append(run)
        return run

    yield begin
    for run in started:
        run.process.kill()
        run.process.wait()
        for pid, _ in run.marked():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def is_ready(run: Rehearsed) -> str:
    assert run.wait(120) == 0, run.out + run.err
    assert run.marked() == []
    return run.verdict


def is_not_ready(run: Rehearsed) -> str:
    assert run.wait(120) == 1, run.out + run.err
    assert run.marked() == []
    return run.verdict


def test_a_script_that_saves_and_resumes_is_ready_for_preemption(rehearse: Rehearse) -> None:
    verdict = is_ready(rehearse(READY, "preempt", "--at-step", "25"))
    assert verdict.startswith("ready for preemption: saved at step ")
    assert "of 30 s grace, resumed at " in verdict
    assert verdict.endswith(", 0 steps repeated")


def test_and_for_the_time_limit(rehearse: Rehearse) -> None:
    run = rehearse(READY, "timeout", "--at-step", "25")
    verdict = is_ready(run)
    assert "ready for the time limit: saved at step " in verdict
    assert "of 1 min grace" in verdict
    assert "the time limit is near, 1 min left" in run.err


@pytest.mark.parametrize(
    ("event", "options", "noticed"),
    [
        ("oom", (), "stands for the kernel's out-of-memory kill"),
        ("rank-death", ("--rank", "0"), "SIGSEGV to rank 0 on local0"),
        ("hang", ("--hang-timeout", "2"), "hangs (rank 1: "),
        ("node-loss", ("--local-nodes", "3", "--nnodes", "2"), "was lost"),
        ("node-loss", ("--join-timeout", "3"), "a new attempt of the run"),
    ],
)
def test_and_for_failures(rehearse: Rehearse, event: str, options: tuple[str, ...], noticed: str) -> None:
    run = rehearse(READY, event, "--at-step", "25", *options)
    verdict = is_ready(run)
    assert verdict.startswith("ready for ")
    assert "resumed at " in verdict
    assert noticed in run.err


def test_a_script_that_does_not_load_its_checkpoint_is_not_ready(rehearse: Rehearse) -> None:
    verdict = is_not_ready(rehearse(DOES_NOT_LOAD, "preempt", "--at-step", "25"))
    assert "resumed at 0: " in verdict
    assert "the script did not load its checkpoint" in verdict
    assert "see ftslurm report" in verdict


def test_a_script_that_does_not_save_at_the_stop_is_not_ready(rehearse: Rehearse) -> None:
    verdict = is_not_ready(rehearse(DOES_NOT_SAVE_AT_THE_STOP.replace("% 10", "% 100"), "timeout", "--at-step", "105"))
    assert "no checkpoint was saved at the stop" in verdict


def test_a_script_that_does_not_poll_is_not_ready_and_its_verdict_names_what_to_add(rehearse: Rehearse) -> None:
    verdict = is_not_ready(rehearse(DOES_NOT_POLL, "preempt", "--at-step", "25"))
    assert "no rank calls ftslurm.should_stop" in verdict
    assert "add to the training loop: if ftslurm.should_stop(step)" in verdict


def test_a_step_that_the_script_has_passed_when_it_resumes_is_refused(rehearse: Rehearse, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"checkpoint{rank}").write_text("164")
    run = rehearse(READY, "preempt", "--at-step", "60")
    assert run.wait(120) == 2, run.out + run.err
    assert "--at-step 60: the script begins at step 164, as it resumes from a checkpoint" in run.err
    assert "give a step above 164, or a directory without checkpoints" in run.err
    assert run.marked() == []


def test_ranks_that_begin_late_are_no_ranks_that_do_not_poll(rehearse: Rehearse) -> None:
    late = READY.replace("def save", "time.sleep(5 * int(os.environ['RANK']) * (step == 0))\n\ndef save")
    verdict = is_ready(rehearse(late, "preempt", "--at-step", "25"))
    assert verdict.startswith("ready for preemption: saved at step ")
    assert verdict.endswith(", 0 steps repeated")


def test_a_save_that_takes_longer_than_the_grace_is_not_ready(rehearse: Rehearse) -> None:
    verdict = is_not_ready(rehearse(SAVES_TOO_SLOWLY, "preempt", "--at-step", "25", "--grace", "2"))
    assert "not all ranks left within 2 s grace" in verdict


def test_a_script_that_fails_when_it_starts_again_is_not_ready(rehearse: Rehearse) -> None:
    verdict = is_not_ready(rehearse(FAILS_AGAIN, "rank-death", "--at-step", "25", "--max-restarts", "1"))
    assert "it started again, and failed" in verdict
    assert "no second time" in verdict


def test_a_run_without_restarts_is_not_ready(rehearse: Rehearse) -> None:
    verdict = is_not_ready(rehearse(READY, "oom", "--at-step", "25", "--max-restarts", "0"))
    assert "it did not start again" in verdict
    assert "--max-restarts 0" in verdict


def test_a_script_without_ftslurm_is_rehearsed_by_time(rehearse: Rehearse) -> None:
    run = rehearse(WITHOUT_FTSLURM, "rank-death", "--after", "1")
    verdict = is_not_ready(run)
    assert "no steps were reported within 1 s" in run.err
    assert "from which step is unknown: no rank reports steps" in verdict
    assert "ftslurm.progress(step)" in verdict


def test_a_script_that_fails_by_itself_is_not_ready(rehearse: Rehearse) -> None:
    verdict = is_not_ready(rehearse(FAILS, "oom", "--at-step", "25"))
    assert "the run failed before step 25 by itself" in verdict
    assert "ValueError: a mistake" in verdict


def test_a_script_that_ends_before_the_event_proves_nothing(rehearse: Rehearse) -> None:
    run = rehearse(ENDS, "oom", "--at-step", "25")
    assert run.wait(60) == 2
    assert "the program ended before step 25" in run.err


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch cannot be imported")
def test_the_example_is_ready_for_failures_and_for_preemption(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples/char_lm.py"
    options = ("--checkpoint-dir", str(tmp_path / "checkpoints"), "--checkpoint-every", "5", "--steps", "100000")
    program = (str(example), *options, "--device", "cpu", "--batch-size", "2")
    failed = Rehearsed(tmp_path, "rank-death", "--at-step", "8", "--", *program)
    assert failed.wait(240) == 0, failed.out + failed.err
    assert re.search(r"ready for the death of a rank: .*, resumed at \d*[16], ", failed.verdict)
    stopped = Rehearsed(tmp_path, "preempt", "--", *program, "--checkpoint-every", "1000")
    assert stopped.wait(240) == 0, stopped.out + stopped.err
    step = re.search(r"ready for preemption: saved at step (\d+), .*, 0 steps repeated", stopped.verdict)
    assert step is not None, stopped.verdict
    assert f"resumed at {step[1]}, " in stopped.verdict


def test_a_rehearsal_has_a_limit(rehearse: Rehearse) -> None:
    run = rehearse(READY, "preempt", "--at-step", "1000000", "--limit", "5")
    assert run.wait(60) == 2
    assert "not done within 5 s (--limit)" in run.err
    assert run.marked() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_rehearsal_that_is_stopped_leaves_nothing(rehearse: Rehearse, number: int) -> None:
    run = rehearse(READY, "preempt", "--at-step", "1000000")
    run.until((run.directory / "checkpoint1").exists)
    run.process.send_signal(number)
    assert run.wait(60) == (-number if number == signal.SIGKILL else 128 + number)
    run.until(lambda: run.marked() == [])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("preempt", "train.py"), "expected -- and a program"),
        (("preempt", "--", "missing.py"), "missing.py: no such script"),
        (("oom", "--rank", "7", "--at-step", "1", "--", "train.py"), "--rank 7: the round has ranks 0 to 1"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    (tmp_path / "train.py").write_text(READY)
    run = Rehearsed(tmp_path, *arguments)
    assert run.wait(60) == 2
    assert expected in run.err
    assert "Traceback" not in run.err
    assert run.marked() == []


def test_the_help_has_examples_and_exit_codes() -> None:
    done = subprocess.run([*REHEARSE, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "examples:\n  ftslurm rehearse preempt --at-step 120 -- train.py" in done.stdout
    assert "exit codes: 0 ready" in done.stdout
