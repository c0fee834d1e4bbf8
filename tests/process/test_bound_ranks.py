"""`--numa-binding`: real ranks on two NUMA nodes of one CPU each, by stand-ins of CUDA's driver and of sysfs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_run import Started

from ftslurm.agent import numa_binding
from ftslurm.kernel import descendants
from tests.nvml import standin

CPUS = sorted(os.sched_getaffinity(0))
PLACES = ("sys/devices/system/node", "sys/bus/pci/devices")
GPUS = "0000:01:00.0 0000:02:00.0"
needs_compiler = pytest.mark.skipif(standin.compiler() is None, reason="the stand-in needs a C compiler")
needs_namespace = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("unshare") is None
    or not all(Path(f"/{place}").is_dir() for place in PLACES)
    or bool(subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode),
    reason="a sysfs of its own needs root, unshare and mount",
)
needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
# The affinity of the agent, the rank, a thread of it and a program that it starts.
SHOW = """
import json, os, subprocess, sys, threading, time
import ftslurm
one = "import os; print(sorted(os.sched_getaffinity(0)))"
# While the agent starts another rank, it is bound to that one's.
end = time.monotonic() + 10
while len(os.sched_getaffinity(os.getppid())) == 1 and time.monotonic() < end:
    time.sleep(0.02)
