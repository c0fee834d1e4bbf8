"""From the command line of `ftslurm rehearse` to the plan of a rehearsal (pure but for the options' own checks)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from ftslurm.agent.option_groups import RunOptions
from ftslurm.agent.options import parse_run
from ftslurm.command_line import CommandParser
from ftslurm.dataclasses import dataclass
from ftslurm.records.cause import IF_INTERRUPTED, NEVER
from ftslurm.rehearse.events import EVENTS, HANG, NODE_LOSS, PREEMPT, Event
from ftslurm.terminal import UsageError
from ftslurm.text import duration_s

NODES = 2
STEPS_BEFORE = 20
"""Without `--at-step` the event happens so many steps after the first one that is observed."""
PREEMPTION_GRACE_S, WARNING_S = 30.0, 60.0
"""Default of `--grace`: Slurm's KillWait, and the least time by which ftslurm stops a run ahead of its time limit."""
HANG_TIMEOUT_S, JOIN_TIMEOUT_S, DEFAULT_JOIN_TIMEOUT_S = 10.0, 20.0, 600.0
SEPARATOR = "--"
NOTES = """\
All other options are those of `ftslurm run`, such as --nproc-per-node 2; --local-nodes is 2 unless given. The script
runs here, really trains, and saves where it always does: give it a directory for checkpoints of its own.

events:
{events}

exit codes: 0 ready, 1 not ready, 2 wrong usage, or the event could not be injected
"""


@dataclass(frozen=True)
class Plan:
    """What is to be rehearsed.

    Attributes:
        at_step: the event happens when a rank has reached it; None: `STEPS_BEFORE` steps after the first one.
        after_s: seconds from the start of the ranks to the event, if they report no steps.
        grace_s: seconds from a stop until the ranks are killed; None: as the options of the run have it.
        rank: that the event happens to; None: the last one.
        limit_s: longest duration of the rehearsal, seconds.
        run_id: name of the rehearsed run.
        arguments: of `ftslurm run`.
        options: the same, read.
    """

    event: Event
    at_step: int | None
    after_s: float
    grace_s: float | None
    rank: int | None
    limit_s: float
    run_id: str
    arguments: tuple[str, ...]
    options: RunOptions

    @property
    def is_requeued(self) -> bool:
        """Whether a job with these options would start again after the event, if it ends the attempt."""
        policy = self.options.placement.requeue
        return policy != NEVER and not (self.event is NODE_LOSS and policy == IF_INTERRUPTED)


def make_plan(words: Sequence[str], environment: Mapping[str, str], unique: str) -> Plan:
    """Read the command line.

    Args:
        environment: its `FTSLURM_…` are defaults of the run's options.
        unique: text unique to this rehearsal.

    Raises:
        UsageError: with one line.
        SystemExit: after `--help`, or a line that names a wrong option.
    """
    own, program = _split(words)
    given, rest = parser().parse_known_args(own)
    if not program:
        raise UsageError("expected -- and a program: ftslurm rehearse EVENT [options] -- train.py [arguments]")
    event = EVENTS[given.event]
    if any(word.partition("=")[0].replace("_", "-") == "--rdzv-id" for word in rest):
        raise UsageError("--rdzv-id: a rehearsal is a run of its own; leave it out")
    options = parse_run([*rest, SEPARATOR, *program], environment)
    run_id = f"rehearse-{event.name}-{unique}"
    grace_s = given.grace
    if grace_s is None and event.stops_run:
        grace_s = PREEMPTION_GRACE_S if event is PREEMPT else WARNING_S
    arguments = [*rest, *_added(event, options), "--rdzv-id", run_id, "--exclude-after", "0"]
    if grace_s is not None:
        arguments += ["--grace", f"{grace_s:g}"]
    arguments += [SEPARATOR, *program]
    return Plan(
        event,
        given.at_step,
        given.after,
        grace_s,
        given.rank,
        given.limit,
        run_id,
        tuple(arguments),
        parse_run(arguments, environment),
    )


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and behind the separator; the program may have further ones."""
    if SEPARATOR not in words:
        return list(words), []
    at = list(words).index(SEPARATOR)
    own, program = list(words[:at]), list(words[at + 1 :])
    # As behind python: `-m package.train`.
    return ([*own, "--module"], program[1:]) if program[:1] == ["-m"] else (own, program)


def _added(event: Event, options: RunOptions) -> list[str]:
    """Return the options that the rehearsal adds to the user's."""
    added = [] if options.placement.local_nodes else ["--local-nodes", str(NODES)]
    if event is HANG and options.timeouts.configured.hang_s is None:
        added += ["--hang-timeout", f"{HANG_TIMEOUT_S:g}"]
    if event is NODE_LOSS and options.timing.join_timeout_s == DEFAULT_JOIN_TIMEOUT_S:
        added += ["--join-timeout", f"{JOIN_TIMEOUT_S:g}"]
    return added


def parser() -> CommandParser:
    """Return the parser of the command's own options."""
    events = "\n".join(f"  {event.name:<11} {event.summary}" for event in EVENTS.values())
    made = CommandParser(
        prog="ftslurm rehearse",
        usage="ftslurm rehearse EVENT [options] [options of ftslurm run] -- program [arguments]",
        description="Run a script on this machine, have an event happen to it at a training step, let it go on or "
        "start it again, and print whether it is ready for that, or what is missing.",
        notes=NOTES.format(events=events),
    )
    made.add_argument("event", choices=tuple(EVENTS), metavar="EVENT", help=", ".join(EVENTS))
    made.add_argument("--at-step", type=_count, metavar="N", help="when a rank has reached it; default: 20 steps on")
    made.add_argument(
        "--after", type=_seconds, default=60.0, metavar="SECONDS", help="where no steps are reported; default 60"
    )
    made.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        help="time to save until the ranks are killed; default 30, for timeout 60",
    )
    made.add_argument("--rank", type=_count, metavar="R", help="what oom, hang, rank-death hit; default: the last rank")
    made.add_argument(
        "--limit", type=_seconds, default=1800.0, metavar="SECONDS", help="longest rehearsal; default 1800"
    )
    return made


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    value = duration_s(text)
    if value is None or not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds, or a time such as 90m, found {text!r}")
    return value
