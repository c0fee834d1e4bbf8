"""Evidence for the rows of the catalogue, and what only resembles it: texts of torch, NCCL, CUDA and others."""

from __future__ import annotations

from typing import Any

from ftslurm.failures.evidence import Evidence
from ftslurm.failures.reason import CUT
from ftslurm.records.error import Frame

TORCH = "torch.distributed"
SAVED = ("/home/ann/train.py", "/venv/lib/python3.11/site-packages/torch/serialization.py")


def raised(kind: str, message: str = "", module: str = "builtins", **more: Any) -> Evidence:
    return Evidence("exception", kind, module, message, **more)


def signal(name: str, **more: Any) -> Evidence:
    return Evidence("signal", message=f"killed by {name}", signal=name, **more)


def ended(code: int, **more: Any) -> Evidence:
    text = f"exit code {code}, no Python exception reached the top level"
    return Evidence("exit", message=text, exit_code=code, **more)


def nccl(code: str, error: str, last: str, *warnings: str) -> Evidence:
    text = (
        f"NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {code}, NCCL version 2.27.5\n"
        f"{error}\nLast error:\n{last}"
    )
    return raised("DistBackendError", text, TORCH, nccl_warnings=warnings)


UNHANDLED = "ncclUnhandledCudaError: Call to CUDA function failed."
SYSTEM = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
INTERNAL = "ncclInternalError: Internal check failed."
REMOTE = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
IB_NUMBER = "NET/IB : Got completion from peer 10.0.0.7<43210> with status=12 opcode=129 len=0"
IB = (
    "NET/IB: Got completion from peer 10.0.0.7<51161> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0 vendor err 129 "
    "(Send) localGid ::ffff:10.0.0.5 remoteGids::ffff:10.0.0.7 hca mlx5_1"
)
STUCK = (
    "[rank1]:[F1122 12:00:00.000000000 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued work.\n"
)
TIMED_OUT = (
    "[rank1]:[E1122 11:59:00.000000000 ProcessGroupNCCL.cpp:685] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.\n"
)

