"""Ranks that hang: found, named, shown with all others, ended; and healthy ones that only look like it, left alone."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import test_hanging_directory
import test_run
from hang_story import (
    NODES,
    QUICK,
    RANK,
    agents,
    all_showed_before_the_end,
    blamed,
    history,
    hung,
    pid_of,
    proc_state,
    stacks,
    state,
    workers,
)
from test_hanging_directory import Directory
from test_run import Start, Started

from ftslurm.monitor.timeouts import FLOOR_S, SECTION_FLOOR_S

start = test_run.start
shared = test_hanging_directory.shared


# Heartbeats


def test_a_rank_without_heartbeats_is_named_all_show_where_they_are_before_any_is_ended_and_the_job_goes_on(
    start: Start,
) -> None:
    run = start(RANK + "train(hangs=2)", *NODES, *QUICK)
    assert run.wait() == 0, run.err
    failure = hung(run)
    assert (failure["rank"], failure["node"], failure["step"]) == (2, "local1", 5)
    assert "no heartbeat for" in failure["message"]
    all_showed_before_the_end(run, 4)
    shown = stacks(run)
    assert [s.stacks.problem for s in shown.values()] == [None] * 4
    assert ["in fetch" in s.stacks.text for s in shown.values()] == [False, False, True, False]
    assert all("in train" in s.stacks.text for s in shown.values())
    assert [rank for rank, s in shown.items() if s.why] == [2]
    ends = workers(run)
    assert [ends[rank]["signal"] for rank in range(4)] == ["SIGTERM", "SIGTERM", "SIGKILL", "SIGTERM"]
    assert "round 1 hangs (rank 2: no heartbeat for" in run.err
    assert len(history(run)) == 2


def test_a_hang_uses_up_a_restart_and_without_one_the_report_names_rank_and_place(start: Start) -> None:
    run = start(RANK + "train(hangs=2)", *NODES, *QUICK, "--max-restarts", "0")
    assert run.wait() == 1
    assert hung(run)["rank"] == 2
    error = json.loads((run.run_dir / "rounds/000001/ranks/00002/error.json").read_text())
    assert error["ftslurm"]["kind"] == "hang"
    assert (blamed(run)["rank"], blamed(run)["node"], blamed(run)["kind"]) == (2, "local1", "hang")
    assert "no restarts allowed" in run.out + run.err
    for expected in ("rank 2", "local1", "fetch", "train.py"):
        assert expected in run.out, run.out


def test_the_signal_for_a_hung_rank_can_be_chosen_and_a_rank_that_ignores_it_is_killed_after_the_grace(
    start: Start,
) -> None:
    script = """
signal.signal(signal.SIGQUIT, lambda *_: up("signalled"))
def act():
    while True: time.sleep(600)
train(hangs=1, act=act)
"""
    run = start(RANK + script, "--nproc-per-node", "2", "--grace", "1", *QUICK, "--hang-signal", "QUIT")
    assert run.wait() == 0, run.err
    assert (run.directory / "signalled1.1").exists()
    assert workers(run)[1]["signal"] == "SIGKILL"


def test_a_rank_that_dies_before_its_first_heartbeat_leaves_no_trace_in_the_next_round(start: Start) -> None:
    script = """
if round_ == 1:
    if rank == 1:
        sys.exit(5)
    time.sleep(600)
end = time.monotonic() + 9
while time.monotonic() < end:
    ftslurm.heartbeat()
    time.sleep(0.02)
