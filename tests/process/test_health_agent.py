"""Real agents that look at their nodes' health: which nodes are left out or come back, and that no job hangs by it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_run import Start, Started, start  # noqa: F401

from tests.nvml import standin
from tests.nvml.standin import Standin

# Each local node is sick as long as a file of that name is there: its own number says which.
SICK = 'f=sick${FTSLURM__LOCAL_NODE%%/*}; if [ -e "$f" ]; then cat "$f"; exit 2; fi; echo well'
WORK = """
import os, sys, time
rank, round_ = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
open(f"up{round_}-{rank}", "w").close()
"""


Sick = Callable[[int, str | None], None]


def node_record(run: Started, node: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.run_dir / "nodes" / f"{node}.json").read_text())
    return found


def rounds(run: Started) -> list[dict[str, Any]]:
    newest = max((run.run_dir / "state").glob("0*.json"))
    found: list[dict[str, Any]] = json.loads(newest.read_text())["value"]["history"]
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


def test_a_node_that_is_unhealthy_at_the_start_is_replaced_by_a_spare(start: Start, sick: Sick) -> None:  # noqa: F811
    sick(0, "the fan stands still")
    run = look(start, WORK, "--nnodes", "2")
    assert run.wait() == 0, run.err
    assert [entry["nodes"] for entry in rounds(run)] == [["local1", "local2"]]
    assert "local0: health: fail: " in run.err and "the fan stands still" in run.err
    assert "local0: health: unhealthy: it takes no part in any round" in run.err
    record = node_record(run, "local0")
    assert "the fan stands still" in record["unhealthy"]
    # What this machine's kernel has to say (of other tests) is no more than a warning.
    failed = [one["check"] for one in record["health"]["findings"] if one["status"] == "fail"]
    assert failed == ["own-commands"]


def test_a_node_that_becomes_unhealthy_in_a_round_is_left_out_of_the_next_and_the_ranks_stay_put(
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
    assert "gone" in node_record(run, "local0")["unhealthy"]


def test_without_a_spare_an_unhealthy_node_is_waited_for_and_checked_again(start: Start, sick: Sick) -> None:  # noqa: F811
    sick(2, "resting")
    run = look(start, WORK, "--health-every", "0.5")
    run.until(lambda: "it takes no part" in run.err)
    run.until(lambda: "round 1 waits: 2 of 3 nodes are ready after " in run.err)
    (line,) = [line for line in run.err.splitlines() if "round 1 waits" in line]
    assert "; local2: unhealthy (" in line and line.endswith("resting)"), "one of them says it, for all"
    assert not list(run.directory.glob("up*"))
    sick(2, None)
    assert run.wait() == 0, run.err
    assert "local2: health: this node is healthy again" in run.err


def test_a_changed_text_of_a_failure_does_not_make_the_node_healthy(start: Start, sick: Sick) -> None:  # noqa: F811
    sick(2, "gone 1 min ago")
    run = look(start, WORK, "--health-every", "0.5")
    run.until(lambda: "it takes no part" in run.err)
    sick(2, "gone 2 min ago")
    run.until(lambda: "2 min ago" in (node_record(run, "local2")["unhealthy"] or ""))
    assert "healthy again" not in run.err
    sick(2, None)
    assert run.wait() == 0, run.err
    assert run.err.count("it takes no part") == run.err.count("healthy again") == 1


def test_a_check_that_hangs_holds_up_no_job_and_no_heartbeat(start: Start) -> None:  # noqa: F811
    hang = "trap '' TERM INT HUP; sleep 600"
    run = start(WORK, "--local-nodes", "2", "--health", "report", "--health-command", hang)
    assert run.wait() == 0, run.err
    assert "lost" not in run.err
    assert run.marked() == []


def test_a_run_that_crashes_or_prints_garbage_is_only_reported(start: Start, tmp_path: Path) -> None:  # noqa: F811
    # A check of the site's that takes the whole look along when it is imported.
    metadata = tmp_path / "site" / "site_checks-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: site-checks\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[ftslurm.health]\nbroken = site_checks:CHECK\n")
    (tmp_path / "site" / "site_checks.py").write_text("import os\nos.write(1, b'rubbish')\nos._exit(3)\n")
    run = start(WORK, "--health", "act", PYTHONPATH=str(tmp_path / "site"))
    assert run.wait() == 0, run.err
    assert "check run failed" in run.err


def test_nothing_is_checked_when_switched_off(start: Start) -> None:  # noqa: F811
    run = look(start, WORK, "--health", "off")
    assert run.wait() == 0, run.err
    assert node_record(run, "local0")["health"] is None


def test_a_node_in_the_first_failures_place_twice_is_excluded_for_this_job_and_the_next(
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
    noted = json.loads((tmp_path / "ftslurm-runs" / f"excluded-{os.geteuid()}" / "local1.json").read_text())
    assert "first to fail in 2 rounds" in noted["reason"] and noted["by"] == "run first"
    assert "local1 is excluded for 1 d" in run.err
    for path in tmp_path.glob("up*"):
        path.unlink()
    again = look(start, WORK, "--nnodes", "2", "--rdzv-id", "second")
    assert again.wait() == 0, again.err
    state = max((tmp_path / "ftslurm-runs" / "second" / "state").glob("0*.json")).read_text()
    assert [entry["nodes"] for entry in json.loads(state)["value"]["history"]] == [["local0", "local2"]]
    assert "local1: excluded before: first to fail" in again.err


@pytest.fixture
def gpus(tmp_path: Path) -> Standin:
    """Eight GPUs, as nvidia-ml-py sees them."""
    if standin.compiler() is None:
        pytest.skip("no C compiler for the NVML stand-in")
    return Standin(standin.build(tmp_path / "nvml"), tmp_path / "gpus")


def on_gpus(gpus: Standin) -> dict[str, str]:
    return {name: gpus.environment()[name] for name in ("LD_LIBRARY_PATH", "NVML_STANDIN")}


STEPS = """
import os, time
import ftslurm
open("up", "w").close()
while not os.path.exists("finish"):
    ftslurm.heartbeat()
    time.sleep(0.02)
    if os.path.exists("die"):
        os.kill(os.getpid(), 11)
