"""`ftslurm run`: from the command line to a running agent, or to one clear line and exit code 2."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from ftslurm import __version__
from ftslurm.agent.environment import Program, RunFacts
from ftslurm.agent.fitness import OFF
from ftslurm.agent.guardian import STOPPING, Ward
from ftslurm.agent.options import RunOptions, UsageError, parse_run
from ftslurm.agent.output import Console, complain
from ftslurm.agent.placement import LOCAL_NODE, Placement
from ftslurm.agent.preflight import check, unique_name, user_name, write_attempt
from ftslurm.dataclasses import replace
from ftslurm.health.check import QUICK, request_for
from ftslurm.kernel import share_heap
from ftslurm.rendezvous.state import EXIT_USAGE
from ftslurm.sharedfs.rundir import RunDirectory, RunDirectoryError, open_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.early_check import EarlyCheck
    from ftslurm.agent.health_watch import HealthSettings

DEFAULT_KILL_WAIT_S = 30.0
TROUBLE_S = 60.0
KILL_WAIT_MARGIN = 0.6
"""Share of Slurm's KillWait that workers get before they are killed; the rest is for the last words."""


def main(arguments: Sequence[str], ward: Ward, early: EarlyCheck | None) -> int:
    """Run `ftslurm run` in the process below the guardian; return its exit code.

    Args:
        arguments: of the command line.
        ward: of the guardian above.
        early: will run the first health check.
    """
    try:
        options = parse_run(arguments, os.environ)
        launches = options.local_nodes and LOCAL_NODE not in os.environ
        if early is not None and (launches or options.health == OFF):
            early.drop()
            early = None
        if launches:
            from ftslurm.agent.launcher import launch

            return launch(options, arguments, ward)
        return run_agent(options, ward, early)
    except (UsageError, RunDirectoryError) as error:
        complain(str(error))
        return EXIT_USAGE


def run_agent(options: RunOptions, ward: Ward, early: EarlyCheck | None) -> int:
    """Run this node's agent to its end; return the exit code.

    Raises:
        UsageError, RunDirectoryError: with one line; nothing was started.
    """
    placement, program, slots = check(options, unique_name())
    run = open_run(placement.run_dir, user_name(), time.time_ns(), __version__)
    logs = _logs(options, placement)
    # As soon as possible: the checks take as long as all that follows until the first round.
    health = _health(options, placement, run, logs or run.root, ward)
    context = replace(health.context, hurry=True)
    if early is not None and early.begin(request_for(QUICK, (), context, ward.local_dir)):
        health.early = early
    write_attempt(run, options, placement, program, logs)
    code = _supervise(options, placement, program, slots, run, logs or run.root, ward, health)
    if placement.job is None and LOCAL_NODE not in os.environ and os.environ.get("FTSLURM_REPORT") != "0":
        for number in STOPPING:
            # Nobody waits for them any more: a report that cannot be written must not be unkillable.
            signal.signal(number, signal.SIG_DFL)
        from ftslurm.agent.aftercare import print_report

        print_report(run.root)
    return code