"""
    run = start(RANK + script, *NODES, "--initial-heartbeat-timeout", "6", "--heartbeat-timeout", "20")
    assert run.wait() == 0, run.err
    first, second = history(run)
    assert (first["failure"]["kind"], first["failure"]["rank"]) == ("exit", 1)
    assert second["outcome"] == "succeeded"
    assert "hangs" not in run.err


def test_a_rank_that_never_sends_its_first_heartbeat_is_found(start: Start) -> None:
    script = "if rank == 1 and round_ == 1: fetch()\ntrain()"
    run = start(RANK + script, "--nproc-per-node", "2", "--initial-heartbeat-timeout", "4")
    assert run.wait() == 0, run.err
    assert hung(run)["rank"] == 1
    assert "no first heartbeat" in hung(run)["message"]
    assert "in fetch" in stacks(run)[1].stacks.text


def test_ranks_that_have_finished_do_not_keep_a_hang_from_being_found(start: Start) -> None:
    run = start(RANK + "if rank < 2: sys.exit()\ntrain(hangs=3)", *NODES, *QUICK)
    assert run.wait() == 0, run.err
    assert hung(run)["rank"] == 3
    assert sorted(stacks(run)) == [2, 3]
    assert len(history(run)) == 2


def test_a_job_that_was_suspended_as_a_whole_goes_on_when_it_is_resumed(start: Start) -> None:
    run = start(RANK + "train()", *NODES, *QUICK, "--max-restarts", "0")
    for rank in range(4):
        pid_of(run, rank)
    # As `scontrol suspend` does; agents last, for a guardian continues an agent that is stopped alone.
    below = set(agents(run).values())
    pids = sorted((pid for pid, _ in run.marked()), key=lambda pid: pid in below)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(10)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    time.sleep(4)
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    assert "hangs" not in run.err and "lost" not in run.err, run.err


# Sections


def test_a_section_that_takes_long_and_may_is_not_a_hang(start: Start) -> None:
    script = """
for _ in range(20):
    with ftslurm.section("data"):
        time.sleep(0.01)
with ftslurm.section("checkpoint", timeout=60):
    time.sleep(6)
"""
    times = ("--section-timeouts", "data=2", "--out-of-section-timeout", "2", "--hang-timeout", "3")
    run = start(RANK + script, *times, "--max-restarts", "0")
    assert run.wait() == 0, run.err
    assert "hangs" not in run.err


def test_a_section_over_its_time_out_is_named(start: Start) -> None:
    script = """
for step in range(100000):
    with ftslurm.section("forward"):
        time.sleep(0.01)
    with ftslurm.section("data"):
        if rank == 1 and round_ == 1 and step == 3:
            fetch()
        time.sleep(0.01)
    if round_ > 1:
        break
"""
    run = start(RANK + script, *NODES, "--section-timeouts", "data=2,forward=30")
    assert run.wait() == 0, run.err
    assert hung(run)["rank"] == 1
    assert "section 'data' open for" in hung(run)["message"]
    all_showed_before_the_end(run, 4)


def test_a_rank_that_opens_no_section_for_too_long_is_named(start: Start) -> None:
    script = """
for step in range(100000):
    with ftslurm.section("data"):
        time.sleep(0.01)
    if rank == 1 and round_ == 1 and step == 3:
        fetch()
    if round_ > 1:
        break
"""
    run = start(RANK + script, *NODES, "--out-of-section-timeout", "2")
    assert run.wait() == 0, run.err
    assert hung(run)["rank"] == 1
    assert "out of any section for" in hung(run)["message"]
    all_showed_before_the_end(run, 4)


def test_time_outs_that_a_script_sets_hold_for_its_rank(start: Start) -> None:
    script = """
ftslurm.set_timeouts(heartbeat=2, sections={"data": 600})
with ftslurm.section("data"):
    train(hangs=1)
"""
    run = start(RANK + script, "--nproc-per-node", "2", "--heartbeat-timeout", "600", "--section-timeouts", "data=1")
    assert run.wait() == 0, run.err
    assert (hung(run)["rank"], len(history(run))) == (1, 2)
    assert "no heartbeat for" in hung(run)["message"]


def test_sections_that_were_all_ended_at_once_expire_no_more(start: Start) -> None:
    script = """
ftslurm.start_section("outer")
ftslurm.start_section("inner")
if rank == 0 or round_ > 1:
    ftslurm.end_all_sections()
