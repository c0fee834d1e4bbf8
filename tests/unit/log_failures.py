"""Kinds of failures of a rank, with what a report on their output must say."""

# ruff: noqa: E501 - logs are as wide as they are.

from __future__ import annotations

import random
from dataclasses import dataclass

SITE = "/opt/venv/lib/python3.11/site-packages"
USER = "/home/ann/run"


@dataclass
class Failure:
    """What a rank does: its last lines on stderr, its end, and what a report must say."""

    name: str
    text: str
    code: int
    says: tuple[str, ...]
    place: tuple[str, int] | None = None
    slurm: str = ""
    early: bool = False


def traceback(last: str, *frames: tuple[str, int, str, str]) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, line, function, source in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {source}"]
    return "\n".join([*lines, last]) + "\n"


MAIN = (f"{USER}/train.py", 412, "<module>", "main()")


def of_user(last: str, file: str, line: int, function: str, source: str) -> str:
    return traceback(
        last, MAIN, (f"{USER}/train.py", 377, "main", "step(batch)"), (f"{USER}/{file}", line, function, source)
    )


def failures(rng: random.Random) -> list[Failure]:
    n = rng.randrange(20, 900)
    oom = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.2 GiB is free."
    inner = of_user("KeyError: 'shard_17'", "data.py", n, "lookup", "return self.index[name]")
    chained = (
        inner
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + of_user("DataError: cannot load shard 17", "data.py", n + 8, "load", "raise DataError(text) from error")
    )
    loader = traceback(
        "IndexError: Caught IndexError in DataLoader worker process 2.\nOriginal Traceback (most recent call last):\n"
        f'  File "{SITE}/torch/utils/data/_utils/worker.py", line 309, in _worker_loop\n    data = fetcher.fetch(index)\n'
        f'  File "{USER}/data.py", line {n}, in __getitem__\n    return self.items[i]\nIndexError: list index out of range\n',
        MAIN,
        (f"{SITE}/torch/utils/data/dataloader.py", 708, "__next__", "data = self._next_data()"),
        (f"{SITE}/torch/_utils.py", 733, "reraise", "raise exception"),
    )
    state = (
        'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "head.bias". \n'
        "\tsize mismatch for head.weight: copying a param with shape torch.Size([10, 4]) from checkpoint."
    )
    assertion = (
        "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at "
        "some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
        "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    deep = traceback(
        "RecursionError: maximum recursion depth exceeded", MAIN, (f"{USER}/tree.py", n, "walk", "walk(x)")
    )
    deep = deep.replace("RecursionError", "  [Previous line repeated 975 more times]\nRecursionError")
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        f'  |   File "{USER}/train.py", line 412, in <module>\n  |     main()\n'
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        f'    |   File "{USER}/prefetch.py", line {n}, in fetch\n    |     raise ConnectionError("bucket is gone")\n'
        "    | ConnectionError: bucket is gone\n    +------------------------------------\n"
    )
    dump = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f0bd3a4 (most recent call first):\n"
        f'  File "{USER}/native.py", line {n} in kernel\n  File "{USER}/train.py", line 412 in <module>\n'
    )
    nan = of_user("FloatingPointError: loss is nan", "loss.py", n, "check", "raise FloatingPointError(text)")
    space = "OSError: [Errno 28] No space left on device: '/scratch/ann/ckpt.pt'"
    return [
        Failure("value", of_user(f"ValueError: bad batch {n}", "model.py", n, "forward", "raise ValueError(x)"), 1,
                (f"ValueError: bad batch {n}",), ("model.py", n)),
        Failure("assert", of_user("AssertionError", "model.py", n, "forward", "assert x.shape == y.shape"), 1,
                ("AssertionError",), ("model.py", n)),
        Failure("chained", chained, 1, ("cannot load shard 17", "shard_17"), ("data.py", n + 8)),
        Failure("cuda-oom", of_user(f"torch.OutOfMemoryError: {oom}", "model.py", n, "forward", "y = x @ w"), 1,
                ("CUDA out of memory",), ("model.py", n)),
        Failure("device assert", of_user(assertion.rstrip(), "model.py", n, "forward", "loss.item()"), 1,
                ("device-side assert",), ("model.py", n)),
        Failure("missing file", of_user("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'", "data.py",
                n, "read", "open(path)"), 1, ("No such file", "/data/x.bin"), ("data.py", n)),
        Failure("import", traceback("ModuleNotFoundError: No module named 'apex'", (f"{USER}/train.py", 3, "<module>",
                "import apex")), 1, ("No module named 'apex'",), ("train.py", 3), early=True),
        Failure("loader", loader, 1, ("list index out of range",), None),
        Failure("json", traceback("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", MAIN,
                (f"{USER}/config.py", n, "load", "json.load(f)"),
                ("/usr/lib/python3.11/json/decoder.py", 355, "raw_decode", "raise JSONDecodeError(...)")), 1,
                ("JSONDecodeError", "Expecting value"), ("config.py", n)),
        Failure("state dict", of_user(state, "model.py", n, "load", "model.load_state_dict(s)"), 1,
                ("does not fit the model",), ("model.py", n)),
        Failure("custom", of_user("lib.errors.CheckpointCorrupt: step_500 is torn", "ckpt.py", n, "load", "raise x"), 1,
                ("CheckpointCorrupt: step_500 is torn",), ("ckpt.py", n)),
        Failure("recursion", deep, 1, ("RecursionError",), ("tree.py", n)),
        Failure("group", group, 1, ("bucket is gone",), None),
        Failure("no space", of_user(space, "ckpt.py", n, "save", "f.write(data)"), 1, ("No space left",), ("ckpt.py", n)),
        Failure("nan", nan, 1, ("loss is nan",), ("loss.py", n)),
        Failure("segfault", "", -11, ("segmentation fault",)),
        Failure("segfault dump", dump, -11, ("segmentation fault",), ("native.py", n)),
        Failure("abort", "terminate called after throwing an instance of 'std::runtime_error'\n  what():  pool is empty\n",
                -6, ("aborted", "pool is empty")),
        Failure("killed", "", -9, ("SIGKILL",)),
        Failure("oom", "", -9, ("out of memory",),
                slurm="slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been "
                "OOM Killed.\n"),
        Failure("exit code", "", 7, ("exit code 7",)),
    ]  # fmt: skip


