"""`ftslurm run`: from the command line to a running agent, or to one clear line and exit code 2."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from ftslurm.agent.environment import Program, RunFacts
from ftslurm.agent.guardian import STOPPING, SupervisorPipe
from ftslurm.agent.health_gate import OFF
from ftslurm.agent.options import RunOptions, UsageError, parse_run
from ftslurm.agent.output import Console, complain, log_at_once
from ftslurm.agent.placement import LOCAL_NODE, Placement
from ftslurm.agent.preflight import check, open_directories, unique_name, warn_of_exposed, write_attempt
from ftslurm.dataclasses import replace
from ftslurm.health.check import QUICK, request_for
from ftslurm.kernel import share_heap
from ftslurm.rendezvous.state import EXIT_FAILED, EXIT_USAGE
from ftslurm.sharedfs.rundir import RunDirectory, RunDirectoryError
from ftslurm.terminal import print_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.containment import Containment, Defect
    from ftslurm.agent.defect_records import DefectRecords
    from ftslurm.agent.early_check import EarlyCheck
    from ftslurm.agent.health_monitor import HealthSettings
    from ftslurm.agent.loop import AgentLoop
    from ftslurm.agent.settings import AgentSettings
    from ftslurm.nodes.exclude import Exclusions
    from ftslurm.rendezvous.node_record import NodeRecord
    from ftslurm.rendezvous.state import State

DEFAULT_KILL_WAIT_S = 30.0
TROUBLE_S = 60.0
DEFECTS_S = 2.0
"""Seconds that writing the records of defects may take at the end."""
NOTHING: list[str] = []
# Errors caused by limits and seccomp profiles while an agent is set up.
REFUSALS = (errno.EPERM, errno.EACCES, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS)
KILL_WAIT_MARGIN = 0.6
"""Share of Slurm's KillWait that workers get before they are killed; the rest is for the last records."""