cpus = {"agent": sorted(os.sched_getaffinity(os.getppid())), "rank": sorted(os.sched_getaffinity(0))}
thread = threading.Thread(target=lambda: cpus.update(thread=sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
cpus["child"] = json.loads(subprocess.run([sys.executable, "-c", one], stdout=subprocess.PIPE).stdout)
name = f"cpus-{os.environ['FTSLURM_NODE']}-{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
with open("new" + name, "w") as file:
    json.dump(cpus, file)
os.rename("new" + name, name)
"""
# Once both ranks have written theirs.
FAIL_ONCE = """
import glob, time
ftslurm.progress(1)
while len(glob.glob("cpus-*.0")) < 2:
    time.sleep(0.02)
assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
"""


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the stand-in of CUDA's driver."""
    return standin.build(tmp_path_factory.mktemp("cuda"), source=standin.CUDA, library="libcuda.so.1")


@pytest.fixture
def machine(tmp_path: Path, driver: Path) -> dict[str, Any]:
    """Return how a run is started where GPU 0 is on the NUMA node of the last CPU, GPU 1 on that of the first."""
    tree = tmp_path / "tree"
    files = {f"{PLACES[0]}/node0/cpulist": CPUS[0], f"{PLACES[0]}/node1/cpulist": CPUS[-1]}
    files |= {f"{PLACES[1]}/0000:0{gpu}:00.0/numa_node": 2 - gpu for gpu in (1, 2)}
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text(f"{text}\n")
    mounts = "; ".join(f"mount --bind '{tree}/{place}' /{place}" for place in PLACES)
    before = ("unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh")
    return {"before": before, "LD_LIBRARY_PATH": str(driver), "CUDA_STANDIN": GPUS}


def ran(directory: Path, script: str, *options: str, code: int = 0, **environment: Any) -> Started:
    (directory / "train.py").write_text(script)
    arguments = ("--nproc-per-node", "2", "--health", "off", *options, "train.py")
    run = Started(directory, *arguments, **environment)
    assert run.wait() == code, run.err
    return run


def seen(run: Started, rank: int, restarts: int = 0) -> dict[str, list[int]]:
    (path,) = run.directory.glob(f"cpus-*-{rank}.{restarts}")
    found: dict[str, list[int]] = json.loads(path.read_text())
    return found


def bound(*cpus: int) -> dict[str, list[int]]:
    return {"agent": CPUS, **{process: sorted(cpus) for process in ("rank", "thread", "child")}}


def lines(run: Started) -> list[str]:
    return [line for line in run.err.splitlines() if "--numa-binding" in line]


@needs_namespace
@needs_compiler
@needs_two
@pytest.mark.parametrize(
    ("visible", "options", "swapped"),
    [
        (None, (), False),
        ("1,0", (), True),
        ("GPU-0000:02:00.0,GPU-0000:01:00.0", (), True),
        ("1,0", ("--virtual-local-rank",), True),
        (None, ("--worker-prefix", "nice"), False),
    ],
)
def test_each_rank_and_what_it_starts_is_bound_to_the_cpus_of_its_gpu_and_the_agent_is_not(
    tmp_path: Path, machine: dict[str, Any], visible: str | None, options: tuple[str, ...], swapped: bool
) -> None:
    more = {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
    run = ran(tmp_path, SHOW, "--numa-binding", "node", *options, **machine, **more)
    order = CPUS[:1] + CPUS[-1:] if swapped else CPUS[-1:] + CPUS[:1]
    assert [seen(run, rank) for rank in (0, 1)] == [bound(cpu) for cpu in order]
    assert lines(run) == []


@needs_namespace
@needs_compiler
@needs_two
def test_a_program_without_python_is_bound_too(tmp_path: Path, machine: dict[str, Any]) -> None:
    (tmp_path / "show").write_text("#!/bin/sh\ngrep Cpus_allowed_list /proc/self/status >cpus-$RANK\n")
    (tmp_path / "show").chmod(0o755)
    run = Started(
        tmp_path, "--nproc-per-node", "2", "--health", "off", "--no-python", "./show",
        FTSLURM_NUMA_BINDING="node", **machine,
    )  # fmt: skip
    assert run.wait() == 0, run.err
    shown = [(tmp_path / f"cpus-{rank}").read_text().split()[1] for rank in (0, 1)]
    assert shown == [str(CPUS[-1]), str(CPUS[0])]


@needs_namespace
@needs_compiler
@needs_two
def test_a_restarted_rank_is_bound_again(tmp_path: Path, machine: dict[str, Any]) -> None:
    script = SHOW + FAIL_ONCE
    run = ran(tmp_path, script, "--numa-binding", "node", **machine)
    for restarts in (0, 1):
        assert [seen(run, rank, restarts) for rank in (0, 1)] == [bound(CPUS[-1]), bound(CPUS[0])]


@needs_namespace
@needs_compiler
@needs_two
def test_a_rank_whose_gpu_is_far_from_the_cpus_that_slurm_gives_runs_unbound_and_a_line_says_why(
    tmp_path: Path, machine: dict[str, Any]
) -> None:
    given = dict(machine, before=("taskset", "--cpu-list", str(CPUS[0]), *machine["before"]))
    run = ran(tmp_path, SHOW, "--numa-binding", "node", **given)
    assert [seen(run, rank)["rank"] for rank in (0, 1)] == [CPUS[:1]] * 2
    (line,) = lines(run)
    why = "local rank 0: the GPU is on NUMA node 1, and no CPU of it may be used here"
    assert line.endswith(f"--numa-binding node: not bound: {why}")


@needs_compiler
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("error 100", "CUDA finds no GPU (CUDA_ERROR_NO_DEVICE)"),
        ("error 999", "CUDA finds no GPU (999)"),
        ("crash", "the process that asks the CUDA driver ended without an answer"),
    ],
)
def test_without_an_answer_of_the_driver_all_ranks_run_unbound_and_a_line_of_each_node_says_why(
    tmp_path: Path, driver: Path, answer: str, why: str
) -> None:
    options = ("--numa-binding", "exclusive", "--local-nodes", "2")
    run = ran(tmp_path, SHOW, *options, LD_LIBRARY_PATH=str(driver), CUDA_STANDIN=answer)
    assert [seen(run, rank) for rank in range(4)] == [bound(*CPUS)] * 4
    ends = [line.partition("--numa-binding ")[2] for line in lines(run)]
    assert ends == [f"exclusive: not bound: local ranks 0-1: {why}"] * 2


def test_a_machine_without_the_driver_binds_nothing(tmp_path: Path) -> None:
    if not subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"], check=False).returncode:
        pytest.skip("CUDA's driver is here")
    run = ran(tmp_path, SHOW, "--numa-binding", "socket")
    assert seen(run, 0) == bound(*CPUS)
    (line,) = lines(run)
    assert line.endswith("not bound: local ranks 0-1: no CUDA driver here (libcuda.so.1)")


@needs_compiler
def test_more_workers_than_gpus_leaves_the_others_unbound(monkeypatch: pytest.MonkeyPatch, driver: Path) -> None:
    answer(monkeypatch, driver, GPUS)
    cpus, line = numa_binding.cpus_of_ranks("node", 4)
    assert cpus[2:] == (None, None)
    assert line is not None and line.endswith("local ranks 2-3: CUDA finds only 2 GPUs")


@needs_compiler
def test_a_driver_that_hangs_is_waited_for_no_longer_than_its_limit(
    monkeypatch: pytest.MonkeyPatch, driver: Path
) -> None:
    answer(monkeypatch, driver, "hang")
    monkeypatch.setattr(numa_binding, "LIMIT_S", 0.5)
    why = "the CUDA driver did not respond within 500 ms"
    assert numa_binding.cpus_of_ranks("node", 1) == (
        (None,),
        f"--numa-binding node: not bound: local rank 0: {why}",
    )
    # It was killed.
    end = time.monotonic() + 10
    while any(b"ftslurm.numa" in command_line(pid) for pid, _ in descendants(os.getpid())):
        assert time.monotonic() < end
        time.sleep(0.02)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def answer(monkeypatch: pytest.MonkeyPatch, driver: Path, text: str) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("CUDA_STANDIN", text)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
