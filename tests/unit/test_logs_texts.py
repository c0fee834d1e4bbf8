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
TEXTS["the batch script's last lines"] = (
    steps(3) + TB + "Elapsed: 12 s\ncopying results to /scratch/ann\nDone\n",
    "some rank: ValueError: bad batch 42",
)
TEXTS["its program's last lines"] = (steps(3) + TB + "Training finished. Best loss 1.8\nDone\n", "no failure")
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
    "n7 failed",
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
    "the container's image has no such program: /bin/bash: No such file",
)
TEXTS["apptainer"] = (
    "INFO:    Environment variable SINGULARITY_BINDPATH is set, but APPTAINER_BINDPATH is preferred\nFATAL:   container creation failed: mount hook function failure: mount /proc/self/fd/3->/var/lib/apptainer/mnt/session/rootfs error: while mounting image /proc/self/fd/3: kernel reported a bad superblock for squashfs image partition\nsrun: error: n1: tasks 0-3: Exited with exit code 255\n",
    "the container could not be started: container",
)
TEXTS["a stop of the launcher, and what had started it"] = (
    steps(10)
    + "W1229 16:43:25.650000 190834 torch/distributed/elastic/agent/server/api.py:723] Received 1 death signal, shutting"
    " down workers\n"
    'Traceback (most recent call last):\n  File "/w/cli.py", line 3, in main\n    subprocess.run(command, check=True)\n'
    "subprocess.CalledProcessError: Command '['torchrun', 'train.py']' returned non-zero exit status 1.\n",
    "stopped: the launcher got SIGHUP from outside",
)
TEXTS["an exception in a launcher's handler of Ctrl-C"] = (
    steps(10) + "^C[2026-05-30 20:29:14,854] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 19380\n"
    'Traceback (most recent call last):\n  File "/w/deepspeed/launcher/runner.py", line 548, in sigkill_handler\n'
    "NameError: name 'kill_cmd' is not defined\n"
    "[2026-05-30 20:29:15,069] [INFO] [launch.py:437:sigkill_handler] Main process received SIGINT, exiting\n",
    "stopped: interrupted at the terminal (Ctrl-C)",
)
TEXTS["MPI_Abort with a negative number"] = (
    steps(10) + f"{'-' * 74}\nMPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD\nwith errorcode -1.\n\n"
    f"NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n{'-' * 74}\n",
    "rank 5: called MPI_Abort with errorcode -1",
)
TEXTS["the reason above an MPI_Abort, and what the evidence quotes"] = (
    steps(3)
    + f"Fatal error:\nAtom 20113 moved out of its cell\n{'-' * 74}\nMPI_ABORT was invoked on rank 2 in communicator "
    f"MPI_COMM_WORLD\nwith errorcode 1.\n{'-' * 74}\nsrun: error: n1: task 2: Exited with exit code 1\n",
    "Atom 20113 moved out of its cell evidence called MPI_Abort with errorcode 1 srun: error: n1: task 2: Exited with"
    " exit code 1 the end of its stderr",
)
TEXTS["a refused submission, of which sbatch's last line only says that it failed"] = (
    "submitting train.sh\nsbatch: error: submitted to gpu32 without a GPU32 account\n"
    "sbatch: error: Batch job submission failed: Unspecified error\n",
    "FAILED: sbatch: submitted to gpu32 without a GPU32 account",
)
TEXTS["a service's answer that a client's library wraps in advice"] = (
    'Traceback (most recent call last):\n  File "/opt/site-packages/transformers/utils/hub.py", line 402, in cached_file\n'
    "    hf_raise_for_status(response)\nrequests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: "
    "https://huggingface.co/m/config.json\n\nThe above exception was the direct cause of the following exception:\n\n"
    'Traceback (most recent call last):\n  File "/work/finetune.py", line 77, in main\n    load(name)\n'
    '  File "/opt/site-packages/transformers/utils/hub.py", line 446, in cached_file\n    raise OSError(\n'
    "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files.\n",
    "some rank: HTTPError: 429 Client Error: Too Many Requests for url:",
)
TEXTS["what another rank passed on, and then Slurm's lines"] = (
    TB.replace(
        "ValueError: bad batch 42", "ValueError: Caught ValueError in DataLoader worker process 1.\nOriginal " + TB
    )
    + "srun: error: n31: task 2: Exited with exit code 1\nslurmstepd: error: *** STEP 7.0 ON n31 CANCELLED AT x ***\n",
    "rank 2 on n31: ValueError: bad batch 42 (in DataLoader worker process 1) at",
)
TEXTS["TensorFlow's reason behind stacks that it does not have"] = (
    TB.replace(
        "ValueError: bad batch 42",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:",
    )
    + "\nDetected at node decode/DecodeImage defined at (most recent call last):\n<stack traces unavailable>\n"
    "jpeg::Uncompress failed. Invalid JPEG data or crop window.\n\t [[{{node decode/DecodeImage}}]]\n",
    "InvalidArgumentError: jpeg::Uncompress failed. Invalid JPEG data or crop window. at",
)
TEXTS["a container that Apptainer cannot open"] = (
    "\x1b[31mFATAL:   \x1b[0m could not open image /scratch/a.sif: lstat /scratch/a.sif: no such file or directory\n"
    "srun: error: y2: task 1: Exited with exit code 255\n",
    "rank 1 on y2: the container could not be started: could not open image /scratch/a.sif: ...",
)
TEXTS["a container for which NVIDIA's hook found no driver"] = (
    "docker: Error response from daemon: failed to create task for container: OCI runtime create failed: error running"
    " hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
    "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown.\n",
    "the container found no GPU driver: nvml error: driver/library version mismatch hint: The node's GPU driver",
)
TEXTS["torchrun's restarts, none of which helped"] = (
    "".join(
        f"{steps(3)}[rank1]: "
        + TB.replace("\n", "\n[rank1]: ").removesuffix("[rank1]: ")
        + "E1119 08:11:00.3 1 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 1"
        f" (pid: {pid}) of binary: /usr/bin/python\n{left}"
        for pid, left in (
            (
                50,
                "I1119 08:10:10.0 1 torch/distributed/elastic/agent/server/api.py:884] [default] Worker group FAILED."
                " 1/1 attempts left; will restart worker group\n",
            ),
            (61, ""),
        )
    ),
    "FAILED: rank 1: ValueError: bad batch 42 at /home/ann/model.py:88 in forward, attempt 2",
)
DESYNC = (
    "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
    "\t   - [3] joined but didn't finish collective #9000 (count from 1)\n\t - Snapshot of ranks' latest states:\n"
)
TIMED_OUT = "".join(
    f"[rank{r}]:[E1103 09:34:11.0001 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=9001, OpType=ALLGATHER, NumelIn=131072, NumelOut=131072, Timeout(ms)=1800000) ran for 1800031"
    " milliseconds before timing out.\n"
    for r in range(3)
)
TEXTS["torch's report on a desync beside time-outs"] = (
    steps(3) + TIMED_OUT + DESYNC,
    "rank 3 joined but didn't finish collective #9000, by torch's report on the desync: look there first",
)
TEXTS["the stack that py-spy printed of the rank that the others waited for"] = (
    steps(3) + "[monitor] no progress for 540 s, dumping py-spy of rank 3 (pid 88196)\nProcess 88196: python train.py\n"
    'Python v3.11.9 (/usr/bin/python3.11)\n\nThread 88196 (idle): "MainThread"\n    read_shard (data.py:88)\n'
    "    <module> (train.py:290)\n" + TIMED_OUT + "srun: error: n1: tasks 0-2: Aborted (core dumped)\n",
    "rank 3 is not among srun's tasks that failed: it may have ended without one; its stack: in read_shard at data.py:88",
)
TEXTS["an adapter's own event before a peer did not answer"] = (
    steps(2)
    + "h3:31022:31590 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n"
    + label(
        TB.replace(
            "ValueError: bad batch 42",
            "torch.distributed.DistBackendError: NCCL error in: ../x.cpp:2251, remote process exited or there was a network"
            " error, NCCL version 2.21.5\nLast error:\nNET/IB : Got completion from peer 10.4.0.14<43210> with status=12"
            " opcode=0 len=0 vendor err 129 (Send) hca mlx5_3",
        ),
        2,
        "[rank{r}]: ",
    )
    + "srun: error: h3: task 2: Exited with exit code 1\n",
    "h3: NET/IB : mlx5_3:1 Got async event : port error hint:",
)
TEXTS["the tasks that XLA's service no longer hears"] = (
    "".join(f"completed step: {i}, loss: 2.7\n" for i in range(9))
    + "F1103 10:02:11.409233    2102 client.h:80] Terminating process because the JAX distributed service detected fatal"
    " errors. absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n"
    "/job:jax_worker/replica:0/task:3\nThe tasks have crashed.\nFatal Python error: Aborted\n",
    "unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:3",
)
TEXTS["a C library that is too old"] = (
    label(
        TB.replace(
            "ValueError: bad batch 42",
            "OSError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by /a/libx.so)",
        ),
        1,
    )
    + "srun: error: n1: task 1: Exited with exit code 1\n",
    "OSError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by /a/libx.so) at",
)
TEXTS["urllib3's reason behind the whole address"] = (
    TB.replace(
        "ValueError: bad batch 42",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries exceeded with"
        " url: /graphql?operation=x (Caused by ConnectTimeoutError(<urllib3.connection.HTTPSConnection object at 0x7f>,"
        " 'Connection to api.wandb.ai timed out. (connect timeout=20)'))",
    ),
    "ConnectionError: api.wandb.ai:443: Connection to api.wandb.ai timed out. (connect timeout=20) at",
)
TEXTS["torchrun's table has the place that a rank's last line lacks"] = (
    "[rank1]: step 3\n[rank1]: ValueError: bad batch 42\n"
    "E1103 09:20:42.4 1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 96)"
    " of binary: /usr/bin/python\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    + "=" * 60
    + "\ntrain.py FAILED\n"
    + "-" * 60
    + "\nFailures:\n  <NO_OTHER_FAILURES>\n"
    + "-" * 60
    + "\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-03_09:20:42\n  host      : gpu01\n"
    "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 96)\n  error_file: /tmp/error.json\n  traceback : "
    + TB.replace("\n", "\n  ").removesuffix("  ")
    + "=" * 60
    + "\n",
    "FAILED: rank 1 on gpu01: ValueError: bad batch 42 at /home/ann/model.py:88 in forward",
)
TEXTS["what Ray Tune prints after the error of a trial"] = (
    "2026-11-20 09:02:10,881\tERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_3f2a1_00000\n"
    + TB
    + "2026-11-20 09:02:11,002\tINFO tune.py:1009 -- Wrote the latest version of all result files to '/r/x' in 0.01s.\n"
    "Trial TorchTrainer_3f2a1_00000 errored after 5 iterations at 2026-11-20 09:02:11. Total running time: 1min 58s\n",
    "ValueError: bad batch 42 at /home/ann/model.py:88 in forward",
)
TEXTS["Hydra's advice below a message"] = (
    "step 1\n" + TB + "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
    "ValueError: bad batch 42 at /home/ann/model.py:88 in forward",
)
TEXTS["a reason in the line below the message of transformers"] = (
    TB.replace(
        "ValueError: bad batch 42",
        "RuntimeError: Failed to import trl.trainer because of the following error (look up to see its traceback):\n"
        "cannot import name 'is_x_available' from 'transformers.utils' (/a/site-packages/transformers/utils/__init__.py)",
    ),
    "cannot import name 'is_x_available' from 'transformers.utils'",
)
TEXTS["an error that a message sends to the errors above for"] = (
    "step 1\nE1120 09:00:05.771200 4410 cuda_dnn.cc:454] Loaded runtime CuDNN library: 9.1.0 but source was compiled with:"
    " 9.8.0.  CuDNN library needs to have matching major version.\n"
    + TB.replace(
        "ValueError: bad batch 42",
        "jaxlib._jax.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for"
        " more details.",
    )
    + "srun: error: v8: task 0: Exited with exit code 1\n",
    'right above: "Loaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.8.0"',
)
TEXTS["DGL's launcher names the host of a server"] = (
    "INFO: Client [1] on 10.9.9.2 joined\n"
    + TB.replace(
        "ValueError: bad batch 42",
        "dgl._ffi.base.DGLError: [09:14:41] /opt/dgl/src/graph_serialize.cc:150: Check failed: fs: Filename is invalid: /d/part2",
    )
    + "Called process error Command 'ssh -p 22 ann@10.9.9.4 'cd ~; (export DGL_ROLE=server DGL_SERVER_ID=2; python3 train.py)''"
    " returned non-zero exit status 1.\n",
    "some rank on 10.9.9.4: DGLError: Check failed: fs: Filename is invalid: /d/part2 at",
)
TEXTS["the condition in which an operator of Kubernetes gave a job up"] = (
    'status:\n  conditions:\n  - message: MPIJob x is created.\n    reason: MPIJobCreated\n    status: "True"\n'
    "    type: Created\n  - lastTransitionTime: x\n    message: 1/8 workers are evicted\n    reason: MPIJobEvicted\n"
    '    status: "True"\n    type: Failed\n  replicaStatuses:\n    Worker:\n      active: 7\n      failed: 1\n',
    "1/8 workers are evicted (MPIJobEvicted)",
)
TEXTS["labels without a blank"] = (
    "".join(label(steps(10), r, "[{r}]:") for r in range(4)) + label(TB, 2, "[{r}]:"),
    "rank 2: ValueError: bad batch 42",
)
TEXTS["a container's name"] = (
    'slurmstepd: error: pyxis: error: a container with name "nemo" does not exist, and --container-image is not set\n'
    "slurmstepd: error: Failed to invoke spank plugin stack\nsrun: error: n1: task 0: Exited with exit code 1\n",
    'rank 0 on n1: the container could not be started: a container with name "nemo" does not exist',
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
TEXTS["ends mid traceback"] = (steps(30) + TB[:120], "some rank: Exception: the log ends before its type and text at")
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
TEXTS["module unknown, library missing"] = (
    'Lmod has detected the following error: The following module(s) are unknown:\n"CUDA/12.9.1"\nstarting\n'
    + TB.replace(
        "ValueError: bad batch 42",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    ),
    'evidence Lmod has detected the following error: The following module(s) are unknown: "CUDA/12.9.1"',
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
TEXTS["a long list of allowed values"] = (
    "usage: train.py [-h]\ntrain.py: error: argument --arch: invalid choice: 'resnet51' (choose from "
    + ", ".join(f"'resnet{n}'" for n in range(18, 40))
    + ")\nsrun: error: n1: tasks 0-3: Exited with exit code 2\n",
    "train.py: error: argument --arch: invalid choice: 'resnet51' (exit code 2)",
)
MASKED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/r/train.py", line 10, in <module>
[rank1]:     step(i)
[rank1]:   File "/r/train.py", line 6, in step
[rank1]:     raise ValueError(f"bad batch {i}")
[rank1]: ValueError: bad batch 3

[rank1]: During handling of the above exception, another exception occurred:

[rank1]: Traceback (most recent call last):
[rank1]:   File "/r/train.py", line 12, in <module>
[rank1]:     dist.barrier()
[rank1]:   File "/v/torch/distributed/distributed_c10d.py", line 5356, in barrier
[rank1]:     work.wait()
[rank1]: RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete
"""
WAITED = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/r/train.py", line 7, in step
[rank0]:     dist.all_reduce(x)
[rank0]:   File "/v/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank0]:     work.wait()
[rank0]: RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete
"""
TEXTS["a failure whose handler waits for the others"] = (
    MASKED + WAITED,
    "rank 1: ValueError: bad batch 3 (then RuntimeError: Timed out waiting 4000ms for recv operation to complete)"
    " at /r/train.py:6 in step",
)
TEXTS["a handler that waits for a rank that failed"] = (
    MASKED + WAITED + TB.replace("ValueError: bad batch 42", "OSError: [Errno 5] Input/output error"),
    "some rank: OSError: [Errno 5] Input/output error",
)
TEXTS["a launcher that is interrupted"] = (
    steps(3)
    + "^CW1121 10:00:00.000 77 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGINT death signal, shutting down workers\n"
    + TB.replace("ValueError: bad batch 42", "KeyboardInterrupt"),
    "stopped: the launcher got SIGINT from outside",
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
    "stopped: the launcher got SIGTERM from outside",
)


TEXTS["Ray's traceback of another process, without a header"] = (
    """(RayTrainWorker pid=41234, ip=10.0.0.3) Setting up process group for: env:// [rank=1, world_size=4]
(RayTrainWorker pid=41235, ip=10.0.0.4) Setting up process group for: env:// [rank=2, world_size=4]
(RayTrainWorker pid=41234, ip=10.0.0.3) epoch 0 loss 2.34
2024-05-01 12:00:01,123	ERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_abc12_00000
Traceback (most recent call last):
  File "/opt/conda/lib/python3.10/site-packages/ray/air/execution/_internal/event_manager.py", line 110, in resolve_future
    result = ray.get(future)
  File "/opt/conda/lib/python3.10/site-packages/ray/_private/worker.py", line 2624, in get
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(ValueError): ray::_Inner.train() (pid=41100, ip=10.0.0.2, actor_id=abc, repr=TorchTrainer)
  File "/opt/conda/lib/python3.10/site-packages/ray/tune/trainable/trainable.py", line 331, in train
    raise skipped from exception_cause(skipped)
  File "/opt/conda/lib/python3.10/site-packages/ray/train/_internal/utils.py", line 43, in check_for_failure
    ray.get(object_ref)
ray.exceptions.RayTaskError(ValueError): ray::_RayTrainWorker__execute.get_next() (pid=41234, ip=10.0.0.3, actor_id=def, repr=<ray.train._internal.worker_group.RayTrainWorker object at 0x7f>)
  File "/opt/conda/lib/python3.10/site-packages/ray/train/_internal/worker_group.py", line 33, in __execute
    raise skipped from exception_cause(skipped)
  File "/home/ann/train.py", line 42, in train_loop
    raise ValueError("bad batch 17 in shard 3")
ValueError: bad batch 17 in shard 3

Training errored after 5 iterations at 2024-05-01 12:00:01. Total running time: 1min 2s
Error file: /home/ann/ray_results/TorchTrainer/error.txt
""",
    "rank 1 on 10.0.0.3 (pid 41234): ValueError: bad batch 17 in shard 3 at /home/ann/train.py:42 in train_loop",
)
TEXTS["Horovod's ranks follow the one whose exit mpirun names"] = (
    """[1,0]<stdout>:epoch 1
[1,1]<stderr>:Traceback (most recent call last):
[1,1]<stderr>:  File "/opt/hvd/lib/python3.9/site-packages/horovod/torch/mpi_ops.py", line 1234, in synchronize
[1,1]<stderr>:    mpi_lib.horovod_torch_wait_and_clear(handle)
[1,1]<stderr>:RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution.
[1,1]<stderr>:
[1,1]<stderr>:During handling of the above exception, another exception occurred:
[1,1]<stderr>:
[1,1]<stderr>:Traceback (most recent call last):
[1,1]<stderr>:  File "train.py", line 88, in <module>
[1,1]<stderr>:    optimizer.step()
[1,1]<stderr>:  File "/opt/hvd/lib/python3.9/site-packages/horovod/torch/mpi_ops.py", line 1240, in synchronize
[1,1]<stderr>:    raise HorovodInternalError(e)
[1,1]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution.
[1,3]<stderr>:Traceback (most recent call last):
[1,3]<stderr>:  File "train.py", line 60, in <module>
[1,3]<stderr>:    x = load(path)
[1,3]<stderr>:FileNotFoundError: [Errno 2] No such file or directory: '/data/shard_00031.tar'
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[40123,1],3]
  Exit code:    1
--------------------------------------------------------------------------
""",
    "rank 3: FileNotFoundError: [Errno 2] No such file or directory: '/data/shard_00031.tar' at train.py:60",
)


TEXTS["a label of horovodrun separates ranks"] = (
    r"""[0]<stdout>:Epoch 1 / 90 step 10 loss 6.9
[1]<stdout>:Epoch 1 / 90 step 10 loss 6.9
[2]<stderr>:Traceback (most recent call last):
[2]<stderr>:  File "/nfs/u/train_hvd.py", line 120, in <module>
[2]<stderr>:    main()
[2]<stderr>:  File "/nfs/u/train_hvd.py", line 51, in main
[2]<stderr>:    model.cuda()
[2]<stderr>:RuntimeError: CUDA error: out of memory
[0]<stderr>:[2025-01-01 10:00:01.100101: E /tmp/pip-req/horovod/common/operations.cc:697] [0]: Horovod background loop uncaught exception: [/tmp/gloo/transport/tcp/pair.cc:589] Read error [10.2.2.2]:21331: Connection reset by peer
Process 2 exit with status code 1.
Terminating remaining workers after failure of Process 2.
Process 0 exit with status code 134.
Process 1 exit with status code 143.
[0]<stderr>:terminate called after throwing an instance of 'gloo::IoException'
""",
    "rank 2: RuntimeError: CUDA error: out of memory at /nfs/u/train_hvd.py:51 in main",
)
TEXTS["composer names the rank whose output follows"] = (
    r"""[rank0]: 2025-06-11 01:00:01,110: rank0[5504][MainThread]: INFO: composer.trainer.trainer: Setting seed to 17
train          Epoch   0:   12%|███                      | 120/1000 [02:11<16:00,  1.09s/ba, loss/train/total=3.3121]
ERROR:composer.cli.launcher:Rank 7 crashed with exit code 1.
Waiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.
Global rank 0 (PID 5504) exited with code -15
Global rank 1 (PID 5505) exited with code -15
Global rank 2 (PID 5506) exited with code -15
Global rank 3 (PID 5507) exited with code -15
Global rank 4 (PID 5508) exited with code -15
Global rank 5 (PID 5509) exited with code -15
Global rank 6 (PID 5510) exited with code -15
----------Begin global rank 7 STDOUT----------

----------End global rank 7 STDOUT----------
----------Begin global rank 7 STDERR----------
2025-06-11 01:02:12,110: rank7[5511][MainThread]: INFO: composer.trainer.trainer: Beginning training!
Traceback (most recent call last):
  File "/code/train.py", line 210, in <module>
    main(cfg)
  File "/code/train.py", line 180, in main
    trainer.fit()
  File "/usr/lib/python3/dist-packages/composer/trainer/trainer.py", line 1796, in fit
    self._train_loop()
  File "/usr/lib/python3/dist-packages/streaming/base/dataset.py", line 1101, in __getitem__
    sample = shard[index_in_shard]
  File "/code/loader.py", line 70, in get_item
    raise ValueError(f"sample {idx} decodes to {n} bytes, expected {m}")
ValueError: sample 4411 decodes to 0 bytes, expected 8192

----------End global rank 7 STDERR----------
Global rank 7 (PID 5511) exited with code 1
ERROR:composer.cli.launcher:Global rank 7 (PID 5511) exited with code 1
""",
    "rank 7: ValueError: sample 4411 decodes to 0 bytes, expected 8192 at /code/loader.py:70 in get_item",
)
TEXTS["a heartbeat monitor that found its own rank stuck"] = (
    r"""[rank6]:[F1101 21:21:21.100 ProcessGroupNCCL.cpp:1306] [PG ID 0 PG GUID 0(default_pg) Rank 6] [PG ID 0 PG GUID 0(default_pg) Rank 6] Terminating the process after attempting to dump debug info, due to watchdog hang.
[rank6]:[E1101 21:13:21.100 ProcessGroupNCCL.cpp:1243] [PG ID 0 PG GUID 0(default_pg) Rank 6] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=3
Fatal Python error: Aborted

Thread 0x00007f3b8f7fe640 (most recent call first):
  File "/w/ckpt.py", line 55 in serialize
  File "/w/train.py", line 201 in save
srun: error: hgx6: task 6: Aborted (core dumped)
""",
    "rank 6 on hgx6: NCCL's watchdog got stuck on this rank: a CUDA call or the GIL may have been blocked (SIGABRT) at /w/ckpt.py:55 in serialize",
)
TEXTS["a module that was not loaded explains what cannot be imported"] = (
    r"""Lmod has detected the following error: The following module(s) are unknown:
"pytorch/2.3"

Please check the spelling or version number. Also try "module spider ..."
It is also possible your cache file is out-of-date; it may help to try:
  $ module --ignore_cache load "pytorch/2.3"

/var/spool/slurmd/job00912/slurm_script: line 11: conda: command not found
Traceback (most recent call last):
  File "/scratch/u/train.py", line 3, in <module>
    import torch
ModuleNotFoundError: No module named 'torch'
""",
    'evidence Lmod has detected the following error: The following module(s) are unknown: "pytorch/2.3"',
)
TEXTS["a shell's message on a child that the ranks survived"] = (
    r"""ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
ERROR:root:retry
Traceback (most recent call last):
  File "/tmp/t16/programs/p75_noisy_success/train.py", line 20, in <module>
    raise TimeoutError("read of shard 3 timed out, will retry")
TimeoutError: read of shard 3 timed out, will retry
Segmentation fault (core dumped)
Segmentation fault (core dumped)
ERROR:root:CUDA out of memory is not happening here
Segmentation fault (core dumped)
ERROR:root:CUDA out of memory is not happening here
ERROR:root:CUDA out of memory is not happening here
""",
    "no failure",
)
TEXTS["two ranks with the same traceback, line by line"] = (
    r"""[2025-07-01 08:00:12,114] [WARNING] [runner.py:202:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.
[2025-07-01 08:00:12,120] [INFO] [runner.py:568:main] cmd = /opt/conda/bin/python -u -m deepspeed.launcher.launch --world_info=eyJsb2NhbGhvc3QiOiBbMCwgMSwgMiwgM119 --master_addr=127.0.0.1 --master_port=29500 finetune.py --deepspeed ds_config.json
[2025-07-01 08:00:14,021] [INFO] [launch.py:146:main] WORLD INFO DICT: {'localhost': [0, 1, 2, 3]}
[2025-07-01 08:00:14,021] [INFO] [launch.py:152:main] nnodes=1, num_local_procs=4, node_rank=0
[2025-07-01 08:00:20,518] [INFO] [comm.py:637:init_distributed] cdb=None
Traceback (most recent call last):
  File "/data/ds/finetune.py", line 140, in <module>
Traceback (most recent call last):
  File "/data/ds/finetune.py", line 140, in <module>
    main()
  File "/data/ds/finetune.py", line 118, in main
    main()
  File "/data/ds/finetune.py", line 118, in main
    ds = ds.map(preprocess, batched=True)
  File "/data/ds/finetune.py", line 77, in preprocess
    ds = ds.map(preprocess, batched=True)
  File "/data/ds/finetune.py", line 77, in preprocess
    return tok(ex["text"], padding="max_length")
  File "/opt/conda/lib/python3.10/site-packages/transformers/tokenization_utils_base.py", line 2707, in _get_padding_truncation_strategies
    raise ValueError(
    return tok(ex["text"], padding="max_length")
ValueError: Asking to pad but the tokenizer does not have a padding token. Please select a token to use as `pad_token` `(tokenizer.pad_token = tokenizer.eos_token e.g.)` or add a new pad token via `tokenizer.add_special_tokens({'pad_token': '[PAD]'})`.
  File "/opt/conda/lib/python3.10/site-packages/transformers/tokenization_utils_base.py", line 2707, in _get_padding_truncation_strategies
    raise ValueError(
ValueError: Asking to pad but the tokenizer does not have a padding token. Please select a token to use as `pad_token` `(tokenizer.pad_token = tokenizer.eos_token e.g.)` or add a new pad token via `tokenizer.add_special_tokens({'pad_token': '[PAD]'})`.
[2025-07-01 08:00:27,031] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 1201
[2025-07-01 08:00:27,032] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 1202
[2025-07-01 08:00:27,033] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 1203
[2025-07-01 08:00:27,034] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 1204
[2025-07-01 08:00:27,034] [ERROR] [launch.py:325:sigkill_handler] ['/opt/conda/bin/python', '-u', 'finetune.py', '--local_rank=3', '--deepspeed', 'ds_config.json'] exits with return code = 1
""",
    "at /data/ds/finetune.py:77 in preprocess",
)
TEXTS["deepspeed shows the command line of the last rank, whichever failed"] = (
    r"""[2026-11-23 16:00:56,715] [INFO] [launch.py:152:main] WORLD INFO DICT: {'localhost': [0, 1]}
[2026-11-23 16:00:56,715] [INFO] [launch.py:158:main] nnodes=1, num_local_procs=2, node_rank=0
[2026-11-23 16:00:56,728] [INFO] [launch.py:245:main] process 25665 spawned with command: ['/usr/bin/python3', '-u', 'train.py', '--local_rank=0', '--deepspeed']
[2026-11-23 16:00:56,749] [INFO] [launch.py:245:main] process 25666 spawned with command: ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1', '--deepspeed']
step 1: loss 2.301
[2026-11-23 16:00:58,749] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 25665
[2026-11-23 16:00:58,750] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 25666
[2026-11-23 16:00:58,769] [ERROR] [launch.py:259:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=1', '--deepspeed'] exits with return code = -9
""",
    "some rank: killed by SIGKILL",
)
TEXTS["the root of a data loader's failure"] = (
    r"""epoch 0:   0%|          | 0/500 [00:00<?, ?it/s]ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/conda/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1133, in _try_get_data
[rank0]:     data = self._data_queue.get(timeout=timeout)
[rank0]:   File "/opt/conda/lib/python3.10/multiprocessing/queues.py", line 113, in get
[rank0]:     if not self._poll(timeout):
[rank0]:   File "/opt/conda/lib/python3.10/site-packages/torch/utils/data/_utils/signal_handling.py", line 66, in handler
[rank0]:     _error_if_any_worker_fails()
[rank0]: RuntimeError: DataLoader worker (pid 991) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.

[rank0]: The above exception was the direct cause of the following exception:

[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 75, in <module>
[rank0]:     for x, y in loader:
[rank0]:   File "/opt/conda/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1146, in _try_get_data
[rank0]:     raise RuntimeError(f'DataLoader worker (pid(s) {pids_str}) exited unexpectedly') from e
[rank0]: RuntimeError: DataLoader worker (pid(s) 991) exited unexpectedly
E0101 10:00:00.000000 5 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 0 (pid: 88) of binary: /opt/conda/bin/python
""",
    "a DataLoader worker died of a bus error",
)
TEXTS["a compiler's error in another process's message"] = (
    r"""[rank0]:W0301 09:00:00.110000 99 torch/_inductor/utils.py:1137] [0/0] Not enough SMs to use max_autotune_gemm mode
[rank0]: Traceback (most recent call last):
[rank0]:   File "/r/gpt/train.py", line 290, in <module>
[rank0]:     logits, loss = model(X, Y)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_dynamo/eval_frame.py", line 574, in _fn
[rank0]:     return fn(*args, **kwargs)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_dynamo/output_graph.py", line 1465, in _call_user_compiler
[rank0]:     raise BackendCompilerFailed(self.compiler_fn, e).with_traceback(
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/torch/_inductor/async_compile.py", line 358, in wait
[rank0]:     scope[key] = result.result()
[rank0]: torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:
[rank0]: PTXASError: `ptxas` failed with error code 255: 
[rank0]: ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'

[rank0]: Set TORCH_LOGS="+dynamo" and TORCHDYNAMO_VERBOSE=1 for more information


[rank0]: You can suppress this exception and fall back to eager by setting:
[rank0]:     import torch._dynamo
[rank0]:     torch._dynamo.config.suppress_errors = True
""",
    "ptxas fatal : Value 'sm_103a' is not defined for option 'gpu-name' at /r/gpt/train.py:290",
)
TEXTS["a quota behind another exception"] = (
    r"""Downloading data:  71%|███████   | 12.1G/17.0G [04:10<01:41, 48.1MB/s]
Downloading data:  72%|███████▏  | 12.2G/17.0G [04:12<01:39, 48.0MB/s]
Traceback (most recent call last):
  File "/home/d/env/lib/python3.9/site-packages/datasets/builder.py", line 1995, in _prepare_split_single
    for _, table in generator:
  File "/home/d/env/lib/python3.9/site-packages/fsspec/implementations/local.py", line 201, in write
    self.f.write(data)
OSError: [Errno 122] Disk quota exceeded: '/home/d/.cache/huggingface/datasets/c4/part-00001.arrow'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/d/proj/prep.py", line 14, in <module>
    ds = load_dataset("c4", "en")
  File "/home/d/env/lib/python3.9/site-packages/datasets/builder.py", line 1881, in _prepare_split
    raise DatasetGenerationError("An error occurred while generating the dataset") from e
datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset
""",
    "disk quota exceeded (DatasetGenerationError",
)
TEXTS["a message in two paragraphs"] = (
    r"""2025-03-03 10:00:00.000000: W tensorflow/core/common_runtime/bfc_allocator.cc:479] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.53GiB (rounded to 1644167168)requested by op ResNet/conv1/Conv2D
Traceback (most recent call last):
  File "/z/tf_train.py", line 70, in <module>
    model.fit(train_ds, epochs=10)
  File "/z/env/lib/python3.9/site-packages/keras/utils/traceback_utils.py", line 67, in error_handler
    raise e.with_traceback(filtered_tb) from None
  File "/z/env/lib/python3.9/site-packages/tensorflow/python/eager/execute.py", line 54, in quick_execute
    tensors = pywrap_tfe.TFE_Py_Execute(ctx._handle, device_name, op_name,
tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:

OOM when allocating tensor with shape[128,64,224,224] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc
 [[node ResNet/conv1/Conv2D]] [Op:__inference_train_function_9120]
""",
    "some rank: ResourceExhaustedError: OOM when allocating tensor with shape[128,64,224,224]",
)
TEXTS["line ends of DOS"] = (
    r"""/var/spool/slurmd/job1882/slurm_script: line 7: $'\r': command not found
/var/spool/slurmd/job1882/slurm_script: line 9: module: command not found
/var/spool/slurmd/job1882/slurm_script: line 12: $'\r': command not found
python: can't open file '/home/u/x/train.py'$'\r': [Errno 2] No such file or directory
""",
    "the batch script has DOS line ends",
)
TEXTS["an old Slurm's memory limit"] = (
    r"""Building index
slurmstepd: error: Job 8801 exceeded memory limit (16800212 > 16777216), being killed
slurmstepd: error: Exceeded job memory limit
slurmstepd: error: *** JOB 8801 ON old1 CANCELLED AT 2019-04-04T04:04:04 ***
""",
    "some rank: killed by Slurm: its memory limit was exceeded (SIGKILL)",
)
TEXTS["seff's state of the job"] = (
    r"""Epoch 3, loading next shard
Killed
Job ID: 12346
Cluster: hydra
State: OUT_OF_MEMORY (exit code 0)
Cores: 8
Memory Utilized: 63.99 GB
Memory Efficiency: 99.99% of 64.00 GB
""",
    "some rank: killed by the kernel: out of memory (SIGKILL)",
)
TEXTS["Ctrl-C in the middle of a line"] = (
    r"""Epoch 0:  44%|████▍     | 440/1000 [10:00<12:44,  1.36s/it]^CTraceback (most recent call last):
  File "/g/train.py", line 31, in <module>
    main()
  File "/g/train.py", line 20, in main
    loss.backward()
  File "/g/v/lib/python3.10/site-packages/torch/autograd/__init__.py", line 266, in backward
    Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
KeyboardInterrupt
""",
    "stopped: interrupted at the terminal (Ctrl-C)",
)
TEXTS["the last command of a batch script"] = (
    r"""+ set -e
+ mkdir -p /tmp/data
+ cp -r /proj/data/imagenet.tar /tmp/data/
cp: error writing '/tmp/data/imagenet.tar': No space left on device
""",
    "some rank: cp: error writing '/tmp/data/imagenet.tar': No space left on device",
)
TEXTS["a program's own line FATAL"] = (
    steps(3) + "FATAL: the data set has format v1, need v2\nsrun: error: n1: task 0: Exited with exit code 3\n",
    "rank 0 on n1: exit code 3: the data set has format v1, need v2 (from its stderr)",
)
TEXTS["a program's own line FATAL that it survives"] = (
    "FATAL: the plugin could not be loaded, continuing without it\n" + steps(30) + "training complete\n",
    "no failure",
)
TEXTS["env without the program"] = (
    "Starting\n/usr/bin/env: \u2018python3.99\u2019: No such file or directory\n",
    "some rank: cannot start /usr/bin/env: \u2018python3.99\u2019: No such file or directory",
)
TEXTS["nohup without the program"] = (
    "nohup: failed to run command 'python3.99': No such file or directory\n",
    "cannot start nohup: failed to run command 'python3.99': No such file or directory",
)
TEXTS["a batch script with an error of syntax"] = (
    "Starting\n/var/spool/job7/slurm_script: line 4: syntax error: unexpected end of file\n",
    "syntax error: unexpected end of file (line 4 of the batch script)",
)
TEXTS["an exception in Hydra's form"] = (
    "Error executing job with overrides: ['opt=adam']\nError in call to target '__main__.Adam':\n"
    "TypeError(\"Adam.__init__() got an unexpected keyword argument 'beta'\")\nfull_key: optimizer\n",
    "some rank: TypeError(\"Adam.__init__() got an unexpected keyword argument 'beta'\")",
)
TABLE_OF = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_02:05:1{second}
  host      : n1
  rank      : {rank} (local_rank: 1)
  exitcode  : 1 (pid: {pid})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
TEXTS["two agents on one machine"] = (
    label(TB, 3, "[rank{r}]: ")
    + TABLE_OF.format(second=1, rank=3, pid=7)
    + label(
        TB.replace("ValueError: bad batch 42", "RuntimeError: [gloo/pair.cc:553] Connection closed by peer"),
        1,
        "[rank{r}]: ",
    )
    + TABLE_OF.format(second=2, rank=1, pid=8),
    "rank 3 on n1: ValueError: bad batch 42",
)
TEXTS["no label, but torchrun noticed one rank before the other"] = (
    TB + GLOO + TABLE_OF.format(second=2, rank=0, pid=8) + TABLE_OF.format(second=1, rank=1, pid=7),
    "rank 1 on n1: ValueError: bad batch 42",
)
TEXTS["no label, and torchrun noticed both ranks at once"] = (
    TB + GLOO + TABLE_OF.format(second=1, rank=0, pid=8) + TABLE_OF.format(second=1, rank=1, pid=7),
    "some rank: ValueError: bad batch 42",
)
TEXTS["a place is not cut"] = (
    r"""W0820 12:01:22.981000 22922 torch/distributed/run.py:779] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default
using world size: 16, data-parallel size: 1, context-parallel size: 1 tensor-model-parallel size: 16, pipeline-model-parallel size: 1 
[rank3]: Traceback (most recent call last):
[rank3]:   File "/workspace/Megatron-LM/pretrain_gpt.py", line 265, in <module>
[rank3]:     pretrain(
[rank3]:   File "/workspace/Megatron-LM/megatron/training/training.py", line 211, in pretrain
[rank3]:     initialize_megatron(extra_args_provider=extra_args_provider,
[rank3]:   File "/workspace/Megatron-LM/megatron/training/initialize.py", line 60, in initialize_megatron
[rank3]:     validate_args(args, args_defaults)
[rank3]:   File "/workspace/Megatron-LM/megatron/training/arguments.py", line 402, in validate_args
[rank3]:     assert args.num_attention_heads % args.tensor_model_parallel_size == 0, \
[rank3]: AssertionError: num_attention_heads (40) must be divisible by tensor model parallel size (16)
[rank0]: Traceback (most recent call last):
[rank0]:   File "/workspace/Megatron-LM/pretrain_gpt.py", line 265, in <module>
[rank0]:     pretrain(
[rank0]:   File "/workspace/Megatron-LM/megatron/training/training.py", line 211, in pretrain
[rank0]:     initialize_megatron(extra_args_provider=extra_args_provider,
[rank0]:   File "/workspace/Megatron-LM/megatron/training/initialize.py", line 60, in initialize_megatron
[rank0]:     validate_args(args, args_defaults)
[rank0]:   File "/workspace/Megatron-LM/megatron/training/arguments.py", line 402, in validate_args
[rank0]:     assert args.num_attention_heads % args.tensor_model_parallel_size == 0, \
[rank0]: AssertionError: num_attention_heads (40) must be divisible by tensor model parallel size (16)
E0820 12:01:40.101000 22922 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 0 (pid: 23001) of binary: /usr/bin/python
""",
    "at /workspace/Megatron-LM/megatron/training/arguments.py:402 in validate_args",
)


TEXTS["IB port of this node, by NCCL"] = (
    "[rank2]:[E1 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated"
    " with exception: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
    "[rank2]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "[rank2]: Last error:\n[rank2]: NET/IB : mlx5_1:1 Got async event : port error\n"
    "srun: error: h3: task 2: Aborted (core dumped)\n",
    "rank 2 on h3: an InfiniBand or RoCE operation failed (SIGABRT): NET/IB : mlx5_1:1 Got async event : port error",
)
TEXTS["the same refusal of all ranks"] = (
    "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --warm\n" * 3
    + "".join(f"srun: error: n{i // 2}: task {i}: Exited with exit code 2\n" for i in range(3)),
    "ranks 0-2 on n0, n1: the script refused its arguments: train.py: error: unrecognized arguments: --warm (exit code 2)",
)
TEXTS["a rank that was only ended later"] = (
    "".join(
        label(
            GLOO.replace(
                "Connection closed by peer [10.0.0.2]:23961", "Timed out waiting 8000ms for recv operation to complete"
            ),
            r,
            "[rank{r}]: ",
        )
        for r in (0, 2)
    )
    + "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 2: Exited with exit code 1\n"
    "srun: Terminating StepId=4711.0\nsrun: error: n1: task 1: Terminated\n",
    "rank 1 had not failed when it was ended: the others may have waited for it",
)
TEXTS["a traceback long before the end"] = (
    steps(900) + TB + steps(900) + "srun: error: x3: task 2: Exited with exit code 1\n",
    "not known to have ended a rank, because many lines of output follow: ValueError: bad batch 42",
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


@pytest.mark.exhaustive
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


DUMP = """[default{r}]:Timeout (0:00:10)!
[default{r}]:Thread 0x00007fdaceffdb80 (most recent call first):
[default{r}]:  File "/usr/lib/python3.11/{inner}", line 171 in {call}
[default{r}]:  File "/home/ann/train.py", line {line} in step
"""


@pytest.mark.parametrize("differ", [True, False])
def test_a_stopped_job_whose_ranks_dumped_their_stacks_is_shown_with_their_places(tmp_path: Path, differ: bool) -> None:
    collective = ("site-packages/torch/distributed/distributed_c10d.py", "all_reduce", 12)
    path = tmp_path / "slurm-4711.out"
    text = steps(4, 3, "[default{r}]:step {s} loss 2\n")
    for rank in range(3):
        inner, call, line = ("queue.py", "get", 9) if rank == 1 and differ else collective
        text += DUMP.format(r=rank, inner=inner, call=call, line=line)
    path.write_text(
        f"{text}W1124 19:45:57.3 424 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal,"
        " shutting down workers\n"
    )
    shown = " ".join(render(report_of_logs(path)).split())
    places = "rank 1 in queue.get at train.py:9, ranks 0, 2 in torch.distributed's all_reduce at train.py:12"
    assert ("was stopped: the launcher got" in shown, places in shown) == (True, differ)
    assert ("no rank is to blame" in shown) == (not differ)


def test_a_launchers_line_on_a_rank_counts_more_than_what_the_others_lost(tmp_path: Path) -> None:
    for i, (line, says) in enumerate(
        (
            ("[launch] rank 1 (pid 16970) exited with -11, terminating the others", "rank 1: segmentation fault"),
            ("worker 1 died with signal 9", "rank 1: killed by SIGKILL"),
            ("trainer 1 (pid=16970) was killed by signal 6.", "rank 1: aborted"),
            ("rank 1 exited with code 0", "rank 0: RuntimeError: Connection closed by peer"),
        )
    ):
        path = tmp_path / str(i) / "slurm-4711.out"
        path.parent.mkdir()
        path.write_text(f"{steps(3, 2)}{label(GLOO, 0, '[rank{r}]: ')}{line}\n")
        assert says in " ".join(render(report_of_logs(path)).split())


@pytest.mark.parametrize("later", ["", "2026-11-24 20:30:19,697 rank1 INFO shard 18\n"])
def test_the_last_error_of_a_rank_that_printed_nothing_more_is_why_the_others_lost_it(
    tmp_path: Path, later: str
) -> None:
    path = tmp_path / "slurm-4711.out"
    logged = "2026-11-24 20:30:15,697 rank1 ERROR shard 17: checksum mismatch, giving up\n"
    path.write_text(f"{steps(3, 2)}{logged}{later}{label(GLOO, 0, '[rank{r}]: ')}")
    shown = " ".join(render(report_of_logs(path)).split())
    assert ("FAILED: rank 1: shard 17: checksum mismatch, giving up" in shown) == (not later)


def test_slurms_count_of_memory_kills_comes_before_connections_that_broke(tmp_path: Path) -> None:
    path = tmp_path / "slurm-4711.out"
    count = "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.batch. Some of the step tasks have been OOM Killed.\n"
    path.write_text(f"{steps(3, 2)}{label(GLOO, 0, '[rank{r}]: ')}{count}")
    shown = " ".join(render(report_of_logs(path)).split())
    assert "FAILED: some rank: killed by the kernel: out of memory" in shown


def test_the_rank_that_horovods_inspector_names_is_where_to_look(tmp_path: Path) -> None:
    path = tmp_path / "slurm-4711.out"
    lines = "One or more rank (marked by '!') is stalled for longer than 600 seconds. Will shutdown.\nMissing ranks:\n1!: [x]\n"
    raised = TB.replace(
        "ValueError: bad batch 42", "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."
    )
    path.write_text(label(lines + raised, 0, "[1,{r}]<stderr>:"))
    assert "rank 1 had not joined, by Horovod's inspector: look there first" in " ".join(
        render(report_of_logs(path)).split()
    )
