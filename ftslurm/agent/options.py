"""The options of `ftslurm run`: torchrun's names and meanings where it has one, each also as `FTSLURM_…`."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ftslurm.agent import option_types as kinds
from ftslurm.agent.health_gate import ACT, MODES, OFF
from ftslurm.agent.option_types import UsageError
from ftslurm.dataclasses import dataclass
from ftslurm.monitor.timeouts import Timeouts
from ftslurm.rendezvous.observation import NEXT_ROUND, REJOIN

__all__ = ["USAGE", "RunOptions", "UsageError", "find_program", "parse_run"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class RunOptions:
    """The options of `ftslurm run`; None where unset and Slurm or a later step decides. Times in seconds."""

    nnodes: tuple[int, int] | None
    nproc_per_node: str
    max_restarts: int
    rdzv_id: str | None
    shared_dir: str | None
    log_dir: str | None
    redirects: int | dict[int, int]
    tee: int | dict[int, int] | None
    role: str
    local_addr: str | None
    local_nodes: int | None
    grace_s: float
    heartbeat_s: float
    node_timeout_s: float
    join_timeout_s: float
    last_call_s: float
    rejoin: str
    timeouts: Timeouts
    hang_signal: int
    spare_imports: tuple[str, ...]
    health: str
    health_every_s: float
    health_skip: tuple[str, ...]
    health_command: str | None
    health_paths: tuple[str, ...]
    exclude_after: int
    exclude_for_s: float
    exclude_dir: str | None
    drain: bool
    module: bool
    no_python: bool
    program: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Option:
    """One option; `read` parses its value, given the option's name as used and the text, or raises `UsageError`."""

    flags: tuple[str, ...]
    read: Callable[[str, str], Any]
    default: Any
    metavar: str
    help: str

    @property
    def name(self) -> str:
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        return f"FTSLURM_{self.name.upper()}"

    @property
    def is_switch(self) -> bool:
        """It takes no value after it."""
        return not self.metavar


DEFAULT_HEARTBEAT_S = 3.0