def main(arguments: Sequence[str], supervisor: SupervisorPipe, early: EarlyCheck | None) -> int:
    """Run `ftslurm run` in the process below the guardian; return its exit code.

    Args:
        arguments: of the command line.
        supervisor: pipe to the guardian.
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

            return launch(options, arguments, supervisor)
        return run_agent(options, supervisor, early)
    except (UsageError, RunDirectoryError) as error:
        complain(str(error))
        return EXIT_USAGE
    except Exception as error:
        defect = _defect(error)
        if defect.refusal:
            complain(defect.refusal)
        else:
            complain(f"{defect.text}; please report it:", *defect.traceback.splitlines())
        return EXIT_FAILED


def run_agent(options: RunOptions, supervisor: SupervisorPipe, early: EarlyCheck | None) -> int:
    """Run this node's agent to its end; return the exit code.

    Raises:
        UsageError, RunDirectoryError: with one line; nothing was started.
    """
    from ftslurm.agent.defect_records import DefectRecords
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.publish import random_nonce

    placement, program, slots = check(options, unique_name())
    run, logs = open_directories(options, placement.run_dir)
    if placement.job is None and LOCAL_NODE not in os.environ:
        warn_of_exposed(run, logs)
    # Links on the way are followed once: one that is changed while the run goes on leads into no other run.
    run, logs = RunDirectory(os.path.realpath(run.root)), logs and os.path.realpath(logs)
    # As early as possible: the checks take as long as all that follows until the first round.
    health = _health(options, placement, run, logs or run.root, supervisor)
    context = replace(health.context, hurry=True)
    if early is not None and early.begin(request_for(QUICK, (), context, supervisor.local_dir)):
        health.early = early
    write_attempt(run, options, placement, program, logs)
    incarnation = random_nonce()
    records = DefectRecords(
        PosixFileSystem(owner=os.geteuid()),
        run,
        placement.node,
        incarnation,
        placement.attempt,
        time.time_ns,
        lambda text: log_at_once(placement.node, text),
    )
    try:
        code = _supervise(
            options, placement, program, slots, run, logs or run.root, supervisor, health, incarnation, records
        )
    except Exception as error:
        # During set-up, or after the loop has ended.
        code = _end_by(_defect(error), records, supervisor)
    if placement.job is None and LOCAL_NODE not in os.environ and os.environ.get("FTSLURM_REPORT") != "0":
        for number in STOPPING:
            # No handler is needed any more, and a report that cannot be written must stay killable.
            signal.signal(number, signal.SIG_DFL)
        from ftslurm.job_end.conclude import conclude

        try:
            conclude(run.root, placement.attempt)
        except Exception as error:
            # The exit code is the job's, not the report's.
            _end_by(_defect(error), records, supervisor)
    return code


def _supervise(
    options: RunOptions,
    placement: Placement,
    program: Program,
    slots: int,
    run: RunDirectory,
    logs: str,
    supervisor: SupervisorPipe,
    health: HealthSettings,
    incarnation: str,
    defects: DefectRecords,
) -> int:
    from ftslurm.agent.containment import DOORBELL, EXCLUSION, OUTPUT, Containment, Defect
    from ftslurm.agent.courier import Courier
    from ftslurm.agent.doorbell import Doorbell
    from ftslurm.agent.exclusion import Excluder, ExclusionSettings
    from ftslurm.agent.loop import AgentLoop
    from ftslurm.agent.machine import AgentMachine
    from ftslurm.agent.ports import ReservedPort, lowest_ephemeral, pick_at_random
    from ftslurm.nodes.exclude import Exclusions, folder
    from ftslurm.rendezvous.member import Member, Pace, first_record
    from ftslurm.rendezvous.node_record import Predecessor
    from ftslurm.rendezvous.observation import RunSpec, Timing
    from ftslurm.sharedfs.clock import server_clock
    from ftslurm.sharedfs.filesystem import PosixFileSystem

    supervisor.register(run.node_file(placement.node), incarnation)
    run_spec = RunSpec(
        placement.run_id,
        placement.attempt,
        placement.expected,
        placement.min_nodes,
        placement.max_nodes,
        options.max_restarts,
    )
    record = first_record(placement.node, incarnation, placement.attempt, placement.position, slots)
    before = Predecessor(*supervisor.predecessor) if supervisor.predecessor is not None else None
    record = replace(record, host=os.uname().nodename, address=placement.address, predecessor=before)
    fs = PosixFileSystem(owner=os.geteuid())
    containment = Containment()
    threading.excepthook = containment.on_thread
    exclusions = Exclusions(fs, folder(run.root, options.exclude_dir))
    if options.exclude_after:
        exclusion = (_look_up, exclusions, placement.node)
        record = replace(record, excluded=containment.call(EXCLUSION, None, *exclusion))
    pace = Pace(heartbeat_s=options.heartbeat_s, follow_s=min(1.0, options.heartbeat_s))
    timing = Timing(
        options.node_timeout_s,
        options.join_timeout_s,
        options.last_call_s,
        rejoin=options.rejoin,
        exclude_after=options.exclude_after,
    )
    none = {"port": 0, "fileno": lambda: -1, "deadline": None}
    bell = containment.hold(DOORBELL, Doorbell, placement.address, incarnation, answers=none)
    clock = server_clock(run.nodes, time.monotonic)
    member = Member(
        fs, run, run_spec, record, timing, pace, time.monotonic, time.time_ns, wake_agents=bell.ring, clock=clock
    )
    courier = Courier(member, time.monotonic)
    containment.connect(courier.post)
    # With --no-python there is nothing to import ahead.
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
    share_heap()
    settings = _settings(options, placement, program, run, logs, supervisor, spare_imports)
    console = containment.hold(
        OUTPUT, Console, placement.node, answers={"log": lambda text: log_at_once(placement.node, text)}
    )
    exclusion_settings = ExclusionSettings(options.exclude_after, options.exclude_for_s, _drain(options, placement))
    facts = (placement.run_id, time.time_ns, console.log)
    excluder = containment.hold(
        EXCLUSION, Excluder, exclusion_settings, exclusions, *facts, answers={"finish": lambda _: True}
    )
    loop = AgentLoop(
        settings,
        machine,
        record,
        courier,
        console,
        fs,
        run,
        lambda: ReservedPort(pick_at_random, lowest),
        bell,
        health,
        excluder,
        containment,
        defects,
        supervisor.explain,
        time.monotonic,
        time.time_ns,
    )
    code = loop.run()
    if courier.published:
        supervisor.left()
    _after_leaving(loop, placement, incarnation, run, options.node_timeout_s, containment)
    for defect in courier.events:
        if isinstance(defect, Defect):
            complain(defect.message("as this agent leaves", defects.write(defect, 0)))
    defects.finish(DEFECTS_S)
    return code


def _after_leaving(
    loop: AgentLoop,
    placement: Placement,
    incarnation: str,
    run: RunDirectory,
    node_timeout_s: float,
    containment: Containment,
) -> None:
    """Run the job end's work after this agent has left the run."""
    from ftslurm.agent.containment import JOB_END

    state = loop.state
    if state is None:
        return
    if loop.kept is not None and not os.path.isdir(run.root):
        containment.call(JOB_END, None, _print_last_report, loop.kept, state, loop.record)
    if placement.job is not None:
        from ftslurm.job_end.after_run import after_run

        facts = (placement.job, state, placement.node, incarnation, run, node_timeout_s)
        for problem in containment.call(JOB_END, NOTHING, after_run, *facts):
            complain(problem)


