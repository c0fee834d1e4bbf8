"""The agent's loop: turns what has happened into events of the machine, and carries out the machine's actions.

It waits for nothing, and touches neither processes nor files: all that is done by `Effects` and the courier, so that
the simulator runs this same loop. Nothing here touches the shared filesystem.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

from ftslurm.agent.actions import (
    Action,
    Assignment,
    CollectStacks,
    Compare,
    DropStandbys,
    Exit,
    ForgetRound,
    GuardianEnded,
    KillLeftovers,
    Log,
    Moment,
    Prepare,
    Prepared,
    Publish,
    RecordFailure,
    RecordRound,
    Signal,
    SignalReceived,
    Spawn,
    StandbyEnded,
    StartStandbys,
    WorkerEnd,
)
from ftslurm.agent.containment import ANALYSIS, MESSAGES, MONITOR, Containment, Defect
from ftslurm.agent.courier import Courier, Evicted, Notice, StorageProblem, TaskResult
from ftslurm.agent.effects import Effects, SpawnFailed
from ftslurm.agent.machine import AgentMachine
from ftslurm.agent.messages import messages
from ftslurm.agent.orderly_stop import takes_notice
from ftslurm.agent.rank_monitor import HungRank, Message, StacksCollected, VitalsChanged
from ftslurm.agent.round_setup import RoundSetup, StepDone
from ftslurm.agent.stop_follower import StopFollower
from ftslurm.agent.stop_pages import StopSignalled
from ftslurm.agent.storage_trouble import StorageTrouble
from ftslurm.dataclasses import replace
from ftslurm.failures.signature import of_file
from ftslurm.kernel import STOPPING
from ftslurm.records.node import NodeRecord, Vitals
from ftslurm.records.state import EXIT_FAILED, LEFT, READY, State
from ftslurm.records.stop import SIGNAL, JobEnd, StopRequest
from ftslurm.rendezvous.member import View
from ftslurm.terminal import ERROR, WARNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SWEEP_RETRY_S, QUICK_S = 0.02, 1.0
"""Interval of sweeps; ten times as long when the first one was longer than `QUICK_S` seconds ago."""
UNKILLABLE_S = 10.0
"""Seconds after which killed processes that still exist are reported."""
BY_DEFECT = "its agent ended by "
"""Beginning of the reason in the guardian's death notice, see `ftslurm.agent.guardian`."""
NO_LINES: list[Log] = []