OPTIONS = (
    Option(("--nnodes",), kinds.nodes, None, "N|MIN:MAX", "nodes in a round; default: all of the Slurm step's"),
    Option(("--nproc-per-node",), kinds.processes, "1", "N|gpu|cpu|auto", "workers on each node; default 1"),
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
        ("--log-dir",), kinds.text_of, None, "DIR", "put the ranks' log files here instead of into the run directory"
    ),
    Option(
        ("-r", "--redirects"),
        kinds.streams,
        3,
        "0|1|2|3|R:S,…",
        "streams that go to the rank's files: 1 stdout, 2 stderr, 3 both; default 3",
    ),
    Option(
        ("-t", "--tee"),
        kinds.streams,
        None,
        "0|1|2|3|R:S,…",
        "streams also copied to the terminal, prefixed by the rank; default: both of rank 0",
    ),
    Option(("--role",), kinds.text_of, "default", "NAME", "ROLE_NAME for the workers"),
    Option(("--local-addr",), kinds.text_of, None, "ADDRESS", "this node's MASTER_ADDR; default: Slurm's name of it"),
    Option(("--local-nodes",), kinds.count(1), None, "N", "run N agents on this machine instead of one per Slurm node"),
    Option(
        ("--grace",),
        kinds.seconds(0),
        15.0,
        "SECONDS",
        "time between SIGTERM and SIGKILL when workers are stopped; default 15. "
        "At most 0.6 of Slurm's KillWait when Slurm signals the job: after KillWait it kills everything",
    ),
    Option(
        ("--heartbeat",),
        kinds.seconds(0.01),
        None,
        "SECONDS",
        "heartbeat interval of a node; default 3, less if --node-timeout requires it",
    ),
    Option(
        ("--node-timeout",),
        kinds.seconds(0.1),
        8.0,
        "SECONDS",
        "a node without a heartbeat for so long is lost; default 8",
    ),
    Option(("--join-timeout",), kinds.seconds(0.1), 600.0, "SECONDS", "time to wait for enough nodes; default 600"),
    Option(
        ("--last-call",),
        kinds.seconds(0),
        30.0,
        "SECONDS",
        "time to wait for more nodes once MIN have joined; default 30",
    ),
    Option(
        ("--rejoin",),
        kinds.one_of(REJOIN),
        NEXT_ROUND,
        "|".join(REJOIN),
        "effect of a node that joins late or again: end the round, wait for the next one (default), or stay out",
    ),
    Option(
        ("--heartbeat-timeout",),
        kinds.allowed,
        None,
        "SECONDS|off",
        "a rank that sends heartbeats hangs if none arrives for so long; default: learned, else 1800",
    ),
    Option(
        ("--initial-heartbeat-timeout",),
        kinds.allowed,
        None,
        "SECONDS|off",
        "time from a worker's start to its first heartbeat; default: learned, else off",
    ),
    Option(
        ("--section-timeouts",),
        kinds.sections,
        {},
        "NAME=SECONDS|off,…",
        "time-outs of sections; default: learned, else off",
    ),
    Option(
        ("--out-of-section-timeout",),
        kinds.allowed,
        None,
        "SECONDS|off",
        "time that a rank may spend outside of all its sections; default: learned, else off",
    ),
    Option(
        ("--warmup-steps",),
        kinds.count(0),
        0,
        "N",
        "number of initial heartbeats (and entries per section) that get the warm-up time-out",
    ),
    Option(
        ("--warmup-timeout",),
        kinds.seconds(0),
        0.0,
        "SECONDS",
        "minimum time-out of these initial heartbeats and entries",
    ),
    Option(
        ("--hang-timeout",),
        kinds.allowed,
        None,
        "SECONDS|off",
        "a rank without any progress (heartbeat, section, step or output) for so long hangs; default off",
    ),
    Option(
        ("--hang-signal",),
        kinds.signal_number,
        signal.SIGKILL,
        "SIGNAL",
        "signal that ends a rank that hangs; default SIGKILL",
    ),
    Option(
        ("--spare-imports",),
        kinds.modules,
        (),
        "MODULE,…",
        "modules that standby workers on spare nodes import ahead (none that opens the GPU)",
    ),
    Option(
        ("--health",),
        kinds.one_of(MODES),
        None,
        "|".join(MODES),
        "leave out nodes whose health checks fail (default), only report, or do not check; off with --local-nodes",
    ),
    Option(
        ("--health-every",),
        kinds.seconds(0),
        300.0,
        "SECONDS",
        "interval of health checks while ranks run; default 300, 0: none",
    ),
    Option(("--health-skip",), kinds.names, (), "NAME,…", "skip these checks; see ftslurm health --list"),
    Option(
        ("--health-command",),
        kinds.text_of,
        None,
        "COMMAND",
        "a custom check: exit code 0 healthy, 1 warning, 2 unhealthy, and one line of output",
    ),
    Option(
        ("--health-paths",),
        kinds.names,
        (),
        "DIR,…",
        "checkpoint and data directories that every node must be able to use",
    ),
    Option(
        ("--exclude-after",),
        kinds.count(0),
        2,
        "N",
        "exclude a node that failed first in N rounds if others are available, in later jobs too; default 2, 0: never",
    ),
    Option(
        ("--exclude-for",),
        kinds.seconds(0),
        86_400.0,
        "SECONDS",
        "duration of an exclusion; default a day",
    ),
    Option(
        ("--exclude-dir",),
        kinds.text_of,
        None,
        "DIR",
        "directory of the records of excluded nodes; default: excluded-UID/ beside the run directories",
    ),
    Option(
        ("--drain",),
        kinds.switch,
        False,
        "",
        "ask Slurm to drain a node whose hardware a check or its driver finds broken",
    ),
    Option(("-m", "--module"), kinds.switch, False, "", "the program is a Python module, as in python -m"),
    Option(("--no-python",), kinds.switch, False, "", "the program is not a Python script: execute it directly"),
)
_IN_SECONDS = ("grace", "heartbeat", "node_timeout", "join_timeout", "last_call", "health_every", "exclude_for")
_BY_FLAG = {flag: option for option in OPTIONS for flag in option.flags}

