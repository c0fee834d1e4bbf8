"""`ftslurm run`: from the command line to a running agent, or to one clear line and exit code 2."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from ftslurm.agent.environment import RunFacts
from ftslurm.agent.grace import kill_wait_s, orderly_grace_s
from ftslurm.agent.guardian import SupervisorPipe
from ftslurm.agent.option_groups import OFF, RunOptions
from ftslurm.agent.output import Console, LinesAtOnce, log_at_once
from ftslurm.agent.placement import LOCAL_NODE, Placement
from ftslurm.agent.preflight import (
    CheckedRun,
    check,
    only_agent,
    open_directories,
    read_options,
    unique_name,
    warn_of_differences,
    warn_of_exposed,
    warn_of_misspelt,
    write_attempt,
)
from ftslurm.agent.torchrun_options import WrongOptions
from ftslurm.dataclasses import replace
from ftslurm.health.check import QUICK, request_for
from ftslurm.kernel import STOPPING, share_heap
from ftslurm.local_directory import remove_tree
from ftslurm.records.state import EXIT_FAILED, EXIT_USAGE
from ftslurm.sharedfs.rundir import RunDirectory, RunDirectoryError
from ftslurm.terminal import INFO, WARNING, UsageError, complain, print_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm.agent.containment import Containment, Defect
    from ftslurm.agent.defect_records import DefectRecords
    from ftslurm.agent.doorbell import Doorbell
    from ftslurm.agent.early_check import EarlyCheck
    from ftslurm.agent.exclusion import Excluder
    from ftslurm.agent.health_monitor import HealthSettings
    from ftslurm.agent.node_agent import NodeAgent
    from ftslurm.agent.ports import ReservedPort
    from ftslurm.agent.settings import AgentSettings
    from ftslurm.event_log.writer import EventLog
    from ftslurm.nodes.exclude import Exclusions
    from ftslurm.records.node import NodeRecord
    from ftslurm.records.state import State
    from ftslurm.rendezvous.contacts import Contacts
    from ftslurm.rendezvous.observation import Timing

DEFECTS_S = 2.0
"""Seconds that writing the records of defects may take at the end."""
NOTHING: list[str] = []
PARENT_ERROR = "TORCHELASTIC_ERROR_FILE"
"""Set by a launcher above this one: where it expects the first failure."""
# Errors caused by limits and seccomp profiles while an agent is set up.
REFUSALS = (errno.EPERM, errno.EACCES, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS)


def main(arguments: Sequence[str], supervisor: SupervisorPipe, early: EarlyCheck | None) -> int:
    """Run `ftslurm run` in the process below the guardian; return its exit code.

    Args:
        arguments: of the command line.
        supervisor: pipe to the guardian.
        early: will run the first health check.
    """
    try:
        options = read_options(arguments, os.environ)
        launches = options.placement.local_nodes and LOCAL_NODE not in os.environ
        warn_of_misspelt(os.environ)
        if options.placement.dry_run:
            from ftslurm.agent.plan import show_plan

            return show_plan(options)
        if early is not None and (launches or options.health.mode == OFF):
            early.drop()
            early = None
        if launches:
            from ftslurm.agent.launcher import launch

            return launch(options, arguments, supervisor)
        return run_agent(options, supervisor, early)
    except (UsageError, RunDirectoryError) as error:
        # What is wrong on the command line is wrong on all nodes.
        refused = isinstance(error, WrongOptions)
        if not (refused and os.environ.get("SLURM_PROCID", "0") != "0"):
            # Nothing else has several lines: the name of a directory may contain a line's end.
            complain(*(str(error).split("\n") if refused else [str(error)]))
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

    checked = check(options, unique_name())
    placement = checked.placement
    run, logs = open_directories(options.output, placement.run_dir)
    if placement.job is None and LOCAL_NODE not in os.environ:
        warn_of_exposed(run, logs)
        warn_of_differences(options, os.environ, run.root, logs)
    if placement.position == 0 and checked.choice is not None:
        complain(f"--nproc-per-node auto: {checked.choice}", level=INFO)
    # Links on the way are followed once: one that is changed while the run goes on leads into no other run.
    run, logs = RunDirectory(os.path.realpath(run.root)), logs and os.path.realpath(logs)
    lock = only_agent(run, placement)
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
        # As early as possible: the checks take as long as all that follows until the first round.
        health = _health(checked, run, logs or run.root, supervisor)
        context = replace(health.context, hurry=True)
        if early is not None and early.begin(request_for(QUICK, (), context, supervisor.local_dir)):
            health.early = early
        write_attempt(run, checked, logs)
        code = _supervise(checked, run, logs or run.root, supervisor, health, incarnation, records)
    except (UsageError, RunDirectoryError):
        raise
    except Exception as error:
        # During set-up, or after the loop has ended.
        code = _end_by(_defect(error), records, supervisor)
    # The run may be continued while its report is written.
    lock.release()
    if code and LOCAL_NODE not in os.environ and os.environ.get(PARENT_ERROR):
        from ftslurm.job_end.parent_error import tell_parent

        if problem := tell_parent(run.root, os.environ):
            complain(problem)
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
    checked: CheckedRun,
    run: RunDirectory,
    logs: str,
    supervisor: SupervisorPipe,
    health: HealthSettings,
    incarnation: str,
    defects: DefectRecords,
) -> int:
    from ftslurm.agent.containment import EXCLUSION, OUTPUT, Containment, Defect
    from ftslurm.agent.courier import CourierThread
    from ftslurm.agent.machine import AgentMachine
    from ftslurm.agent.node_agent import make_agent
    from ftslurm.agent.ports import lowest_ephemeral
    from ftslurm.nodes.exclude import Exclusions, folder
    from ftslurm.records.node import Predecessor, first_record
    from ftslurm.rendezvous.member import Member
    from ftslurm.rendezvous.observation import RunSpec
    from ftslurm.rendezvous.pace import QUIET_HEARTBEATS, Pace
    from ftslurm.sharedfs.clock import server_clock
    from ftslurm.sharedfs.filesystem import PosixFileSystem

    options, placement = checked.options, checked.placement
    supervisor.register(run.node_file(placement.node), incarnation)
    run_spec = RunSpec(
        placement.run_id,
        placement.attempt,
        placement.expected,
        placement.min_nodes,
        placement.max_nodes,
        options.placement.max_restarts,
    )
    before = Predecessor(*supervisor.predecessor) if supervisor.predecessor is not None else None
    record = replace(
        first_record(placement.node, incarnation, placement.attempt, placement.position, checked.slots, os.getpid()),
        host=os.uname().nodename,
        address=placement.address,
        predecessor=before,
        role=options.program.role,
    )
    fs = PosixFileSystem(owner=os.geteuid())
    containment = Containment()
    threading.excepthook = containment.on_thread
    exclusions = Exclusions(fs, folder(run.root, options.exclusion.directory))
    if options.exclusion.after:
        exclusion = (_look_up, exclusions, placement.node)
        record = replace(record, excluded=containment.call(EXCLUSION, None, *exclusion))
    heartbeat_s = options.timing.heartbeat_s
    pace = Pace(heartbeat_s=heartbeat_s, follow_s=min(1.0, heartbeat_s), quiet_s=QUIET_HEARTBEATS * heartbeat_s)
    bell, contacts = _doorbell(placement, incarnation, options.placement.port_range, containment)
    clocks = (time.monotonic, time.time_ns)
    clock = server_clock(run.nodes, time.monotonic)
    facts = (fs, run, run_spec, record, _timing(options), pace, *clocks)
    member = Member(*facts, wake_agents=bell.ring, clock=clock, contacts=contacts)
    courier = CourierThread(member, time.monotonic)
    containment.connect(courier.post)
    settings = replace(_settings(checked, run, logs, supervisor), cpus=_cpus(checked, containment))
    machine = AgentMachine(
        placement.node,
        incarnation,
        placement.attempt,
        checked.slots,
        options.timing.grace_s,
        kill_wait_s(placement),
        bool(settings.warm_imports),
        orderly_grace_s(options, placement),
    )
    reserve = partial(_reserve, lowest_ephemeral(), options.placement.port_range)
    share_heap()
    console = containment.hold(OUTPUT, Console, placement.node, answers=LinesAtOnce(placement.node).answers)
    recorders = (run, exclusions, courier.send, console, containment)
    events, excluder = _recorders(options, placement, incarnation, *recorders)
    agent = make_agent(
        settings,
        machine,
        record,
        courier,
        console,
        fs,
        run,
        lambda: reserve(console.warn),
        bell,
        health,
        excluder,
        events,
        containment,
        defects,
        supervisor.explain,
    )
    code = agent.run()
    if courier.published:
        supervisor.left()
    _after_leaving(agent, placement, incarnation, run, options.timing.node_timeout_s, containment)
    for defect in courier.events:
        if isinstance(defect, Defect):
            complain(defect.message("as this agent leaves", defects.write(defect, 0)))
    defects.finish(DEFECTS_S)
    return code


def _recorders(
    options: RunOptions,
    placement: Placement,
    incarnation: str,
    run: RunDirectory,
    exclusions: Exclusions,
    send: Callable[..., None],
    console: Console,
    containment: Containment,
) -> tuple[EventLog, Excluder]:
    """Return what records the run's events, and exclusions of nodes for later jobs; `send` runs a task."""
    from ftslurm.agent.containment import EVENTS, EXCLUSION
    from ftslurm.agent.exclusion import Excluder
    from ftslurm.event_log.writer import EventLog

    identity = (placement.node, incarnation, placement.attempt)
    logs = (time.time_ns, console.warn, console.debug)
    events = containment.hold(EVENTS, EventLog, containment.contained_task(EVENTS, send), run, *identity, *logs)
    facts = (placement.run_id, time.time_ns, console.warn, _drain(options, placement), None, events.excluded)
    excluder = containment.hold(
        EXCLUSION, Excluder, options.exclusion, exclusions, *facts, answers={"finish": lambda _: True}
    )
    return events, excluder


