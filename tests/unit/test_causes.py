"""Each cause: what it is recognised by, what only looks like it, and what follows from it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from cause_examples import FOLLOWING, PRIMARIES, RESEMBLING

from ftslurm.failures.causes import (
    CASCADE,
    OTHER_NODE,
    POINTLESS,
    PRIMARY,
    RESTARTS,
    ROWS,
    SAME_NODE,
    Cause,
    Evidence,
    HostResources,
    OomKills,
    Space,
    classify,
    describe,
    find,
)
from ftslurm.failures.evidence import CAUSE, CONTEXT, MEMBER
from ftslurm.failures.plugins import load, load_from
from ftslurm.failures.proof_lines import lines
from ftslurm.failures.retryability import retryability
from ftslurm.records.error import ErrorRecord, ExceptionRecord, Frame

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3141"
# A loader's main process fetches a tensor whose file descriptor one of its workers holds.
FETCHING = (
    "/home/ann/lm/train.py",
    "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py",
    "/usr/lib/python3.11/multiprocessing/resource_sharer.py",
    "/usr/lib/python3.11/multiprocessing/connection.py",
)
WATCHDOG = (
    "[rank1]:[E513 12:00:00.000000000 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
GIB = 1 << 30
AT_LIMIT = HostResources(
    OomKills(1, 1, 12.0, "memory.events of step_0", 4 * GIB, 4 * GIB, 120, at_limit=True),
    memory_total=64 * GIB,
    least_available=50 * GIB,
)
HOST_RAN_OUT = replace(AT_LIMIT, oom=OomKills(1, 1, 12.0, at_limit=False), least_available=GIB)
KILLED_FOR_MEMORY = replace(AT_LIMIT, oom=OomKills(1, 1, 12.0, at_limit=False))
NO_KILL_COUNTED = HostResources(OomKills(0, 0, 12.0), node_oom_kills=3)
LONG_AGO = HostResources(OomKills(0, 2, 12.0))
FULL_SHM = HostResources(spaces=(Space("/dev/shm", 60 << 20, 64 << 20, least_free=0),))
ROOMY = HostResources(spaces=(Space("/dev/shm", 60 << 20, 64 << 20), Space("/tmp", 0, 10 << 20)))


def raised(kind: str, message: str = "", module: str = "builtins", **more: Any) -> Evidence:
    return Evidence("exception", kind, module, message, **more)


def signal(name: str, **more: Any) -> Evidence:
    return Evidence("signal", message=f"killed by {name}", signal=name, **more)


def ended(code: int, message: str = "", **more: Any) -> Evidence:
    text = message or f"exit code {code}, no Python exception reached the top level"
    return Evidence("exit", message=text, exit_code=code, **more)


def usage(*files: str, **more: Any) -> Evidence:
    return Evidence("exit", "SystemExit", "builtins", "2", files, exit_code=2, **more)


def chained(outer: Evidence, how: str, *inner: Evidence) -> Evidence:
    return replace(outer, inner=tuple((how, one) for one in inner))


POSITIVE = [
    ("spawn", Evidence("spawn", message="cannot start /opt/python")),
    (
        "step-refused",
        Evidence("spawn", message="srun: Unable to create step for job 8: Memory required by task is ..."),
    ),
    ("step-launch", Evidence("spawn", message="Task launch for StepId=123.0 failed on node n17: Communication ...")),
    (
        "work-directory",
        Evidence("spawn", message="the working directory could not be entered: /scratch/a: No such ..."),
    ),
    ("container", Evidence("spawn", message="the container could not be started: image not found")),
    ("unreachable", Evidence("unreachable", message="the master of the round (n1:29400) cannot be reached from n2")),
    ("health", Evidence("health", health="GPU 3: 2 uncorrectable ECC errors")),
    ("health-check", Evidence("health-check", message="n3 refused: /dev/shm is full")),
    ("agent-lost", Evidence("agent-lost", message="its agent was killed by SIGKILL")),
    ("agent-defect", Evidence("agent-defect", message="its agent ended by a defect of ftslurm: KeyError: 3")),
    ("node-lost", Evidence("node-lost", message="no sign of life for 30.0 s")),
    ("log-file", Evidence("exit", message="cannot open the log file /x/stdout.log: Input/output error", exit_code=1)),
    ("import-error", raised("_Error", "No module named nosuch", "runpy")),
    ("hang", Evidence("hang", message="no heartbeat for 30.0 s")),
    ("time-limit", Evidence("time-limit")),
    ("time-limit", signal("SIGTERM", scheduler="TIMEOUT")),
    ("preempted", signal("SIGTERM", scheduler="PREEMPTED")),
    ("cancelled", Evidence("cancelled", message="by user 1001")),
    ("scheduler", Evidence("scheduler", scheduler="BOOT_FAIL")),
    ("port-in-use", raised("DistNetworkError", "server socket failed: EADDRINUSE", "torch.distributed")),
    ("port-in-use", raised("OSError", "[Errno 98] Address already in use")),
    ("nccl-usage", raised("DistBackendError", "ncclInvalidUsage: ...", "torch.distributed")),
    ("cuda-oom", raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "torch")),
    ("cuda-oom", raised("OutOfMemoryError", "HIP out of memory.", "torch.cuda")),
    ("npu-oom", raised("RuntimeError", "NPU out of memory. Tried to allocate 2.32 GiB")),
    (
        "miopen-cache",
        raised("RuntimeError", "miopenStatusInternalError", tail="MIOpen Error: SQLite database: locking protocol\n"),
    ),
    ("compile-cache", raised("ImportError", "/c/t.so: cannot stat shared object: Stale file handle")),
    ("npu-oom", signal("SIGABRT", tail="terminate called\ncode: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY")),
    (
        "nccl-shm",
        signal("SIGBUS", tail="n1:7:8 [0] NCCL WARN Error: failed to extend /dev/shm/nccl-Y4 to 9637892 bytes"),
    ),
    ("cuda-assert", raised("RuntimeError", "CUDA error: device-side assert triggered\nCUDA kernel errors")),
    ("gpu-ecc", raised("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "torch")),
    ("gpu-lost", raised("RuntimeError", "CUDA error: GPU has fallen off the bus")),
    (
        "gpu-lost",
        raised("RuntimeError", "CUDA error: unspecified launch failure", notes=("NVRM: Xid (PCI:00): 79, pid",)),
    ),
    (
        "cuda-launch",
        raised("RuntimeError", "CUDA error: unspecified launch failure", notes=("NVRM: Xid (PCI:0): 13,",)),
    ),
    ("gpu-missing", raised("RuntimeError", "CUDA error: no CUDA-capable device is detected")),
    ("gpu-missing", raised("RuntimeError", "No CUDA GPUs are available")),
    ("gpu-busy", raised("RuntimeError", "CUDA error: all CUDA-capable devices are busy or unavailable")),
    ("cuda-access", raised("RuntimeError", "CUDA error: an illegal memory access was encountered")),
    ("cuda-launch", raised("RuntimeError", "CUDA error: unspecified launch failure")),
    ("cuda-error", raised("RuntimeError", "CUDA error: unknown error")),
    ("memory-limit", signal("SIGKILL", host_resources=AT_LIMIT)),
    ("memory-limit", ended(137, host_resources=AT_LIMIT)),
    ("memory-limit", signal("SIGKILL", host_resources=AT_LIMIT, scheduler="OUT_OF_MEMORY")),
    ("memory-limit", signal("SIGKILL", host_resources=replace(AT_LIMIT, least_available=0))),
    ("host-oom-kill", signal("SIGKILL", host_resources=HOST_RAN_OUT)),
    ("host-oom-kill", ended(137, host_resources=HOST_RAN_OUT)),
    ("oom-kill", signal("SIGKILL", host_resources=KILLED_FOR_MEMORY)),
    ("oom-kill", signal("SIGKILL", scheduler="OUT_OF_MEMORY")),
    ("oom-kill", ended(137, host_resources=HostResources(OomKills(1, 1, 12.0)))),
    ("address-space", raised("MemoryError", host_resources=HostResources(own_limit=4 * GIB))),
    (
        "file-size",
        raised("RuntimeError", "basic_ios::clear: iostream error", host_resources=HostResources(file_limit=1 << 20)),
    ),
    ("cpu-kill", signal("SIGKILL", host_resources=HostResources(cpu_limit_s=3600))),
    (
        "address-space",
        raised("OSError", "[Errno 12] Cannot allocate memory", host_resources=HostResources(own_limit=1)),
    ),
    (
        "oom-kill",
        raised(
            "RuntimeError", "DataLoader worker (pid 7) is killed by signal: Killed. ", host_resources=KILLED_FOR_MEMORY
        ),
    ),
    ("shm-full", signal("SIGBUS", host_resources=FULL_SHM)),
    (
        "shm-full",
        raised("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error. ", host_resources=FULL_SHM),
    ),
    ("shm-space", raised("RuntimeError", "unable to write to file </torch_9_13_0>: No space left on device (28)")),
    ("dataloader-worker", raised("RuntimeError", "DataLoader worker (pid(s) 12, 13) exited unexpectedly")),
    ("dataloader-bus", raised("RuntimeError", "DataLoader worker (pid 12) is killed by signal: Bus error. It is ...")),
    ("dataloader-worker", raised("ConnectionResetError", "[Errno 104] Connection reset by peer", files=FETCHING)),
    ("host-memory", raised("MemoryError")),
    ("host-memory", raised("RuntimeError", "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't alloc")),
    ("host-memory", raised("OSError", "[Errno 12] Cannot allocate memory")),
    ("process-limit", raised("RuntimeError", "can't start new thread")),
    ("process-limit", raised("BlockingIOError", "[Errno 11] Resource temporarily unavailable")),
    ("open-files", raised("OSError", "[Errno 24] Too many open files: '/data/x'")),
    ("syntax-error", raised("IndentationError", "unexpected indent")),
    ("import-error", raised("ModuleNotFoundError", "No module named 'x'", life_s=200.0)),
    ("wrong-usage", usage("/home/a/train.py", "/usr/lib/python3.11/argparse.py")),
    ("service-refused", raised("PermissionError", "403 Forbidden: s3://corpus/epoch2/6")),
    ("permission", raised("PermissionError", "[Errno 13] Permission denied: '/data/403/x'")),
    ("wrong-usage", usage("/home/a/train.py", "/usr/lib/python3/site-packages/click/core.py")),
    ("no-stdin", raised("EOFError", "EOF when reading a line")),
    ("no-stdin", raised("BdbQuit", module="bdb")),
    ("missing-script", ended(2, "can't open file '/home/a/trian.py': [Errno 2] No such file or directory")),
    ("wrong-usage", ended(2, "train.py: error: unrecognized arguments: --foo")),
    ("batch-script", ended(127, "cannot start torchrun: command not found (line 17 of the batch script)")),
    ("missing-program", ended(127, "cannot start trian: no such program in PATH")),
    ("disk-full", raised("OSError", "[Errno 28] No space left on device: '/ckpt/1.pt'")),
    ("inotify-limit", raised("OSError", "[Errno 28] inotify watch limit reached")),
    (
        "no-directory",
        raised(
            "FileNotFoundError",
            "[Errno 2] No such file or directory",
            frames=(Frame("<frozen posixpath>", 404, "abspath"),),
        ),
    ),
    ("quota", raised("OSError", "[Errno 122] Disk quota exceeded")),
    ("file-size", signal("SIGXFSZ")),
    (
        "write-failed",
        raised("RuntimeError", "[enforce fail] PytorchStreamWriter failed writing file data/0: file write failed"),
    ),
    ("write-failed", raised("RuntimeError", "basic_ios::clear: iostream error")),
    ("read-only", raised("OSError", "[Errno 30] Read-only file system: '/x'")),
    ("filesystem", raised("OSError", "[Errno 116] Stale file handle")),
    ("filesystem", raised("OSError", "[Errno 5] Input/output error")),
    ("filesystem", raised("OSError", "Can't read data (filename = 'x.h5', errno = 5, error message = 'Input/output')")),
    ("missing-file", raised("FileNotFoundError", "[Errno 2] No such file or directory: '/data'")),
    ("permission", raised("PermissionError", "[Errno 13] Permission denied: '/ckpt'")),
    ("nan", raised("FloatingPointError", "overflow encountered in exp")),
    ("nan", raised("RuntimeError", "Function 'MulBackward0' returned nan values in its 0th output.")),
    ("nan", raised("ValueError", "loss is nan")),
    ("nan", raised("ValueError", "NaN or Inf found in gradients at step 12")),
    ("nan", raised("RuntimeError", "Loss went to Inf, stopping training")),
    ("system-exit", Evidence("exit", "SystemExit", "builtins", "giving up", exit_code=1)),
    ("interrupt", raised("KeyboardInterrupt")),
    ("exception", raised("ValueError", "boom")),
    ("sigkill", signal("SIGKILL")),
    ("segfault", signal("SIGSEGV")),
    ("bus-error", signal("SIGBUS")),
    ("abort", signal("SIGABRT")),
    ("arithmetic-error", signal("SIGFPE")),
    ("illegal-instruction", signal("SIGILL")),
    ("cpu-limit", signal("SIGXCPU")),
    ("terminated", signal("SIGTERM")),
    ("signal", signal("SIGUSR2")),
    ("shell-killed", ended(137)),
    ("shell-crashed", ended(139)),
    ("shell-crashed", ended(139, tail="run.sh: line 3: 77 Segmentation fault      (core dumped) python t.py\n")),
    ("shell-missing", ended(127)),
    ("exit", ended(3)),
    *PRIMARIES,
]
CASCADES = [
    ("peer-reset", raised("RuntimeError", GLOO)),
    ("peer-reset", raised("RuntimeError", "Connection reset by peer", files=("/x/torch/distributed/c10d.py",))),
    ("nccl-timeout", raised("DistBackendError", "Watchdog caught collective operation timeout", "torch.distributed")),
    ("peer-lost", raised("PeerLostError", "rank 1 did not answer 3 times in a row", "ftslurm.peer.verdict")),
    ("round-over", raised("RoundIsOver", "round 1 of attempt 7.0 is over: round 2 of 7.0 began", "ftslurm.fencing")),
    ("collective-timeout", raised("RuntimeError", "Operation timed out!")),
    ("collective-timeout", raised("DistStoreError", "Timed out after 61 seconds waiting for clients", "torch")),
    ("nccl", raised("DistBackendError", "NCCL error in: x.cpp, unhandled system error", "torch.distributed")),
    ("nccl-abort", signal("SIGABRT", tail=f"step 4\n{WATCHDOG}")),
    (
        "peer-failed",
        signal("SIGABRT", tail="Terminating. This most likely indicates that another task died; see its log"),
    ),
    ("peer-failed", raised("UnavailableError", "Collective ops is aborted by: failed to connect to all addresses")),
    *FOLLOWING,
]
DECOYS = [
    ("OOM in a log line", signal("SIGKILL", tail="INFO OOM score adjusted\nout of memory? no\n"), "sigkill"),
    ("a program's own choice of a code", ended(139, tail="loader: checksum mismatch in shard 7\n"), "exit"),
    ("a user who prints Killed", ended(1, tail="Killed\n"), "exit"),
    ("a kill that the counter does not know", signal("SIGKILL", host_resources=NO_KILL_COUNTED), "sigkill"),
    ("a kill for memory long before", signal("SIGKILL", host_resources=LONG_AGO), "sigkill"),
    ("a kill for memory, but another end", signal("SIGSEGV", host_resources=KILLED_FOR_MEMORY), "segfault"),
    ("a bus error with room in /dev/shm", signal("SIGBUS", host_resources=ROOMY), "bus-error"),
    ("a full /dev/shm, but another end", signal("SIGSEGV", host_resources=FULL_SHM), "segfault"),
    (
        "a warning that says NCCL error",
        signal("SIGABRT", tail="UserWarning: NCCL error, falling back to gloo\n"),
        "abort",
    ),
    (
        "a log line about the watchdog",
        signal("SIGABRT", tail="INFO: ProcessGroupNCCL watchdog caught collective operation timeout is set to 600\n"),
        "abort",
    ),
    (
        "an exception whose text mentions NCCL",
        raised("ValueError", "unknown backend: NCCL error expected"),
        "exception",
    ),
    ("a user's own timeout", raised("TimeoutError", "timed out"), "exception"),
    (
        "a broken connection to a server",
        raised("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        "exception",
    ),
    (
        "an illegal access is not hardware",
        raised("RuntimeError", "CUDA error: an illegal memory access"),
        "cuda-access",
    ),
    ("a message that mentions CUDA", raised("ValueError", "no CUDA error handler for ECC"), "exception"),
    ("a user's own OutOfMemoryError", raised("OutOfMemoryError", "queue", "mylib"), "exception"),
    ("NaN in the data", raised("ValueError", "cannot convert float NaN to integer"), "exception"),
    ("a function with nan in its name", raised("ValueError", "loss 'nanmean' is unknown, info: see docs"), "exception"),
    ("a key that is named nan", raised("KeyError", "'loss nan'"), "exception"),
    ("an import in the middle of training", raised("ModuleNotFoundError", "No module named 'x'", step=5), "exception"),
    ("an import after an hour", raised("ModuleNotFoundError", "No module named 'x'", life_s=3600.0), "exception"),
    ("exit code 2 of the script's own", usage("/home/a/train.py"), "system-exit"),
    ("exit code 2 late", usage("/usr/lib/python3.11/argparse.py", step=7), "system-exit"),
    ("a file of the script, named like a module", usage("/home/a/argparse.py.bak"), "system-exit"),
    ("a number that is no errno", raised("ValueError", "row [Errno 28] of table"), "exception"),
    ("the scheduler's account of another end", raised("ValueError", "boom", scheduler="TIMEOUT"), "exception"),
    *RESEMBLING,
]


@pytest.mark.parametrize(("name", "evidence"), POSITIVE, ids=lambda v: v if isinstance(v, str) else "")
def test_a_primary_cause_is_reported_by_its_own_evidence(name: str, evidence: Evidence) -> None:
    row = classify(evidence)
    assert (row.name, row.role) == (name, PRIMARY)
    assert describe(evidence, row)


@pytest.mark.parametrize(("name", "evidence"), CASCADES, ids=lambda v: v if isinstance(v, str) else "")
def test_what_follows_from_another_ranks_end_is_a_cascade(name: str, evidence: Evidence) -> None:
    row = classify(evidence)
    assert (row.name, row.role) == (name, CASCADE)


@pytest.mark.parametrize(("story", "evidence", "name"), DECOYS, ids=[decoy[0] for decoy in DECOYS])
def test_what_only_resembles_a_cause_is_none(story: str, evidence: Evidence, name: str) -> None:
    assert classify(evidence).name == name, story


def test_every_row_has_an_example_here_a_role_a_restart_and_the_cases_it_is_not_for() -> None:
    named = {name for name, _ in POSITIVE + CASCADES}
    assert {row.name for row in ROWS} == named
    assert len(ROWS) == len(named), "two rows share a name"
    for row in ROWS:
        assert row.role in (PRIMARY, CASCADE)
        assert row.restart in RESTARTS
        assert row.title
        assert row.not_for


@pytest.mark.parametrize(
    ("restart", "names"),
    [
        (POINTLESS, "syntax-error import-error wrong-usage missing-script missing-program"),
        (OTHER_NODE, "gpu-ecc gpu-lost health health-check node-lost filesystem"),
        (SAME_NODE, "exception segfault cuda-oom peer-reset hang sigkill host-oom-kill"),
    ],
)
def test_the_restart_that_makes_sense_follows_from_the_cause(restart: str, names: str) -> None:
    rows = {row.name: row for row in ROWS}
    assert {rows[name].restart for name in names.split()} == {restart}


def _recorded(evidence: Evidence) -> ErrorRecord:
    """Return the error record of which it is the evidence, as far as agents judge it."""
    exception = None
    if evidence.exception is not None:
        frames = tuple(Frame(file, 1, "f") for file in evidence.files)
        exception = ExceptionRecord(evidence.exception, evidence.module, evidence.message, frames=frames)
    return ErrorRecord(
        evidence.kind,
        5,
        evidence.message,
        exit_code=evidence.exit_code,
        signal=evidence.signal,
        step=evidence.step,
        exception=exception,
        host_resources=evidence.host_resources,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_agent_concludes_from_a_failure_what_its_row_states(row: Cause) -> None:
    examples = [evidence for name, evidence in POSITIVE + CASCADES if name == row.name]
    found = [retryability(_recorded(evidence), evidence.life_s or 10.0) for evidence in examples]
    if row.name != "nccl-abort":  # an agent does not read the end of stderr
        assert row.blame in {each["blame"] for each in found}
    assert not (row.retryable and any(each["non_retryable"] for each in found))


# Chains


def test_a_full_disk_is_found_behind_the_trainers_own_exception() -> None:
    disk = raised("OSError", "[Errno 28] No space left on device")
    middle = chained(raised("RuntimeError", "cannot write shard"), CAUSE, disk)
    whole = chained(raised("CheckpointError", "saving failed", "trainer"), CAUSE, middle)
    row, found = find(whole)
    assert row.name == "disk-full"
    assert describe(whole, row, found) == (
        "CheckpointError: saving failed (from OSError: [Errno 28] No space left on device)"
    )
    assert lines(whole, row, found)[0] == "raised from OSError: [Errno 28] No space left on device"


def test_an_exception_that_was_dealt_with_is_no_cause_but_a_full_disk_behind_it_is() -> None:
    cached = chained(raised("ValueError", "boom"), CONTEXT, raised("FileNotFoundError", "cache"))
    assert classify(cached).name == "exception"
    assert describe(cached, *find(cached)) == "ValueError: boom"
    disk = chained(raised("ValueError", "I/O on closed file"), CONTEXT, raised("OSError", "[Errno 28] No space left"))
    assert classify(disk).name == "disk-full"


def test_the_reason_that_the_script_names_is_shown_even_if_it_is_no_cause_of_its_own() -> None:
    whole = chained(raised("RuntimeError", "cannot load"), CAUSE, raised("KeyError", "'valid'"))
    assert lines(whole, *find(whole)) == ["raised from KeyError: 'valid'"]
    handled = chained(raised("RuntimeError", "cannot load"), CONTEXT, raised("KeyError", "'valid'"))
    assert lines(handled, *find(handled)) == []


def test_a_broken_connection_behind_the_trainers_exception_stays_a_cascade() -> None:
    for how in (CAUSE, CONTEXT):
        assert (
            classify(chained(raised("TrainingError", "failed", "x"), how, raised("RuntimeError", GLOO))).role == CASCADE
        )


def test_an_exit_in_a_handler_is_explained_by_what_was_handled() -> None:
    out_of_memory = raised("OutOfMemoryError", "CUDA out of memory", "torch")
    left = chained(Evidence("exit", "SystemExit", "builtins", "1", exit_code=1), CONTEXT, out_of_memory)
    assert classify(left).name == "cuda-oom"


def test_of_a_group_the_member_with_a_message_counts_and_no_cascade_beside_it() -> None:
    group = raised("ExceptionGroup", "unhandled errors (3 sub-exceptions)")
    reset, plain, disk = raised("RuntimeError", GLOO), raised("ValueError", "x"), raised("OSError", "[Errno 28] full")
    assert classify(chained(group, MEMBER, reset, plain, disk)).name == "disk-full"
    whole = chained(group, MEMBER, plain, disk)
    assert describe(whole, *find(whole)) == "OSError: [Errno 28] full (one of 3 in group: unhandled errors)"
    assert classify(chained(group, MEMBER, reset, plain)).name == "exception"
    assert classify(chained(group, MEMBER, reset, reset)).name == "peer-reset"


def test_a_clear_cause_is_not_replaced_by_what_it_came_from() -> None:
    assert classify(chained(raised("FileNotFoundError", "x"), CAUSE, raised("KeyError", "y"))).name == "missing-file"


# Descriptions


def test_an_alarm_that_interrupts_the_wait_for_a_collective_is_a_time_out_of_that() -> None:
    """Whatever type its handler raises; what torch calls there, as for pickling, raises by itself."""
    call = Frame("/w/train.py", 26, "<module>", "dist.all_reduce(x)")
    waits = Frame("/x/torch/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()")
    dumps = replace(waits, function="_object_to_tensor", source="_pickler(f).dump(obj)")
    own = Frame("/w/train.py", 11, "on_alarm", 'raise StepTimeout("too slow")')
    assert classify(raised("StepTimeout", "too slow", frames=(call, waits, own))).name == "collective-timeout"
    assert classify(raised("StepTimeout", "too slow", frames=(call, dumps, own))).name == "exception"


def test_an_exit_code_with_a_meaning_is_shown_with_it() -> None:
    by_fire = Evidence(
        "exception", "FireExit", "fire.core", "2", ("/x/fire/core.py",), exit_code=2, tail="ERROR: no --lr\n"
    )
    assert describe(by_fire, *find(by_fire)) == "the script refused its arguments: no --lr (exit code 2)"
    refused = usage("/usr/lib/python3.11/argparse.py")
    assert describe(refused, *find(refused)) == "the script refused its arguments (exit code 2)"
    assert (
        describe(ended(137), *find(ended(137)))
        == "ended as a shell whose command was killed by SIGKILL (exit code 137)"
    )
    assert describe(ended(3), *find(ended(3))) == "exit code 3"


def test_a_loader_whose_worker_has_gone_is_reported_as_one() -> None:
    reset = raised("ConnectionResetError", "[Errno 104] Connection reset by peer", files=FETCHING)
    expected = "a DataLoader worker died (ConnectionResetError: [Errno 104] Connection reset by peer)"
    assert describe(reset, *find(reset)) == expected
    row = classify(replace(reset, host_resources=KILLED_FOR_MEMORY))
    assert row.name == "oom-kill"


def test_the_proof_of_a_kill_for_memory_names_the_counter_and_the_limit() -> None:
    killed = signal("SIGKILL", host_resources=AT_LIMIT, sections=(("checkpoint", 3.0),))
    row, found = find(killed)
    assert describe(killed, row, found) == "killed by the kernel: its memory limit was reached (SIGKILL)"
    assert lines(killed, row, found) == [
        "cgroup: 1 out-of-memory kill in the last 12 s before its end (memory.events of step_0)",
        "cgroup: a memory limit was reached in those seconds",
        "cgroup memory: limit 4 GiB, peak 4 GiB, limit hit 120 times in this round",
        "host memory: at least 50 GiB of 64 GiB available in those seconds (MemAvailable)",
        "open sections: 'checkpoint' for 3 s",
    ]


def test_the_proof_of_a_refused_request_for_memory_names_the_limit() -> None:
    refused = raised("MemoryError", host_resources=HostResources(own_limit=4 * GIB))
    row, found = find(refused)
    assert row.title == "its limit of address space or data was reached"
    assert "ulimit: 4 GiB of address space or data" in lines(refused, row, found)


def test_a_bare_sigkill_shows_the_counted_kills_and_the_unknown_ones() -> None:
    row = classify(signal("SIGKILL"))
    found = [
        lines(signal("SIGKILL", host_resources=around), row, signal("SIGKILL"))[0]
        for around in (None, HostResources(), NO_KILL_COUNTED, LONG_AGO)
    ]
    unknown = "so an out-of-memory kill is neither proved nor excluded"
    assert found == [
        f"cgroup: no record of its counters, {unknown}",
        f"cgroup: no out-of-memory counter could be read, {unknown}",
        "cgroup: no out-of-memory kill was counted (memory.events)",
        "cgroup: 2 out-of-memory kills in this round, but none near its end (memory.events)",
    ]


def test_a_full_filesystem_is_shown_with_any_failure_and_a_roomy_one_only_where_it_matters() -> None:
    def evidence_lines(evidence: Evidence) -> list[str]:
        return lines(evidence, *find(evidence))

    boom, bus = raised("ValueError", "boom", host_resources=ROOMY), signal("SIGBUS", host_resources=ROOMY)
    assert evidence_lines(boom) == ["/tmp: 0 bytes of 10 MiB free"]
    assert evidence_lines(bus) == ["/dev/shm: 60 MiB of 64 MiB free", "/tmp: 0 bytes of 10 MiB free"]
    full = signal("SIGBUS", host_resources=FULL_SHM)
    assert evidence_lines(full) == ["/dev/shm: 0 bytes of 64 MiB free shortly before, 60 MiB after its end"]


def test_the_assertion_that_failed_on_the_gpu_is_shown() -> None:
    where = (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectSmallIndex: block: [5,0,0], thread: [1,0,0] "
    )
    tail = f"step 3\n{where}Assertion `srcIndex < srcSelectDimSize` failed.\n"
    asserted = raised("RuntimeError", "CUDA error: device-side assert triggered", tail=tail)
    assert "Assertion `srcIndex < srcSelectDimSize` failed" in lines(asserted, *find(asserted))[0]


def test_a_cascade_needs_no_proof_but_its_own_message() -> None:
    broken = raised("RuntimeError", GLOO, host_resources=FULL_SHM, notes=("while saving",))
    assert lines(broken, *find(broken)) == ["note: while saving"]


# Added rows


class Point:
    """An entry point."""

    def __init__(self, name: str, value: object) -> None:
        self.name, self.value, self._loaded = name, f"site:{name}", value

    def load(self) -> object:
        if isinstance(self._loaded, BaseException):
            raise self._loaded
        return self._loaded


MINE = Cause("storage", "the site's storage failed", PRIMARY, lambda e: "WEKA" in e.message, restart=OTHER_NODE)


def test_a_sites_row_is_tried_before_ours_given_as_row_list_or_function() -> None:
    for value in (MINE, [MINE], lambda: (MINE,)):
        rows, problems = load_from([Point("storage", value)])  # type: ignore[list-item]
        assert not problems
        assert classify(raised("OSError", "[Errno 5] WEKA"), rows) is MINE
        assert classify(raised("ValueError", "boom"), rows).name == "exception"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (ImportError("no module named site"), "no module named site"),
        (lambda: 1 / 0, "division by zero"),
        (["a row"], "expected ftslurm.failures.causes.Cause, found str"),
        (replace(MINE, role="main"), "role is 'main', expected one of primary, cascade"),
        (replace(MINE, restart="never"), "restart is 'never'"),
        (replace(MINE, name="hang"), "a row named 'hang' exists already"),
        (replace(MINE, matches=None), "a function that matches"),  # type: ignore[arg-type]
        (None, "NoneType"),
    ],
)
def test_a_broken_entry_point_is_named_and_left_out(value: object, reason: str) -> None:
    rows, problems = load_from([Point("bad", value), Point("good", MINE)])  # type: ignore[list-item]
    assert rows == (MINE, *ROWS)
    ((where, why),) = problems
    assert where == "ftslurm.causes: bad"
    assert reason in why


def test_a_row_that_raises_is_passed_over() -> None:
    def broken(e: Evidence) -> bool:
        raise RuntimeError(e.kind)

    assert classify(signal("SIGSEGV"), (Cause("x", "x", PRIMARY, broken), *ROWS)).name == "segfault"


def test_without_added_rows_there_are_only_ours() -> None:
    assert load() == (ROWS, [])


# Anything


@pytest.mark.exhaustive
def test_any_evidence_gets_a_row_and_a_text() -> None:
    pick = random.Random(5)
    texts = [
        "",
        "CUDA error: ",
        "[Errno 28]",
        "NCCL",
        "loss is nan",
        "\x1b[31m",
        "x" * 5000,
        "\ud800",
        "gloo/:",
        "\n\n",
    ]
    kinds = ["exception", "exit", "signal", "spawn", "node-lost", "hang", "", "time-limit", "health"]
    types = [None, "", "RuntimeError", "OSError", "SystemExit", "OutOfMemoryError", "DistError", "ExceptionGroup"]

    def anything(depth: int) -> Evidence:
        around = [None, HostResources(), KILLED_FOR_MEMORY, FULL_SHM, HostResources(spaces=(Space("", 0, 0, 0, 0),))]
        return Evidence(
            pick.choice(kinds),
            pick.choice(types),
            pick.choice(["", "torch", "builtins"]),
            "".join(pick.choices(texts, k=3)),
            tuple(pick.choices(["", "/torch/distributed/x.py", "argparse.py"], k=pick.randrange(3))),
            pick.choice([None, 0, 2, 137, -1, 10**30]),
            pick.choice([None, "", "SIGKILL", "SIGBUS", "SIG99"]),
            pick.choice([None, 0, 5]),
            "".join(pick.choices(texts, k=2)),
            inner=tuple((pick.choice([CAUSE, CONTEXT, MEMBER, "?"]), anything(depth - 1)) for _ in range(depth)),
            life_s=pick.choice([None, 0.0, 1e9]),
            host_resources=pick.choice(around),
            scheduler=pick.choice(["", "TIMEOUT", "?"]),
            sections=(("x", 1.0),) * pick.randrange(9),
            cuda=(("allocated", 5),) * pick.randrange(2),
        )

    for _ in range(3000):
        evidence = anything(pick.randrange(4))
        row, found = find(evidence)
        assert describe(evidence, row, found)
        assert all(lines(evidence, row, found))


def test_a_file_lock_that_is_held_is_no_lack_of_processes() -> None:
    evidence = raised("BlockingIOError", "[Errno 11] Resource temporarily unavailable")
    locked = replace(evidence, frames=(Frame("train.py", 8, "lock", "fcntl.flock(file, LOCK_EX | LOCK_NB)"),))
    forked = replace(evidence, frames=(Frame("/usr/lib/python3.11/subprocess.py", 9, "_execute_child", "fork_exec("),))
    assert (classify(locked).name, classify(forked).name) == ("exception", "process-limit")
