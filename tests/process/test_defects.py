"""Defects of ftslurm itself: an exception in any part of an agent, injected into a real job.

In a helper part it disables that part, and the job goes on; in the core the agent stops its workers and leaves, and
says why. Either is in the log, in the run directory, and in the report.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_run
from hang_story import history
from test_run import Start, Started

from ftslurm.agent import containment
from ftslurm.agent.containment import Component

start = test_run.start

INJECTOR = """
import os, sys
where = os.environ.get("INJECT_INTO")
only = os.environ.get("INJECT_NODE")
if where and "ftslurm.cli" in sys.orig_argv and only in (None, os.environ.get("FTSLURM__LOCAL_NODE")):
    import importlib, threading
    module, owner, name, how = where.split(":")
    holder = importlib.import_module(module)
    if owner:
        holder = getattr(holder, owner)
    original = vars(holder)[name]
    lock = threading.Lock()
    def hit():
        with lock:
            first = not os.path.exists(os.environ["INJECTED"])
            if first:
                open(os.environ["INJECTED"], "w").close()
        if first or how == "always":
            raise KeyError("injected")
    def raising(*arguments, **named):
        hit()
        return original(*arguments, **named)
    get = lambda self: (hit(), original.fget(self))[1]
    setattr(holder, name, property(get) if isinstance(original, property) else raising)
"""

# Jobs that get an agent to do all that it can

FAILS = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0":
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""
# Until the agent has got there; a look at the node takes longer than this job.
CHECKS = (
    FAILS
    + """
import time
end = time.monotonic() + 30
while not os.path.exists(os.environ["INJECTED"]) and time.monotonic() < end:
    time.sleep(0.05)
"""
)
EXITS = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(1)
"""
HANGS = """
import json, os, time
import ftslurm
ftslurm.progress(1)
ftslurm.heartbeat()
with open(os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK), "w") as file:
    request = dict(version=1, pid=os.getpid(), scope_id="all", expiration_time=time.time() + 60, signal=9)
    file.write(json.dumps(request) + "\\n")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0":
    # Long enough for the agent's looks at what goes on, also where it does not notice that this hangs.
    end = time.monotonic() + 2
    while time.monotonic() < end:
        time.sleep(0.05)
    raise ValueError("not noticed")
for _ in range(10):
    time.sleep(0.05)
    ftslurm.heartbeat()
"""
BARS = (
    """
import sys, time
for state in range(5):
    sys.stderr.write(f"\\r{state} of 5")
    sys.stderr.flush()
    time.sleep(0.1)
"""
    + FAILS
)
POLLS = """
import os, time
import ftslurm
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    step = 0
    while not ftslurm.should_stop(step):
        step += 1
        time.sleep(0.02)
        if step == 40 and os.environ["RANK"] == "0":
            raise ValueError("fails while the other rank polls")
"""
TWO = ("--nproc-per-node", "2", "--health", "off")
CHECKED = ("--nproc-per-node", "2", "--health", "report", "--health-every", "1")
OFTEN = ("--heartbeat", "0.2", "--heartbeat-timeout", "0.5", "--hang-timeout", "30")
SCENARIOS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fails": (FAILS, TWO),
    "checked": (CHECKS, CHECKED),
    "exits": (EXITS, ("--health", "off")),
    "hangs": (HANGS, (*TWO, *OFTEN)),
    "polls": (POLLS, TWO),
    "bars": (BARS, TWO),
    "bound": (FAILS, (*TWO, "--numa-binding", "node")),
}

Inject = Callable[..., Started]