time.sleep(4)
"""
    run = start(RANK + script, "--nproc-per-node", "2", "--section-timeouts", "outer=2,inner=2")
    assert run.wait() == 0, run.err
    # The other rank shows that they would have.
    assert hung(run)["rank"] == 1 and len(history(run)) == 2, run.err


def test_the_outer_section_expires_although_inner_ones_come_and_go(start: Start) -> None:
    script = """
with ftslurm.section("epoch"):
    for step in range(100000):
        with ftslurm.section("batch"):
            time.sleep(0.01)
        if round_ > 1:
            break
"""
    run = start(RANK + script, "--section-timeouts", "epoch=2,batch=60")
    assert run.wait() == 0, run.err
    assert "section 'epoch' open for" in hung(run)["message"]


# Ranks that cannot answer


def test_a_stopped_rank_is_reported_as_stopped_and_ended_and_the_job_goes_on(start: Start) -> None:
    run = start(RANK + "train(hangs=3, act=lambda: os.kill(os.getpid(), signal.SIGSTOP))", *NODES, *QUICK)
    assert run.wait() == 0, run.err
    assert hung(run)["rank"] == 3
    shown = stacks(run)
    assert "stopped (SIGSTOP)" in (shown[3].stacks.problem or "")
    assert all("in train" in shown[rank].stacks.text for rank in range(3))
    assert blamed(run)["rank"] == 3 and "stopped" in run.out
    assert workers(run)[3]["signal"] == "SIGKILL"


def test_a_stopped_rank_is_continued_so_that_a_milder_signal_reaches_it(start: Start) -> None:
    script = """
signal.signal(signal.SIGQUIT, lambda *_: (up("saved"), os._exit(3)))
train(hangs=1, act=lambda: os.kill(os.getpid(), signal.SIGSTOP))
"""
    run = start(RANK + script, "--nproc-per-node", "2", "--grace", "20", *QUICK, "--hang-signal", "SIGQUIT")
    assert run.wait() == 0, run.err
    assert (run.directory / "saved1.1").exists()


def reading(shared: Directory) -> str:
    """Return a script whose rank 1 reads a file on a file server in round 1, as a data loader does."""
    (shared.path / "shard").write_text("data")
    act = f"def act():\n    up('reads')\n    open({str(shared.path / 'shard')!r}).read()\n"
    return f"{RANK}{act}train(hangs=1, act=act)\n"


def test_a_rank_in_an_uninterruptible_read_is_reported_as_such_and_the_job_goes_on(
    start: Start, shared: Directory
) -> None:
    script = reading(shared)
    shared.hang()
    run = start(script, *NODES, *QUICK)
    assert run.wait() == 0, run.err
    assert hung(run)["rank"] == 1
    all_showed_before_the_end(run, 4)
    shown = stacks(run)
    assert "uninterruptible sleep (D)" in (shown[1].stacks.problem or ""), shown[1]
    assert dict(shown[1].stacks.facts)["State"].startswith("D")
    assert all("in train" in shown[rank].stacks.text for rank in (0, 2, 3))
    assert blamed(run)["rank"] == 1 and "uninterruptible" in run.out


def test_a_rank_that_not_even_sigkill_ends_is_waited_for_until_its_read_ends(start: Start, shared: Directory) -> None:
    script = reading(shared)
    shared.hang("hard")
    run = start(script, *NODES, *QUICK)
    try:
        pid = pid_of(run, 1, what="reads")
        run.until(lambda: "hanging in the kernel" in run.err, 60)
        assert proc_state(pid) == "D"
        assert hung(run)["rank"] == 1
        all_shown = stacks(run)
        assert sorted(all_shown) == [0, 1, 2, 3]
    finally:
        shared.answer()
    assert run.wait() == 0, run.err
    assert len(history(run)) == 2


# A shared directory that hangs too


ON_DEMAND = """
import signal
signal.signal(signal.SIGTERM, lambda *_: (up("signalled"), os._exit(0)))
def wait_for_it():
    while not os.path.exists("go"):
        ftslurm.heartbeat()
        time.sleep(0.02)
    fetch()
