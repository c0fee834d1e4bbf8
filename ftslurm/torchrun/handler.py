"""`SharedFSHandler`: the rendezvous of `ftslurm run` with the interface of torch's agents.

A stock agent makes few calls: `next_rendezvous` when its workers have ended and it needs new ones, `shutdown` when it
has given up or succeeded. Another `next_rendezvous` ends the running round for all nodes; a round that has ended, for
any reason, appears as waiting nodes, upon which a stock agent stops its workers and calls `next_rendezvous` again.
torch's agents count restarts themselves, so the state's restart budget is unlimited here.

Only the courier's thread accesses the shared filesystem; torch's agent thread never blocks on it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ftslurm.agent.courier import CourierThread
from ftslurm.dataclasses import replace
from ftslurm.records.codec import BadFile
from ftslurm.records.node import NodeRecord, first_record
from ftslurm.records.state import (
    CLOSED,
    EXIT_FAILED,
    EXIT_SUCCESS,
    FAILED,
    LEFT,
    READY,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    Failure,
    Participant,
    State,
)
from ftslurm.rendezvous.abandonment import RunInUse
from ftslurm.rendezvous.member import FencedOut, Member, NodeRefused
from ftslurm.rendezvous.observation import AT_ONCE, RunSpec, Timing
from ftslurm.rendezvous.observer import NODE_FILE_LIMIT
from ftslurm.rendezvous.pace import Pace
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import random_nonce
from ftslurm.text import duration, plural
from ftslurm.torchrun.child_failure import failure_of
from ftslurm.torchrun.endpoint import choose_attempt
from ftslurm.torchrun.link import LOG, Link
from ftslurm.torchrun.store import connect, gather, serve

if TYPE_CHECKING:
    from ftslurm.torchrun.endpoint import Endpoint
    from ftslurm.torchrun.options import HandlerOptions

ENDLESS = 10**9
CONNECT_S = 10.0
LEAVE_S = 2.0
AGENTS_SHUTDOWN = "_shutdown"
"""The caller in agents of torch 2.6, which shut the rendezvous down before they raise the error; their launcher
does so once more, while the exception propagates. From 2.13 at the latest only the launcher does."""
STOPPED_REASON = "its torchrun was stopped"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
CLOSE_GRACE_S = 5.0
"""Additional wait for the coordinator to close a run that nodes can no longer join, whose reason is more precise."""


class SharedFSHandler(RendezvousHandler):  # type: ignore[misc]
    """Rendezvous membership of one torchrun agent.

    Args:
        params: torchrun's.
        options: parsed from `--rdzv-conf`.
        endpoint: this agent's endpoint.

    Raises:
        RendezvousConnectionError, RendezvousStateError: the run's state cannot be read.
    """

    def __init__(self, params: RendezvousParameters, options: HandlerOptions, endpoint: Endpoint) -> None:
        self._params = params
        self._options = options
        self._endpoint = endpoint
        self._fs = fs = PosixFileSystem(owner=os.geteuid())
        self._cell = FencedCell(fs, endpoint.run.state)
        self._is_fixed = params.min_nodes == params.max_nodes
        self._attempt = choose_attempt(endpoint.attempts, self._read_state(), self._is_fixed)
        run_spec = RunSpec(
            endpoint.run_id, self._attempt, endpoint.expected, params.min_nodes, params.max_nodes, ENDLESS
        )
        record = first_record(endpoint.node, random_nonce(), self._attempt, endpoint.position, 1, os.getpid())
        self._record = replace(record, host=os.uname().nodename, address=endpoint.address)
        timing = Timing(options.node_timeout_s, options.join_timeout_s, options.last_call_s, rejoin=AT_ONCE)
        interval_s = options.keep_alive_interval_s
        pace = Pace(heartbeat_s=interval_s, follow_s=min(0.5, interval_s))
        self._member = Member(fs, endpoint.run, run_spec, self._record, timing, pace, time.monotonic, time.time_ns)
        self._courier = CourierThread(self._member, time.monotonic)
        self._link = Link(self._courier)
        self._store: TCPStore | None = None
        self._problem: str | None = None
        self._round = 0
        self._started = self._finished = self._was_open = False

    # Interface of torch

    def get_backend(self) -> str:
        """Return the backend's name."""
        return str(self._params.backend)

    def get_run_id(self) -> str:
        """Return the run id; by default derived from Slurm's job."""
        return self._endpoint.run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether workers use the agents' store, as with torch's own backends."""
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def is_closed(self) -> bool:
        """Return whether the run is closed."""
        state = self._link.state if self._started else self._read_state()
        return state is not None and state.attempt == self._attempt and state.phase == CLOSED

    def num_nodes_waiting(self) -> int:
        """Return above zero if this agent's round has ended: a node was lost, failed, requested one, or joins late."""
        state = self._link.state
        if self._round == 0 or state is None:
            return 0
        if self._link.evicted is not None or state.attempt != self._attempt:
            return 1
        if state.phase == CLOSED:
            # The first node that succeeds does not stop the others; one that gave up does.
            return 0 if state.closed is not None and state.closed.outcome == SUCCEEDED else 1
        return 0 if state.phase == RUNNING and state.round == self._round else 1

    def set_closed(self) -> None:
        """Close the rendezvous for all nodes."""
        self._close(STOPPED, f"{self._endpoint.node} closed the rendezvous", EXIT_FAILED, None)

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round with this node in it.

        Raises:
            RendezvousClosedError: the run has ended.
            RendezvousTimeoutError: too few nodes joined within join_timeout.
            RendezvousConnectionError: the shared directory failed for that time.
            RendezvousError: this agent must not take part: another job runs there, or its options differ.
            SystemExit: with 0: the job succeeded without this spare. (torch's own RendezvousGracefulExitError makes
                its launcher fail, since it continues without a result.)
        """
        self._request_round()
        began = time.monotonic()
        self._problem = None
        pause = FIRST_PAUSE_S
        while True:
            state = self._link.state
            participant = self._participant(state)
            if state is not None and participant is not None:
                info = self._enter(state, participant)
                if info is not None:
                    return info
                # Back off, so that a permanent network failure does not fill the shared directory with rounds.
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                self._request_round()
            if self._is_spare(state):
                # A spare waits as long as the job runs.
                began = time.monotonic()
            self._refuse(state, time.monotonic() - began)
            self._link.wait(0.5)

    def shutdown(self) -> bool:
        """Leave; close the run if this agent has its outcome. Return whether that was published."""
        if not self._started or self._finished:
            return True
        error = sys.exc_info()[1]
        if error is None and sys._getframe(1).f_code.co_name == AGENTS_SHUTDOWN:
            return True
        state = self._link.state
        done = True
        if self._round and state is not None and state.round == self._round and state.attempt == self._attempt:
            # Only for its own round: another one continues without this agent.
            if isinstance(error, SignalException | KeyboardInterrupt):
                # Stopped by a signal. (Newer torch does not call shutdown then.)
                return self._stop()
            if error is not None:
                done = self._give_up(error)
            elif state.phase == RUNNING:
                done = self._close(SUCCEEDED, "the workers succeeded", EXIT_SUCCESS, None)
        return self._leave("torchrun is done", self._options.close_timeout_s) and done

    # Joining

    def _request_round(self) -> None:
        """Request the next round, with a new port."""
        try:
            self._store = serve(self._endpoint.address, CONNECT_S)
        except RuntimeError as error:
            what = f"no store can be served at {self._endpoint.address}: {_first_line(error)}; see --local-addr"
            raise RendezvousConnectionError(f"rendezvous {self._endpoint.run_id}: {what}") from error
        self._record = replace(self._record, port=self._store.port)
        self._publish(READY)
        if not self._started:
            self._started = True
            atexit.register(self._leave_at_exit)
            self._courier.start()

    def _participant(self, state: State | None) -> Participant | None:
        if state is None or state.attempt != self._attempt or state.phase != RUNNING or state.round <= self._round:
            return None
        return state.participant(self._record.node, self._record.incarnation)

    def _is_spare(self, state: State | None) -> bool:
        return (
            state is not None
            and state.phase == RUNNING
            and len(state.participants) >= state.max_nodes
            and state.participant(self._record.node, self._record.incarnation) is None
        )

    def _refuse(self, state: State | None, waited_s: float) -> None:
        """Raise if this agent can no longer take part."""
        name = f"rendezvous {self._endpoint.run_id}"
        if self._link.evicted is not None:
            raise RendezvousError(f"{name}: {self._link.evicted}")
        if waited_s >= self._options.join_timeout_s + CLOSE_GRACE_S:
            if problem := self._link.storage_problem or self._problem:
                raise RendezvousConnectionError(f"{name}: no round within {duration(waited_s)}: {problem}")
            raise RendezvousTimeoutError(f"{name}: no round within {duration(waited_s)}")
        if state is None or state.attempt != self._attempt:
            return
        if state.phase != CLOSED or state.closed is None:
            self._was_open = True
            return
        if self._was_open and self._round == 0 and state.closed.outcome == SUCCEEDED:
            LOG.info("the job succeeded without this spare node")
            raise SystemExit(0)
        if self._was_open and waited_s >= self._options.join_timeout_s:
            raise RendezvousTimeoutError(f"{name}: {state.closed.reason}")
        advice = "" if self._was_open else f"; choose another --rdzv-id, or remove {self._endpoint.run.root}"
        raise RendezvousClosedError(f"{name} is closed: {state.closed.reason}{advice}")

    def _enter(self, state: State, participant: Participant) -> RendezvousInfo | None:
        """Connect to the other nodes of the round in its store; None if the round ended before all were connected."""
        assert state.master is not None
        assert self._store is not None
        self._round = state.round
        self._publish(RUNNING)
        address, port = state.master.address, state.master.port
        try:
            if participant.group_rank == 0:
                store = self._store
            else:
                store = self._store = connect(address, port, min(CONNECT_S, self._options.read_timeout_s))
            if not gather(store, len(state.participants), lambda: self.num_nodes_waiting() == 0):
                return None
        except RuntimeError as error:
            self._problem = f"round {state.round}: cannot connect to {address}:{port}: {_first_line(error)}"
            LOG.warning("%s; requesting another round", self._problem)
            return None
        store.set_timeout(timedelta(seconds=self._options.read_timeout_s))
        LOG.info("round %d: node %d of %d", state.round, participant.group_rank, len(state.participants))
        agents: Store = PrefixStore(f"torchrun/{state.round}", store)
        if self.use_agent_store:
            info = RendezvousStoreInfo(address, port)
        else:
            info = RendezvousStoreInfo.build(participant.group_rank, agents, local_addr=self._endpoint.address)
        return RendezvousInfo(agents, participant.group_rank, len(state.participants), info)

    # Leaving

    def _give_up(self, error: BaseException) -> bool:
        failure = failure_of(error, self._round, self._record.node)
        reason = f"{self._record.node} gave up: {type(error).__name__}"
        if failure is not None:
            reason = f"rank {failure.rank} on {failure.node} failed: {failure.message}; no restarts left"
        return self._close(FAILED, reason, EXIT_FAILED, failure)

    def _close(self, outcome: str, reason: str, exit_code: int, failure: Failure | None) -> bool:
        """Close the run; return False if the shared directory did not allow it in time."""

        if not self._started or self._finished:
            try:
                self._close_at_once(outcome, reason, exit_code, failure)
            except (OSError, BadFile) as error:
                raise RendezvousConnectionError(f"rendezvous {self._endpoint.run_id}: {error}") from error
            return True
        return self._in_courier(
            lambda: self._close_at_once(outcome, reason, exit_code, failure), self._options.close_timeout_s
        )

    def _close_at_once(self, outcome: str, reason: str, exit_code: int, failure: Failure | None) -> None:
        try:
            self._member.close(outcome, reason, exit_code, failure)
        except (FencedOut, RunInUse, NodeRefused):
            # Another job's run by now.
            pass

    def _in_courier(self, task: Callable[[], None], timeout_s: float) -> bool:
        """Run a task in the courier's thread; return False if it has not ended in time."""
        results: list[object] = []
        self._courier.send(task, results.append)
        end = time.monotonic() + timeout_s
        while not results and time.monotonic() < end:
            self._link.wait(0.1)
        return bool(results)

    def _stop(self) -> bool:
        """Leave, as torchrun was stopped by a signal.

        A run of fixed size is closed, since the others could only wait for this node; it can be run again under its
        name. One of variable size goes on, or waits for nodes.
        """
        if self._is_fixed and not self._finished:
            self._in_courier(self._close_if_others_wait, LEAVE_S)
        return self._leave(STOPPED_REASON, LEAVE_S)

    def _close_if_others_wait(self) -> None:
        own, others = self._record.node, 0
        for name in self._fs.listdir(self._endpoint.run.nodes):
            node, _, kind = name.rpartition(".")
            if kind != "json" or node in ("", own) or name.startswith("."):
                continue
            path = self._endpoint.run.node_file(node)
            try:
                record = NodeRecord.decode(self._fs.read(path, NODE_FILE_LIMIT), path)
            except (OSError, BadFile):
                continue
            others += record.attempt == self._attempt and record.status in (READY, RUNNING)
        if 0 < others < self._params.min_nodes:
            left = f"{others} of {plural(self._params.min_nodes, 'node')} {'is' if others == 1 else 'are'} left"
            self._close_at_once(STOPPED, f"{own} left ({STOPPED_REASON}): {left}", EXIT_FAILED, None)

    def _leave(self, reason: str, timeout_s: float) -> bool:
        self._finished = True
        atexit.unregister(self._leave_at_exit)
        self._record = replace(self._record, reason=reason)
        self._publish(LEFT)
        published = self._courier.finish(timeout_s)
        self._store = None
        return published

    def _leave_at_exit(self) -> None:
        """Leave when torchrun exits without a shutdown, as on a signal, so that no node waits for its time-out."""
        self._stop()

    def _publish(self, status: str) -> None:
        self._record = replace(self._record, status=status, round=self._round)
        self._courier.publish(self._record)

    def _read_state(self) -> State | None:
        """Read the state without joining."""
        try:
            newest = self._cell.get()
            return None if newest is None else State.decode(newest.value, f"{self._endpoint.run.state}, {newest.token}")
        except BadFile as error:
            raise RendezvousStateError(f"rendezvous {self._endpoint.run_id}: {error}") from error
        except OSError as error:
            raise RendezvousConnectionError(f"rendezvous {self._endpoint.run_id}: {error}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
