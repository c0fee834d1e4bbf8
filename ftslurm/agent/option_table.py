"""The table of the options of `ftslurm run`: names, readers, defaults, help, and the field that each one sets."""

from __future__ import annotations

import signal

from ftslurm.agent import option_types as kinds
from ftslurm.agent.option_definition import Group, Option
from ftslurm.agent.option_groups import (
    HEALTH_MODES,
    OFF,
    ON,
    EventOptions,
    ExclusionOptions,
    HealthOptions,
    OutputOptions,
    PlacementOptions,
    ProgramOptions,
    StopOptions,
    TimeoutOptions,
    TimingOptions,
)
from ftslurm.agent.slurm_variables import MODES, TASK
from ftslurm.monitor.timeouts import Timeouts
from ftslurm.numa.choice import MODES as NUMA_MODES
from ftslurm.records.cause import IF_NODE, REQUEUE_POLICIES
from ftslurm.records.state import DEFAULT_ROLE
from ftslurm.rendezvous.observation import NEXT_ROUND, REJOIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _timeouts(hang_signal: int, auto_progress: str, **configured: Any) -> TimeoutOptions:
    return TimeoutOptions(Timeouts(**configured), hang_signal, auto_progress)


_PLACEMENT = (
    Option(("--nnodes",), kinds.nodes, None, "N|MIN:MAX", "nodes in a round; default: all of the Slurm step's"),
    Option(("--nproc-per-node",), kinds.processes, "1", "N|gpu|cpu|xpu|auto", "workers on each node; default 1"),
    Option(("--max-restarts",), kinds.count(0), 3, "N", "restarts of the whole job, over all nodes; default 3"),
    Option(
        ("--rdzv-id",),
        kinds.text_of,
        None,
        "ID",
        "name of the run; the same name continues it; default job-<job id>",
    ),
    Option(
        ("--shared-dir",),
        kinds.text_of,
        None,
        "DIR",
        "shared by all nodes, holds the run directory; default ./ftslurm-runs where the job was submitted",
    ),
    Option(
        ("--local-addr",),
        kinds.text_of,
        None,
        "ADDRESS|NODE=ADDRESS,…",
        "this node's MASTER_ADDR, or that of each node; default: Slurm's name of it",
    ),
    Option(
        ("--interface",),
        kinds.interface,
        None,
        "NAME|CIDR",
        "interface whose address each node takes for MASTER_ADDR and wakes, by name or network: ib0, 10.1.0.0/16",
    ),
    Option(
        ("--port-range",),
        kinds.ports,
        None,
        "LOW-HIGH",
        "ports of each node for MASTER_PORT (TCP) and wakes (UDP); default: free ones",
    ),
    Option(
        ("--local-nodes",),
        kinds.count(1),
        None,
        "N",
        "run N agents on this machine instead of one per Slurm node",
    ),
    Option(
        ("--requeue",),
        kinds.one_of(REQUEUE_POLICIES),
        IF_NODE,
        "|".join(REQUEUE_POLICIES),
        "start the job again after preemption or its time limit (interrupted), also after lost or unhealthy nodes "
        "(node, the default), or also when --max-restarts is used up (any)",
    ),
    Option(("--dry-run",), kinds.switch, False, "", "check all, print what would be started and why; start nothing"),
)
_PROGRAM = (
    Option(("-m", "--module"), kinds.switch, False, "", "the program is a Python module, as in python -m"),
    Option(("--no-python",), kinds.switch, False, "", "the program is not a Python script: execute it directly"),
    Option(("--role",), kinds.text_of, DEFAULT_ROLE, "NAME", "ROLE_NAME for the workers; it may differ between nodes"),
    Option(
        ("--warm-imports",),
        kinds.warm_imports,
        None,
        "auto|MODULE,…|off",
        "what standby workers import ahead for the next round: torch and what the ranks import from installed packages "
        "(auto, the default), these modules, or nothing: off, also with --worker-prefix and --no-python",
    ),
    Option(
        ("--worker-prefix",),
        kinds.command,
        (),
        "COMMAND",
        "run the workers by it, such as 'apptainer exec --nv image.sif'; the agents run outside (docs/containers.md)",
        "prefix",
    ),
    Option(
        ("--slurm-env",),
        kinds.one_of(MODES),
        TASK,
        "|".join(MODES),
        "Slurm's variables in the workers: as if each were a task of srun (SLURM_PROCID is RANK; default), of the "
        "agents' step, or those of the job only",
    ),
    Option(
        ("--virtual-local-rank",),
        kinds.switch,
        False,
        "",
        "each worker sees its own GPU only, as device 0 (CUDA_VISIBLE_DEVICES), and its LOCAL_RANK is 0",
    ),
    Option(
        ("--numa-binding",),
        kinds.one_of(NUMA_MODES),
        None,
        "|".join(NUMA_MODES),
        "bind each worker to CPUs of its agent that are near its GPU: on the GPU's NUMA node or socket, or to a share "
        "of the node's cores that no other GPU has (exclusive), or cores with a common L3 cache (core-complex)",
    ),
    Option(
        ("--signals-to-handle",),
        kinds.handled_signals,
        None,
        "SIGNAL,…",
        "TORCHELASTIC_SIGNALS_TO_HANDLE for the workers; here TERM, INT, HUP and QUIT always stop the job, USR1 and "
        "USR2 are always passed on",
    ),
)
_OUTPUT = (
    Option(
        ("--log-dir",),
        kinds.text_of,
        None,
        "DIR",
        "put the ranks' log files here instead of into the run directory",
    ),
    Option(
        ("-r", "--redirects"),
        kinds.streams,
        None,
        "0|1|2|3|R:S,…",
        "streams that go to the rank's files: 1 stdout, 2 stderr, 3 both; default 3, and what --tee names always",
    ),
    Option(
        ("-t", "--tee"),
        kinds.streams,
        None,
        "0|1|2|3|R:S,…",
        "streams also copied to the terminal, prefixed by the rank; default: both of rank 0, none with --redirects",
    ),
    Option(
        ("--local-ranks-filter",),
        kinds.local_ranks,
        (),
        "R,…",
        "show only the output of these local ranks of each node on the terminal; all of it without --redirects, --tee",
    ),
    Option(
        ("--duplicate-stdout-filters",),
        kinds.filters,
        (),
        "TEXT,…",
        "also copy the lines of --tee's stdout that have one of these texts to filtered_stdout.log, one for each node",
    ),
    Option(
        ("--duplicate-stderr-filters",),
        kinds.filters,
        (),
        "TEXT,…",
        "the same for stderr and filtered_stderr.log",
    ),
    Option(
        ("--quiet",),
        kinds.switch,
        False,
        "",
        "only ftslurm's errors, and of the report its first lines; the ranks' output is shown as without it",
    ),
    Option(
        ("-v", "--verbose"),
        kinds.switch,
        False,
        "",
        "also what each agent does: processes, signals, events; FTSLURM_LOG_LEVEL or LOGLEVEL name a level",
    ),
    Option(
        ("--flight-recorder",),
        kinds.one_of((ON, OFF)),
        ON,
        "on|off",
        "have torch record the ranks' collectives, so that a hang shows which one (on, the default), or not",
    ),
)
_TIMING = (
    Option(
        ("--heartbeat",),
        kinds.seconds(0.01),
        None,
        "SECONDS",
        "heartbeat interval of a node; default 3, less if --node-timeout requires it",
        "heartbeat_s",
    ),
    Option(
        ("--node-timeout",),
        kinds.seconds(0.1),
        8.0,
        "SECONDS",
        "a node without a sign of life for so long is lost, sooner with evidence of its death; default 8",
        "node_timeout_s",
    ),
    Option(
        ("--join-timeout",),
        kinds.seconds(0.1),
        600.0,
        "SECONDS",
        "time to wait for enough nodes; default 600",
        "join_timeout_s",
    ),
    Option(
        ("--last-call",),
        kinds.seconds(0),
        30.0,
        "SECONDS",
        "time to wait for more nodes once MIN have joined; default 30",
        "last_call_s",
    ),
    Option(
        ("--rejoin",),
        kinds.one_of(REJOIN),
        NEXT_ROUND,
        "|".join(REJOIN),
        "effect of a node that joins late or again: end the round, wait for the next one (default), or stay out",
    ),
    Option(
        ("--shutdown-timeout", "--grace"),
        kinds.seconds(0),
        None,
        "SECONDS",
        "time between SIGTERM and SIGKILL when workers are stopped; default 15, for ranks that call "
        "ftslurm.should_stop all that Slurm gives. At most 0.6 of Slurm's KillWait when Slurm signals the job: after "
        "KillWait it kills everything",
        "grace_s",
    ),
)
_TIMEOUTS = (
    Option(
        ("--heartbeat-timeout",),
        kinds.allowed,
        None,
        "SECONDS|off",
        "a rank that sends heartbeats hangs if none arrives for so long; default: learned, else 1800",
        "heartbeat_s",
    ),
    Option(
        ("--initial-heartbeat-timeout",),
        kinds.allowed,
        None,
        "SECONDS|off",
        "time from a worker's start to its first heartbeat; default: learned, else off",
        "initial_s",
    ),
    Option(
        ("--section-timeouts",),
        kinds.sections,
        {},
        "NAME=SECONDS|off,…",
        "time-outs of sections; default: learned, else off",
        "sections",
    ),
    Option(
        ("--out-of-section-timeout",),
        kinds.allowed,
        None,
        "SECONDS|off",
        "time that a rank may spend outside of all its sections; default: learned, else off",
        "out_of_section_s",
    ),
    Option(
        ("--warmup-steps",),
        kinds.count(0),
        0,
        "N",
        "number of initial heartbeats (and entries per section) given the warm-up time-out",
    ),
    Option(
        ("--warmup-timeout",),
        kinds.seconds(0),
        0.0,
        "SECONDS",
        "minimum time-out of these initial heartbeats and entries",
        "warmup_s",
    ),
    Option(
        ("--hang-timeout",),
        kinds.allowed,
        None,
        "SECONDS|off",
        "a rank without any progress (heartbeat, section, step or output) for so long hangs; default off",
        "hang_s",
    ),
    Option(
        ("--hang-signal",),
        kinds.signal_number,
        signal.SIGKILL,
        "SIGNAL",
        "signal that ends a rank that hangs; default SIGKILL",
    ),
    Option(
        ("--auto-progress",),
        kinds.one_of((ON, OFF)),
        ON,
        "on|off",
        "of a script that calls neither ftslurm.progress nor ftslurm.heartbeat, each step of its torch optimizer is a "
        "step and a heartbeat (default)",
    ),
)
_STOP = (
    Option(
        ("--warn-before-end",),
        kinds.seconds(0),
        None,
        "SECONDS",
        "stop ranks that call ftslurm.should_stop so long before the job's time limit; default: 30 more than twice the "
        "longest save (section checkpoint), at least 60; at most half of the time that the ranks have",
        "warn_before_end_s",
    ),
    Option(
        ("--stop-when",),
        kinds.notice,
        None,
        "FILE|COMMAND|drain",
        "stop the ranks when this file appears on a node, this command succeeds there (tried every 5 s), or Slurm "
        "drains a node; a number in the first line of the file or output: seconds left",
    ),
)
_HEALTH = (
    Option(
        ("--health",),
        kinds.one_of(HEALTH_MODES),
        None,
        "|".join(HEALTH_MODES),
        "leave out nodes whose health checks fail (default), only report, or do not check; off with --local-nodes",
        "mode",
    ),
    Option(
        ("--health-every",),
        kinds.seconds(0),
        300.0,
        "SECONDS",
        "interval of health checks while ranks run; default 300, 0: none",
        "every_s",
    ),
    Option(("--health-skip",), kinds.names, (), "NAME,…", "skip these checks; see ftslurm health --list", "skip"),
    Option(
        ("--health-command",),
        kinds.text_of,
        None,
        "COMMAND",
        "a custom check: exit code 0 healthy, 1 warning, 2 unhealthy, and one line of output",
        "command",
    ),
    Option(
        ("--health-paths",),
        kinds.names,
        (),
        "DIR,…",
        "checkpoint and data directories that every node must be able to use",
        "paths",
    ),
)
_EXCLUSION = (
    Option(
        ("--exclude-after",),
        kinds.count(0),
        2,
        "N",
        "exclude a node that failed first in N rounds if others are available, in later jobs too; default 2, 0: never",
        "after",
    ),
    Option(
        ("--exclude-for",),
        kinds.seconds(0),
        86_400.0,
        "SECONDS",
        "duration of an exclusion; default a day",
        "for_s",
    ),
    Option(
        ("--exclude-dir",),
        kinds.text_of,
        None,
        "DIR",
        "directory of the records of excluded nodes; default: excluded-UID/ beside the run directories",
        "directory",
    ),
    Option(
        ("--drain",),
        kinds.switch,
        False,
        "",
        "ask Slurm to drain a node whose hardware a check or its driver finds broken",
    ),
)
_EVENTS = (
    Option(
        ("--on-event",),
        kinds.text_of,
        None,
        "COMMAND",
        "run by sh -c at failure, restart, hang, requeue, stop and end, the report's JSON on stdin (docs/events.md)",
        "command",
    ),
)
GROUPS = (
    Group("Run and nodes", "placement", PlacementOptions, _PLACEMENT),
    Group("Program", "program", ProgramOptions, _PROGRAM),
    Group("Output of the ranks", "output", OutputOptions, _OUTPUT),
    Group("Times of the rendezvous", "timing", TimingOptions, _TIMING),
    Group("Time-outs of ranks", "timeouts", _timeouts, _TIMEOUTS),
    Group("Orderly stop", "stop", StopOptions, _STOP),
    Group("Health of nodes", "health", HealthOptions, _HEALTH),
    Group("Exclusion of nodes", "exclusion", ExclusionOptions, _EXCLUSION),
    Group("Events", "events", EventOptions, _EVENTS),
)

OPTIONS = tuple(option for group in GROUPS for option in group.options)
BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}
