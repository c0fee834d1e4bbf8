"""The completion as a script for zsh (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.completion.words import DIRECTORY, FILE, NOTHING, RUN, Command, Option

_SCRIPT = """\
#compdef ftslurm ftsrun
# zsh completion for ftslurm and ftsrun; made by: ftslurm completion zsh
_ftslurm_runs() {
  local -a names
  names=(${FTSLURM_SHARED_DIR:-ftslurm-runs}/*(/N:t))
  compadd -- ${names:#excluded-*}
  _files -/
}
@FUNCTIONS@
_ftslurm() {
  local -a commands
  commands=(
@COMMANDS@
  )
  if [[ $service == ftsrun ]]; then
    _ftslurm_run
    return
  fi
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  (( $+functions[_ftslurm_$command] )) && _ftslurm_$command
}
compdef _ftslurm ftslurm ftsrun
"""
_KINDS = {FILE: "_files", DIRECTORY: "_files -/", RUN: "_ftslurm_runs"}


def render(commands: Sequence[Command]) -> str:
    """Return the script."""
    functions = "".join(_function(command) for command in commands)
    described = "\n".join(f"    {_quoted(f'{each.name}:{_plain(each.help)}')}" for each in commands)
    return _SCRIPT.replace("@FUNCTIONS@", functions).replace("@COMMANDS@", described)


def _function(command: Command) -> str:
    lines = [_spec(option, flag) for option in command.options for flag in option.flags]
    if command.ends_at_program:
        lines += ["'1:program:_files'", "'*::arguments:_files'"]
    elif command.words:
        lines.append(_quoted(f"1:action:({' '.join(command.words)})"))
    elif command.arguments != NOTHING:
        lines.append(_quoted(f"*:{command.arguments}:{_KINDS[command.arguments]}"))
    body = " \\\n    ".join(lines)
    return f"_ftslurm_{command.name}() {{\n  _arguments -S : \\\n    {body}\n}}\n"


def _spec(option: Option, flag: str) -> str:
    text = f"{flag}[{_plain(option.help)}]"
    if option.choices:
        return _quoted(f"{text}:value:({' '.join(option.choices)})")
    if option.value is None:
        return _quoted(text)
    return _quoted(f"{text}:value:{_KINDS.get(option.value, ' ')}")


def _plain(text: str) -> str:
    """Return a help text without the characters that delimit zsh's specifications."""
    return "".join("" if char in "[]:\\" else char for char in text.replace(": ", " - "))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
