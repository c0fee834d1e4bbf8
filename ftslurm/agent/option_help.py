"""The help of `ftslurm run`: the options that most people need, or all in their groups."""

from __future__ import annotations

from ftslurm.agent.option_definition import Option
from ftslurm.agent.option_table import GROUPS, OPTIONS

_COMMON = (
    *("nnodes", "nproc_per_node", "max_restarts", "rdzv_id", "shared_dir", "local_nodes", "module", "tee", "grace"),
    "dry_run",
)
"""Options that `--help` shows."""
USAGE = "ftslurm run [options] program [the program's arguments]"


def print_help(complete: bool) -> None:
    """Print the options that most people need, or all of them in their groups."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="ftslurm run",
        usage=USAGE,
        description="Run a program on all nodes, restart it when it fails, report why it failed.",
        epilog=("" if complete else f"{len(OPTIONS) - len(_COMMON)} more options in groups: ftslurm run --help-all. ")
        + "Each option can be set as an environment variable, by a site too: --max-restarts as FTSLURM_MAX_RESTARTS. "
        "Exit codes: 0 success, 1 the job failed, 2 wrong usage (nothing was started), 78 failed and do not requeue "
        "(a worker ended with 78), 128+n stopped by signal n from outside.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36, width=110),
    )
    chosen = [(group.title, group.options) for group in GROUPS]
    for title, options in chosen if complete else [("The options that most people need", _common())]:
        titled = parser.add_argument_group(title)
        for option in options:
            if option.is_switch:
                titled.add_argument(*option.flags, action="store_true", help=option.help)
            else:
                titled.add_argument(*option.flags, metavar=option.metavar, help=option.help)
    from ftslurm.command_examples import examples_of
    from ftslurm.terminal import show

    show(parser.format_help() + examples_of(parser.prog))


def _common() -> list[Option]:
    return [option for option in OPTIONS if option.name in _COMMON]
