"""The end of a job on a real Slurm: whatever died, ftsrun or the agents print the report and the job ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Job, Lab

TRAIN = """\
import os, time
import ftslurm
open(f"up.{os.environ['FTSLURM_ROUND']}.{os.environ['RANK']}.{os.environ['SLURMD_NODENAME']}", "w").close()
for step in range(4000):
    ftslurm.progress(step)
    with open(f"step.{os.environ['RANK']}", "w") as file:
        file.write(str(step))
    time.sleep(0.05)
    if os.path.exists("finish"):
        break
"""
CONNECTED = """\
# As torch's ranks do: each holds a connection to rank 0, and raises when it breaks.
import os, socket, time
import ftslurm
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    listener = socket.create_server(("", address[1]))
    peers = [listener.accept()[0] for _ in range(world - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(address)]
            break
        except OSError:
            time.sleep(0.1)
open(f"up.{os.environ['FTSLURM_ROUND']}.{rank}.{os.environ['SLURMD_NODENAME']}", "w").close()
for step in range(4000):
    ftslurm.progress(step)
    last = rank == 0 and os.path.exists("finish")
    for peer in peers:
        if rank == 0:
            peer.sendall(b"!" if last else b".")
        byte = peer.recv(1)
        if not byte:
            raise ConnectionError("Connection closed by peer")
        if rank:
            peer.sendall(byte)
            last = byte == b"!"
    if last:
        break
    time.sleep(0.05)
"""
QUICK = "--node-timeout 3 --heartbeat 0.5 --health off"


def ranks(work: Path, round_: int) -> dict[int, str]:
    """Return on which node each rank ran in that round."""
    found = [path.name.split(".") for path in work.glob(f"up.{round_}.*")]
    return {int(rank): node for _, _, rank, node in found}


def state(job: Job) -> dict[str, Any]:
    newest = max((job.run_dir / "state").glob("0*.json"))
    value: dict[str, Any] = json.loads(newest.read_text())["value"]
    return value


def trained(work: Path, steps: int) -> bool:
    """Return whether both ranks have made so many steps."""
    found = [path.read_text() for path in work.glob("step.*")]
    return len(found) == 2 and all(int(text or 0) >= steps for text in found)


def ended(job: Job, seconds: float = 90) -> str:
    """Wait until Slurm has ended the job; return its state and exit code."""
    found = job.wait(seconds)
    return f"{found} {job.facts()['ExitCode']}"


def test_a_job_whose_batch_host_dies_ends_with_its_exit_code_though_a_broken_connection_failed_first(
    lab: Lab, work: Path
) -> None:
    (work / "train.py").write_text(CONNECTED)
    job = lab.submit(work, f"exec ftsrun {QUICK} --join-timeout 15 train.py", nodes=2)
    lab.until(lambda: len(ranks(work, 1)) == 2, 30, job.explain)
    lab.lab("kill-node", lab.nodes[0])
    try:
        assert ended(job) == "FAILED 1:0", job.explain()
        assert job.output.count("FAILED: ") == 1, job.output
        assert "ConnectionError" in job.output and "1 node left, at least 2 needed" in job.output, job.output
    finally:
        lab.lab("revive-node", lab.nodes[0])


def test_a_job_that_succeeds_after_its_batch_host_died_is_completed(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(CONNECTED)
    job = lab.submit(work, f"exec ftsrun --nnodes 2 {QUICK} train.py", nodes=3)
    lab.until(lambda: len(ranks(work, 1)) == 2, 30, job.explain)
    lab.lab("kill-node", lab.nodes[0])
    try:
        lab.until(lambda: len(ranks(work, 2)) == 2, 60, job.explain)
        (work / "finish").touch()
        assert ended(job) == "COMPLETED 0:0", job.explain()
        assert job.output.count("succeeded after 1") == 1, job.output
    finally:
        lab.lab("revive-node", lab.nodes[0])


def test_a_batch_host_that_takes_no_part_in_the_round_may_die(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    check = f"test $SLURMD_NODENAME != {lab.nodes[0]} || exit 2"
    options = f"--nnodes 2 --node-timeout 3 --heartbeat 0.5 --health-command '{check}'"
    job = lab.submit(work, f"exec ftsrun {options} train.py", nodes=3)
    lab.until(lambda: len(ranks(work, 1)) == 2, 30, job.explain)
    assert set(ranks(work, 1).values()) == set(lab.nodes[1:])
    lab.lab("kill-node", lab.nodes[0])
    try:
        (work / "finish").touch()
        assert ended(job) == "COMPLETED 0:0", job.explain()
        assert "succeeded: 1 round" in job.output, job.output
    finally:
        lab.lab("revive-node", lab.nodes[0])


def test_a_batch_host_may_die_while_a_round_forms(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    # The last node is unhealthy, so that the first round waits for it.
    check = f"test $SLURMD_NODENAME != {lab.nodes[2]} || exit 2"
    options = "--node-timeout 3 --heartbeat 0.5 --join-timeout 20"
    job = lab.submit(work, f"exec ftsrun {options} --health-command '{check}' train.py", nodes=3)
    nodes = job.run_dir / "nodes"
    lab.until(lambda: len(list(nodes.glob("*.json"))) == 3 and state(job)["phase"] == "forming", 30, job.explain)
    lab.lab("kill-node", lab.nodes[0])
    try:
        assert ended(job, 150) == "FAILED 1:0", job.explain()
        assert "at least 3 needed" in job.output, job.output
    finally:
        lab.lab("revive-node", lab.nodes[0])


def test_a_node_that_reboots_before_slurm_notices_does_not_hold_up_the_end(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, f"exec ftsrun --nnodes 2 {QUICK} train.py", nodes=3)
    lab.until(lambda: len(ranks(work, 1)) == 2, 30, job.explain)
    lab.lab("kill-node", lab.nodes[1])
    lab.lab("revive-node", lab.nodes[1])
    lab.until(lambda: len(ranks(work, 2)) == 2, 60, job.explain)
    (work / "finish").touch()
    assert ended(job) == "COMPLETED 0:0", job.explain()
    assert job.output.count("succeeded after 1") == 1, job.output


def test_a_batch_host_that_reboots_before_slurm_notices_does_not_hold_up_the_end(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, f"exec ftsrun --nnodes 2 {QUICK} train.py", nodes=3)
    lab.until(lambda: len(ranks(work, 1)) == 2, 30, job.explain)
    lab.lab("kill-node", lab.nodes[0])
    lab.lab("revive-node", lab.nodes[0])
    (work / "finish").touch()
    assert ended(job) == "COMPLETED 0:0", job.explain()
    assert job.output.count("succeeded after 1") == 1, job.output


def test_a_step_daemon_that_is_killed_does_not_hold_up_the_end(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, f"exec ftsrun {QUICK} train.py", nodes=2)
    # Of a step that has just begun, Slurm notices the death.
    lab.until(lambda: trained(work, 20), 40, job.explain)
    for line in lab.lab("procs", lab.nodes[1]).stdout.splitlines():
        if f"slurmstepd: [{job.id}.0" in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)
            break
    else:
        pytest.fail(lab.lab("procs", lab.nodes[1]).stdout)
    lab.until(lambda: trained(work, 80), 40, job.explain)
    (work / "finish").touch()
    assert ended(job) == "COMPLETED 0:0", job.explain()
    assert job.output.count(f"job-{job.id} succeeded") == 1, job.output


def test_a_stop_after_the_batch_host_died_ends_the_job_with_its_report(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, f"exec ftsrun --nnodes 2 {QUICK} train.py", nodes=3)
    lab.until(lambda: len(ranks(work, 1)) == 2, 30, job.explain)
    lab.lab("kill-node", lab.nodes[0])
    try:
        lab.until(lambda: len(ranks(work, 2)) == 2, 60, job.explain)
        lab.command("scancel", "--signal=TERM", job.id, check=True)
        assert job.wait(60) == "CANCELLED", job.explain()
        assert job.output.count(f"job-{job.id} was stopped: SIGTERM from outside") == 1, job.output
    finally:
        lab.lab("revive-node", lab.nodes[0])


def test_scancel_with_a_lost_node_prints_the_report_before_slurm_kills_the_script(lab: Lab, work: Path) -> None:
    (work / "train.py").write_text(TRAIN)
    job = lab.submit(work, "exec ftsrun --nnodes 2 --node-timeout 2 --heartbeat 0.5 --health off train.py", nodes=3)
    lab.until(lambda: len(ranks(work, 1)) == 2, 30, job.explain)
    lab.lab("kill-node", lab.nodes[1])
    try:
        lab.until(lambda: len(ranks(work, 2)) == 2, 60, job.explain)
        lab.command("scancel", job.id, check=True)
        assert job.wait(40) == "CANCELLED", job.explain()
        assert f"files: {job.run_dir}" in job.output, job.output
    finally:
        lab.lab("revive-node", lab.nodes[1])
