"""What the report makes of excerpts of real jobs' logs, as people paste them into public threads.

They begin or end anywhere, even within a traceback; ``expected`` has what an expert concludes from each text alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ftslurm.report.command import main
from ftslurm.report.pipeline import report_of_logs
from ftslurm.report.text import render

EXCERPTS = Path(__file__).parents[1] / "corpus/excerpts"
NONE = "-"
EXPECTED = [
    line.split() for line in (EXCERPTS / "expected").read_text().splitlines() if line and not line.startswith("#")
]


@pytest.mark.parametrize("row", EXPECTED, ids=[row[0] for row in EXPECTED])
def test_an_excerpt_is_explained_by_what_it_contains(row: list[str], tmp_path: Path) -> None:
    name, rank, node, cause, place = row
    # Alone, so that no other one counts as a file of the same job.
    log = tmp_path / "slurm-4711.out"
    shutil.copy(EXCERPTS / f"{name}.txt", log)
    found = report_of_logs(log)["cause"] or {}
    where = found.get("where")
    base = where["file"].replace("\\", "/").rpartition("/")[2] if where else ""
    known = (found.get("rank"), found.get("node"), found.get("cause"), f"{base}:{where['line']}" if where else None)
    # The name of a process of Ray has blanks.
    assert tuple(NONE if each is None else str(each).replace(" ", "_") for each in known) == (rank, node, cause, place)


HEADLINES = {
    "ag-05": "ranks 0-1 on hpc-pg0-1, hpc-pg0-2: the container's image has no such program",
    "ag-06": "Fatal error in PMPI_Comm_connect: Invalid port",
    "ag-07": "Fatal error in PMPI_Waitall: OFI poll failed (Input/output error - UNDELIVERABLE)",
    "ag-09": "rank 71 on j15r3n09: exit code 1: step300299-ran out of space on angle_list: top=1052",
    "ag-107": "PRTE has lost communication with a remote daemon.",
    "ag-11": "There are not enough slots available in the system",
    "ag-118": "nvcc fatal : Unsupported gpu architecture 'compute_90a'",
    "ag-133": "time limit reached; nothing was printed for the last 21 h 59 min",
    "ag-139": "rank 12 on cn22: aborted (SIGABRT): ib_mlx5_log.c:177",
    "ag-156": "rank 9 on z3: exit code 99: CFL violated at step 4412",
    "ag-61": "distance out of cell 35.207417",
    "al-01": "CUDA Error: an illegal memory access was encountered at utilities/gpu_vector.cu:117",
    "al-05": 'rank 57: exit code 1: Cannot find file "points" in directory',
    "al-12": "the input line : SCALEINT=100",
    "al-27": "rank 3: a number is not finite (Unexpected result nan on rank 3",
    "al-29": "rank 0: killed by SIGKILL",
    "al-35": "rank 3 on nid00061: segmentation fault (SIGSEGV) hint: Native code crashed in Julia's expression",
    "al-37": "Error in routine card_atomic_positions (2): ATOMIC_SPECIES must be present before",
    "al-38": "first noticed: rank 459 on r10i5n2",
    "al-40": "ranks 16-19: called MPI_Abort with errorcode 128",
    "al-44": "exit code 1: [ABORT] CPASSERT failed fm/cp_cfm_basic_linalg.F:891",
    "al-48": "exit code 1: MFEM abort: Error in PETSc",
    "al-52": "exit code 255: There is no domain",
    "al-54": "Charm++ processor 74828: Charm++ Warning: Non Charm++",
    "al-59": "'cuda': INTERNAL: no supported devices found for platform CUDA",
    "al-62": '"assert md is not None" (on ranks 0, 1, 2,',
    "al-63": "some rank on 172.20.96.130: A worker died or was killed",
    "al-68": "send completion with error: transport retry counter exceeded",
    "al-69": "MLException: worker:0 python process exited with code 137",
    "al-71": "rank 3: Rank 3 successfully reached monitoredBarrier, but",
    "al-90": "some rank: PreconditionNotMetError: The connection to the",
    "an-05": "rank 1: FloatingPointError: Loss became infinite or NaN at iteration=137! (in process 1)",
    "an-13": 'rank 0: AssertionError in "assert metadata is not None" (on ranks 0, 1, 2, 3, 4, 5, 6, 7)',
    "an-16": "hint: If the server is one of the job's own",
    "an-21": "ranks 0-1 on 62d88bdd9d38: libraries do not fit together (.../flash_attn_2_cuda",
    "an-29": "ranks 0-3 on node001: the container could not be started: [ERROR] Command not found: nvidia-",
    "an-33": "rank 4 on 50428e4af543: an InfiniBand or RoCE peer did not answer",
    "an-36": "rank 4 on hpc-25-15: two processes are the same rank",
    "an-57": "rank 7: NCCL's watchdog aborted the process (SIGABRT): ALLREDUCE #64088",
    "an-69": "rank 1: FileNotFoundError",
    "an-84": "no failure found",
    "ao-01": "Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cpu!",
    "ao-52": "HIP out of memory. Tried to allocate 2.50 GiB (1.12 GiB of 63.98 GiB free on GPU 5)",
    "ao-64": "PytorchStreamWriter failed writing file data/322: file write failed) at .../engine.py:1334",
    "ao-66": "rank 2: NCCL's watchdog aborted the process (SIGABRT): _ALLGATHER_BASE #120049",
    "ao-85": "hint: If the server is one of the job's own",
    "ao-88": "ranks 0, 2, 4: NCCL's watchdog got stuck on this rank",
    "rv-a1": "exit code 1: shard 17 of the data set is corrupted",
    "rv-b1": "time limit reached; nothing was printed for the last 3 h 21 min",
    "rv-h2": "no connection to n1:29500 within 10 min",
    "ac-25": "ranks 0-3: RuntimeError: Not enough memory",
    "ac-32": "ValueError: Free memory on device",
    "ac-45": "some rank: killed by the kernel: out of memory",
    "ac-61": "no failure found in these logs",
    "aa-03": "Timed out task names: tasks 1-7",
    "aa-15": "SGLang: Scheduler watchdog timeout",
    "aa-24": "Assertion failed: Failed to deserialize cuda engine.",
    "aa-27": "could not be built: ld: cannot find -lcurand",
    "aa-34": "ModuleNotFoundError: No module named 'sparktorch'",
    "aa-38": "NVSHMEM: Peer GPU 1 is not accessible",
    "aa-42": "the GPU driver is too old for this CUDA",
    "r-03-easyr1-ray-oom": "some rank on 10.95.143.76 (pid 137564): Ray killed a task",
    "r-04-llamafactory-watchdog-rank5": "rank 5 printed no time-out of a collective: look there first; it had printed"
    ' last: "WARNING llamafactory',
    "r-07-rocm-deepspeed-fault": "on address (nil)",
    "r-10-composer-signalfile": "(raised in llmfoundry/utils/builders.py:545)",
    "r-13-nemo-srun-tokenizer": "ranks 2-3 on gpu-b12",
    "r-15-torchtitan-closedpool": "ranks 0, 3 on gb200-02",
    "r-36-raytrain-node-died": "Ray: node 10.72.56.9 was marked dead",
    "r-41-llamafactory-noroute": "connect returned No route to host",
    "r-46-rank0-eval-watchdog": 'it had printed last: "eval 3200/4000"',
    "r-47-slurm-timelimit-stall": 'rank 2 had printed last: "WARNING: NFS: server nfs01 not responding',
    "r-55-swallowed-logger": 'RuntimeError("stack expect',
    "r-57-dcp-quota": "ranks 10-11: OSError",
    "w-11-slurm-3301992": "ranks 0-3 on hpc-gpu-14: ModuleNotFoundError",
    "w-14-slurm-12": "rank 2 calls BROADCAST #1277 [1], but rank 0 calls ALLREDUCE #1277 [4096]",
    "w-23-slurm-31": "an earlier program of the job had failed: OSError: [Errno 28] No space left on device",
    "w-26-slurm-140022": "an external service was busy or failed",
    "w-31-k8s-mmtrain-worker-1": "rank 2: a DataLoader worker died of a bus error",
    "u-27-rocm-memfault": "memory access fault of an AMD GPU",
    "s-26-timeout-tee-hang": "1 process in queue.get at train_vision.py:77, 2 processes in _tensor.backward",
    "s-34-thread-death": "thread reader of some rank raised it",
    "s-37-retry-loop-then-ok": "no failure found in these logs",
    "s-41-srun-early-exit": 'it had printed last: "evaluation of 12 batches finished"',
    "s-61-watchdog-deadlock": 'its stderr ends with "WATCHDOG rank 0: no progress for 4 s',
    "s-63-restart-then-ok": "no failure found in these logs",
    "s-70-torchrun-short-shard": "rank 1 is not in torchrun's table of those that failed",
    "s-76-success-atexit": "no failure found in these logs",
    "au-13": "the shell took --data_dir in line 31 of slurm_script for a command",
    "au-14": "hint: Process 3118841 has 61.20 GiB of this GPU, more than this rank",
    "au-16": "another program (vllm) had failed: ValueError: To serve at least one request",
    "ba-10": "ranks 0-3 on node-1: the checkpoint does not fit the model",
    "ba-18": "Process 1234567 has 31.20 GiB of this GPU, without which this would fit",
    "ba-39": "gzip: stdin: unexpected end of file",
    "bc-01": "RuntimeError: stack expects each tensor to be equal size, but got [1024] at entry 0 and [873] at entry 5",
    "bc-06": "the script refused its arguments: unrecognized arguments: --lora_rank 16 (exit code 2)",
    "bc-20": "hint: Check that this object exists in the remote store",
    "bc-23": "hint: All ranks of a group must call the same collectives in the same order",
    "bc-24": "Another program printed why: \"cp: error writing '/home/tk/runs/v3/log.txt': Disk quota exceeded\"",
    "bc-27": "4 workers had exceeded 95% memory budget and been ended for it",
    "bc-29": "a thread of it had ended: Thread-4 (fill), KeyError: 'img is not a file in the archive' at",
    "bc-31": 'line 9: module: command not found" above',
    "bc-32": "ranks 0-1 on hgx04, hgx05: the registry did not give the container's image",
    "bc-35": "kein Speicherplatz mehr verfügbar",
    "be-04": "KeyError: '未知标签: B-药物' at /public/home/liu/ner/data/labels.py:31",
    "be-15": "some rank: KeyError: 'U' at /opt/proteinfold/bin/features.py:52",
    "be-18": "Fehler in solve.default(H) : System ist für den Rechner singulär",
    "be-23": "quota of 104.9G reached !!!",
    "be-25": "gpu17: NET/IB: mlx5_3:1 Got async event : port error",
    "be-28": "rank 6 on jl02: exit code 1: DomainError with",
    "be-29": "Error using dlfeval>denoiseLoss (line 61) Arrays have incompatible sizes for this operation.",
    "bg-13": "rank 1 on ws-gpu1: ValueError: matrix contains invalid numeric entries (its cleanup raised",
    "bg-14": "thread uploader had ended: S3UploadFailedError",
    "bg-15": "ranks 0-7: checkpoint was written with expert_parallel=",
    "bg-16": "at /work/rl/rollout.py:37 (raised in vllm/",
    "bg-20": "rank 2 on bgpu4: OSError: [Errno 116] Stale file handle at",
    "bg-28": "ranks 8-15: RuntimeError: The NVIDIA driver on your system is too old",
    "bg-30": "/usr/local/cuda/bin/nvcc: not found",
    "bg-37": "rounds 1-2: preempted",
    "bi-23": "hint: An adapter reported an error by itself: check that port",
    "bi-24": "its socket could not connect: No route to host",
    "bi-31": "the registry did not give the container's image: regis",
    "bi-32": 'The following module(s) are unknown: "anaconda3/2024.06"" above',
    "bk-03": "rank 0 on gpu-07: JSONDecodeError",
    "bk-10": "rank 0 on gn21: OutOfTerrain: tile (64, 12) outside 64x64 map",
    "bk-27": "was stopped: time limit reached no rank is to blame",
    "bk-29": "cancelled by a user; when it was stopped, it raised NameError: name 'path' is not defined",
    "ar-07": "rank 6: in read_shard at data.py:88 while the others waited for it in ALLREDUCE #412",
    "au-25": "rank 11 on dgx-b02: in response.read at s3_shards.py:88 while the others waited for it in ALLREDUCE",
    "au-27": "rome-17: NET/IB : mlx5_3:1 async event: port error",
    "au-29": "hint: Look at what rank 0 did while the others waited",
    "au-40": "ranks 8-9 on cn-0413: disk full",
    "au-53": "The provided token has expired.)",
    "au-56": "rank 5 had printed no step 3311, but all the others had",
    "au-65": "no failure found in these logs",
    "aw-11": "rank 3 on 10.20.3.17 (pid 88213): ValueError: Expected more than 1 value per channel",
    "aw-14": "ranks 0, 2-3: ValueError: Reused local directory",
    "aw-16": "SyntaxError: future feature annotations is not defined at train.py:3",
    "aw-22": "in a compiled kernel: Assertion `index out of bounds: 0 <= tmp4 < 50257` failed",
    "aw-60": 'look there first; a rank without a label printed "Map: 61%',
    "aw-68": "no failure found in these logs",
    "ay-13": "FileNotFoundError: [Errno 2] No such file or directory",
    "ay-51": "no failure found in these logs",
    "y-03-horovod-tf-dataloss": "rank 2: DataLossError: corrupted record at 133120482",
    "y-09-trtllm-deserialize": "ranks 0-1: RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize",
    "y-12-triton-outofresources": "shared memory, Required: 147456, Hardware limit: 101376.",
    "y-16-ib-retry": "peer 10.4.1.33<51224>, status 12, mlx5_2",
    "y-24-gurobi-license": "(raised in src/gurobipy/env.pxi:90)",
    "y-30-axolotl-pydantic": "ValidationError: bf16 requested, but AMP is not supported on this GPU.",
    "y-42-openmpi-nopmi": "Open MPI was not built with SLURM's PMI support",
    "y-45-ds-ninja": "nvcc fatal : Unsupported gpu architecture 'compute_120'",
    "y-50-nccl-behind": "rank 5 printed no time-out of a collective: look there first",
    "y-51-bash-notfound": "cannot start torchrun: command not found (line 34 of the batch script)",
}


@pytest.mark.parametrize("name", HEADLINES)
def test_an_excerpts_first_lines_have_what_it_shows_beside_the_cause(name: str, tmp_path: Path) -> None:
    log = tmp_path / "slurm-4711.out"
    shutil.copy(EXCERPTS / f"{name}.txt", log)
    first = render(report_of_logs(log)).partition("\n\n")[0]
    assert HEADLINES[name] in " ".join(first.split())


def test_the_table_names_each_excerpt() -> None:
    assert [row[0] for row in EXPECTED] == sorted(path.stem for path in EXCERPTS.glob("*.txt"))


def test_a_log_that_ends_within_a_traceback_gives_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "slurm-4711.out"
    shutil.copy(EXCERPTS / "gr00t-cut.txt", log)
    assert main(["--exit-code", "--logs", str(log)]) == 1
    assert "Exception: the log ends before its type and text" in " ".join(capsys.readouterr().out.split())
