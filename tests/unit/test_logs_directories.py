"""Directories of a job's files, in which the file that has the reason is not the one of the rank that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.report.pipeline import report_of_logs
from ftslurm.report.text import render

STEPS = "".join(f"it={i} mem={i}.1GB\n" for i in range(9))
CLOSED = """[rank{r}]: Traceback (most recent call last):
[rank{r}]:   File "/home/ann/train.py", line 5, in <module>
[rank{r}]:     dist.all_reduce(t)
[rank{r}]:   File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank{r}]:     work.wait()
[rank{r}]: RuntimeError: [/pytorch/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:7
"""
DESCRIBED = """Name:             job-worker-0
Containers:
  pytorch:
    State:          Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Limits:
      memory:          64Gi
"""
SLOW_DOWN = """Traceback (most recent call last):
  File "/home/ann/data.py", line 12, in prepare_shard
    raise error
botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation
"""
DIRECTORIES: dict[str, tuple[dict[str, str], str]] = {
    "a shell names a killed process in a file of its own": (
        {
            "rank0.log": STEPS + CLOSED.format(r=0),
            "rank1.log": STEPS,
            "rank2.log": STEPS + CLOSED.format(r=2),
            "slurm-4711.out": "run.sh: line 9: 29786 Killed   RANK=$r python train.py > rank$r.log 2>&1\n"
            "pid 29786 exit 137\n",
        },
        "rank 1: killed by SIGKILL",
    ),
    "kubectl describes a pod that was killed for memory": (
        {
            "master-0.log": "[rank 0] step 1\n[rank 0] step 2\n" + CLOSED.format(r=0),
            "worker-0.log": "[rank 1] step 1, rss 58 GiB\n[rank 1] step 2, rss 63 GiB\n",
            "describe-worker-0.txt": DESCRIBED,
        },
        "rank 1 on job-worker-0: killed by the kernel: its memory limit was reached",
    ),
    "a launcher's console beside its ranks' texts": (
        {
            "rank0.stderr.txt": "",
            "rank0.stdout.txt": STEPS,
            "rank3.stderr.txt": SLOW_DOWN,
            "rank3.stdout.txt": STEPS,
            "console.log": "ERROR:composer.cli.launcher:Rank 3 crashed with exit code 1.\n"
            "Global rank 0 (PID 771) exited with code -15\nGlobal rank 3 (PID 774) exited with code 1\n"
            "ERROR:composer.cli.launcher:Global rank 0 (PID 771) exited with code -15\n",
        },
        "rank 3: ClientError: An error occurred (SlowDown) when calling the GetObject operation at",
    ),
    "torchrun's folders without its console": (
        {
            "none_abcdefgh/attempt_0/0/stderr.log": "",
            "none_abcdefgh/attempt_0/0/stdout.log": STEPS,
            "none_abcdefgh/attempt_0/1/stderr.log": CLOSED.format(r=1),
            "none_abcdefgh/attempt_0/1/stdout.log": STEPS,
            "none_abcdefgh/attempt_0/2/stderr.log": "",
            "none_abcdefgh/attempt_0/2/stdout.log": STEPS,
        },
        "no failure in the logs of ranks 0, 2: one of them may have ended first without a word",
    ),
    "an error of which its rank says what it does instead": (
        {
            "none_abcdefgh/attempt_0/0/stderr.log": "",
            "none_abcdefgh/attempt_0/0/stdout.log": "loss 2.0\n" * 5,
            "none_abcdefgh/attempt_0/1/stderr.log": "ERROR: cache /c.bin not found, rebuilding\n" * 3,
            "none_abcdefgh/attempt_0/1/stdout.log": "loss 2.0\n" * 5,
        },
        "no failure found",
    ),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_the_files_of_a_directory_are_judged_together(name: str, tmp_path: Path) -> None:
    files, says = DIRECTORIES[name]
    for file, text in files.items():
        path = tmp_path / "logs" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shown = " ".join(render(report_of_logs(tmp_path / "logs")).split())
    assert says in shown


EVICTED = """Name:             bert-worker-1
Status:           Failed
Reason:           Evicted
Message:          Pod ephemeral local storage usage exceeds the total limit of containers 50Gi.
Containers:
  pytorch:
    State:          Terminated
      Reason:       Error
      Exit Code:    137
"""
PULL = """Name:             bert-master-0
Status:           Pending
Events:
  Warning  Failed     79s   kubelet            Failed to pull image "registry.local/bert:8": not found
  Warning  Failed     40s   kubelet            Error: ImagePullBackOff
"""


def test_a_pod_that_kubernetes_ended_is_told_with_its_reason_and_not_by_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bert-master-0.log").write_text("rank 0 of 2 ready\n" + CLOSED.replace("[rank{r}]: ", ""))
    (tmp_path / "bert-worker-1.log").write_text("rank 1 of 2 ready\nwriting cache shard 311\n")
    (tmp_path / "describe.txt").write_text(EVICTED)
    cause = report_of_logs(tmp_path)["cause"]
    assert (cause["rank"], cause["node"], cause["signal"]) == (1, "bert-worker-1", None)
    assert cause["what"].startswith("Kubernetes ended the pod: Evicted: Pod ephemeral local storage usage exceeds")


@pytest.mark.parametrize("later", ["", "  Normal   Started    10s   kubelet            Started container pytorch\n"])
def test_a_pod_whose_image_is_missing_did_not_start_unless_it_did_later(tmp_path: Path, later: str) -> None:
    path = tmp_path / "describe.txt"
    path.write_text(PULL + later)
    shown = " ".join(render(report_of_logs(path)).split())
    reason = 'the container could not be started: Failed to pull image "registry.local/bert:8": not found'
    assert (reason in shown) == (not later)


def test_a_line_on_a_past_attempt_is_not_of_the_one_that_recovered(tmp_path: Path) -> None:
    failed = "E1124 19:45:57.3 424 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)"
    raised = 'Traceback (most recent call last):\n  File "/w/t.py", line 4, in <module>\nOSError: x\n'
    for attempt, text in ((0, raised), (1, "")):
        folder = tmp_path / f"none_abcdefgh/attempt_{attempt}/0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
        (folder / "stdout.log").write_text("training finished\n" if attempt else "loading\n")
    (tmp_path / "torchrun.out").write_text(f"{failed} local_rank: 0 (pid: 7) of binary: /opt/venv/bin/python\n")
    report = report_of_logs(tmp_path)
    assert (report["status"], report["cause"]) == ("unfinished", None)


TABLE = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2023-10-25_10:03:{second}
  host      : ai{node}
  rank      : {rank} (local_rank: 0)
  exitcode  : 1 (pid: 31877)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def test_reasons_and_ends_of_one_node_are_matched_in_its_own_file(tmp_path: Path) -> None:
    meta = 'Traceback (most recent call last):\n  File "/w/clm.py", line 533, in main\nNotImplementedError: no data!\n'
    closed = CLOSED.replace("[rank{r}]: ", "")
    (tmp_path / "node1.log").write_text(closed + TABLE.format(second=41, node=1, rank=0))
    (tmp_path / "node2.log").write_text(meta + TABLE.format(second=39, node=2, rank=1))
    cause = report_of_logs(tmp_path)["cause"]
    assert (cause["rank"], cause["node"], cause["what"]) == (1, "ai2", "NotImplementedError: no data!")


def test_a_launcher_that_was_stopped_explains_what_follows_in_another_nodes_file(tmp_path: Path) -> None:
    stopped = "W0409 07:28:49.5 1359 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal\n"
    (tmp_path / "node0.log").write_text(STEPS + stopped)
    (tmp_path / "node1.log").write_text(STEPS + CLOSED.format(r=1))
    report = report_of_logs(tmp_path)
    shown = " ".join(render(report).split())
    assert (report["status"], "the launcher got SIGTERM from outside" in shown) == ("stopped", True)