def _look_up(exclusions: Exclusions, node: str) -> str | None:
    """Return why this node was excluded earlier, None if it was not; log that, and problems with the files."""
    from ftslurm.agent.exclusion import exclusion_of

    excluded, problems = exclusion_of(exclusions, node, time.time_ns())
    for line in (*problems, *([f"excluded before: {excluded}"] if excluded else ())):
        complain(f"{node}: {line}")
    return excluded


def _defect(error: Exception) -> Defect:
    """Return the defect for an exception that ends the agent; limits and refusals of the system are no defects."""
    from ftslurm.agent.containment import defect_of

    defect = defect_of(None, error)
    refused = isinstance(error, OSError) and error.errno in REFUSALS
    if not refused and not isinstance(error, MemoryError):
        return defect
    what = f"{error.filename or defect.place}: {error.strerror}" if isinstance(error, OSError) else "out of memory"
    advice = "check ulimit -a, the cgroup's limits and the container's seccomp profile"
    return replace(defect, refusal=f"an agent cannot run here: {what}; {advice}")


def _end_by(defect: Defect, records: DefectRecords, supervisor: SupervisorPipe) -> int:
    supervisor.explain(defect.text)
    complain(defect.message("this agent ends", records.write(defect, 0)))
    records.finish(DEFECTS_S)
    return EXIT_FAILED


def _settings(
    options: RunOptions,
    placement: Placement,
    program: Program,
    run: RunDirectory,
    logs: str,
    supervisor: SupervisorPipe,
    spare_imports: tuple[str, ...],
) -> AgentSettings:
    from ftslurm.agent.settings import AgentSettings

    return AgentSettings(
        RunFacts(placement.run_id, run.root, placement.node, options.role),
        program,
        options.redirects,
        options.tee,
        logs,
        supervisor.local_dir,
        dict(os.environ),
        supervisor.guardian,
        options.timeouts,
        options.hang_signal,
        options.heartbeat_s,
        min(TROUBLE_S, options.join_timeout_s),
        spare_imports,
    )


def _print_last_report(kept: str, state: State, record: NodeRecord) -> None:
    """Print this node's report of a run whose directory has vanished, if it was the coordinator or had a failure."""
    from ftslurm.job_end.last_report import last_report

    concerned = record.failure is not None or state.coordinator.incarnation == record.incarnation
    if concerned and (report := last_report(kept, state, record)):
        print_error(*report.splitlines())


def _health(
    options: RunOptions, placement: Placement, run: RunDirectory, logs: str, supervisor: SupervisorPipe
) -> HealthSettings:
    from ftslurm.agent.health_monitor import HealthSettings
    from ftslurm.health.check import CheckedPath, Context

    places = [CheckedPath(run.root, "run directory")]
    places += [CheckedPath(logs, "log directory")] if logs != run.root else []
    places += [CheckedPath(os.path.abspath(path), "--health-paths") for path in options.health_paths]
    context = Context(
        placement.node,
        dict(os.environ),
        paths=tuple(places),
        commands=(options.health_command,) if options.health_command else (),
        skip=options.health_skip,
        own_pid=os.getppid(),
        address=placement.address,
        job_since_s=time.monotonic(),
    )
    # Spread the checks of a job's nodes over time.
    spread_s = options.health_every_s * (placement.position % 64) / 64
    return HealthSettings(
        options.health, options.health_every_s, sys.executable, supervisor.local_dir, context, spread_s
    )


def _drain(options: RunOptions, placement: Placement) -> Callable[[str, str], str | None] | None:
    if not options.drain or placement.job is None:
        return None
    from ftslurm.nodes.drain import drain

    return drain


def _kill_wait_s(placement: Placement) -> float:
    """Return the seconds that workers may take to stop when Slurm stops the job; ftsrun passes the site's KillWait."""
    if placement.job is None:
        return 1e9
    text = os.environ.get("FTSLURM_KILL_WAIT", "")
    return (float(text) if text.isdigit() else DEFAULT_KILL_WAIT_S) * KILL_WAIT_MARGIN
