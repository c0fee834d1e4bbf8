"""An orderly stop with real agents and ranks: all ranks leave at the same step, whatever asks for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process.test_run import Start, Started, start

__all__ = ["start"]

TRAINS = """
import os, random, sys, time
import ftslurm
rank = os.environ["RANK"]
jitter = random.Random(rank)
pace = float(os.environ.get("PACE", "0.01"))
step = 0
while not ftslurm.should_stop(step):
    open(f"up{rank}", "w").close()
    time.sleep(pace * jitter.uniform(0.2, 1.8))
    step += 1
with ftslurm.section("checkpoint"):
    open(f"saved{rank}", "w").write(f"{step} {ftslurm.stop_reason()} {ftslurm.time_left():.0f}")
"""
TWO_NODES = ("--local-nodes", "2", "--nproc-per-node", "2", "--health", "off")


def up(run: Started, ranks: int = 4) -> None:
    run.until(lambda: all((run.directory / f"up{rank}").exists() for rank in range(ranks)))


def steps(run: Started) -> list[int]:
    return [int(path.read_text().split()[0]) for path in sorted(run.directory.glob("saved*"))]


def agents(run: Started) -> list[int]:
    return [json.loads(path.read_text())["pid"] for path in sorted(run.run_dir.glob("nodes/*.json"))]


def ranks(run: Started) -> list[int]:
    return [pid for pid, line in run.marked() if "train.py" in line and "boot/worker.py" in line]


def closed(run: Started) -> dict[str, object]:
    newest = max(run.run_dir.glob("state/*.json"), key=lambda path: path.name)
    found: dict[str, object] = json.loads(newest.read_text())["value"]["closed"]
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_job_ends_all_ranks_at_the_same_step(start: Start, number: int) -> None:
    run = start(TRAINS, *TWO_NODES)
    up(run)
    run.process.send_signal(number)
    assert run.wait() == 75, run.err
    assert len(steps(run)) == 4
    assert len(set(steps(run))) == 1
    assert f"saved at step {steps(run)[0]}" in str(closed(run)["reason"])
    assert "of 1 min grace" in str(closed(run)["reason"])


BEGINS_LATE = TRAINS.replace(
    "step = 0\n",
    """step = 0
open(f"up{rank}", "w").close()
while rank == "1" and not os.path.exists("begin"):
    time.sleep(0.01)
""",
)


@pytest.mark.parametrize("other", [0, 1])
def test_ranks_that_have_not_begun_to_poll_leave_where_the_others_do(start: Start, other: int) -> None:
    script = BEGINS_LATE.replace('rank == "1"', f'rank != "{other}"')
    run = start(script, "--local-nodes", "2", "--nproc-per-node", "1", "--health", "off", "--grace", "30")
    up(run, 2)
    run.until(lambda: '"polled":"' in newest_state(run))
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: '"committed":true' in newest_state(run))
    (run.directory / "begin").touch()
    assert run.wait() == 75, run.err
    assert len(steps(run)) == 2
    assert len(set(steps(run))) == 1
    assert "SIGTERM from outside: stopping" not in run.err


NEVER_POLLS = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: open(f"term{os.environ['RANK']}", "w").write(repr(time.time())))
open(f"up{os.environ['RANK']}", "w").close()
while not os.path.exists(f"term{os.environ['RANK']}"):
    time.sleep(0.01)
"""


def test_ranks_that_never_poll_get_sigterm_at_once(start: Start) -> None:
    run = start(NEVER_POLLS, "--local-nodes", "2", "--nproc-per-node", "1", "--health", "off")
    up(run, 2)
    sent = time.time()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    assert all(float((run.directory / f"term{rank}").read_text()) - sent < 5 for rank in (0, 1))


def newest_state(run: Started) -> str:
    files = sorted(run.run_dir.glob("state/*.json"), key=lambda path: path.name)
    return compact(files[-1]) if files else ""


def compact(path: Path) -> str:
    return re.sub(r"(?<=[:,])\s+", "", path.read_text())


def test_a_second_ctrl_c_says_that_no_save_is_waited_for_and_a_third_that_the_ranks_are_killed(start: Start) -> None:
    waits = "open(f'saving{rank}', 'w').close(); time.sleep(600)"
    saves = TRAINS.replace('    open(f"saved', f'    {waits}\n    open(f"saved')
    run = start(saves, *TWO_NODES, "--grace", "60")
    up(run)
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: all((run.directory / f"saving{rank}").exists() for rank in range(4)))
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: run.err.count("SIGINT again: no save is waited for; the ranks get SIGTERM") == 2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.err
    assert run.err.count("SIGINT again: the ranks are killed now") == 2
    assert "SIGINT from outside: stopping" not in run.err