@pytest.fixture
def inject(start: Start, tmp_path: Path) -> Inject:
    """Start a script with an exception injected into a target, "module:class:method", once or always."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(INJECTOR)

    def begin(script: str, target: str, *options: str, how: str = "once", **environment: str) -> Started:
        return start(
            script, *options, "--max-restarts", "1", PYTHONPATH=str(site), INJECT_INTO=f"{target}:{how}",
            INJECTED=str(tmp_path / "injected"), **{"FTSLURM_REPORT": "0", **environment},
        )  # fmt: skip

    return begin


def records(run: Started) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(run.run_dir.glob("defects/*.json"))]


def own_lines(run: Started) -> list[str]:
    """Return what the agents printed themselves, not their ranks."""
    return [line for line in run.err.splitlines() if not line.startswith("[rank")]


def check_reported_and_recorded(run: Started, part: Component | None) -> None:
    assert (run.directory / "injected").exists(), "the scenario does not get there"
    found = records(run)
    assert [one["part"] for one in found if "injected" in one["error"]] == [part and part.name]
    first = found[0]
    assert first["error"] == "KeyError: 'injected'"
    assert first["traceback"].startswith("Traceback") and first["traceback"].endswith("KeyError: 'injected'\n")
    lines = [line for line in own_lines(run) if "a defect of ftslurm: KeyError: 'injected'" in line]
    (report,) = [line for line in lines if "Please report it with" in line]
    assert part is None or part.meaning in report or "as this agent leaves" in report
    assert not any(line.startswith("Traceback") for line in own_lines(run)), run.err


# Helper parts

METHODS: dict[Component, dict[str, str]] = {
    containment.HEALTH: {
        "ftslurm.agent.health_monitor:HealthMonitor": "checked: __init__ begin with_health poll on_state on_round "
        "on_swept close deadline _start _finish",
    },
    containment.MONITOR: {
        "ftslurm.agent.rank_monitor:RankMonitor": "hangs: __init__ environment begin end clear learn collect_stacks "
        "on_log_sizes turn over vitals counts deadline _expired _sample_vitals _request_log_sizes _keep_pipe _owner "
        "_read_page _sample_movement",
        "ftslurm.agent.rank_monitor:RankMonitor ": "polls: delays_stop",
        "ftslurm.agent.stack_collection:StackCollection": "hangs: __init__ poll",
        "ftslurm.monitor.timer_file:TimerFile": "fails: __init__ environment",
        "ftslurm.monitor.pipe:Pipe": "hangs: __init__ check read",
    },
    containment.RECORDS: {
        "ftslurm.agent.journal:Journal": "fails: __init__ begin failed_worker failure round again leave "
        "remove_empty _put",
        "ftslurm.agent.journal:Journal ": "hangs: stacks_collected",
        "ftslurm.agent.journal:Journal  ": "exits: elsewhere",
    },
    containment.HOST_RESOURCES: {
        "ftslurm.agent.host_resources:ResourceSampler": "hangs: __init__ begin sample at_a_failure",
    },
    containment.ANALYSIS: {"ftslurm.agent.journal:": "fails: summary retryability"},
    containment.OUTPUT: {
        "ftslurm.agent.output:Console": "fails: __init__ log follow forget drain _work",
        "ftslurm.agent.output:_Follower": "fails: __init__ send _work _wait _execute _copy",
        "ftslurm.agent.terminal:Terminal": "fails: __init__ write",
        "ftslurm.agent.terminal:Terminal ": "bars: bar_interval_s show_bar",
    },
    containment.MESSAGES: {
        "ftslurm.agent.loop:": "fails: messages",
        "ftslurm.agent.node_effects:": "fails: left_behind",
    },
    containment.DOORBELL: {"ftslurm.agent.doorbell:Doorbell": "fails: __init__ fileno ring answers refusals"},
    containment.EXCLUSION: {
        "ftslurm.agent.exclusion:Excluder": "fails: __init__ on_state finish _work _strike",
        "ftslurm.agent.exclusion:Excluder ": "checked: on_health",
        "ftslurm.agent.exclusion:": "fails: exclusion_of",
    },
    containment.EVENTS: {"ftslurm.event_log.writer:EventLog": "fails: __init__ on_state _flush _append"},
    containment.LEFTOVERS: {"ftslurm.agent.revocation:Revocation": "fails: clean_up"},
    containment.BUILD_LOCKS: {
        "ftslurm.agent.build_locks:BuildLocks": "fails: __init__ deadline on_time scan scan_builders remove"
    },
    containment.ARRIVALS: {
        "ftslurm.agent.arrival_sampling:ArrivalSampler": "fails: __init__ deadline begin on_time over _next"
    },
    containment.STOP_PAGES: {
        "ftslurm.agent.stop_pages:StopPages": "fails: __init__ begin set_job_end clear",
        "ftslurm.agent.stop_pages:StopPages ": "polls: saving catching",
    },
    containment.JOB_WATCH: {"ftslurm.agent.job_watch:JobWatch": "fails: __init__ on_state deadline close"},
    containment.NUMA_BINDING: {"ftslurm.agent.numa_binding:": "bound: cpus_of_ranks"},
    containment.GUARD: {"ftslurm.monitor.loop_watchdog:LoopWatchdog": "fails: __init__ start working waiting"},
}


def targets(methods: dict[str, str]) -> list[tuple[str, str]]:
    """Return each target with its scenario."""
    found = []
    for place, names in methods.items():
        scenario, _, listed = names.partition(": ")
        found += [(scenario, f"{place.strip()}:{name}") for name in listed.split()]
    return found


HELPERS = [(part, *one) for part, methods in METHODS.items() for one in targets(methods)]


@pytest.mark.parametrize(("part", "scenario", "target"), HELPERS, ids=[one[2] for one in HELPERS])
def test_a_defect_in_a_helper_part_disables_it_and_the_job_goes_on(
    inject: Inject, part: Component, scenario: str, target: str
) -> None:
    script, options = SCENARIOS[scenario]
    run = inject(script, target, *options)
    assert run.wait() == 0, run.err
    check_reported_and_recorded(run, part)
    assert [one["outcome"] for one in history(run)] == ["failed", "succeeded"]
    assert run.marked() == []


STOPS = """
import os, signal, time
import ftslurm
step = 0
while not ftslurm.should_stop(step):
    step += 1
    time.sleep(0.02)
    if step == 20 and os.environ["RANK"] == "0" and "FIRST_USR1" in os.environ:
        os.kill(os.getppid(), signal.SIGUSR1)
    if step == 60 and os.environ["RANK"] == "0":
        os.kill(os.getppid(), signal.SIGTERM)
