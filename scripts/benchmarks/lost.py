"""A node dies without a notice while a spare waits: how long until the workers of the new world run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import measure, tools

WORKER = str(Path(__file__).with_name("worker.py"))
WORLD = 2
SETTLE_S = 1.0
START_LIMIT_S = 60.0
LOST_LIMIT_S = 90.0
COORDINATOR_TRIES = 8  # the coordinator is the spare in one start of three: then there is nothing to measure


@dataclass(frozen=True)
class Case:
    """What is measured, and the options of each tool for it."""

    key: str
    title: str
    options: dict[str, tuple[str, ...]]
    coordinator: bool = False
    bar: float | None = None


_TUNED = {
    "ftslurm": ("--heartbeat=0.5", "--node-timeout=2"),
    "torchrun": ("--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2",),
}
CASES = (
    Case("lost_default", "node lost → spare's world runs, defaults", {"ftslurm": (), "torchrun": ()}, bar=4.0),
    Case("lost_tuned", "node lost → spare's world runs, tuned", _TUNED, bar=3.0),
    Case("leader_default", "the same, the coordinator's node, defaults", {"ftslurm": ()}, True, 4.0),
    Case("leader_tuned", "the same, the coordinator's node, tuned", {"ftslurm": _TUNED["ftslurm"]}, True, 3.0),
)


def measure_lost(tool: tools.Tool, case: Case) -> float:
    """Return the seconds from the murder of a node to the start of the last worker of the next world.

    Raises:
        RunFailedError: there was no first or no next world in time.
    """
    for _ in range(COORDINATOR_TRIES):
        with measure.job_directory() as directory:
            launch, run_directory = _launch(tool, case, directory)
            workers = _wait_for_world(directory, 0, START_LIMIT_S, launch)
            time.sleep(SETTLE_S)
            victim = _victim(workers, launch, run_directory, case)
            if victim is not None:
                killed_ns = _murder(victim)
                newest = _wait_for_world(directory, WORLD, LOST_LIMIT_S, launch)
                return (max(event.time_ns for event in newest) - killed_ns) / 1e9
    raise measure.RunFailedError("the coordinator was the spare in every start")


def _launch(tool: tools.Tool, case: Case, directory: Path) -> tuple[measure.Launch, Path]:
    """Start three agents for a world of two."""
    ours = tool.name == "ftslurm"
    script = (WORKER, str(directory / "events"), "hold")
    job = tools.Job(WORLD + 1 if ours else WORLD, 1, script, directory, measure.free_port())
    command = tool.commands(job)[0]
    options = (f"--nnodes={WORLD}",) if ours else ()
    place = len(tool.start) + ours  # ours has the subcommand first
    command[place:place] = [*options, *case.options[tool.name]]
    # torchrun's own redundancy: the third agent of a full world waits for a place.
    commands = [command] * (1 if ours else WORLD + 1)
    return measure.Launch(commands, directory, tools.environment(directory)), tools.run_directory(job)


def _wait_for_world(directory: Path, before: int, limit_s: float, launch: measure.Launch) -> list[measure.Event]:
    """Return the workers' starts that come after the first `before`, as soon as there is a world of them."""
    deadline = time.monotonic() + limit_s
    while len(starts := measure.read_events(directory / "events")[before:]) < WORLD:
        if time.monotonic() > deadline:
            raise measure.RunFailedError(f"no world of {WORLD} within {limit_s:.0f} s; {launch.last_output()}")
        time.sleep(0.02)
    return starts


def _victim(workers: list[measure.Event], launch: measure.Launch, run: Path, case: Case) -> set[int] | None:
    """Return the processes of the node to kill: agent, guardian, workers; None when that node has no workers."""
    lines = [_ancestors(event.pid) for event in workers]
    common = next(pid for pid in lines[0] if pid in lines[1])
    nodes = [measure.processes_below({line[line.index(common) - 1]}) for line in lines]
    if len(launch.processes) > 1:
        # torchrun: whoever hosts the store cannot be spared, it takes the job along.
        return next(node for node in nodes if not node & {_store_host(launch)})
    coordinator = _coordinator(run)
    return next((node for node in nodes if (coordinator in node) == case.coordinator), None)


def _ancestors(pid: int) -> list[int]:
    """Return `pid`, its parent, and so on."""
    line = [pid]
    while line[-1] > 1:
        status = Path(f"/proc/{line[-1]}/stat").read_text(errors="replace")
        line.append(int(status.rpartition(")")[2].split()[1]))
    return line


def _store_host(launch: measure.Launch) -> int:
    """Return the agent that listens where all of them connect to: the one with a listening socket there."""
    port = next(int(option.rpartition(":")[2]) for option in launch.command if option.startswith("--rdzv-endpoint="))
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                listening.add(f"socket:[{fields[9]}]")
    for process in launch.processes:
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) in listening:
                    return process.pid
    raise measure.RunFailedError(f"no process listens on the store's port {port}")


def _coordinator(run: Path) -> int:
    """Return the pid of the agent that holds the lease."""
    newest = max(path for path in (run / "state").iterdir() if path.suffix == ".json" and path.name[0] != ".")
    node = json.loads(newest.read_bytes())["value"]["coordinator"]["node"]
    return int(json.loads((run / "nodes" / f"{node}.json").read_bytes())["pid"])


def _murder(victims: set[int]) -> int:
    """Kill all of them as a power failure would: none lives long enough to report that another one died."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        killed_ns = time.monotonic_ns()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    return killed_ns
