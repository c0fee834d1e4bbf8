"""The completion as a script for fish (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.completion.words import DIRECTORY, NOTHING, RUN, Command, Option

_HEAD = """\
# fish completion for ftslurm and ftsrun; made by: ftslurm completion fish
function __ftslurm_runs
    set -l folder ftslurm-runs
    set -q FTSLURM_SHARED_DIR; and set folder $FTSLURM_SHARED_DIR
    for path in $folder/*/
        string match -qv '*/excluded-*' $path; and path basename $path 2>/dev/null; or basename $path
    end
    __fish_complete_directories
end
complete -c ftslurm -n __fish_use_subcommand -f
"""


def render(commands: Sequence[Command]) -> str:
    """Return the script."""
    lines = [_HEAD.rstrip("\n")]
    for command in commands:
        about = f" -d {_quoted(command.help)}" if command.help else ""
        lines.append(f"complete -c ftslurm -n __fish_use_subcommand -a {command.name}{about}")
        where = f"complete -c ftslurm -n {_quoted(f'__fish_seen_subcommand_from {command.name}')}"
        if command.words:
            lines.append(f"{where} -f -a {_quoted(' '.join(command.words))}")
        elif command.arguments == RUN:
            lines.append(f"{where} -f -a '(__ftslurm_runs)'")
        elif command.arguments == DIRECTORY:
            lines.append(f"{where} -f -a '(__fish_complete_directories)'")
        elif command.arguments == NOTHING:
            lines.append(f"{where} -f")
        lines += [f"{where}{_option(option)}" for option in command.options]
        if command.ends_at_program:
            lines += [f"complete -c ftsrun{_option(option)}" for option in command.options]
    return "\n".join(lines) + "\n"


def _option(option: Option) -> str:
    names = "".join(f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in option.flags)
    if option.choices:
        names += f" -x -a {_quoted(' '.join(option.choices))}"
    elif option.value == DIRECTORY:
        names += " -x -a '(__fish_complete_directories)'"
    elif option.value == NOTHING:
        names += " -x"
    elif option.value is not None:
        names += " -r"
    return f"{names} -d {_quoted(option.help)}" if option.help else names


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
