"""`SharedFSHandler`: the rendezvous of `ftslurm run` as torch's agents want it.

A stock agent says little: `next_rendezvous` when its workers are gone and it wants new ones, `shutdown` when it has
given up or succeeded. Asking again ends the running round for all nodes; a round that is over, for whatever reason,
shows as nodes waiting, upon which a stock agent stops its workers and asks again. torch's agents count restarts
themselves, so the state's budget is without end here.

Only the courier's thread touches the shared filesystem; torch's agent thread never hangs in it.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
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

from ftslurm.agent.courier import Courier
from ftslurm.dataclasses import replace
from ftslurm.rendezvous.member import FencedOut, Member, NodeRefused, Pace, RunInUse, first_record
from ftslurm.rendezvous.observation import AT_ONCE, RunSpec, Timing
from ftslurm.rendezvous.state import (
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
from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.sharedfs.publish import BadFile, random_nonce
from ftslurm.torchrun.child_failure import failure_of
from ftslurm.torchrun.endpoint import choose_attempt
from ftslurm.torchrun.link import LOG, Link
from ftslurm.torchrun.store import connect, gather, serve

if TYPE_CHECKING:
    from ftslurm.torchrun.endpoint import Endpoint
    from ftslurm.torchrun.options import HandlerOptions

ENDLESS = 10**9
CONNECT_S = 10.0
FAREWELL_S = 2.0
AGENTS_SHUTDOWN = "_shutdown"
"""The caller in agents of torch 2.6, which shut the rendezvous down before they raise what happened; their launcher
does so once more, with the exception in flight. From 2.13 at the latest only the launcher does."""
STOPPED_REASON = "its torchrun was stopped"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
VERDICT_S = 5.0
"""The coordinator closes a run that nobody can join any more, with the better words: it gets so much longer."""


class SharedFSHandler(RendezvousHandler):  # type: ignore[misc]
    """One torchrun agent's part in the rendezvous.

    Args:
        params: torchrun's.
        options: what `--rdzv-conf` says.
        place: this agent's place.

    Raises:
        RendezvousConnectionError, RendezvousStateError: the run's state cannot be read.
    """

    def __init__(self, params: RendezvousParameters, options: HandlerOptions, place: Endpoint) -> None:
        self._params = params
        self._options = options
        self._place = place
        fs = PosixFileSystem(owner=os.geteuid())
        self._cell = FencedCell(fs, place.run.state)
        fixed = params.min_nodes == params.max_nodes
        self._attempt = choose_attempt(place.attempts, self._peek(), fixed)
        run_spec = RunSpec(place.run_id, self._attempt, place.expected, params.min_nodes, params.max_nodes, ENDLESS)
        record = first_record(place.node, random_nonce(), self._attempt, place.position, 1)
        self._word = replace(record, host=os.uname().nodename, address=place.address)
        timing = Timing(options.node_timeout_s, options.join_timeout_s, options.last_call_s, rejoin=AT_ONCE)
        beat = options.keep_alive_interval_s
        pace = Pace(heartbeat_s=beat, follow_s=min(0.5, beat))
        self._member = Member(fs, place.run, run_spec, self._word, timing, pace, time.monotonic, time.time_ns)
        self._courier = Courier(self._member, time.monotonic)
        self._link = Link(self._courier)
        self._store: TCPStore | None = None
        self._problem: str | None = None
        self._round = 0
        self._started = self._finished = self._saw_it_open = False

    # What torch asks

    def get_backend(self) -> str:
        """Return the backend's name."""
        return str(self._params.backend)

    def get_run_id(self) -> str:
        """Return the run id; where nobody chose one, Slurm's job gives it."""
        return self._place.run_id

    @property
    def use_agent_store(self) -> bool:
        """Whether workers use the agents' store, as with torch's own backends."""
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def is_closed(self) -> bool:
        """Tell whether the run has ended for everybody."""
        state = self._link.state if self._started else self._peek()
        return state is not None and state.attempt == self._attempt and state.phase == CLOSED

    def num_nodes_waiting(self) -> int:
        """Return above zero when this agent's round is over: a node was lost, failed, asked again, or wants in."""
        state = self._link.state
        if self._round == 0 or state is None:
            return 0
        if self._link.evicted is not None or state.attempt != self._attempt:
            return 1
        if state.phase == CLOSED:
            # Who succeeded first does not stop the others; who gave up does.
            return 0 if state.closed is not None and state.closed.outcome == SUCCEEDED else 1
        return 0 if state.phase == RUNNING and state.round == self._round else 1

    def set_closed(self) -> None:
        """Close the rendezvous for everybody."""
        self._close(STOPPED, f"{self._place.node} closed the rendezvous", EXIT_FAILED, None)

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round with this node in it.

        Raises:
            RendezvousClosedError: the run has ended.
            RendezvousTimeoutError: too few nodes came within join_timeout.
            RendezvousConnectionError: the shared directory failed for as long.
            RendezvousError: this agent may not take part: another job runs there, or other nodes say otherwise.
            SystemExit: with 0: the job succeeded without this spare. (torch's own RendezvousGracefulExitError makes
                its launcher fail: it goes on with no result.)
        """
        self._ask()
        began = time.monotonic()
        self._problem = None
        pause = FIRST_PAUSE_S
        while True:
            state = self._link.state
            part = self._part(state)
            if state is not None and part is not None:
                info = self._enter(state, part)
                if info is not None:
                    return info
                # A network that fails every time must not fill the shared directory with rounds.
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                self._ask()
            if self._is_spare(state):
                # It waits for as long as the job runs.
                began = time.monotonic()
            self._refuse(state, time.monotonic() - began)
            self._link.wait(0.5)

    def shutdown(self) -> bool:
        """Leave; close the run when this agent knows how it ended. Return whether that was published."""
        if not self._started or self._finished:
            return True
        error = sys.exc_info()[1]
        if error is None and sys._getframe(1).f_code.co_name == AGENTS_SHUTDOWN:
            return True
        state = self._link.state
        done = True
        if self._round and state is not None and state.round == self._round and state.attempt == self._attempt:
            # Of another round than its own it knows nothing: that one goes on without it.
            if isinstance(error, SignalException | KeyboardInterrupt):
                # Told to stop: this node goes, the others may stay. (Newer torch does not call shutdown then.)
                return self._leave(STOPPED_REASON, FAREWELL_S)
            if error is not None:
                done = self._give_up(error)
            elif state.phase == RUNNING:
                done = self._close(SUCCEEDED, "the workers succeeded", EXIT_SUCCESS, None)
        return self._leave("torchrun is done", self._options.close_timeout_s) and done

    # Joining

    def _ask(self) -> None:
        """Say that this node wants the next round, on a fresh port."""
        try:
            self._store = serve(self._place.address, CONNECT_S)
        except RuntimeError as error:
            what = f"no store can be served at {self._place.address}: {_first_line(error)}; see --local-addr"
            raise RendezvousConnectionError(f"rendezvous {self._place.run_id}: {what}") from error
        self._word = replace(self._word, port=self._store.port)
        self._say(READY)
        if not self._started:
            self._started = True
            atexit.register(self._farewell)
            self._courier.start()

    def _part(self, state: State | None) -> Participant | None:
        if state is None or state.attempt != self._attempt or state.phase != RUNNING or state.round <= self._round:
            return None
        return state.participant(self._word.node, self._word.incarnation)

    def _is_spare(self, state: State | None) -> bool:
        return (
            state is not None
            and state.phase == RUNNING
            and len(state.participants) >= state.max_nodes
            and state.participant(self._word.node, self._word.incarnation) is None
        )

    def _refuse(self, state: State | None, waited_s: float) -> None:
        """Raise when this agent cannot take part any more."""
        name = f"rendezvous {self._place.run_id}"
        if self._link.evicted is not None:
            raise RendezvousError(f"{name}: {self._link.evicted}")
        if waited_s >= self._options.join_timeout_s + VERDICT_S:
            if problem := self._link.trouble or self._problem:
                raise RendezvousConnectionError(f"{name}: no round within {waited_s:.0f} s: {problem}")
            raise RendezvousTimeoutError(f"{name}: no round within {waited_s:.0f} s")
        if state is None or state.attempt != self._attempt:
            return
        if state.phase != CLOSED or state.closed is None:
            self._saw_it_open = True
            return
        if self._saw_it_open and self._round == 0 and state.closed.outcome == SUCCEEDED:
            LOG.info("the job is done without this spare node")
            raise SystemExit(0)
        if self._saw_it_open and waited_s >= self._options.join_timeout_s:
            raise RendezvousTimeoutError(f"{name}: {state.closed.reason}")
        advice = "" if self._saw_it_open else f"; choose another --rdzv-id, or remove {self._place.run.root}"
        raise RendezvousClosedError(f"{name} is closed: {state.closed.reason}{advice}")

    def _enter(self, state: State, part: Participant) -> RendezvousInfo | None:
        """Meet the other nodes of the round in its store; None when the round ended before all were there."""
        assert state.master is not None
        assert self._store is not None
        self._round = state.round
        self._say(RUNNING)
        address, port = state.master.address, state.master.port
        try:
            if part.group_rank == 0:
                store = self._store
            else:
                store = self._store = connect(address, port, min(CONNECT_S, self._options.read_timeout_s))
            if not gather(store, len(state.participants), lambda: self.num_nodes_waiting() == 0):
                return None
        except RuntimeError as error:
            self._problem = f"round {state.round}: cannot meet at {address}:{port}: {_first_line(error)}"
            LOG.warning("%s; asking for another round", self._problem)
            return None
        store.set_timeout(timedelta(seconds=self._options.read_timeout_s))
        LOG.info("round %d: node %d of %d", state.round, part.group_rank, len(state.participants))
        agents: Store = PrefixStore(f"torchrun/{state.round}", store)
        if self.use_agent_store:
            info = RendezvousStoreInfo(address, port)
        else:
            info = RendezvousStoreInfo.build(part.group_rank, agents, local_addr=self._place.address)
        return RendezvousInfo(agents, part.group_rank, len(state.participants), info)

    # Leaving

    def _give_up(self, error: BaseException) -> bool:
        failure = failure_of(error, self._round, self._word.node)
        reason = f"{self._word.node} gave up: {type(error).__name__}"
        if failure is not None:
            reason = f"rank {failure.rank} on {failure.node} failed: {failure.message}; no restarts left"
        return self._close(FAILED, reason, EXIT_FAILED, failure)

    def _close(self, outcome: str, reason: str, exit_code: int, failure: Failure | None) -> bool:
        """Close the run; False when the shared directory does not let us in time."""

        def errand() -> None:
            try:
                self._member.close(outcome, reason, exit_code, failure)
            except (FencedOut, RunInUse, NodeRefused):
                # Somebody else's run by now.
                pass

        if not self._started or self._finished:
            try:
                errand()
            except (OSError, BadFile) as error:
                raise RendezvousConnectionError(f"rendezvous {self._place.run_id}: {error}") from error
            return True
        question = object()
        self._courier.send(errand, question)
        end = time.monotonic() + self._options.close_timeout_s
        while not self._link.answered(question) and time.monotonic() < end:
            self._link.wait(0.1)
        return self._link.answered(question)

    def _leave(self, reason: str, timeout_s: float) -> bool:
        self._finished = True
        atexit.unregister(self._farewell)
        self._word = replace(self._word, reason=reason)
        self._say(LEFT)
        published = self._courier.finish(timeout_s)
        self._store = None
        return published

    def _farewell(self) -> None:
        """Say goodbye when torchrun ends without a shutdown, as it does on a signal: nobody has to wait for it then."""
        self._leave(STOPPED_REASON, FAREWELL_S)

    def _say(self, status: str) -> None:
        self._word = replace(self._word, status=status, round=self._round)
        self._courier.publish(self._word)

    def _peek(self) -> State | None:
        """Read the state without taking part."""
        try:
            newest = self._cell.get()
            return None if newest is None else State.decode(newest.value, f"{self._place.run.state}, {newest.token}")
        except BadFile as error:
            raise RendezvousStateError(f"rendezvous {self._place.run_id}: {error}") from error
        except OSError as error:
            raise RendezvousConnectionError(f"rendezvous {self._place.run_id}: {error}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