def _doorbell(
    placement: Placement, incarnation: str, ports: tuple[int, int] | None, containment: Containment
) -> tuple[Doorbell, Contacts]:
    from ftslurm.agent.containment import DOORBELL
    from ftslurm.agent.doorbell import Doorbell
    from ftslurm.rendezvous.contacts import Contacts

    def on_sign(data: bytes) -> bool:
        return contacts.receive(data)

    none = {"port": 0, "fileno": lambda: -1, "deadline": None, "answers": list, "refusals": list}
    facts = (placement.address, incarnation, time.monotonic, ports, on_sign)
    bell = containment.hold(DOORBELL, Doorbell, *facts, answers=none)
    contacts = Contacts(placement.node, incarnation, time.monotonic, bell)
    return bell, contacts


def _after_leaving(
    agent: NodeAgent,
    placement: Placement,
    incarnation: str,
    run: RunDirectory,
    node_timeout_s: float,
    containment: Containment,
) -> None:
    """Run the job end's work after this agent has left the run."""
    from ftslurm.agent.containment import JOB_END

    state = agent.state
    if state is None:
        return
    if agent.kept is not None and not os.path.isdir(run.root):
        containment.call(JOB_END, None, _print_last_report, agent.kept, state, agent.record)
    if agent.kept is not None and state.closed is not None and state.closed.exit_code == 0:
        # Only the report needed them.
        remove_tree(agent.kept)
    if placement.job is not None:
        from ftslurm.job_end.after_run import after_run

        facts = (placement.job, state, placement.node, incarnation, run, node_timeout_s)
        for problem in containment.call(JOB_END, NOTHING, after_run, *facts):
            complain(problem)


