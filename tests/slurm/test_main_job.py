"""The main job on a real Slurm: it succeeds, survives, and says why when it does not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.slurm.conftest import Lab

STEPS = """\
import os, signal, subprocess, sys, time
import ftslurm
rank, first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
def train(steps, at=None, act=None):
    for step in range(steps):
        ftslurm.progress(step)
        if act and step == at:
            act()
        time.sleep(0.05)
    print("rank", rank, "of", os.environ["WORLD_SIZE"], "done on", os.environ["SLURMD_NODENAME"], flush=True)
"""


def script(directory: Path, text: str) -> None:
    (directory / "train.py").write_text(STEPS + text)


def rank_logs(run_dir: Path, round_: int) -> str:
    return "".join(p.read_text() for p in sorted(run_dir.glob(f"rounds/{round_:06d}/ranks/*/stdout.log")))


def test_two_nodes_with_two_workers_each_succeed(lab: Lab, work: Path) -> None:
    script(work, "train(3)")
    job = lab.submit(work, "exec ftsrun --nproc-per-node 2 train.py")
    assert job.wait() == "COMPLETED", job.explain()
    logs = rank_logs(job.run_dir, 1)
    assert all(f"rank {rank} of 4 done on t{1 + rank // 2}" in logs for rank in range(4)), logs
    assert "succeeded: 1 round" in job.output


def test_a_rank_that_raises_in_round_1_lets_the_job_succeed_in_round_2(lab: Lab, work: Path) -> None:
    script(work, "def boom(): raise ValueError('boom')\ntrain(8, 3, boom if first and rank == 3 else None)")
    job = lab.submit(work, "exec ftsrun --nproc-per-node 2 train.py")
    assert job.wait() == "COMPLETED", job.explain()
    assert "rank 3 on t2" in job.output and "ValueError: boom" in job.output, job.output
    assert "done" in rank_logs(job.run_dir, 2)


def test_a_rank_killed_by_sigkill_is_named_and_survived(lab: Lab, work: Path) -> None:
    script(work, "train(8, 3, (lambda: os.kill(os.getpid(), signal.SIGKILL)) if first and rank == 1 else None)")
    job = lab.submit(work, "exec ftsrun --nproc-per-node 2 train.py")
    assert job.wait() == "COMPLETED", job.explain()
    assert "SIGKILL" in job.output and "rank 1 on t1" in job.output, job.output


def test_a_used_up_budget_fails_the_job_and_the_report_names_rank_node_exception_and_step(lab: Lab, work: Path) -> None:
    script(work, "def boom(): raise ValueError('always')\ntrain(30, 4, boom if rank == 2 else None)")
    job = lab.submit(work, "exec ftsrun --nproc-per-node 2 --max-restarts 1 train.py")
    assert job.wait() == "FAILED", job.explain()
    assert job.facts()["ExitCode"] == "1:0"
    report = json.loads((job.run_dir / "report.json").read_text())
    assert report["schema"] == "ftslurm/report"
    tail = job.output[job.output.index("failed:") :]
    for expected in ("rank 2", "t2", "ValueError: always", "step 4", "train.py"):
        assert expected in tail, f"{expected!r} is missing in\n{job.output}"


ORPHANS = """
# What data-loader processes do to a cluster: a child in a session of its own that no process waits for.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
train(2000 if first else 3)
"""


@pytest.mark.parametrize(
    ("victim", "end", "reasons"),
    [
        ("agent", "COMPLETED", ("t2 left: its agent was killed by SIGKILL; restart 1 of 3",)),
        # When the guardian dies Slurm may kill the rest of the task before the agent can publish anything.
        ("guardian", "FAILED", ("t2 was lost", "guardian process was killed")),
    ],
)
def test_a_killed_agent_costs_a_restart_and_a_killed_guardian_its_node_and_neither_leaves_an_orphan(
    lab: Lab, work: Path, victim: str, end: str, reasons: tuple[str, ...]
) -> None:
    script(work, ORPHANS)
    job = lab.submit(work, "exec ftsrun --nproc-per-node 2 --join-timeout 10 train.py")
    lab.until(lambda: len([p for p in lab.processes(str(work)) if "sleep(600)" in p]) == 4, 40, job.explain)
    guardians = {}
    for line in lab.processes(f"SLURM_JOB_ID={job.id}"):
        pid, command = line.split(" ", 1)
        if "ftslurm run" in command and "srun" not in command.split()[0]:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"SLURMD_NODENAME=t2" in environ and b"SLURM_PROCID=1" in environ:
                guardians[int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ")[1].split()[1])] = int(pid)
    # The agent is the one of the two whose parent is the other.
    agent = next(pid for parent, pid in guardians.items() if parent in guardians.values())
    guardian = next(parent for parent, pid in guardians.items() if pid == agent)
    os.kill(agent if victim == "agent" else guardian, signal.SIGKILL)
    assert job.wait(60) == end, job.explain()
    assert any(reason in job.output for reason in reasons), job.output
    assert [p for p in lab.processes(str(work)) if "sleep(600)" in p or "ftslurm" in p] == []


def test_scancel_ends_everything_within_the_grace_and_leaves_nothing(lab: Lab, work: Path) -> None:
    script(work, "signal.signal(signal.SIGTERM, lambda *a: print('asked to stop', flush=True))\n" + ORPHANS)
    job = lab.submit(work, "exec ftsrun --nproc-per-node 2 train.py")
    lab.until(lambda: len([p for p in lab.processes(str(work)) if "sleep(600)" in p]) == 4, 40, job.explain)
    lab.command("scancel", job.id, check=True)
    assert job.wait(20) == "CANCELLED", job.explain()
    lab.until(lambda: not [p for p in lab.processes(str(work)) if "sleep(600)" in p], 5, job.explain)
    assert rank_logs(job.run_dir, 1).count("asked to stop") == 4
    assert "cancelled by" in lab.command("ftslurm", "report", str(job.run_dir)).stdout


def test_a_node_that_dies_ends_the_job_with_that_reason(lab: Lab, work: Path) -> None:
    script(work, "train(2000)")
    job = lab.submit(work, "exec ftsrun --node-timeout 3 --join-timeout 10 train.py", nodes=2)
    job.until_output("round 1: 2 ranks")
    lab.until(lambda: (job.run_dir / "rounds/000001/nodes/t2.json").exists(), 20, job.explain)
    assert lab.lab("kill-node", "t2").returncode == 0
    try:
        assert job.wait(60) == "FAILED", job.explain()
        assert "t2 was lost" in job.output, job.output
    finally:
        lab.lab("revive-node", "t2")


def test_a_requeued_job_goes_on_counting_its_rounds(lab: Lab, work: Path) -> None:
    script(work, "train(2000 if os.environ.get('SLURM_RESTART_COUNT') is None else 3)")
    job = lab.submit(work, "exec ftsrun train.py", "--requeue")
    job.until_output("round 1: 2 ranks")
    lab.command("scontrol", "requeue", job.id, check=True)
    lab.until(lambda: job.facts().get("Restarts") == "1", 30, job.explain)
    lab.command("scontrol", "update", f"jobid={job.id}", "starttime=now")
    lab.until(lambda: job.state == "COMPLETED", 60, job.explain)
    assert "round 2: 2 ranks" in job.output and (job.run_dir / "attempts" / f"{job.id}.1").is_dir()


def test_a_failed_stage_and_the_next_one_are_two_runs_and_a_requeue_finds_both_again(lab: Lab, work: Path) -> None:
    script(
        work, "sys.exit(5) if 'fail' in sys.argv else train(2000 if not os.environ.get('SLURM_RESTART_COUNT') else 3)"
    )
    job = lab.submit(work, "ftsrun --max-restarts 0 train.py fail\nexec ftsrun train.py", "--requeue")
    second = job.run_dir.with_name(f"{job.run_dir.name}-2")
    lab.until(lambda: job.output.count("round 1: 2 ranks") == 2, 60, job.explain)
    lab.command("scontrol", "requeue", job.id, check=True)
    lab.until(lambda: job.facts().get("Restarts") == "1", 30, job.explain)
    lab.command("scontrol", "update", f"jobid={job.id}", "starttime=now")
    lab.until(lambda: job.state == "COMPLETED", 60, job.explain)
    for run in (job.run_dir, second):
        assert sorted(path.name for path in (run / "rounds").iterdir()) == ["000001", "000002"], job.output
    assert f"{second.name} succeeded" in job.output
    done = lab.command("ftslurm", "report", job.id, cwd=work)
    assert f"{job.run_dir.name}, {second.name}" in done.stderr and second.name in done.stdout.splitlines()[0]


def test_the_report_is_there_while_the_job_runs(lab: Lab, work: Path) -> None:
    script(work, "train(2000)")
    job = lab.submit(work, "exec ftsrun train.py")
    lab.until(lambda: (job.run_dir / "rounds/000001/nodes/t2.json").exists(), 20, job.explain)
    done = lab.command("ftslurm", "report", job.id, cwd=work)
    assert done.returncode == 0 and "running" in done.stdout, done.stdout + done.stderr


def test_each_task_of_an_array_is_a_run_of_its_own(lab: Lab, work: Path) -> None:
    script(work, "train(1)")
    job = lab.submit(work, "exec ftsrun train.py", "--array=3,5", nodes=1)
    runs = work / "ftslurm-runs"
    lab.until(lambda: len(list(runs.glob("job-*/report.txt"))) == 2, 60, job.explain)
    assert sorted(p.name for p in runs.iterdir()) == [f"job-{job.id}_3", f"job-{job.id}_5"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "program"),
        ("nothere.py", "nothere.py: no such script"),
        ("--nnodes 3:2 train.py", "--nnodes 3:2"),
        ("--nnodes 9 train.py", "has only 2 nodes"),
        ("--nproc-per-node 0 train.py", "--nproc-per-node 0"),
        ("--nproc-per-node gpu train.py", "no GPU found"),
        ("--frobnicate train.py", "--frobnicate"),
    ],
)
def test_bad_input_gives_one_line_and_code_2_and_starts_nothing(
    lab: Lab, work: Path, arguments: str, expected: str
) -> None:
    script(work, "train(1)")
    job = lab.submit(work, f"exec ftsrun {arguments}")
    assert job.wait() == "FAILED"
    assert job.facts()["ExitCode"] == "2:0", job.explain()
    assert expected in job.output, job.output
    if arguments:
        assert len(job.output.splitlines()) == 1, job.output


def test_an_unmodified_torchrun_script_trains_with_ddp(lab: Lab, work: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install ftslurm[torch]")
    (work / "train.py").write_text("""\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        if step == 2 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise RuntimeError("lost my gradients")
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    print("trained", dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
""")
    job = lab.submit(work, "exec ftsrun --nproc-per-node 2 train.py")
    assert job.wait(120) == "COMPLETED", job.explain()
    # gloo may lose a connection while it is being closed: one more round, which is the program's.
    newest = len(list((job.run_dir / "rounds").iterdir()))
    assert sorted(rank_logs(job.run_dir, newest).split("\n"))[1:] == [f"trained {r} 4 {r % 2}" for r in range(4)]
    assert "RuntimeError: lost my gradients" in job.output and "rank 1 on t1" in job.output, job.output
