"""The completion as a script for each shell (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.completion.words import DIRECTORY, FILE, NOTHING, RUN, Command, Option

_BASH = """\
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


def bash(commands: Sequence[Command]) -> str:
    """Return the script for bash."""
    import shlex

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
    text = _BASH.replace("@COMMANDS@", shlex.quote(names))
    return text.replace("@CASES@", "\n".join(cases)).replace("@VALUES@", "\n".join(values))


_ZSH = """\
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
_ZSH_KINDS = {FILE: "_files", DIRECTORY: "_files -/", RUN: "_ftslurm_runs"}


def zsh(commands: Sequence[Command]) -> str:
    """Return the script for zsh."""
    functions = "".join(_zsh_function(command) for command in commands)
    described = "\n".join(f"    {_zsh_quoted(f'{each.name}:{_zsh_plain(each.help)}')}" for each in commands)
    return _ZSH.replace("@FUNCTIONS@", functions).replace("@COMMANDS@", described)


def _zsh_function(command: Command) -> str:
    lines = [_zsh_spec(option, flag) for option in command.options for flag in option.flags]
    if command.ends_at_program:
        lines += ["'1:program:_files'", "'*::arguments:_files'"]
    elif command.words:
        lines.append(_zsh_quoted(f"1:action:({' '.join(command.words)})"))
    elif command.arguments != NOTHING:
        lines.append(_zsh_quoted(f"*:{command.arguments}:{_ZSH_KINDS[command.arguments]}"))
    body = " \\\n    ".join(lines)
    return f"_ftslurm_{command.name}() {{\n  _arguments -S : \\\n    {body}\n}}\n"


def _zsh_spec(option: Option, flag: str) -> str:
    text = f"{flag}[{_zsh_plain(option.help)}]"
    if option.choices:
        return _zsh_quoted(f"{text}:value:({' '.join(option.choices)})")
    if option.value is None:
        return _zsh_quoted(text)
    return _zsh_quoted(f"{text}:value:{_ZSH_KINDS.get(option.value, ' ')}")


def _zsh_plain(text: str) -> str:
    """Return a help text without the characters that delimit zsh's specifications."""
    return "".join("" if char in "[]:\\" else char for char in text.replace(": ", " - "))


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_FISH = """\
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


def fish(commands: Sequence[Command]) -> str:
    """Return the script for fish."""
    lines = [_FISH.rstrip("\n")]
    for command in commands:
        about = f" -d {_fish_quoted(command.help)}" if command.help else ""
        lines.append(f"complete -c ftslurm -n __fish_use_subcommand -a {command.name}{about}")
        where = f"complete -c ftslurm -n {_fish_quoted(f'__fish_seen_subcommand_from {command.name}')}"
        if command.words:
            lines.append(f"{where} -f -a {_fish_quoted(' '.join(command.words))}")
        elif command.arguments == RUN:
            lines.append(f"{where} -f -a '(__ftslurm_runs)'")
        elif command.arguments == DIRECTORY:
            lines.append(f"{where} -f -a '(__fish_complete_directories)'")
        elif command.arguments == NOTHING:
            lines.append(f"{where} -f")
        lines += [f"{where}{_fish_option(option)}" for option in command.options]
        if command.ends_at_program:
            lines += [f"complete -c ftsrun{_fish_option(option)}" for option in command.options]
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    names = "".join(f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in option.flags)
    if option.choices:
        names += f" -x -a {_fish_quoted(' '.join(option.choices))}"
    elif option.value == DIRECTORY:
        names += " -x -a '(__fish_complete_directories)'"
    elif option.value == NOTHING:
        names += " -x"
    elif option.value is not None:
        names += " -r"
    return f"{names} -d {_fish_quoted(option.help)}" if option.help else names


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
"""By the shells' names."""
