"""Realistic outputs of jobs of several launchers, each with what the report says of it in its first lines."""

# ruff: noqa: E501, W291, B905 - logs are as wide as they are.

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from ftslurm.report.pipeline import FORMATS, rendered, report_of_logs
from ftslurm.report.text import render

TB = """Traceback (most recent call last):
  File "/home/ann/train.py", line 130, in main
    loss = model(batch)
  File "/home/ann/model.py", line 88, in forward
    raise ValueError("bad batch 42")
ValueError: bad batch 42
"""
GLOO = """Traceback (most recent call last):
  File "/home/ann/train.py", line 131, in main
    dist.all_reduce(t)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
    work.wait()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:23961
"""


def steps(n: int, ranks: int = 4, fmt: str = "rank {r} step {s} loss 2.31\n") -> str:
    return "".join(fmt.format(r=r, s=s) for s in range(n) for r in range(ranks))


def label(text: str, r: int, fmt: str = "{r}: ") -> str:
    return "".join((fmt.format(r=r) + line) for line in text.splitlines(True))


TEXTS: dict[str, tuple[str, str]] = {}
TEXTS["srun plain one rank"] = (
    steps(30)
    + TB
    + "srun: error: n4: task 3: Exited with exit code 1\n"
    + "srun: Terminating StepId=4711.0\nslurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-21T10:00:00 ***\nsrun: error: n1: tasks 0-1: Terminated\nsrun: error: n4: task 2: Killed\n",
    "rank 3 on n4: ValueError: bad batch 42",
)
TEXTS["srun label"] = (
    "".join(label(f"step {s} loss 2\n", r) for s in range(9) for r in range(4))
    + label(TB, 2)
    + label(GLOO, 0)
    + "srun: error: n2: task 2: Exited with exit code 1\nsrun: error: n1: task 0: Exited with exit code 1\n",
    "rank 2 on n2: ValueError: bad batch 42",
)
TEXTS["no end, unlabelled"] = (steps(30) + TB, "some rank: ValueError: bad batch 42")
TEXTS["caught then goes on"] = (steps(3) + TB + steps(5), "no failure")
TEXTS["the batch script's last words"] = (
    steps(3) + TB + "Elapsed: 12 s\ncopying results to /scratch/ann\nDone\n",
    "some rank: ValueError: bad batch 42",
)
TEXTS["its program's last words"] = (steps(3) + TB + "Training finished. Best loss 1.8\nDone\n", "no failure")
TEXTS["requeued and finished"] = (
    steps(30)
    + "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-03T11:05:20 DUE TO PREEMPTION ***\n"
    + "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-03T11:05:20 DUE TO PREEMPTION ***\n"
    + "srun: error: n2: task 1: Terminated\nsrun: error: n1: task 0: Terminated\n"
    + "Resuming from checkpoint at step 30\n"
    + steps(30)
    + "Training finished. Best loss 1.8\nDone.\n",
    "no failure",
)
TEXTS["aborted by NCCL's error"] = (
    label(steps(3, 1), 12)
    + label(
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 12] NCCL watchdog thread terminated with exception: NCCL error: remote process exited, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error.\nLast error:\n"
        "NET/IB: Got completion from peer 10.10.4.9<47213> with status=12 opcode=129 len=0 vendor err 129 (Recv) hca mlx5_4\n",
        12,
    )
    + "srun: error: n7: task 12: Aborted (core dumped)\n",
    "rank 12 on n7: an InfiniBand or RoCE peer did not answer",
)
TEXTS["segv"] = (
    steps(3) + "srun: error: n4: task 4: Segmentation fault (core dumped)\nsrun: Terminating StepId=1.0\n",
    "rank 4 on n4: segmentation fault (SIGSEGV)",
)
TEXTS["oom"] = (
    steps(3)
    + "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\nsrun: error: n4: task 4: Out Of Memory\nsrun: Terminating StepId=4711.0\nslurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-21T10:00:00 ***\nsrun: error: n1: tasks 0-3: Terminated\n",
    "rank 4 on n4: killed by the kernel: out of memory",
)
TEXTS["time"] = (
    steps(30)
    + 'slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\nslurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\nTraceback (most recent call last):\n  File "/h/t.py", line 3, in f\nKeyboardInterrupt\n',
    "stopped: time limit",
)
TEXTS["preempt"] = (
    steps(30) + "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO PREEMPTION ***\n",
    "stopped: preempted",
)
TEXTS["scancel"] = (
    steps(30)
    + "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: n1: tasks 0-3: Terminated\n",
    "stopped: cancelled",
)
TEXTS["nodefail"] = (
    steps(30)
    + GLOO
    + GLOO
    + "srun: error: Node failure on n7\nslurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\nslurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
    "node failed n7",
)
TEXTS["fail then time limit"] = (
    steps(30) + TB + "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\n",
    "some rank: ValueError: bad batch 42",
)
TEXTS["requeue"] = (
    "Job 4711 starts on n1\nhost n1\nmodule cuda loaded\n"
    + steps(30)
    + "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO PREEMPTION ***\nJob 4711 starts on n2\nhost n2\nmodule cuda loaded\n"
    + steps(4)
    + TB
    + "srun: error: n2: task 1: Exited with exit code 1\n",
    "rank 1 on n2: ValueError: bad batch 42",
)
TEXTS["execve"] = (
    "slurmstepd: error: execve(): python3.9: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2\n",
    "rank 0 on n1: could not be started: python3.9: No such file",
)
TEXTS["pyxis"] = (
    "pyxis: importing docker image ...\nslurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing contents of log file ...\nslurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory\nslurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: pyxis: if the image has an unusual entrypoint, try using --no-container-entrypoint\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\nslurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: n2: task 1: Exited with exit code 1\n",
    "the container could not be started: enroot-switchroot: failed to execute: /bin/bash",
)
TEXTS["apptainer"] = (
    "INFO:    Environment variable SINGULARITY_BINDPATH is set, but APPTAINER_BINDPATH is preferred\nFATAL:   container creation failed: mount hook function failure: mount /proc/self/fd/3->/var/lib/apptainer/mnt/session/rootfs error: while mounting image /proc/self/fd/3: kernel reported a bad superblock for squashfs image partition\nsrun: error: n1: tasks 0-3: Exited with exit code 255\n",
    "the container could not be started: container",
)
TEXTS["deepspeed"] = (
    "".join(
        f"n{h}: [2026-11-21 10:00:0{s},857] [INFO] [logging.py:128:log_dist] [Rank 0] step={s}, skipped=0\n"
        for s in range(9)
        for h in (1, 2)
    )
    + label(TB, 2, "n{r}: ")
    + "n2: [2026-11-21 10:00:10,859] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 94984\nn2: [2026-11-21 10:00:10,860] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1', '--deepspeed'] exits with return code = 1\npdsh@n1: n2: ssh exited with exit code 1\n",
    "some rank on n2: ValueError: bad batch 42",
)
TEXTS["lightning"] = (
    "[rank: 1] Seed set to 42\nEpoch 0:   0%|  | 0/100\rEpoch 0:  50%|#####     | 50/100 [00:01<00:01, 40.1it/s]"
    + TB
    + "[rank: 1] Child process with PID 1234 terminated with code 1. Forcefully terminating all other processes to avoid zombies 🧟\n",
    "rank 1: ValueError: bad batch 42",
)
TEXTS["hook labels"] = (
    "".join(
        a + b
        for a, b in zip(
            label(TB, 1, "[rank{r}]: ").splitlines(True), label(GLOO, 0, "[rank{r}]: ").splitlines(True) + [""] * 9
        )
    )
    + "[rank0]:[W1121 06:55:20.03 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called\n",
    "rank 1: ValueError: bad batch 42",
)
TEXTS["megatron prefix"] = (
    steps(3)
    + "ERROR rank=9 2026-11-21 10:00:01,123 | "
    + TB.replace("\n", "\nERROR rank=9 2026-11-21 10:00:01,124 | ").rsplit("ERROR", 1)[0],
    "rank 9: ValueError: bad batch 42",
)
TEXTS["two interleaved, diff"] = (
    steps(3)
    + "".join(a + b for a, b in zip(TB.splitlines(True), GLOO.splitlines(True)))
    + "srun: error: n1: tasks 0-1: Exited with exit code 1\n",
    "some rank on n1: ValueError: bad batch 42",
)
TEXTS["dataloader"] = (
    steps(3)
    + """Traceback (most recent call last):
  File "/home/ann/train.py", line 12, in <module>
    for b in loader:
  File "/v/site-packages/torch/utils/data/dataloader.py", line 630, in __next__
    data = self._next_data()
  File "/v/site-packages/torch/_utils.py", line 722, in reraise
    raise exception
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/v/site-packages/torch/utils/data/_utils/worker.py", line 308, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/ann/data.py", line 44, in __getitem__
    return self.items[i]
KeyError: 17

srun: error: n1: task 0: Exited with exit code 1
""",
    "rank 0 on n1: KeyError: ",
)
TEXTS["spawn"] = (
    """W1122 18:06:35.459000 17314 torch/multiprocessing/spawn.py:169] Terminating process 17337 via signal SIGTERM
Traceback (most recent call last):
  File "/home/ann/t.py", line 30, in <module>
    mp.spawn(main, nprocs=4)
  File "/v/site-packages/torch/multiprocessing/spawn.py", line 340, in spawn
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")
  File "/v/site-packages/torch/multiprocessing/spawn.py", line 215, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException: 

-- Process 2 terminated with the following error:
Traceback (most recent call last):
  File "/v/site-packages/torch/multiprocessing/spawn.py", line 90, in _wrap
    fn(i, *args)
  File "/home/ann/t.py", line 12, in main
    raise ValueError("bad batch 42")
ValueError: bad batch 42

""",
    "rank 2: ",
)
TEXTS["slurm_script killed"] = (
    "Epoch: [0][511/1736]\t Loss 0.5104\n/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py --prop hform\nslurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\n",
    "some rank: killed by the kernel: out of memory",
)
TEXTS["cant open"] = (
    "python: can't open file '/home/ann/trian.py': [Errno 2] No such file or directory\nsrun: error: n1: tasks 0-3: Exited with exit code 2\n",
    "can't open file",
)
TEXTS["cmd not found"] = (
    "/var/spool/slurmd/job4711/slurm_script: line 12: pyhton: command not found\n",
    "pyhton: command not found",
)
TEXTS["module noise ok"] = (
    "/var/spool/slurmd/job4711/slurm_script: line 3: module: command not found\nLmod has detected the following error: The following module(s) are unknown: cuda/99\n"
    + steps(40)
    + "Training finished\n",
    "no failure",
)
TEXTS["nccl watchdog"] = (
    steps(3)
    + """[rank3]:[E1121 06:55:20.031 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.
[rank3]:[E1121 06:55:20.041 ProcessGroupNCCL.cpp:684] [Rank 3] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG 0 Rank 3] Process group watchdog thread terminated with exception: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE)
srun: error: n2: task 3: Aborted (core dumped)
""",
    "rank 3 on n2: ",
)
TEXTS["running, truncated"] = (steps(30) + "rank 2 step 31 lo", "no failure")
TEXTS["ends mid traceback"] = (steps(30) + TB[:120], "no failure")
TEXTS["success"] = (steps(30) + "done\n", "no failure")
TEXTS["all alike unlabelled"] = (
    TB * 4 + "srun: error: n1: tasks 0-3: Exited with exit code 1\n",
    "ranks 0-3 on n1: ValueError: bad batch 42",
)
TEXTS["argparse"] = (
    "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --foo\nsrun: error: n1: task 0: Exited with exit code 2\n",
    "unrecognized arguments: --foo",
)
TEXTS["kernel oom"] = (
    steps(3)
    + "[123.4] Memory cgroup out of memory: Killed process 1234 (python3) total-vm:1kB\nsrun: error: n1: task 0: Killed\n",
    "killed by the kernel: its memory limit was reached",
)
TEXTS["cpp"] = (
    steps(3)
    + "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nsrun: error: n1: task 2: Aborted\n",
    "rank 2 on n1: std::bad_alloc (from its stderr); then SIGABRT",
)
TEXTS["faulthandler"] = (
    steps(3)
    + 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007fb40f7dcb80 (most recent call first):\n  File "/w/seg.py", line 5 in <module>\nsrun: error: n1: task 2: Segmentation fault\n',
    "rank 2 on n1: segmentation fault",
)
TEXTS["labels of srun, torchrun and torch"] = (
    " 0: [default0]:[rank0]: step 1\n"
    + label(TB, 51, "12: [default3]:[rank{r}]: ")
    + "srun: error: n2: task 12: Exited with exit code 1\n",
    "rank 51 on n2: ValueError: bad batch 42 at /home/ann/model.py:88",
)
TEXTS["a local rank is no rank"] = (
    "[default0]:[rank8]: step 5\n"
    + label(TB, 11, "[default3]:[rank{r}]: ")
    + "E1121 09:00:00.101000 991 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 994) of binary: /v/bin/python\nsrun: error: n2: task 1: Exited with exit code 1\n",
    "rank 11: ValueError: bad batch 42",
)
TEXTS["a launcher as srun's task"] = (
    "[rank20]:[W1121 09:00:04.100 TCPStore.cpp:125] [c10d] recvValue failed\nW1121 09:00:03.100000 881 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1292] The node has failed to send a keep-alive heartbeat\nslurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.\nsrun: error: n1: task 0: Out Of Memory\n",
    "some rank on n1: killed by the kernel: out of memory",
)
TEXTS["ranks that srun does not know"] = (
    label(TB, 11) + label(GLOO, 4) + "srun: error: node-02: task 1: Exited with exit code 1\n",
    "rank 11: ValueError: bad batch 42",
)
AT = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-20T10:01:46 DUE TO "
TEXTS["preempted, then done"] = (
    steps(3) + AT + "PREEMPTION ***\nresuming from step 3\nstep 4 loss 2\nTraining complete. Saved to /ckpt\n",
    "no failure",
)
TEXTS["node failure, then done"] = (
    "[2026-11-20 09:00:00] Modules\n" + steps(3) + AT + "NODE FAILURE ***\n[2026-11-20 10:14:00] Modules\n" + steps(3),
    "no failure",
)
TEXTS["preempted while it ends"] = (
    steps(3) + AT + "PREEMPTION ***\n[2026-11-20 10:01:47] saving\nstep 4 loss 2\nsaved, exiting\n",
    "stopped: preempted",
)
TORCHRUN = (
    "E1121 09:00:0{n}.1 991 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: {n}"
    " (pid: 99{n}) of binary: /v/bin/python\n"
)
TEXTS["torchrun's restarts end well"] = (
    label(TB, 0, "[rank{r}]: ") + TORCHRUN.format(n=0) + label(TB, 1, "[rank{r}]: ") + TORCHRUN.format(n=1) + steps(3),
    "no failure",
)
TEXTS["torchrun ends without its table"] = (
    label(TB, 0, "[rank{r}]: ") + TORCHRUN.format(n=0) + "epilog: cleaning\n",
    "rank 0: ValueError: bad batch 42",
)
TEXTS["torchrun's last restart fails"] = (
    label(GLOO, 0, "[rank{r}]: ")
    + TORCHRUN.format(n=0)
    + steps(3)
    + label(TB, 1, "[rank{r}]: ")
    + TORCHRUN.format(n=1)
    + 'Traceback (most recent call last):\n  File "/v/bin/torchrun", line 8, in <module>\n    sys.exit(main())\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n',
    "rank 1: ValueError: bad batch 42 at /home/ann/model.py:88 in forward, attempt 2",
)
TEXTS["a step fails, the next one ends well"] = (
    steps(3) + TB + "srun: error: n1: task 0: Exited with exit code 1\n" + steps(5) + "Training finished\n",
    "no failure",
)
TEXTS["a step fails, the script goes on"] = (
    steps(3) + TB + "srun: error: n1: task 0: Exited with exit code 1\ncopying logs\nJob finished at Fri Nov 21\n",
    "rank 0 on n1: ValueError: bad batch 42",
)
TEXTS["atexit"] = (steps(3) + "Training complete\nError in atexit._run_exitfuncs:\n" + TB, "no failure")
TEXTS["a logger's traceback long before the watchdog"] = (
    "10:00:01,001 | INFO | rank 0/8 | starting\n10:00:01,021 | INFO | rank 5/8 | starting\n"
    "10:00:31,021 | ERROR | rank 5/8 | Failed to load shard\n"
    + TB
    + "10:00:31,040 | CRITICAL | rank 5/8 | aborting run\n10:10:31,040 | ERROR | rank 0/8 | NCCL timeout\n"
    + "[rank0]:[E1121 10:10:31.102345 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600012 milliseconds before timing out.\nsrun: error: n1: task 0: Aborted (core dumped)\n",
    "rank 5: ValueError: bad batch 42",
)
TEXTS["a logger's traceback of a rank that goes on"] = (
    "10:00:31,021 | ERROR | rank 5/8 | Failed to load shard\n"
    + TB
    + "10:00:31,040 | INFO | rank 5/8 | using the next shard\n10:10:31,040 | ERROR | rank 0/8 | NCCL timeout\n"
    + "[rank0]:[E1121 10:10:31.102345 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE) ran for 600012 milliseconds before timing out.\nsrun: error: n1: task 0: Aborted (core dumped)\n",
    "rank 0 on n1: NCCL's watchdog aborted the process",
)
TEXTS["container import"] = (
    "slurmstepd: error: pyxis: child 219411 failed with error code: 1\nslurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: pyxis:     [INFO] Extracting image layers...\nslurmstepd: error: pyxis:     tar: usr/lib/libc.so: Cannot write: No space left on device\nslurmstepd: error: pyxis:     [ERROR] Command failed with exit status 2\nslurmstepd: error: pyxis: couldn't start container\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n",
    "the container could not be started: tar: usr/lib/libc.so: Cannot write: No space left on device hint: Check the image's path",
)
TEXTS["image on no node"] = (
    "FATAL:   could not open image /s/t.sif: no such file or directory\nsrun: error: n41: task 0: Exited with exit code 255\nsrun: error: n42: task 1: Exited with exit code 255\n",
    "ranks 0-1: the container could not be started: could not open image /s/t.sif: no such file or directory",
)
TEXTS["a working directory"] = (
    "slurmstepd: error: couldn't chdir to `/s/exp7': No such file or directory: going to /tmp instead\npython: can't open file '/tmp/t.py': [Errno 2] No such file or directory\nsrun: error: n20: task 0: Exited with exit code 2\n",
    "rank 0 on n20: the working directory could not be entered: /s/exp7: No such file or directory hint: Create or mount",
)
TEXTS["no step"] = (
    "srun: error: Unable to create step for job 812: Memory required by task is not available\n",
    "FAILED: srun: Unable to create step for job 812: Memory required by task is not available hint: Compare",
)
TEXTS["no launch"] = (
    "srun: error: Task launch for StepId=123.0 failed on node n17: Communication connection failure\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n",
    "FAILED: Task launch for StepId=123.0 failed on node n17: Communication connection failure hint: That node's slurmd",
)
TEXTS["batch script"] = (
    'Lmod has detected the following error: The following module(s) are unknown:\n"CUDA/12.9.1"\n/var/spool/slurmd/job12/slurm_script: line 17: torchrun: command not found\n',
    'FAILED: cannot start torchrun: command not found (line 17 of the batch script) hint: It failed before any rank started: see its lines above (modules, environments); set -e stops at the first. A restart alone is pointless. evidence Lmod has detected the following error: The following module(s) are unknown: "CUDA/12.9.1"',
)
TEXTS["Xid"] = (
    "[Wed Nov  5 01:11:20 2026] NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
    + label(TB.replace("ValueError: bad batch 42", "RuntimeError: CUDA error: unspecified launch failure"), 5)
    + "srun: error: g17: task 5: Exited with exit code 1\n",
    "hint: The GPU no longer answers (dmesg: Xid 79)",
)
TEXTS["Ctrl-C"] = (
    steps(3)
    + "srun: interrupt (one more within 1 sec to abort)\n^Csrun: sending Ctrl-C to StepId=120077.0\n"
    + TB.replace("ValueError: bad batch 42", "KeyboardInterrupt")
    + "srun: error: n17: task 1: Interrupt\n",
    "stopped: cancelled by a user no rank is to blame",
)
TEXTS["native backtrace"] = (
    steps(3)
    + "[n3:41211:0:41211] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x18)\n==== backtrace (tid:  41211) ====\n 0 0x0000000000012cf0 __funlockfile()  :0\n 1 0x00000000000a1b22 ucp_ep_rcache_reg()  ???:0\nsrun: error: n3: task 6: Segmentation fault (core dumped)\n",
    "rank 6 on n3: segmentation fault (SIGSEGV) hint: Native code crashed in ucp_ep_rcache_reg: its own backtrace",
)
TEXTS["refused arguments, then another step"] = (
    "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --foo\nsrun: error: n1: tasks 0-3: Exited with exit code 2\n=== eval ===\n"
    + TB,
    "ranks 0-3 on n1: the script refused its arguments: train.py: error: unrecognized arguments: --foo (exit code 2)",
)
TEXTS["a launcher that is interrupted"] = (
    steps(3)
    + "^CW1121 10:00:00.000 77 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGINT death signal, shutting down workers\n"
    + TB.replace("ValueError: bad batch 42", "KeyboardInterrupt"),
    "no failure",
)
TEXTS["MPI_ABORT"] = (
    steps(3) + TB + "MPI_ABORT was invoked on rank 6 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n",
    "rank 6: ValueError: bad batch 42",
)
TEXTS["a node without GPUs"] = (
    "".join(
        label(TB.replace("ValueError: bad batch 42", "RuntimeError: No CUDA GPUs are available"), r) for r in (4, 5)
    )
    + "0: ok\n1: ok\n" * 2
    + "srun: error: n2: tasks 4-5: Exited with exit code 1\nsrun: error: n1: tasks 0-1: Terminated\n",
    "ranks 4-5 on n2: RuntimeError: No CUDA GPUs are available",
)
TEXTS["requeued"] = (steps(3) + AT + "JOB REQUEUE ***\n", "stopped: requeued")
TEXTS["a weak reason with the code of the ends"] = (
    "bash: line 1: python3.13: command not found\nsrun: error: n1: tasks 0-3: Exited with exit code 127\n",
    "ranks 0-3 on n1: cannot start python3.13: command not found",
)
TEXTS["user exit code only"] = (
    steps(3) + "srun: error: n1: task 2: Exited with exit code 3\n",
    "rank 2 on n1: exit code 3",
)
TEXTS["rich"] = (
    steps(3)
    + """╭─────────────────────────────── Traceback (most recent call last) ────────────────────────────────╮
│ /home/ann/train.py:130 in main                                                                   │
│                                                                                                  │
│   129     batch = next(it)                                                                       │
│ ❱ 130     loss = model(batch)                                                                    │
│                                                                                                  │
│ /home/ann/model.py:88 in forward                                                                 │
│                                                                                                  │
│ ❱ 88     raise ValueError("bad batch 42")                                                        │
╰──────────────────────────────────────────────────────────────────────────────────────────────────╯
ValueError: bad batch 42
srun: error: n1: task 0: Exited with exit code 1
""",
    "rank 0 on n1: ValueError: bad batch 42 at /home/ann/model.py:88 in forward",
)
TEXTS["hydra"] = (
    steps(3)
    + "Error executing job with overrides: ['a=1']\n"
    + TB
    + "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
    "some rank: ValueError: bad batch 42",
)
TEXTS["seff"] = (
    steps(3) + TB + "cleaning up scratch\nJob ID: 4711\nCluster: x\nState: FAILED (exit code 1)\nCores: 1\n",
    "some rank: ValueError: bad batch 42",
)
TEXTS["ts prefix"] = (
    "".join(f"2026-11-21T10:00:{i % 60:02d}.123Z {line}" for i, line in enumerate((steps(3) + TB).splitlines(True))),
    "some rank: ValueError: bad batch 42 at /home/ann/model.py:88",
)
TEXTS["doubt"] = (steps(3) + TB + "retrying\n", "not known to have ended a rank, because 1 line")
TEXTS["script says"] = (steps(9) + "Training failed with exit code 3\n", "exit code 3")
TEXTS["thread"] = (
    steps(9)
    + "Exception in thread Thread-3 (prefetch):\n"
    + TB
    + "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\n",
    "some rank: ValueError: bad batch 42",
)
TEXTS["ignored"] = (steps(9) + "Exception ignored in: <function A.__del__ at 0x7f>\n" + TB, "no failure")
TEXTS["sigterm reaction"] = (
    steps(9)
    + "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\n"
    + TB.replace("ValueError: bad batch 42", "lightning.pytorch.utilities.exceptions.SIGTERMException"),
    "stopped: time limit",
)
TEXTS["signal exc torchrun"] = (
    steps(9)
    + 'W1121 10:07:00.337000 700 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\nW1121 10:07:00.337000 700 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 801 closing signal SIGTERM\nTraceback (most recent call last):\n  File "/v/torchrun", line 8, in <module>\n    sys.exit(main())\n  File "/v/site-packages/torch/distributed/elastic/multiprocessing/api.py", line 76, in _terminate\n    raise SignalException()\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 700 got signal: 15\n',
    "no failure",
)


