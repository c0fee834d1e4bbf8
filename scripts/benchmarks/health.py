"""What a look at a node's health costs: with eight GPUs by a stand-in for NVML, and with an NVML that never answers."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure, table, tools
from benchmarks.agent import machine
from benchmarks.table import Measurement
from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, CheckedPath, Context
from ftslurm.health.nvml import LIMIT_S

sys.path.insert(0, str(tools.CHECKOUT))
from tests.nvml import standin

OURS, NVRX = "ftslurm", "NVRx"
RIVAL = """
import time
from nvidia_resiliency_ext.shared_utils.health_check import GPUHealthCheck
began = time.monotonic()
healthy = GPUHealthCheck()()
print(time.monotonic() - began, healthy)
"""
RIVAL_WAITS_S = 20.0
GPUS = 8
PERIOD_S = 300.0  # between two looks in the background
IDLE_S = 5.0
MEASUREMENTS = (
    Measurement("quick", f"quick look, all checks, {GPUS} GPUs", "s", 1.0),
    Measurement("thorough", f"thorough look, all checks, {GPUS} GPUs", "s", 10.0),
    Measurement("background", f"one look in {PERIOD_S:.0f} s in the background: share of a core", "%", 0.001),
    Measurement("bare", "quick look on a node without GPUs: processor time", "ms"),
    Measurement("wedged", "NVML never answers: found later than its limit", "s", 0.5),
    Measurement("xid", "Xid event → line", "µs"),
    Measurement("xid_idle", "waiting for Xids: share of a core", "%", 0.001),
    Measurement("xid_pss", "waiting for Xids: PSS", "MB"),
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench health`` to the command line."""
    parser = subparsers.add_parser("health", help=__doc__, description=__doc__, allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="samples of each (default 5)")
    parser.add_argument(
        "--python",
        default=tools.this_python(),
        metavar="PROGRAM",
        help="the interpreter whose environment holds NVRx (default the running one)",
    )
    parser.add_argument("--json", action="store_true", help="all samples as JSON instead of the table")
    parser.set_defaults(run=run)


def look(directory: Path, set_: str, environment: dict[str, str]) -> tuple[float, float, set[str]]:
    """Run one look as the agent does; return its seconds, its processor seconds, and which checks found something."""
    given = {"SLURM_GPUS_ON_NODE": str(GPUS)} if "NVML_STANDIN" in environment else {}
    context = Context("bench", given, paths=(CheckedPath(str(directory), "run directory"),))
    request = {"set": set_, "context": context.to_json(), "facts": str(directory / "facts")}
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "ftslurm.health.agent_run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        output = json.loads(process.stdout.read().splitlines()[-1])  # before: how far it is
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    took_s = time.monotonic() - began
    found = {verdict["check"] for verdict in output["verdicts"] if verdict["findings"]}
    return took_s, usage.ru_utime + usage.ru_stime, found


def rival(python: str, environment: dict[str, str]) -> float | None:
    """Run NVRx's GPU check, which its launcher does in its own process; return its seconds, None: it did not return."""
    try:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", RIVAL],
            env=environment,
            capture_output=True,
            text=True,
            timeout=RIVAL_WAITS_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return None
    seconds, healthy = done.stdout.split()
    if healthy != "True":
        raise SystemExit("bench: NVRx finds a healthy node sick")
    return float(seconds)


def watcher(directory: Path, node: standin.Standin) -> dict[str, float]:
    """Measure the program that waits for Xids."""
    pipe = directory / "events"
    if not pipe.exists():
        os.mkfifo(pipe)
    node.answer([f"events {pipe}"])
    with subprocess.Popen(
        [sys.executable, "-m", "ftslurm.health.xid"], stdout=subprocess.PIPE, env=node.environment()
    ) as process:
        assert process.stdout is not None
        late = []
        for _ in range(2):  # the first event waits until all is set up
            with open(pipe, "w") as events:
                began = time.monotonic()
                events.write("3 79\n")
            process.stdout.readline()
            late.append(time.monotonic() - began)
        before = _cpu_s(process.pid)
        time.sleep(IDLE_S)
        idle = (_cpu_s(process.pid) - before) / IDLE_S
        pss = measure.memory_of({process.pid}).pss
        process.kill()
    node.answer()
    return {"xid": late[1], "xid_idle": idle, "xid_pss": float(pss)}


def _cpu_s(pid: int) -> float:
    """Return how long a process of one thread has run, in seconds; to the nanosecond (proc(5): schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def collect(runs: int, directory: Path, nvrx: str | None) -> dict[str, table.Samples]:
    """Return all samples; `nvrx`: the interpreter that has it, if any."""
    results: dict[str, table.Samples] = {measurement.key: {OURS: []} for measurement in MEASUREMENTS}
    node = standin.Standin(standin.build(directory / "library"), directory / "nvml", GPUS)
    for number in range(runs + 1):  # run 0 warms caches up and does not count
        print(f"run {number}/{runs}", file=sys.stderr, flush=True)
        samples = {
            "quick": look(directory, QUICK, node.environment())[0],
            "thorough": look(directory, THOROUGH, node.environment())[0],
            "background": look(directory, BACKGROUND, node.environment())[1] / PERIOD_S,
            "bare": look(directory, QUICK, dict(os.environ))[1],
            **watcher(directory, node),
        }
        node.answer(["* hang nvmlInitWithFlags"])
        took_s, _, found = look(directory, QUICK, node.environment())
        node.answer()
        if "gpu-driver" not in found:
            raise SystemExit("bench: an NVML that never answers was not found")
        samples["wedged"] = took_s - LIMIT_S
        for key, value in samples.items() if number else ():
            results[key][OURS].append(value)
        if number and nvrx is not None and (took := rival(nvrx, node.environment())) is not None:
            results["quick"].setdefault(NVRX, []).append(took)
    if nvrx is not None:
        node.answer(["* hang nvmlInitWithFlags"])
        if rival(nvrx, node.environment()) is None:
            print(f"{NVRX}: an NVML that never answers: its check did not return within {RIVAL_WAITS_S:.0f} s")
    return results


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0, or 2 where that is not possible."""
    if arguments.runs < 1:
        print("bench: --runs: expected 1 or more", file=sys.stderr)
        return 2
    if standin.compiler() is None:
        print("bench: a C compiler is needed for the stand-in for NVML", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as name:
        found, missing = tools.find_all(["ft_launcher"], arguments.python)
        for line in missing:
            print(line, file=sys.stderr)
        results = collect(arguments.runs, Path(name), arguments.python if found else None)
    if arguments.json:
        facts = {"machine": machine(), "runs": arguments.runs}
        print(json.dumps(facts | {"measurements": table.as_json(MEASUREMENTS, results, OURS)}, indent=2))
        return 0
    facts = machine()
    print(f"{arguments.runs} runs; {facts['system']}, {facts['cores']} cores, load {facts['load']}\n")
    print("\n".join(table.lines(MEASUREMENTS, results, [NVRX, OURS] if found else [OURS], OURS)))
    if found:
        print(f"\n{NVRX} asks for the recovery action alone, in its launcher; ours are all checks, in processes")
    return 0