train(hangs=2, act=wait_for_it)
"""


def test_a_hang_is_found_and_ended_while_the_shared_directory_hangs_and_reported_afterwards(
    start: Start, shared: Directory, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "ftslurm-runs").symlink_to(shared.path)
    environment = {"FTSLURM_SHARED_DIR": str(shared.path), "TMPDIR": str(tmp_path / "tmp")}
    run = start(RANK + ON_DEMAND, *NODES, *QUICK, **environment)
    pids = [pid_of(run, rank) for rank in range(4)]
    shared.hang()
    (tmp_path / "go").touch()
    run.until(lambda: "hangs (rank 2: " in run.err, 30)
    # Its neighbour on the node gives its stacks, into a directory of the node.
    run.until(lambda: len([p for p in (tmp_path / "tmp").glob("**/hang.txt") if "in train" in p.read_text()]) >= 2, 30)
    run.until(lambda: proc_state(pids[2]) in ("", "Z"), 60)
    run.until((tmp_path / "signalled3.1").exists, 30)
    assert proc_state(pids[0]) not in ("", "Z")
    shared.answer()
    assert run.wait() == 0, run.err
    assert hung(run)["rank"] == 2
    shown = stacks(run)
    assert "in fetch" in shown[2].stacks.text
    assert "in train" in shown[3].stacks.text
    assert json.loads((run.run_dir / "rounds/000001/ranks/00002/error.json").read_text())["ftslurm"]["kind"] == "hang"


# Which processes are watched, and for what


def test_a_rank_that_never_opted_in_may_be_silent_for_longer_than_any_time_out(start: Start) -> None:
    script = "if rank == 0: time.sleep(5)\nelse: train()"
    times = ("--heartbeat-timeout", "1", "--out-of-section-timeout", "1", "--section-timeouts", "data=1")
    run = start(RANK + script, *times, "--max-restarts", "0")
    assert run.wait() == 0, run.err
    assert "hangs" not in run.err


def test_the_hang_time_out_finds_a_silent_rank_that_never_opted_in_and_not_one_that_prints(start: Start) -> None:
    script = """
if round_ == 1 and rank == 1:
    fetch()
end = time.monotonic() + 6
while time.monotonic() < end and round_ > 1 or round_ == 1:
    print("a line", flush=True)
    time.sleep(0.1)
"""
    run = start(RANK + script, "--nproc-per-node", "2", "--hang-timeout", "3", "--max-restarts", "1")
    assert run.wait() == 0, run.err
    assert [line.partition(": ")[2] for line in run.err.splitlines() if "hangs" in line] != []
    assert hung(run)["rank"] == 1
    assert "no sign of life for" in hung(run)["message"]
    assert [entry["outcome"] for entry in history(run)] == ["failed", "succeeded"]


def test_steps_are_a_sign_of_life_for_the_hang_time_out(start: Start) -> None:
    script = """
for step in range(120):
    ftslurm.progress(step)
    time.sleep(0.05)
"""
    run = start(RANK + script, "--hang-timeout", "3", "--max-restarts", "0")
    assert run.wait() == 0, run.err
    assert "hangs" not in run.err


def test_after_workload_finished_an_epilogue_may_take_long(start: Start) -> None:
    script = "ftslurm.start_section('data')\nftslurm.heartbeat()\nftslurm.workload_finished()\ntime.sleep(6)"
    times = ("--heartbeat-timeout", "1", "--section-timeouts", "data=1", "--hang-timeout", "3")
    run = start(RANK + script, *times, "--max-restarts", "0")
    assert run.wait() == 0, run.err
    assert "hangs" not in run.err


def test_a_forked_child_is_not_its_rank(start: Start) -> None:
    script = """
ftslurm.heartbeat()
child = os.fork()
if child == 0:
    # As a data-loader process that was copied with all its rank knew: neither its reports nor its end are the rank's.
    for _ in range(50):
        ftslurm.heartbeat()
        ftslurm.start_section("data")
        ftslurm.workload_finished()
    os.kill(os.getpid(), signal.SIGSEGV)
