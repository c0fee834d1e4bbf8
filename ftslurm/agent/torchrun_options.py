"""torchrun's options (torch 2.13): which are taken, also as `PET_…`, what is used instead of the others (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.terminal import UsageError
from ftslurm.text import plural, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.option_definition import Option
    from ftslurm.agent.option_groups import RunOptions

SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torchrun's default of `--shutdown-timeout`, in seconds."""
PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""Prefix of the lines on the terminal, with ${role_name}, ${rank} and ${local_rank}."""
TORCHRUNS_PREFIX = "PET_"
"""Of the variables by which torchrun takes its options."""
BOTH = 3

NOT_OURS = {
    "--rdzv-backend": "the shared directory is the rendezvous",
    "--rdzv-endpoint": "the shared directory is the rendezvous, no host or port is needed",
    "--rdzv-conf": "the times are --join-timeout and --last-call, the rest is not needed",
    "--standalone": "one node is --nnodes 1",
    "--node-rank": "Slurm's order of the nodes is taken",
    "--master-addr": "chosen anew for each round (--interface chooses the network)",
    "--master-port": "chosen anew for each round (--port-range limits it)",
    "--monitor-interval": "workers are not polled, the kernel reports their end",
    "--start-method": "workers are programs, no functions of a launching process",
    "--event-log-handler": "the run directory holds all events (ftslurm history --events); --on-event runs a command",
    "--logs-specs": "see --log-dir, --redirects and --tee",
    "--use-env": "LOCAL_RANK is always in the ranks' environment",
    "--run-path": "a script runs as __main__ here",
}
"""Options of torchrun that are refused, and why they are not needed or what to use instead."""
_SWITCHES = ("--standalone", "--use-env", "--run-path")

_TAKEN = {
    **{name: name.upper() for name in ("nnodes", "nproc_per_node", "rdzv_id", "max_restarts", "role", "module")},
    **{name: name.upper() for name in ("no_python", "log_dir", "redirects", "tee", "local_ranks_filter")},
    **{name: name.upper() for name in ("duplicate_stdout_filters", "duplicate_stderr_filters", "local_addr")},
    **{name: name.upper() for name in ("signals_to_handle", "virtual_local_rank")},
    "grace": "SHUTDOWN_TIMEOUT",
}
"""Options that torchrun reads from `PET_…`, too: our name, and the rest of the variable's."""
_UNUSED = ("--logs-specs", "--use-env")
"""Of those that are refused: torchrun reads no variable for them."""
UNUSED_VARIABLES = {
    TORCHRUNS_PREFIX + flag[2:].replace("-", "_").upper(): reason
    for flag, reason in NOT_OURS.items()
    if flag not in _UNUSED
}
"""torchrun's variables of the refused options, each with what is used instead."""
_OF_CONF = {"join_timeout": "--join-timeout", "timeout": "--join-timeout", "last_call_timeout": "--last-call"}


def variable_of(option: Option) -> str | None:
    """Return the variable by which torchrun takes the same option; None: torchrun does not have it."""
    name = _TAKEN.get(option.name)
    return None if name is None else TORCHRUNS_PREFIX + name


def unused_variables(environment: Mapping[str, str]) -> str | None:
    """Return a line that names torchrun's variables which have no effect here; None: there are none."""
    reasons: dict[str, list[str]] = {}
    for name, reason in UNUSED_VARIABLES.items():
        if environment.get(name):
            reasons.setdefault(reason, []).append(name)
    if not reasons:
        return None
    listed = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    return f"not used here of the environment: {listed}"


def differences(options: RunOptions, environment: Mapping[str, str], logs: str) -> list[str]:
    """Return a line for each thing that this run does otherwise than torchrun would.

    Args:
        logs: directory below which the ranks' logs lie.
    """
    lines = []
    output = options.output
    hidden = output.tee is None or output.tee != BOTH
    if not output.chosen and hidden:
        chosen = "rank 0's" if output.tee is None and not output.local_ranks_filter else "that of the chosen ranks"
        shown = "nothing of it is shown here" if output.tee == 0 else f"{chosen} is also shown here"
        lines.append(f"all output goes to files in {logs}/rounds/…/ranks/; {shown} (--tee 3: of all ranks)")
    signals = (options.program.signals_to_handle or "").split(",")
    if passed := [name for name in ("SIGUSR1", "SIGUSR2") if name in signals]:
        lines.append(f"--signals-to-handle: {' and '.join(passed)} is passed on to the ranks and does not end the job")
    if unused := unused_variables(environment):
        lines.append(unused)
    return lines


