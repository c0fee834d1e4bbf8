"""The completion as a script for bash (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ftslurm.completion.words import DIRECTORY, FILE, NOTHING, RUN, Command

_SCRIPT = """\
# bash completion for ftslurm and ftsrun; made by: ftslurm completion bash
_ftslurm_values() { # KIND
  local IFS=$'\\n'
  case $1 in
    file) COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames ;;
    directory) COMPREPLY=($(compgen -d -- "$cur")); compopt -o filenames ;;
    run)
      COMPREPLY=($(compgen -d -- "$cur"))
      compopt -o filenames
      COMPREPLY+=($(cd "${FTSLURM_SHARED_DIR:-ftslurm-runs}" 2>/dev/null && compgen -d -X 'excluded-*' -- "$cur")) ;;
    *) COMPREPLY=($(compgen -W "${1//|/$'\\n'}" -- "$cur")) ;;
  esac
}
_ftslurm() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} first=2
  local flags takes arguments program word i
  COMPREPLY=()
  case ${1##*/} in ftsrun) command=run first=1 ;; esac
  if [ "$COMP_CWORD" -lt "$first" ]; then
    COMPREPLY=($(compgen -W @COMMANDS@ -- "$cur"))
    return
  fi
  case $command in
@CASES@
    *) return ;;
  esac
  if [ -n "$program" ]; then
    # What follows the program is the program's own: bash completes files there.
    for ((i = first; i < COMP_CWORD; i++)); do
      word=${COMP_WORDS[i]}
      case $word in
        -*) case " $takes " in *" $word "*) ((i++)) ;; esac ;;
        *) return ;;
      esac
    done
  fi
  case $command:$prev in
@VALUES@
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$cur")) ;;
    *) [ -z "$arguments" ] || _ftslurm_values "$arguments" ;;
  esac
}
complete -o default -F _ftslurm ftslurm ftsrun
"""


def render(commands: Sequence[Command]) -> str:
    """Return the script."""
    cases, values = [], []
    for command in commands:
        flags = " ".join(flag for option in command.options for flag in option.flags)
        takes = " ".join(flag for option in command.options if option.value is not None for flag in option.flags)
        arguments = "|".join(command.words) or ("" if command.arguments == NOTHING else command.arguments)
        program = "1" if command.ends_at_program else ""
        cases.append(
            f"    {command.name}) flags={shlex.quote(flags)} takes={shlex.quote(takes)} "
            f"arguments={shlex.quote(arguments)} program={program} ;;"
        )
        for option in command.options:
            pattern = "|".join(f"{command.name}:{flag}" for flag in option.flags)
            if option.choices:
                values.append(f"    {pattern}) _ftslurm_values {shlex.quote('|'.join(option.choices))}; return ;;")
            elif option.value in (FILE, DIRECTORY, RUN):
                values.append(f"    {pattern}) _ftslurm_values {option.value}; return ;;")
            elif option.value is not None:
                values.append(f"    {pattern}) return ;;")
    names = " ".join([*(command.name for command in commands), "--help", "--version"])
    text = _SCRIPT.replace("@COMMANDS@", shlex.quote(names))
    return text.replace("@CASES@", "\n".join(cases)).replace("@VALUES@", "\n".join(values))