class AgentLoop:
    """The loop of one agent; its owner calls `turn` when anything happens, and at the `deadline`.

    Args:
        effects: see `Effects`.
        machine: makes the decisions.
        courier: carries records and tasks to the shared filesystem.
        record: this node's first record, the same as the courier's member has.
        containment: of the components.
        trouble_s: see `AgentSettings`.
        connects: the connection to a round's master is tested.
        log_unreachable: logs that a master cannot be reached, and the round begins anyway; None: it does not begin.

    Attributes:
        record: this node's newest record.
        state: the newest state that this agent has read.
        exit_code: of the agent, once it has decided to leave; None: it stays.
    """

    def __init__(
        self,
        effects: Effects,
        machine: AgentMachine,
        courier: Courier,
        record: NodeRecord,
        containment: Containment,
        trouble_s: float,
        connects: bool = True,
        log_unreachable: Callable[[str], None] | None = None,
    ) -> None:
        self._effects = effects
        self._machine = machine
        self._courier = courier
        self._containment = containment
        self._storage_trouble = StorageTrouble(effects, trouble_s)
        test = effects.test_connection if connects else None
        self._round_setup = RoundSetup(
            self._make, effects.revoke_commits, test, courier.post, effects.monotonic, trouble_s, log_unreachable
        )
        self._facts = self.record = record
        self._status = Publish(READY)
        self._vitals: Vitals | None = None
        self._stop = StopFollower(effects, machine)
        self.state: State | None = None
        self.exit_code: int | None = None
        self._round_started_ns = 0
        self._sweep_at: float | None = None
        self._killed_at: float | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            SignalReceived: self._on_signal,
            GuardianEnded: self._on_guardian_ended,
            WorkerEnd: self._on_worker_ended,
            StopSignalled: self._on_stop_signalled,
            StopRequest: lambda request: self._do(self._machine.on_stop_request(request)),
            JobEnd: self._on_job_end,
            StandbyEnded: self._on_standby_ended,
            HungRank: self._on_hung_rank,
            StacksCollected: self._on_stacks_collected,
            VitalsChanged: self._on_vitals,
            Message: lambda message: self._effects.log(message.text, WARNING),
            Notice: lambda notice: self._effects.log(notice.text, notice.level),
            View: self._on_view,
            Evicted: self._on_evicted,
            StorageProblem: self._storage_trouble.on_problem,
            Defect: self._on_defect,
            TaskResult: lambda done: done.handle(done.result),
            StepDone: lambda done: self._on_prepared(self._round_setup.step_done(done)),
        }
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Prepare: self._prepare,
            Spawn: self._spawn,
            StartStandbys: self._start_standbys,
            DropStandbys: lambda _: effects.drop_standbys(),
            Signal: self._signal,
            CollectStacks: self._collect_stacks,
            Compare: self._compare,
            KillLeftovers: self._kill_leftovers,
            Publish: self._publish,
            RecordRound: lambda one: self._effects.record_round(one, self.record, self._round_started_ns),
            RecordFailure: effects.record_failure,
            ForgetRound: lambda _: self._forget_round(),
            Log: lambda line: self._effects.log(line.text, line.level),
            Exit: self._exit,
        }

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `turn` is due, even if nothing happens before."""
        killed = self._killed_at
        moments = (
            self._effects.deadline,
            self._machine.deadline,
            self._round_setup.deadline,
            self._sweep_at,
            None if killed is None else killed + UNKILLABLE_S,
            self._storage_trouble.deadline,
        )
        return min((moment for moment in moments if moment is not None), default=None)

    def begin(self, doorbell_port: int) -> None:
        """Publish the first record."""
        self._facts = replace(self._facts, doorbell_port=doorbell_port, port=self._effects.reserve_port())
        self._publish_changes()

    def turn(self) -> None:
        """Handle what has happened, and do what is due."""
        for event in self._effects.events(self.record):
            self._handle(event)
        while self._courier.events:
            self._handle(self._courier.events.popleft())
        self._publish_changes()
        if self._sweep_at is not None:
            self._sweep()
        if self._killed_at is not None and self._effects.monotonic() - self._killed_at >= UNKILLABLE_S:
            self._killed_at = self._effects.monotonic()
            self._do(self._machine.on_unkillable(self._effects.survivors(), self._moment()))
        self._on_prepared(self._round_setup.on_time())
        now = self._moment()
        self._stop.on_time(now.s)
        self._do(self._machine.on_time(now))
        self._give_up()

    def break_off(self, reason: str) -> None:
        """Publish that this node has left because of a defect of the loop itself; its workers are dead."""
        self.exit_code = EXIT_FAILED
        self.record = replace(self.record, status=LEFT, reason=reason)
        self._courier.publish(self.record)

    def on_last_events(self) -> None:
        """Handle what the courier posted while it finished: a coordinator's last tick may have closed the run."""
        while self._courier.events:
            event = self._courier.events.popleft()
            if isinstance(event, (View, Defect)):
                self._handle_last(event)

    def _handle_last(self, event: View | Defect) -> None:
        if isinstance(event, View):
            self._follow(event)
        else:
            self._effects.report_defect(event, self.record.round)

    def _moment(self) -> Moment:
        return Moment(self._effects.monotonic(), self._effects.now_ns())

    # Events

    def _handle(self, event: object) -> None:
        self._handlers[type(event)](event)

    def _on_signal(self, received: SignalReceived) -> None:
        notice = takes_notice(self._effects.stoppable(), self.state) if received.number in STOPPING else False
        actions = self._machine.on_signal(received.number, self._moment(), notice)
        if actions:
            self._stop.on_signal()
        self._do(actions)

    def _on_stop_signalled(self, one: StopSignalled) -> None:
        now = self._moment()
        reason = f"{one.signal} at rank {one.rank}"
        self._do(self._machine.on_stop_request(StopRequest(SIGNAL, reason, now.ns, one.signal)))

    def _on_job_end(self, job_end: JobEnd) -> None:
        self._facts = replace(self._facts, job_end=job_end)

    def _on_worker_ended(self, end: WorkerEnd) -> None:
        self._stop.on_worker_ended()
        self._do(self._machine.on_worker_ended(end, self._moment()))

    def _on_standby_ended(self, end: StandbyEnded) -> None:
        self._do(self._machine.on_standby_ended(end.local_rank, self._moment(), end.by_itself))

    def _on_guardian_ended(self, _: GuardianEnded) -> None:
        self._do(self._machine.on_evicted("its guardian process was killed", EXIT_FAILED, self._moment()))
        # No grace: the other nodes see at once that this node is gone, and its ranks may run elsewhere soon.
        self._effects.sweep()

    def _on_hung_rank(self, hung: HungRank) -> None:
        facts = (hung.local_rank, hung.what, hung.number, hung.step)
        self._do(self._machine.on_hang(*facts, self._moment(), hung.since_s))

    def _on_stacks_collected(self, _: StacksCollected) -> None:
        self._do(self._machine.on_stacks_collected(self._moment()))

    def _on_vitals(self, changed: VitalsChanged) -> None:
        self._vitals = changed.vitals
        self.record = self._assemble()
        self._courier.update_vitals(changed.vitals, changed.at_once or changed.first_heartbeat)
        if changed.at_once:
            self._machine.on_ranks_begun(self._moment())

    def _on_view(self, view: View) -> None:
        self._follow(view)
        if view.state is not None:
            self._do(self._machine.on_state(view.state, self._moment()))
            self._stop.follow(view.state)
            self._publish_changes()

    def _follow(self, view: View) -> None:
        if view.state is None:
            return
        self._effects.on_state(view.state, view.coordinating)
        # Only the coordinator's agent logs its decisions.
        if view.coordinating:
            for line in self._containment.call(MESSAGES, NO_LINES, messages, self.state, view.state):
                self._effects.log(line.text, line.level)
        self.state = view.state

    def _on_evicted(self, evicted: Evicted) -> None:
        self._effects.log(f"{evicted.reason}; this agent leaves", ERROR)
        self._do(self._machine.on_evicted(evicted.reason, evicted.exit_code, self._moment()))

    def _on_defect(self, defect: Defect) -> None:
        self._effects.report_defect(defect, self.record.round)
        if defect.part is None:
            self._do(self._machine.on_evicted(f"{BY_DEFECT}{defect.text}", EXIT_FAILED, self._moment()))
        elif defect.part == MONITOR:
            # Other nodes may wait for this node's stacks.
            self._do(self._machine.on_stacks_collected(self._moment()))

    def _on_prepared(self, prepared: Prepared | None) -> None:
        if prepared is not None:
            self._do(self._machine.on_prepared(prepared, self._moment()))

    def _give_up(self) -> None:
        if self.exit_code is None and self._storage_trouble.is_final():
            self.exit_code = EXIT_FAILED

    # Actions

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            self._carry_out[type(action)](action)

    def _publish(self, change: Publish) -> None:
        if change.new_port:
            self._facts = replace(self._facts, port=self._effects.reserve_port())
        self._status = change
        self._vitals = self._effects.vitals(change.round) or self._vitals
        self.record = self._assemble()
        self._effects.publish(self.record)

    def _forget_round(self) -> None:
        # The last ones stay in the record until the next round: workers may have got far since the newest sample.
        self._vitals = self._effects.vitals(self.record.round) or self._vitals
        self._stop.forget_round()
        self._effects.forget_round()

    def _publish_changes(self) -> None:
        """Publish the record if what is not the machine's part has changed, as the node's health."""
        record = self._assemble()
        if record != self.record:
            self.record = record
            self._effects.publish(record)

    def _assemble(self) -> NodeRecord:
        """Return this node's record; what varies with each write is the member's: counter, token, clocks."""
        status = self._status
        record = replace(
            self._facts,
            status=status.status,
            round=status.round,
            failure=status.failure,
            reason=status.reason,
            stop_signal=status.stop_signal,
            hang=status.hang,
            stacks_collected=status.stacks_collected,
            vitals=self._vitals,
            stop_request=status.stop_request,
            stop_vote=self._stop.vote,
        )
        return self._effects.with_health(record)

    def _prepare(self, prepare: Prepare) -> None:
        if self.record.unhealthy is not None:
            # As `ftslurm.rendezvous.common_failures` decides.
            same = "health: this node takes part anyway: the same storage checks fail on all nodes"
            self._effects.log(same, WARNING)
        # If the set-up fails, no worker starts; the round record still needs a start time.
        self._round_started_ns = self._effects.now_ns()
        self._round_setup.begin(prepare.assignment)

    def _make(self, assignment: Assignment) -> None:
        def made(result: object) -> None:
            self._on_prepared(self._round_setup.made(assignment.round, result))

        self._courier.send(partial(self._effects.make_directories, assignment), made)

    def _spawn(self, spawn: Spawn) -> None:
        self._round_started_ns = self._effects.now_ns()
        try:
            self._effects.spawn(spawn.assignment)
        except SpawnFailed as failed:
            self._do(self._machine.on_spawn_failed(failed.local_rank, failed.problem, self._moment(), failed.errno))
        self._stop.follow(self.state)

    def _start_standbys(self, start: StartStandbys) -> None:
        for end in self._effects.start_standbys(start.local_ranks):
            self._on_standby_ended(end)

    def _signal(self, action: Signal) -> None:
        self._effects.signal(action.local_ranks, action.number)
        if action.number == signal.SIGKILL and self._effects.running() <= set(action.local_ranks):
            # Not for a hung rank alone: the others still have their grace period.
            self._killed_at = self._effects.monotonic()

    def _collect_stacks(self, collect: CollectStacks) -> None:
        if not self._effects.collect_stacks(self.record.round, collect):
            self._do(self._machine.on_stacks_collected(self._moment()))

    def _compare(self, compare: Compare) -> None:
        def compared(signature: object) -> None:
            text = signature if isinstance(signature, str) else None
            self._do(self._machine.on_compared(compare.failure, text, self._moment()))

        path = self._effects.stderr_of(compare.failure.local_rank)
        if path is None:
            compared(None)
        else:
            send = self._containment.contained_task(ANALYSIS, self._courier.send)
            send(partial(of_file, path), compared)

    def _kill_leftovers(self, kill: KillLeftovers) -> None:
        self._round_setup.drop()
        # While the standby workers are still known as such.
        self._effects.name_left_behind()
        if not kill.keep_standbys:
            self._effects.drop_standbys()
        self._effects.prepare_sweep()
        self._sweep_at = self._killed_at = self._effects.monotonic()

    def _sweep(self) -> None:
        if not self._effects.sweep():
            now = self._effects.monotonic()
            quick = self._killed_at is not None and now - self._killed_at < QUICK_S
            self._sweep_at = now + (SWEEP_RETRY_S if quick else 10 * SWEEP_RETRY_S)
            return
        self._sweep_at = self._killed_at = None
        self._effects.on_swept(self.record)
        self._do(self._machine.on_swept(self._moment()))

    def _exit(self, action: Exit) -> None:
        if self.exit_code is None:
            self.exit_code = action.code