def test_a_signal_that_reaches_one_agent_alone_stops_all_ranks(start: Start) -> None:
    run = start(TRAINS, *TWO_NODES)
    up(run)
    os.kill(agents(run)[1], signal.SIGTERM)
    assert run.wait() == 75, run.err
    assert len(steps(run)) == 4
    assert len(set(steps(run))) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_that_reaches_one_rank_alone_stops_all_ranks(start: Start, number: int) -> None:
    run = start(TRAINS, *TWO_NODES)
    up(run)
    os.kill(ranks(run)[0], number)
    assert run.wait() == 75, run.err
    assert len(steps(run)) == 4
    assert len(set(steps(run))) == 1
    assert signal.Signals(number).name in str(closed(run)["reason"])


def test_a_forwarded_usr1_stops_all_ranks(start: Start, tmp_path: Path) -> None:
    run = start(TRAINS, *TWO_NODES)
    up(run)
    run.process.send_signal(signal.SIGUSR1)
    assert run.wait() == 75, run.err
    assert len(set(steps(run))) == 1


def test_ftslurm_stop_ends_all_ranks_at_the_same_step(start: Start) -> None:
    run = start(TRAINS, *TWO_NODES)
    up(run)
    done = command(run, "stop", "--reason", "maintenance", "--wait", "60")
    assert done.returncode == 0, done.stderr
    assert "interrupted: maintenance; saved at step" in done.stdout
    assert run.wait() == 75, run.err
    assert len(set(steps(run))) == 1
    again = command(run, "stop")
    assert again.returncode == 3
    assert "has ended" in again.stderr


def test_ftslurm_stop_ends_ranks_that_do_not_poll_by_sigterm(start: Start) -> None:
    script = "import os, time\nopen('up' + os.environ['RANK'], 'w').close()\ntime.sleep(600)"
    run = start(script, *TWO_NODES)
    up(run)
    assert command(run, "stop", "--wait", "60").returncode == 0
    assert run.wait() == 75, run.err


def test_a_notice_stops_the_ranks(start: Start, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    run = start(TRAINS, *TWO_NODES, "--stop-when", str(notice))
    up(run)
    (tmp_path / "new").write_text("120\nspot instance leaves\n")
    (tmp_path / "new").rename(notice)
    assert run.wait() == 75, run.err
    assert len(set(steps(run))) == 1
    assert "spot instance leaves; saved at step" in str(closed(run)["reason"])


def test_a_command_that_succeeds_stops_the_ranks(start: Start, tmp_path: Path) -> None:
    run = start(TRAINS, *TWO_NODES, "--stop-when", f"test -e {tmp_path}/notice && echo leaving")
    up(run)
    (tmp_path / "notice").touch()
    assert run.wait() == 75, run.err
    assert len(set(steps(run))) == 1
    assert "leaving; saved at step" in str(closed(run)["reason"])


def command(run: Started, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "FTSLURM"))}
    return subprocess.run(
        [sys.executable, "-m", "ftslurm.cli", arguments[0], str(run.run_dir), *arguments[1:]],
        capture_output=True,
        text=True,
        cwd=run.directory,
        env=clean,
        timeout=90,
    )


TRAINS_ON = TRAINS.replace("while not ftslurm.should_stop(step):", "while step < 400:\n    ftslurm.should_stop(step)")