def more_failures(rng: random.Random) -> list[Failure]:
    """Return kinds that leave no plain traceback, or one that loggers and frameworks have rewritten."""
    n = rng.randrange(20, 900)
    stamp = "2026-11-21 10:07:00,123"
    loguru = (
        f"2026-11-21 10:07:00.123 | ERROR    | __main__:<module>:412 - An error has been caught in function '<module>', "
        "process 'MainProcess' (4242), thread 'MainThread' (140737350):\nTraceback (most recent call last):\n\n"
        f'> File "{USER}/train.py", line 412, in <module>\n    main()\n    └ <function main at 0x7f31>\n\n'
        f'  File "{USER}/model.py", line {n}, in forward\n    raise ValueError(f"bad batch {{n}}")\n'
        f"                                └ {n}\n\nValueError: bad batch {n}\n"
    )
    rule = "─" * 31
    rich = "\n".join(
        [
            f"╭{rule} Traceback (most recent call last) {rule}─╮",
            *(f"│ {text:<96} │" for text in (
                f"{USER}/train.py:412 in <module>", "", "  410 if __name__ == '__main__':", "❱ 412     main()", "",
                f"{USER}/model.py:{n} in forward", "", f"❱ {n}     raise ValueError(text)",
            )),
            f"╰{'─' * 98}╯", f"ValueError: bad batch {n}\n",
        ]
    )  # fmt: skip
    hydra = (
        "Error executing job with overrides: ['model=big']\n"
        + of_user("KeyError: 'optimizer'", "setup.py", n, "build", "cfg['optimizer']")
        + "\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
    )
    run = ("/usr/lib/python3.11/subprocess.py", 571, "run", "raise CalledProcessError(retcode, process.args,")
    tar = "tar: shard_17.tar: Cannot open: No such file or directory\ntar: Error is not recoverable: exiting now\n"
    tar += traceback(
        "subprocess.CalledProcessError: Command '['tar', 'xf', 'shard_17.tar']' returned non-zero exit status 2.",
        MAIN, (f"{USER}/data.py", n, "unpack", "subprocess.run(command, check=True)"), run,
    )  # fmt: skip
    killed = traceback(
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", MAIN,
        (f"{SITE}/torch/utils/data/_utils/signal_handling.py", 73, "handler", "_error_if_any_worker_fails()"),
    )  # fmt: skip
    killed += "\nThe above exception was the direct cause of the following exception:\n\n" + traceback(
        "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly", MAIN,
        (f"{USER}/train.py", n, "main", "for batch in loader:"),
        (f"{SITE}/torch/utils/data/dataloader.py", 1284, "_try_get_data", "raise RuntimeError("),
    )  # fmt: skip
    url = "https://huggingface.co/api/models/org/tokenizer"
    hub = traceback(
        f"requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: {url}",
        (f"{SITE}/huggingface_hub/utils/_http.py", 409, "hf_raise_for_status", "response.raise_for_status()"),
        (f"{SITE}/requests/models.py", 1026, "raise_for_status", "raise HTTPError(http_error_msg, response=self)"),
    )
    hub += "\nThe above exception was the direct cause of the following exception:\n\n" + traceback(
        f"huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: {url} (Request ID: Root=1-6)",
        MAIN, (f"{USER}/tokens.py", n, "load", "AutoTokenizer.from_pretrained(name)"),
        (f"{SITE}/huggingface_hub/utils/_http.py", 482, "hf_raise_for_status", "raise _format(HfHubHTTPError, ...)"),
    )  # fmt: skip
    port = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
        "29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    init = (f"{SITE}/torch/distributed/rendezvous.py", 189, "_create_c10d_store", "return TCPStore(")
    watchdog = (
        "[rank{rank}]:[E1121 10:07:00.414170121 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n"
        "Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:43 (most recent call "
        "first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f0 in libc10.so)\n"
        "frame #1: <unknown function> + 0xe000 (0x7f1 in libc10_cuda.so)\n\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: "
        "CUDA error: an illegal memory access was encountered\n"
    )
    shm = (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled "
        "system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, "
        "malloc) or external library call failed or device error. \nLast error:\nError while creating shared memory segment "
        "/dev/shm/nccl-aBcDeF (size 9637888), error: No space left on device (28)"
    )
    c10d = (
        f"{SITE}/torch/distributed/distributed_c10d.py",
        2810,
        "all_reduce",
        "work = group.allreduce([tensor], opts)",
    )
    ecc = (
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously "
        "reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing "
        "CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    zipped = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
    loads = (
        f"{SITE}/torch/serialization.py",
        1432,
        "load",
        "with _open_zipfile_reader(opened_file) as opened_zipfile:",
    )
    yaml = 'yaml.scanner.ScannerError: mapping values are not allowed here\n  in "config.yaml", line 4, column 12'
    # Caught, logged, and turned into an exit code.
    logged = f"{stamp} - train - ERROR - step failed\n" + of_user(
        f"ValueError: bad batch {n}", "model.py", n, "forward", "raise ValueError(x)"
    )
    during = of_user("KeyError: 'cache'", "data.py", n - 7, "get", "return cache[key]")
    during += "\nDuring handling of the above exception, another exception occurred:\n\n"
    during += of_user("RuntimeError: no replica has shard 9", "data.py", n, "fetch", "raise RuntimeError(text)")
    usage = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --wramup 10\n"
    return [
        Failure("logged error", f"{stamp} - train - ERROR - index /data/idx is damaged: checksum mismatch\n", 1,
                ("checksum mismatch",)),
        Failure("loguru", loguru, 1, (f"bad batch {n}",), ("model.py", n)),
        Failure("rich", rich, 1, (f"bad batch {n}",), ("model.py", n)),
        Failure("exit text", "cannot read config.yaml: the key 'lr' is missing\n", 1, ("'lr' is missing",)),
        Failure("usage", usage, 2, ("unrecognized arguments: --wramup 10",), early=True),
        Failure("hydra", hydra, 1, ("KeyError: 'optimizer'",), ("setup.py", n)),
        Failure("child", tar, 1, ("status 2", "Cannot open: No such file"), ("data.py", n)),
        Failure("loader killed", killed, 1, ("killed by signal: Killed", "worker was killed"), None),
        Failure("hub", hub, 1, ("429",), ("tokens.py", n), early=True),
        Failure("port", traceback(port, MAIN, (f"{USER}/train.py", n, "main", "dist.init_process_group('nccl')"), init), 1,
                ("29500", "address already in use"), ("train.py", n), early=True),
        Failure("illegal address", watchdog, -6, ("illegal memory access",)),
        Failure("shm", traceback(shm, MAIN, (f"{USER}/train.py", n, "main", "dist.all_reduce(x)"), c10d), 1,
                ("/dev/shm", "shared memory"), ("train.py", n), early=True),
        Failure("ecc", of_user(ecc.rstrip(), "model.py", n, "forward", "y = x @ w"), 1, ("ECC error",), ("model.py", n)),
        Failure("zip", traceback(zipped, MAIN, (f"{USER}/ckpt.py", n, "load", "torch.load(path)"), loads), 1,
                ("central directory",), ("ckpt.py", n), early=True),
        Failure("yaml", traceback(yaml, MAIN, (f"{USER}/config.py", n, "read", "yaml.safe_load(f)"),
                (f"{SITE}/yaml/scanner.py", 577, "fetch_value", "raise ScannerError(None, None,")), 1,
                ("mapping values are not allowed",), ("config.py", n), early=True),
        Failure("caught, then exit", logged, 1, (f"bad batch {n}",), ("model.py", n)),
        Failure("during", during, 1, ("no replica has shard 9",), ("data.py", n)),
        Failure("attribute", of_user("AttributeError: 'NoneType' object has no attribute 'shape'", "model.py", n, "pad",
                "x.shape[0]"), 1, ("has no attribute 'shape'",), ("model.py", n)),
        Failure("files", of_user("OSError: [Errno 24] Too many open files: '/data/s.tar'", "data.py", n, "read",
                "open(path)"), 1, ("Too many open files",), ("data.py", n)),
        Failure("matrix", of_user("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 768x10)", "model.py",
                n, "forward", "self.head(x)"), 1, ("shapes cannot be multiplied",), ("model.py", n)),
    ]  # fmt: skip


CAUSES = {
    "cuda-oom": "cuda-oom",
    "device assert": "cuda-assert",
    "missing file": "missing-file",
    "no space": "disk-full",
    "nan": "nan",
    "segfault": "segfault",
    "segfault dump": "segfault",
    "killed": "sigkill",
    "oom": "oom-kill",
    "exit code": "exit",
    "import": "import-error",
    "abort": "abort",
    "value": "exception",
    "assert": "exception",
    "chained": "exception",
    "json": "exception",
    "custom": "exception",
    "files": "open-files",
    "port": "port-in-use",
    "ecc": "gpu-ecc",
}
"""The rows of the catalogue, where they are certain."""
