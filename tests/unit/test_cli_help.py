"""Help with examples for every command, versions for bug reports, and completion scripts that know every option."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

import pytest

from ftslurm import __version__
from ftslurm.agent.options import parse_run
from ftslurm.chain import parse as chain
from ftslurm.cli import COMMANDS, OF_FTSLURM, USAGE, main
from ftslurm.command_examples import EXAMPLES
from ftslurm.completion.command import all_commands
from ftslurm.rehearse.plan import make_plan
from ftslurm.version import details
from ftslurm.version import main as version

USERS = sorted({*COMMANDS, "run", "health"} - {*OF_FTSLURM})


def print_help(name: str) -> None:
    try:
        # `main` would start a guardian for `run`.
        code: object = parse_run(["--help-all"], {}) if name == "run" else main([name, "--help"])
    except SystemExit as end:
        code = end.code
    assert code == 0


@pytest.mark.parametrize("name", USERS)
def test_each_command_is_in_the_overview_and_its_help_has_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"ftslurm {name} " in USAGE
    if name == "template":
        return
    print_help(name)
    out = capsys.readouterr().out
    assert out.startswith(f"usage: ftslurm {name}")
    assert "\nexamples:\n  " in out


def test_each_example_has_only_options_that_exist() -> None:
    flags = {command.name: {f for option in command.options for f in option.flags} for command in all_commands()}
    wrong = []
    for rows in EXAMPLES.values():
        for line, _ in rows:
            arguments = shlex.split(line.partition(" | ")[0])
            names = [os.path.basename(argument) for argument in arguments]
            if "ftsrun" in names:
                parse_run(arguments[names.index("ftsrun") + 1 :], {})
                continue
            if "ftslurm" not in names:
                continue
            name, *rest = arguments[names.index("ftslurm") + 1 :]
            if name == "run":
                parse_run(rest, {})
            elif name == "rehearse":
                make_plan(rest, {}, "x")
            elif name == "chain":
                # Options behind the number are sbatch's.
                chain(rest, lambda path: path.endswith(".sbatch"), "x")
            else:
                wrong += [
                    f"{line}: {argument}"
                    for argument in rest
                    if argument.startswith("-") and argument not in flags[name]
                ]
    assert wrong == []


def test_the_completion_knows_the_options_that_help_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for command in all_commands():
        if command.name == "template":
            continue
        print_help(command.name)
        shown = set(re.findall(r"^  (?:-\w(?: \S+)?, )?(--[a-z-]+)", capsys.readouterr().out, re.M))
        known = {flag for option in command.options for flag in option.flags if flag.startswith("--")}
        assert shown <= known, command.name


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ftslurm", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"ftslurm {__version__}\n"


def test_the_versions_are_those_of_the_programs_used_and_a_missing_one_is_named() -> None:
    calls = []

    def run(command: Sequence[str], limit_s: float) -> tuple[int, str] | str:
        calls.append((command[0], limit_s))
        if "scontrol" in command:
            return 0, "slurm-wlm 22.05.8\n"
        if "torch" in command[-1]:
            return 0, "a warning\n2.13.0 (CUDA 12.8)\n"
        if "pynvml" in command[-1]:
            return "no answer within 10 s"
        return 0, "Python 3.12.1\n"

    lines = details({"PYTHON_EXEC": "/opt/venv/bin/python"}, run)
    assert lines[1:5] == [
        "workers' Python 3.12.1 (/opt/venv/bin/python)",
        "workers' torch 2.13.0 (CUDA 12.8)",
        "Slurm 22.05.8",
        "NVML: no answer within 10 s",
    ]
    assert all(limit_s <= 60 for _, limit_s in calls)
    failing = details({}, lambda command, limit_s: (1, "ModuleNotFoundError: No module named 'torch'\n"))
    assert failing[1] == "workers' torch: none (ModuleNotFoundError: No module named 'torch')"


def test_a_wrong_version_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert version(["-x"]) == 2
    assert capsys.readouterr().err == "ftslurm --version: expected nothing or -v, found -x\n"
