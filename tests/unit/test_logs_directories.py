"""Directories of a job's files, in which the file that has the reason is not the one of the rank that failed."""

from __future__ import annotations

import json
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
KILLED = """Jul 01 01:02:00 gn07 kernel: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,global_oom,\
task=pt_data_worker,pid=18811,uid=2231
Jul 01 01:02:00 gn07 kernel: Out of memory: Killed process 18811 (pt_data_worker) total-vm:99120012kB
"""
NO_WORKER = """[rank5]: Traceback (most recent call last):
[rank5]:   File "/home/ann/train.py", line 97, in main
[rank5]:     for x, y in loader:
[rank5]:   File "/opt/site-packages/torch/utils/data/dataloader.py", line 1144, in _try_get_data
[rank5]:     raise RuntimeError(f'DataLoader worker (pid(s) {pids}) exited unexpectedly') from e
[rank5]: RuntimeError: DataLoader worker (pid(s) 18811) exited unexpectedly
"""
NCCL_REMOTE = """[rank{r}]: Traceback (most recent call last):
[rank{r}]:   File "/home/ann/train.py", line 266, in main
[rank{r}]:     scaler.step(opt)
[rank{r}]: torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1251, remote process exited or \
there was a network error, NCCL version 2.19.3
[rank{r}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank{r}]: Last error:
[rank{r}]: NET/IB : Got async event : port error
"""
NODE_FAILED = """srun: error: Node failure on n2
slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-01-19T10:11:12 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR \
DETAILS ***
"""
TRACE = 'Traceback (most recent call last):\n  File "/w/features.py", line 74, in join\n    x = t[7]\nKeyError: 7'
INDEX = """Traceback (most recent call last):
  File "/home/ann/collate.py", line 58, in __call__
    labels[i, : ends[-1]] = -100
IndexError: list index out of range
"""
STORE = "[rank0]:[W109 08:10:11.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): got 0 bytes\n"
UNRESOLVED = """Traceback (most recent call last):
  File "optimizer.py", line 413, in init_distribution
    torch.distributed.init_process_group(backend=backend)
  File "/opt/lib/python3.7/site-packages/torch/distributed/rendezvous.py", line 143, in _env_rendezvous_handler
    store = TCPStore(master_addr, master_port, start_daemon)
ValueError: host not found: Name or service not known
"""
NO_IMAGE = """Name:           optimizer-master-0
Events:
  Normal   Pulling    2m50s (x4 over 4m)   kubelet            Pulling image "reg.local/optimizer:v12"
  Warning  Failed     2m50s (x4 over 4m)   kubelet            Failed to pull image "reg.local/optimizer:v12": not found
"""
LOST_STORE = """Traceback (most recent call last):
  File "/opt/bin/torchrun", line 33, in <module>
    sys.exit(main())
  File "/opt/site-packages/torch/distributed/elastic/rendezvous/{file}", line 671, in run
    raise {error}
torch.distributed.elastic.rendezvous.api.{error}
"""
AZURE = (
    INDEX
    + """
[2026-08-17T22:56:52.100000] Command=python train.py exited with 1
Cleaning up all outstanding Run operations, waiting 300.0 seconds
1 items cleaning up...
"""
)
EVENTS = """LAST SEEN   TYPE      REASON    OBJECT             MESSAGE
109s        Warning   Evicted   pod/sft-worker-0   Pod ephemeral local storage usage exceeds the total limit.
109s        Normal    Killing   pod/sft-worker-0   Stopping container pytorch
"""
REMOTE_LOST = """[rank3]:[E814 06:09:40.7 ProcessGroupNCCL.cpp:542] [Rank 3] found async exception when checking for \
NCCL errors: NCCL error: remote process exited or there was a network error, NCCL version 2.20.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgress: Connection closed by remote peer job-worker-0.default.svc<43110>
E0814 06:09:44.9 1 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 3 (pid: 71) \
of binary: /usr/bin/python
"""
WATCHDOG = """[rank{r}]:[E512 11:20:31.1 ProcessGroupNCCL.cpp:629] [Rank {r}] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds.
"""
ROW = """[{r}]:
  time      : 2025-05-12_{time}
  host      : {host}
  rank      : {r} (local_rank: {r})
  exitcode  : {code} (pid: 90{r})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""
CHILD_FAILED = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
{others}------------------------------------------------------------
Root Cause (first observed failure):
{first}============================================================
"""
OOM = """[rank6]: Traceback (most recent call last):
[rank6]:   File "/w/train.py", line 361, in train_step
[rank6]:     loss.backward()
[rank6]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 2 has a total capacity of 79.1 GiB
"""
LAUNCH = """srun: error: Task launch for StepId=96.0 failed on node n1: Socket timed out on send/recv operation
srun: error: Application launch failed: Socket timed out on send/recv operation
"""
REFUSED = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/grpo.py", line 54, in <module>
[rank0]:     trainer = GRPOTrainer(args)
[rank0]: requests.exceptions.ConnectionError: h8:8000: Failed to establish a new connection: Connection refused
"""
NOTICE = "WARNING: BNB_CUDA_VERSION=121 environment variable detected.\nThis can be used to load another version.\n\n"
UNREADABLE = """Traceback (most recent call last):
  File "/w/train.py", line 5, in <module>
    from flash_attn import flash_attn_func
