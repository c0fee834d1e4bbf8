"""What can be completed: commands, their options and values, collected from the commands' own tables and parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

from ftslurm.agent.option_table import OPTIONS
from ftslurm.dataclasses import dataclass

FILE, DIRECTORY, RUN, NOTHING = "file", "directory", "run", "nothing"
"""Kinds of values: RUN is a run directory or the name of a run; NOTHING cannot be completed."""


@dataclass(frozen=True)
class Option:
    """An option.

    Attributes:
        flags: all its forms.
        help: one line.
        value: kind of its value; None: it takes none.
        choices: the possible values, if they are known.
    """

    flags: tuple[str, ...]
    help: str
    value: str | None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: empty for `ftslurm` itself.
        help: one line.
        options: its options.
        arguments: kind of its arguments; `words`: those that are known.
        ends_at_program: what follows the first argument belongs to the user's program.
    """

    name: str
    help: str
    options: tuple[Option, ...]
    arguments: str = NOTHING
    words: tuple[str, ...] = ()
    ends_at_program: bool = False


_VALUES = {"DIR": DIRECTORY, "FILE": FILE, "DIR,…": DIRECTORY}
_ARGUMENTS = {"RUN_DIR|JOB_ID": RUN, "RUN": RUN, "DIR": DIRECTORY, "FILE": FILE}


def commands(parsers: Mapping[str, argparse.ArgumentParser], others: Iterable[str]) -> list[Command]:
    """Return all commands (pure).

    Args:
        parsers: of the commands that have one, by the commands' names.
        others: names of commands without one.
    """
    found = [run_command()]
    found += [_of_parser(name, parser) for name, parser in parsers.items()]
    found += [Command(name, "", (HELP,)) for name in others]
    return sorted(found, key=lambda command: command.name)


HELP = Option(("-h", "--help"), "print the options", None)
HELP_ALL = Option(("--help-all",), "print all options, in groups", None)


def run_command() -> Command:
    """Return `ftslurm run`, from its option table."""
    options = [
        Option(one.flags, one.help, None if one.is_switch else _VALUES.get(one.metavar, NOTHING), _choices(one.metavar))
        for one in OPTIONS
    ]
    return Command("run", "run a program on all nodes", (HELP, HELP_ALL, *options), FILE, ends_at_program=True)


def _choices(metavar: str) -> tuple[str, ...]:
    """Return the values in `act|report|off`; none where a part stands for something else, as in `N|gpu`."""
    parts = metavar.split("|")
    return tuple(part for part in parts if part.islower()) if len(parts) > 1 else ()


def _of_parser(name: str, parser: argparse.ArgumentParser) -> Command:
    options: list[Option] = []
    arguments, words = NOTHING, []
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            words += list(action.choices)
            # Those of all of them: which one stands in the line matters little.
            for inner in action.choices.values():
                options += [_option(each) for each in _actions(inner) if each.option_strings]
        elif action.option_strings:
            options.append(_option(action))
        elif action.choices:
            words += [str(choice) for choice in action.choices]
        elif isinstance(action.metavar, str):
            arguments = _ARGUMENTS.get(action.metavar, arguments)
    unique = {option.flags: option for option in options}
    help_ = (parser.description or "").partition(".")[0].partition(":")[0]
    return Command(name, help_, tuple(unique.values()), arguments, tuple(words))


def _actions(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    return parser._actions


def _option(action: argparse.Action) -> Option:
    takes_value = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    choices = tuple(str(choice) for choice in action.choices or ())
    value = _VALUES.get(metavar, NOTHING) if takes_value else None
    return Option(tuple(action.option_strings), action.help or "", value, choices)