@pytest.mark.parametrize("name", TEXTS)
def test_an_output_is_reported_by_what_it_contains(tmp_path: Path, name: str) -> None:
    text, says = TEXTS[name]
    path = tmp_path / "slurm-4711.out"
    path.write_text(text)
    shown = " ".join(render(report_of_logs(path)).split())
    assert says.replace("stopped: ", "was stopped: ").replace("no failure", "no failure found") in shown
    if not says.startswith("no failure"):
        return
    report = report_of_logs(path)
    assert (report["status"], report["cause"]) == ("unfinished", None)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
def test_a_log_that_is_cut_off_anywhere_names_no_other_culprit(tmp_path: Path, name: str, share: float) -> None:
    text, _ = TEXTS[name]
    whole, part = tmp_path / "slurm-4711.out", tmp_path / "part" / "slurm-4711.out"
    part.parent.mkdir()
    whole.write_text(text)
    part.write_text(text[: int(len(text) * share)])
    known = report_of_logs(whole)["cause"]
    found = report_of_logs(part)["cause"]
    if found is not None and found["rank"] is not None and known is not None and known["rank"] is not None:
        assert found["rank"] == known["rank"] or found["role"] == "cascade"
    assert found is None or found["cause"] != "node-lost"


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_of_the_report_can_show_an_unknown_rank(tmp_path: Path, form: str) -> None:
    path = tmp_path / "slurm-4711.out"
    path.write_text(TEXTS["no end, unlabelled"][0])
    shown = rendered(report_of_logs(path), form)
    assert "bad batch 42" in shown
    assert form == "json" or "some rank" in shown
    assert "rank None" not in shown
    assert "rank -1" not in shown


