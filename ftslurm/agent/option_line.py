"""The command line of `ftslurm run`: its options, the program, and all that is wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ftslurm.agent.option_definition import Option
from ftslurm.agent.option_help import print_help
from ftslurm.agent.option_table import BY_FLAG
from ftslurm.agent.torchrun_options import NOT_OURS, Refused, WrongOptions, takes_value
from ftslurm.dataclasses import dataclass
from ftslurm.terminal import UsageError

_OF_OTHERS = {
    "--num-processes": "accelerate's is of all nodes together; --nproc-per-node is of each",
    **dict.fromkeys(("--num-gpus", "--gpus", "--n-proc"), "the workers of each node are --nproc-per-node"),
    **dict.fromkeys(("--num-machines", "--num-nodes", "--nodes"), "the nodes are --nnodes; all of the job by default"),
}
"""Options of accelerate, DeepSpeed and Lightning; what takes their place may mean something else."""
_RENAMED = {"--spare-imports": "--warm-imports, which is for all nodes"}


@dataclass(frozen=True)
class _Kept:
    """A word of the command line that is no mistake, or an option in its place.

    Attributes:
        option: None: it ends the options.
        flag: as it was typed, or meant.
        between: what is between the flag and the value.
        value: empty for a switch.
    """

    option: Option | None
    flag: str
    between: str = ""
    value: str = ""


class OptionLine:
    """The command line, split at the program's name; the arguments after it are not parsed.

    By hand: argparse and what it imports would stay in each agent's memory for as long as the job runs (0.6 MB).

    Attributes:
        given: the options' texts ("1" for a switch) by name.
        program: None: there is none.
        rest: the program's arguments.
        refused: options that only torchrun has.
        mistakes: a line for each other mistake; of an unknown option, it may not be known where the options end.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.given: dict[str, str] = {}
        self.refused: list[Refused] = []
        self.mistakes: list[str] = []
        self._wrong: set[str] = set()
        self._reported: set[str] = set()
        self._kept: list[_Kept] = []
        self._remaining = deque(arguments)
        self._is_whole = self._read_options()
        self._tail = tuple(self._remaining)
        self.program = self._remaining.popleft() if self._remaining else None
        self.rest = list(self._remaining)

    def note_wrong(self, name: str, mistake: str) -> None:
        """Note that the value of the option of that name is invalid."""
        self._wrong.add(name)
        if name not in self._reported:
            self.mistakes.append(mistake)

    def check(self) -> None:
        """Raise an error if something is wrong.

        Raises:
            WrongOptions, UsageError: as `parse_run`.
        """
        if self.refused or len(self.mistakes) > 1:
            if self.program is None:
                self.mistakes.append("expected a program to run")
            is_known = self._is_whole and self.program is not None
            kept = self._corrected() if is_known else None
            raise WrongOptions(self.refused, self.mistakes, kept, has_forms=bool(self._wrong))
        if self.mistakes:
            raise UsageError(self.mistakes[0])

    def _corrected(self) -> list[str]:
        """Return the command line of what is taken, with the form of the value in place of a wrong one."""
        words = []
        for kept in self._kept:
            option = kept.option
            value = kept.value if option is None or option.name not in self._wrong else option.metavar
            if option is None or option.is_switch:
                words.append(kept.flag)
            elif kept.between == " ":
                words += [kept.flag, value]
            else:
                words.append(f"{kept.flag}{kept.between}{value}")
        return [*words, *self._tail]

    def _read_options(self) -> bool:
        """Read the options; return whether they were understood to their end."""
        remaining = self._remaining
        is_whole = True
        while remaining and remaining[0].startswith("-") and remaining[0] != "-":
            argument = remaining.popleft()
            if argument == "--":
                self._kept.append(_Kept(None, argument))
                return is_whole
            typed, value = _flag_and_value(argument)
            flag = self._known(typed, typed.replace("_", "-"))
            if flag is None:
                is_whole = False
                if value is None and not self._skip_value():
                    return False
            elif flag in NOT_OURS:
                if value is None and takes_value(flag):
                    value = self._value_after(typed, may_be_script=False)
                self.refused.append(Refused(typed, flag, value))
            elif BY_FLAG[flag].is_switch:
                self._switch(BY_FLAG[flag], argument, typed, value)
            else:
                option = BY_FLAG[flag]
                between = argument[len(typed) : len(argument) - len(value)] if value is not None else " "
                value = value if value is not None else self._value_after(typed, may_be_script=True)
                if value is None:
                    self._wrong.add(option.name)
                    self._reported.add(option.name)
                    value = ""
                self.given[option.name] = value
                shown = typed if typed.replace("_", "-") == flag else flag
                self._kept.append(_Kept(option, shown, between, value))
        return is_whole

    def _skip_value(self) -> bool:
        """Skip what is probably the value of an unknown option; return whether further options may follow."""
        remaining = self._remaining
        if remaining and not remaining[0].startswith("-"):
            if remaining[0].endswith(".py") or len(remaining) < 2 or not remaining[1].startswith("-"):
                return False
            remaining.popleft()
        return True

    def _value_after(self, typed: str, *, may_be_script: bool) -> str | None:
        """Take the value of an option, which is the next argument; None: that is another option, or the script.

        As where a shell's variable is not set: --master-port $PORT train.py.
        """
        following = self._remaining[0] if self._remaining else None
        if following is None or following.startswith("--") or (following.endswith(".py") and not may_be_script):
            found = f", found {following!r}" if following is not None else ""
            self.mistakes.append(f"{typed}: expected a value after it{found}")
            return None
        return self._remaining.popleft()

    def _switch(self, option: Option, argument: str, typed: str, value: str | None) -> None:
        self.given[option.name] = "1"
        self._kept.append(_Kept(option, typed))
        if value is not None and (argument.startswith("--") or argument[2] == "="):
            self.mistakes.append(f"{typed}: expected no value, found {value!r}")
        elif value is not None:
            # Several short options in one argument: -mr3.
            self._remaining.appendleft(f"-{value}")

    def _known(self, typed: str, name: str) -> str | None:
        """Return the flag that was typed or meant; None: it is unknown. `name` has dashes: torchrun accepts both."""
        if name in ("-h", "--help", "--help-all"):
            print_help(complete=name == "--help-all")
            raise SystemExit(0)
        if name in BY_FLAG or name in NOT_OURS:
            return name
        if name in _RENAMED:
            self.mistakes.append(f"{typed}: use {_RENAMED[name]}")
            return None
        from ftslurm.similar import nearest

        if name in _OF_OTHERS:
            self.mistakes.append(f"unknown option {typed}; {_OF_OTHERS[name]}")
            return None
        meant = nearest(name, [*BY_FLAG, *NOT_OURS, "--help-all"])
        if meant in NOT_OURS:
            return meant
        hint = f"did you mean {meant}? " if meant else ""
        self.mistakes.append(f"unknown option {typed}; {hint}see ftslurm run --help-all")
        if meant not in BY_FLAG:
            return None
        self._reported.add(BY_FLAG[meant].name)
        return meant


def _flag_and_value(argument: str) -> tuple[str, str | None]:
    """Split --flag=value, -fvalue or -f=value."""
    if not argument.startswith("--"):
        return argument[:2], argument[2:].removeprefix("=") if argument[2:] else None
    flag, equals, value = argument.partition("=")
    return flag, value if equals else None