_NOT_OURS = {
    "--rdzv-backend": "the shared directory is the rendezvous: leave it out",
    "--rdzv-endpoint": "the shared directory is the rendezvous, no host or port is needed: leave it out",
    "--rdzv-conf": "see --join-timeout and --last-call",
    "--standalone": "not needed: without Slurm one node is the default",
    "--node-rank": "Slurm's order is taken: leave it out",
    "--master-addr": "chosen anew for each round: leave it out (see --local-addr)",
    "--master-port": "chosen anew for each round: leave it out",
    "--monitor-interval": "workers are not polled: leave it out",
    "--start-method": "leave it out",
    "--shutdown-timeout": "see --grace",
    "--signals-to-handle": "leave it out: TERM, INT, HUP and QUIT stop the job, USR1 and USR2 are passed on",
    "--event-log-handler": "leave it out: the run directory holds all events",
    "--logs-specs": "see --log-dir, --redirects and --tee",
    "--duplicate-stdout-filters": "see --tee",
    "--duplicate-stderr-filters": "see --tee",
    "--numa-binding": "leave it out: bind the workers in the program, or by srun's --cpu-bind",
    "--virtual-local-rank": "leave it out: choose the device by LOCAL_RANK",
    "--run-path": "leave it out: a script runs as __main__ here",
    "--local-ranks-filter": "see --tee",
}

USAGE = "ftslurm run [options] program [the program's arguments]"


def parse_run(arguments: Sequence[str], environment: Mapping[str, str]) -> RunOptions:
    """Read the command line of `ftslurm run`; the environment's `FTSLURM_…` are defaults.

    Raises:
        UsageError: with one line.
        SystemExit: after `--help`.
    """
    given, program, rest = _split(arguments)
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.name in given:
            values[option.name] = option.read(option.flags[-1], given[option.name])
        elif environment.get(option.variable):
            values[option.name] = option.read(f"{option.variable} (in the environment)", environment[option.variable])
        else:
            values[option.name] = option.default
    if program is None:
        raise UsageError(f"expected a program to run: {USAGE}")
    if values["module"] and values["no_python"]:
        raise UsageError("--module and --no-python: only one of them makes sense")
    if values["health"] is None:
        # Agents that share one machine would mistake each other's workers for leftovers.
        values["health"] = OFF if values["local_nodes"] else ACT
    for name in _IN_SECONDS:
        values[f"{name}_s"] = values.pop(name)
    if values["heartbeat_s"] is None:
        values["heartbeat_s"] = min(DEFAULT_HEARTBEAT_S, values["node_timeout_s"] / 2.5)
    if values["node_timeout_s"] < 2 * values["heartbeat_s"]:
        wrong = f"--node-timeout {values['node_timeout_s']:g}"
        raise UsageError(f"{wrong}: expected at least twice --heartbeat ({values['heartbeat_s']:g})")
    values["timeouts"] = Timeouts(
        initial_s=values.pop("initial_heartbeat_timeout"),
        heartbeat_s=values.pop("heartbeat_timeout"),
        sections=values.pop("section_timeouts"),
        out_of_section_s=values.pop("out_of_section_timeout"),
        warmup_steps=values.pop("warmup_steps"),
        warmup_s=values.pop("warmup_timeout"),
        hang_s=values.pop("hang_timeout"),
    )
    return RunOptions(program=program, arguments=tuple(rest), **values)


