"""`ftslurm template`: print a batch script, as it is or filled in for a job."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from ftslurm.terminal import UsageError, print_error, show

USAGE = """\
usage: ftslurm template NAME > job.sbatch
       ftslurm template NAME [options] [-- program [arguments]] > job.sbatch
templates: {names}
options, each as of sbatch: {options}
example: ftslurm template spares --nodes 5 --gpus-per-node 8 --time 12:00:00 -- train.py --epochs 3 > job.sbatch
"""
DIRECTIVES = ("nodes", "gpus-per-node", "cpus-per-task", "time", "partition", "account", "qos", "job-name", "array")
_VALUE = re.compile(r"[A-Za-z0-9_.,:@%+/\[\]-]+")
_NUMBER = re.compile(r"[1-9][0-9]{0,5}")
_EXPECTED = {
    "nodes": (_NUMBER, "a number of nodes from 1 on"),
    "cpus-per-task": (_NUMBER, "a number of cores from 1 on"),
    "gpus-per-node": (
        re.compile(r"0|(?:[A-Za-z][A-Za-z0-9_.+-]*:)?[1-9][0-9]{0,3}"),
        "a number of GPUs, such as 8 or h100:8, or 0 for a cluster without",
    ),
    "time": (
        # "0" would be no limit at all for sbatch.
        re.compile(
            r"UNLIMITED|INFINITE|(?=.*[1-9])(?:[0-9]{1,4}-[0-9]{1,2}(?::[0-9]{2}){0,2}|[0-9]{1,7}(?::[0-9]{2}){0,2})"
        ),
        "a time such as 12:00:00, 2-12:00:00, 90 (minutes) or UNLIMITED",
    ),
    "array": (re.compile(r"[0-9][0-9,:%-]*"), "indexes such as 0-3 or 0-15%4"),
}
"""Forms of sbatch's values, where a wrong one is worth a line before the job is submitted."""
_PROGRAM = 'exec ftsrun "${options[@]}" '
_WITHOUT_GPUS = "# without GPUs: this line (one # less) instead of the one above"
_CORES = "# if the job needs fewer cores than a node has: this line (one # less)"
_ENVIRONMENT = "# source ~/venv/bin/activate "


def directory() -> str | None:
    """Return where the templates are: installed with the package, or beside it in a checkout."""
    import sysconfig

    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "sbatch_templates")
    installed = os.path.join(sysconfig.get_path("data"), "share", "ftslurm", "sbatch_templates")
    return next((path for path in (beside, installed) if os.path.isdir(path)), None)


def main(arguments: Sequence[str]) -> int:
    """Run `ftslurm template [NAME [OPTIONS] [-- PROGRAM …]]`; return its exit code."""
    where = directory()
    names = sorted(name.removesuffix(".sbatch") for name in os.listdir(where)) if where else []
    known = ", ".join(names) or "none (this installation has lost them)"
    if list(arguments) in ([], ["-h"], ["--help"]):
        show(USAGE.format(names=known, options=", ".join(f"--{name}" for name in DIRECTIVES)))
        return 0
    name = arguments[0].replace("-", "_")
    if name not in names or where is None:
        print_error(f"ftslurm template: expected one of {known}, found {arguments[0]}")
        return 2
    try:
        with open(os.path.join(where, f"{name}.sbatch"), encoding="utf-8") as file:
            text = file.read()
        if arguments[1:]:
            values, program = _parse(arguments[1:])
            text = filled(text, name, values, program, os.environ)
    except UsageError as error:
        print_error(f"ftslurm template: {error}")
        return 2
    show(text)
    return 0


def _parse(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    values: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            if not rest:
                raise UsageError("expected a program after --")
            return values, rest
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in DIRECTIVES:
            expected = ", ".join(f"--{one}" for one in DIRECTIVES)
            raise UsageError(f"unknown option {word}: expected {expected}, or -- and the program")
        if not equals:
            value = rest.pop(0) if rest else ""
        values[name] = value
    return values, []


def _checked(name: str, value: str) -> str:
    form, expected = _EXPECTED.get(name, (_VALUE, "a value of sbatch without spaces and quotes"))
    if not form.fullmatch(value) or value.startswith("-"):
        raise UsageError(f"--{name}: expected {expected}, found {value!r}")
    return value


def filled(
    text: str, template: str, values: Mapping[str, str], program: Sequence[str], environment: Mapping[str, str]
) -> str:
    """Return a template with these values of sbatch's options and this program (pure).

    Args:
        template: its name.
        program: with its arguments; empty: the template's own.
        environment: of the user, for the line that activates it.

    Raises:
        UsageError: a value makes no sense in this template; one line.
    """
    for name, value in values.items():
        text = _directive(text, name, _checked(name, value))
    if values.get("gpus-per-node") == "0":
        text = text.replace("apptainer exec --nv ", "apptainer exec ").replace(_WITHOUT_GPUS, _CORES)
    if "nodes" in values:
        text = _nodes(text, template, values["nodes"])
    if program:
        begin = text.index(_PROGRAM) + len(_PROGRAM)
        text = f"{text[:begin]}{shlex.join(program)}\n"
    return _activated(text, environment)


def _directive(text: str, name: str, value: str) -> str:
    """Set one line of sbatch; a GPU count of 0 removes its line."""
    lines = text.splitlines(keepends=True)
    own = [index for index, line in enumerate(lines) if re.match(rf"##?SBATCH --{name}[= ]", line)]
    line = "" if (name, value) == ("gpus-per-node", "0") else f"#SBATCH --{name}={value}\n"
    if own:
        lines[own[0]] = line
    else:
        lines.insert(next(i for i, one in enumerate(lines) if one.startswith("#SBATCH")) + 1, line)
    return "".join(lines)


def _nodes(text: str, template: str, value: str) -> str:
    """Let ftsrun's number of nodes follow the job's."""
    nodes, spares = int(value), template == "spares"
    if nodes > 1 and template == "single_node":
        raise UsageError(f"--nodes {nodes}: the template single_node is for one node; take multi_node")
    if spares and nodes < 2:
        raise UsageError("--nodes 1: the template spares needs at least two, one of them the spare")
    wanted = f"{max(1, nodes // 2)}:{nodes}" if template == "elastic" else f"{nodes - 1 if spares else nodes}"
    return re.sub(
        r"--nnodes [0-9:]+( *)", lambda match: f"{f'--nnodes {wanted}':<{len(match[0])}}" + " " * (not match[1]), text
    )


def _activated(text: str, environment: Mapping[str, str]) -> str:
    """Activate the user's environment, if there is one."""
    venv, conda, base = (environment.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE"))
    if venv:
        line = f"source {shlex.quote(os.path.join(venv, 'bin/activate'))}"
    elif conda and base:
        line = f"source {shlex.quote(os.path.join(os.path.dirname(base), 'activate'))} {shlex.quote(conda)}"
    else:
        return text
    return "".join(f"{line}\n" if one.startswith(_ENVIRONMENT) else one for one in text.splitlines(keepends=True))