ImportError: flash.so: undefined symbol: _ZN3c10
"""
CHILD_FAILED_OF = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-05-20_07:00:09
  host      : q{n}
  rank      : {s} (local_rank: 1)
  exitcode  : 1 (pid: 2400)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-05-20_07:00:09
  host      : q{n}
  rank      : {r} (local_rank: 0)
  exitcode  : 1 (pid: 2300)
  error_file: <N/A>
============================================================
"""
LOST_CLIENTS = """Traceback (most recent call last):
  File "/w/main.py", line 30, in <module>
    dist.init_process_group('nccl')
  File "/opt/site-packages/torch/distributed/rendezvous.py", line 189, in _create_c10d_store
    return TCPStore(
torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 24/32 clients joined.
"""
NOT_AT_ONCE = "n1:10{r}:200 [{r}] NCCL WARN socketStartConnect: Connect to 10.0.0.3<401> failed : refused, retrying\n"
DIRECTORIES: dict[str, tuple[dict[str, str], str]] = {
    "the kernel killed a loader's worker": (
        {"slurm-90.out": "[rank5]: step 1\n" + NO_WORKER, "dmesg-gn07.txt": KILLED},
        "rank 5: killed by the kernel: the host's memory ran out",
    ),
    "the others notice a failed node by their network": (
        {
            **{f"slurm-4711_{r}.out": STEPS + NCCL_REMOTE.format(r=r) for r in (0, 1)},
            "slurm-4711_2.out": STEPS,
            "slurm-4711.out": NODE_FAILED,
        },
        "n2 failed",
    ),
    "a rank only states that it lost the store": (
        {
            "none_abcdefgh/attempt_0/0/stderr.log": STEPS + STORE,
            "none_abcdefgh/attempt_0/1/stderr.log": STEPS + INDEX,
        },
        "rank 1: IndexError: list index out of range at /home/ann/collate.py:58",
    ),
    "the master's pod did not start": (
        {
            "optimizer-worker-0.log": UNRESOLVED,
            "optimizer-worker-1.log": UNRESOLVED,
            "optimizer-master-0.describe.txt": NO_IMAGE,
        },
        "some rank on optimizer-master-0: the registry did not give the container's image: Failed to pull image",
    ),
    "one node's torchrun lost the store on which the other one waits": (
        {
            "node-0.log": LOST_STORE.format(file="dynamic_rendezvous.py", error="RendezvousTimeoutError"),
            "node-1.log": LOST_STORE.format(file="c10d_rendezvous_backend.py", error="RendezvousConnectionError"),
        },
        "RendezvousConnectionError",
    ),
    "an event of Kubernetes on the pod that the others lost": (
        {
            **{f"sft-worker-{i}.log": f"INFO rank {i + 1} of 3\n{STEPS}" for i in (0,)},
            "sft-master-0.log": "INFO rank 0 of 3\n" + STEPS + CLOSED.format(r=0),
            "sft-worker-1.log": "INFO rank 2 of 3\n" + STEPS + CLOSED.format(r=2),
            "events.txt": EVENTS,
        },
        "on sft-worker-0: Kubernetes ended the pod: Evicted: Pod ephemeral local storage usage exceeds",
    ),
    "nodes that letters count": (
        {"node-a.log": "[rank0]: step 1\n" + CLOSED.format(r=0), "node-b.log": "[rank6]: step 1\n[rank6]: " + INDEX},
        "read as one job's: 2 files",
    ),
    "a platform's lines after each rank's end": (
        {f"std_log_process_0{r}.txt": STEPS + AZURE for r in range(4)},
        "ranks 0-3: IndexError: list index out of range at /home/ann/collate.py:58",
    ),
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
    "a rank that aborted as its connection to a pod broke that was killed for memory": (
        {"job-master-0.log": "step 1\n" + REMOTE_LOST, "job-worker-0.log": "step 1\n", "describe.txt": DESCRIBED},
        "some rank on job-worker-0: killed by the kernel: its memory limit was reached",
    ),
    "time-outs, and aborts without a reason, beside a failure on another node": (
        {
            "slurm-7712-node-a.out": STEPS
            + WATCHDOG.format(r=0)
            + CHILD_FAILED.format(
                others=ROW.format(r=1, time="11:20:35", host="node-a", code=-6),
                first=ROW.format(r=0, time="11:20:35", host="node-a", code=-6),
            ),
            "slurm-7712-node-b.out": STEPS
            + OOM
            + CHILD_FAILED.format(
                others="  <NO_OTHER_FAILURES>\n", first=ROW.format(r=6, time="11:10:33", host="node-b", code=1)
            ),
        },
        "FAILED: rank 6 on node-b: OutOfMemoryError: CUDA out of memory",
    ),
    "files that are only numbered": (
        {"96.o": "Rocky Linux\n", "96.e": LAUNCH},
        "Task launch for StepId=96.0 failed on node n1: Socket timed out on send/recv operation",
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
    "kubectl describes pods in a file of any name": (
        {"job-master-0.log": "step 1\n" + REMOTE_LOST, "job-worker-0.log": "step 1\n", "pods.txt": DESCRIBED},
        "some rank on job-worker-0: killed by the kernel: its memory limit was reached",
    ),
    "a container that was killed for memory waits for its next start": (
        {
            "job-master-0.log": "step 1\n" + REMOTE_LOST,
            "job-worker-0.log": "step 1\n",
            "pods.txt": DESCRIBED.replace(
                "    State: ", "    State:          Waiting\n      Reason:       CrashLoopBackOff\n    Last State: "
            ),
        },
        "some rank on job-worker-0: killed by the kernel: its memory limit was reached",
    ),
    "the log of the server that the ranks did not reach": (
        {
            "trainer.log": "step 1\n" + REFUSED,
            "vllm_server.log": "INFO loading\n" + INDEX.replace("[rank2]: ", "").replace("IndexError", "ValueError"),
        },
        "the server's log (vllm_server.log) ends with a failure: ValueError: list index out of range",
    ),
    "a server's log beside a failure of the ranks' own": (
        {"trainer.log": "step 1\n" + INDEX, "vllm_server.log": "INFO loading\n" + UNRESOLVED},
        "trainer.log",
    ),
    "each node's own file of the same failure": (
        {
            f"node{n}.log": f"{NOTICE * 9}{UNREADABLE * 2}{CHILD_FAILED_OF.format(n=n, r=2 * n, s=2 * n + 1)}"
            for n in range(3)
        },
        "ranks 0-5: ImportError: flash.so: undefined symbol: _ZN3c10",
    ),
    "a number in a file's name that is its node's": (
        {
            **{f"h{n}.log": f"launch node_rank={n} on h{n}\n{LOST_CLIENTS * 2}" for n in range(3)},
            "h3.log": "launch node_rank=3 on h3\n"
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n',
        },
        "FAILED: some rank: the container found no GPU driver",
    ),
    "sacct has the job as completed": (
        {
            "slurm-4455.out": "step 1\nfailed predictions: 31 of 1000\nbye\n",
            "dmesg-n3.txt": "[1.0] NVRM: Xid (PCI:0000:3b:00): 13, pid=4, name=python, Warp Exception\n",
            "sacct.txt": "4455         train  COMPLETED  0:0\n4455.batch   batch  COMPLETED  0:0\n",
        },
        "no failure found",
    ),
    "each process of JAX states its index in its own file": (
        {
            f"slurm-60011_{n}.out": f"jax process: {n} / 3\n"
            + ("RESOURCE_EXHAUSTED: peer\n" if n < 2 else INDEX.replace("[rank2]: ", ""))
            for n in range(3)
        },
        "rank 2: IndexError: list index out of range",
    ),
    "the kernel killed a process that DeepSpeed had started": (
        {
            "train.log": "".join(
                f"[2025-11-20 17:00:01,30{n}] [INFO] [launch.py:256:main] process 910{n} spawned with command:"
                f" ['python', '-u', 'sft.py', '--local_rank={n}']\n"
                for n in range(4)
            )
            + "[2025-11-20 17:05:33,912] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'sft.py',"
            " '--local_rank=3'] exits with return code = -9\n",
            "dmesg.txt": "Out of memory: Killed process 9102 (python) total-vm:412112344kB, anon-rss:128812332kB\n",
        },
        "local rank 2: killed by the kernel: the host's memory ran out",
    ),
    "ranks that say on stdout that they have finished": (
        {
            "none_abcdefgh/attempt_0/0/stderr.log": NOT_AT_ONCE.format(r=0),
            "none_abcdefgh/attempt_0/0/stdout.log": f"{STEPS}rank 0 finished cleanly\n",
            "none_abcdefgh/attempt_0/1/stderr.log": NOT_AT_ONCE.format(r=1),
            "none_abcdefgh/attempt_0/1/stdout.log": f"{STEPS}rank 1 finished cleanly\n",
        },
        "no failure found",
    ),
    "a launcher waited for one that its node does not have": (
        {
            "log_node0.txt": LOST_STORE.format(file="dynamic_rendezvous.py", error="RendezvousTimeoutError")
            + "srun: error: q1: task 0: Exited with exit code 1\n",
            "log_node1.txt": "/var/spool/slurmd/job7/slurm_script: line 31: conda: command not found\n"
            "/home/ann/launch.sh: line 12: torchrun: command not found\n"
            "srun: error: q2: task 1: Exited with exit code 127\n",
        },
        "some rank on q2: cannot start torchrun: command not found",
    ),
    "files named after hosts that count from 0": (
        {
            "z0.log": "step 1\nslurmstepd: error: *** STEP 7.0 ON z0 CANCELLED AT 2026-11-20T09:41:00 ***\n",
            "z1.log": "step 1\nslurmstepd: error: *** STEP 7.0 ON z1 CANCELLED AT 2026-11-20T09:41:00 ***\n",
            "z2.log": "step 1\n" + INDEX,
        },
        "FAILED: some rank on z2: IndexError: list index out of range",
    ),
    "a traceback of an unknown rank": (
        {"as1.log": "step 1\n", "as2.log": "step 1\n" + INDEX.replace("[rank2]: ", ""), "as3.log": "step 1\n"},
        "evidence in as2.log",
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
    "ranks that had failed before srun ended the others": (
        {
            **{f"node{n}.log": LOST_STORE.format(file="store.py", error="DistStoreError") for n in (0, 1, 3)},
            "node2.log": "waiting for /scratch to be mounted\n",
            "slurm-90.out": "".join(f"srun: error: sn4{n}: task {n}: Exited with exit code 1\n" for n in (0, 1, 3))
            + "slurmstepd: error: *** STEP 90.0 ON sn40 CANCELLED AT 2026-11-27T02:27:22 ***\n"
            + "srun: error: sn42: task 2: Terminated\n",
        },
        "DistStoreError",
    ),
    "torchrun's logs in a folder for each node": (
        {
            "slurm-7.out": "step 1\n",
            **{f"torchlogs/r{n}/7_abcdefg{n}/attempt_0/{local}/stderr.log": "" for n in (1, 2) for local in (0, 1)},
            "torchlogs/r2/7_abcdefg2/attempt_0/1/stderr.log": INDEX.replace("rank2", "rank3"),
        },
        "FAILED: local rank 1 on r2: IndexError: list index out of range",
    ),
    "nothing but an output without a job's number": (
        {"train.o": "step 1\n" + INDEX},
        "FAILED: some rank: IndexError: list index out of range",
    ),
    "a job whose output HTCondor could not take back": (
        {
            "job_7.out": "epoch 20: loss 0.1\ntraining finished, exit 0\n",
            "job_7.err": "bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)\n",
            "job_7.log": "001 (7.000.000) 2026-11-19 21:00:02 Job executing on host: <10.0.0.1:9618>\n...\n"
            "012 (7.000.000) 2026-11-19 21:47:02 Job was held.\n"
            "\tError from slot1_3@gpu41: Transfer output files failure: (errno 122) Disk quota exceeded\n"
            "\tCode 12\n...\n",
        },
        "FAILED: some rank on gpu41: HTCondor held the job: Error from slot1_3@gpu41: Transfer output files failure",
    ),
    "a job that HTCondor ran to its exit code": (
        {
            "job_8.log": "001 (8.000.000) 2026-11-19 21:00:02 Job executing on host: <10.0.0.1:9618>\n...\n"
            "005 (8.000.000) 2026-11-19 21:47:02 Job terminated.\n\t(1) Normal termination (return value 3)\n...\n",
        },
        "FAILED: some rank: exit code 3",
    ),
    "the log of a server that shut down after its failure": (
        {
            "train.log": "step 1\n" + REFUSED,
            "vllm_server.log": "INFO: started\nERROR 11-19 21:47:51 [core.py:489] EngineCore had a fatal error.\n"
            + "".join(f"ERROR 11-19 21:47:51 [core.py:489] {line}\n" for line in TRACE.split("\n"))
            + "INFO:     Shutting down\nINFO:     Finished server process [3321]\n",
        },
        "the server's log (vllm_server.log) ends with a failure: KeyError: 7",
    ),
    "nothing but what a collector writes as JSON lines": (
        {
            "pods.jsonl": "".join(
                json.dumps({"levelname": "INFO", "message": f"step {i}", "pod": f"w-{i % 2}", "rank": i % 2}) + "\n"
                for i in range(20)
            )
            + json.dumps({"levelname": "ERROR", "message": "failed", "pod": "w-1", "rank": 1, "exc_info": TRACE})
            + "\n",
        },
        "FAILED: rank 1: KeyError: 7 at /w/features.py:74",
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


def test_a_pod_that_kubernetes_ended_is_shown_with_its_reason_and_not_its_exit_code(tmp_path: Path) -> None:
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
    reason = "the registry did not give the container's image: Failed to pull image"
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
    assert (report["status"], "the launcher got SIGTERM from outside on node0" in shown) == ("stopped", True)