def _reserve(lowest: int, ports: tuple[int, int] | None, log: Callable[[str], None]) -> ReservedPort:
    from ftslurm.agent.ports import ReservedPort, pick_at_random

    if ports is not None:
        try:
            return ReservedPort(pick_at_random, lowest, ports)
        except OSError as error:
            log(f"--port-range: {error.strerror} on this node: another port is taken")
    return ReservedPort(pick_at_random, lowest)


def _cpus(checked: CheckedRun, containment: Containment) -> tuple[frozenset[int] | None, ...]:
    """Return the CPUs that each local rank is bound to; empty: none is."""
    mode = checked.options.program.numa_binding
    if mode is None:
        return ()
    from ftslurm.agent.containment import NUMA_BINDING
    from ftslurm.agent.numa_binding import cpus_of_ranks

    nothing: tuple[tuple[frozenset[int] | None, ...], str | None] = ((), None)
    cpus, problem = containment.call(NUMA_BINDING, nothing, cpus_of_ranks, mode, checked.slots)
    if problem is not None:
        complain(f"{checked.placement.node}: {problem}", level=WARNING)
    return cpus


def _look_up(exclusions: Exclusions, node: str) -> str | None:
    """Return why this node was excluded earlier, None if it was not; log that, and problems with the files."""
    from ftslurm.agent.exclusion import exclusion_of

    excluded, problems = exclusion_of(exclusions, node, time.time_ns())
    for line in (*problems, *([f"excluded before: {excluded}"] if excluded else ())):
        complain(f"{node}: {line}", level=WARNING)
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