PRIMARIES = [
    (
        "slurm-memory",
        Evidence(
            "signal",
            message="slurmstepd: error: Step 7.0 exceeded memory limit (6776728 > 6291456), being killed",
            signal="SIGKILL",
            scheduler="OUT_OF_MEMORY",
        ),
    ),
    (
        "batch-memory",
        Evidence(
            "signal",
            message="TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
            signal="SIGKILL",
            scheduler="OUT_OF_MEMORY",
        ),
    ),
    (
        "step-layout",
        Evidence("spawn", message="Task launch for StepId=7.4 failed on node n1: Unable to layout tasks on given cpus"),
    ),
    (
        "container-registry",
        Evidence(
            "spawn", message="the container could not be started: manifests/x returned error code: 401 Unauthorized"
        ),
    ),
    (
        "container-mount",
        Evidence("spawn", message="the container could not be started: mount source /scratch doesn't exist"),
    ),
    (
        "container-driver",
        Evidence(
            "spawn", message="the container could not be started: nvidia-container-cli: nvml error: driver not loaded"
        ),
    ),
    (
        "container-command",
        Evidence(
            "spawn",
            message="the container could not be started: enroot-switchroot: failed to execute: /bin/bash: No such file",
        ),
    ),
    ("cuda-argument", nccl("unhandled cuda error", UNHANDLED, "Cuda failure 1 'invalid argument'")),
    ("cuda-argument", raised("AcceleratorError", "CUDA error: invalid argument")),
    ("gpu-xid", raised("RuntimeError", "GPU 00000000:04:00.0: Detected Critical Xid Error")),
    ("nccl-memory", nccl("unhandled cuda error", UNHANDLED, "Cuda failure 2 'out of memory'")),
    ("nccl-memory", nccl("internal error", INTERNAL, "Socket recv failed", "Failed to CUDA calloc 6291456 bytes")),
    (
        "nccl-shm",
        nccl("unhandled system error", SYSTEM, "Error: failed to extend /dev/shm/nccl-x4Gh to 33030532 bytes"),
    ),
    ("nccl-interface", nccl("internal error", INTERNAL, "Bootstrap : no socket interface found")),
    ("nccl-ib", nccl("remote process exited or there was a network error", REMOTE, IB_NUMBER.replace("12", "4"))),
    ("nccl-ib", nccl("unhandled system error", SYSTEM, "NET/IB : mlx5_1:1 Got async event : local catastrophic error")),
    ("nccl-truncated", nccl("internal error", INTERNAL, "Message truncated : received 1024 bytes instead of 256")),
    (
        "nccl-version",
        nccl("invalid usage", INTERNAL, "Mismatched NCCL version detected : rank 0 2.21.5, rank 8 2.20.3"),
    ),
    ("nccl-stuck", signal("SIGABRT", tail=STUCK)),
    (
        "collective-mismatch",
        raised("RuntimeError", "Detected mismatch between collectives on ranks. Rank 0 is running ..."),
    ),
    (
        "collective-mismatch",
        signal(
            "SIGABRT",
            tail="terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
            "gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 752 vs 500. Received data size doesn't "
            "match expected size. Is there a distributed collective mismatch in your code?\n",
        ),
    ),
    ("model-mismatch", raised("RuntimeError", "DDP expects same model across all ranks, but Rank 1 has 4 params")),
    (
        "model-mismatch",
        raised(
            "RuntimeError",
            "[1]: params[0] in this process with sizes [4, 4] appears not to match sizes of the same "
            "param in process 0.",
        ),
    ),
    (
        "ddp-unused",
        raised("RuntimeError", "Expected to have finished reduction in the prior iteration before starting"),
    ),
    (
        "master-name",
        raised(
            "DistNetworkError",
            "The IPv6 network addresses of (nx, 29500) cannot be retrieved (gai error: "
            "-2 - Name or service not known).",
            TORCH,
        ),
    ),
    (
        "master-name",
        raised(
            "DistNetworkError",
            "The client socket has timed out after 10000ms while trying to connect to (nx, 29500).",
            TORCH,
            tail="[W1123 03:25:13.780 socket.cpp:764] [c10d] The IPv6 network addresses of (nx, 29500) cannot be "
            "retrieved (gai error: -2 - Name or service not known).\n",
        ),
    ),
    (
        "gpu-contained",
        raised(
            "AcceleratorError", "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error", "torch"
        ),
    ),
    ("gpu-stack", raised("RuntimeError", "CUDA error: hardware stack error")),
    (
        "fabric-manager",
        raised(
            "RuntimeError",
            "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
            "before calling NumCudaDevices() that might have already set an error? CUDA Error 802: system "
            "not yet initialized",
        ),
    ),
    ("gpu-peer", raised("RuntimeError", "CUDA error: peer access is not supported between these two devices")),
    (
        "gpu-architecture",
        raised("RuntimeError", "CUDA error: no kernel image is available for execution on the device"),
    ),
    (
        "driver-version",
        raised("RuntimeError", "CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    ),
    ("cuda-graph", raised("RuntimeError", "CUDA error: operation not permitted when stream is capturing")),
    ("amd-hang", signal("SIGABRT", tail="HW Exception by GPU node-8 (Agent handle: 0x55) reason :GPU Hang\n")),
    (
        "amd-fault",
        signal(
            "SIGABRT",
            tail="Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f. Reason: "
            "Page not present or supervisor privilege.\n",
        ),
    ),
    ("hip-error", raised("RuntimeError", "HIP error: the operation cannot be performed in the present state")),
    ("gaudi", raised("RuntimeError", "synStatus=26 [Generic failure] Device acquire failed.")),
    (
        "ascend",
        raised(
            "RuntimeError",
            "InnerRun:torch_npu/csrc/framework/OpParamMaker.cpp:208 NPU error, error code is "
            "507035, EZ9999: Inner Error!",
        ),
    ),
    ("cuda-error", nccl("unhandled cuda error", UNHANDLED, "Cuda failure 'unknown error'")),
    ("cuda-error", raised("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")),
    ("gpu-ecc", nccl("unhandled cuda error", UNHANDLED, "Cuda failure 214 'uncorrectable ECC error encountered'")),
    ("cuda-oom", raised("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    ("service-refused", raised("HTTPError", "403 Client Error: Forbidden for url: https://x", "requests.exceptions")),
    ("service-busy", raised("HfHubHTTPError", "429 Client Error: Too Many Requests", "huggingface_hub.errors")),
    (
        "service-busy",
        raised(
            "ClientError",
            "An error occurred (SlowDown) when calling the GetObject operation: Please reduce your request rate.",
            "botocore.exceptions",
        ),
    ),
    ("service-name", raised("gaierror", "[Errno -3] Temporary failure in name resolution", "socket")),
    ("service-offline", raised("LocalEntryNotFoundError", "Cannot find the requested files", "huggingface_hub.errors")),
    ("service-offline", raised("OSError", "We couldn't connect to 'https://huggingface.co' to load the files")),
    ("service-tls", raised("URLError", "<urlopen error [SSL: WRONG_VERSION_NUMBER] wrong version>", "urllib.error")),
    (
        "service-unreachable",
        raised("ConnectTimeout", "HTTPSConnectionPool: Max retries exceeded", "requests.exceptions"),
    ),
    ("service-unreachable", raised("CommError", "Run initialization has timed out after 90.0 sec.", "wandb.errors")),
    ("libc-old", raised("ImportError", "/lib64/libc.so.6: version `GLIBC_2.32' not found (required by /x/libte.so)")),
    ("libc-old", ended(1, tail="python: /lib64/libc.so.6: version `GLIBC_2.28' not found (required by python)\n")),
    ("library-mismatch", raised("ImportError", "/venv/flash_attn.so: undefined symbol: _ZN3c105ErrorC2E")),
    (
        "library-mismatch",
        raised("ImportError", "/lib64/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by x)"),
    ),
    (
        "library-mismatch",
        ended(127, tail="python: symbol lookup error: /x/libnccl.so: undefined symbol: ncclCommShrink\n"),
    ),
    (
        "compile-cache",
        raised("FileNotFoundError", "[Errno 2] No such file or directory: '/tmp/torchinductor_ann/ab/x.so'"),
    ),
    ("compile-trace", raised("Unsupported", "Failed to trace builtin operator", "torch._dynamo.exc")),
    ("compiler", raised("PTXASError", "PTXAS error: Internal Triton PTX codegen error", "triton.runtime.errors")),
    ("compiler", raised("InductorError", "RuntimeError: Failed to find C compiler.", "torch._inductor.exc")),
    (
        "container",
        ended(1, tail="pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing log\n"),
    ),
    ("container", ended(255, tail="FATAL:   could not open image /data/x.sif: failed to retrieve path\n")),
    ("host-memory", raised("RuntimeError", "std::bad_alloc")),
    (
        "library-missing",
        raised("ImportError", "libGL.so.1: cannot open shared object file: No such file or directory"),
    ),
    (
        "nccl-rank-twice",
        nccl("unhandled system error", SYSTEM, "Bootstrap Root : rank 1 of 8 ranks has already checked in"),
    ),
    (
        "nccl-route",
        nccl(
            "unhandled system error", SYSTEM, "socketStartConnect: Connect to 169.254.3.1<43> failed : No route to host"
        ),
    ),
    ("extension-build", raised("RuntimeError", "Error building extension 'fused_adam': [1/2] g++ -c fused_adam.cpp")),
    ("line-ends", Evidence("exit", message="the batch script has DOS line ends: $'\\r'", exit_code=127)),
    (
        "no-main-guard",
        raised(
            "RuntimeError",
            "An attempt has been made to start a new process before the current process has finished its"
            " bootstrapping phase.",
        ),
    ),
    (
        "rendezvous-timeout",
        raised(
            "RendezvousTimeoutError",
            module="torch.distributed.elastic.rendezvous.api",
            files=("/v/torch/distributed/run.py", "/v/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py"),
        ),
    ),
    (
        "ray-process",
        raised("ActorDiedError", "The actor died unexpectedly before finishing this task.", "ray.exceptions"),
    ),
    (
        "ray-node",
        raised("ActorDiedError", "The actor is dead because its node has died.", "ray.exceptions"),
    ),
    (
        "ray-memory",
        raised("OutOfMemoryError", "Task was killed due to the node running low on memory.", "ray.exceptions"),
    ),
    ("buffer-overflow", signal("SIGABRT", tail="*** stack smashing detected ***: terminated\n")),
    ("process-limit", raised("RuntimeError", "Resource temporarily unavailable")),
    ("process-limit", signal("SIGSEGV", tail="OpenBLAS blas_thread_init: pthread_create failed for thread 12 of 64\n")),
    ("open-files", raised("RuntimeError", "received 0 items of ancdata")),
    (
        "open-files",
        raised(
            "RuntimeError",
            "unable to open shared memory object </torch_9_1> in read-write mode: Too many open files (24)",
        ),
    ),
    ("dataloader-timeout", raised("RuntimeError", "DataLoader timed out after 120 seconds")),
    ("pin-memory", raised("RuntimeError", "Pin memory thread exited unexpectedly")),
    (
        "checkpoint-damaged",
        raised(
            "RuntimeError",
            "PytorchStreamReader failed reading zip archive: failed finding central directory",
            files=SAVED,
        ),
    ),
    ("checkpoint-damaged", raised("UnpicklingError", "pickle data was truncated", "_pickle", files=SAVED)),
    ("checkpoint-damaged", raised("EOFError", "Ran out of input", files=SAVED)),
    ("checkpoint-damaged", raised("EOFError", files=SAVED)),
    (
        "checkpoint-damaged",
        raised("OSError", "[Errno 22] Invalid argument", frames=(Frame(SAVED[1], 1484, "load"),), files=SAVED),
    ),
    (
        "checkpoint-damaged",
        raised("SafetensorError", "Error while deserializing header: MetadataIncompleteBuffer", "safetensors_rust"),
    ),
    (
        "checkpoint-damaged",
        raised("RuntimeError", "unexpected EOF, expected 9216 more bytes. The file might be corrupted."),
    ),
    (
        "checkpoint-mismatch",
        raised("RuntimeError", "Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict"),
    ),
    ("data-damaged", raised("EOFError", "Compressed file ended before the end-of-stream marker was reached")),
    ("data-damaged", raised("OSError", "image file is truncated (3 bytes not processed)")),
    ("checkpoint-mismatch", raised("RuntimeError", "Missing key in checkpoint state_dict: model.a.")),
    ("checkpoint-mismatch", raised("ValueError", "loaded state dict contains a parameter group that doesn't match")),
    ("weights-only", raised("UnpicklingError", "Weights only load failed. This file can still be loaded", "_pickle")),
    ("file-locks", raised("OSError", "[Errno 37] No locks available")),
    ("filesystem", raised("OSError", "[Errno 19] No such device: '/nvme0/shard-3'")),
    ("filesystem", raised("RuntimeError", "write(): fd 29 failed with Input/output error")),
    ("filesystem", raised("TimeoutError", "[Errno 110] Connection timed out: '/nfs/data/shard-3'")),
    (
        "silent-corruption",
        raised("RuntimeError", "Parameter hashes not matching across DP replicas: parameter hash mismatch"),
    ),
    ("heap-corruption", signal("SIGABRT", tail="malloc(): unaligned tcache chunk detected\n")),
]
FOLLOWING = [
    ("nccl-ib-peer", nccl("remote process exited or there was a network error", REMOTE, IB)),
    ("nccl-ib-peer", nccl("unhandled system error", SYSTEM, "", IB)),
    ("nccl-ib-peer", nccl("remote process exited or there was a network error", REMOTE, IB_NUMBER)),
    (
        "peer-reset",
        nccl(
            "remote process exited or there was a network error",
            REMOTE,
            "socketProgress: Connection closed by remote peer n2<42830>",
        ),
    ),
    ("rendezvous-closed", raised("RendezvousClosedError", "", "torch.distributed.elastic.rendezvous.api")),
    ("master-unreachable", raised("RendezvousConnectionError", "The connection to the C10d store has failed.")),
    ("peer-failed", raised("RuntimeError", "another rank failed, see its log")),
    ("horovod-end", raised("HorovodInternalError", "Horovod has been shut down. This was caused by an exception")),
    ("peer-reset", nccl("internal error", INTERNAL, "Net : Connection closed by remote peer user<50260>")),
    (
        "late-rank",
        raised(
            "RuntimeError",
            "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms",
            TORCH,
            files=("/x/torch/distributed/distributed_c10d.py",),
        ),
    ),
    (
        "master-unreachable",
        raised(
            "DistNetworkError",
            "The client socket has timed out after 600000ms while trying to connect to (n1, 29500).",
            TORCH,
        ),
    ),
    ("stop-reaction", raised("SIGTERMException", "", "lightning.pytorch.utilities.exceptions")),
    (
        "stop-reaction",
        raised("SignalException", "Process 77 got signal: 15", "torch.distributed.elastic.multiprocessing.api"),
    ),
    ("nccl-abort", signal("SIGABRT", tail=TIMED_OUT + STUCK)),
    (
        "cut-in-collective",
        raised("Exception", CUT, files=("/home/ann/train.py", "/v/torch/distributed/distributed_c10d.py")),
    ),
]
RESEMBLING = [
    (
        "a shard whose number is a status",
        raised("ReadError", "cannot read shard-502.tar", "httpx"),
        "service-unreachable",
    ),
    ("a count in parentheses", raised("RuntimeError", "wrong number of files (24)"), "exception"),
    ("a script's own peers", raised("RuntimeError", "P2P transfer failed, invalid peer"), "exception"),
    ("a script's own capture", raised("RuntimeError", "the camera failed during capture"), "exception"),
    ("a script's own type Unsupported", raised("Unsupported", "format 3", "readers"), "exception"),
    ("an image that the script logs", ended(3, tail="FATAL: image 5 cannot be decoded\n"), "exit"),
    ("a mount that the script logs", ended(3, tail="[ERROR] mount point of the camera\n"), "exit"),
    ("a script's own name for a damaged checkpoint", raised("KeyError", "'checkpoint corrupt'"), "exception"),
    (
        "a queue that ended",
        raised("EOFError", "Ran out of input", files=("/usr/lib/python3.11/multiprocessing/queues.py",)),
        "exception",
    ),
    ("a stream of the script's that ended", raised("EOFError", files=("/home/ann/train.py",)), "exception"),
    ("a checksum of a download", raised("ValueError", "checksum mismatch for data.tar.gz"), "exception"),
    ("a user's number 429", raised("ValueError", "429 rows expected"), "exception"),
    ("a time-out of a socket of the user's", raised("TimeoutError", "[Errno 110] Connection timed out"), "exception"),
    ("a user's text about NCCL's memory", raised("ValueError", "NCCL WARN out of memory"), "exception"),
    ("a warning of NCCL before another failure", raised("ValueError", "boom", nccl_warnings=(IB,)), "exception"),
    ("a user's message about collectives", raised("ValueError", "cannot find collectives"), "exception"),
    ("a line of a container long before the end", ended(3, tail="pyxis: importing image\n" + "step\n" * 1000), "exit"),
    ("FATAL in a log line", ended(3, tail="FATAL: no label\n"), "exit"),
    ("an abort with an ERROR line about HSA", signal("SIGABRT", tail="INFO: set HSA_OVERRIDE\n"), "abort"),
    ("free() in a log line", signal("SIGABRT", tail="INFO free(): all buffers\n"), "abort"),
    ("a dictionary's state", raised("KeyError", "'state_dict'"), "exception"),
    ("an undefined name", raised("NameError", "name 'symbol' is not defined"), "exception"),
    (
        "a refused connection of the user's",
        raised("ConnectionRefusedError", "[Errno 111] Connection refused"),
        "exception",
    ),
    ("a user's capture", raised("ValueError", "the camera's stream is capturing"), "exception"),
]
