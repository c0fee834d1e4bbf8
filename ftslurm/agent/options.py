"""The options of `ftslurm run`: torchrun's names and meanings where it has one, each also as `FTSLURM_…`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence

from ftslurm.agent.option_definition import Option
from ftslurm.agent.option_groups import ACT, OFF, ProgramOptions, RunOptions
from ftslurm.agent.option_table import GROUPS, OPTIONS
from ftslurm.monitor.timeouts import timeouts_json
from ftslurm.terminal import UsageError

__all__ = ["USAGE", "find_program", "options_record", "parse_run"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


DEFAULT_HEARTBEAT_S, DEFAULT_GRACE_S = 3.0, 15.0
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
    values = {option.name: _value(option, given, environment) for option in OPTIONS}
    if program is None:
        raise UsageError(f"expected a program to run: {USAGE}")
    if values["module"] and values["no_python"]:
        raise UsageError("--module and --no-python: only one of them makes sense")
    if values["worker_prefix"] and values["spare_imports"]:
        raise UsageError("--worker-prefix and --spare-imports: no worker can be started ahead in a container yet")
    if values["local_addr"] and values["interface"]:
        raise UsageError("--local-addr and --interface: only one of them makes sense")
    if values["health"] is None:
        # Agents that share one machine would mistake each other's workers for leftovers.
        values["health"] = OFF if values["local_nodes"] else ACT
    if values["heartbeat"] is None:
        values["heartbeat"] = min(DEFAULT_HEARTBEAT_S, values["node_timeout"] / 2.5)
    if values["node_timeout"] < 2 * values["heartbeat"]:
        wrong = f"--node-timeout {values['node_timeout']:g}"
        raise UsageError(f"{wrong}: expected at least twice --heartbeat ({values['heartbeat']:g})")
    fields = {group.name: {option.field: values[option.name] for option in group.options} for group in GROUPS}
    fields["program"].update(name=program, arguments=tuple(rest))
    fields["stop"].update(grace_s=values["grace"])
    if values["grace"] is None:
        fields["timing"].update(grace_s=DEFAULT_GRACE_S)
    return RunOptions(**{group.name: group.make(**fields[group.name]) for group in GROUPS})


def _value(option: Option, given: Mapping[str, str], environment: Mapping[str, str]) -> Any:
    if option.name in given:
        return option.read(option.flags[-1], given[option.name])
    if environment.get(option.variable):
        return option.read(f"{option.variable} (in the environment)", environment[option.variable])
    return option.default


def options_record(options: RunOptions) -> dict[str, Any]:
    """Return the options by name for the attempt's record, durations with the suffix `_s`."""
    record: dict[str, Any] = {}
    for group in GROUPS:
        values = getattr(options, group.name)
        for option in group.options if group.name != "timeouts" else ():
            suffix = "_s" if option.field.endswith("_s") else ""
            record[option.name + suffix] = getattr(values, option.field)
    timeouts = options.timeouts
    record.update(timeouts=timeouts_json(timeouts.configured), hang_signal=timeouts.hang_signal)
    return {**record, "program": options.program.name, "arguments": list(options.program.arguments)}


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
        raise UsageError(f"{flag} is an option of torchrun, not of ftslurm: {_NOT_OURS[name]}")
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
    for group in GROUPS:
        titled = parser.add_argument_group(group.title)
        for option in group.options:
            if option.is_switch:
                titled.add_argument(*option.flags, action="store_true", help=option.help)
            else:
                titled.add_argument(*option.flags, metavar=option.metavar, help=option.help)
    from ftslurm.command_examples import examples_of
    from ftslurm.terminal import show

    show(parser.format_help() + examples_of(parser.prog))


def find_program(program: ProgramOptions, path: str) -> str:
    """Return the program's file (the name itself for a module), after a check that it exists.

    Args:
        path: directories searched for a program, as in PATH.

    Raises:
        UsageError: it does not exist, or is not a file.
    """
    name = program.name
    if program.module or program.prefix:
        # The files of a container are visible only inside.
        return name
    if program.no_python:
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