def _supervise(
    options: RunOptions,
    placement: Placement,
    program: Program,
    slots: int,
    run: RunDirectory,
    logs: str,
    ward: Ward,
    health: HealthSettings,
) -> int:
    from ftslurm.agent.aftercare import care
    from ftslurm.agent.aside import Aside, AsideSettings, take_part
    from ftslurm.agent.courier import Courier
    from ftslurm.agent.doorbell import Doorbell
    from ftslurm.agent.loop import AgentLoop
    from ftslurm.agent.machine import AgentMachine
    from ftslurm.agent.ports import ReservedPort, lowest_ephemeral, pick_at_random
    from ftslurm.agent.settings import AgentSettings
    from ftslurm.nodes.exclude import Exclusions, folder
    from ftslurm.rendezvous.member import Member, Pace, first_word
    from ftslurm.rendezvous.seen import Shape, Timing
    from ftslurm.sharedfs.clock import server_clock
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import random_nonce

    incarnation = random_nonce()
    ward.bequeath(run.node_file(placement.node), incarnation)
    shape = Shape(
        placement.run_id,
        placement.attempt,
        placement.expected,
        placement.min_nodes,
        placement.max_nodes,
        options.max_restarts,
    )
    word = first_word(placement.node, incarnation, placement.attempt, placement.position, slots)
    word = replace(word, host=os.uname().nodename, address=placement.address)
    fs = PosixFileSystem(owner=os.geteuid())
    exclusions = Exclusions(fs, folder(run.root, options.exclude_dir))
    if options.set_aside:
        excluded, problems = take_part(exclusions, placement.node, time.time_ns())
        word = replace(word, excluded=excluded)
        for line in (*problems, *([f"set aside before: {excluded}"] if excluded else ())):
            complain(f"{placement.node}: {line}")
    pace = Pace(heartbeat_s=options.heartbeat_s, follow_s=min(1.0, options.heartbeat_s))
    timing = Timing(
        options.node_timeout_s,
        options.join_timeout_s,
        options.last_call_s,
        rejoin=options.rejoin,
        set_aside_after=options.set_aside,
    )
    bell = Doorbell(placement.address, incarnation)
    clock = server_clock(run.nodes, time.monotonic)
    member = Member(fs, run, shape, word, timing, pace, time.monotonic, time.time_ns, ring=bell.ring, clock=clock)
    courier = Courier(member, time.monotonic)
    # What --no-python runs imports nothing.
    spare_imports = options.spare_imports if program.kind != "exec" else ()
    machine = AgentMachine(
        placement.node,
        incarnation,
        placement.attempt,
        slots,
        options.grace_s,
        _kill_wait_s(placement),
        bool(spare_imports),
    )
    lowest = lowest_ephemeral()
    settings = AgentSettings(
        RunFacts(placement.run_id, run.root, placement.node, options.role),
        program,
        options.redirects,
        options.tee,
        logs,
        ward.local_dir,
        dict(os.environ),
        ward.guardian,
        options.timeouts,
        options.hang_signal,
        options.heartbeat_s,
        min(TROUBLE_S, options.join_timeout_s),
        spare_imports,
    )
    share_heap()
    console = Console(placement.node)
    asides = AsideSettings(options.set_aside, options.set_aside_for_s, _drain(options, placement))
    aside = Aside(asides, exclusions, placement.run_id, time.time_ns, console.log)
    loop = AgentLoop(
        settings,
        machine,
        word,
        courier,
        console,
        fs,
        run,
        lambda: ReservedPort(pick_at_random, lowest),
        bell,
        health,
        aside,
        time.monotonic,
        time.time_ns,
    )
    code = loop.run()
    if courier.published:
        ward.left()
    if placement.job is not None and loop.state is not None:
        for problem in care(placement.job, loop.state, incarnation, run.root):
            complain(problem)
    return code


def _health(options: RunOptions, placement: Placement, run: RunDirectory, logs: str, ward: Ward) -> HealthSettings:
    from ftslurm.agent.health_watch import HealthSettings
    from ftslurm.health.check import Context, Place

    places = [Place(run.root, "run directory")]
    places += [Place(logs, "log directory")] if logs != run.root else []
    places += [Place(os.path.abspath(path), "--health-paths") for path in options.health_paths]
    context = Context(
        placement.node,
        dict(os.environ),
        paths=tuple(places),
        commands=(options.health_command,) if options.health_command else (),
        skip=options.health_skip,
        own_pid=os.getppid(),
        address=placement.address,
    )
    # Not all nodes of a job at the same moment.
    spread_s = options.health_every_s * (placement.position % 64) / 64
    return HealthSettings(options.health, options.health_every_s, sys.executable, ward.local_dir, context, spread_s)


def _drain(options: RunOptions, placement: Placement) -> Callable[[str, str], str | None] | None:
    if not options.drain or placement.job is None:
        return None
    from ftslurm.nodes.drain import drain

    return drain


def _kill_wait_s(placement: Placement) -> float:
    """Return how long workers may take to stop when Slurm stops the job; ftsrun passes on the site's KillWait."""
    if placement.job is None:
        return 1e9
    text = os.environ.get("FTSLURM_KILL_WAIT", "")
    return (float(text) if text.isdigit() else DEFAULT_KILL_WAIT_S) * KILL_WAIT_MARGIN


def _logs(options: RunOptions, placement: Placement) -> str | None:
    if options.log_dir is None:
        return None
    return os.path.join(os.path.abspath(options.log_dir), placement.run_id)
