"""`ftslurm completion bash|zsh|fish`: print a script for that shell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from ftslurm.command_line import CommandParser
from ftslurm.completion.scripts import SCRIPTS
from ftslurm.completion.words import Command, commands
from ftslurm.terminal import show


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code: 0, or 2 for wrong usage."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    show(SCRIPTS[options.shell](all_commands()))
    return 0


def all_commands() -> list[Command]:
    """Return all commands of `ftslurm`, with the options of their parsers."""
    from ftslurm.cli import COMMANDS, OF_FTSLURM

    parsers: dict[str, argparse.ArgumentParser] = {}
    others = []
    modules = {**COMMANDS, "health": ("ftslurm.health.command", "main")}
    for name, (path, _) in modules.items():
        parser = getattr(import_module(path), "_parser", None)
        if name in OF_FTSLURM:
            continue
        if parser is None:
            others.append(name)
        else:
            parsers[name] = parser()
    return commands(parsers, others)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="ftslurm completion", description="Print a script that completes ftslurm and ftsrun in your shell."
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="bash|zsh|fish", help="the shell")
    return parser