"""
WATCHED = ("--heartbeat-timeout", "5", "--heartbeat", "0.5", "--node-timeout", "2", "--health", "act")


def test_an_nvml_that_hangs_while_ranks_run_is_reported_and_disturbs_nothing(
    start: Start,  # noqa: F811
    gpus: Standin,
) -> None:
    run = start(STEPS, *WATCHED, "--health-every", "0.3", **on_gpus(gpus))
    run.until(lambda: (run.directory / "up").exists())
    gpus.answer(["* hang nvmlInitWithFlags"])
    run.until(lambda: "the NVIDIA driver" in run.err, 60)
    assert node_record(run, hostname(run))["status"] == "running"
    (run.directory / "finish").touch()
    assert run.wait() == 0, run.err
    assert "health: fail: " in run.err and "no answer within 10 s" in run.err, run.err
    assert "was lost" not in run.err and "hangs (rank 0" not in run.err, run.err
    assert run.err.count("no answer within 10 s in nvmlInit (Look") == 1, "one line for one cause"
    assert run.marked() == []


def test_a_driver_that_hangs_in_one_run_alone_keeps_no_node_out_of_later_jobs(start: Start, gpus: Standin) -> None:  # noqa: F811
    gpus.answer(["* hang nvmlInitWithFlags"])
    run = start(WORK, "--health", "act", **on_gpus(gpus))
    run.until(lambda: "health: unhealthy" in run.err, 60)
    gpus.answer()
    assert run.wait() == 0, run.err
    assert "health: this node is healthy again" in run.err
    assert "excluded" not in run.err and not (run.directory / "ftslurm-runs" / f"excluded-{os.geteuid()}").exists()


def test_a_gpu_that_a_second_run_misses_too_keeps_its_node_out_of_later_jobs(start: Start, gpus: Standin) -> None:  # noqa: F811
    gpus.answer(["count 7"])
    run = start(WORK, "--health", "act", "--join-timeout", "8", SLURM_GPUS_ON_NODE="8", **on_gpus(gpus))
    assert run.wait() == 1
    assert "is excluded for 1 d: 7 of the 8 GPUs that Slurm gave can be used" in run.err, run.err
    (found,) = [one for one in node_record(run, hostname(run))["health"]["findings"] if one["status"] == "fail"]
    assert found["confirmed"] is True


def test_a_failing_check_is_made_once_more_at_once(start: Start, tmp_path: Path) -> None:  # noqa: F811
    once = f"if [ -e {tmp_path}/once ]; then exit 0; fi; touch {tmp_path}/once; echo not yet; exit 2"
    # No rank would wait until it is looked at again for another reason.
    run = start(WORK, "--health", "act", "--health-command", once, "--health-every", "0", "--join-timeout", "20")
    assert run.wait() == 0, run.err
    assert "health: fail: " in run.err and "health: this node is healthy again" in run.err


def test_an_xid_in_a_round_is_in_the_node_record_at_once_and_keeps_the_node_out_of_the_next(
    start: Start,  # noqa: F811
    gpus: Standin,
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "events")
    gpus.answer([f"events {tmp_path / 'events'}"])
    run = start(STEPS, *WATCHED, "--health-every", "0", "--join-timeout", "3", **on_gpus(gpus))
    run.until(lambda: (run.directory / "up").exists())
    with (tmp_path / "events").open("w") as events:
        events.write("3 79\n")
    run.until(lambda: "Xid 79" in run.err)
    record = node_record(run, hostname(run))
    assert record["status"] == "running"
    assert ("gpu-xid", "fail") in [(one["check"], one["status"]) for one in record["health"]["findings"]]
    (tmp_path / "die").touch()
    assert run.wait() == 1
    assert "is unhealthy: GPU 3" in run.err and "Xid 79" in run.err, run.err


def hostname(run: Started) -> str:
    return next((run.run_dir / "nodes").glob("*.json")).stem