@pytest.mark.parametrize("seed", range(12))
def test_no_log_however_damaged_raises_or_takes_long(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray("".join(rng.choice(list(TEXTS.values()))[0] for _ in range(12)).encode())
    for _ in range(rng.randrange(60)):
        begin = rng.randrange(len(data))
        end = min(len(data), begin + rng.randrange(400))
        piece = bytes(data[begin:end])
        at = rng.randrange(len(data))
        what = rng.choice(["cut", "copy", "noise", "joined", "labels"])
        if what == "cut":
            del data[begin:end]
        elif what == "copy":
            data[at:at] = piece
        elif what == "noise":
            data[at:at] = rng.randbytes(40)
        elif what == "joined":
            data[begin:end] = piece.replace(b"\n", b"")
        else:
            data[begin:end] = piece.replace(b"\n", b"\n[rank%d]: " % rng.randrange(4))
    path = tmp_path / "slurm-4711.out"
    path.write_bytes(data)
    began = time.process_time()
    assert render(report_of_logs(path))
    assert time.process_time() - began < 5


def test_a_rank_that_srun_does_not_mention_makes_no_launcher_of_the_task_that_it_does(tmp_path: Path) -> None:
    path = tmp_path / "slurm-4711.out"
    path.write_text(label(GLOO, 0, "[rank{r}]: ") + "srun: error: gpu12: task 2: Killed\n")
    assert report_of_logs(path)["cause"]["rank"] == 2