"""
STOPPING = ("stoppable", "signalled", "on_signal_passed_on", "follow")


@pytest.mark.parametrize("name", STOPPING)
def test_a_defect_in_the_orderly_stop_ends_the_ranks_by_their_signal(inject: Inject, name: str) -> None:
    first = {} if name == "stoppable" else {"FIRST_USR1": "1"}
    options = (*TWO, "--grace", "2", "--heartbeat", "0.2")
    run = inject(STOPS, f"ftslurm.agent.stop_pages:StopPages:{name}", *options, **first)
    assert run.wait() in (75, 143), run.err
    check_reported_and_recorded(run, containment.STOP_PAGES)
    assert run.marked() == []


NOT_CALLED = {
    *STOPPING,  # Tried above.
    "poll",  # Of the job watch, only with --stop-when or in a job of Slurm.
    *("request_stacks", "stacks_answer"),  # Only when a user asks.
    "forgive",  # Only after this process was stopped for a while.
    "excluded",  # The event log's, when this agent excludes a node.
    "stop",  # The loop guard's, for tests.
    "ask",  # The doorbell's, once agents hear each other.
    "check",  # The loop guard's thread's, every five seconds; what goes wrong there is suppressed there.
}


DOORBELL_OF_TWO_NODES = ("answer", "ring", "send")


def test_every_public_method_of_a_helper_part_is_tried() -> None:
    between_nodes = {f"ftslurm.agent.doorbell:Doorbell:{name}" for name in DOORBELL_OF_TWO_NODES}
    tried = {one[2] for one in HELPERS} | {one[1] for one in ON_A_SPARE} | between_nodes
    for place in {target.rpartition(":")[0] for target in tried}:
        module, _, name = place.partition(":")
        if not name or name.startswith("_") or name in ("StackCollection", "TimerFile", "Pipe", "Revocation"):
            continue
        kinds = vars(getattr(importlib.import_module(module), name)).items()
        public = {key for key, value in kinds if inspect.isfunction(value) or isinstance(value, property)}
        public = {key for key in public if not key.startswith("_")} - (NOT_CALLED if name != "HealthMonitor" else set())
        assert {key for key in public if f"{place}:{key}" not in tried} == set(), place


# With another node

SPARE_LEADS = """
import json, os, signal, time
import ftslurm
if os.environ["FTSLURM_ROUND"] == "1":
    while not os.path.exists("go"):
        time.sleep(0.02)
    # The guardian, which would start another agent.
    guardian = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(") ")[1].split()[1])
    os.kill(guardian, signal.SIGKILL)
    # The agent ends this rank; one that ended by itself could succeed before that.
    time.sleep(60)