os.waitpid(child, 0)
up("forked")
if round_ == 1:
    while not os.path.exists("go"):
        ftslurm.heartbeat()
        time.sleep(0.02)
    fetch()
"""
    run = start(RANK + script, "--heartbeat-timeout", "2", "--section-timeouts", "data=1")
    pid_of(run, 0, what="forked")
    time.sleep(1.5)  # a section that the child had opened would have expired
    (run.directory / "go").touch()
    assert run.wait() == 0, run.err
    assert "no heartbeat" in hung(run)["message"]
    assert len(history(run)) == 2


def test_a_child_that_beats_for_a_rank_does_not_hide_its_hang(start: Start) -> None:
    script = """
ftslurm.heartbeat()
if round_ == 1:
    if os.fork() == 0:
        while True:
            ftslurm.heartbeat()
            ftslurm.progress(1)
            time.sleep(0.05)
    fetch()
"""
    run = start(RANK + script, *QUICK)
    assert run.wait() == 0, run.err
    assert "no heartbeat for" in hung(run)["message"]
    assert run.marked() == []


# Time-outs that are learned


SPANS = """
print("timeouts", os.environ["FTSLURM_TIMEOUTS"], flush=True)
for step in range(10):
    with ftslurm.section("data"):
        time.sleep(0.02)
    ftslurm.heartbeat()
if round_ == 1:
    time.sleep(1)
    raise ValueError("again")
"""


def printed_timeouts(run: Started, round_: int) -> dict[str, object]:
    text = (run.run_dir / f"rounds/{round_:06d}/ranks/00001/stdout.log").read_text()
    found: dict[str, object] = json.loads(text.partition("timeouts ")[2])
    return found


def test_learned_time_outs_reach_the_next_rounds_workers_and_the_next_run(start: Start) -> None:
    run = start(RANK + SPANS, *NODES, "--rdzv-id", "again", "--section-timeouts", "other=5")
    assert run.wait() == 0, run.err
    assert "learned" not in printed_timeouts(run, 1)
    learned = printed_timeouts(run, 2)["learned"]
    spans = dict.fromkeys(("heartbeat_s", "initial_s", "out_of_section_s"), FLOOR_S)
    assert learned == {"timeouts": {**spans, "sections": {"data": SECTION_FLOOR_S}}, "rounds": 1}
    assert printed_timeouts(run, 2)["asked"] == {"sections": {"other": 5.0}}
    assert state(run)["learned"]["rounds"] == 2
    run = start(RANK + SPANS, *NODES, "--rdzv-id", "again")
    assert run.wait() == 0, run.err
    assert printed_timeouts(run, 3)["learned"] == {**learned, "rounds": 2}


def test_what_the_user_asks_for_holds_before_what_was_learned(start: Start) -> None:
    run = start(RANK + "train(hangs=0)", "--rdzv-id", "again", *QUICK)
    assert run.wait() == 0, run.err
    assert state(run)["learned"]["timeouts"]["heartbeat_s"] == FLOOR_S
    (run.directory / "done").unlink(missing_ok=True)
    script = "train() if round_ > 3 else (ftslurm.heartbeat(), fetch())"
    run = start(RANK + script, "--rdzv-id", "again", *QUICK)
    assert run.wait() == 0, run.err
    assert "time-out 2 s" in hung(run, 3)["message"]


# With torch


COLLECTIVE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
def load():
    if round_ == 1 and rank == 1 and step == 3:
        fetch()
for step in range(8):
    ftslurm.heartbeat()
    load()
    dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""


def test_of_ranks_whose_heartbeats_all_stop_the_one_that_is_not_in_the_collective_is_the_suspect(start: Start) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    run = start(RANK + COLLECTIVE, *NODES, "--heartbeat-timeout", "4", "--max-restarts", "1")
    assert run.wait(180) == 0, run.err
    hung(run)  # Whichever expired first.
    all_showed_before_the_end(run, 4)
    shown = stacks(run)
    assert "in fetch" in shown[1].stacks.text
    assert all("in all_reduce" in shown[rank].stacks.text for rank in (0, 2, 3))
    found = blamed(run)
    assert (found["rank"], found["node"], found["where"]["function"]) == (1, "local0", "fetch")


TIMER = """
import torch.distributed.elastic.timer as timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
for step in range(100000):
    with timer.expires(after=60):
        time.sleep(0.01)
    if round_ == 1 and rank == 3 and step == 3:
        with timer.expires(after=1):
            fetch()
    if round_ > 1 and step > 5:
        break