@dataclass(frozen=True)
class Refused:
    """An option of torchrun that is not taken.

    Attributes:
        typed: the flag as it was typed.
        flag: its name with dashes.
        value: as it was typed; None: a switch, or no value was given.
    """

    typed: str
    flag: str
    value: str | None


class WrongOptions(UsageError):
    """A command line with options of torchrun that are to be dropped, or with several mistakes.

    Attributes:
        refused: options of torchrun that are not taken.
        mistakes: a line for each other mistake.
        kept: the corrected rest of the command line; None: it is not known, as an option is unknown.
        has_forms: it has the forms of values in place of wrong ones.
    """

    def __init__(
        self, refused: Sequence[Refused], mistakes: Sequence[str], kept: Sequence[str] | None, *, has_forms: bool
    ) -> None:
        self.has_forms = has_forms
        self.refused = tuple(refused)
        self.mistakes = tuple(mistakes)
        self.kept = None if kept is None else tuple(kept)
        super().__init__(self.text("ftslurm run"))

    def text(self, command: str, more: Sequence[tuple[str, str]] = ()) -> str:
        """Return the message: each option with what is used instead, and the corrected command line.

        Args:
            command: how the corrected line begins.
            more: further things to drop, each with the reason.
        """
        refused, mistakes = len(self.refused), len(self.mistakes)
        dropped = f"{plural(refused, 'option')} of torchrun to be dropped"
        corrected = f"{plural(mistakes, 'mistake')} in the options"
        first = " and ".join(text for number, text in ((refused, dropped), (mistakes, corrected)) if number) + ":"
        rows = [*((one.typed, NOT_OURS[one.flag]) for one in self.refused), *more]
        listed = [f"  {what}: {why}" for what, why in dict.fromkeys(rows)]
        lines = [first, *listed, *(f"  {line}" for line in self.mistakes)]
        if self.kept is not None:
            use = "use, with right values" if self.has_forms else "use"
            lines.append(f"{use}: {shlex.join([*command.split(), *self.corrected])}")
        return "\n".join(map(safe, lines))

    @property
    def corrected(self) -> list[str]:
        """The corrected arguments; empty if they are not known."""
        return [] if self.kept is None else [*self._translated(self.kept), *self.kept]

    def _translated(self, kept: Sequence[str]) -> list[str]:
        """Return the options that take the place of `--rdzv-conf` and `--standalone`."""
        given: dict[str, str] = {}
        for one in self.refused:
            for pair in (one.value or "").split(",") if one.flag == "--rdzv-conf" else ():
                # A shell leaves quotes that come out of a variable.
                key, _, value = (part.strip(" '\"") for part in pair.partition("="))
                if key in _OF_CONF and value:
                    given[_OF_CONF[key]] = value
        # Of a job's nodes, all are taken by default.
        chosen = any(word.partition("=")[0] == "--nnodes" for word in kept)
        if not chosen and any(one.flag == "--standalone" for one in self.refused):
            given["--nnodes"] = "1"
        return [word for pair in given.items() for word in pair]


def takes_value(flag: str) -> bool:
    """Return whether a refused option has a value."""
    return flag not in _SWITCHES


def substituted(arguments: Sequence[str], local_rank: int) -> tuple[str, ...]:
    """Return a program's arguments with `${local_rank}` replaced, as torchrun does it (`macros.substitute`).

    That is `string.Template`: `$local_rank` is replaced, too, and `$$` becomes `$`.
    """
    if not any("$" in argument for argument in arguments):
        return tuple(arguments)
    return tuple(expanded(argument, {"local_rank": local_rank}) for argument in arguments)


def expanded(template: str, values: Mapping[str, object]) -> str:
    """Return a template with its names replaced by their values; what is no template stays."""
    from string import Template

    return Template(template).safe_substitute(values)