"""
ON_A_SPARE = [
    (containment.STANDBY, "ftslurm.agent.standby:Standbys:" + name)
    for name in ("__init__", "start", "poll", "take", "drop_all")
]


@pytest.mark.parametrize(("part", "target"), ON_A_SPARE, ids=[one[1] for one in ON_A_SPARE])
def test_a_defect_in_a_helper_part_of_a_spare_lets_it_take_its_place_all_the_same(
    inject: Inject, part: Component, target: str
) -> None:
    run = inject(
        SPARE_LEADS, target, "--local-nodes", "2", "--nnodes", "1", "--warm-imports", "decimal", "--health", "off",
        "--node-timeout", "4", INJECT_NODE="1/2", FTSLURM_REPORT="1",
    )  # fmt: skip
    run.until(lambda: "standby workers are ready" in run.err or (run.directory / "injected").exists())
    (run.directory / "go").touch()
    assert run.wait() == 0, run.err
    check_reported_and_recorded(run, part)
    assert len(history(run)) == 2
    assert run.marked() == []
    assert "defects of ftslurm itself, neither your program's nor a node's" in run.out
    assert part.meaning in " ".join(run.out.split())


@pytest.mark.parametrize("name", DOORBELL_OF_TWO_NODES)
def test_a_doorbell_that_fails_costs_its_node_nothing_but_time(inject: Inject, name: str) -> None:
    run = inject(FAILS, f"ftslurm.agent.doorbell:Doorbell:{name}", "--local-nodes", "2", "--health", "off")
    assert run.wait() == 0, run.err
    check_reported_and_recorded(run, containment.DOORBELL)
    assert [one["nodes"] for one in history(run)] == [["local0", "local1"]] * 2


def test_a_connection_test_that_fails_keeps_no_round_from_beginning(inject: Inject) -> None:
    run = inject(FAILS, "ftslurm.agent.node_effects::reach_master", "--local-nodes", "2", "--health", "report")
    assert run.wait() == 0, run.err
    check_reported_and_recorded(run, containment.CONNECTION)
    assert len(history(run)) == 2


# The core

CORE = [
    *(f"ftslurm.agent.machine:AgentMachine:{name}" for name in (
        "on_state", "on_prepared", "on_worker_ended", "on_swept", "on_time",
    )),
    "ftslurm.agent.transitions:Transitions:deadline",
    *(f"ftslurm.agent.workers:Workers:{name}" for name in ("start", "collect", "reap", "sweep", "clear")),
    *(f"ftslurm.agent.courier:Courier:{name}" for name in (
        "send", "publish", "turn", "deadline", "_run_tasks", "_run", "_tick", "_post_view",
    )),
    *(f"ftslurm.agent.courier:CourierThread:{name}" for name in ("start", "_work", "_wait")),
    *(f"ftslurm.rendezvous.member:Member:{name}" for name in (
        "tick", "publish", "next_tick_s", "_publish_record", "_lead",
    )),
    *(f"ftslurm.agent.round_setup:RoundSetup:{name}" for name in ("begin", "made", "on_time", "deadline")),
    *(f"ftslurm.agent.loop:AgentLoop:{name}" for name in (
        "begin", "turn", "deadline", "_moment", "_handle", "_on_prepared", "_on_view", "_follow", "_do",
        "_publish", "_publish_changes", "_assemble", "_prepare", "_make", "_spawn", "_kill_leftovers", "_sweep",
        "_give_up",
    )),
    "ftslurm.agent.node_agent:NodeAgent:_begin",
    *(f"ftslurm.agent.node_effects:NodeEffects:{name}" for name in (
        "events", "wait", "deadline", "_ended_workers", "make_directories", "spawn", "sweep",
        "record_round", "record_failure", "publish", "reserve_port", "on_swept", "forget_round",
    )),
    *(f"ftslurm.agent.waiting:Waiting:{name}" for name in ("__init__", "handle", "signals", "listen", "wait")),
    "ftslurm.agent.node_effects::launch_of",
    "ftslurm.agent.ports:ReservedPort:__init__",
    *(f"ftslurm.agent.worker_exits:WorkerExits:{name}" for name in (
        "__init__", "add", "take", "record", "deadline",
    )),
]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "how"),
    # The first task that is sent is a component's, which contains it.
    [(target, "once") for target in CORE if target != "ftslurm.agent.courier:Courier:send"]
    + [(target, "always") for target in CORE if "AgentLoop" not in target],
)
def test_a_defect_in_the_core_stops_the_workers_and_the_agent_leaves_with_that_reason(
    inject: Inject, target: str, how: str
) -> None:
    script, options = SCENARIOS["fails"]
    run = inject(script, target, *options, how=how)
    assert run.wait() == 1, run.err
    assert any("a defect of ftslurm: KeyError: 'injected'" in line for line in own_lines(run)), run.err
    assert not any(line.startswith("Traceback") for line in own_lines(run)), run.err
    assert any(one["part"] is None and "injected" in one["traceback"] for one in records(run))
    for path in (run.run_dir / "nodes").glob("*.json"):
        # There is none where the agent came to nothing before it wrote its first record.
        record = json.loads(path.read_text())
        assert record["status"] == "left"
        assert record["reason"].startswith("its agent ended by a defect of ftslurm: KeyError: 'injected'")
    assert run.marked() == []


WAITS = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("target", ["machine:AgentMachine:on_worker_ended", "courier:Courier:_run"])
def test_a_node_whose_agent_has_a_defect_is_replaced_and_the_report_blames_no_other(
    inject: Inject, target: str
) -> None:
    run = inject(
        WAITS, f"ftslurm.agent.{target}", "--local-nodes", "3", "--nnodes", "2", "--health", "off",
        "--node-timeout", "4", INJECT_NODE="0/3", FTSLURM_REPORT="1",
    )  # fmt: skip
    run.until(lambda: len(list((run.directory / "ftslurm-runs").glob("*/nodes/*.json"))) == 3)
    (run.directory / "go").touch()
    assert run.wait() == 0, run.err
    assert [one["outcome"] for one in history(run)][-1] == "succeeded"
    assert history(run)[-1]["nodes"] != history(run)[0]["nodes"] or len(history(run)) == 1
    out = " ".join(run.out.split())
    assert "defects of ftslurm itself, neither your program's nor a node's local0: the agent ended: KeyError" in out
    report = json.loads((run.run_dir / "report.json").read_text())
    failures = [entry["first_failure"] for entry in report["rounds"][:-1]]
    assert all((each["cause"], each["node"]) == ("agent-defect", "local0") for each in failures)
    assert run.marked() == []


def test_a_lone_agents_defect_is_the_cause_in_the_report(inject: Inject) -> None:
    target = "ftslurm.agent.machine:AgentMachine:on_worker_ended"
    run = inject(FAILS, target, *TWO, FTSLURM_REPORT="1")
    assert run.wait() == 1, run.err
    report = json.loads((run.run_dir / "report.json").read_text())
    assert report["cause"]["cause"] == "agent-defect"
    assert report["defects"][0]["error"] == "KeyError: 'injected'" and report["defects"][0]["part"] is None
    assert "Neither your program nor the node is the cause" in " ".join(run.out.split())
