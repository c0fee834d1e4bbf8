"""The options of `ftslurm run`: torchrun's names and meanings where it has one, each also as `FTSLURM_…`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from ftslurm.agent.environment import BOTH
from ftslurm.agent.option_definition import Option
from ftslurm.agent.option_groups import ACT, AUTO, OFF, ProgramOptions, RunOptions
from ftslurm.agent.option_help import USAGE
from ftslurm.agent.option_line import OptionLine
from ftslurm.agent.option_table import GROUPS, OPTIONS
from ftslurm.agent.torchrun_options import SHUTDOWN_TIMEOUT, variable_of
from ftslurm.monitor.timeouts import timeouts_json
from ftslurm.terminal import DEBUG, ERROR, INFO, LEVELS, WARNING, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_HEARTBEAT_S, DEFAULT_GRACE_S = 3.0, 15.0
LEVEL_VARIABLE, TORCHRUNS_LEVEL = "FTSLURM_LOG_LEVEL", "LOGLEVEL"
"""The variables with the log level, by priority; torchrun reads the second one."""
_LEVEL_ALIASES = {"critical": ERROR, "fatal": ERROR, "warn": WARNING, "notset": DEBUG}


def parse_run(arguments: Sequence[str], environment: Mapping[str, str]) -> RunOptions:
    """Read the command line of `ftslurm run`; the environment's `FTSLURM_…`, then torchrun's `PET_…`, are defaults.

    Raises:
        WrongOptions: some are torchrun's alone, or several mistakes; all of them are named.
        UsageError: with one line.
        SystemExit: after `--help`.
    """
    line = OptionLine(arguments)
    values = _values(line, environment)
    line.check()
    given, program, rest = line.given, line.program, line.rest
    if program is None:
        raise UsageError(f"expected a program to run: {USAGE}")
    if values["module"] and values["no_python"]:
        raise UsageError("--module and --no-python: only one of them makes sense")
    if values["worker_prefix"] and values["warm_imports"]:
        raise UsageError("--worker-prefix and --warm-imports: no worker can be started ahead in a container yet")
    if values["warm_imports"] is None:
        values["warm_imports"] = () if values["worker_prefix"] else AUTO
    if values["local_addr"] and values["interface"]:
        raise UsageError("--local-addr and --interface: only one of them makes sense")
    if values["health"] is None:
        # Agents that share one machine would mistake each other's workers for leftovers.
        values["health"] = OFF if values["local_nodes"] else ACT
    chosen = values["redirects"] is not None
    if not chosen:
        values["redirects"] = BOTH
    elif values["tee"] is None:
        # As torchrun: who redirects by hand sees what is not redirected, and what --tee names.
        values["tee"] = 0
    if values["heartbeat"] is None:
        values["heartbeat"] = min(DEFAULT_HEARTBEAT_S, values["node_timeout"] / 2.5)
    if values["node_timeout"] < 2 * values["heartbeat"]:
        wrong = f"--node-timeout {values['node_timeout']:g}"
        raise UsageError(f"{wrong}: expected at least twice --heartbeat ({values['heartbeat']:g})")
    fields = {group.name: {option.field: values[option.name] for option in group.options} for group in GROUPS}
    fields["program"].update(name=program, arguments=tuple(rest))
    fields["output"].update(chosen=chosen, **_verbosity(given, values, environment))
    fields["stop"].update(grace_s=values["grace"])
    if values["grace"] is None:
        fields["timing"].update(grace_s=DEFAULT_GRACE_S)
    return RunOptions(**{group.name: group.make(**fields[group.name]) for group in GROUPS})


def _values(line: OptionLine, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return all options' values by name; those that are invalid are noted in the line."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        try:
            values[option.name] = _value(option, line.given, environment)
        except UsageError as error:
            line.note_wrong(option.name, str(error))
    return values


def _value(option: Option, given: Mapping[str, str], environment: Mapping[str, str]) -> Any:
    if option.name in given:
        return option.read(option.flags[-1], given[option.name])
    variables = [option.variable, variable_of(option), SHUTDOWN_TIMEOUT if option.name == "grace" else None]
    for variable in variables:
        if variable is not None and environment.get(variable):
            return option.read(f"{variable} (in the environment)", environment[variable])
    return option.default


def _verbosity(given: Collection[str], values: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return how much ftslurm says: the fields `quiet`, `verbose` and `level` of the output's options.

    Args:
        given: names of the options on the command line.
        values: of all options.

    Raises:
        UsageError: both are given, or `FTSLURM_LOG_LEVEL` is no level; one line. `LOGLEVEL` is other programs', too:
            what is no level has no effect there.
    """
    # What is typed wins over a site's default of the other one.
    typed = [name for name in ("quiet", "verbose") if name in given]
    quiet, verbose = (name in typed if typed else values[name] for name in ("quiet", "verbose"))
    if quiet and verbose:
        raise UsageError("--quiet and --verbose: only one of them makes sense")
    level = ERROR if quiet else DEBUG if verbose else _level_in(environment)
    return {"quiet": quiet, "verbose": verbose, "level": level}