def _split(arguments: Sequence[str]) -> tuple[dict[str, str], str | None, list[str]]:
    """Split the command line at the program's name; the arguments after it are not parsed.

    By hand: argparse and what it imports would stay in each agent's memory for as long as the job runs (0.6 MB).

    Returns:
        The given options' texts ("1" for a switch) by name, the program if any, and its arguments.
    """
    given: dict[str, str] = {}
    remaining = deque(arguments)
    while remaining and remaining[0].startswith("-") and remaining[0] != "-":
        argument = remaining.popleft()
        if argument == "--":
            break
        flag, value = _flag_and_value(argument)
        option = _find(flag)
        if not option.is_switch:
            if value is None and not remaining:
                raise UsageError(f"{flag}: expected a value after it")
            given[option.name] = remaining.popleft() if value is None else value
            continue
        given[option.name] = "1"
        if value is not None and (argument.startswith("--") or argument[2] == "="):
            raise UsageError(f"{flag}: expected no value, found {value!r}")
        if value is not None:
            # Several short options in one argument: -mr3.
            remaining.appendleft(f"-{value}")
    program = remaining.popleft() if remaining else None
    return given, program, list(remaining)


def _flag_and_value(argument: str) -> tuple[str, str | None]:
    """Split --flag=value, -fvalue or -f=value."""
    if not argument.startswith("--"):
        return argument[:2], argument[2:].removeprefix("=") if argument[2:] else None
    flag, equals, value = argument.partition("=")
    return flag, value if equals else None


def _find(flag: str) -> Option:
    # torchrun accepts --nproc_per_node too.
    name = flag.replace("_", "-")
    if name in ("-h", "--help"):
        _print_help()
        raise SystemExit(0)
    if name in _NOT_OURS:
        raise UsageError(f"{flag} is an option of torchrun, not of ftslurm:  {_NOT_OURS[name]}")
    if name not in _BY_FLAG:
        raise UsageError(f"unknown option {flag}; see ftslurm run --help")
    return _BY_FLAG[name]


def _print_help() -> None:
    import argparse

    parser = argparse.ArgumentParser(
        prog="ftslurm run",
        usage=USAGE,
        description="Run a program on all nodes, restart it when it fails, report why it failed.",
        epilog="Each option can be set as an environment variable: --max-restarts as FTSLURM_MAX_RESTARTS, and so on. "
        "Exit codes: 0 success, 1 the job failed, 2 wrong usage (nothing was started), 78 failed and do not requeue "
        "(a worker ended with 78), 128+n stopped by signal n from outside.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36, width=110),
    )
    for option in OPTIONS:
        if option.is_switch:
            parser.add_argument(*option.flags, action="store_true", help=option.help)
        else:
            parser.add_argument(*option.flags, metavar=option.metavar, help=option.help)
    parser.print_help()


def find_program(options: RunOptions, path: str) -> str:
    """Return the program's file (the name itself for a module), after a check that it exists.

    Args:
        path: directories searched for a program, as in PATH.

    Raises:
        UsageError: it does not exist, or is not a file.
    """
    name = options.program
    if options.module:
        return name
    if options.no_python:
        candidates = [name] if os.sep in name else [os.path.join(d or ".", name) for d in path.split(os.pathsep)]
        for candidate in candidates:
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return candidate
        raise UsageError(f"{name}: no such program (or not executable); --no-python takes a path or a name on PATH")
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, "__main__.py")):
            raise UsageError(f"{name}: is a directory without __main__.py, expected a Python script (in {os.getcwd()})")
        return name
    if os.path.exists(name) and not os.path.isfile(name):
        raise UsageError(f"{name}: not a regular file, expected a Python script (in {os.getcwd()})")
    if not os.path.isfile(name):
        raise UsageError(f"{name}: no such script (in {os.getcwd()}); expected a Python script, or -m, or --no-python")
    if not os.access(name, os.R_OK):
        raise UsageError(f"{name}: the script cannot be read (permission denied)")
    return name