"""


def test_torchs_own_timer_ends_its_rank_and_never_the_agent(start: Start) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    run = start(RANK + TIMER, *NODES)
    assert run.wait(180) == 0, run.err
    failure = hung(run)
    assert failure["rank"] == 3
    assert "timer" in failure["message"] and "expired" in failure["message"]
    all_showed_before_the_end(run, 4)
    assert "in fetch" in stacks(run)[3].stacks.text
    assert workers(run)[3]["signal"] == "SIGKILL"
    # The agents are the same ones as before.
    assert state(run)["lost"] == [] and [entry["nodes"] for entry in history(run)] == [["local0", "local1"]] * 2


# What the user writes wrongly


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--heartbeat-timeout", "x", "--heartbeat-timeout 'x'"),
        ("--heartbeat-timeout", "-1", "--heartbeat-timeout '-1'"),
        ("--heartbeat-timeout", "nan", "--heartbeat-timeout 'nan'"),
        ("--initial-heartbeat-timeout", "0", "--initial-heartbeat-timeout '0'"),
        ("--section-timeouts", "a", "--section-timeouts 'a'"),
        ("--section-timeouts", "a=", "--section-timeouts ''"),
        ("--section-timeouts", "a=1,=2", "--section-timeouts '=2'"),
        ("--out-of-section-timeout", "", "--out-of-section-timeout ''"),
        ("--warmup-steps", "many", "--warmup-steps"),
        ("--warmup-timeout", "long", "--warmup-timeout"),
        ("--hang-timeout", "1e999", "--hang-timeout '1e999'"),
        ("--hang-signal", "FOO", "--hang-signal"),
        ("--hang-signal", "0", "--hang-signal"),
    ],
)
def test_a_time_out_that_is_none_is_one_line_and_code_2(tmp_path: Path, option: str, value: str, expected: str) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    run = Started(tmp_path, option, value, "train.py")
    assert run.wait() == 2, run.err
    assert expected in run.err
    assert len(run.err.splitlines()) == 1, run.err
    assert not (tmp_path / "started").exists()


# What happens while stacks are collected


DEAF = """
def deaf():
    # No tool shows the stacks of a process that takes no signals: collecting takes as long as it may.
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
    fetch()
def until_it_hangs(act):
    while not os.path.exists("hangs"):
        ftslurm.heartbeat()
        time.sleep(0.02)
    act()
"""


def collecting(start: Start, script: str, *options: str) -> Started:
    """Return a run in which the agents of both nodes collect stacks, and rank 1 keeps theirs from being complete."""
    run = start(RANK + DEAF + script, *NODES, *QUICK, *options)
    run.until(lambda: "hangs (rank 1: " in run.err, 60)
    # The request to collect is in the state: an agent that is killed before gives none to the others.
    requested = '"hang":{'
    run.until(lambda: any(requested in path.read_text() for path in (run.run_dir / "state").glob("*.json")), 60)
    (run.directory / "hangs").touch()
    return run


def test_sigterm_while_stacks_are_collected_ends_the_job_within_the_grace(start: Start) -> None:
    run = collecting(start, "train(hangs=1, act=deaf)")
    began = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(30) in (1, 143), run.err
    assert time.monotonic() - began < 20
    assert run.marked() == []
    assert "Traceback" not in run.err


def test_a_rank_that_fails_while_stacks_are_collected_is_not_the_reason(start: Start) -> None:
    script = """