def _level_in(environment: Mapping[str, str]) -> int:
    text = environment.get(LEVEL_VARIABLE)
    level = _parse_level(text or environment.get(TORCHRUNS_LEVEL, ""))
    if level is None and text:
        raise UsageError(f"{LEVEL_VARIABLE} (in the environment): expected one of {', '.join(LEVELS)}, found {text!r}")
    return INFO if level is None else level


def _parse_level(text: str) -> int | None:
    """Return the level with a name, or number, of Python's `logging`; None: it is none."""
    name = text.strip().lower()
    if name.isascii() and name.isdecimal() and len(name) < 10:
        # As in logging, a line is shown if its level is at least this one; errors always are.
        return next((level for level in sorted(LEVELS.values()) if level >= int(name)), ERROR)
    return LEVELS.get(name, _LEVEL_ALIASES.get(name))


def options_record(options: RunOptions) -> dict[str, Any]:
    """Return the options by name for the attempt's record, durations with the suffix `_s`."""
    record: dict[str, Any] = {}
    for group in GROUPS:
        values = getattr(options, group.name)
        for option in group.options if group.name != "timeouts" else ():
            suffix = "_s" if option.field.endswith("_s") else ""
            record[option.name + suffix] = getattr(values, option.field)
    timeouts = options.timeouts
    record.update(
        timeouts=timeouts_json(timeouts.configured),
        hang_signal=timeouts.hang_signal,
        auto_progress=timeouts.auto_progress,
        log_level=options.output.level,
    )
    return {**record, "program": options.program.name, "arguments": list(options.program.arguments)}


def _there_is(name: str) -> str:
    """Return where a script was searched, or which one is there that was probably meant."""
    from ftslurm.similar import nearest

    folder, _, wanted = name.rpartition(os.sep)
    try:
        files = [each.name for each in os.scandir(folder or ".") if each.is_file() and each.name.endswith(".py")]
    except OSError:
        files = []
    meant = nearest(wanted, files)
    return f"; {os.path.join(folder, meant)} is there" if meant else f" (in {os.getcwd()})"


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
        if (found := _executable(name, path)) is not None:
            return found
        raise UsageError(f"{name}: no such program (or not executable); --no-python takes a path or a name on PATH")
    if os.path.isdir(name):
        if not os.path.isfile(os.path.join(name, "__main__.py")):
            raise UsageError(f"{name}: is a directory without __main__.py, expected a Python script (in {os.getcwd()})")
        return name
    if os.path.exists(name) and not os.path.isfile(name):
        raise UsageError(f"{name}: not a regular file, expected a Python script (in {os.getcwd()})")
    if not os.path.isfile(name):
        raise UsageError(f"{name}: no such script{_there_is(name)}; {_expected(program, path)}")
    if not os.access(name, os.R_OK):
        raise UsageError(f"{name}: the script cannot be read (permission denied)")
    if name.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        path = name if os.sep in name else os.path.join(".", name)
        raise UsageError(
            f"{name}: a shell script, expected a Python script; ftslurm run --no-python {path} executes it"
        )
    return name


def _executable(name: str, path: str) -> str | None:
    """Return the file of a program, given by its path or by its name in one of the directories of `path`."""
    candidates = [name] if os.sep in name else [os.path.join(each or ".", name) for each in path.split(os.pathsep)]
    return next((each for each in candidates if os.path.isfile(each) and os.access(each, os.X_OK)), None)


def _expected(program: ProgramOptions, path: str) -> str:
    """Return what was to be given instead of a name that is no script."""
    name = program.name
    first = program.arguments[0] if program.arguments else "-"
    # Of Python's own options, ftslurm has -m alone.
    if name.startswith("python") and (first == "-m" or not first.startswith("-")):
        return f"leave it out: a script is run by Python, ftslurm run {first} …"
    if _executable(name, path) is not None:
        return f"{name} is a program on PATH: ftslurm run --no-python {name} …"
    return "expected a Python script, or -m, or --no-python"
