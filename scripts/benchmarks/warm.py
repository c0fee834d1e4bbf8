"""How soon after a failure a DDP script trains again, with its imports done ahead and without."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import measure, tools
from benchmarks.table import Measurement

WORKER = str(Path(__file__).with_name("warm_worker.py"))
NODES, WORKERS = 2, 2
LIMIT_S = 300.0
QUIET_S = 3.0  # standby workers that use no CPU time for so long have done their imports
COLD_S = 15.0  # of training before the failure, without standby workers
TITLE = f"failure → first step of the next round, {NODES} nodes"
MEASUREMENTS = (
    Measurement("warm_kill", f"{TITLE}, warm imports, rank killed", "s", 1.5),
    Measurement("warm_raise", "… rank raises (Python takes its time to end)", "s"),
    Measurement("cold_kill", "… without warm imports, rank killed", "s"),
    Measurement("cold_raise", "… without warm imports, rank raises", "s"),
    Measurement("standby_rss", "memory of one standby worker, RSS", "MB"),
    Measurement("standby_pss", "memory of one standby worker, PSS", "MB"),
    Measurement("imports", "time of the imports of all standby workers", "s"),
    Measurement("slower", "training while they import, against before", "x"),
)
Sample = dict[str, float]


def measure_restart(tool: tools.Tool, how: str, warm: bool) -> Sample:
    """Run a job that fails once; return the time to its next first step and, if warm, what the warmth takes."""
    with measure.job_directory() as directory:
        events = directory / "events"
        job = tools.Job(NODES, WORKERS, (WORKER, str(events), how), directory, measure.free_port())
        (command,) = tool.commands(job)
        options = ["--warm-imports", "auto" if warm else "off"]
        command = [*command[: command.index("run") + 1], *options, *command[command.index("run") + 1 :]]
        environment = tools.environment(directory)
        environment["PYTHONPATH"] += f":{tools.CHECKOUT}/scripts"
        environment["GLOO_SOCKET_IFNAME"] = "lo"
        launch = measure.Launch([command], directory, environment)
        ranks = NODES * WORKERS
        _wait(launch, lambda: _count(events, "step") >= ranks)
        sample = _await_standbys(launch, events, ranks) if warm else {}
        if not warm:
            time.sleep(COLD_S)
        Path(f"{events}.fail").touch()
        launch.wait(LIMIT_S)
        seen = measure.read_events(events)
        failed = next(event.time_ns for event in seen if event.what == "fail")
        steps = [event.time_ns for event in seen if event.what == "step" and event.time_ns > failed]
        if len(steps) < ranks:
            raise measure.RunFailedError(f"expected {ranks} first steps after the failure, found {len(steps)}")
        sample[f"{'warm' if warm else 'cold'}_{how}"] = (max(steps) - failed) / 1e9
        return sample


def _await_standbys(launch: measure.Launch, events: Path, ranks: int) -> Sample:
    """Wait until the standby workers have done their imports; return what they took."""
    standbys: set[int] = set()

    def all_started() -> bool:
        standbys.update(_standbys({process.pid for process in launch.processes}))
        return len(standbys) == ranks

    _wait(launch, all_started)
    began_ns = ended_ns = time.monotonic_ns()
    used = -1
    while time.monotonic_ns() - ended_ns < QUIET_S * 1e9:
        now = sum(_ticks(pid) for pid in standbys)
        used, ended_ns = (now, time.monotonic_ns()) if now != used else (used, ended_ns)
        time.sleep(0.05)
        if not launch.running():
            raise measure.RunFailedError(f"it ended before its standby workers were ready; {launch.last_output()}")
    memory = measure.memory_of(standbys)
    paces = [event.time_ns for event in measure.read_events(events) if event.what == "pace"]
    during = sum(began_ns < time_ns <= ended_ns for time_ns in paces) / (ended_ns - began_ns)
    after = sum(ended_ns < time_ns for time_ns in paces) / (time.monotonic_ns() - ended_ns)
    return {
        "standby_rss": memory.rss / ranks,
        "standby_pss": memory.pss / ranks,
        "imports": (ended_ns - began_ns) / 1e9,
        "slower": after / during,
    }


def _wait(launch: measure.Launch, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > deadline or not launch.running():
            raise measure.RunFailedError(f"it did not get far enough; {launch.last_output()}")
        time.sleep(0.05)


def _count(events: Path, what: str) -> int:
    return sum(event.what == what for event in measure.read_events(events))


def _standbys(launchers: set[int]) -> set[int]:
    found = set()
    for pid in measure.processes_below(launchers):
        try:
            if b"--standby\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
        except OSError:
            continue
    return found


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