def test_ranks_that_finish_their_work_after_a_stop_request_succeed(start: Start) -> None:
    run = start(TRAINS_ON, *TWO_NODES)
    up(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0, run.err
    assert "succeeded, although a stop was requested (SIGTERM from outside)" in str(closed(run)["reason"])


def test_ranks_that_train_on_until_the_grace_ends_are_named(start: Start) -> None:
    run = start(TRAINS_ON.replace("400", "40000"), *TWO_NODES, "--grace", "3")
    up(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    expected = r"rank \d trained on to step \d+, although should_stop had returned True at step \d+"
    assert re.search(expected, str(closed(run)["reason"]))


SAVES_SLOWLY = TRAINS.replace('    open(f"saved', '    time.sleep(float(os.environ["SAVE_S"]))\n    open(f"saved')


def test_a_save_may_take_as_long_as_slurm_gives(start: Start) -> None:
    run = start(SAVES_SLOWLY, *TWO_NODES, SAVE_S="17")
    up(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(90) == 75, run.err
    assert len(steps(run)) == 4


def test_a_save_that_exceeds_the_grace_is_reported_as_unfinished(start: Start) -> None:
    run = start(SAVES_SLOWLY, *TWO_NODES, "--grace", "2", SAVE_S="60")
    up(run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    assert steps(run) == []
    assert "its save not finished: rank" in str(closed(run)["reason"])
    assert "in section checkpoint" in str(closed(run)["reason"])
    report = command(run, "report").stdout
    assert "hint: what is saved after the grace is lost: save faster" in report
    assert "no rank is to blame" not in report


def test_a_second_ctrl_c_during_a_save_is_reported_as_that(start: Start) -> None:
    run = start(SAVES_SLOWLY, *TWO_NODES, "--grace", "9", SAVE_S="60")
    up(run)
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: '"committed":true' in newest_state(run))
    time.sleep(2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.err
    reason = str(closed(run)["reason"])
    assert reason.startswith("SIGINT from outside, twice: no save was waited for; stop requested ")
    assert re.search(r" [2-9](\.\d+)? s ago, its save not finished: rank \d was in section checkpoint", reason), reason
    assert "hint:" not in command(run, "report").stdout


HANGS = TRAINS.replace(
    "    step += 1",
    """    step += 1
    if step == 20 and rank == "3":
        open("hanging", "w").close()
        with ftslurm.section("train"):
            time.sleep(600)""",
)


def test_a_rank_that_does_not_poll_any_more_is_named(start: Start) -> None:
    run = start(HANGS, *TWO_NODES, "--grace", "3")
    up(run)
    run.until((run.directory / "hanging").exists)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    assert "not polled since: rank 3 was in section train" in str(closed(run)["reason"])


def test_a_second_ctrl_c_does_not_wait_for_the_agreed_step(start: Start) -> None:
    run = start(HANGS, *TWO_NODES, "--grace", "50")
    up(run)
    run.until((run.directory / "hanging").exists)
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: run.err.count("SIGINT from outside: asking the ranks to stop; once more: without waiting") == 2)
    sent = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.err
    assert time.monotonic() - sent < 30
    assert run.err.count("SIGINT again: no save is waited for") == 2
    assert str(closed(run)["reason"]).startswith("SIGINT from outside")
    assert steps(run) == []


def test_an_agent_that_is_killed_while_the_ranks_agree_ends_the_run(start: Start) -> None:
    run = start(HANGS, *TWO_NODES, "--grace", "50")
    up(run)
    run.until((run.directory / "hanging").exists)
    pids = agents(run)
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: '"proposal":1' in newest_state(run))
    os.kill(pids[1], signal.SIGKILL)
    assert run.wait() == 143, run.err
    reason = str(closed(run)["reason"])
    assert reason.startswith("SIGTERM from outside; ")
    assert "round 1 had ended: local1 left: its agent was killed by SIGKILL" in reason
    # Ranks that had agreed in the moment before the kill may leave and save; no others do.
    if not json.loads(newest_state(run))["value"]["stop"]["committed"]:
        assert "left at step" not in reason
        assert "saved" not in reason


FAILS_WHILE_OTHERS_SAVE = """
import os, time
import ftslurm
rank = int(os.environ["RANK"])
open(f"up{rank}", "w").close()
ftslurm.should_stop(0)
if rank == 0:
    while not all(os.path.exists(f"saving{other}") for other in (1, 2, 3)):
        time.sleep(0.01)
    raise RuntimeError("rank 0 fails")
with ftslurm.section("checkpoint"):
    open(f"saving{rank}", "w").close()
    time.sleep(1.5)
    open(f"saved{rank}", "w").write("0")
time.sleep(600)
"""


def test_a_rank_that_saves_when_another_fails_completes_its_checkpoint(start: Start) -> None:
    run = start(FAILS_WHILE_OTHERS_SAVE, *TWO_NODES, "--max-restarts", "0", "--grace", "10")
    assert run.wait() == 1, run.err
    assert len(steps(run)) == 3


FAILS_TO_SAVE = """
import os, time
import ftslurm
rank = int(os.environ["RANK"])
step = 0
while not ftslurm.should_stop(step):
    open(f"up{rank}", "w").close()
    time.sleep(0.01)
    step += 1
open(f"left{rank}", "w").close()
if rank == 0:
    with ftslurm.section("checkpoint"):
        raise OSError("no space left for rank 0")
while not os.path.exists("go-on"):
    time.sleep(0.01)
with ftslurm.section("checkpoint"):
    open(f"saved{rank}", "w").write(str(step))
"""


def test_a_rank_whose_save_fails_does_not_keep_the_others_from_theirs(start: Start) -> None:
    run = start(FAILS_TO_SAVE, *TWO_NODES, "--grace", "40")
    up(run)
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: '"leaving":true' in "".join(compact(path) for path in run.run_dir.glob("nodes/*.json")))
    (run.directory / "go-on").touch()
    assert run.wait() == 143, run.err
    assert len(steps(run)) == 3
    reason = str(closed(run)["reason"])
    assert reason.startswith("rank 0 on local0 failed")
    assert "no space left for rank 0" in reason
    assert f"all 4 ranks left at step {steps(run)[0]}, saved by ranks 1-3" in reason


ONLY_RANK_0_ASKS = """
import os, time
import ftslurm
rank = int(os.environ["RANK"])
open(f"up{rank}", "w").close()
step = 0
while not os.path.exists("everybody-out"):
    if rank == 0 and ftslurm.should_stop(step):
        with ftslurm.section("checkpoint"):
            open(f"saved{rank}", "w").write(str(step))
        open("everybody-out", "w").close()
    time.sleep(0.01)
    step += 1
"""


def test_ranks_that_follow_rank_0_without_asking_are_named(start: Start) -> None:
    run = start(ONLY_RANK_0_ASKS, *TWO_NODES)
    up(run)
    run.until(lambda: '"polled":"' in newest_state(run))
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.err
    expected = f"rank 0 left at step {steps(run)[0]}, saved by rank 0; ranks 1-3 never called should_stop"
    assert expected in str(closed(run)["reason"])
    assert expected in " ".join(run.out.split())


def test_ranks_that_do_not_follow_rank_0_are_named_as_late(start: Start) -> None:
    script = ONLY_RANK_0_ASKS.replace('open("everybody-out", "w").close()', "break")
    run = start(script, *TWO_NODES, "--grace", "3")
    up(run)
    run.until(lambda: '"polled":"' in newest_state(run))
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err
    assert "should_stop never called: rank" in str(closed(run)["reason"])


CHILD_ASKS_FIRST = (
    """
import os
child = os.fork()
if child == 0:
    import ftslurm
    step = 10**6
    while not ftslurm.should_stop(step):
        open("child-asks", "w").close()
        step += 1
        if os.getppid() == 1:
            os._exit(0)
while not os.path.exists("child-asks"):
    pass
"""
    + TRAINS
)


def test_a_forked_child_that_asks_first_does_not_act_for_the_rank(start: Start) -> None:
    run = start(CHILD_ASKS_FIRST, "--nproc-per-node", "1", "--health", "off", "--grace", "20")
    up(run, 1)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 75, run.err
    assert steps(run)[0] < 10**6


EPOCHS = """
import os, time
import ftslurm
for epoch in range(400):
    for step in range(10):
        if ftslurm.should_stop(step):
            raise SystemExit
        open(f"up{os.environ['RANK']}", "w").close()
        time.sleep(0.02)
"""


def test_a_step_that_begins_anew_in_each_epoch_is_reported(start: Start) -> None:
    run = start(EPOCHS, *TWO_NODES, "--grace", "2")
    up(run)
    run.until(lambda: "the step must grow from call to call" in run.err)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143, run.err


def test_a_notice_with_a_time_is_the_time_left(start: Start, tmp_path: Path) -> None:
    run = start(TRAINS, *TWO_NODES, "--stop-when", str(tmp_path / "notice"))
    up(run)
    (tmp_path / "new").write_text("300\n")
    (tmp_path / "new").rename(tmp_path / "notice")
    assert run.wait() == 75, run.err
    assert all(200 < float(path.read_text().split()[-1]) <= 300 for path in tmp_path.glob("saved*"))


def test_a_signal_before_the_first_round_has_its_exit_code(start: Start) -> None:
    run = start(TRAINS, *TWO_NODES)
    run.until((run.directory / "ftslurm-runs").is_dir)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() in (143, 75), run.err
    assert "no attempt owns it" not in run.err
