"""Real agents that look at their nodes' health: who is left out, who comes back, and that nothing of it hangs a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_run import Start, Started, start  # noqa: F401

# Each local node is sick as long as a file of that name is there: its own number says which.
SICK = 'f=sick${FTSLURM__LOCAL_NODE%%/*}; if [ -e "$f" ]; then cat "$f"; exit 2; fi; echo well'
WORK = """
import os, sys, time
rank, round_ = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
open(f"up{round_}-{rank}", "w").close()
"""


Sick = Callable[[int, str | None], None]


def word(run: Started, node: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.run_dir / "nodes" / f"{node}.json").read_text())
    return found


def rounds(run: Started) -> list[dict[str, Any]]:
    newest = max((run.run_dir / "state").glob("0*.json"))
    found: list[dict[str, Any]] = json.loads(newest.read_text().split("\n", 1)[1])["history"]
    return found


@pytest.fixture
def sick(tmp_path: Path) -> Callable[[int, str | None], None]:
    def make(node: int, text: str | None) -> None:
        path = tmp_path / f"sick{node}"
        if text is None:
            path.unlink()
        else:
            path.write_text(text + "\n")

    return make


def look(
    start: Start,  # noqa: F811
    script: str,
    *arguments: str,
    **environment: str,
) -> Started:
    return start(script, "--local-nodes", "3", "--health", "act", "--health-command", SICK, *arguments, **environment)


def test_a_node_that_is_sick_before_the_start_is_left_out_and_a_spare_takes_its_place(start: Start, sick: Sick) -> None:  # noqa: F811
    sick(0, "the fan stands still")
    run = look(start, WORK, "--nnodes", "2")
    assert run.wait() == 0, run.err
    assert [entry["nodes"] for entry in rounds(run)] == [["local1", "local2"]]
    assert "local0: health: fail: " in run.err and "the fan stands still" in run.err
    assert "local0: health: this node is unfit and takes no part" in run.err
    said = word(run, "local0")
    assert "the fan stands still" in said["unfit"]
    assert [(one["check"], one["status"]) for one in said["health"]["findings"]] == [("own-commands", "fail")]


def test_a_node_that_gets_sick_in_a_round_is_left_out_of_the_next_and_the_ranks_stay_put(
    start: Start,  # noqa: F811
    sick: Sick,
) -> None:
    script = (
        WORK
        + """
if round_ == 0 and rank == 0:
    time.sleep(0.5)
    open("sick0", "w").write("gone\\n")
    os.kill(os.getpid(), 11)
time.sleep(600 if round_ == 0 else 0)
"""
    )
    run = look(start, script, "--nnodes", "2")
    assert run.wait() == 0, run.err
    assert [entry["nodes"] for entry in rounds(run)] == [["local0", "local1"], ["local2", "local1"]]
    assert "gone" in word(run, "local0")["unfit"]


def test_without_a_spare_a_sick_node_is_waited_for_and_looked_at_again(start: Start, sick: Sick) -> None:  # noqa: F811
    sick(2, "resting")
    run = look(start, WORK, "--health-every", "0.5")
    run.until(lambda: "takes no part" in run.err)
    assert not list(run.directory.glob("up*"))
    sick(2, None)
    assert run.wait() == 0, run.err
    assert "local2: health: this node is fit again" in run.err


def test_a_check_that_hangs_holds_up_no_job_and_no_heartbeat(start: Start) -> None:  # noqa: F811
    hang = "trap '' TERM INT HUP; sleep 600"
    run = start(WORK, "--local-nodes", "2", "--health", "watch", "--health-command", hang)
    assert run.wait() == 0, run.err
    assert "lost" not in run.err
    assert run.marked() == []


def test_a_look_that_crashes_or_prints_rubbish_is_a_word_to_the_user_and_no_more(start: Start, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import sys\nif 'ftslurm.health.look' in ' '.join(sys.orig_argv): print('rubbish'); sys.exit(3)\n"
    )
    run = start(WORK, "--health", "act", PYTHONPATH=str(tmp_path / "site"))
    assert run.wait() == 0, run.err
    assert "this look at the node came to nothing" in run.err


def test_nothing_is_looked_at_when_switched_off(start: Start) -> None:  # noqa: F811
    run = look(start, WORK, "--health", "off")
    assert run.wait() == 0, run.err
    assert word(run, "local0")["health"] is None


def test_a_node_in_the_first_failures_place_twice_is_set_aside_for_this_job_and_the_next(
    start: Start,  # noqa: F811
    tmp_path: Path,
) -> None:
    script = (
        WORK
        + """
if os.environ["FTSLURM_NODE"] == "local1":
    time.sleep(0.3); os.kill(os.getpid(), 11)
time.sleep(600 if round_ < 2 else 0)
"""
    )
    run = look(start, script, "--nnodes", "2", "--rdzv-id", "first")
    assert run.wait() == 0, run.err
    assert [entry["nodes"] for entry in rounds(run)] == [["local0", "local1"]] * 2 + [["local0", "local2"]]
    noted = json.loads((tmp_path / "ftslurm-runs" / "excluded" / "local1.json").read_text())
    assert "first to fail in 2 rounds" in noted["reason"] and noted["by"] == "run first"
    assert "local1 is set aside for 24 hours" in run.err
    for path in tmp_path.glob("up*"):
        path.unlink()
    again = look(start, WORK, "--nnodes", "2", "--rdzv-id", "second")
    assert again.wait() == 0, again.err
    state = max((tmp_path / "ftslurm-runs" / "second" / "state").glob("0*.json")).read_text().split("\n", 1)[1]
    assert [entry["nodes"] for entry in json.loads(state)["history"]] == [["local0", "local2"]]
    assert "local1: set aside before: first to fail" in again.err