def _timing(options: RunOptions) -> Timing:
    from ftslurm.rendezvous.observation import Timing

    timing = options.timing
    return Timing(
        timing.node_timeout_s,
        timing.join_timeout_s,
        timing.last_call_s,
        rejoin=timing.rejoin,
        exclude_after=options.exclusion.after,
        warn_before_end_s=options.stop.warn_before_end_s,
    )


def _settings(checked: CheckedRun, run: RunDirectory, logs: str, supervisor: SupervisorPipe) -> AgentSettings:
    from ftslurm.agent.settings import AgentSettings

    placement = checked.placement
    return AgentSettings(
        checked.options,
        RunFacts(
            placement.run_id,
            run.root,
            placement.node,
            checked.options.program.role,
            checked.options.program.virtual_local_rank,
            checked.options.program.signals_to_handle,
            checked.options.program.slurm_env,
        ),
        checked.program,
        logs,
        supervisor.local_dir,
        dict(os.environ),
        supervisor.guardian,
        placement.job.scontrol_id if placement.job is not None else None,
        placement.job.node_list if placement.job is not None else (),
        kill_wait_s(placement) if placement.job is not None else None,
    )


def _print_last_report(kept: str, state: State, record: NodeRecord) -> None:
    """Print this node's report of a run whose directory has vanished, if it was the coordinator or had a failure."""
    from ftslurm.job_end.after_run import last_report

    concerned = record.failure is not None or state.coordinator.incarnation == record.incarnation
    if concerned and (report := last_report(kept, state, record)):
        print_error(*report.splitlines())


def _health(checked: CheckedRun, run: RunDirectory, logs: str, supervisor: SupervisorPipe) -> HealthSettings:
    from ftslurm.agent.health_monitor import HealthSettings
    from ftslurm.health.check import CheckedPath, Context

    options, placement = checked.options.health, checked.placement
    places = [CheckedPath(run.root, "run directory")]
    places += [CheckedPath(logs, "log directory")] if logs != run.root else []
    places += [CheckedPath(os.path.abspath(path), "--health-paths") for path in options.paths]
    context = Context(
        placement.node,
        dict(os.environ),
        paths=tuple(places),
        commands=(options.command,) if options.command else (),
        skip=options.skip,
        own_pid=os.getppid(),
        address=placement.address,
        interface=checked.options.placement.interface,
        job_since_s=time.monotonic(),
    )
    # Spread the checks of a job's nodes over time.
    spread_s = options.every_s * (placement.position % 64) / 64
    return HealthSettings(options, sys.executable, supervisor.local_dir, context, spread_s)


def _drain(options: RunOptions, placement: Placement) -> Callable[[str, str], str | None] | None:
    if not options.exclusion.drain or placement.job is None:
        return None
    from ftslurm.slurm.bounded import drain

    return drain