def boom():
    up("failed")
    raise ValueError("my peer does not answer")
train(hangs=1, act=deaf) if rank != 2 else train(hangs=2, act=lambda: until_it_hangs(boom))
"""
    run = collecting(start, script)
    pid_of(run, 2, what="failed")
    assert run.wait() == 0, run.err
    failure = hung(run)
    assert failure["rank"] == 1
    shown = stacks(run)
    assert "blocks the signal" in (shown[1].stacks.problem or "")
    assert "in train" in shown[0].stacks.text and "in train" in shown[3].stacks.text
    assert len(history(run)) == 2


@pytest.mark.parametrize("node", ["local0", "local1"])
def test_an_agent_that_is_killed_while_stacks_are_collected_does_not_keep_the_others(start: Start, node: str) -> None:
    run = collecting(start, "train(hangs=1, act=deaf)", "--nnodes", "1:2", "--node-timeout", "4", "--last-call", "1")
    os.kill(agents(run)[node], signal.SIGKILL)
    assert run.wait() == 0, run.err
    first, *_, last = history(run)
    assert first["outcome"] in ("failed", "node-lost")
    # With the agent that its guardian has started in its place, or without, if that comes too late.
    assert last["outcome"] == "succeeded"
    other = range(2, 4) if node == "local0" else range(2)
    assert set(other) <= set(stacks(run))


@pytest.mark.parametrize(("restarts", "coordinates"), [(0, False), (1, False), (0, True)])
def test_a_rank_that_waits_for_those_of_a_dead_node_is_not_reported_to_hang(
    start: Start, restarts: int, coordinates: bool
) -> None:
    # Its time-out is shorter than the node's: it expires while no agent knows yet that the node is dead.
    script = """
import glob
def meet(step):
    open(f"met{step}.{rank}", "w").close()
    while len(glob.glob(f"met{step}.*")) < 4:
        time.sleep(0.01)
if round_ == 1:
    for step in range(100000):
        ftslurm.heartbeat()
        ftslurm.progress(step)
        if step == 3:
            up()
        meet(step)
"""
    options = ("--nnodes", "1:2", "--heartbeat-timeout", "1", "--node-timeout", "6", "--last-call", "1")
    run = start(RANK + script, *NODES, *options, "--max-restarts", str(restarts))
    for rank in range(4):
        pid_of(run, rank)
    leader = state(run)["coordinator"]["node"]
    (dead,) = (node for node in agents(run) if (node == leader) is coordinates)
    agent = agents(run)[dead]
    guardian = int(Path(f"/proc/{agent}/stat").read_text().rpartition(") ")[2].split()[1])
    # Stopped first, so that it cannot report its agent's end: all that is left of the node is its silence.
    for pid, number in ((guardian, signal.SIGSTOP), (agent, signal.SIGKILL), (guardian, signal.SIGKILL)):
        os.kill(pid, number)
    run.wait(90)
    first, *rest = history(run)
    assert [entry["outcome"] for entry in rest] == ["succeeded"] * restarts, run.err
    assert (first["outcome"], first["failure"]) == ("node-lost", None), run.err
    assert f"{dead} was lost: no heartbeat of its agent" in first["reason"]
    assert " hangs (rank " in run.err
    assert (blamed(run)["kind"], blamed(run)["node"], blamed(run)["rank"]) == ("node-lost", dead, None)


def test_what_is_no_message_is_survived_and_counted_in_the_rounds_node_file(start: Start) -> None:
    script = """
if round_ == 1:
    fd = os.open(os.environ["FTSLURM_PIPE"], os.O_WRONLY)
    os.write(fd, b"no message\\n")
train()
"""
    run = start(RANK + script, "--nproc-per-node", "2", *QUICK)
    run.until(lambda: (run.directory / "up1.1").exists(), 60)
    (run.directory / "done").touch()
    assert run.wait() == 0, run.err
    node = next((run.run_dir / "rounds/000001/nodes").glob("*.json"))
    assert json.loads(node.read_text())["messages"] == {"garbage": 2}
